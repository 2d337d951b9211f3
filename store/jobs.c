/* jobs.c - what every store's jobs have in common. */
#include "store/fault.h"
#include "store/store.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
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

/* Each part with its length before it: no two lists of parts look alike. */
static enum lk_status add_part(struct lk_buf *text, struct lk_slice part)
{
    enum lk_status status = latchkey_buf_printf(text, "%zu:", part.len);

    return status ? status : latchkey_buf_add(text, part.data, part.len);
}

enum lk_status lk_job_key(const uint8_t secret[LK_REFERENCE_KEY],
                          const struct lk_job *job, char key[LK_JOB_KEY + 1])
{
    static const char digits[] = "0123456789abcdef";
    const struct lk_slice parts[] = {job->operation.tenant,
                                     job->operation.scope, job->operation.key,
                                     job->name};
    struct lk_buf text = {0};
    unsigned char hash[EVP_MAX_MD_SIZE];
    enum lk_status status = latchkey_buf_printf(
        &text, "latchkey job 1 %llu ", (unsigned long long)job->generation);

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !status; i++) {
        status = add_part(&text, parts[i]);
    }
    if (!status &&
        !HMAC(EVP_sha256(), secret, LK_REFERENCE_KEY,
              (const unsigned char *)text.data, text.len, hash, NULL)) {
        status = LK_NOMEM;
    }
    for (int i = 0; i < LK_JOB_KEY && !status; i++) {
        key[i] = digits[(hash[i / 2] >> (i % 2 ? 0 : 4)) & 15];
    }
    key[status ? 0 : LK_JOB_KEY] = 0;
    latchkey_buf_free(&text);
    return status;
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
