/*
 * decision.c - verdicts and their words, and the decision that a reply brings.
 *
 * A reply is a word alone, or an array: the word, then the fields of its shape.
 * The table below is the only place that knows their order.
 */
#include "lib/client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

const char *latchkey_verdict_word(enum lk_verdict verdict)
{
    switch (verdict) {
#define X(name, word)                                                          \
    case LK_VERDICT_##name:                                                    \
        return word;
        LK_VERDICT_MAP(X)
#undef X
    }
    return "?";
}

bool latchkey_verdict_parse(struct lk_slice word, enum lk_verdict *verdict)
{
#define X(name, text)                                                          \
    if (latchkey_slice_equal(word, LK_SLICE(text))) {                          \
        *verdict = LK_VERDICT_##name;                                          \
        return true;                                                           \
    }
    LK_VERDICT_MAP(X)
#undef X
    return false;
}

enum { WORD_SHOWN = 64 }; /* bytes of an unexpected word */

/*
 * What follows the word of each verdict, a letter for each field (see
 * read_field), and whether it is the reply to a claim or to the end of one. A
 * later daemon may add fields behind these; they are ignored.
 */
struct shape {
    enum lk_verdict verdict;
    bool claims;
    const char *fields;
};

static const struct shape shapes[] = {
    {LK_VERDICT_NEW, true, "tuar"},      {LK_VERDICT_REPLAY, true, "shbcer"},
    {LK_VERDICT_OMITTED, true, "socer"}, {LK_VERDICT_INFLIGHT, true, "wr"},
    {LK_VERDICT_ACCEPTED, true, "nr"},   {LK_VERDICT_UNCERTAIN, true, "onr"},
    {LK_VERDICT_MISMATCH, true, "r"},    {LK_VERDICT_LIMITED, true, "wo"},
    {LK_VERDICT_REFUSED, true, ""},      {LK_VERDICT_DONE, false, ""},
    {LK_VERDICT_KEPT, false, "shbcer"},  {LK_VERDICT_STALE, false, ""},
    {LK_VERDICT_EXISTS, false, ""},
};

/* Where the field belongs; NULL: it is not a number of the decision. */
static uint64_t *number_field(struct lk_decision *decision, char field)
{
    switch (field) {
    case 't':
        return &decision->token;
    case 'u':
        return &decision->lock_until_ms;
    case 'a':
        return &decision->attempt;
    case 'w':
        return &decision->retry_after_ms;
    case 'n':
        return &decision->since_ms;
    case 'c':
        return &decision->completed_ms;
    case 'e':
        return &decision->expires_ms;
    }
    return NULL;
}

static struct lk_slice *text_field(struct lk_decision *decision, char field)
{
    switch (field) {
    case 'h':
        return &decision->response.headers;
    case 'b':
        return &decision->response.body;
    case 'o':
        return &decision->reason;
    case 'r':
        return &decision->reference;
    }
    return NULL;
}

/* False: the reply has another type, or a number that is negative. The one
 * letter in neither list is "s", the status of the response. */
static bool read_field(struct lk_decision *decision, char field,
                       const struct lk_reply *reply)
{
    struct lk_slice *text = text_field(decision, field);
    uint64_t *number = number_field(decision, field);

    if (text) {
        *text = reply->text;
        return reply->type == LK_REPLY_TEXT;
    }
    if (reply->type != LK_REPLY_INTEGER || reply->integer < 0) {
        return false;
    }
    if (number) {
        *number = (uint64_t)reply->integer;
        return true;
    }
    decision->response.status = (unsigned)reply->integer;
    return reply->integer <= UINT_MAX;
}

/*
 * The shape of a verdict that `verb` may get, or NULL. Without a verb (a
 * pipeline) every verdict is possible. ACCEPT never gives NEW: no one but the
 * courier executes what was accepted.
 */
