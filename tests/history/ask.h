/* ask.h - the commands of race.c and the answers they carry. */
#ifndef LK_HISTORY_ASK_H
#define LK_HISTORY_ASK_H

#include "tests/history/history.h"
#include "tests/history/wire.h"

enum { BODY_MAX = 70000 };

/* A command: what the history will say of it, and the nonce of its answer. */
struct op {
    struct history_record record;
    uint64_t nonce;
    int64_t due_ns; /* in the late queue */
    bool probe;     /* of the read-back: no consequences */
};

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The answer that belongs to a nonce: mostly short, some empty, few large. */
static inline size_t make_body(uint64_t nonce, char body[BODY_MAX])
{
    unsigned kind = (unsigned)(nonce >> 8) % 256;
    size_t len = kind < 16 ? 0 : kind < 240 ? nonce % 200 : nonce % 5000;

    if ((nonce >> 20) % 4096 == 0) {
        len = BODY_MAX - nonce % 4096;
    }
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = mix(nonce + i);
        memcpy(body + i, &word, len - i < 8 ? len - i : 8);
    }
    return len;
}

static inline uint64_t digest_add(uint64_t digest, const void *data, size_t len)
{
    const char *at = data;
    uint64_t word;

    for (; len >= 8; at += 8, len -= 8) {
        memcpy(&word, at, 8);
        digest = mix(digest ^ word);
    }
    word = (uint64_t)len << 56;
    memcpy(&word, at, len);
    return mix(digest ^ word);
}

static inline uint64_t digest_answer(int64_t status, const void *headers,
                                     size_t headers_len, const void *body,
                                     size_t body_len)
{
    uint64_t digest = mix((uint64_t)status);

    digest = digest_add(digest, headers, headers_len);
    return digest_add(digest, body, body_len) | 1;
}

static inline void add_answer(struct wire_out *out, struct op *op)
{
    static char body[BODY_MAX];
    char headers[80];
    size_t body_len = make_body(op->nonce, body);
    unsigned status = 200 + (unsigned)(op->nonce % 250);
    int len = snprintf(headers, sizeof(headers),
                       "Content-Type: application/octet-stream\r\n"
                       "ETag: %016llx\r\n",
                       (unsigned long long)op->nonce);

    op->record.digest =
        digest_answer(status, headers, (size_t)len, body, body_len);
    wire_number(out, status);
    wire_bulk(out, headers, (size_t)len);
    wire_bulk(out, body, body_len);
}

static inline void add_claim(struct wire_out *out,
                             const struct history_record *record)
{
    char owner[24];

    wire_text(out, record->flags & HISTORY_OTHER_PRINT ? "1:bb" : "1:aa");
    snprintf(owner, sizeof(owner), "%016llx",
             (unsigned long long)record->owner);
    wire_text(out, "OWNER");
    wire_text(out, owner);
    wire_text(out, "LOCK");
    wire_number(out, record->lock_ms);
    if (record->ttl_ms != 0) {
        wire_text(out, "TTL");
        wire_number(out, record->ttl_ms);
    }
    if (record->flags & HISTORY_REEXECUTE) {
        wire_text(out, "REEXECUTE");
    }
    if (record->flags & HISTORY_NONEW) {
        wire_text(out, "NONEW");
    }
}

static inline int count_words(const struct history_record *record)
{
    switch (record->kind) {
    case HISTORY_CLAIM:
        return 9 + (record->ttl_ms != 0 ? 2 : 0) +
               (record->flags & HISTORY_REEXECUTE ? 1 : 0) +
               (record->flags & HISTORY_NONEW ? 1 : 0);
    case HISTORY_COMPLETE:
        return 8;
    case HISTORY_RELEASE:
        return 5;
    default:
        return 6;
    }
}

static inline void add_command(struct wire_out *out, struct op *op,
                               uint64_t first_key)
{
    static const char *const words[] = {"",        "CLAIM", "COMPLETE",
                                        "RELEASE", "DOUBT", "EXTEND"};
    struct history_record *record = &op->record;
    char name[32];

    wire_array(out, count_words(record));
    wire_text(out, words[record->kind]);
    wire_text(out, record->key % 2 ? "acme" : "umbrella");
    wire_text(out, "POST /race");
    snprintf(name, sizeof(name), "key-%llu",
             (unsigned long long)(first_key + record->key));
    wire_text(out, name);
    if (record->kind == HISTORY_CLAIM) {
        add_claim(out, record);
        return;
    }
    wire_number(out, record->token);
    if (record->kind == HISTORY_COMPLETE) {
        add_answer(out, op);
    } else if (record->kind == HISTORY_DOUBT) {
        wire_text(out, "the app went away");
    } else if (record->kind == HISTORY_EXTEND) {
        wire_number(out, record->lock_ms);
    }
}

#endif
