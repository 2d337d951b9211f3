
/*
 * Checks of the merged configuration: limits, combinations of directives, and
 * whether nginx would send a claimed request to the app twice or stop reading
 * its response.  They run when nginx starts, not when a payment runs twice.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_RESPONSE_MAX  (256 * 1024 * 1024)
#define NGX_HTTP_LATCHKEY_ASYNC_MAX     (256 * 1024 * 1024)

/* the most that latchkeyd can be configured to allow, and its defaults */
#define NGX_HTTP_LATCHKEY_DAY           (24ULL * 60 * 60 * 1000)
#define NGX_HTTP_LATCHKEY_TTL_MAX       (36500 * NGX_HTTP_LATCHKEY_DAY)
#define NGX_HTTP_LATCHKEY_LOCK_MAX      (365 * NGX_HTTP_LATCHKEY_DAY)
#define NGX_HTTP_LATCHKEY_TTL_USUAL     (400 * NGX_HTTP_LATCHKEY_DAY)
#define NGX_HTTP_LATCHKEY_LOCK_USUAL    NGX_HTTP_LATCHKEY_DAY


/* the first members of a structure that is private to the access module */

typedef struct {
    ngx_array_t                     *rules;
#if (NGX_HAVE_INET6)
    ngx_array_t                     *rules6;
#endif
#if (NGX_HAVE_UNIX_DOMAIN)
    ngx_array_t                     *rules_un;
#endif
} ngx_http_latchkey_access_t;


extern ngx_module_t  ngx_http_access_module ngx_http_latchkey_weak;


/*
 * A module that passes requests on.  The structure of its location is private
 * except for the first member, which is an ngx_http_upstream_conf_t.
 */

typedef struct {
    ngx_module_t                    *module;
    char                            *pass;
    char                            *next;        /* NULL: not supported */
    ngx_http_handler_pt              handler;
} ngx_http_latchkey_pass_t;


extern ngx_module_t  ngx_http_proxy_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_fastcgi_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_uwsgi_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_scgi_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_grpc_module ngx_http_latchkey_weak;

extern ngx_module_t  ngx_http_slice_filter_module ngx_http_latchkey_weak;


