
/*
 * Would nginx send a claimed request to the application several times, or stop
 * asking for its answer?  Where it is guarded, and where it may be led from
 * there.
 */


#include "ngx_http_latchkey_check.h"


/*
 * A module that passes requests on.  The structure of its location is its own
 * affair but for the first member, which is an ngx_http_upstream_conf_t.
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


char *
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
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "\"%s\" cannot be guarded; use \"proxy_pass\", or set "
                   "\"idempotency off\" here", pass->pass);
    }

    ucf = ngx_http_latchkey_conf_of(llcf, pass->module);

    if (ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) {
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "\"non_idempotent\" in \"%s\" would send one claimed "
                   "request several times; remove it", pass->next);
    }

    /* nginx itself repeats methods that ought to be idempotent */

    if ((llcf->methods & (NGX_HTTP_PUT|NGX_HTTP_DELETE))
        && !(ucf->next_upstream & NGX_HTTP_UPSTREAM_FT_OFF))
    {
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "nginx sends PUT and DELETE several times if a server "
                   "fails; add \"%s off\", or take them out of "
                   "\"idempotency_methods\"", pass->next);
    }

    return NGX_CONF_OK;
}


/*
 * A size, and nothing else, is what the module has of a location.  It is known
 * only after all locations are merged: the module is behind this one.
 */

static ngx_uint_t
ngx_http_latchkey_is_sliced(ngx_http_latchkey_loc_conf_t *llcf)
{
    size_t  *size;

    size = ngx_http_latchkey_conf_of(llcf, &ngx_http_slice_filter_module);

    return size && *size != 0;
}


/* the module whose handler makes this location's answers; NULL: none here */

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

        if (ngx_http_latchkey_conf_of(llcf, pass->module) == NULL) {
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
 * No module tells the name of its handler, but its directive sets it.  So the
 * directive is obeyed once, in a location that is thrown away; a value with a
 * variable in it leaves no other traces.
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


/* receivers */

/*
 * Other locations that requests may come to after they were claimed, by
 * try_files, error_page and the like.  nginx stops asking the application
 * when a client leaves, unless it is told not to: whoever leaves before the
 * answer is stored comes back for it.
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
                return ngx_http_latchkey_complain(cf, llcf[i], NGX_LOG_EMERG,
                           "\"slice\" would send one claimed request several "
                           "times, for a piece of the answer each; set "
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


static void
ngx_http_latchkey_ignore_aborts(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_upstream_conf_t  *ucf;
    ngx_http_latchkey_pass_t  *pass;

    for (pass = ngx_http_latchkey_passes; pass->pass; pass++) {

        ucf = ngx_http_latchkey_conf_of(llcf, pass->module);

        if (ucf) {
            ucf->ignore_client_abort = 1;
        }
    }
}


/*
 * Only a redirect leads to a named or an internal location: what it would
 * repeat is an error.  Others have requests of their own, too.
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
                      "guarded, but requests may come there from the guard "
                      "in %V:%ui; use \"proxy_pass\"", pass->pass,
                      &llcf->location_name, &llcf->server_name, &from->file,
                      from->line);

        return only ? NGX_CONF_ERROR : NGX_CONF_OK;
    }

    if (pass == NULL) {
        return NGX_CONF_OK;
    }

    ucf = ngx_http_latchkey_conf_of(llcf, pass->module);
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
 * To named and to internal locations they come from anywhere in the server,
 * to others if the guarded one makes no answers by itself.  One that guards
 * PUT or DELETE goes before others.
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
