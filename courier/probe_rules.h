/*
 * probe_rules.h - what a probe asks and what the response proves; pure, without
 * I/O or clock. And the notes on what was asked.
 */
#ifndef LK_PROBE_RULES_H
#define LK_PROBE_RULES_H

#include "config/targets.h"
#include "courier/http_call.h"

/* ---- the question -------------------------------------------------------- */

/* The values of the template's placeholders; data NULL: it has none here. */
struct lk_probe_words {
    struct lk_slice key;
    struct lk_slice id;
    struct lk_slice tenant;
    struct lk_slice scope;
    struct lk_slice reference;
    struct lk_slice name;
};

/*
 * Appends the template with its placeholders filled in, percent-encoded.
 * LK_INVALID: it is not a template: an unknown placeholder, or a single brace.
 * LK_NOT_FOUND: one of its placeholders has no value here.
 */
LK_MUST_CHECK enum lk_status lk_probe_path(const char *template,
                                           const struct lk_probe_words *words,
                                           struct lk_buf *path);

/* ---- the response ----------------------------------------------------------
 */

enum lk_proof {
    LK_PROOF_NONE,     /* proves neither */
    LK_PROOF_HAPPENED, /* proof at once */
    LK_PROOF_ABSENT,   /* proof only as lk_probe_absence_proves says */
};

const char *lk_proof_word(enum lk_proof proof);
/* Of a response that is whole. */
enum lk_proof lk_probe_judge(const struct lk_probe *probe,
                             const struct lk_http_response *response);
/* As lk_provider_id; of a list, that of its first element. */
void lk_probe_provider_id(const struct lk_target *target,
                          const struct lk_probe *probe,
                          const struct lk_http_response *response,
                          struct lk_buf *id);

/* ---- time ---------------------------------------------------------------- */

/*
 * Absence is proof once the settle time is over and absence was seen twice
 * after that, at least an interval apart. `uncertain_ms`: how long it has been
 * uncertain. `seen_ms`: how long ago absence was first seen after the settle
 * time; UINT64_MAX: not before now.
 */
bool lk_probe_is_settled(const struct lk_probe *probe, uint64_t uncertain_ms);
bool lk_probe_absence_proves(const struct lk_probe *probe,
                             uint64_t uncertain_ms, uint64_t seen_ms);
/*
 * How long until a job or operation is asked about again, after `asked` times:
 * twice as long each time, up to an hour; but not longer than until the settle
 * time ends, nor, once absence was seen, than until it would be proof.
 * `seen_ms` as above.
 */
uint64_t lk_probe_delay_ms(const struct lk_probe *probe, unsigned asked,
                           uint64_t uncertain_ms, uint64_t seen_ms);

/* Does the route apply to that operation? */
bool lk_route_matches(const struct lk_route *route, struct lk_slice tenant,
                      struct lk_slice scope);

/* ---- memory -------------------------------------------------------------- */

/* What is known of an uncertain job or operation in one of its attempts. */
struct lk_probe_note {
    uint64_t id;        /* of the job; of the operation: its number */
    uint64_t fence;     /* the attempt; the token */
    uint64_t due_ns;    /* not asked about before */
    uint64_t absent_ns; /* absence first seen, settled; 0: not */
    unsigned asked;
    bool operation;
    bool used;
};

/*
 * A bounded number of notes. When it is full, a new note replaces an old one:
 * what is forgotten is asked about sooner, and its absence takes longer to
 * prove. Start it as {0}.
 */
struct lk_probe_memory {
    struct lk_probe_note *notes;
    size_t sets;
};

LK_MUST_CHECK enum lk_status lk_probe_memory_init(
    struct lk_probe_memory *memory, size_t notes);
void lk_probe_memory_free(struct lk_probe_memory *memory);
/* The note of that job or operation, or a new one in which everything else is
 * 0. Valid until the next call. */
struct lk_probe_note *lk_probe_memory_note(struct lk_probe_memory *memory,
                                           bool operation, uint64_t id,
                                           uint64_t fence);

#endif
