
/*
 * Checks of idempotency_tenant: is there one, and does nginx verify what it is
 * made of?  A tenant that a client can choose gives it the responses of others.
 *
 * A value is followed through variables.  A "map" whose results are constants
 * is a list of known values and verifies; a map whose results contain variables
 * is as good as those.  "set" and "rewrite" are read as the codes they were
 * compiled to: each begins with the address of its function, all are aligned.
 * Their sizes are not used, because a patched nginx may have more members than
 * its headers show: a word equal to the address of one of these functions is
 * the beginning of its code.
 */


#include "ngx_http_latchkey_module.h"


/* of variables set from other variables; beyond it nothing is known */
#define NGX_HTTP_LATCHKEY_DEPTH  64


/* the first members of structures that are private to other modules */

typedef struct {
    ngx_http_complex_value_t        *realm;
    ngx_http_complex_value_t        *user_file;
} ngx_http_latchkey_auth_basic_t;


typedef struct {
    ngx_str_t                        uri;
} ngx_http_latchkey_auth_request_t;


extern ngx_module_t  ngx_http_auth_basic_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_auth_request_module ngx_http_latchkey_weak;
#if (NGX_HTTP_SSL)
extern ngx_module_t  ngx_http_ssl_module ngx_http_latchkey_weak;
#endif


/* the first members of a structure that is private to the map module */

typedef struct {
    ngx_http_map_t                   map;
    ngx_http_complex_value_t         value;
    ngx_http_variable_value_t       *default_value;
} ngx_http_latchkey_map_t;


extern ngx_module_t  ngx_http_map_module ngx_http_latchkey_weak;


/* the first member of a structure that is private to the rewrite module */

typedef struct {
    ngx_array_t                     *codes;       /* uintptr_t */
} ngx_http_latchkey_rewrite_t;


extern ngx_module_t  ngx_http_rewrite_module ngx_http_latchkey_weak;


