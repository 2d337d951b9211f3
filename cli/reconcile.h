/* reconcile.h - what the parts of `latchkey reconcile` share. */
#ifndef LK_CLI_RECONCILE_H
#define LK_CLI_RECONCILE_H

#include "cli/compare.h"
#include "cli/csv.h"
#include "cli/job_view.h"
#include "cli/move.h"
#include "lib/json.h"

#include <stdio.h>
#include <sys/stat.h>

/* ---- The export (reconcile_export.c) ----------------------------------------
 */

enum {
    LK_COLUMN_KEY,
    LK_COLUMN_ID,
    LK_COLUMN_TIME,
    LK_COLUMN_VALUES, /* the first that is compared */
    LK_COLUMNS = LK_COLUMN_VALUES + LK_PAIRS_MAX,
};

struct lk_column {
    const char *name; /* NULL: there is none */
    bool needed;      /* it was asked for by name */
    int index;        /* in a row of CSV, or among the picks; -1: none */
};

struct lk_export {
    const char *path;
    int fd;
    struct stat info;
    bool json; /* JSON lines, else CSV */
    struct lk_csv csv;
    size_t fields; /* of the header */
    struct lk_picks picks;
    struct lk_column columns[LK_COLUMNS];
    size_t column_count;
    struct lk_buf buf;
    size_t start;    /* of what is unread in buf */
    uint64_t offset; /* of `start` in the file */
    bool at_end;
    bool unended;  /* the last row of CSV has no newline: perhaps cut off */
    uint64_t line; /* the number of the next row's first line */
};

struct lk_row {
    struct lk_slice cells[LK_COLUMNS]; /* by column; empty: none */
    uint64_t place;
    uint64_t line;
    const char *fault; /* it cannot be understood: why */
};

/* Opens it and reads the header. Complains. */
LK_MUST_CHECK enum lk_exit lk_export_open(struct lk_cli *cli,
                                          struct lk_export *export);
/* The next row, good or not; *more is false at the end. */
LK_MUST_CHECK enum lk_exit lk_export_next(struct lk_export *export,
                                          struct lk_row *row, bool *more);
/* Reads the row at `place` again. */
LK_MUST_CHECK enum lk_exit lk_export_again(struct lk_export *export,
                                           uint64_t place, struct lk_row *row);
/* Complains if the file has changed since it was opened. */
LK_MUST_CHECK enum lk_exit lk_export_check(const struct lk_export *export);
void lk_export_close(struct lk_export *export);

/* ---- One run ---------------------------------------------------------------
 */

/* What is reported of a job: these texts are stored with it, and after them the
 * values that are compared. */
enum {
    LK_TEXT_REFERENCE,
    LK_TEXT_TENANT,
    LK_TEXT_NAME,
    LK_TEXT_KEY,
    LK_TEXT_ID,
    LK_TEXT_MATCH, /* what --match takes in place of the key */
    LK_TEXT_VALUES,
    LK_TEXTS = LK_TEXT_VALUES + LK_PAIRS_MAX,
};

struct lk_pair {
    const char *text; /* as it was given: here=there */
    char *here;
    const char *there;
};

/* Where --match finds a reference of ours in a job. */
enum lk_match_place { LK_MATCH_BODY, LK_MATCH_FORM, LK_MATCH_HEADER };

/* The outcome of a resolution sent to the daemon. */
enum lk_resolution { LK_NOT_TRIED, LK_RESOLVED, LK_REFUSED };

struct lk_run {
    struct lk_cli *cli;
    const char *target;
    bool apply;
    uint64_t since_ms; /* 0: any time */
    uint64_t until_ms;
    uint64_t complete_ms;
    uint64_t settle_ms;    /* a call may be on its way for that long */
    uint64_t forgotten_ms; /* jobs that ended until then may be gone; 0: none */
    uint64_t memory;
    struct lk_pair pairs[LK_PAIRS_MAX];
    size_t pair_count;
    struct lk_pair match; /* text NULL: jobs and lines meet by their keys */
    enum lk_match_place match_place;
    uint8_t key[LK_SIPHASH_KEY]; /* of all hashes */
    struct lk_export export;
    struct lk_comparison *comparison;
    bool proven; /* absence proves something: known once all is compared */
    bool ended;  /* all is compared, and the deferred jobs follow */
    struct lk_bar bar;
    enum lk_exit failed; /* why a call from the join ended it */
    uint64_t acted_ms;   /* when a resolution was last sent to the daemon */
    /* What came out */
    struct lk_coverage coverage;
    uint64_t jobs;
    uint64_t counts[LK_CLASSES];
    uint64_t resolved[LK_CLASSES];
    uint64_t refused;
    uint64_t told;  /* findings */
    uint64_t shown; /* of these, to people */
    bool probed;
    uint64_t probe_happened;
    uint64_t probe_absent;
    uint64_t probe_open;
    FILE *report;
    const char *report_path;
    struct lk_doc doc;   /* --json */
    struct lk_buf lines; /* for people, the first ones */
};

struct lk_hash128 lk_hash_text(const struct lk_run *run, struct lk_slice text);

/* What comes next takes long, and the daemon may close an idle connection: the
 * next call connects again. */
void lk_run_disconnect(struct lk_run *run);

/* Resolves by proof (reconcile_report.c). */
LK_MUST_CHECK enum lk_exit lk_resolve_by_proof(struct lk_run *run,
                                               enum lk_class of,
                                               const struct lk_finding *finding,
                                               enum lk_resolution *outcome);

/* The report (reconcile_report.c). */
LK_MUST_CHECK enum lk_exit lk_report_open(struct lk_run *run);
LK_MUST_CHECK enum lk_exit lk_report_finding(struct lk_run *run,
                                             enum lk_class of,
                                             const struct lk_finding *finding,
                                             enum lk_resolution outcome);
LK_MUST_CHECK enum lk_exit lk_report_malformed(struct lk_run *run,
                                               uint64_t line,
                                               const char *fault);
/* The counts; LK_EXIT_NO if something is open. */
LK_MUST_CHECK enum lk_exit lk_report_end(struct lk_run *run);

#endif
