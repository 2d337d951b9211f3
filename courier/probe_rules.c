/* probe_rules.c - what a probe asks, what its response proves, and what the
 * prober remembers. */
#include "courier/probe_rules.h"
#include "courier/call_result.h"
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

enum { DELAY_MOST_MS = 3600 * 1000, DOUBLINGS = 20 };

/* ---- the question -------------------------------------------------------- */

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || (c && strchr("-._~", c));
}

static enum lk_status add_encoded(struct lk_buf *path, struct lk_slice text)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < text.len && !status; i++) {
        char c = text.data[i];
        status = is_unreserved(c)
                     ? latchkey_buf_add(path, &c, 1)
                     : latchkey_buf_printf(path, "%%%02X", (unsigned char)c);
    }
    return status;
}

/* The value of a placeholder; NULL: there is no such placeholder. */
static const struct lk_slice *find_placeholder(
    const struct lk_probe_words *words, struct lk_slice member)
{
    const struct {
        const char *name;
        const struct lk_slice *word;
    } known[] = {
        {"key", &words->key},       {"id", &words->id},
        {"tenant", &words->tenant}, {"scope", &words->scope},
        {"name", &words->name},     {"reference", &words->reference},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (latchkey_slice_equal(member, latchkey_slice(known[i].name))) {
            return known[i].word;
        }
    }
    return NULL;
}

enum lk_status lk_probe_path(const char *template,
                             const struct lk_probe_words *words,
                             struct lk_buf *path)
{
    const char *at = template;

    for (;;) {
        size_t plain = strcspn(at, "{}");
        enum lk_status status = latchkey_buf_add(path, at, plain);
        at += plain;
        if (status || !*at) {
            return status;
        }
        const char *end = strchr(at, '}');
        if (*at != '{' || !end) {
            return LK_INVALID;
        }
        const struct lk_slice *word = find_placeholder(
            words, (struct lk_slice){at + 1, (size_t)(end - at - 1)});
        if (!word) {
            return LK_INVALID;
        }
        if (!word->data) {
            return LK_NOT_FOUND;
        }
        status = add_encoded(path, *word);
        if (status) {
            return status;
        }
        at = end + 1;
    }
}

/* ---- the response -------------------------------------------------------- */

const char *lk_proof_word(enum lk_proof proof)
{
    switch (proof) {
    case LK_PROOF_HAPPENED:
        return "happened";
    case LK_PROOF_ABSENT:
        return "absent";
    case LK_PROOF_NONE:
        break;
    }
    return "none";
}

/* The first element of the list in the response. LK_NOT_FOUND: the list is
 * empty; anything else: there is no such list. */
static enum lk_status first_of_list(const char *list, struct lk_slice body,
                                    struct lk_slice *first)
{
    struct lk_slice value;
    enum lk_status status = lk_json_find(body, latchkey_slice(list), &value);

    if (status) {
        return status == LK_NOT_FOUND ? LK_MALFORMED : status;
    }
    if (!value.len || value.data[0] != '[') {
        return LK_MALFORMED;
    }
    return lk_json_find(value, LK_SLICE("/0"), first);
}

/* It comes from a cache, and may be old. */
static bool is_aged(const struct lk_http_response *response)
{
    struct lk_slice age =
        lk_http_header(latchkey_buf_slice(&response->headers), "Age");

    return age.len && !latchkey_slice_equal(age, LK_SLICE("0"));
}

/* By the status, and where a list is expected by whether it is empty. */
static enum lk_proof judge_status_and_list(
    const struct lk_probe *probe, const struct lk_http_response *response)
{
    struct lk_slice first;

    if (lk_statuses_have(&probe->absent, response->status)) {
        /* A status that is listed as both proves neither. */
        return lk_statuses_have(&probe->happened, response->status)
                   ? LK_PROOF_NONE
                   : LK_PROOF_ABSENT;
    }
    if (!lk_statuses_have(&probe->happened, response->status)) {
        return LK_PROOF_NONE;
    }
    if (!probe->list) {
        return LK_PROOF_HAPPENED;
    }
    if (response->cut) {
        return LK_PROOF_NONE;
    }
    switch (first_of_list(probe->list, latchkey_buf_slice(&response->body),
                          &first)) {
    case LK_OK:
        return LK_PROOF_HAPPENED;
    case LK_NOT_FOUND:
        return LK_PROOF_ABSENT;
    default:
        return LK_PROOF_NONE;
    }
}

