
/*
 * The readers of directives: requests, lists of headers, responses, and the
 * locations in which the gateway itself responds.  A reader reports what is
 * wrong with one directive; check reports what is wrong with several together.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_set_age_source(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *value);
static char *ngx_http_latchkey_add_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t **headers, ngx_str_t *never, char *why);
static ngx_uint_t ngx_http_latchkey_is_among(ngx_str_t *name,
    ngx_str_t *words);
static ngx_array_t *ngx_http_latchkey_read_names(ngx_conf_t *cf,
    ngx_command_t *cmd);
static ngx_uint_t ngx_http_latchkey_is_header_name(ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_keep_status(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_array_t *keep, ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_add_status(ngx_array_t *statuses,
    ngx_uint_t status);
static char *ngx_http_latchkey_set_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler);


static ngx_conf_enum_t  ngx_http_latchkey_methods[] = {
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_null_string, 0 }
};


/* in lower case; "*" at the end: all names with that prefix */

static ngx_str_t  ngx_http_latchkey_never_replayed[] = {
    ngx_string("set-cookie"),
    ngx_string("set-cookie2"),
    ngx_string("date"),
    ngx_string("www-authenticate"),
    ngx_string("proxy-*"),
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_string("content-length"),
    ngx_string("idempot*"),
    ngx_string("latchkey*"),
    ngx_null_string
};


/* request headers between two hops, or of the gateway itself */

static ngx_str_t  ngx_http_latchkey_never_accepted[] = {
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("proxy-*"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_string("http2-settings"),
    ngx_string("expect"),
    ngx_string("content-length"),
    ngx_string("latchkey*"),
    ngx_null_string
};


/* Only methods that change state: GET and HEAD need no key. */

char *
ngx_http_latchkey_set_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_conf_enum_t  *method;

    if (llcf->methods != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    llcf->methods = 0;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        method = ngx_http_latchkey_find_enum(cf, cmd, &value[i],
                                             ngx_http_latchkey_methods);
        if (method == NULL) {
            return NGX_CONF_ERROR;
        }

        if (llcf->methods & method->value) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate \"%V\" in \"%V\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        llcf->methods |= method->value;
    }

    return NGX_CONF_OK;
}


/*
 * Whether the value identifies a client is checked later, by check_tenant().
 */

char *
ngx_http_latchkey_set_tenant(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->tenant != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "is empty";
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "hashed") == 0) {
            llcf->hashed = 1;

        } else if (ngx_strcmp(value[i].data, "trusted") == 0) {
            llcf->trusted = 1;

        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", only "
                               "\"hashed\" and \"trusted\" may follow the "
                               "value", &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    if (ngx_http_latchkey_compile_value(cf, &value[1], &llcf->tenant)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/*
 * key_min is the mark that the directive was read, like UNSET elsewhere:
 * key_uuid has no value that means "not set".
 */

char *
ngx_http_latchkey_set_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_int_t    min;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->key_min != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    llcf->key_min = 1;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (i == 1 && ngx_strcmp(value[i].data, "any") == 0) {
            continue;
        }

        if (i == 1 && ngx_strcmp(value[i].data, "uuid") == 0) {
            llcf->key_uuid = 1;
            continue;
        }

        min = NGX_ERROR;

        if (ngx_strncmp(value[i].data, "min=", 4) == 0) {
            min = ngx_atoi(value[i].data + 4, value[i].len - 4);
        }

        if (min < 1 || min > LK_KEY_MAX) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\", it must be "
                               "\"any\" or \"uuid\", and \"min=\" with a "
                               "number from 1 to %d",
                               &value[i], &cmd->name, LK_KEY_MAX);
            return NGX_CONF_ERROR;
        }

        llcf->key_min = min;
    }

    if (llcf->key_uuid && llcf->key_min > 36) {
        return "requires more than the 36 characters of a UUID";
    }

    return NGX_CONF_OK;
}


/*
 * A JSON Pointer is tried on an empty object, with the function that will use
 * it: there is no second parser that could accept something else.
 */

