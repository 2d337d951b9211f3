/* store.c - what all stores share: the table of stores, stored responses,
 * batches, and the checks of imported operations. */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a URL begins, and which store that is. */
static const struct {
    const char *scheme;
    const struct lk_store_class *class;
} schemes[] = {
    {"sqlite", &lk_sqlite_class},        {"postgres", &lk_postgres_class},
    {"postgresql", &lk_postgres_class},  {"redis", &lk_redis_class},
    {"redis-sentinel", &lk_redis_class}, {"rediss", &lk_redis_class},
};

static struct lk_slice put(char **at, struct lk_slice slice)
{
    struct lk_slice copy = {*at, slice.len};

    if (slice.len) {
        memcpy(*at, slice.data, slice.len);
    }
    *at += slice.len;
    return copy;
}

struct lk_stored *lk_stored_reserve(size_t bytes)
{
    struct lk_stored *stored = malloc(sizeof(*stored) + bytes);

    if (stored) {
        *stored = (struct lk_stored){.size = sizeof(*stored) + bytes};
        atomic_init(&stored->refs, 1);
    }
    return stored;
}

struct lk_stored *lk_stored_make(uint64_t token, uint64_t at_ms,
                                 const struct lk_response *response,
                                 struct lk_slice reason)
{
    struct lk_stored *stored = lk_stored_reserve(
        response->headers.len + response->body.len + reason.len);

    if (!stored) {
        return NULL;
    }
    char *at = stored->bytes;
    stored->token = token;
    stored->at_ms = at_ms;
    stored->response.status = response->status;
    stored->response.headers = put(&at, response->headers);
    stored->response.body = put(&at, response->body);
    stored->reason = put(&at, reason);
    return stored;
}

struct lk_stored *lk_stored_ref(struct lk_stored *stored)
{
    atomic_fetch_add_explicit(&stored->refs, 1, memory_order_relaxed);
    return stored;
}

void lk_stored_unref(struct lk_stored *stored)
{
    if (stored && atomic_fetch_sub_explicit(&stored->refs, 1,
                                            memory_order_acq_rel) == 1) {
        free(stored);
    }
}

bool lk_outcome_is_consistent(const struct lk_outcome *out)
{
    enum lk_state state = out->state;

    if (state > LK_STATE_RELEASED || out->token >= LK_TOKEN_END ||
        (out->needs_load && out->stored)) {
        return false;
    }
    switch (out->verdict) {
    case LK_VERDICT_NEW: /* uncertain: a repeated claim with NONEW */
        return out->token && out->number &&
               (state == LK_STATE_IN_PROGRESS || state == LK_STATE_UNCERTAIN);
    case LK_VERDICT_REPLAY:
    case LK_VERDICT_OMITTED:
    case LK_VERDICT_KEPT:
        return state == LK_STATE_COMPLETED;
    case LK_VERDICT_INFLIGHT:
        return state == LK_STATE_IN_PROGRESS;
    case LK_VERDICT_ACCEPTED:
        return state == LK_STATE_ACCEPTED || state == LK_STATE_IN_PROGRESS;
    case LK_VERDICT_UNCERTAIN:
        return state == LK_STATE_UNCERTAIN;
    default:
        return true;
    }
}

void lk_op_clear(struct lk_op *op)
{
    lk_stored_unref(op->out.stored);
    op->out.stored = NULL;
}

struct lk_slice lk_op_action(const struct lk_op *op)
{
    switch (op->event) {
    case LK_EVENT_RESOLVE_COMPLETED:
        return op->running ? LK_SLICE("resolve completed (running)")
                           : LK_SLICE("resolve completed");
    case LK_EVENT_RESOLVE_RELEASED:
        return op->running ? LK_SLICE("resolve released (running)")
                           : LK_SLICE("resolve released");
    case LK_EVENT_EVICT:
        return LK_SLICE("evict");
    case LK_EVENT_KEEP:
        return op->who.len ? LK_SLICE("keep") : (struct lk_slice){0};
    default:
        return (struct lk_slice){0};
    }
}

static bool starts_with(struct lk_slice text, struct lk_slice start)
{
    return text.len >= start.len && !memcmp(text.data, start.data, start.len);
}

uint64_t lk_audit_job(const struct lk_audit_entry *entry)
{
    return starts_with(entry->action, LK_SLICE("job ")) ? entry->token : 0;
}

struct lk_slice lk_audit_target(const struct lk_audit_entry *entry)
{
    static const struct lk_slice actions[] = {
        {"target pause ", sizeof("target pause ") - 1},
        {"target resume ", sizeof("target resume ") - 1},
    };

    for (size_t i = 0; i < 2; i++) {
        if (starts_with(entry->action, actions[i])) {
            return (struct lk_slice){entry->action.data + actions[i].len,
                                     entry->action.len - actions[i].len};
        }
    }
    return (struct lk_slice){"", 0};
}

bool lk_list_matches(const struct lk_list_query *query,
                     const struct lk_operation *operation, uint64_t now)
{
    return (query->any_state || operation->state == query->state) &&
           (!query->tenant.len ||
            latchkey_slice_equal(operation->name.tenant, query->tenant)) &&
           (!query->scope.len ||
            latchkey_slice_equal(operation->name.scope, query->scope)) &&
           operation->claimed_ms >= query->since_ms &&
           (!query->until_ms || operation->claimed_ms < query->until_ms) &&
           operation->claimed_ms <= now &&
           now - operation->claimed_ms >= query->older_than_ms;
}

bool lk_list_needs_person(const struct lk_list_query *query,
                          const struct lk_operation *operation, uint64_t now)
{
    return operation->state == LK_STATE_UNCERTAIN || operation->jobs_dead ||
           operation->jobs_uncertain ||
           (operation->state == LK_STATE_IN_PROGRESS &&
            operation->claimed_ms <= now &&
            now - operation->claimed_ms >= query->long_ms);
}

