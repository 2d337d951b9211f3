/*
 * probe_ask.c - asks about one uncertain record: whether it is time, whether
 * the place can be believed, and what follows from the answer.
 */
#include "courier/probe_parts.h"

#include "courier/schedule.h"
#include "daemon/log.h"

#include <time.h>

#define MS_NS UINT64_C(1000000)
/* What a cache has kept from before would be seen twice, and prove nothing. */
#define QUESTION_HEADERS                                                       \
    "Accept: application/json\r\nCache-Control: no-cache\r\n"

enum {
    HELD_MOST_MS = 300 * 1000,
    ANSWER_MOST = 256 << 10,
};

/* ---- one call ------------------------------------------------------------ */

/* A place that does not answer is left alone, longer each time, so that it
 * does not keep the others waiting. */
static void hold(struct lk_probe_place *place,
                 const struct lk_http_response *answer)
{
    uint64_t asked =
        lk_asked_wait_ms(place->target, latchkey_buf_slice(&answer->headers),
                         (uint64_t)time(NULL) * 1000);
    uint64_t delay = place->probe->interval_ms
                     << (place->failures > 10 ? 10 : place->failures);

    delay = delay > HELD_MOST_MS ? HELD_MOST_MS : delay;
    place->failures++;
    place->held_ns =
        lk_probe_now_ns() + (delay > asked ? delay : asked) * MS_NS;
}

static void sleep_until(struct lk_prober *prober, uint64_t ns)
{
    uint64_t now = lk_probe_now_ns();

    if (ns > now) {
        lk_probe_sleep(prober, ns - now, false);
    }
}

/* Whoever asked for the next turn at once would leave none to the jobs: the one
 * after ours is theirs, if they want it. */
bool lk_probe_pace(struct lk_prober *prober, struct lk_probe_place *place,
                   const struct lk_target *target)
{
    sleep_until(prober, place->next_ns);
    if (target->rate && !atomic_load(&prober->stopping)) {
        uint64_t wait_ms = prober->reserve(prober->reserve_context, target);
        sleep_until(prober, lk_probe_now_ns() + wait_ms * MS_NS);
        place->next_ns = lk_probe_now_ns() + 1500 * MS_NS / target->rate;
    }
    return !atomic_load(&prober->stopping);
}

bool lk_probe_ask(struct lk_prober *prober, struct lk_probe_place *place,
                  struct lk_slice path, struct lk_http_response *answer)
{
    if (!lk_probe_pace(prober, place, place->target)) {
        return false;
    }
    enum lk_status status = lk_http_call(
        &(struct lk_http_request){.target = place->target,
                                  .method = LK_SLICE("GET"),
                                  .path = path,
                                  .headers = LK_SLICE(QUESTION_HEADERS),
                                  .answer_max = ANSWER_MOST,
                                  .cancel = &prober->stopping},
        answer);
    if (status == LK_INVALID) {
        return false; /* this one cannot be asked about: not the place's fault
                       */
    }
    if (status || answer->status == 429 || answer->status >= 500) {
        char error[LK_LOG_QUOTED];
        lk_log(
            LK_LOG_DEBUG, "probe-failed", "target=%s status=%u error=%s",
            place->target->name, answer->status,
            lk_log_quote(latchkey_slice(answer->error), error, sizeof(error)));
        hold(place, answer);
        return false;
    }
    place->failures = 0;
    return true;
}

/* ---- one record ---------------------------------------------------------- */

/* How long it has been uncertain, by the store's clock. */
static uint64_t uncertain_ms(struct lk_prober *prober,
                             const struct lk_probe_subject *subject)
{
    struct lk_store *store = prober->setup.store;
    struct lk_store_stats stats = {0};

    store->class->stats(store, &stats);
    return stats.now_ms > subject->since_ms ? stats.now_ms - subject->since_ms
                                            : 0;
}

static bool ask_about(struct lk_prober *prober,
                      const struct lk_probe_subject *subject,
                      struct lk_http_response *answer)
{
    const uint8_t *secret = prober->setup.store->reference_secret;
    const struct lk_job job = {.operation = subject->name,
                               .generation = subject->generation,
                               .name = subject->job};
    char key[LK_JOB_KEY + 1];
    char reference[LK_REFERENCE_TEXT + 1];
    struct lk_probe_words words = {.tenant = subject->name.tenant,
                                   .scope = subject->name.scope};

