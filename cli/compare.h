/*
 * compare.h - compares the jobs of a target ("here") with the lines of a
 * provider's export ("there").
 *
 * Both sides are streams of items of a fixed size: keyed hashes of the key, of
 * the provider's id and of the values that are compared. A temporary SQLite
 * database has them, and SQL joins those that may meet: by the key first, then,
 * what met nothing, by the id. Memory is bounded by `memory`, however long
 * either side is. Every hash uses one random key, so that the author of an
 * export cannot choose what meets.
 */
#ifndef LK_COMPARE_H
#define LK_COMPARE_H

#include "lib/siphash.h"
#include "store/jobs.h"

/* ---- Values ---------------------------------------------------------------
 */

/*
 * A hash that is equal for equal values: decimal numbers by their exact value
 * (1.0 is 1, 1e2 is 100, +1 and .5 are numbers, 007 is not), anything else by
 * its bytes. An empty value equals a missing one.
 */
LK_MUST_CHECK enum lk_status lk_value_hash(const uint8_t key[LK_SIPHASH_KEY],
                                           struct lk_slice value,
                                           uint64_t *hash);
/* Appends the one spelling of a decimal number. LK_MALFORMED: it is not one. */
LK_MUST_CHECK enum lk_status lk_decimal(struct lk_slice value,
                                        struct lk_buf *out);

/* ---- Items and findings ---------------------------------------------------
 */

enum { LK_PAIRS_MAX = 16 };

enum {
    LK_ITEM_KEY = 1 << 0,     /* it has a key */
    LK_ITEM_ID = 1 << 1,      /* it has a provider's id */
    LK_ITEM_WINDOW = 1 << 2,  /* it counts if it is alone */
    LK_ITEM_SETTLED = 1 << 3, /* here: an export that is complete has it */
    LK_ITEM_LATER = 1 << 4,   /* here: too late to be in the export */
    LK_ITEM_OLDER = 1 << 5,   /* there: its job may be deleted */
    LK_ITEM_SHARED = 1 << 6,  /* others have its key, so it proves nothing;
                                 set by the comparison alone */
};

/* A job, or a line of the export. */
struct lk_item {
    struct lk_hash128 key; /* has a meaning with LK_ITEM_KEY only */
    struct lk_hash128 id;  /* has a meaning with LK_ITEM_ID only */
    uint64_t place;   /* there: where the line starts in the file; here: the
                         job's number for lk_comparison_texts */
    uint64_t number;  /* here: the job's id; there: the number of the line */
    uint32_t attempt; /* here: the job's attempts when it was read, the fence */
    uint16_t flags;
    uint16_t state;                /* here: enum lk_job_state */
    uint64_t values[LK_PAIRS_MAX]; /* the first `pairs` of them are used */
};

enum lk_meeting {
    LK_BOTH,       /* a job and a line */
    LK_REPEATED,   /* a line that repeats another line */
    LK_ONLY_THERE, /* a line; `here` is set if the job of its key has met
                      another line already */
    LK_ONLY_HERE,  /* a job */
};

/* Differences: a bit for each pair, and these. */
enum { LK_DIFFERS_KEY = 1 << 16, LK_DIFFERS_ID = 1 << 17 };

struct lk_finding {
    enum lk_meeting meeting;
    bool by_key; /* LK_BOTH: they met by the key, else by the id */
    uint32_t differs;
    const struct lk_item *here; /* NULL: there is no job */
    const struct lk_item *there;
};

/* ---- The comparison -------------------------------------------------------
 */

