/* probe_scan.c - reads what is uncertain, a page at a time. */
#include "courier/probe_parts.h"

void lk_probe_page_clear(struct lk_probe_page *page)
{
    for (size_t i = 0; i < page->count; i++) {
        latchkey_buf_free(&page->subjects[i].text);
    }
    page->count = 0;
    page->next = 0;
}

/* Copies the texts that the slices show, which are somebody else's, and lets
 * them point to the copy. */
static enum lk_status own_texts(struct lk_probe_subject *subject)
{
    struct lk_slice *slices[] = {&subject->name.tenant, &subject->name.scope,
                                 &subject->name.key,    &subject->job,
                                 &subject->path,        &subject->provider_id};
    const size_t count = sizeof(slices) / sizeof(slices[0]);
    size_t total = 1;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&subject->text, total);
    for (size_t i = 0; i < count && !status; i++) {
        const char *copy = subject->text.data + subject->text.len;
        status = latchkey_buf_add_slice(&subject->text, *slices[i]);
        slices[i]->data = copy;
    }
    return status;
}

static bool add(struct lk_probe_page *page, struct lk_probe_subject subject)
{
    struct lk_probe_subject *into = &page->subjects[page->count];

    *into = subject;
    into->text = (struct lk_buf){0};
    if (own_texts(into)) {
        latchkey_buf_free(&into->text);
        return false;
    }
    page->count++;
    return page->count < LK_PROBE_PAGE;
}

static void count(struct lk_probe_tally *tally, uint64_t since_ms)
{
    tally->count++;
    if (!tally->oldest_ms || since_ms < tally->oldest_ms) {
        tally->oldest_ms = since_ms;
    }
}

/* ---- jobs ---------------------------------------------------------------- */

struct job_rows {
    struct lk_probe_page *page;
    struct lk_probe_place *place;
};

static bool take_job(void *context, const struct lk_job *job)
{
    struct job_rows *rows = context;

    return add(rows->page, (struct lk_probe_subject){
                               .place = rows->place,
                               .id = job->id,
                               .fence = job->attempts,
                               .since_ms = job->ended_ms,
                               .number = job->number,
                               .generation = job->generation,
                               .name = job->operation,
                               .job = job->name,
                               .path = job->path,
                               .provider_id = job->provider_id,
                           });
}

enum lk_status lk_probe_read_jobs(struct lk_prober *prober,
                                  struct lk_probe_place *place, uint64_t cursor)
{
    struct lk_store *store = prober->setup.store;
    struct job_rows rows = {&prober->page, place};
    const struct lk_jobs_query query = {
        .state = LK_JOB_UNCERTAIN,
        .target = latchkey_slice(place->target->name),
        .cursor = cursor,
        .limit = LK_PROBE_PAGE,
    };

    lk_probe_page_clear(&prober->page);
    uint64_t began = lk_probe_now_ns();
    enum lk_status status =
        store->class->jobs(store, &query, take_job, &rows, &prober->page.next);
    prober->read_ns += lk_probe_now_ns() - began;
    return status;
}

/* ---- operations ---------------------------------------------------------- */

static struct lk_probe_place *place_of(struct lk_prober *prober,
                                       const struct lk_operation *record)
{
    for (size_t i = 0; i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        if (place->route && lk_route_matches(place->route, record->name.tenant,
                                             record->name.scope)) {
            return place;
        }
    }
    return NULL;
}

static bool take_record(void *context, const struct lk_operation *record)
{
    struct lk_prober *prober = context;
    struct lk_probe_place *place = place_of(prober, record);

    if (prober->counting && place) {
        count(&place->tally, record->since_ms);
    }
    return !place || add(&prober->page, (struct lk_probe_subject){
                                            .place = place,
                                            .id = record->number,
                                            .fence = record->token,
                                            .since_ms = record->since_ms,
                                            .number = record->number,
                                            .generation = record->generation,
                                            .name = record->name,
                                        });
}

enum lk_status lk_probe_read_operations(struct lk_prober *prober,
                                        uint64_t cursor)
{
    struct lk_store *store = prober->setup.store;
    const struct lk_list_query query = {
        .state = LK_STATE_UNCERTAIN,
        .cursor = cursor,
        .limit = LK_PROBE_PAGE,
    };

    lk_probe_page_clear(&prober->page);
    uint64_t began = lk_probe_now_ns();
    enum lk_status status = store->class->list(store, &query, take_record,
                                               prober, &prober->page.next);
    prober->read_ns += lk_probe_now_ns() - began;
    return status;
}