    latchkey_reference_encode(subject->number, secret, reference);
    words.reference = latchkey_slice(reference);
    if (subject->place->route) {
        words.key = subject->name.key;
    } else {
        lk_job_key(secret, &job, key);
        words.key = latchkey_slice(key);
        words.name = subject->job;
        if (subject->provider_id.len) {
            words.id = subject->provider_id;
        }
    }
    struct lk_buf path = {0};
    bool asked =
        !lk_probe_path(subject->place->probe->path, &words, &path) &&
        lk_probe_ask(prober, subject->place, latchkey_buf_slice(&path), answer);
    latchkey_buf_free(&path);
    return asked;
}

/* How long ago absence was first seen. */
static uint64_t seen_ms(const struct lk_probe_note *note)
{
    return note->absent_ns ? (lk_probe_now_ns() - note->absent_ns) / MS_NS
                           : UINT64_MAX;
}

/* What follows from an answer, or from the settle time alone where there is
 * nothing to ask. */
static enum lk_probe_result conclude(struct lk_prober *prober,
                                     const struct lk_probe_subject *subject,
                                     struct lk_probe_note *note,
                                     enum lk_proof proof, uint64_t age_ms,
                                     const struct lk_http_response *answer)
{
    const struct lk_probe *probe = subject->place->probe;
    uint64_t now = lk_probe_now_ns();

    if (proof == LK_PROOF_HAPPENED) {
        return lk_probe_resolve_happened(prober, subject, answer);
    }
    if (proof != LK_PROOF_ABSENT || !lk_probe_is_settled(probe, age_ms)) {
        return LK_PROBE_OPEN;
    }
    bool proves = lk_probe_absence_proves(probe, age_ms, seen_ms(note));
    if (!note->absent_ns) {
        note->absent_ns = now;
    }
    if (probe->path && (!proves || !lk_probe_knows_others(prober, subject))) {
        return LK_PROBE_OPEN;
    }
    return lk_probe_resolve_absent(prober, subject, answer);
}

static bool may_ask(struct lk_prober *prober,
                    const struct lk_probe_subject *subject,
                    const struct lk_probe_note *note, bool now)
{
    struct lk_probe_place *place = subject->place;
    uint64_t now_ns = lk_probe_now_ns();

    if (atomic_load(&prober->stopping) || place->held_ns > now_ns ||
        (!now && note->due_ns > now_ns)) {
        return false;
    }
    return !place->probe->path || lk_probe_is_sound(prober, subject);
}

static void log_probed(const struct lk_probe_subject *subject, unsigned status,
                       enum lk_proof proof, unsigned asked)
{
    const struct lk_probe_place *place = subject->place;

    lk_log(LK_LOG_DEBUG, "probed",
           "kind=%s id=%llu target=%s status=%u proof=%s asked=%u",
           place->route ? "operation" : "job", (unsigned long long)subject->id,
           place->target->name, status, lk_proof_word(proof), asked);
}

enum lk_probe_result lk_probe_look(struct lk_prober *prober,
                                   const struct lk_probe_subject *subject,
                                   bool now)
{
    struct lk_probe_place *place = subject->place;
    struct lk_probe_note *note = lk_probe_memory_note(
        &prober->memory, place->route != NULL, subject->id, subject->fence);
    struct lk_http_response answer = {0};
    enum lk_proof proof = LK_PROOF_NONE;
    enum lk_probe_result result;

    if (!may_ask(prober, subject, note, now)) {
        return LK_PROBE_OPEN;
    }
    /* Before the question: what is absent must have been so for that long. */
    uint64_t age_ms = uncertain_ms(prober, subject);
    if (!place->probe->path) {
        proof = LK_PROOF_ABSENT;
    } else if (ask_about(prober, subject, &answer)) {
        proof = lk_probe_judge(place->probe, &answer);
    } else if (place->held_ns > lk_probe_now_ns() ||
               atomic_load(&prober->stopping)) {
        lk_http_response_free(&answer);
        return LK_PROBE_OPEN; /* asked again once the place answers */
    }
    note->asked++;
    log_probed(subject, answer.status, proof, note->asked);
    result = conclude(prober, subject, note, proof, age_ms, &answer);
    note->due_ns =
        lk_probe_now_ns() +
        lk_probe_delay_ms(place->probe, note->asked, age_ms, seen_ms(note)) *
            MS_NS;
    lk_http_response_free(&answer);
    return result;
}
