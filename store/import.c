/* import.c - what every store asks of a record that comes from another. */
#include "store/store.h"

uint64_t lk_operation_deadline(const struct lk_operation *record)
{
    switch (record->state) {
    case LK_STATE_IN_PROGRESS:
        return record->lock_until_ms;
    case LK_STATE_UNCERTAIN:
        return record->since_ms;
    default:
        return record->expires_ms;
    }
}

static bool is_within(struct lk_slice slice, size_t least, size_t most)
{
    return slice.len >= least && slice.len <= most;
}

static bool has_times(const struct lk_operation *record)
{
    return record->ttl_ms <= LK_IMPORT_TIME_MAX &&
           record->keep_ms <= LK_IMPORT_TIME_MAX &&
           record->claimed_ms <= LK_IMPORT_TIME_MAX &&
           record->completed_ms <= LK_IMPORT_TIME_MAX &&
           lk_operation_deadline(record) <= LK_IMPORT_TIME_MAX;
}

static bool has_numbers(const struct lk_operation *record)
{
    return record->token && record->token <= LK_IMPORT_TOKEN_MAX &&
           record->number <= LK_IMPORT_TOKEN_MAX &&
           record->generation <= LK_IMPORT_TOKEN_MAX &&
           record->attempt <= INT64_MAX;
}

bool lk_operation_is_possible(const struct lk_operation *record)
{
    const struct lk_name *name = &record->name;
    bool known = record->state >= LK_STATE_IN_PROGRESS &&
                 record->state <= LK_STATE_RELEASED;
    bool whole = record->state != LK_STATE_COMPLETED || record->omitted ||
                 record->stored;

    return known && whole && has_numbers(record) && has_times(record) &&
           is_within(name->tenant, 1, LK_TENANT_MAX) &&
           is_within(name->scope, 1, LK_SCOPE_MAX) &&
           is_within(name->key, 1, LK_KEY_MAX) &&
           is_within(record->fingerprint, 1, LK_FINGERPRINT_MAX) &&
           is_within(record->owner, 0, LK_OWNER_MAX) &&
           is_within(record->reason, 0, LK_REASON_MAX);
}
