/* postgres_job.h - the columns in which jobs are read, leased or shown. */
#ifndef LK_POSTGRES_JOB_H
#define LK_POSTGRES_JOB_H

#include "store/postgres.h"

/* Up to SENT_AT that of latchkey.lease (008_lease.sql); all of them that of the
 * lists in postgres_jobs.c. */
enum lk_pg_job_column {
    LK_PG_J_KIND, /* a list: hidden, not what is asked for; only its id counts
                   */
    LK_PG_J_ID,
    LK_PG_J_TENANT,
    LK_PG_J_SCOPE,
    LK_PG_J_KEY,
    LK_PG_J_NUMBER,
    LK_PG_J_GENERATION,
    LK_PG_J_TOKEN,
    LK_PG_J_RUN,
    LK_PG_J_NAME,
    LK_PG_J_TARGET,
    LK_PG_J_METHOD,
    LK_PG_J_PATH,
    LK_PG_J_HEADERS,
    LK_PG_J_BODY,
    LK_PG_J_ATTEMPTS,
    LK_PG_J_FORGIVEN,
    LK_PG_J_SENT,
    LK_PG_J_DOUBT,
    LK_PG_J_REPEATABLE,
    LK_PG_J_CREATED,
    LK_PG_J_DUE,
    LK_PG_J_NOW,
    LK_PG_J_STATUS,
    LK_PG_J_PROVIDER,
    LK_PG_J_REASON,
    LK_PG_J_SINCE,
    LK_PG_J_SENT_AT,
    /* Only in a list: */
    LK_PG_J_STATE,
    LK_PG_J_CALLED,
    LK_PG_J_ENDED,
    LK_PG_J_ANSWER_HEADERS,
    LK_PG_J_ANSWER_BODY,
};

/* A row of a list, or one that was leased: what the latter has not is left. */
LK_MUST_CHECK enum lk_status lk_pg_job(const PGresult *result, int row,
                                       bool listed, struct lk_job *job);

#endif
