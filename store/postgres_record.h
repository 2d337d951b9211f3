/* postgres_record.h - the columns in which records are read. */
#ifndef LK_POSTGRES_OPERATION_H
#define LK_POSTGRES_OPERATION_H

#include "store/postgres.h"

/* The order of LK_PG_OPERATION. */
enum lk_pg_operation_column {
    LK_PG_R_NUMBER,
    LK_PG_R_TENANT,
    LK_PG_R_SCOPE,
    LK_PG_R_KEY,
    LK_PG_R_STATE,
    LK_PG_R_TOKEN,
    LK_PG_R_ATTEMPT,
    LK_PG_R_GENERATION,
    LK_PG_R_FINGERPRINT,
    LK_PG_R_OWNER,
    LK_PG_R_CLAIMED,
    LK_PG_R_DEADLINE,
    LK_PG_R_TTL,
    LK_PG_R_KEEP,
    LK_PG_R_OMITTED,
    LK_PG_R_EVICTED,
    LK_PG_R_QUEUED,
    LK_PG_R_STATUS,
    LK_PG_R_COMPLETED,
    LK_PG_R_REASON,
    LK_PG_R_NOW,
    LK_PG_R_HIDDEN, /* past its time, or not what is listed */
    LK_PG_R_BYTES,
    LK_PG_R_HEADERS,
    LK_PG_R_BODY,
    /* Of a list that is not whole. */
    LK_PG_R_JOBS_OPEN,
    LK_PG_R_JOBS_DEAD,
    LK_PG_R_JOBS_UNCERTAIN,
};

/* As far as is known: KEEP may have asked for more than the claim. */
#define LK_PG_TTL "greatest(o.ttl_ms, o.keep_ms)"

#define LK_PG_WITH_ANSWER    "a.headers, a.body"
#define LK_PG_WITHOUT_ANSWER "NULL::bytea, NULL::bytea"

/* Past its time; but an operation with an unfinished job lives on. */
#define LK_PG_EXPIRED                                                          \
    "(o.state IN (4, 5) AND o.deadline_ms <= n.now AND NOT EXISTS (SELECT "    \
    "FROM latchkey.job j WHERE j.number = o.number AND j.state < 4))"

/* The end of a lock, which EXTEND notes apart; of others, their own. */
#define LK_PG_DEADLINE                                                         \
    "CASE o.state WHEN 2 THEN greatest(o.deadline_ms, (SELECT e.until_ms "     \
    "FROM latchkey.extension e WHERE e.token = o.token)) "                     \
    "ELSE o.deadline_ms END"

#define LK_PG_COLUMNS_OF(hidden, ttl, answer)                                  \
    "o.number, o.tenant, o.scope, o.key, o.state, o.token, o.attempt, "        \
    "o.generation, o.fingerprint, o.owner, o.claimed_ms, " LK_PG_DEADLINE      \
    ", " ttl ", o.keep_ms, o.omitted, o.evicted, o.queued, "                   \
    "o.status, o.completed_ms, o.reason, n.now, " hidden ", "                  \
    "(octet_length(a.headers) + octet_length(a.body))::bigint, " answer

/* One moment for all rows. */
#define LK_PG_NOW "(SELECT latchkey.now_ms() AS now OFFSET 0) AS n"

/* clang-format off */
#define LK_PG_OPERATION(answer)                                                   \
    "SELECT " LK_PG_COLUMNS_OF(LK_PG_EXPIRED, LK_PG_TTL, answer)               \
    " FROM " LK_PG_NOW " CROSS JOIN latchkey.operation o "                     \
    "LEFT JOIN latchkey.answer a ON a.token = o.token AND o.state = 4"
/* clang-format on */

/* The answer or the reason, as LOOKUP, FIND and a whole LIST carry it. */
LK_MUST_CHECK enum lk_status lk_pg_operation_stored(
    const PGresult *result, int row, struct lk_operation *record);

#endif
