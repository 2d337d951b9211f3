/* job_view.h - what the commands about jobs share. */
#ifndef LK_JOB_VIEW_H
#define LK_JOB_VIEW_H

#include "cli/cli.h"

/* ---- Asking for them (job_view.c)
 * ---------------------------------------------
 */

/* Which jobs; what is NULL or 0 does not matter. */
struct lk_jobs_filter {
    const char *state; /* or "unfinished" */
    const char *target;
    const char *tenant;
    const char *reference;
    const char *provider_id;
    const char *reason; /* part of it, in any case; looked at here */
    uint64_t older_ms;
    uint64_t since_ms;
    uint64_t until_ms;
    bool whole; /* with headers, bodies and responses */
};

/* From --target, --tenant, --reference, --provider-id, --reason, --older,
 * --since, --until, as far as the command has them. */
LK_MUST_CHECK enum lk_exit lk_jobs_filter_read(const struct lk_cli *cli,
                                               struct lk_jobs_filter *filter);
/* One page from *cursor on, which moves; 0: that was the last one. A page may
 * be short, even empty, and not be the last. */
LK_MUST_CHECK enum lk_exit lk_jobs_page(struct lk_cli *cli,
                                        const struct lk_jobs_filter *filter,
                                        uint64_t limit, uint64_t *cursor,
                                        const struct lk_reply **rows);
/* Whether the job's reason contains `reason` of the filter. */
bool lk_jobs_match(const struct lk_jobs_filter *filter,
                   const struct lk_reply *job);
/* A job's id from the command line; complains. */
LK_MUST_CHECK enum lk_exit lk_job_id(const struct lk_cli *cli, const char *text,
                                     uint64_t *id);
/* The job with its history; with `bodies` also these, which needs --why.
 * LK_EXIT_NO: there is none, and it has complained. */
LK_MUST_CHECK enum lk_exit lk_job_fetch(struct lk_cli *cli, uint64_t id,
                                        bool bodies,
                                        const struct lk_reply **job);

/* ---- Showing them ---------------------------------------------------------
 */

enum { LK_JOBS_COLUMNS = 10 };

/* How their table starts. */
#define LK_JOBS_TABLE(cli)                                                     \
    {                                                                          \
        .columns = LK_JOBS_COLUMNS, .colour = (cli)->colour,                   \
        .right = 1U << 0 | 1U << 2 | 1U << 3 | 1U << 8,                        \
        .rigid = 1U << 1 | 1U << 7, .spare = 1U << 3 | 1U << 6 | 1U << 8,      \
        .legible = 16                                                          \
    }

void lk_jobs_put_heading(struct lk_table *table);
void lk_jobs_put_row(struct lk_table *table, const struct lk_reply *job,
                     uint64_t now_ms);
/* All of the job with this id, or only its --body or --answer. */
LK_MUST_CHECK enum lk_exit lk_job_show(struct lk_cli *cli, const char *text);

/* A list in pages, with --limit, --all and --cursor; --check: LK_EXIT_NO if
 * there was any (job_view.c). */
LK_MUST_CHECK enum lk_exit lk_jobs_list(struct lk_cli *cli,
                                        const struct lk_jobs_filter *filter);

/* ---- Orders (job_act.c) -------------------------------------------------
 */

/* One job, at the attempt at which it was seen. */
struct lk_job_seen {
    uint64_t id;
    uint64_t attempt;
};

struct lk_action_counts {
    uint64_t done;
    uint64_t moved; /* it was in another state by then */
    uint64_t gone;
    struct lk_buf refusal; /* the first one's words; to be freed */
};

/*
 * Sends JOB `verb` for all of them, some at a time, with the words of `tail`
 * behind: WHO, WHY and what else the action takes. Draws a bar on a terminal.
 */
LK_MUST_CHECK enum lk_exit lk_job_actions(struct lk_cli *cli, const char *verb,
                                          const struct lk_job_seen *items,
                                          size_t count,
                                          const struct lk_words *tail,
                                          struct lk_action_counts *counts);

/* `latchkey resolve --job ID`. */
LK_MUST_CHECK enum lk_exit lk_resolve_job(struct lk_cli *cli);

#endif
