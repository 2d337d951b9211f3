
/*
 * What the directives of the rewrite module in a location do: they run before
 * anything is guarded.
 *
 * They are read as the codes that they were compiled to: each begins with the
 * address of its function, all are aligned.  Their sizes are not asked for, as
 * a patched nginx may have more of them than its headers say: a word that is
 * the address of one of these functions is the beginning of its code.
 */


#include "ngx_http_latchkey_check.h"


/* the beginning of a structure that the rewrite module keeps to itself */

typedef struct {
    ngx_array_t                     *codes;       /* uintptr_t */
} ngx_http_latchkey_rewrite_t;


extern ngx_module_t  ngx_http_rewrite_module ngx_http_latchkey_weak;


static ngx_uint_t ngx_http_latchkey_reads_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_array_t *codes, ngx_str_t *name,
    ngx_uint_t depth);
static ngx_uint_t ngx_http_latchkey_has_clients_code(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *ip, u_char *last,
    ngx_str_t *captured, ngx_uint_t depth);
static ngx_array_t *ngx_http_latchkey_codes(void **loc_conf);


/* a "return" in an "if" is for some requests only */

ngx_uint_t
ngx_http_latchkey_returns(ngx_http_latchkey_loc_conf_t *llcf)
{
    u_char                     *ip, *last;
    ngx_array_t                *codes;
    ngx_http_script_code_pt     code;
    ngx_http_script_if_code_t  *test;

    codes = ngx_http_latchkey_codes(llcf->loc_conf);
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


/* of the location and of its server, wherever "set" is */

ngx_uint_t
ngx_http_latchkey_is_set_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth)
{
    return ngx_http_latchkey_reads_client(cf, llcf,
                         ngx_http_latchkey_codes(llcf->loc_conf), name, depth)
           || ngx_http_latchkey_reads_client(cf, llcf,
                         ngx_http_latchkey_codes(llcf->cscf->ctx->loc_conf),
                         name, depth);
}


/*
 * "set": a value, its parts, and where it goes.  Only what goes into the
 * variable is looked at.
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
    captured = NULL;                    /* by the location: of the path */
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
                   && ngx_http_latchkey_has_clients_code(cf, llcf, value, ip,
                                                         captured, depth))
        {
            return 1;
        }
    }

    return 0;
}


/* `captured`: what captures are of; NULL: of the path */

static ngx_uint_t
ngx_http_latchkey_has_clients_code(ngx_conf_t *cf,
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
            || ngx_http_latchkey_is_clients(cf, llcf, name, depth))
        {
            return 1;
        }
    }

    return 0;
}


static ngx_array_t *
ngx_http_latchkey_codes(void **loc_conf)
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