static void ngx_http_latchkey_check_counters(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static void ngx_http_latchkey_count_foreign(struct sockaddr *sa,
    socklen_t socklen, void *data);
static ngx_uint_t ngx_http_latchkey_has_rules(
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_guard(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_ttl(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_times(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_sizes(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_statuses(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_async(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static const char *ngx_http_latchkey_handler_name(
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_pass(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_uint_t ngx_http_latchkey_is_sliced(
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_http_latchkey_pass_t *ngx_http_latchkey_find_pass(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_ask_handler(ngx_conf_t *cf,
    ngx_http_latchkey_pass_t *pass);
static ngx_command_t *ngx_http_latchkey_find_directive(
    ngx_http_latchkey_pass_t *pass);
static void ngx_http_latchkey_ignore_aborts(
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_check_receiver(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_loc_conf_t *from);
static ngx_http_latchkey_loc_conf_t *ngx_http_latchkey_comes_from(
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);


static ngx_http_latchkey_pass_t  ngx_http_latchkey_passes[] = {
    { &ngx_http_proxy_module, "proxy_pass", "proxy_next_upstream", NULL },
    { &ngx_http_fastcgi_module, "fastcgi_pass", "fastcgi_next_upstream",
      NULL },
    { &ngx_http_uwsgi_module, "uwsgi_pass", "uwsgi_next_upstream", NULL },
    { &ngx_http_scgi_module, "scgi_pass", "scgi_next_upstream", NULL },
    { &ngx_http_grpc_module, "grpc_pass", NULL, NULL },
    { NULL, NULL, NULL, NULL }
};


/* Runs at the end of the merge of each location. */

char *
ngx_http_latchkey_check(ngx_conf_t *cf, ngx_http_latchkey_main_conf_t *lmcf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (llcf->handler && llcf->handler != clcf->handler) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"%s\" makes the responses of location \"%V\" of "
                      "server \"%V\", and so does another directive there; "
                      "give it a location of its own",
                      ngx_http_latchkey_handler_name(llcf),
                      &llcf->location_name, &llcf->server_name);
        return NGX_CONF_ERROR;
    }

    if (clcf->handler == ngx_http_latchkey_counters_handler) {
        ngx_http_latchkey_check_counters(cf, llcf);
        return NGX_CONF_OK;
    }

    if (clcf->handler == ngx_http_latchkey_status_handler
        || clcf->handler == ngx_http_latchkey_operation_handler)
    {
        return ngx_http_latchkey_check_tenant(cf, lmcf, llcf);
    }

    if (llcf->mode == NGX_HTTP_LATCHKEY_OFF) {
        return NGX_CONF_OK;
    }

    /*
     * outside of locations a server passes nothing on, and they may add more
     */

    if (llcf->loc_conf == llcf->cscf->ctx->loc_conf) {
        return NGX_CONF_OK;
    }

    return ngx_http_latchkey_check_guard(cf, lmcf, llcf);
}


/* the counters name every location and show its traffic */

static void
ngx_http_latchkey_check_counters(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_uint_t                 foreign;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    foreign = 0;

    if (!clcf->internal && !clcf->named
        && !ngx_http_latchkey_has_rules(llcf)
        && !ngx_http_latchkey_authenticates(llcf))
    {
        ngx_http_latchkey_each_listen(cf, llcf->cscf,
                                   ngx_http_latchkey_count_foreign, &foreign);
    }

    if (foreign) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"idempotency_counters\" in location \"%V\" of server "
                      "\"%V\" shows its numbers to everyone; add \"allow "
                      "127.0.0.1; deny all;\", or \"auth_basic\", or let the "
                      "server listen on this machine only",
                      &llcf->location_name, &llcf->server_name);
    }
}


static void
ngx_http_latchkey_count_foreign(struct sockaddr *sa, socklen_t socklen,
    void *data)
{
    ngx_uint_t  *n = data;

#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    switch (sa->sa_family) {

    case AF_UNIX:
        return;

    case AF_INET:
        *n += (ntohl(((struct sockaddr_in *) sa)->sin_addr.s_addr) >> 24
               != IN_LOOPBACKNET);
        return;

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sin6 = (struct sockaddr_in6 *) sa;
        *n += !IN6_IS_ADDR_LOOPBACK(&sin6->sin6_addr);
        return;
#endif
    }

    (*n)++;
}


static ngx_uint_t
ngx_http_latchkey_has_rules(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_latchkey_access_t  *access;

    access = ngx_http_latchkey_module_conf(llcf, &ngx_http_access_module);

    return access
           && (access->rules
#if (NGX_HAVE_INET6)
               || access->rules6
#endif
#if (NGX_HAVE_UNIX_DOMAIN)
               || access->rules_un
#endif
              );
}


void
ngx_http_latchkey_each_listen(ngx_conf_t *cf, ngx_http_core_srv_conf_t *cscf,
    ngx_http_latchkey_listen_pt handler, void *data)
{
    ngx_uint_t                   i, j, k;
    ngx_http_conf_port_t        *port;
    ngx_http_conf_addr_t        *addr;
    ngx_http_core_srv_conf_t   **servers;
    ngx_http_core_main_conf_t   *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (cmcf->ports == NULL) {
        return;
    }

    port = cmcf->ports->elts;

    for (i = 0; i < cmcf->ports->nelts; i++) {
        addr = port[i].addrs.elts;

        for (j = 0; j < port[i].addrs.nelts; j++) {
            servers = addr[j].servers.elts;

            for (k = 0; k < addr[j].servers.nelts; k++) {
                if (cscf == NULL || servers[k] == cscf) {
                    handler(addr[j].opt.sockaddr, addr[j].opt.socklen, data);
                }
            }
        }
    }
}


/*
 * What is wrong with a guarded location, in the order in which an operator
 * would want to know it.
 */

static char *
ngx_http_latchkey_check_guard(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    char        *rv;
    ngx_uint_t   only;

    rv = NGX_CONF_OK;

    if (!llcf->inherited && ngx_http_latchkey_has_return(llcf)) {
        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"return\" responds to every request of the location "
                   "before anything is guarded; remove it, or "
                   "\"idempotency\"");
    }

    /* the courier sends the tenant */

    if (!ngx_http_latchkey_courier_serves(cf, llcf->cscf, &only) || !only) {
        rv = ngx_http_latchkey_check_tenant(cf, lmcf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_latchkey_check_ttl(cf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_latchkey_check_times(cf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_latchkey_check_sizes(cf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_latchkey_check_statuses(cf, llcf);
    }

    if (rv == NGX_CONF_OK && !only) {
        rv = ngx_http_latchkey_check_async(cf, lmcf, llcf);
    }

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_latchkey_check_pass(cf, llcf);
    }

    return rv;
}


/*
 * times that the daemon would refuse, or that make an operation expire too
 * early
 */

static char *
ngx_http_latchkey_check_ttl(ngx_conf_t *cf, ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->ttl < 1000 || llcf->lock < 1000) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"%s\" is less than a second; set at least 1s",
                   llcf->ttl < 1000 ? "idempotency_ttl" : "idempotency_lock");
    }

    if (llcf->ttl > NGX_HTTP_LATCHKEY_TTL_MAX
        || llcf->lock > NGX_HTTP_LATCHKEY_LOCK_MAX)
    {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"%s\" is longer than latchkeyd can allow; set at most %s",
                   llcf->ttl > NGX_HTTP_LATCHKEY_TTL_MAX
                   ? "idempotency_ttl" : "idempotency_lock",
                   llcf->ttl > NGX_HTTP_LATCHKEY_TTL_MAX ? "36500d" : "365d");
    }

    if (llcf->ttl > NGX_HTTP_LATCHKEY_TTL_USUAL) {
        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_ttl\" is longer than latchkeyd allows, "
                   "unless its store.max_ttl is raised from 400d");
    }

    if (llcf->lock > NGX_HTTP_LATCHKEY_LOCK_USUAL) {
        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_lock\" is longer than latchkeyd allows, "
                   "unless its store.max_lock is raised from 1d");
    }

    if (llcf->max_age && llcf->max_age + llcf->max_skew > llcf->ttl) {
        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_max_age\" and its skew allow requests that "
                   "are older than \"idempotency_ttl\", whose keys may be "
                   "forgotten");
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_check_times(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (llcf->timeout == 0 || llcf->connect_timeout == 0) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"%s\" is 0, so nothing could ever be decided; set it to "
                   "a second or more",
                   llcf->timeout == 0 ? "idempotency_timeout"
                                      : "idempotency_connect_timeout");
    }

    /* nginx sends nothing while the response is held, so send_timeout runs */

    if (llcf->timeout >= clcf->send_timeout) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_timeout\" is %Mms, but nginx gives up a "
                   "client after %Mms; set it lower, or \"send_timeout\" "
                   "higher", llcf->timeout, clcf->send_timeout);
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_check_sizes(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->late_time < 1000 || llcf->late_size < 64 * 1024) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_late\" leaves no room to settle anything "
                   "after the daemon was unreachable; set at least \"1s "
                   "64k\"");
    }

    if (llcf->response_max == 0) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_response_max\" is 0, so no response would "
                   "be stored; if you want that, write \"idempotency_keep "
                   "no_body\"");
    }

    if (llcf->response_max > NGX_HTTP_LATCHKEY_RESPONSE_MAX) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_response_max\" is more than 256m; responses "
                   "are held in memory, set it lower");
    }

    return NGX_CONF_OK;
}


