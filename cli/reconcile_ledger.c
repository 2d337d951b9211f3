/* reconcile_ledger.c - our side: all jobs of a target, from the daemon. */
#include "cli/reconcile.h"

#include "lib/form.h"
#include "lib/http_syntax.h"

#include <string.h>

enum {
    PAGE = 1000,
    PAGE_WHOLE = 50, /* the first one; then by how large jobs are */
    PAGE_BYTES = 4 << 20,
};

struct lk_hash128 lk_hash_text(const struct lk_run *run, struct lk_slice text)
{
    struct lk_siphash state;

    lk_siphash_init(&state, run->key);
    lk_siphash_update(&state, text.data, text.len);
    return lk_siphash_final128(&state);
}

/* The value of the one header of that name; empty: there is none, or two. */
static struct lk_slice find_header(struct lk_slice lines, const char *name)
{
    struct lk_slice found = {0};
    size_t count = 0;

    while (lines.len > 0) {
        const char *end = memchr(lines.data, '\n', lines.len);
        size_t length =
            end == NULL ? lines.len : (size_t)(end - lines.data) + 1;
        const char *colon = memchr(lines.data, ':', length);
        size_t before = colon == NULL ? 0 : (size_t)(colon - lines.data);

        if (colon != NULL &&
            lk_compare_lower((struct lk_slice){lines.data, before},
                             latchkey_slice(name)) == 0) {
            found = (struct lk_slice){colon + 1, length - before - 1};
            count++;
        }
        lines = (struct lk_slice){lines.data + length, lines.len - length};
    }
    while (found.len > 0 && (found.data[found.len - 1] == '\n' ||
                             found.data[found.len - 1] == '\r')) {
        found.len--;
    }
    return count == 1 ? lk_trim(found) : (struct lk_slice){0};
}

/* What --match names; empty: the job has none. `scratch` may hold it. */
static struct lk_slice find_match(const struct lk_run *run,
                                  const struct lk_picks *picks, bool json,
                                  const struct lk_reply *job,
                                  struct lk_buf *scratch)
{
    switch (run->match_place) {
    case LK_MATCH_HEADER:
        return find_header(lk_field_text(job, "headers"), run->match.here);
    case LK_MATCH_FORM:
        scratch->len = 0;
        return lk_form_find(lk_field_text(job, "body"),
                            latchkey_slice(run->match.here), scratch) == LK_OK
                   ? lk_trim(latchkey_buf_slice(scratch))
                   : (struct lk_slice){0};
    default:
        return json ? lk_trim(picks->picks[run->pair_count].value)
                    : (struct lk_slice){0};
    }
}

/* The values of its body that are compared, and what it meets lines by. */
static void take_values(struct lk_run *run, struct lk_picks *picks,
                        const struct lk_reply *job, struct lk_item *item,
                        struct lk_slice *texts, struct lk_buf *scratch)
{
    bool json = lk_picks_read(picks, lk_field_text(job, "body")) == LK_OK;
    struct lk_slice meets = texts[LK_TEXT_KEY];

    for (size_t i = 0; i < run->pair_count; i++) {
        struct lk_slice *value = &texts[LK_TEXT_VALUES + i];

        *value = json ? picks->picks[i].value : (struct lk_slice){0};
        lk_must(lk_value_hash(run->key, *value, &item->values[i]));
    }
    if (run->match.text != NULL) {
        meets = find_match(run, picks, json, job, scratch);
        texts[LK_TEXT_MATCH] = meets;
    }
    if (meets.len > 0) {
        item->flags |= LK_ITEM_KEY;
        item->key = lk_hash_text(run, meets);
    }
}

static uint16_t time_flags(const struct lk_run *run, const struct lk_reply *job)
{
    uint64_t created_ms = lk_field_number(job, "created_ms");
    uint64_t ended_ms = lk_field_number(job, "ended_ms");
    uint64_t last_ms = ended_ms > created_ms ? ended_ms : created_ms;
    uint16_t flags = 0;

    if (created_ms >= run->since_ms &&
        (run->until_ms == 0 || created_ms < run->until_ms)) {
        flags |= LK_ITEM_WINDOW;
    }
    if (run->complete_ms != 0) {
        flags |= last_ms >= run->complete_ms ? LK_ITEM_LATER : 0;
        flags |=
            last_ms + run->settle_ms < run->complete_ms ? LK_ITEM_SETTLED : 0;
    }
    return flags;
}

static enum lk_exit add_job(struct lk_run *run, struct lk_picks *picks,
                            const struct lk_reply *job)
{
    static const char *const names[] = {"reference", "tenant", "name",
                                        "downstream_key", "provider_id"};
    struct lk_slice texts[LK_TEXTS] = {{0}};
    struct lk_item item = {
        .number = lk_field_number(job, "id"),
        .attempt = (uint32_t)lk_field_number(job, "attempts"),
        .flags = time_flags(run, job),
    };
    struct lk_buf scratch = {0};
    enum lk_job_state state;
    enum lk_status status;

    if (!lk_job_state_parse(lk_field_text(job, "state"), &state)) {
        return lk_complain_reply(run->cli);
    }
    item.state = (uint16_t)state;
    for (size_t i = 0; i < LK_TEXT_MATCH; i++) {
        texts[i] = lk_field_text(job, names[i]);
    }
    if (texts[LK_TEXT_ID].len > 0) {
        item.flags |= LK_ITEM_ID;
        item.id = lk_hash_text(run, texts[LK_TEXT_ID]);
    }
    take_values(run, picks, job, &item, texts, &scratch);
    status = lk_spool_add(&run->spool, texts, LK_TEXT_VALUES + run->pair_count,
                          &item.place);
    latchkey_buf_free(&scratch);
    if (status == LK_OK) {
        status = lk_reconcile_add(run->reconcile, LK_HERE, &item);
    }
    run->jobs++;
    if (status != LK_OK) {
        lk_complain("cannot write a temporary file: %s",
                    latchkey_status_text(status));
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* As many as fit, by what the last page took. */
static uint64_t next_limit(const struct lk_reply *rows, uint64_t limit)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < rows->count; i++) {
        const struct lk_reply *job = &rows->elements[i];

        for (size_t k = 0; k < job->count; k++) {
            bytes += job->elements[k].text.len + 64;
        }
    }
    if (rows->count > 0) {
        limit = PAGE_BYTES / (bytes / rows->count + 1);
    }
    return limit < 1 ? 1 : limit > PAGE ? PAGE : limit;
}

enum lk_exit lk_ledger_read(struct lk_run *run)
{
    struct lk_jobs_filter filter = {
        .target = run->target,
        .whole = run->pair_count > 0 || run->match.text != NULL,
    };
    struct lk_picks picks = {0};
    uint64_t limit = filter.whole ? PAGE_WHOLE : PAGE;
    uint64_t cursor = 0;
    enum lk_exit result;

    for (size_t i = 0; i < run->pair_count; i++) {
        /* Looked at when the options were read. */
        lk_must(lk_picks_add(&picks, latchkey_slice(run->pairs[i].here)));
    }
    if (run->match.text != NULL && run->match_place == LK_MATCH_BODY) {
        lk_must(lk_picks_add(&picks, latchkey_slice(run->match.here)));
    }
    do {
        const struct lk_reply *rows = NULL;

        result = lk_jobs_page(run->cli, &filter, limit, &cursor, &rows);
        for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
            result = add_job(run, &picks, &rows->elements[i]);
        }
        if (result == LK_EXIT_DONE && filter.whole) {
            limit = next_limit(rows, limit);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    lk_picks_free(&picks);
    return result;
}
