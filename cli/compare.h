/*
 * compare.h - compares the ledger of jobs with what a provider says it has.
 *
 * Both sides are streams of items of a fixed size: hashes of the key and of
 * the provider's id, hashes of the values that are compared, and where the
 * text stands. They are spilled into partitions by the hash of the key, and
 * each partition is joined in memory; what found nobody by its key is joined
 * again by the id. So memory is bounded, however long either side is. All
 * hashes are keyed with a random key: nobody can choose what meets.
 */
#ifndef LK_COMPARE_H
#define LK_COMPARE_H

#include "lib/json.h"
#include "lib/siphash.h"
#include "store/jobs.h"

#include <stddef.h>

/* ---- CSV (compare_csv.c) ----------------------------------------------- */

enum {
    LK_ROW_MAX = 1 << 20, /* bytes of a row, of CSV or JSON */
    LK_FIELDS_MAX = 4096, /* of a row of CSV */
};

/* Start it as {.delimiter = ','}; free it with lk_csv_free. */
struct lk_csv {
    char delimiter;
    struct lk_slice *fields; /* of the last row: in the input or in `text` */
    size_t count;
    size_t cap;
    size_t lines;      /* newlines in what was used */
    const char *fault; /* what is wrong with a row that is malformed */
    struct lk_buf text;
};

/*
 * Reads the row (RFC 4180) that `in` begins with; `at_end`: nothing follows
 * `in`. LK_OK: *used bytes belong to it; an empty line is a row of no fields.
 * LK_AGAIN: it goes on behind `in`. LK_MALFORMED: it is no row, but what comes
 * after *used bytes may be one. LK_TOO_LARGE: a quote that is not closed, or a
 * row longer than LK_ROW_MAX: where the next one begins is not known. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_csv_read(struct lk_csv *csv, struct lk_slice in,
                                         bool at_end, size_t *used);
void lk_csv_free(struct lk_csv *csv);

/* ---- Values (compare_value.c) ------------------------------------------ */

/*
 * A hash that is equal for equal values: decimal numbers by what they are
 * worth, exactly (1.0 is 1, 1e2 is 100, +1 and .5 are numbers, 007 is none),
 * all else by its bytes. An empty value equals one that is not there.
 */
LK_MUST_CHECK enum lk_status lk_value_hash(const uint8_t key[LK_SIPHASH_KEY],
                                           struct lk_slice value,
                                           uint64_t *hash);
/* Appends the one spelling of a decimal number. LK_MALFORMED: it is none. */
LK_MUST_CHECK enum lk_status lk_decimal(struct lk_slice value,
                                        struct lk_buf *out);

/* ---- Spilling (compare_spill.c) ---------------------------------------- */

/*
 * Items of one size in partitions, in one file that is given to it and closed
 * by lk_spill_close. Within a partition they come back in the order in which
 * they went in.
 */
struct lk_spill {
    int fd;
    size_t stride;
    unsigned parts;
    size_t block; /* bytes, a multiple of the stride */
    char *buffers;
    size_t *fill;          /* bytes in each partition's buffer */
    uint64_t *counts;      /* items of each partition */
    struct lk_buf *chains; /* uint64_t: where its blocks stand */
    uint64_t end;
};

LK_MUST_CHECK enum lk_status lk_spill_open(struct lk_spill *spill, int fd,
                                           size_t stride, unsigned parts,
                                           size_t block);
/* LK_FULL, LK_IO, LK_NOMEM. */
LK_MUST_CHECK enum lk_status lk_spill_add(struct lk_spill *spill, unsigned part,
                                          const void *item);
/* No more will be added; the buffers are given back. */
LK_MUST_CHECK enum lk_status lk_spill_seal(struct lk_spill *spill);
void lk_spill_close(struct lk_spill *spill); /* zeroed is fine */

struct lk_spill_reader {
    const struct lk_spill *spill;
    unsigned part;
    uint64_t left;
    size_t chain;
    char *buffer;
    size_t at;
    size_t filled;
    enum lk_status status; /* not LK_OK: nothing more is read. Callers set it */
};

void lk_spill_read(struct lk_spill_reader *reader, const struct lk_spill *spill,
                   unsigned part);
/* The next item, valid until the next call; NULL: no more, or a failure. */
LK_MUST_CHECK const void *lk_spill_next(struct lk_spill_reader *reader);
/* Returns the reader's status. */
LK_MUST_CHECK enum lk_status lk_spill_read_end(struct lk_spill_reader *reader);

/* ---- The join (compare.c) ---------------------------------------------- */

enum { LK_PAIRS_MAX = 16 };

enum lk_side { LK_HERE, LK_THERE };

