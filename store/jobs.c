/*
 * jobs.c - what the jobs of all stores share: words, leased jobs, and the
 * Idempotency-Key of a job (HMAC-SHA-256 over what names it).
 *
 * The key uses the plain SHA256_ functions: OpenSSL 3 prefers EVP, which looks
 * the algorithm up and allocates each time, and took a tenth of a delivery.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "store/jobs.h"
#include "store/fault.h"
#include "store/store.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

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

struct lk_job *lk_job_batch_add(struct lk_job_batch *job_batch)
{
    if (job_batch->job_count == job_batch->job_cap) {
        size_t cap = job_batch->job_cap ? 2 * job_batch->job_cap : 16;
        struct lk_job *jobs = realloc(job_batch->jobs, cap * sizeof(*jobs));
        if (!jobs) {
            return NULL;
        }
        job_batch->jobs = jobs;
        job_batch->job_cap = cap;
    }
    struct lk_job *job = &job_batch->jobs[job_batch->job_count++];
    *job = (struct lk_job){0};
    return job;
}

void lk_job_batch_clear(struct lk_job_batch *job_batch)
{
    for (size_t i = 0; i < job_batch->job_count; i++) {
        lk_job_free(&job_batch->jobs[i]);
    }
    free(job_batch->jobs);
    job_batch->jobs = NULL;
    job_batch->job_count = job_batch->job_cap = 0;
}

void lk_job_batch_fault_points(const struct lk_job_batch *job_batch)
{
    bool called = false;

    for (size_t i = 0; i < job_batch->mark_count; i++) {
        called |= job_batch->marks[i].called;
    }
    if (job_batch->job_count) {
        lk_fault_point("after_lease");
    }
    if (called) {
        lk_fault_point("after_called");
    }
    if (job_batch->end_count) {
        lk_fault_point("after_end");
    }
}

const char *lk_target_name_fault(struct lk_slice name)
{
    if (!name.len || name.len > LK_TARGET_NAME_MAX) {
        return "must have 1 to 64 characters";
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = name.data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!plain && (i == 0 || !c || !strchr("-_.", c))) {
            return "must be made of a-z, 0-9, '-', '_' and '.'";
        }
    }
    return NULL;
}

/* ---- the Idempotency-Key ------------------------------------------------ */

enum { INNER = 0x36, OUTER = 0x5c };

static void begin(SHA256_CTX *digest, const uint8_t *secret, uint8_t pad)
{
    uint8_t block[SHA256_CBLOCK];

    memset(block, pad, sizeof(block));
    for (size_t i = 0; i < LK_REFERENCE_KEY; i++) {
        block[i] ^= secret[i];
    }
    SHA256_Init(digest);
    SHA256_Update(digest, block, sizeof(block));
    explicit_bzero(block, sizeof(block));
}

/* Decimal digits, and what ends them. */
static void add_number(SHA256_CTX *digest, uint64_t number, char end)
{
    char text[24];
    size_t at = sizeof(text);

    text[--at] = end;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    SHA256_Update(digest, text + at, sizeof(text) - at);
}

/* Each part with its length before it: no two lists of parts look alike. */
static void add_part(SHA256_CTX *digest, struct lk_slice part)
{
    add_number(digest, part.len, ':');
    SHA256_Update(digest, part.data, part.len);
}

void lk_job_key(const uint8_t secret[LK_REFERENCE_KEY],
                const struct lk_job *job, char key[LK_JOB_KEY + 1])
{
    static const char digits[] = "0123456789abcdef";
    static const char head[] = "latchkey job 1 ";
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA256_CTX digest;

    begin(&digest, secret, INNER);
    SHA256_Update(&digest, head, sizeof(head) - 1);
    add_number(&digest, job->generation, ' ');
    add_part(&digest, job->operation.tenant);
    add_part(&digest, job->operation.scope);
    add_part(&digest, job->operation.key);
    add_part(&digest, job->name);
    SHA256_Final(hash, &digest);
    begin(&digest, secret, OUTER);
    SHA256_Update(&digest, hash, sizeof(hash));
    SHA256_Final(hash, &digest);
    explicit_bzero(&digest, sizeof(digest));
    for (int i = 0; i < LK_JOB_KEY; i++) {
        key[i] = digits[(hash[i / 2] >> (i % 2 ? 0 : 4)) & 15];
    }
    key[LK_JOB_KEY] = 0;
}