struct lk_comparison_setup {
    size_t memory;  /* bytes, about */
    unsigned pairs; /* values that are compared; at most LK_PAIRS_MAX */
    /* Keys need not be unique: one that several jobs have, or several lines of
     * different ids, does not say which is which, and lets none of them meet
     * by it. They still may meet by the id, and are LK_ITEM_SHARED. */
    bool shared_keys;
    /* A status other than LK_OK ends the run. */
    enum lk_status (*found)(void *context, const struct lk_finding *finding);
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

/*
 * Life: open; add each job and each line once, in any order; run once; then
 * take the deferred jobs. The database has no name in the file system and is
 * deleted with the process, however it ends.
 */
struct lk_comparison;

/* All of these may return LK_FULL (no room for temporary files), LK_IO and
 * LK_NOMEM. *comparison is set, perhaps to NULL, and must be closed. */
LK_MUST_CHECK enum lk_status lk_comparison_open(
    const struct lk_comparison_setup *setup, struct lk_comparison **comparison);
void lk_comparison_close(struct lk_comparison *comparison); /* may be NULL */

/* `texts` of a job can be read again during the run; longer ones are cut to
 * LK_TEXT_MAX bytes. */
enum { LK_TEXT_MAX = 255 };
LK_MUST_CHECK enum lk_status lk_comparison_add_job(
    struct lk_comparison *comparison, const struct lk_item *job,
    const struct lk_slice *texts, size_t count);
LK_MUST_CHECK enum lk_status lk_comparison_add_line(
    struct lk_comparison *comparison, const struct lk_item *line);

/*
 * Reports each item once: the lines in the order of the file, each with the
 * job that it meets, then the jobs that no line met. Also returns what `found`
 * returned.
 */
LK_MUST_CHECK enum lk_status lk_comparison_run(
    struct lk_comparison *comparison);
/* Within `found`: a job that no line met is to be reported again, by
 * lk_comparison_take_deferred. */
LK_MUST_CHECK enum lk_status lk_comparison_defer(
    struct lk_comparison *comparison, const struct lk_item *job);
LK_MUST_CHECK enum lk_status lk_comparison_take_deferred(
    struct lk_comparison *comparison);
/* The first `count` texts of a job; they point into `buf`. */
LK_MUST_CHECK enum lk_status lk_comparison_texts(
    struct lk_comparison *comparison, const struct lk_item *job,
    struct lk_buf *buf, struct lk_slice *texts, size_t count);

/* ---- What a finding means --------------------------------------------------
 */

/* name, word, whether a person must look at it */
#define LK_CLASS_MAP(X)                                                        \
    X(MATCHED, "matched", false)      /* delivered, and there */               \
    X(DIFFERING, "differing", true)   /* on both sides, not the same */        \
    X(THERE, "only-there", true)      /* a line without a job */               \
    X(HERE, "only-here", true)        /* delivered, and not there */           \
    X(HAPPENED, "happened", true)     /* there, which proves it */             \
    X(ABSENT, "did-not-happen", true) /* proven, if absence proves anything */ \
    X(OPEN, "uncertain", true)        /* not there, which proves nothing */    \
    X(UNDER_WAY, "under-way", false)  /* there, and being called */            \
    X(NEITHER, "neither", false)      /* not done here, not there either */    \
    X(LATER, "later", false)          /* delivered after the export */         \
    X(REPEATED, "repeated", false)    /* a line that is there twice */         \
    X(OUTSIDE, "outside", false)      /* not of the time that is compared */   \
    X(OLDER, "older", false)          /* a line; its job may be deleted */     \
    X(AMBIGUOUS, "ambiguous", true)   /* a value that proves nothing */

enum lk_class {
#define X(name, word, open) LK_CLASS_##name,
    LK_CLASS_MAP(X)
#undef X
        LK_CLASSES
};

const char *lk_class_word(enum lk_class of);
bool lk_class_is_open(enum lk_class of);
enum lk_class lk_judge(const struct lk_finding *finding);

/* What is known of the export as a whole. */
struct lk_coverage {
    bool complete;      /* until some time, by --complete-until */
    bool has_header;    /* and a column for the key */
    uint64_t lines;     /* that could be read */
    uint64_t malformed; /* that could not */
    uint64_t keyless;   /* lines without a key that met no job */
    uint64_t strange;   /* lines whose value of --match no job has */
    uint64_t by_key;    /* lines that met a job by their key */
    uint64_t missing;   /* jobs delivered before it ends, and not in it */
    bool unended;       /* the last line of CSV has no newline */
    bool unsettled;     /* how long a call may be on its way is not known */
};

/* NULL: what is not in the export did not happen. Else the reason why absence
 * proves nothing, a clause for people. */
const char *lk_absence_fault(const struct lk_coverage *coverage);

#endif
