/* reconcile_apply.c - resolves jobs by proof. */
#include "cli/reconcile.h"
#include "lib/time.h"

#include <string.h>
#include <time.h>

#define WHO "latchkey reconcile"

enum { IDLE_MS = 1000, NAME_MOST = 200, MATCH_MOST = 32 };

void lk_run_disconnect(struct lk_run *run)
{
    latchkey_client_close(run->cli->client);
    run->cli->client = NULL;
}

/* Between two orders much may have been compared. */
static void refresh_connection(struct lk_run *run)
{
    uint64_t now_ms = lk_monotonic_ms();

    if (now_ms - run->ordered_ms > IDLE_MS) {
        lk_run_disconnect(run);
    }
    run->ordered_ms = now_ms;
}

/* A path may be longer than a reason may be, even escaped; a name is not. */
static struct lk_slice base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct lk_slice name = latchkey_slice(slash == NULL ? path : slash + 1);

    name.len = name.len > NAME_MOST ? NAME_MOST : name.len;
    return name;
}

/* The daemon takes no other id; without one it is proof all the same. */
static bool is_id(struct lk_slice id)
{
    for (size_t i = 0; i < id.len; i++) {
        if (id.data[i] <= ' ' || id.data[i] > '~') {
            return false;
        }
    }
    return id.len > 0 && id.len <= LK_PROVIDER_ID_MAX;
}

/* The reason that the audit log keeps. */
static void put_why(struct lk_run *run, enum lk_class of,
                    const struct lk_finding *finding, struct lk_buf *why)
{
    char until[LK_TIMESTAMP_TEXT + 1];

    if (of == LK_CLASS_HAPPENED) {
        lk_put(why, "it is in line %llu of ",
               (unsigned long long)finding->there->number);
        lk_put_text(why, base_name(run->export.path));
        if (run->match.text != NULL && finding->by_key) {
            struct lk_slice match = latchkey_slice(run->match.text);

            match.len = match.len > MATCH_MOST ? MATCH_MOST : match.len;
            lk_put(why, ", by ");
            lk_put_text(why, match);
        }
        return;
    }
    latchkey_timestamp_text(run->complete_ms, until);
    lk_put(why, "it is not in ");
    lk_put_text(why, base_name(run->export.path));
    lk_put(why, ", which is complete until %s", until);
}

/* The line that is the proof, read again: it must still be the same. */
static enum lk_exit read_proof(struct lk_run *run, const struct lk_item *there,
                               struct lk_row *row)
{
    enum lk_exit result = lk_export_again(&run->export, there->place, row);
    struct lk_slice key = row->cells[LK_COLUMN_KEY];
    struct lk_slice id = row->cells[LK_COLUMN_ID];

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (row->fault != NULL ||
        (key.len > 0 &&
         !lk_hash128_equal(lk_hash_text(run, key), there->key)) ||
        (id.len > 0 && !lk_hash128_equal(lk_hash_text(run, id), there->id))) {
        lk_complain("%s has changed while it was compared", run->export.path);
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* A job that has moved on since it was read is refused: its attempt is the
 * fence. */
enum lk_exit lk_resolve_by_proof(struct lk_run *run, enum lk_class of,
                                 const struct lk_finding *finding,
                                 enum lk_resolution *outcome)
{
    struct lk_order_item item = {finding->here->number, finding->here->attempt};
    struct lk_order_counts counts = {0};
    struct lk_words words = {0};
    struct lk_buf why = {0};
    struct lk_row row = {0};
    enum lk_exit result = LK_EXIT_DONE;

    put_why(run, of, finding, &why);
    lk_words_add(&words, "WHO");
    lk_words_add(&words, WHO);
    lk_words_add(&words, "WHY");
    lk_words_add_slice(&words, latchkey_buf_slice(&why));
    if (of == LK_CLASS_HAPPENED) {
        result = read_proof(run, finding->there, &row);
        if (is_id(row.cells[LK_COLUMN_ID])) {
            lk_words_add(&words, "PROVIDER");
            lk_words_add_slice(&words, row.cells[LK_COLUMN_ID]);
        }
    }
    if (result == LK_EXIT_DONE) {
        refresh_connection(run);
        result = lk_job_orders(run->cli,
                               of == LK_CLASS_HAPPENED ? "DELIVERED" : "AGAIN",
                               &item, 1, &words, &counts);
    }
    *outcome = counts.done > 0 ? LK_RESOLVED : LK_REFUSED;
    latchkey_buf_free(&counts.refusal);
    latchkey_buf_free(&why);
    return result;
}