char *
ngx_http_latchkey_set_ignore(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t              *value;
    ngx_uint_t              i;
    struct lk_slice        *pointer;
    struct lk_request       request;
    struct lk_fingerprint   fingerprint;

    if (llcf->ignore != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "none") == 0) {
        llcf->ignore = NULL;
        return NGX_CONF_OK;
    }

    llcf->ignore = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                    sizeof(struct lk_slice));
    if (llcf->ignore == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&request, sizeof(struct lk_request));

    request.content_type = LK_SLICE("application/json");
    request.body = LK_SLICE("{}");
    request.ignore_count = 1;

    for (i = 1; i < cf->args->nelts; i++) {
        pointer = ngx_array_push(llcf->ignore);
        if (pointer == NULL) {
            return NGX_CONF_ERROR;
        }

        *pointer = ngx_http_latchkey_slice(&value[i]);
        request.ignore = pointer;

        if (value[i].len == 0
            || latchkey_fingerprint(&request, &fingerprint, NULL) != LK_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" is not a JSON Pointer, it "
                               "must look like \"/meta/sent_at\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* The skew allows for clocks of clients that are ahead. */

char *
ngx_http_latchkey_set_max_age(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t  *value, skew;

    if (llcf->max_age != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        if (ngx_strcmp(value[1].data, "off") != 0) {
            return "needs a source and an age, or \"off\"";
        }

        llcf->max_age = 0;
        return NGX_CONF_OK;
    }

    if (ngx_http_latchkey_set_age_source(cf, cmd, llcf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_latchkey_parse_time(cf, cmd, &value[2], &llcf->max_age)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (llcf->max_age < 1000) {
        return "allows less than a second, write \"off\" for no limit";
    }

    llcf->max_skew = 30000;

    if (cf->args->nelts == 4) {
        if (ngx_strncmp(value[3].data, "skew=", 5) != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", only "
                               "\"skew=\" may follow the age",
                               &value[3], &cmd->name);
            return NGX_CONF_ERROR;
        }

        skew.len = value[3].len - 5;
        skew.data = value[3].data + 5;

        if (ngx_http_latchkey_parse_time(cf, cmd, &skew, &llcf->max_skew)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_latchkey_set_age_source(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *value)
{
    if (ngx_strcmp(value->data, "uuidv7") == 0) {
        llcf->age_uuid = 1;

    } else if (ngx_http_script_variables_count(value) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" is the same for every request, "
                           "it must be \"uuidv7\" or a value with variables",
                           value, &cmd->name);
        return NGX_ERROR;

    } else if (ngx_http_latchkey_compile_value(cf, value, &llcf->age_source)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * Headers that are part of the fingerprint.  The key and Latchkey-* headers
 * differ between requests that mean the same.
 */

char *
ngx_http_latchkey_set_headers(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value, *name;
    ngx_uint_t   i;

    if (llcf->headers != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "none") == 0) {
        llcf->headers = NULL;
        return NGX_CONF_OK;
    }

    llcf->headers = ngx_http_latchkey_read_names(cf, cmd);
    if (llcf->headers == NULL) {
        return NGX_CONF_ERROR;
    }

    name = llcf->headers->elts;

    for (i = 0; i < llcf->headers->nelts; i++) {
        if (ngx_strcmp(name[i].data, "idempotency-key") == 0
            || ngx_strncmp(name[i].data, "latchkey-", 9) == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" does not change what a "
                               "request means", &value[i + 1], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    return ngx_http_latchkey_add_headers(cf, cmd, &llcf->replay_headers,
                                         ngx_http_latchkey_never_replayed,
                                         "belongs to one response and is "
                                         "never replayed");
}


char *
ngx_http_latchkey_set_async_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    return ngx_http_latchkey_add_headers(cf, cmd, &llcf->async_headers,
                                         ngx_http_latchkey_never_accepted,
                                         "belongs to one connection, or to "
                                         "Latchkey, and is never stored for "
                                         "later");
}


/* adds names to a built-in list, except those in `never` */

static char *
ngx_http_latchkey_add_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t **headers, ngx_str_t *never, char *why)
{
    ngx_str_t   *value, *name;
    ngx_uint_t   i;

    if (*headers != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        *headers = NULL;
        return NGX_CONF_OK;
    }

    *headers = ngx_http_latchkey_read_names(cf, cmd);
    if (*headers == NULL) {
        return NGX_CONF_ERROR;
    }

    name = (*headers)->elts;

    for (i = 0; i < (*headers)->nelts; i++) {
        if (ngx_http_latchkey_is_among(&name[i], never)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" %s, remove it",
                               &value[i + 1], &cmd->name, why);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* The names are in lower case and end with a zero byte. */

static ngx_uint_t
ngx_http_latchkey_is_among(ngx_str_t *name, ngx_str_t *words)
{
    ngx_str_t  *word;

    for (word = words; word->len; word++) {

        if (word->data[word->len - 1] == '*') {
            if (ngx_strncmp(name->data, word->data, word->len - 1) == 0) {
                return 1;
            }

        } else if (ngx_strcmp(name->data, word->data) == 0) {
            return 1;
        }
    }

    return 0;
}


/* all arguments as header names, in lower case */

static ngx_array_t *
ngx_http_latchkey_read_names(ngx_conf_t *cf, ngx_command_t *cmd)
{
    ngx_str_t    *value, *name;
    ngx_uint_t    i;
    ngx_array_t  *names;

    names = ngx_array_create(cf->pool, cf->args->nelts - 1,
                             sizeof(ngx_str_t));
    if (names == NULL) {
        return NULL;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "none") == 0
            || ngx_strcmp(value[i].data, "default") == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" must be the only parameter",
                               &value[i], &cmd->name);
            return NULL;
        }

        if (!ngx_http_latchkey_is_header_name(&value[i])) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" is not the name of a "
                               "header", &value[i], &cmd->name);
            return NULL;
        }

        name = ngx_array_push(names);
        if (name == NULL) {
            return NULL;
        }

        name->len = value[i].len;
        name->data = ngx_pnalloc(cf->pool, name->len + 1);
        if (name->data == NULL) {
            return NULL;
        }

        ngx_strlow(name->data, value[i].data, name->len);
        name->data[name->len] = '\0';
    }

    return names;
}


/* a token of RFC 9110 */

static ngx_uint_t
ngx_http_latchkey_is_header_name(ngx_str_t *value)
{
    u_char  ch, *p;

    for (p = value->data; *p; p++) {
        ch = (u_char) (*p | 0x20);

        if ((ch < 'a' || ch > 'z') && (*p < '0' || *p > '9')
            && ngx_strchr("!#$%&'*+-.^_`|~", *p) == NULL)
        {
            return 0;
        }
    }

    return value->len != 0 && p == value->data + value->len;
}


/*
 * Also sets keep_5xx and no_body, which are inherited together with the list.
 */

char *
ngx_http_latchkey_set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->keep != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        llcf->keep = NULL;
        return NGX_CONF_OK;
    }

    llcf->keep = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (llcf->keep == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "5xx") == 0) {
            llcf->keep_5xx = 1;
            continue;
        }

        if (ngx_strcmp(value[i].data, "no_body") == 0) {
            llcf->no_body = 1;
            continue;
        }

        if (ngx_http_latchkey_keep_status(cf, cmd, llcf->keep, &value[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/*
 * A status that is stored in any case is not an error: it only has no effect.
 */

static ngx_int_t
ngx_http_latchkey_keep_status(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t *keep, ngx_str_t *value)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data, value->len);

    if (n < 200 || n > 599) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\", it must be "
                           "\"default\" alone, or any of \"5xx\", "
                           "\"no_body\" and statuses",
                           value, &cmd->name);
        return NGX_ERROR;
    }

    if (n < 500 && n != 401 && n != 407 && n != 408 && n != 425
        && n != 429)
    {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "status %i in \"%V\" is stored in any case",
                           n, &cmd->name);
    }

    return ngx_http_latchkey_add_status(keep, n);
}