/* each may be inherited, so they can only be compared here */

static char *
ngx_http_latchkey_check_statuses(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_uint_t   i, j, *keep, *release;

    if (llcf->keep == NULL || llcf->release == NULL) {
        return NGX_CONF_OK;
    }

    keep = llcf->keep->elts;
    release = llcf->release->elts;

    for (i = 0; i < llcf->keep->nelts; i++) {
        for (j = 0; j < llcf->release->nelts; j++) {
            if (keep[i] == release[j]) {
                return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                           "status %ui is in \"idempotency_keep\" and in "
                           "\"idempotency_release\"; remove it from one of "
                           "them", keep[i]);
            }
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_check_async(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->async == NGX_HTTP_LATCHKEY_ASYNC_OFF) {
        return NGX_CONF_OK;
    }

    if (llcf->async_location.len == 0) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_async\" needs a place where clients can ask "
                   "for the response; name it with "
                   "\"idempotency_async_location /operations/\", and set "
                   "\"idempotency_operation\" in that location");
    }

    if (llcf->async_body == 0
        || llcf->async_body > NGX_HTTP_LATCHKEY_ASYNC_MAX)
    {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_async_body\" must be at least 1 and at most "
                   "256m; requests are held in memory until they are "
                   "accepted");
    }

    if (llcf->async_retry > NGX_HTTP_LATCHKEY_DAY) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"idempotency_async_retry\" is longer than a day");
    }

    if (lmcf->courier == NULL && !lmcf->warned_courier) {
        lmcf->warned_courier = 1;

        ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_async\" accepts requests, but http has no "
                   "\"idempotency_courier\" through which they could come "
                   "back; unless another nginx has it, they will never run");
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_conf_error(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t level, const char *fmt, ...)
{
    u_char   *last, text[NGX_MAX_CONF_ERRSTR];
    va_list   args;

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    if (llcf->line == 0) {
        ngx_log_error(level, cf->log, 0, "\"%s\" in location \"%V\" of "
                      "server \"%V\": %*s",
                      ngx_http_latchkey_handler_name(llcf),
                      &llcf->location_name, &llcf->server_name, last - text,
                      text);

    } else {
        ngx_log_error(level, cf->log, 0, "\"idempotency\" in %V:%ui for "
                      "location \"%V\" of server \"%V\": %*s", &llcf->file,
                      llcf->line, &llcf->location_name, &llcf->server_name,
                      last - text, text);
    }

    return NGX_CONF_ERROR;
}


