/* listing.c - shows what comes in pages, as a table or as one JSON document. */
#include "cli/listing.h"

enum { DEFAULT_LIMIT = 100 };

static enum lk_exit read_limits(struct lk_listing *list)
{
    const struct lk_args *args = &list->cli->args;
    enum lk_exit result;

    if (lk_args_flag(args, "all") && lk_args_flag(args, "limit")) {
        return lk_complain_usage(list->cli,
                                 "--all and --limit exclude each other");
    }
    list->left = lk_args_flag(args, "all") ? UINT64_MAX : DEFAULT_LIMIT;
    result = lk_args_number(args, "limit", 1, UINT32_MAX, &list->left);
    if (list->most != 0 && list->left > list->most) {
        list->left = list->most;
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_number(args, "cursor", 0, INT64_MAX, &list->cursor);
    }
    return result;
}

void lk_listing_show(struct lk_listing *list, const struct lk_reply *row)
{
    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_members(&list->doc, row);
        lk_doc_end_object(&list->doc);
    } else {
        if (list->shown == 0) {
            list->put_heading(&list->table);
        }
        list->put_row(&list->table, row, list->cli->now_ms);
    }
    list->shown++;
    list->left -= list->left > 0;
    list->alarms += list->needs_person(row, list->cli->now_ms);
}

static enum lk_exit show_page(struct lk_listing *list)
{
    enum lk_exit result = list->page(
        list, list->left > LK_LISTING_PAGE ? LK_LISTING_PAGE : list->left);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_table_flush(&list->table, &list->cli->out);
    return lk_cli_flush(list->cli);
}

enum lk_exit lk_listing_run(struct lk_listing *list)
{
    enum lk_exit result = read_limits(list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_array(&list->doc, list->title);
    }
    /* A page may be short, even empty, and still not be the last one. */
    do {
        result = show_page(list);
    } while (result == LK_EXIT_DONE && list->cursor != 0 && list->left > 0);
    if (result == LK_EXIT_DONE && list->cli->json) {
        lk_doc_end_array(&list->doc);
        lk_doc_integer(&list->doc, "next-cursor", (int64_t)list->cursor);
        lk_doc_end_object(&list->doc);
    }
    return result;
}

void lk_listing_end(const struct lk_listing *list, const char *noun,
                    const char *alarm)
{
    lk_hint(list->cli, "%llu %s%s, %llu %s%s", (unsigned long long)list->shown,
            noun, list->shown == 1 ? "" : "s", (unsigned long long)list->alarms,
            alarm, list->cursor == 0 ? "" : "; there are more:");
    if (list->cursor != 0) {
        lk_hint(list->cli, "--all, or go on with --cursor %llu",
                (unsigned long long)list->cursor);
    }
}