static ngx_int_t
ngx_http_latchkey_add_status(ngx_array_t *statuses, ngx_uint_t status)
{
    ngx_uint_t  *s;

    s = ngx_array_push(statuses);
    if (s == NULL) {
        return NGX_ERROR;
    }

    *s = status;

    return NGX_OK;
}


char *
ngx_http_latchkey_set_release(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->release != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        llcf->release = NULL;
        return NGX_CONF_OK;
    }

    llcf->release = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (llcf->release == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        n = ngx_atoi(value[i].data, value[i].len);

        /* a response of success means that the app ran */

        if (n < 400 || n > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\", it must be "
                               "\"default\" alone, or statuses from 400 to "
                               "599", &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        if (ngx_http_latchkey_add_status(llcf->release, n) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/*
 * How long, and with how much memory of each worker, settlements are repeated.
 */

char *
ngx_http_latchkey_set_late(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (llcf->late_time != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_latchkey_parse_time(cf, cmd, &value[1], &llcf->late_time)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    llcf->late_size = 64 * 1024 * 1024;

    if (cf->args->nelts == 3) {
        size = ngx_parse_size(&value[2]);

        if (size == NGX_ERROR) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid size \"%V\" in \"%V\"",
                               &value[2], &cmd->name);
            return NGX_CONF_ERROR;
        }

        llcf->late_size = size;
    }

    return NGX_CONF_OK;
}


/*
 * The text goes into JSON and into a URL, so it must not need escapes in
 * either.
 */

char *
ngx_http_latchkey_set_problem_base(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    u_char       ch;
    size_t       i;
    ngx_str_t   *value;
    ngx_uint_t   scheme;

    if (llcf->problem_base.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "default") == 0) {
        ngx_str_set(&llcf->problem_base, "");
        return NGX_CONF_OK;
    }

    scheme = 0;

    for (i = 0; i < value[1].len; i++) {
        ch = value[1].data[i];

        if (ch == ':' && i) {
            scheme = 1;
        }

        if (ch <= ' ' || ch >= 0x7f || ch == '"' || ch == '<' || ch == '>'
            || ch == '\\')
        {
            break;
        }
    }

    if (!scheme || i != value[1].len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" is not the beginning of a URL, "
                           "such as \"https://api.example/problems/\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    llcf->problem_base = value[1];

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_async_location(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    size_t      i;
    ngx_str_t  *value;

    if (llcf->async_location.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 0; i < value[1].len; i++) {
        if (value[1].data[i] <= ' ' || value[1].data[i] >= 0x7f) {
            break;
        }
    }

    if (value[1].len == 0 || i != value[1].len
        || value[1].data[value[1].len - 1] != '/'
        || (value[1].data[0] != '/'
            && ngx_strncmp(value[1].data, "http://", 7) != 0
            && ngx_strncmp(value[1].data, "https://", 8) != 0))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" must begin and end with a "
                           "slash, such as \"/operations/\", or be the "
                           "beginning of a URL",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    llcf->async_location = value[1];

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *rv;

    rv = ngx_http_latchkey_set_rate(cf, cmd, conf);

    return rv != NGX_CONF_OK ? rv
           : ngx_http_latchkey_set_handler(cf, conf,
                                           ngx_http_latchkey_status_handler);
}


char *
ngx_http_latchkey_set_operation(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    char  *rv;

    /* a caller with many requests in progress asks for each of them */

    llcf->status_rate = 100 * 1000;
    llcf->status_burst = 200;

    rv = ngx_http_latchkey_set_rate(cf, cmd, conf);

    return rv != NGX_CONF_OK ? rv
           : ngx_http_latchkey_set_handler(cf, conf,
                                        ngx_http_latchkey_operation_handler);
}


char *
ngx_http_latchkey_set_counters(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_latchkey_set_handler(cf, conf,
                                         ngx_http_latchkey_counters_handler);
}


/* rate= and burst= */

static char *
ngx_http_latchkey_set_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    size_t                     len;
    ngx_int_t                  n, scale;
    ngx_str_t                 *value;
    ngx_uint_t                 i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        n = NGX_ERROR;
        len = value[i].len;

        if (len > 8 && ngx_strncmp(value[i].data, "rate=", 5) == 0) {
            scale = ngx_strcmp(value[i].data + len - 3, "r/s") == 0 ? 1
                    : ngx_strcmp(value[i].data + len - 3, "r/m") == 0 ? 60
                    : 0;

            n = ngx_atoi(value[i].data + 5, len - 8);

            if (scale == 0 || n > 1000000) {
                n = NGX_ERROR;
            }

            if (n > 0) {
                llcf->status_rate = n * 1000 / scale;
            }

        } else if (ngx_strncmp(value[i].data, "burst=", 6) == 0) {
            n = ngx_atoi(value[i].data + 6, len - 6);

            if (n > 1000000) {
                n = NGX_ERROR;
            }

            if (n > 0) {
                llcf->status_burst = n;
            }
        }

        if (n <= 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", it must "
                               "look like \"rate=10r/s\" or \"burst=20\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/*
 * A location has one content handler.  check() looks again after the merge: a
 * later directive may have replaced this one.
 */

static char *
ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "makes the responses of its location, and so does another "
               "directive there; give it a location of its own";
    }

    clcf->handler = handler;
    llcf->handler = handler;

    return NGX_CONF_OK;
}