enum lk_proof lk_probe_judge(const struct lk_probe *probe,
                             const struct lk_http_response *response)
{
    enum lk_proof proof = judge_status_and_list(probe, response);

    return proof == LK_PROOF_ABSENT && is_aged(response) ? LK_PROOF_NONE
                                                         : proof;
}

void lk_probe_provider_id(const struct lk_target *target,
                          const struct lk_probe *probe,
                          const struct lk_http_response *response,
                          struct lk_buf *id)
{
    struct lk_http_response first = *response; /* shallow: not freed */
    struct lk_slice body = latchkey_buf_slice(&response->body);

    if (probe->list) {
        if (first_of_list(probe->list, body, &body)) {
            return;
        }
        first.body.data += body.data - response->body.data;
        first.body.len = body.len;
    }
    lk_provider_id(target, &first, id);
}

/* ---- time ---------------------------------------------------------------- */

bool lk_probe_is_settled(const struct lk_probe *probe, uint64_t uncertain_ms)
{
    return uncertain_ms > probe->settle_ms;
}

bool lk_probe_absence_proves(const struct lk_probe *probe,
                             uint64_t uncertain_ms, uint64_t seen_ms)
{
    return lk_probe_is_settled(probe, uncertain_ms) && seen_ms != UINT64_MAX &&
           seen_ms >= probe->interval_ms;
}

uint64_t lk_probe_delay_ms(const struct lk_probe *probe, unsigned asked,
                           uint64_t uncertain_ms, uint64_t seen_ms)
{
    unsigned doublings = asked > DOUBLINGS ? DOUBLINGS : asked ? asked - 1 : 0;
    uint64_t most =
        probe->interval_ms > DELAY_MOST_MS ? probe->interval_ms : DELAY_MOST_MS;
    uint64_t delay = probe->interval_ms > most >> doublings
                         ? most
                         : probe->interval_ms << doublings;

    uint64_t until = delay;

    if (!lk_probe_is_settled(probe, uncertain_ms)) {
        until = probe->settle_ms - uncertain_ms + 1;
    } else if (seen_ms < probe->interval_ms) {
        until = probe->interval_ms - seen_ms;
    }
    return until < delay ? until : delay;
}

bool lk_route_matches(const struct lk_route *route, struct lk_slice tenant,
                      struct lk_slice scope)
{
    size_t len = strlen(route->scope);

    if (route->tenant &&
        !latchkey_slice_equal(tenant, latchkey_slice(route->tenant))) {
        return false;
    }
    if (len && route->scope[len - 1] == '*') {
        return scope.len >= len - 1 &&
               !memcmp(scope.data, route->scope, len - 1);
    }
    return latchkey_slice_equal(scope, latchkey_slice(route->scope));
}

/* ---- memory -------------------------------------------------------------- */

/* Sets of a few notes each, found by hash: the memory is bounded. */

enum { NOTES_PER_SET = 8 };

enum lk_status lk_probe_memory_init(struct lk_probe_memory *memory,
                                    size_t notes)
{
    memory->sets = notes < NOTES_PER_SET ? 1 : notes / NOTES_PER_SET;
    memory->notes =
        calloc(memory->sets * NOTES_PER_SET, sizeof(*memory->notes));
    return memory->notes ? LK_OK : LK_NOMEM;
}

void lk_probe_memory_free(struct lk_probe_memory *memory)
{
    free(memory->notes);
    *memory = (struct lk_probe_memory){0};
}

/* Ids rise by one: a multiplication spreads them well enough. */
static size_t note_set_of(const struct lk_probe_memory *memory, bool operation,
                          uint64_t id)
{
    uint64_t mixed = (2 * id + operation) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(mixed >> 32) % memory->sets;
}

struct lk_probe_note *lk_probe_memory_note(struct lk_probe_memory *memory,
                                           bool operation, uint64_t id,
                                           uint64_t fence)
{
    struct lk_probe_note *set =
        &memory->notes[note_set_of(memory, operation, id) * NOTES_PER_SET];
    struct lk_probe_note *victim = &set[0];

    for (size_t i = 0; i < NOTES_PER_SET; i++) {
        struct lk_probe_note *note = &set[i];
        if (note->used && note->operation == operation && note->id == id) {
            if (note->fence == fence) {
                return note;
            }
            victim = note; /* an earlier attempt of the same */
            break;
        }
        /* A note that was due long ago is of something resolved. */
        if (victim->used && (!note->used || note->due_ns < victim->due_ns)) {
            victim = note;
        }
    }
    *victim = (struct lk_probe_note){
        .id = id, .fence = fence, .operation = operation, .used = true};
    return victim;
}
