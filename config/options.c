/* options.c - settings from the file and the command line, read together. */
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
