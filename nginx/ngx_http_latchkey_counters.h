
/*
 * Counters in shared memory: the slots of locations, and how they are found.
 */


#ifndef _NGX_HTTP_LATCHKEY_COUNTERS_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_COUNTERS_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


/* whether a request was guarded; the words are a contract */

#define NGX_HTTP_LATCHKEY_COVERS(X)                                          \
    X(GUARDED, "guarded", "Requests that a guard decided on.")               \
    X(OBSERVED, "observed",                                                  \
      "Requests that were decided on and passed with any verdict.")          \
    X(REFUSED, "refused",                                                    \
      "Requests that ended before a guard decided on them.")                 \
    X(UNGUARDED, "unguarded", "State-changing requests without a guard.")

typedef enum {
#define X(name, word, help)  NGX_HTTP_LATCHKEY_COVER_##name,
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
    NGX_HTTP_LATCHKEY_COVER_LAST
} ngx_http_latchkey_cover_e;


/* `copy` distinguishes locations that have the same names */

typedef struct {
    ngx_str_t                        server;
    ngx_str_t                        location;
    ngx_uint_t                       copy;
} ngx_http_latchkey_place_t;


/* in shared memory; the master adds slots, and none is ever removed */

typedef struct ngx_http_latchkey_slot_s  ngx_http_latchkey_slot_t;

struct ngx_http_latchkey_slot_s {
    ngx_http_latchkey_place_t        place;
    ngx_http_latchkey_slot_t        *next;        /* of the same hash */

    ngx_atomic_t                     covers[NGX_HTTP_LATCHKEY_COVER_LAST];
    ngx_atomic_t                     verdicts[NGX_HTTP_LATCHKEY_VERDICT_LAST];
    ngx_atomic_t                     outcomes[NGX_HTTP_LATCHKEY_OUTCOME_LAST];
};


typedef struct {
    uint64_t                         layout;
    ngx_uint_t                       size;        /* of slots and heads */
    ngx_uint_t                       used;
    u_char                          *names;       /* free room */
    u_char                          *names_end;
    ngx_http_latchkey_slot_t       **heads;       /* by hash */
    ngx_http_latchkey_slot_t        *slots;
} ngx_http_latchkey_table_t;


/* of one configuration; indexed by the locations' numbers, from 1 */

typedef struct {
    ngx_uint_t                       n;
    ngx_http_latchkey_place_t       *places;
    ngx_http_latchkey_slot_t       **slots;

    /* the table to be made, and the one before it */
    ngx_uint_t                       size;
    size_t                           names_size;
    ngx_http_latchkey_table_t       *old;
} ngx_http_latchkey_counters_t;


#endif /* _NGX_HTTP_LATCHKEY_COUNTERS_H_INCLUDED_ */
