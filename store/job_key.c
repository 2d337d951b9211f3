/*
 * job_key.c - the Idempotency-Key of a job: HMAC-SHA-256 of what names it.
 *
 * By the plain SHA256_ functions: OpenSSL 3 prefers EVP, which looks the
 * algorithm up and allocates each time, and took a tenth of a delivery.
 */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "store/jobs.h"

#include <openssl/sha.h>
#include <string.h>

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
