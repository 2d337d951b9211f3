/* move_fields.c - the members of the lines of an export, in one table. */
#include "cli/move.h"

#define ROW(name, kind, needed, field, most)                                   \
    {                                                                          \
        name, LK_FIELD_##kind, needed, offsetof(struct lk_line, field), most   \
    }
#define BYTES(name, field, most)        ROW(name, BYTES, false, field, most)
#define NUMBER(name, field, most)       ROW(name, NUMBER, false, field, most)
#define TIME(name, field)               ROW(name, NUMBER, false, field, TIME_MAX)
#define NEEDED(name, kind, field, most) ROW(name, kind, true, field, most)

#define TOKEN_MAX LK_IMPORT_TOKEN_MAX
#define TIME_MAX  LK_IMPORT_TIME_MAX
#define ANY       INT64_MAX

static const struct lk_field_row begin[] = {
    NEEDED("version", NUMBER, begin.version, ANY),
    NEEDED("store", BYTES, begin.store, 32),
    BYTES("reference-secret", begin.reference_secret, 2 * LK_REFERENCE_KEY),
    NUMBER("last-token", begin.last_token, TOKEN_MAX),
    NUMBER("records", begin.records, ANY),
    TIME("now-ms", begin.now_ms),
    {0},
};

static const struct lk_field_row record[] = {
    NEEDED("tenant", BYTES, record.name.tenant, LK_TENANT_MAX),
    NEEDED("scope", BYTES, record.name.scope, LK_SCOPE_MAX),
    NEEDED("key", BYTES, record.name.key, LK_KEY_MAX),
    NEEDED("state", STATE, record.state, 32),
    NEEDED("token", NUMBER, record.token, TOKEN_MAX),
    NUMBER("attempt", record.attempt, ANY),
    NUMBER("number", record.number, TOKEN_MAX),
    NUMBER("generation", record.generation, TOKEN_MAX),
    NEEDED("fingerprint", BYTES, record.fingerprint, LK_FINGERPRINT_MAX),
    BYTES("owner", record.owner, LK_OWNER_MAX),
    TIME("claimed-ms", record.claimed_ms),
    TIME("lock-until-ms", record.lock_until_ms),
    TIME("since-ms", record.since_ms),
    TIME("completed-ms", record.completed_ms),
    TIME("expires-ms", record.expires_ms),
    TIME("ttl-ms", record.ttl_ms),
    TIME("keep-ms", record.keep_ms),
    ROW("status", STATUS, false, record.status, LK_STATUS_MAX),
    ROW("omitted", FLAG, false, record.omitted, 1),
    ROW("evicted", FLAG, false, record.evicted, 1),
    BYTES("reason", record.reason, LK_REASON_MAX),
    BYTES("headers", response.headers, ANY),
    BYTES("body", response.body, ANY),
    {0},
};

static const struct lk_field_row audit[] = {
    NUMBER("id", audit.id, ANY),
    TIME("at-ms", audit.at_ms),
    NEEDED("who", BYTES, audit.who, LK_WHO_MAX),
    NEEDED("action", BYTES, audit.action, ANY),
    BYTES("tenant", audit.name.tenant, LK_TENANT_MAX),
    BYTES("scope", audit.name.scope, LK_SCOPE_MAX),
    BYTES("key", audit.name.key, LK_KEY_MAX),
    NUMBER("token", audit.token, TOKEN_MAX),
    BYTES("why", audit.why, LK_WHY_MAX),
    {0},
};

static const struct lk_field_row end[] = {
    NUMBER("records", end.records, ANY),
    NUMBER("audit", end.audit, ANY),
    {0},
};

const struct lk_field_row *const lk_line_fields[LK_LINE_TYPES] = {
    [LK_LINE_BEGIN] = begin,
    [LK_LINE_RECORD] = record,
    [LK_LINE_AUDIT] = audit,
    [LK_LINE_END] = end,
};

const char *const lk_line_words[LK_LINE_TYPES] = {
#define X(name, word) word,
    LK_LINE_MAP(X)
#undef X
};
