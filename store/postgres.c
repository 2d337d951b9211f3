/* postgres.c - placeholder until the store is here. */
#include "store/store.h"

static enum lk_status open_store(const struct lk_store_config *config,
                                 struct lk_store **store, struct lk_buf *error)
{
    (void)config;
    (void)store;
    enum lk_status status =
        latchkey_buf_add_text(error, "this build has no such store");
    return status ? status : LK_INVALID;
}

const struct lk_store_class lk_postgres_class = {
    .scheme = "postgres",
    .open = open_store,
};
