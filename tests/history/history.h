/*
 * history.h - the record that race.c writes and check.c reads.
 *
 * A history file is nothing but these records, in the byte order of the
 * machine; README.md describes them for whoever makes one by other means.
 */
#ifndef LK_HISTORY_H
#define LK_HISTORY_H

#include <stdint.h>

enum history_kind {
    HISTORY_CLAIM = 1,
    HISTORY_COMPLETE,
    HISTORY_RELEASE,
    HISTORY_DOUBT,
    HISTORY_EXTEND,
    HISTORY_EVICT,
    HISTORY_KIND_END,
};

/* The verdicts of latchkey.h, moved by one so that 0 is "no reply". */
enum history_verdict {
    HISTORY_NONE,
    HISTORY_NEW,
    HISTORY_REPLAY,
    HISTORY_OMITTED,
    HISTORY_INFLIGHT,
    HISTORY_ACCEPTED,
    HISTORY_UNCERTAIN,
    HISTORY_MISMATCH,
    HISTORY_LIMITED,
    HISTORY_REFUSED,
    HISTORY_OK,
    HISTORY_KEPT,
    HISTORY_STALE,
    HISTORY_NIL,
    HISTORY_UNAVAILABLE, /* may have happened or not, like no reply */
    HISTORY_VERDICT_END,
};

enum history_flag {
    HISTORY_REEXECUTE = 1,
    HISTORY_OTHER_PRINT = 2, /* the second of two fingerprints */
    HISTORY_NONEW = 4,
};

#define HISTORY_NO_RETURN (-1)

struct history_record {
    int64_t call_ns;   /* before the command was written */
    int64_t return_ns; /* after its reply was read, or HISTORY_NO_RETURN */
    uint64_t key;
    uint64_t owner;   /* of a claim */
    uint64_t token;   /* NEW: handed out; all but claims: shown */
    uint64_t digest;  /* of the answer: COMPLETE: sent; REPLAY, KEPT: seen */
    uint32_t lock_ms; /* claim, extend: asked for; 0: longer than the run */
    uint32_t ttl_ms;  /* complete: in force; 0: longer than the run */
    uint32_t connection;
    uint8_t kind;
    uint8_t verdict;
    uint8_t flags;
    uint8_t spare;
};

_Static_assert(sizeof(struct history_record) == 64, "README.md says 64");

#endif