enum {
    LK_ITEM_KEY = 1 << 0,     /* it has a key */
    LK_ITEM_ID = 1 << 1,      /* it has a provider's id */
    LK_ITEM_WINDOW = 1 << 2,  /* it counts if it is alone */
    LK_ITEM_SETTLED = 1 << 3, /* here: an export that is complete has it */
    LK_ITEM_LATER = 1 << 4,   /* here: too late to be in the export */
    LK_ITEM_OLDER = 1 << 5,   /* there: its job may be gone */
    LK_ITEM_SHARED =
        1 << 6, /* others have its key, so that it proves nothing */
};

/* A job, or a line of the export. */
struct lk_item {
    struct lk_hash128 key;
    struct lk_hash128 id;
    uint64_t place;   /* where its text stands */
    uint64_t number;  /* the job's id; the number of the line */
    uint32_t attempt; /* here: the fence */
    uint16_t flags;
    uint16_t state;                /* here: enum lk_job_state */
    uint64_t values[LK_PAIRS_MAX]; /* only as many as there are pairs */
};

/* What of it is kept. */
static inline size_t lk_item_size(unsigned pairs)
{
    return offsetof(struct lk_item, values) + pairs * sizeof(uint64_t);
}

enum lk_meeting {
    LK_BOTH,       /* a job and a line */
    LK_REPEATED,   /* a line that says again what another one said */
    LK_ONLY_THERE, /* a line; with a job that another line of the same key has
                      found already */
    LK_ONLY_HERE,
};

/* Differences, a bit for each pair and these. */
enum { LK_DIFFERS_KEY = 1 << 16, LK_DIFFERS_ID = 1 << 17 };

struct lk_finding {
    enum lk_meeting meeting;
    bool by_key; /* BOTH: else they met by the id */
    uint32_t differs;
    const struct lk_item *here; /* NULL if there is none */
    const struct lk_item *there;
};

struct lk_reconcile_setup {
    size_t memory; /* bytes, about */
    unsigned pairs;
    /* Keys need not be unique: one that several jobs have, or several lines of
     * different ids, lets none of them meet by it. They go on to the round by
     * the id, and are LK_ITEM_SHARED from then on. */
    bool shared_keys;
    /* The descriptor of an empty file that vanishes when it is closed. */
    enum lk_status (*temporary)(void *context, int *fd);
    /* What is not LK_OK ends the run. */
    enum lk_status (*found)(void *context, const struct lk_finding *finding);
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

struct lk_reconcile;

LK_MUST_CHECK enum lk_status lk_reconcile_open(
    const struct lk_reconcile_setup *setup, struct lk_reconcile **reconcile);
LK_MUST_CHECK enum lk_status lk_reconcile_add(struct lk_reconcile *reconcile,
                                              enum lk_side side,
                                              const struct lk_item *item);
/*
 * Tells of each item once it is known whom it meets. LK_TOO_LARGE: more jobs
 * than fit have one and the same id; LK_FULL, LK_IO, LK_NOMEM; and what
 * `found` returned.
 */
LK_MUST_CHECK enum lk_status lk_reconcile_run(struct lk_reconcile *reconcile);
void lk_reconcile_close(struct lk_reconcile *reconcile); /* NULL is fine */

/* ---- What it means (compare_judge.c) ----------------------------------- */

/* word, whether somebody must look at it */
#define LK_CLASS_MAP(X)                                                        \
    X(MATCHED, "matched", false)      /* delivered, and there */               \
    X(DIFFERING, "differing", true)   /* on both sides, not the same */        \
    X(THERE, "only-there", true)      /* a line without a job */               \
    X(HERE, "only-here", true)        /* delivered, and not there */           \
    X(HAPPENED, "happened", true)     /* there, which proves it */             \
    X(ABSENT, "did-not-happen", true) /* proven, if absence proves anything */ \
    X(OPEN, "uncertain", true)        /* not there, which proves nothing */    \
    X(UNDER_WAY, "under-way", false)  /* there, and being called */            \
    X(NEITHER, "neither", false)      /* not done here, nor there */           \
    X(LATER, "later", false)          /* delivered after the export */         \
    X(REPEATED, "repeated", false)    /* a line that is there twice */         \
    X(OUTSIDE, "outside", false)      /* not of the time that is compared */   \
    X(OLDER, "older", false)          /* a line; its job may be gone */        \
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

/* What was learned of the export as a whole. */
struct lk_coverage {
    bool complete;      /* it is said to be, until some time */
    bool has_header;    /* and a column for the key */
    uint64_t lines;     /* that could be read */
    uint64_t malformed; /* that could not */
    uint64_t keyless;   /* lines without a key that met no job */
    uint64_t strange;   /* lines whose value of --match no job has */
    uint64_t by_key;    /* lines that met a job by their key */
    uint64_t missing;   /* delivered before it ends, and not in it */
    bool unended;       /* the last line of CSV has no newline */
    bool unsettled;     /* how long calls may be on their way is not known */
};

/* NULL: what is not in the export did not happen. Else why absence proves
 * nothing, in words. */
const char *lk_absence_fault(const struct lk_coverage *coverage);

#endif
