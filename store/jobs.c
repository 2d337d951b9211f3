/* jobs.c - what every store's jobs have in common. */
#include "store/fault.h"
#include "store/store.h"

#include <stdlib.h>

const char *lk_job_state_word(enum lk_job_state state)
{
    switch (state) {
#define X(name, word)                                                          \
    case LK_JOB_##name:                                                        \
        return word;
        LK_JOB_STATE_MAP(X)
#undef X
    case LK_JOB_STATES:
        break;
    }
    return "?";
}

bool lk_job_state_parse(struct lk_slice word, enum lk_job_state *state)
{
#define X(name, text)                                                          \
    if (latchkey_slice_equal(word, LK_SLICE(text))) {                          \
        *state = LK_JOB_##name;                                                \
        return true;                                                           \
    }
    LK_JOB_STATE_MAP(X)
#undef X
    return false;
}

void lk_job_free(struct lk_job *job)
{
    latchkey_buf_free(&job->text);
    *job = (struct lk_job){0};
}

bool lk_job_is_forgotten(bool sent, uint64_t sent_ms, uint64_t created_ms,
                         uint64_t life_ms, uint64_t now_ms)
{
    uint64_t from_ms = sent_ms ? sent_ms : created_ms;

    return sent && life_ms && now_ms > from_ms && now_ms - from_ms >= life_ms;
}

struct lk_job *lk_work_add(struct lk_work *work)
{
    if (work->job_count == work->job_cap) {
        size_t cap = work->job_cap ? 2 * work->job_cap : 16;
        struct lk_job *jobs = realloc(work->jobs, cap * sizeof(*jobs));
        if (!jobs) {
            return NULL;
        }
        work->jobs = jobs;
        work->job_cap = cap;
    }
    struct lk_job *job = &work->jobs[work->job_count++];
    *job = (struct lk_job){0};
    return job;
}

void lk_work_clear(struct lk_work *work)
{
    for (size_t i = 0; i < work->job_count; i++) {
        lk_job_free(&work->jobs[i]);
    }
    free(work->jobs);
    work->jobs = NULL;
    work->job_count = work->job_cap = 0;
}

void lk_work_fault_points(const struct lk_work *work)
{
    bool called = false;

    for (size_t i = 0; i < work->mark_count; i++) {
        called |= work->marks[i].called;
    }
    if (work->job_count) {
        lk_fault_point("after_lease");
    }
    if (called) {
        lk_fault_point("after_called");
    }
    if (work->end_count) {
        lk_fault_point("after_end");
    }
}