static const char *
ngx_http_latchkey_handler_name(ngx_http_latchkey_loc_conf_t *llcf)
{
    return llcf->handler == ngx_http_latchkey_operation_handler
           ? "idempotency_operation"
           : llcf->handler == ngx_http_latchkey_counters_handler
             ? "idempotency_counters" : "idempotency_status";
}


void *
ngx_http_latchkey_module_conf(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_module_t *module)
{
    if (module == NULL || module->ctx_index == NGX_MODULE_UNSET_INDEX) {
        return NULL;
    }

    return llcf->loc_conf[module->ctx_index];
}


static char *
ngx_http_latchkey_check_pass(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_upstream_conf_t  *ucf;
    ngx_http_latchkey_pass_t  *pass;

    pass = ngx_http_latchkey_find_pass(cf, llcf);

    if (pass == NULL) {
        return NGX_CONF_OK;
    }

    if (pass->next == NULL) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"%s\" cannot be guarded; use \"proxy_pass\", or set "
                   "\"idempotency off\" here", pass->pass);
    }

    ucf = ngx_http_latchkey_module_conf(llcf, pass->module);

    if (ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "\"non_idempotent\" in \"%s\" would send one claimed "
                   "request several times; remove it", pass->next);
    }

    /* nginx repeats methods that HTTP defines as idempotent */

    if ((llcf->methods & (NGX_HTTP_PUT|NGX_HTTP_DELETE))
        && !(ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_OFF))
    {
        return ngx_http_latchkey_conf_error(cf, llcf, NGX_LOG_EMERG,
                   "nginx sends PUT and DELETE several times if a server "
                   "fails; add \"%s off\", or take them out of "
                   "\"idempotency_methods\"", pass->next);
    }

    return NGX_CONF_OK;
}


/*
 * The slice module's configuration is one size_t.  It is read after all
 * locations are merged, because that module is merged after this one.
 */

static ngx_uint_t
ngx_http_latchkey_is_sliced(ngx_http_latchkey_loc_conf_t *llcf)
{
    size_t  *size;

    size = ngx_http_latchkey_module_conf(llcf, &ngx_http_slice_filter_module);

    return size && *size != 0;
}


/*
 * the module whose handler makes this location's responses; NULL: none of
 * these
 */

