/* listing.h - lists that come in pages, with --limit, --all and --cursor. */
#ifndef LK_LISTING_H
#define LK_LISTING_H

#include "cli/cli.h"

enum { LK_LISTING_PAGE = 1000 };

/* Filled by the command, up to `doc`. */
struct lk_listing {
    struct lk_cli *cli;
    const char *title; /* of the array in JSON */
    void (*put_heading)(struct lk_table *table);
    void (*put_row)(struct lk_table *table, const struct lk_reply *row,
                    uint64_t now_ms);
    bool (*needs_person)(const struct lk_reply *row, uint64_t now_ms);
    /* Asks for at most `limit` rows from list->cursor on, moves the cursor (0:
     * that was the last page) and shows them. */
    enum lk_exit (*page)(struct lk_listing *list, uint64_t limit);
    const void *context;
    uint64_t most; /* rows, whatever --limit and --all say; 0: any number */
    struct lk_table table;
    struct lk_doc doc;

    uint64_t left; /* how many are still wanted */
    uint64_t cursor;
    uint64_t shown;
    uint64_t alarms; /* of these, for a person */
};

/* One row, of a page. */
void lk_listing_show(struct lk_listing *list, const struct lk_reply *row);
/* All pages. Complains unless it returns LK_EXIT_DONE. */
LK_MUST_CHECK enum lk_exit lk_listing_run(struct lk_listing *list);
/* "3 jobs, 1 dead or uncertain", and how to see more. */
void lk_listing_end(const struct lk_listing *list, const char *noun,
                    const char *alarm);

#endif