static const struct shape *find_shape(struct lk_slice word, const char *verb)
{
    bool accepts = verb && !strcmp(verb, "ACCEPT");
    bool claims = accepts || (verb && !strcmp(verb, "CLAIM"));
    enum lk_verdict verdict;

    if (!latchkey_verdict_parse(word, &verdict) ||
        (accepts && verdict == LK_VERDICT_NEW)) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        if (shapes[i].verdict == verdict &&
            (!verb || shapes[i].claims == claims)) {
            return &shapes[i];
        }
    }
    return NULL;
}

/* A word alone, or an array that begins with one. */
static struct lk_slice reply_word(const struct lk_reply *reply)
{
    if (reply->type == LK_REPLY_ARRAY && reply->count > 0) {
        reply = &reply->elements[0];
    }
    return reply->type == LK_REPLY_TEXT ? reply->text : (struct lk_slice){0};
}

/* LK_MALFORMED: `why` has a sentence, with at most WORD_SHOWN bytes of what
 * came. */
static enum lk_status read_verdict(const char *verb,
                                   const struct lk_reply *reply,
                                   struct lk_decision *decision, char *why,
                                   size_t size)
{
    struct lk_slice word = reply_word(reply);
    const struct shape *shape = find_shape(word, verb);

    verb = verb ? verb : "pipeline";
    if (!shape) {
        snprintf(why, size, "%s: the reply is not a verdict on it: \"%.*s\"",
                 verb, word.len < WORD_SHOWN ? (int)word.len : WORD_SHOWN,
                 word.data ? word.data : "");
        return LK_MALFORMED;
    }
    size_t given = reply->count > 0 ? reply->count - 1 : 0;
    size_t wanted = strlen(shape->fields);
    if (given < wanted) {
        snprintf(why, size, "%s: %s came with %zu fields instead of %zu", verb,
                 latchkey_verdict_word(shape->verdict), given, wanted);
        return LK_MALFORMED;
    }
    for (size_t i = 0; i < wanted; i++) {
        if (!read_field(decision, shape->fields[i], &reply->elements[i + 1])) {
            snprintf(why, size, "%s: field %zu of %s has the wrong type", verb,
                     i + 1, latchkey_verdict_word(shape->verdict));
            return LK_MALFORMED;
        }
    }
    if (shape->verdict == LK_VERDICT_KEPT && given > wanted) {
        decision->reason = reply->elements[wanted + 1].text; /* omitted */
    }
    decision->verdict = shape->verdict;
    return LK_OK;
}

/* An error reply is LK_UNAVAILABLE (try again later) if its first word says so,
 * else LK_REPLY. */
enum lk_status lk_decision_error(const struct lk_reply *reply)
{
    static const char unavailable[] = "UNAVAILABLE";
    const size_t len = sizeof(unavailable) - 1;
    struct lk_slice text = reply->text;

    if (text.len >= len && !memcmp(text.data, unavailable, len) &&
        (text.len == len || text.data[len] == ' ')) {
        return LK_UNAVAILABLE;
    }
    return LK_REPLY;
}

/* Zero would be NEW: a caller that forgets the status must not read that. */
static const struct lk_decision nothing = {.verdict = LK_VERDICT_NIL};

/* A reply that is not exactly what `verb` may get is LK_MALFORMED: a claim must
 * never be taken for NEW by mistake. */
enum lk_status lk_decision_read(const char *verb, const struct lk_reply *reply,
                                struct lk_decision *decision, char *why,
                                size_t size)
{
    *decision = nothing;
    if (reply->type == LK_REPLY_ERROR) {
        return lk_decision_error(reply);
    }
    enum lk_status status = read_verdict(verb, reply, decision, why, size);
    if (status) {
        *decision = nothing;
    }
    return status;
}

enum lk_status latchkey_decision_read(const struct lk_reply *reply,
                                      struct lk_decision *decision)
{
    char why[1];

    return lk_decision_read(NULL, reply, decision, why, sizeof(why));
}