void lk_operation_free(struct lk_operation *operation)
{
    lk_stored_unref(operation->stored);
    latchkey_buf_free(&operation->text);
    *operation = (struct lk_operation){0};
}

enum lk_status lk_batch_settle(struct lk_batch *batch, struct lk_hash128 hash)
{
    if (batch->settled_count == batch->settled_cap) {
        size_t cap = batch->settled_cap ? batch->settled_cap * 2 : 64;
        struct lk_hash128 *settled =
            realloc(batch->settled, cap * sizeof(*settled));
        if (!settled) {
            return LK_NOMEM;
        }
        batch->settled = settled;
        batch->settled_cap = cap;
    }
    batch->settled[batch->settled_count++] = hash;
    return LK_OK;
}

void lk_batch_clear(struct lk_batch *batch)
{
    free(batch->settled);
    batch->settled = NULL;
    batch->settled_count = batch->settled_cap = 0;
}

void lk_store_config_default(struct lk_store_config *config)
{
    *config = (struct lk_store_config){
        .default_ttl_ms = UINT64_C(24) * 3600 * 1000,
        .default_lock_ms = 30 * 1000,
        .clock_jump_ms = 3600 * 1000,
        .checkpoint_pages = 1000,
        .cache_pages = 4096,
        .reap_rows = 256,
        .connections = 2,
        .batch_ops = 1024,
        .notify = true,
        .timeout_ms = 5000,
        .connect_timeout_ms = 2000,
        .wait_timeout_ms = 1000,
        .prefix = "latchkey",
        .cache_timeout_ms = 50,
    };
}

void lk_store_log(const struct lk_store_config *config, int level,
                  const char *format, va_list args)
{
    char line[640];

    if (config->log) {
        vsnprintf(line, sizeof(line), format, args);
        config->log(config->log_context, level, line);
    }
}

/* NULL: none. */
static const struct lk_store_class *class_of(const char *url, size_t *scheme)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        size_t len = strlen(schemes[i].scheme);
        if (!strncmp(url, schemes[i].scheme, len) && url[len] == ':') {
            *scheme = len;
            return schemes[i].class;
        }
    }
    return NULL;
}

enum lk_status lk_store_check(const char *url, struct lk_store_config *config,
                              const struct lk_store_class **class,
                              struct lk_buf *error)
{
    size_t len = 0;

    *class = class_of(url, &len);
    if (!*class) {
        enum lk_status status = latchkey_buf_add_text(
            error, "the URL names no store; use sqlite:PATH, "
                   "postgres://HOST/DATABASE or redis://HOST:PORT");
        return status ? status : LK_INVALID;
    }
    config->url = url;
    config->path = url + len + 1;
    return (*class)->check ? (*class)->check(config, error) : LK_OK;
}

enum lk_status lk_store_open(const char *url, struct lk_store_config *config,
                             struct lk_store **store, struct lk_buf *error)
{
    const struct lk_store_class *class;
    enum lk_status status = lk_store_check(url, config, &class, error);

    *store = NULL;
    return status ? status : class->open(config, store, error);
}

void lk_store_close(struct lk_store *store)
{
    if (store) {
        store->class->close(store);
    }
}

void lk_store_promise(struct lk_store *store, char text[LK_PROMISE_SIZE])
{
    if (store->class->promise) {
        store->class->promise(store, text);
    } else {
        memcpy(text, store->promise, LK_PROMISE_SIZE);
    }
}

/* ---- operations of another store ---------------------------------------- */

uint64_t lk_operation_deadline(const struct lk_operation *operation)
{
    switch (operation->state) {
    case LK_STATE_IN_PROGRESS:
        return operation->lock_until_ms;
    case LK_STATE_UNCERTAIN:
        return operation->since_ms;
    default:
        return operation->expires_ms;
    }
}

static bool is_within(struct lk_slice slice, size_t least, size_t most)
{
    return slice.len >= least && slice.len <= most;
}

static bool has_times(const struct lk_operation *operation)
{
    return operation->ttl_ms <= LK_IMPORT_TIME_MAX &&
           operation->keep_ms <= LK_IMPORT_TIME_MAX &&
           operation->claimed_ms <= LK_IMPORT_TIME_MAX &&
           operation->completed_ms <= LK_IMPORT_TIME_MAX &&
           lk_operation_deadline(operation) <= LK_IMPORT_TIME_MAX;
}

static bool has_numbers(const struct lk_operation *operation)
{
    return operation->token && operation->token <= LK_IMPORT_TOKEN_MAX &&
           operation->number <= LK_IMPORT_TOKEN_MAX &&
           operation->generation <= LK_IMPORT_TOKEN_MAX &&
           operation->attempt <= INT64_MAX;
}

bool lk_operation_is_possible(const struct lk_operation *operation)
{
    const struct lk_name *name = &operation->name;
    bool known = operation->state >= LK_STATE_IN_PROGRESS &&
                 operation->state <= LK_STATE_RELEASED;
    bool whole = operation->state != LK_STATE_COMPLETED || operation->omitted ||
                 operation->stored;

    return known && whole && has_numbers(operation) && has_times(operation) &&
           is_within(name->tenant, 1, LK_TENANT_MAX) &&
           is_within(name->scope, 1, LK_SCOPE_MAX) &&
           is_within(name->key, 1, LK_KEY_MAX) &&
           is_within(operation->fingerprint, 1, LK_FINGERPRINT_MAX) &&
           is_within(operation->owner, 0, LK_OWNER_MAX) &&
           is_within(operation->reason, 0, LK_REASON_MAX);
}
