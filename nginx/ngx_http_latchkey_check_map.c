
/*
 * Does a "map" give what a client wrote?  One whose results are written in the
 * configuration is a list of what was given out, and verifies; one whose
 * results have variables in them is as good as those.
 */


#include "ngx_http_latchkey_check.h"


/* the beginning of a structure that the map module keeps to itself */

typedef struct {
    ngx_http_map_t                   map;
    ngx_http_complex_value_t         value;
    ngx_http_variable_value_t       *default_value;
} ngx_http_latchkey_map_t;


extern ngx_module_t  ngx_http_map_module ngx_http_latchkey_weak;


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


ngx_uint_t
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


/* NULL: the variable is none of a "map" */

static ngx_http_latchkey_map_t *
ngx_http_latchkey_find_map(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_http_variable_t            *v;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    if (!lmcf->map_asked) {
        lmcf->map_asked = 1;
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
 * The module does not tell the name of its handler, but its directive sets it:
 * it is obeyed once, for an empty block.  What comes of it must look as we
 * think that it does.  NULL: it does not, and nothing is known of any.
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

    /* with a space, so that nobody's own map has this name and is replaced */

    ngx_str_set(&words[2], "$latchkey map");
    ngx_str_set(&name, "latchkey map");

    ngx_memzero(&args, sizeof(ngx_array_t));
    args.elts = words;
    args.nelts = 3;
    args.size = sizeof(ngx_str_t);
    args.nalloc = 3;
    args.pool = cf->pool;

    /* as ngx_conf_param() reads what is in no file */

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
 * One that is not valid is a value with variables, to be made when needed.
 * What a regular expression takes out of its source is as good as that.
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

    return ngx_http_latchkey_has_clients(cf, llcf, &value->value, depth, NULL)
           || (source && ngx_http_latchkey_has_clients(cf, llcf, source,
                                                       depth, NULL));
}