static char *ngx_http_latchkey_check_caller(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static void ngx_http_latchkey_warn_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_uint_t ngx_http_latchkey_has_client_variable(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *text, ngx_uint_t depth,
    ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_client_variable(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_is_followed(ngx_array_t *followed,
    ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_capture(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name);
#if (NGX_PCRE)
static ngx_uint_t ngx_http_latchkey_regex_captures(ngx_conf_t *cf,
    ngx_http_regex_t *regex, ngx_str_t *name);
#endif
static ngx_uint_t ngx_http_latchkey_next_name(ngx_str_t *rest,
    ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_has_variable(ngx_str_t *value,
    char *prefix);
static ngx_uint_t ngx_http_latchkey_asks_password(
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_uint_t ngx_http_latchkey_asks_service(
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_uint_t ngx_http_latchkey_is_mapped_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
static ngx_http_latchkey_map_t *ngx_http_latchkey_find_map(ngx_conf_t *cf,
    ngx_str_t *name);
static ngx_http_variable_t *ngx_http_latchkey_find_variable(ngx_conf_t *cf,
    ngx_str_t *name);
static ngx_http_get_variable_pt ngx_http_latchkey_ask_map(ngx_conf_t *cf);
static ngx_uint_t ngx_http_latchkey_hash_gives(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_hash_t *hash, ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_result_gives(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_variable_value_t *result,
    ngx_str_t *source, ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_is_set_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_reads_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_array_t *codes, ngx_str_t *name,
    ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_has_client_code(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *ip, u_char *last,
    ngx_str_t *captured, ngx_uint_t depth);
static ngx_array_t *ngx_http_latchkey_rewrite_codes(void **loc_conf);


/*
 * Variables that a client can set to any value; "_" at the end: all with that
 * prefix.  Of captures, only those of a location's regular expression are
 * known to be.
 */

static char  *ngx_http_latchkey_client_variables[] = {
    "http_", "arg_", "cookie_", "args", "query_string", "request_uri", "uri",
    "document_uri", "request", "request_body", "request_filename",
    "request_method", "realpath_root", "host", "content_type",
    "content_length", "proxy_add_x_forwarded_for", "ssl_server_name", NULL
};


/*
 * Errors for what is certainly not verified, warnings for what probably is
 * not.
 */

char *
ngx_http_latchkey_check_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    char                      *rv;
    ngx_http_core_loc_conf_t  *clcf;

    if (llcf->tenant == NULL) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "there is no \"idempotency_tenant\"; name who the client "
                   "is, for example \"idempotency_tenant $remote_user\"");
    }

    if (llcf->hashed && lmcf->secret.len == 0) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"hashed\" in \"idempotency_tenant\" needs a key; name a "
                   "file with \"idempotency_secret\" in http");
    }

    if (llcf->auth_app || llcf->trusted) {
        return NGX_CONF_OK;
    }

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    rv = NGX_CONF_OK;

    /* a request that is redirected here was authenticated before */

    if (!clcf->internal && !clcf->named) {
        rv = ngx_http_latchkey_check_caller(cf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        ngx_http_latchkey_warn_tenant(cf, lmcf, llcf);
    }

    return rv;
}


/* if nginx can verify the variable, it must */

static char *
ngx_http_latchkey_check_caller(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_str_t               *value;
#if (NGX_HTTP_SSL)
    ngx_http_conf_ctx_t     *ctx;
    ngx_http_ssl_srv_conf_t *sscf;
#endif

    value = &llcf->tenant->value;

    if (ngx_http_latchkey_asks_service(llcf)) {
        return NGX_CONF_OK;
    }

    if (ngx_http_latchkey_has_variable(value, "remote_user")
        && !ngx_http_latchkey_asks_password(llcf))
    {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "nothing verifies $remote_user in \"idempotency_tenant\"; "
                   "add \"auth_basic\" with its file and a realm without "
                   "variables, which might be \"off\", or \"auth_request\", "
                   "without \"satisfy any\"; or, if only the application "
                   "verifies it, \"idempotency_auth app\"");
    }

#if (NGX_HTTP_SSL)

    if (ngx_http_latchkey_has_variable(value, "ssl_client_")
        && &ngx_http_ssl_module != NULL)
    {
        ctx = cf->ctx;
        sscf = ctx->srv_conf[ngx_http_ssl_module.ctx_index];

        /* 1: on, 2: optional, 3: optional_no_ca */

        if (sscf->verify != 1 && sscf->verify != 2) {
            return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "nothing verifies the certificate in "
                   "\"idempotency_tenant\"; set \"ssl_verify_client on\"; or, "
                   "if only the application verifies it, \"idempotency_auth "
                   "app\"");
        }
    }

#endif

    return NGX_CONF_OK;
}


/* once for each directive */

static void
ngx_http_latchkey_warn_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_str_t                  name;
    ngx_http_core_loc_conf_t  *clcf;

    if (llcf->tenant == lmcf->warned) {
        return;
    }

    if (llcf->tenant->lengths == NULL) {
        clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

        if (clcf->internal || clcf->named
            || ngx_http_latchkey_authenticates(llcf))
        {
            return;
        }

        lmcf->warned = llcf->tenant;

        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_tenant\" is the same for every client, so "
                   "each of them gets the responses to the keys of the "
                   "others");
        return;
    }

    if (llcf->hashed) {
        return;
    }

    lmcf->followed = ngx_array_create(cf->temp_pool, 8, sizeof(ngx_str_t));
    if (lmcf->followed == NULL) {
        return;
    }

    if (ngx_http_latchkey_has_client_variable(cf, llcf, &llcf->tenant->value,
                                              0, &name))
    {
        lmcf->warned = llcf->tenant;

        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "a client can set $%V in \"idempotency_tenant\" to any "
                   "value, also to that of another client; use what was "
                   "verified, such as $remote_user or a variable of "
                   "\"auth_request_set\"; if it is a whole credential, add "
                   "\"hashed\"; if only a proxy that has verified it can "
                   "reach this server, add \"trusted\"", &name);
    }
}


