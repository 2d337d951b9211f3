
/*
 * Daemons of a location, and files with secrets: idempotency_server,
 * idempotency_courier and idempotency_secret.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_SERVER  "unix:/run/latchkey/latchkeyd.sock"

/* a shorter secret could be found by trying */
#define NGX_HTTP_LATCHKEY_SECRET_MIN  16
#define NGX_HTTP_LATCHKEY_SECRET_MAX  4096


static ngx_int_t ngx_http_latchkey_default_server(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *conf);
static ngx_uint_t ngx_http_latchkey_same_servers(ngx_array_t *one,
    ngx_array_t *two);
static ngx_int_t ngx_http_latchkey_read_credentials(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_http_latchkey_server_t *server);
static ngx_int_t ngx_http_latchkey_add_courier(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_http_latchkey_main_conf_t *lmcf,
    ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_read_secret(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *path, size_t min, ngx_str_t *secret);
static ngx_int_t ngx_http_latchkey_check_secret(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_file_t *file);
static ngx_int_t ngx_http_latchkey_take_secret(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_file_t *file, size_t min, ngx_str_t *secret);


/* Locations with the same daemons and timeout share a worker's links. */

ngx_int_t
ngx_http_latchkey_find_servers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *conf)
{
    ngx_uint_t                     i;
    ngx_http_core_loc_conf_t      *clcf;
    ngx_http_latchkey_servers_t  **pools, *servers;

    clcf = conf->loc_conf[ngx_http_core_module.ctx_index];

    if (conf->mode == NGX_HTTP_LATCHKEY_OFF
        && clcf->handler != ngx_http_latchkey_status_handler
        && clcf->handler != ngx_http_latchkey_operation_handler)
    {
        return NGX_OK;
    }

    if (conf->server_list == NULL
        && ngx_http_latchkey_default_server(cf, conf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    pools = lmcf->pools.elts;

    for (i = 0; i < lmcf->pools.nelts; i++) {
        if (pools[i]->connect_timeout == conf->connect_timeout
            && ngx_http_latchkey_same_servers(&pools[i]->list,
                                              conf->server_list))
        {
            conf->servers = pools[i];
            return NGX_OK;
        }
    }

    servers = ngx_pcalloc(cf->pool, sizeof(ngx_http_latchkey_servers_t));
    if (servers == NULL) {
        return NGX_ERROR;
    }

    servers->list = *conf->server_list;
    servers->connect_timeout = conf->connect_timeout;

    pools = ngx_array_push(&lmcf->pools);
    if (pools == NULL) {
        return NGX_ERROR;
    }

    *pools = servers;
    conf->servers = servers;

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_default_server(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *conf)
{
    ngx_url_t                    u;
    ngx_http_latchkey_server_t  *server;

    ngx_memzero(&u, sizeof(ngx_url_t));
    ngx_str_set(&u.url, NGX_HTTP_LATCHKEY_SERVER);

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        return NGX_ERROR;
    }

    conf->server_list = ngx_array_create(cf->pool, 1,
                                         sizeof(ngx_http_latchkey_server_t));
    if (conf->server_list == NULL) {
        return NGX_ERROR;
    }

    server = ngx_array_push(conf->server_list);
    if (server == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(server, sizeof(ngx_http_latchkey_server_t));
    server->addr = u.addrs[0];

    return NGX_OK;
}


/*
 * The same addresses with another user are other servers: its rights differ.
 */

static ngx_uint_t
ngx_http_latchkey_same_servers(ngx_array_t *one, ngx_array_t *two)
{
    ngx_uint_t                   i;
    ngx_http_latchkey_server_t  *a, *b;

    if (one->nelts != two->nelts) {
        return 0;
    }

    a = one->elts;
    b = two->elts;

    for (i = 0; i < one->nelts; i++) {

        if (ngx_cmp_sockaddr(a[i].addr.sockaddr, a[i].addr.socklen,
                             b[i].addr.sockaddr, b[i].addr.socklen, 1)
            != NGX_OK
            || a[i].user.len != b[i].user.len
            || a[i].password.len != b[i].password.len
            || ngx_memcmp(a[i].user.data, b[i].user.data, a[i].user.len) != 0
            || ngx_memcmp(a[i].password.data, b[i].password.data,
                          a[i].password.len)
               != 0)
        {
            return 0;
        }
    }

    return 1;
}


/*
 * May be repeated: the daemons of a list share a store and replace each
 * other.  A name with several addresses adds all of them.
 */

char *
ngx_http_latchkey_set_server(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t                   *value;
    ngx_url_t                    u;
    ngx_uint_t                   i;
    ngx_http_latchkey_server_t  *server, given;

    value = cf->args->elts;

    ngx_memzero(&given, sizeof(ngx_http_latchkey_server_t));

    if (ngx_http_latchkey_read_credentials(cf, cmd, &given) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s in \"%V\" of \"%V\", it must be \"unix:PATH\" "
                           "or \"HOST:PORT\"",
                           u.err ? u.err : "error", &u.url, &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (u.family != AF_UNIX && u.no_port) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no port in \"%V\" of \"%V\", it must be "
                           "\"unix:PATH\" or \"HOST:PORT\"",
                           &u.url, &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (llcf->server_list == NGX_CONF_UNSET_PTR) {
        llcf->server_list = ngx_array_create(cf->pool, 2,
                                          sizeof(ngx_http_latchkey_server_t));
        if (llcf->server_list == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    for (i = 0; i < u.naddrs; i++) {
        server = ngx_array_push(llcf->server_list);
        if (server == NULL) {
            return NGX_CONF_ERROR;
        }

        *server = given;
        server->addr = u.addrs[i];
    }

    return NGX_CONF_OK;
}


/* messages repeat only the name of a parameter: the rest may be a password */

static ngx_int_t
ngx_http_latchkey_read_credentials(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_server_t *server)
{
    u_char      *p;
    ngx_str_t   *value, path;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "user=", 5) == 0) {
            server->user.len = value[i].len - 5;
            server->user.data = value[i].data + 5;

        } else if (ngx_strncmp(value[i].data, "password=", 9) == 0
                   && server->password.len == 0)
        {
            server->password.len = value[i].len - 9;
            server->password.data = value[i].data + 9;

        } else if (ngx_strncmp(value[i].data, "password_file=", 14) == 0
                   && server->password.len == 0)
        {
            path.len = value[i].len - 14;
            path.data = value[i].data + 14;

            if (ngx_http_latchkey_read_secret(cf, cmd, &path, 1,
                                              &server->password)
                != NGX_OK)
            {
                return NGX_ERROR;
            }

        } else {
            p = (u_char *) ngx_strchr(value[i].data, '=');

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter %ui \"%*s\" in \"%V\", "
                               "\"user=\" and one of \"password=\" and "
                               "\"password_file=\" may follow the address",
                               i, p ? (size_t) (p - value[i].data + 1) : 0,
                               value[i].data, &cmd->name);
            return NGX_ERROR;
        }
    }

    if (server->user.len && server->password.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "user \"%V\" of \"%V\" needs a password, add "
                           "\"password_file=\"", &server->user, &cmd->name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* A unix socket only: over TCP nginx could not tell who connects. */

char *
ngx_http_latchkey_set_courier(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_main_conf_t *lmcf = conf;

    ngx_url_t    u;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (lmcf->courier) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];
    u.listen = 1;

    if (ngx_strncasecmp(u.url.data, (u_char *) "unix:", 5) != 0
        || ngx_parse_url(cf->pool, &u) != NGX_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" must be \"unix:PATH\": every "
                           "client that can connect there is taken for the "
                           "courier", &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    lmcf->courier = &u.addrs[0];

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_latchkey_add_courier(cf, cmd, lmcf, &value[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* user=NAME: a user who may be the courier, besides root and nginx's own */

static ngx_int_t
ngx_http_latchkey_add_courier(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_str_t *value)
{
    uid_t          *uid;
    struct passwd  *pwd;

    if (ngx_strncmp(value->data, "user=", 5) != 0 || value->len == 5) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\", only "
                           "\"user=NAME\" is known", value, &cmd->name);
        return NGX_ERROR;
    }

    ngx_set_errno(0);

    pwd = getpwnam((const char *) value->data + 5);
    if (pwd == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "there is no user \"%s\" for \"%V\"",
                           value->data + 5, &cmd->name);
        return NGX_ERROR;
    }

    if (lmcf->couriers == NULL) {
        lmcf->couriers = ngx_array_create(cf->pool, 2, sizeof(uid_t));
        if (lmcf->couriers == NULL) {
            return NGX_ERROR;
        }
    }

    uid = ngx_array_push(lmcf->couriers);
    if (uid == NULL) {
        return NGX_ERROR;
    }

    *uid = pwd->pw_uid;

    return NGX_OK;
}


char *
ngx_http_latchkey_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_main_conf_t *lmcf = conf;

    ngx_str_t  *value;

    if (lmcf->secret.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_latchkey_read_secret(cf, cmd, &value[1],
                                      NGX_HTTP_LATCHKEY_SECRET_MIN,
                                      &lmcf->secret)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/*
 * A secret is the content of a file without line ends after it.  No message
 * repeats any of it.
 */

static ngx_int_t
ngx_http_latchkey_read_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *path, size_t min, ngx_str_t *secret)
{
    ngx_int_t   rc;
    ngx_file_t  file;

    if (ngx_conf_full_name(cf->cycle, path, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.name = *path;
    file.log = cf->log;

    file.fd = ngx_open_file(path->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (file.fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           path, &cmd->name);
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_check_secret(cf, cmd, &file);

    if (rc == NGX_OK) {
        rc = ngx_http_latchkey_take_secret(cf, cmd, &file, min, secret);
    }

    if (ngx_close_file(file.fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", path);
    }

    return rc;
}


/*
 * A file that others may read is a warning, not an error: it may be in a
 * folder that they cannot enter.
 */

static ngx_int_t
ngx_http_latchkey_check_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_file_t *file)
{
    ngx_file_info_t  fi;

    if (ngx_fd_info(file->fd, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" of \"%V\" failed",
                           &file->name, &cmd->name);
        return NGX_ERROR;
    }

    if (!ngx_is_file(&fi) || ngx_file_size(&fi) > NGX_HTTP_LATCHKEY_SECRET_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" of \"%V\" is not a file of at most %d "
                           "bytes", &file->name, &cmd->name,
                           NGX_HTTP_LATCHKEY_SECRET_MAX);
        return NGX_ERROR;
    }

    if (ngx_file_access(&fi) & (S_IROTH|S_IWOTH)) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "every user of this machine has access to \"%V\" "
                           "of \"%V\", chmod 600 it", &file->name, &cmd->name);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_take_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_file_t *file, size_t min, ngx_str_t *secret)
{
    u_char   *p;
    ssize_t   n;

    p = ngx_pnalloc(cf->pool, NGX_HTTP_LATCHKEY_SECRET_MAX);
    if (p == NULL) {
        return NGX_ERROR;
    }

    n = ngx_read_file(file, p, NGX_HTTP_LATCHKEY_SECRET_MAX, 0);

    while (n > 0 && (p[n - 1] == LF || p[n - 1] == CR)) {
        n--;
    }

    if (n < (ssize_t) min) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" of \"%V\" is too short, at least %uz bytes "
                           "are needed, for example from "
                           "\"openssl rand -hex 32\"",
                           &file->name, &cmd->name, min);
        return NGX_ERROR;
    }

    secret->data = p;
    secret->len = n;

    return NGX_OK;
}
