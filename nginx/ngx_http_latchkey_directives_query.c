
/*
 * Directives of locations that the gateway itself answers in: questions about
 * operations, how often they may be asked, and the counters.
 */


#include "ngx_http_latchkey_directives.h"


static char *ngx_http_latchkey_set_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler);


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

    /* a caller with many requests under way asks for each of them */

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


/* how often a caller may ask */

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


static char *
ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "makes the answers of its location, and so does another "
               "directive there; give it a location of its own";
    }

    clcf->handler = handler;
    llcf->handler = handler;

    return NGX_CONF_OK;
}
