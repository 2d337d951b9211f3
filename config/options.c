/* options.c - settings from the file and the command line, read together, and
 * what of them is for the store. */
#include "config/config.h"

static enum lk_status set_value(struct lk_config *config,
                                const struct lk_option_value *value,
                                struct lk_buf *errors)
{
    if (value->value) {
        return lk_config_set_value(config, value->setting, value->value,
                                   errors);
    }
    return lk_config_set(config, value->setting, errors);
}

enum lk_status lk_options_read(const struct lk_options *options,
                               struct lk_config *config, struct lk_buf *errors,
                               struct lk_buf *warnings)
{
    enum lk_status status = lk_config_init(config);

    if (status) {
        return status;
    }
    if (options->config_path) {
        status = lk_config_load(config, options->config_path, errors);
    }
    for (size_t i = 0; i < options->count && !status; i++) {
        status = set_value(config, &options->values[i], errors);
    }
    if (!status) {
        status = lk_config_check(config, errors, warnings);
    }
    if (status) {
        lk_config_free(config);
    }
    return status;
}

void lk_config_store(const struct lk_config *config,
                     struct lk_store_config *store)
{
    lk_store_config_default(store);
    store->default_ttl_ms = config->ttl_ms;
    store->default_lock_ms = config->lock_ms;
    store->clock_jump_ms = config->clock_jump_ms;
    store->checkpoint_pages = (unsigned)config->checkpoint_pages;
    store->cache_pages = (unsigned)config->cache_pages;
    store->reap_rows = (unsigned)config->reap_rows;
    store->connections = (unsigned)config->store_lanes;
    store->batch_ops = config->batch_ops;
    store->pooler = config->store_pooler;
    store->accept_loss = config->accept_loss;
    store->strict = config->strict;
    store->notify = config->store_notify;
    store->timeout_ms = config->store_timeout_ms;
    store->connect_timeout_ms = config->store_connect_timeout_ms;
    store->wait_replicas = (unsigned)config->wait_replicas;
    store->wait_timeout_ms = config->wait_timeout_ms;
    store->prefix = config->prefix;
    store->cache_url = config->cache_url;
    store->cache_timeout_ms = config->cache_timeout_ms;
}