static ngx_http_latchkey_pass_t *
ngx_http_latchkey_find_pass(ngx_conf_t *cf, ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_latchkey_pass_t  *pass;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (clcf->handler == NULL) {
        return NULL;
    }

    for (pass = ngx_http_latchkey_passes; pass->pass; pass++) {

        if (ngx_http_latchkey_module_conf(llcf, pass->module) == NULL) {
            continue;
        }

        if (pass->handler == NULL
            && ngx_http_latchkey_ask_handler(cf, pass) != NGX_OK)
        {
            continue;
        }

        if (clcf->handler == pass->handler) {
            return pass;
        }
    }

    return NULL;
}


/*
 * Modules do not export their handlers, but their directives set them.  So the
 * directive is run once, in a location that is discarded; a value with a
 * variable in it has no other effects.
 */

static ngx_int_t
ngx_http_latchkey_ask_handler(ngx_conf_t *cf, ngx_http_latchkey_pass_t *pass)
{
    void                      *conf;
    ngx_str_t                  words[2];
    ngx_conf_t                 ask;
    ngx_array_t                args;
    ngx_command_t             *cmd;
    ngx_http_module_t         *module;
    ngx_http_conf_ctx_t        ctx;
    ngx_http_core_loc_conf_t   clcf;

    cmd = ngx_http_latchkey_find_directive(pass);
    if (cmd == NULL) {
        return NGX_ERROR;
    }

    ctx = *(ngx_http_conf_ctx_t *) cf->ctx;

    ctx.loc_conf = ngx_pcalloc(cf->pool, sizeof(void *) * ngx_http_max_module);
    if (ctx.loc_conf == NULL) {
        return NGX_ERROR;
    }

    module = pass->module->ctx;

    conf = module->create_loc_conf(cf);
    if (conf == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&clcf, sizeof(ngx_http_core_loc_conf_t));

    ctx.loc_conf[ngx_http_core_module.ctx_index] = &clcf;
    ctx.loc_conf[pass->module->ctx_index] = conf;

    words[0] = cmd->name;
    ngx_str_set(&words[1], "$uri");

    ngx_memzero(&args, sizeof(ngx_array_t));

    args.elts = words;
    args.nelts = 2;
    args.size = sizeof(ngx_str_t);
    args.nalloc = 2;
    args.pool = cf->pool;

    ask = *cf;
    ask.ctx = &ctx;
    ask.args = &args;

    if (cmd->set(&ask, cmd, conf) != NGX_CONF_OK) {
        return NGX_ERROR;
    }

    pass->handler = clcf.handler;

    return pass->handler ? NGX_OK : NGX_ERROR;
}


static ngx_command_t *
ngx_http_latchkey_find_directive(ngx_http_latchkey_pass_t *pass)
{
    ngx_command_t  *cmd;

    for (cmd = pass->module->commands; cmd->name.len; cmd++) {
        if (ngx_strcmp(cmd->name.data, pass->pass) == 0) {
            return cmd;
        }
    }

    return NULL;
}


ngx_uint_t
ngx_http_latchkey_is_fastcgi(ngx_http_request_t *r)
{
    ngx_http_latchkey_pass_t  *pass;

    for (pass = ngx_http_latchkey_passes; pass->pass; pass++) {
        if (pass->module == &ngx_http_fastcgi_module) {
            return pass->handler && r->content_handler == pass->handler;
        }
    }

    return 0;
}


/*
 * A claimed request may reach other locations by try_files, error_page and
 * similar.  nginx stops waiting for the app when a client leaves, unless
 * proxy_ignore_client_abort is on: but a client that leaves before the
 * response is stored comes back for it.
 */

char *
ngx_http_latchkey_check_receivers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    char                           *rv;
    ngx_uint_t                      i;
    ngx_http_latchkey_loc_conf_t   *from, **llcf;

    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {

        if (llcf[i]->mode >= NGX_HTTP_LATCHKEY_OPTIONAL) {

            if (ngx_http_latchkey_is_sliced(llcf[i])
                && ngx_http_latchkey_find_pass(cf, llcf[i]))
            {
                return ngx_http_latchkey_conf_error(cf, llcf[i], NGX_LOG_EMERG,
                           "\"slice\" would send one claimed request several "
                           "times, for a piece of the response each; set "
                           "\"slice 0\" here");
            }

            ngx_http_latchkey_ignore_aborts(llcf[i]);
            continue;
        }

        from = ngx_http_latchkey_comes_from(lmcf, llcf[i]);

        if (from == NULL) {
            continue;
        }

        ngx_http_latchkey_ignore_aborts(llcf[i]);

        rv = ngx_http_latchkey_check_receiver(cf, llcf[i], from);

        if (rv != NGX_CONF_OK) {
            return rv;
        }
    }

    return NGX_CONF_OK;
}