/* has the text such a variable?  *name: which; may be NULL */

static ngx_uint_t
ngx_http_latchkey_has_client_variable(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *text, ngx_uint_t depth,
    ngx_str_t *name)
{
    ngx_str_t  rest, one;

    rest = *text;

    while (ngx_http_latchkey_next_name(&rest, &one)) {

        if (ngx_http_latchkey_is_client_variable(cf, llcf, &one, depth)) {
            if (name) {
                *name = one;
            }

            return 1;
        }
    }

    return 0;
}


/*
 * 1: a client can set the variable to any value.  0: it cannot, or that is not
 * known.
 *
 * `depth`: of variables set from other variables.  Each variable is followed
 * once, or some dozens of "set" and "map" would take hours: if a client can
 * set it, that is the result for all that depend on it, and the search ends.
 */

static ngx_uint_t
ngx_http_latchkey_is_client_variable(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth)
{
    char                          **known;
    size_t                          len;
    ngx_str_t                      *followed;
    ngx_http_latchkey_main_conf_t  *lmcf;

    if (name->len == 1 && name->data[0] >= '1' && name->data[0] <= '9') {
        return depth == 0;
    }

    for (known = ngx_http_latchkey_client_variables; *known; known++) {
        len = ngx_strlen(*known);

        if (name->len >= len
            && ngx_strncasecmp(name->data, (u_char *) *known, len) == 0
            && (name->len == len || (*known)[len - 1] == '_'))
        {
            return 1;
        }
    }

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    if (depth == NGX_HTTP_LATCHKEY_DEPTH
        || ngx_http_latchkey_is_followed(lmcf->followed, name))
    {
        return 0;
    }

    followed = ngx_array_push(lmcf->followed);
    if (followed == NULL) {
        return 0;
    }

    *followed = *name;

    return ngx_http_latchkey_is_capture(cf, llcf, name)
           || ngx_http_latchkey_is_set_by_client(cf, llcf, name, depth + 1)
           || ngx_http_latchkey_is_mapped_by_client(cf, llcf, name, depth + 1);
}


