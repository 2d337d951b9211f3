/*
 * sql_codes.h - numbers in SQL besides those of the machines: what the daemon
 * and its functions in PostgreSQL agree on, and what the embedded store's rows
 * hold. tools/rules_gen.c puts them into the SQL.
 */
#ifndef LK_SQL_CODES_H
#define LK_SQL_CODES_H

/* Flags of latchkey.apply and step. */
#define LK_SQL_FLAG_MAP(X)                                                     \
    X(REEXECUTE, 1, "run again what is uncertain")                             \
    X(NO_NEW, 2, "begin nothing")                                              \
    X(OWNER, 4, "there is an owner")                                           \
    X(REPEATABLE, 8, "the request may run again")                              \
    X(PROOF, 16, "by proof")                                                   \
    X(COURIER, 32, "by the courier")                                           \
    X(UNSENT, 64, "a return: the app has not got it")                          \
    X(RUNNING, 128, "a resolution, also while the lock is valid")              \
    X(AGAIN, 256, "it may have been committed before")                         \
    X(DOUBTED, 512, "it was doubted with a reason")

enum lk_sql_flag {
#define X(name, value, text) LK_SQL_FLAG_##name = (value),
    LK_SQL_FLAG_MAP(X)
#undef X
};

/* In place of a verdict. */
#define LK_SQL_VERDICT_MAP(X)                                                  \
    X(AGAIN, -1, "another transaction has it: try again")                      \
    X(UNKNOWN_EVENT, -2, "there is no such event here")                        \
    X(CONFLICT, -3, "its job of that name makes another call")

enum lk_sql_verdict {
#define X(name, value, text) LK_SQL_VERDICT_##name = (value),
    LK_SQL_VERDICT_MAP(X)
#undef X
};

/* Flags of an end and of a mark; the status of the response that a request
 * which is given up is completed with is in the bits between. */
#define LK_SQL_END_MAP(X)                                                      \
    X(LEFT, 1, "the call may have left, or is about to leave")                 \
    X(STATUS, 2, "times the status")                                           \
    X(DOUBT, 65536, "no one knows whether it has happened")

enum lk_sql_end {
#define X(name, value, text) LK_SQL_END_##name = (value),
    LK_SQL_END_MAP(X)
#undef X
};

/* What becomes of an end or a mark. */
#define LK_SQL_FENCE_MAP(X)                                                    \
    X(DONE, 0, "done")                                                         \
    X(STALE, 1, "stale")                                                       \
    X(AGAIN, 2, "another transaction has it: try again")

enum lk_sql_fence {
#define X(name, value, text) LK_SQL_FENCE_##name = (value),
    LK_SQL_FENCE_MAP(X)
#undef X
};

/* What latchkey.settle_request does to a request whose lease has run out. */
#define LK_SQL_SETTLE_MAP(X)                                                   \
    X(DONE, 0, "it waits again, or is over")                                   \
    X(UNCERTAIN, 1, "it has become uncertain")                                 \
    X(NOT, 2, "another transaction has it, or its holder lives")

/* Flags of an operation in latchkey.import. */
#define LK_SQL_IMPORT_MAP(X)                                                   \
    X(OMITTED, 1, "its response was not kept")                                 \
    X(EVICTED, 2, "it was evicted")

enum lk_sql_import {
#define X(name, value, text) LK_SQL_IMPORT_##name = (value),
    LK_SQL_IMPORT_MAP(X)
#undef X
};

/* The kinds of rows of latchkey.lease_jobs. */
#define LK_SQL_LEASE_MAP(X)                                                    \
    X(JOB, 0, "a lease")                                                       \
    X(SETTLED, 1, "an operation has settled: number is its lock_id")           \
    X(END, 2, "the last row")

enum lk_sql_lease {
#define X(name, value, text) LK_SQL_LEASE_##name = (value),
    LK_SQL_LEASE_MAP(X)
#undef X
};

/* What last changed a claim, in the embedded store: outcome.kind. */
#define LK_ROW_MAP(X)                                                          \
    X(UNKNOWN, 0, "never written: damage")                                     \
    X(COMPLETE, 1, "completed")                                                \
    X(OMIT, 2, "completed, without the response")                              \
    X(RELEASE, 3, "released")                                                  \
    X(DOUBT, 4, "uncertain, with a reason")                                    \
    X(LAPSE, 5, "by the sweeper: the lock lapsed, without a reason")           \
    X(EXTEND, 6, "in progress, with a later lock deadline")                    \
    X(EVICT, 7, "evicted")                                                     \
    X(RETURN, 8, "accepted again, by the courier")

enum lk_row_kind {
#define X(name, value, text) LK_ROW_##name = (value),
    LK_ROW_MAP(X)
#undef X
};

#endif