/*
 * Like proxy_ignore_client_abort on: the app's response is stored for the
 * client's retry.
 */

static void
ngx_http_latchkey_ignore_aborts(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_upstream_conf_t  *ucf;
    ngx_http_latchkey_pass_t  *pass;

    for (pass = ngx_http_latchkey_passes; pass->pass; pass++) {

        ucf = ngx_http_latchkey_module_conf(llcf, pass->module);

        if (ucf) {
            ucf->ignore_client_abort = 1;
        }
    }
}


/*
 * Named and internal locations get requests by redirects only: if they could
 * repeat one, that is an error.  Others have requests of their own, too: a
 * warning.
 */

static char *
ngx_http_latchkey_check_receiver(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_loc_conf_t *from)
{
    char                      *what, *name, *remedy;
    ngx_uint_t                 level, only;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_upstream_conf_t  *ucf;
    ngx_http_latchkey_pass_t  *pass;

    pass = ngx_http_latchkey_find_pass(cf, llcf);

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    only = clcf->named || clcf->internal;
    level = only ? NGX_LOG_EMERG : NGX_LOG_WARN;

    if (pass && pass->next == NULL) {
        ngx_log_error(level, cf->log, 0,
                      "\"%s\" of location \"%V\" of server \"%V\" cannot be "
                      "guarded, but requests may be redirected there from the "
                      "guard in %V:%ui; use \"proxy_pass\"", pass->pass,
                      &llcf->location_name, &llcf->server_name, &from->file,
                      from->line);

        return only ? NGX_CONF_ERROR : NGX_CONF_OK;
    }

    if (pass == NULL) {
        return NGX_CONF_OK;
    }

    ucf = ngx_http_latchkey_module_conf(llcf, pass->module);
    name = pass->next;

    if (ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) {
        what = "\"non_idempotent\" in";
        remedy = "remove it";

    } else if ((from->methods & (NGX_HTTP_PUT|NGX_HTTP_DELETE))
               && !(ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_OFF))
    {
        what = "for PUT and DELETE";
        remedy = "set it to \"off\"";

    } else if (ngx_http_latchkey_is_sliced(llcf)) {
        what = "the directive";
        name = "slice";
        remedy = "set \"slice 0\"";

    } else {
        return NGX_CONF_OK;
    }

    ngx_log_error(level, cf->log, 0,
                  "%s \"%s\" of location \"%V\" of server \"%V\" would send "
                  "one claimed request several times, if one comes here from "
                  "the guard in %V:%ui; %s%s", what, name,
                  &llcf->location_name, &llcf->server_name, &from->file,
                  from->line, remedy,
                  only ? "" : ", unless none is redirected to it");

    return only ? NGX_CONF_ERROR : NGX_CONF_OK;
}


/*
 * A guarded location from which claimed requests may come here; NULL: none.
 * Named and internal locations can be reached from the whole server, others
 * only if the guarded one makes no responses by itself.  A location that
 * guards PUT or DELETE is preferred.
 */

static ngx_http_latchkey_loc_conf_t *
ngx_http_latchkey_comes_from(ngx_http_latchkey_main_conf_t *lmcf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_uint_t                      i;
    ngx_http_core_loc_conf_t       *clcf, *from;
    ngx_http_latchkey_loc_conf_t  **other, *found;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];
    other = lmcf->locations.elts;
    found = NULL;

    for (i = 0; i < lmcf->locations.nelts; i++) {

        if (other[i]->mode < NGX_HTTP_LATCHKEY_OPTIONAL
            || other[i]->cscf != llcf->cscf)
        {
            continue;
        }

        from = other[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (!clcf->named && !clcf->internal
            && (from->handler != NULL || from->noname))
        {
            continue;
        }

        if (found == NULL
            || (other[i]->methods & (NGX_HTTP_PUT|NGX_HTTP_DELETE)))
        {
            found = other[i];
        }
    }

    return found;
}