static ngx_uint_t
ngx_http_latchkey_is_followed(ngx_array_t *followed, ngx_str_t *name)
{
    ngx_str_t   *one;
    ngx_uint_t   i;

    one = followed->elts;

    for (i = 0; i < followed->nelts; i++) {
        if (one[i].len == name->len
            && ngx_strncasecmp(one[i].data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* is it a named capture of the path or of the host? */

static ngx_uint_t
ngx_http_latchkey_is_capture(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name)
{
#if (NGX_PCRE)
    ngx_uint_t                 i;
    ngx_http_server_name_t    *server;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (ngx_http_latchkey_regex_captures(cf, clcf->regex, name)) {
        return 1;
    }

    server = llcf->cscf->server_names.elts;

    for (i = 0; i < llcf->cscf->server_names.nelts; i++) {
        if (ngx_http_latchkey_regex_captures(cf, server[i].regex, name)) {
            return 1;
        }
    }
#endif

    return 0;
}


#if (NGX_PCRE)

static ngx_uint_t
ngx_http_latchkey_regex_captures(ngx_conf_t *cf, ngx_http_regex_t *regex,
    ngx_str_t *name)
{
    ngx_str_t                  *one;
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; regex && i < regex->nvariables; i++) {
        one = &v[regex->variables[i].index].name;

        if (one->len == name->len
            && ngx_strncasecmp(one->data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}

#endif


/*
 * removes the first variable, "$name" or "${name}", from the front of a value
 */

static ngx_uint_t
ngx_http_latchkey_next_name(ngx_str_t *rest, ngx_str_t *name)
{
    u_char  *p, *last;

    last = rest->data + rest->len;
    p = ngx_strlchr(rest->data, last, '$');

    if (p == NULL) {
        return 0;
    }

    p++;

    if (p < last && *p == '{') {
        p++;
    }

    name->data = p;

    while (p < last
           && ((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z')
               || (*p >= 'a' && *p <= 'z') || *p == '_'))
    {
        p++;
    }

    name->len = p - name->data;
    rest->data = p;
    rest->len = last - p;

    return 1;
}


static ngx_uint_t
ngx_http_latchkey_has_variable(ngx_str_t *value, char *prefix)
{
    size_t     len;
    ngx_str_t  rest, name;

    len = ngx_strlen(prefix);
    rest = *value;

    while (ngx_http_latchkey_next_name(&rest, &name)) {
        if (name.len >= len
            && ngx_strncasecmp(name.data, (u_char *) prefix, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_uint_t
ngx_http_latchkey_authenticates(ngx_http_latchkey_loc_conf_t *llcf)
{
    return ngx_http_latchkey_asks_password(llcf)
           || ngx_http_latchkey_asks_service(llcf);
}


/* a realm with variables may be "off" */

static ngx_uint_t
ngx_http_latchkey_asks_password(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_latchkey_auth_basic_t  *basic;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    basic = ngx_http_latchkey_module_conf(llcf, &ngx_http_auth_basic_module);

    return clcf->satisfy != NGX_HTTP_SATISFY_ANY
           && basic && basic->realm && basic->user_file
           && basic->realm->lengths == NULL
           && !(basic->realm->value.len == 3
                && ngx_strncmp(basic->realm->value.data, "off", 3) == 0);
}


static ngx_uint_t
ngx_http_latchkey_asks_service(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_latchkey_auth_request_t  *request;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    request = ngx_http_latchkey_module_conf(llcf,
                                            &ngx_http_auth_request_module);

    return clcf->satisfy != NGX_HTTP_SATISFY_ANY
           && request && request->uri.len != 0;
}


static ngx_uint_t
ngx_http_latchkey_is_mapped_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth)
{
    ngx_http_latchkey_map_t  *map;
#if (NGX_PCRE)
    ngx_uint_t                i;
#endif

    map = ngx_http_latchkey_find_map(cf, name);
    if (map == NULL) {
        return 0;
    }

#if (NGX_PCRE)

    for (i = 0; i < map->map.nregex; i++) {
        if (ngx_http_latchkey_result_gives(cf, llcf, map->map.regex[i].value,
                                           &map->value.value, depth))
        {
            return 1;
        }
    }

#endif

    return ngx_http_latchkey_result_gives(cf, llcf, map->default_value,
                                          NULL, depth)
           || ngx_http_latchkey_hash_gives(cf, llcf, &map->map.hash.hash,
                                           depth);
}


/* NULL: the variable is not defined by a "map" */

static ngx_http_latchkey_map_t *
ngx_http_latchkey_find_map(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_http_variable_t            *v;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    if (!lmcf->map_known) {
        lmcf->map_known = 1;
        lmcf->map_handler = ngx_http_latchkey_ask_map(cf);
    }

    v = ngx_http_latchkey_find_variable(cf, name);

    return v && v->get_handler && v->get_handler == lmcf->map_handler
           ? (ngx_http_latchkey_map_t *) v->data : NULL;
}


static ngx_http_variable_t *
ngx_http_latchkey_find_variable(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                  i;
    ngx_hash_key_t             *key;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (cmcf->variables_keys == NULL) {
        return NULL;
    }

    key = cmcf->variables_keys->keys.elts;

    for (i = 0; i < cmcf->variables_keys->keys.nelts; i++) {
        if (key[i].value && key[i].key.len == name->len
            && ngx_strncasecmp(key[i].key.data, name->data, name->len) == 0)
        {
            return key[i].value;
        }
    }

    return NULL;
}


/*
 * The module does not export its variable handler, but its directive sets it:
 * the directive is run once, for an empty block.  The result must look as
 * expected.  NULL: it does not, and no "map" can be followed.
 */

static ngx_http_get_variable_pt
ngx_http_latchkey_ask_map(ngx_conf_t *cf)
{
    void                     *conf;
    ngx_buf_t                 empty;
    ngx_str_t                 words[3], name;
    ngx_conf_t                ask;
    ngx_array_t               args;
    ngx_command_t            *cmd;
    ngx_conf_file_t           file;
    ngx_http_module_t        *module;
    ngx_http_variable_t      *v;
    ngx_http_latchkey_map_t  *map;

    if (&ngx_http_map_module == NULL) {
        return NULL;
    }

    module = ngx_http_map_module.ctx;

    conf = module->create_main_conf(cf);
    if (conf == NULL) {
        return NULL;
    }

    ngx_str_set(&words[0], "map");
    ngx_str_set(&words[1], "nothing");

    /* with a space, so that it cannot be the name of a real map */

    ngx_str_set(&words[2], "$latchkey map");
    ngx_str_set(&name, "latchkey map");

    ngx_memzero(&args, sizeof(ngx_array_t));
    args.elts = words;
    args.nelts = 3;
    args.size = sizeof(ngx_str_t);
    args.nalloc = 3;
    args.pool = cf->pool;

    /* like ngx_conf_param(), which reads text that is not in a file */

    ngx_memzero(&empty, sizeof(ngx_buf_t));
    ngx_memzero(&file, sizeof(ngx_conf_file_t));
    file.file.fd = NGX_INVALID_FILE;
    file.buffer = &empty;

    ask = *cf;
    ask.args = &args;
    ask.conf_file = &file;

    for (cmd = ngx_http_map_module.commands; cmd->name.len; cmd++) {

        if (cmd->name.len != 3 || ngx_strcmp(cmd->name.data, "map") != 0) {
            continue;
        }

        if (cmd->set(&ask, cmd, conf) != NGX_CONF_OK) {
            return NULL;
        }

        v = ngx_http_latchkey_find_variable(cf, &name);
        map = v ? (ngx_http_latchkey_map_t *) v->data : NULL;

        return map && map->value.value.data == words[1].data
               && map->default_value == &ngx_http_variable_null_value
               ? v->get_handler : NULL;
    }

    return NULL;
}


static ngx_uint_t
ngx_http_latchkey_hash_gives(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_hash_t *hash, ngx_uint_t depth)
{
    ngx_uint_t       i;
    ngx_hash_elt_t  *elt;

    for (i = 0; hash->buckets && i < hash->size; i++) {

        for (elt = hash->buckets[i]; elt && elt->value;
             elt = (ngx_hash_elt_t *) ngx_align_ptr(&elt->name[0] + elt->len,
                                                    sizeof(void *)))
        {
            if (ngx_http_latchkey_result_gives(cf, llcf, elt->value, NULL,
                                               depth))
            {
                return 1;
            }
        }
    }

    return 0;
}


/*
 * A result that is not valid is a complex value, evaluated when needed.
 * Captures of a regular expression are as good as the map's source.
 */

static ngx_uint_t
ngx_http_latchkey_result_gives(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_variable_value_t *result,
    ngx_str_t *source, ngx_uint_t depth)
{
    ngx_http_complex_value_t  *value;

    if (result->valid || result->data == NULL) {
        return 0;
    }

    value = (ngx_http_complex_value_t *) result->data;

    return ngx_http_latchkey_has_client_variable(cf, llcf, &value->value,
                                                 depth, NULL)
           || (source
               && ngx_http_latchkey_has_client_variable(cf, llcf, source,
                                                        depth, NULL));
}


/* a "return" inside "if" is for some requests only */

ngx_uint_t
ngx_http_latchkey_has_return(ngx_http_latchkey_loc_conf_t *llcf)
{
    u_char                     *ip, *last;
    ngx_array_t                *codes;
    ngx_http_script_code_pt     code;
    ngx_http_script_if_code_t  *test;

    codes = ngx_http_latchkey_rewrite_codes(llcf->loc_conf);
    if (codes == NULL) {
        return 0;
    }

    ip = codes->elts;
    last = ip + codes->nelts;

    while (ip < last) {
        code = *(ngx_http_script_code_pt *) ip;

        if (code == ngx_http_script_return_code) {
            return 1;
        }

        if (code == ngx_http_script_break_code) {
            return 0;
        }

        test = (ngx_http_script_if_code_t *) ip;
        ip += (code == ngx_http_script_if_code) ? test->next
                                                : sizeof(uintptr_t);
    }

    return 0;
}


/* "set" may be in the location or in its server */

static ngx_uint_t
ngx_http_latchkey_is_set_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth)
{
    return ngx_http_latchkey_reads_client(cf, llcf,
                   ngx_http_latchkey_rewrite_codes(llcf->loc_conf), name,
                   depth)
           || ngx_http_latchkey_reads_client(cf, llcf,
                   ngx_http_latchkey_rewrite_codes(llcf->cscf->ctx->loc_conf),
                   name, depth);
}


/*
 * The codes of "set": a value, its parts, and the variable it is assigned to.
 * Only codes of this variable are followed.
 */

static ngx_uint_t
ngx_http_latchkey_reads_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_array_t *codes, ngx_str_t *name,
    ngx_uint_t depth)
{
    u_char                      *ip, *last, *value;
    ngx_str_t                   *tested, *captured;
    ngx_http_variable_t         *v;
    ngx_http_script_code_pt      code;
    ngx_http_core_main_conf_t   *cmcf;
    ngx_http_script_var_code_t  *var;

    if (codes == NULL) {
        return 0;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    tested = NULL;
    captured = NULL;       /* captures of the location are from the path */
    ip = codes->elts;
    last = ip + codes->nelts;
    value = ip;

    for ( /* void */ ; ip < last; ip += sizeof(uintptr_t)) {
        code = *(ngx_http_script_code_pt *) ip;
        var = (ngx_http_script_var_code_t *) ip;

        if (code == ngx_http_script_value_code
            || code == ngx_http_script_complex_value_code)
        {
            value = ip;

        } else if (code == ngx_http_script_var_code) {
            tested = &v[var->index].name;

#if (NGX_PCRE)
        } else if (code == ngx_http_script_regex_start_code) {
            captured = ((ngx_http_script_regex_code_t *) ip)->test ? tested
                                                                   : NULL;
#endif

        } else if (code == ngx_http_script_set_var_code
                   && v[var->index].name.len == name->len
                   && ngx_strncasecmp(v[var->index].name.data, name->data,
                                      name->len)
                      == 0
                   && ngx_http_latchkey_has_client_code(cf, llcf, value, ip,
                                                        captured, depth))
        {
            return 1;
        }
    }

    return 0;
}


/* `captured`: the value that captures are taken from; NULL: the path */

static ngx_uint_t
ngx_http_latchkey_has_client_code(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *ip, u_char *last,
    ngx_str_t *captured, ngx_uint_t depth)
{
    ngx_str_t                   *name;
    ngx_http_variable_t         *v;
    ngx_http_script_code_pt      code;
    ngx_http_core_main_conf_t   *cmcf;
    ngx_http_script_var_code_t  *var;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for ( /* void */ ; ip < last; ip += sizeof(uintptr_t)) {
        code = *(ngx_http_script_code_pt *) ip;
        var = (ngx_http_script_var_code_t *) ip;

        if (code == ngx_http_script_copy_var_code) {
            name = &v[var->index].name;

        } else if (code == ngx_http_script_copy_capture_code) {
            name = captured;

        } else {
            continue;
        }

        if (name == NULL
            || ngx_http_latchkey_is_client_variable(cf, llcf, name, depth))
        {
            return 1;
        }
    }

    return 0;
}


static ngx_array_t *
ngx_http_latchkey_rewrite_codes(void **loc_conf)
{
    ngx_http_latchkey_rewrite_t  *rewrite;

    if (&ngx_http_rewrite_module == NULL
        || ngx_http_rewrite_module.ctx_index == NGX_MODULE_UNSET_INDEX)
    {
        return NULL;
    }

    rewrite = loc_conf[ngx_http_rewrite_module.ctx_index];

    return rewrite->codes;
}
