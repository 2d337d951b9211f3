/*
 * show.c - shows one operation in full: what it is, its history from what is
 * stored, and what a person can do about it; `latchkey get`.
 *
 * Three questions go to the daemon: the operation (LOOKUP), its jobs (JOBS) and
 * what operators did (AUDIT). Each reply becomes events; at the end they are
 * sorted by time and printed. A user who may not read jobs and the audit log
 * gets the rest, marked as partial.
 */
#include "cli/cli.h"
#include "cli/commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==== One operation in full: what it is, its history, and what a person can do
 * about it */

enum { PAGE = 1000 };

static bool is_word(struct lk_slice text, const char *word)
{
    return latchkey_slice_equal(text, latchkey_slice(word));
}

enum lk_put_colour lk_operation_colour(struct lk_slice state)
{
    static const struct {
        const char *state;
        enum lk_put_colour colour;
    } colours[] = {
        {"uncertain", LK_ALARM},  {"in_progress", LK_BUSYING},
        {"accepted", LK_BUSYING}, {"completed", LK_GOOD},
        {"released", LK_DIM},
    };

    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        if (is_word(state, colours[i].state)) {
            return colours[i].colour;
        }
    }
    return LK_PLAIN;
}

/* ---- The history --------------------------------------------------------- */

/* One line of the history; owns its text. */
struct event {
    uint64_t at_ms;
    size_t order;     /* of those of one moment */
    const char *kind; /* for JSON */
    enum lk_put_colour colour;
    struct lk_buf text;
};

/*
 * Replies come one after the other, and each is invalid with the next: what is
 * needed is copied from them at once, from the operation first, then its jobs,
 * then the audit log.
 */
struct story {
    struct lk_cli *cli;
    struct lk_doc doc; /* JSON: the object is open */
    struct lk_table facts;
    struct lk_buf headline;
    struct lk_buf advice; /* a command on each line */
    struct event *events;
    size_t count;
    size_t cap;

    struct lk_buf state;
    struct lk_buf reference;
    uint64_t token;
    uint64_t claimed_ms;
    uint64_t completed_ms;
    uint64_t expires_ms;
    uint64_t ttl_ms;
    uint64_t dead; /* jobs */
    uint64_t uncertain;
    uint64_t unfinished; /* these two, and what waits or is called */
    bool by_operator;    /* completed it */
    bool partial;        /* jobs and audit log are for another role */
};

/* The text to be filled in, valid until the next event is added. */
static struct lk_buf *add_event(struct story *story, uint64_t at_ms,
                                const char *kind, enum lk_put_colour colour)
{
    if (story->count == story->cap) {
        story->cap = story->cap == 0 ? 16 : story->cap * 2;
        story->events =
            lk_must_grow(story->events, story->cap * sizeof(*story->events));
    }
    story->events[story->count] = (struct event){
        .at_ms = at_ms, .order = story->count, .kind = kind, .colour = colour};
    return &story->events[story->count++].text;
}

static bool is_in_state(const struct story *story, const char *state)
{
    return is_word(latchkey_buf_slice(&story->state), state);
}

/* In progress for LK_LONG_MS or longer: its holder may hang. */
static bool is_endless(const struct story *story)
{
    return is_in_state(story, "in_progress") &&
           story->cli->now_ms >= story->claimed_ms + LK_LONG_MS;
}

static bool story_needs_person(const struct story *story)
{
    return is_in_state(story, "uncertain") || is_endless(story) ||
           story->dead + story->uncertain > 0;
}

typedef unsigned long long number; /* for printf */

/* ---- The operation ------------------------------------------------------- */

/* A row of the table below the headline. */
static void put_fact(struct story *story, const char *label,
                     struct lk_slice text)
{
    lk_put(lk_table_cell(&story->facts, LK_DIM), "%s", label);
    lk_put_text(lk_table_cell(&story->facts, LK_PLAIN), text);
}

/* With its role an app sees headers and body, others their sizes. */
static uint64_t size_of_part(const struct lk_reply *operation, const char *name,
                             const char *size_name)
{
    const struct lk_reply *bytes = lk_field(operation, name);

    return bytes == NULL ? lk_field_number(operation, size_name)
                         : bytes->text.len;
}

/* Or why the response was not stored. */
static void put_response_size(struct lk_buf *out,
                              const struct lk_reply *operation)
{
    if (lk_field(operation, "omitted-reason") != NULL) {
        lk_put(out, "its response was not stored: ");
        lk_put_text(out, lk_field_text(operation, "omitted-reason"));
        return;
    }
    lk_put(out, "headers ");
    lk_put_bytes(out, size_of_part(operation, "headers", "headers-bytes"));
    lk_put(out, ", body ");
    lk_put_bytes(out, size_of_part(operation, "body", "body-bytes"));
}

/* When it was claimed, and the state of its lock. */
static void add_claim_fact(struct story *story,
                           const struct lk_reply *operation)
{
    uint64_t lock_ms = lk_field_number(operation, "lock-until-ms");
    uint64_t now_ms = story->cli->now_ms;
    struct lk_buf *text =
        add_event(story, story->claimed_ms, "claimed", LK_PLAIN);

    lk_put(text, "claimed (attempt %llu)",
           (number)lk_field_number(operation, "attempt"));
    if (lock_ms > now_ms) {
        lk_put(text, ", locked for another ");
        lk_put_span(text, now_ms, lock_ms);
    } else if (lock_ms > 0) {
        lk_put(text, ", its lock lapsed ");
        lk_put_span(text, lock_ms, now_ms);
        lk_put(text, " ago");
    }
}

static void add_operation_facts(struct story *story,
                                const struct lk_reply *operation)
{
    uint64_t since_ms = lk_field_number(operation, "since-ms");
    struct lk_buf *text;

    if (is_in_state(story, "accepted")) {
        text = add_event(story, since_ms, "accepted", LK_PLAIN);
        lk_put(text, "accepted: its request waits for the courier");
        return;
    }
    add_claim_fact(story, operation);
    if (is_in_state(story, "uncertain")) {
        text = add_event(story, since_ms, "uncertain", LK_ALARM);
        lk_put(text, "uncertain: ");
        lk_put_text(text, lk_field_text(operation, "reason"));
    } else if (is_in_state(story, "completed")) {
        text = add_event(story, story->completed_ms, "completed", LK_GOOD);
        lk_put(text, "completed with %llu, ",
               (number)lk_field_number(operation, "status"));
        put_response_size(text, operation);
    }
}

/* Starts the history with the operation itself; `operation` is invalid with
 * the next call, so everything is copied. */
static void begin_story(struct story *story, const struct lk_reply *operation)
{
    struct lk_buf *headline = &story->headline;

    lk_put_raw(&story->state, lk_field_text(operation, "state"));
    lk_put_raw(&story->reference, lk_field_text(operation, "reference"));
    story->token = lk_field_number(operation, "token");
    story->claimed_ms = lk_field_number(operation, "claimed-ms");
    story->completed_ms = lk_field_number(operation, "completed-ms");
    story->expires_ms = lk_field_number(operation, "expires-ms");
    story->ttl_ms = lk_field_number(operation, "ttl-ms");
    if (story->cli->json) {
        lk_doc_object(&story->doc, NULL);
        lk_doc_members(&story->doc, operation);
    }
    lk_put_text(headline, latchkey_buf_slice(&story->state));
    put_fact(story, "tenant", lk_field_text(operation, "tenant"));
    put_fact(story, "scope", lk_field_text(operation, "scope"));
    put_fact(story, "key", lk_field_text(operation, "key"));
    put_fact(story, "fingerprint", lk_field_text(operation, "fingerprint"));
    if (is_in_state(story, "completed")) {
        lk_put(headline, " %llu", (number)lk_field_number(operation, "status"));
    }
    add_operation_facts(story, operation);
}

/* ---- Its jobs ------------------------------------------------------------ */

/* Its state: "dead after 5 attempts: 402 no money". */
static void put_standing(struct lk_buf *text, const struct lk_reply *job)
{
    number attempts = lk_field_number(job, "attempts");
    number status = lk_field_number(job, "status");
    struct lk_slice reason = lk_field_text(job, "reason");

    lk_put_text(text, lk_field_text(job, "state"));
    if (attempts > 0) {
        lk_put(text, " after %llu attempt%s", attempts,
               attempts == 1 ? "" : "s");
    }
    if (status != 0) {
        lk_put(text, ": %llu", status);
    }
    if (reason.len > 0) {
        lk_put(text, "%s", status != 0 ? " " : ": ");
        lk_put_text(text, reason);
    }
}

static void put_job_facts(struct story *story, struct lk_buf *text,
                          const struct lk_reply *job)
{
    struct lk_slice name = lk_field_text(job, "name");
    struct lk_slice provider_id = lk_field_text(job, "provider-id");
    uint64_t due_ms = lk_field_number(job, "due-ms");

    lk_put(text, "job %llu", (number)lk_field_number(job, "id"));
    if (name.len == 0) {
        lk_put(text, ", the request itself");
    } else {
        lk_put(text, " ");
        lk_put_text(text, name);
        lk_put(text, " -> ");
        lk_put_text(text, lk_field_text(job, "target"));
    }
    lk_put(text, ": ");
    put_standing(text, job);
    if (is_word(lk_field_text(job, "state"), "waiting") &&
        due_ms > story->cli->now_ms) {
        lk_put(text, "; called in ");
        lk_put_span(text, story->cli->now_ms, due_ms);
    }
    if (provider_id.len > 0) {
        lk_put(text, ", provider's id ");
        lk_put_text(text, provider_id);
    }
}

/* Adds the job to the history, counts it, and adds the commands by which a
 * person decides about it. */
static void add_job_fact(struct story *story, const struct lk_reply *job)
{
    struct lk_slice state = lk_field_text(job, "state");
    bool dead = is_word(state, "dead");
    bool uncertain = is_word(state, "uncertain");
    bool request = lk_field_text(job, "name").len == 0;
    number id = lk_field_number(job, "id");
    uint64_t ended_ms = lk_field_number(job, "ended-ms");
    struct lk_buf *text = add_event(
        story, ended_ms == 0 ? lk_field_number(job, "created-ms") : ended_ms,
        "job", dead || uncertain ? LK_ALARM : LK_PLAIN);

    put_job_facts(story, text, job);
    story->unfinished +=
        !is_word(state, "delivered") && !is_word(state, "dropped");
    /* A request is decided together with its operation. */
    if (!request && dead) {
        story->dead++;
        lk_put(&story->advice,
               "latchkey dead retry %llu --why TEXT\n"
               "latchkey dead drop %llu --why TEXT\n",
               id, id);
    } else if (!request && uncertain) {
        story->uncertain++;
        lk_put(&story->advice,
               "latchkey resolve --job %llu (--delivered | --again | --drop) "
               "--why TEXT\n",
               id);
    }
}

/* ---- What operators did -------------------------------------------------- */

/* The action in the audit log, or its beginning, and the words for people. */
static const struct {
    const char *action;
    const char *words;
} audit_words[] = {
    {"resolve completed", "resolved as completed"},
    {"resolve released", "resolved as released"},
    {"evict", "response evicted"},
    {"keep", "kept for longer"},
    {"job look", "looked at"},
    {"look", "response read"},
    {"job retry", "retried"},
    {"job drop", "dropped"},
    {"job delivered", "marked as delivered"},
    {"job again", "ordered again"},
};

/* Cuts `prefix` off the front of *text if it begins with it. */
static bool takes_prefix(struct lk_slice *text, const char *prefix)
{
    size_t length = strlen(prefix);

    if (text->len < length || memcmp(text->data, prefix, length) != 0) {
        return false;
    }
    text->data += length;
    text->len -= length;
    return true;
}

/* The action in words; what follows a known beginning is printed as it is. */
static void put_audit_action(struct lk_buf *text, struct lk_slice action)
{
    for (size_t i = 0; i < sizeof(audit_words) / sizeof(audit_words[0]); i++) {
        if (takes_prefix(&action, audit_words[i].action)) {
            lk_put(text, "%s", audit_words[i].words);
            break;
        }
    }
    lk_put_text(text, action);
}

static void add_audit_fact(struct story *story, const struct lk_reply *entry)
{
    struct lk_slice action = lk_field_text(entry, "action");
    number job = lk_field_number(entry, "job");
    struct lk_buf *text =
        add_event(story, lk_field_number(entry, "at-ms"), "operator", LK_BOLD);

    if (job != 0) {
        lk_put(text, "job %llu ", job);
    }
    put_audit_action(text, action);
    lk_put(text, " by ");
    lk_put_text(text, lk_field_text(entry, "who"));
    lk_put(text, ": \"");
    lk_put_text(text, lk_field_text(entry, "why"));
    lk_put(text, "\"");
    if (takes_prefix(&action, "resolve completed") &&
        lk_field_number(entry, "token") == story->token) {
        story->by_operator = true;
    }
}

/* ---- Asking -------------------------------------------------------------- */

/* *reply is NULL if this user may not ask, or the store has no jobs. Any other
 * error ends the command: an operation must not look well because its jobs
 * could not be read. */
static enum lk_exit ask_about_jobs(struct story *story,
                                   const struct lk_words *words,
                                   const struct lk_reply **reply)
{
    struct lk_cli *cli = story->cli;
    enum lk_status status =
        latchkey_client_call(cli->client, words->words, words->count, 0, reply);
    struct lk_slice text;

    if (status != LK_OK) {
        return lk_complain_lost(cli, status);
    }
    if ((*reply)->type == LK_REPLY_ARRAY) {
        return LK_EXIT_DONE;
    }
    if ((*reply)->type != LK_REPLY_ERROR) {
        return lk_complain_reply(cli);
    }
    text = (*reply)->text;
    if (takes_prefix(&text, "NOPERM ")) {
        story->partial = true;
    } else if (!takes_prefix(&text, "ERR a Redis store keeps no jobs")) {
        return lk_complain_error(cli, (*reply)->text);
    }
    *reply = NULL;
    return LK_EXIT_DONE;
}

/* Each row goes into the JSON list and, through `tell`, into the history. */
static void tell_rows(struct story *story, const struct lk_reply *rows,
                      void (*tell)(struct story *, const struct lk_reply *))
{
    for (size_t i = 0; i < rows->count; i++) {
        if (story->cli->json) {
            lk_doc_object(&story->doc, NULL);
            lk_doc_members(&story->doc, &rows->elements[i]);
            lk_doc_end_object(&story->doc);
        }
        tell(story, &rows->elements[i]);
    }
}

/* Adds the jobs of the operation, page by page. */
static enum lk_exit ask_jobs(struct story *story)
{
    const struct lk_reply *reply;
    uint64_t cursor = 0;
    enum lk_exit result;

    do {
        struct lk_words words = {0};

        lk_words_add(&words, "JOBS");
        lk_words_add(&words, "REFERENCE");
        lk_words_add_slice(&words, latchkey_buf_slice(&story->reference));
        lk_words_add(&words, "LIMIT");
        lk_words_add_number(&words, PAGE);
        lk_words_add(&words, "CURSOR");
        lk_words_add_number(&words, cursor);
        result = ask_about_jobs(story, &words, &reply);
        cursor = 0;
        if (result == LK_EXIT_DONE && reply != NULL && reply->count == 2) {
            cursor = lk_reply_cursor(&reply->elements[0]);
            tell_rows(story, &reply->elements[1], add_job_fact);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    return result;
}

/* Adds what operators did to it, and to its jobs. */
static enum lk_exit ask_audit(struct story *story)
{
    const struct lk_name *name = &story->cli->subject.name;
    const struct lk_reply *reply;
    uint64_t after = 0;
    size_t count;
    enum lk_exit result;

    do {
        struct lk_words words = {0};

        lk_words_add(&words, "AUDIT");
        lk_words_add(&words, "TENANT");
        lk_words_add_slice(&words, name->tenant);
        lk_words_add(&words, "SCOPE");
        lk_words_add_slice(&words, name->scope);
        lk_words_add(&words, "KEY");
        lk_words_add_slice(&words, name->key);
        lk_words_add(&words, "AFTER");
        lk_words_add_number(&words, after);
        lk_words_add(&words, "LIMIT");
        lk_words_add_number(&words, PAGE);
        result = ask_about_jobs(story, &words, &reply);
        count = 0;
        if (result == LK_EXIT_DONE && reply != NULL) {
            count = reply->count;
            tell_rows(story, reply, add_audit_fact);
        }
        if (count > 0) {
            after = lk_field_number(&reply->elements[count - 1], "id");
        }
    } while (count == PAGE);
    return result;
}

/* ---- The end ------------------------------------------------------------- */

static void put_job_state(struct lk_buf *out, uint64_t count, const char *state)
{
    if (count == 1) {
        lk_put(out, "a job is %s", state);
    } else {
        lk_put(out, "%llu jobs are %s", (number)count, state);
    }
}

/* "completed 201, but a job is dead: needs a person" */
static void end_headline(struct story *story)
{
    struct lk_buf *out = &story->headline;
    bool fine = is_in_state(story, "completed");

    lk_put(out, "%s", fine && story->by_operator ? " by an operator" : "");
    if (is_endless(story)) {
        lk_put(out, " for ");
        lk_put_span(out, story->claimed_ms, story->cli->now_ms);
    }
    if (is_in_state(story, "released")) {
        lk_put(out, ": the next request with its key runs");
    }
    if (story->dead + story->uncertain > 0) {
        lk_put(out, "%s", fine ? ", but " : ", and ");
        if (story->dead > 0) {
            put_job_state(out, story->dead, "dead");
        }
        lk_put(out, "%s",
               story->dead > 0 && story->uncertain > 0 ? " and " : "");
        if (story->uncertain > 0) {
            put_job_state(out, story->uncertain, "uncertain");
        }
    } else if (story->unfinished > 0 && fine) {
        lk_put(out, ", ");
        put_job_state(out, story->unfinished, "not finished yet");
    }
    lk_put(out, "%s", story_needs_person(story) ? ": needs a person" : "");
}

/* How long it stays: what is open stays until it is decided, and so does what
 * has jobs that are. */
static void put_retention(struct story *story, struct lk_buf *out)
{
    uint64_t now_ms = story->cli->now_ms;

    if (is_in_state(story, "completed") || is_in_state(story, "released")) {
        lk_put(out, "until ");
        lk_put_time(out, story->expires_ms, now_ms);
        lk_put(out, "%s",
               story->unfinished > 0 ? ", and while a job is open" : "");
        return;
    }
    lk_put(out, "%s, then for ",
           is_in_state(story, "uncertain") ? "for ever, until a person decides"
                                           : "until it is completed");
    lk_put_duration(out, story->ttl_ms, 2);
}

/* By time; those of one moment in the order in which they were added. */
static int compare_events(const void *a, const void *b)
{
    const struct event *one = a;
    const struct event *other = b;

    if (one->at_ms != other->at_ms) {
        return one->at_ms < other->at_ms ? -1 : 1;
    }
    return one->order < other->order ? -1 : one->order > other->order;
}

/* "2026-01-02T03:04:05Z  3 min ago" */
static void put_moment(struct lk_buf *out, uint64_t ms, uint64_t now_ms)
{
    lk_put_utc(out, ms);
    lk_put(out, "  ");
    if (now_ms < ms + 1000) {
        lk_put(out, "now");
        return;
    }
    lk_put_span(out, ms, now_ms);
    lk_put(out, " ago");
}

/* Headline, facts, history, advice. */
static void print_story(struct story *story)
{
    struct lk_cli *cli = story->cli;
    struct lk_table head = {.columns = 2, .colour = cli->colour};
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    lk_put_text(lk_table_cell(&head, LK_BOLD),
                latchkey_buf_slice(&story->reference));
    lk_put_raw(
        lk_table_cell(&head, story_needs_person(story)
                                 ? LK_ALARM
                                 : lk_operation_colour(
                                       latchkey_buf_slice(&story->state))),
        latchkey_buf_slice(&story->headline));
    lk_table_flush(&head, &cli->out);
    lk_put(lk_table_cell(&story->facts, LK_DIM), "%s",
           is_in_state(story, "completed") ? "replayed" : "kept");
    put_retention(story, lk_table_cell(&story->facts, LK_PLAIN));
    lk_table_flush(&story->facts, &cli->out);
    lk_put(&cli->out, "\n");
    for (size_t i = 0; i < story->count; i++) {
        put_moment(lk_table_cell(&table, LK_DIM), story->events[i].at_ms,
                   cli->now_ms);
        lk_put_raw(lk_table_cell(&table, story->events[i].colour),
                   latchkey_buf_slice(&story->events[i].text));
    }
    lk_table_flush(&table, &cli->out);
    if (story->advice.len > 0) {
        lk_put(&cli->out, "\nwhat you can do, once you know:\n");
        lk_put_raw(&cli->out, latchkey_buf_slice(&story->advice));
    }
    if (story->partial) {
        lk_hint(cli, "The history is not complete: its jobs and the audit log "
                     "need the role read.");
    }
}

static void write_story(struct story *story)
{
    struct lk_doc *doc = &story->doc;

    lk_doc_bool(doc, "needs_person", story_needs_person(story));
    lk_doc_bool(doc, "partial", story->partial);
    lk_doc_text(doc, "headline", latchkey_buf_slice(&story->headline));
    lk_doc_array(doc, "story");
    for (size_t i = 0; i < story->count; i++) {
        lk_doc_object(doc, NULL);
        lk_doc_integer(doc, "at_ms", (int64_t)story->events[i].at_ms);
        lk_doc_text(doc, "event", latchkey_slice(story->events[i].kind));
        lk_doc_text(doc, "text", latchkey_buf_slice(&story->events[i].text));
        lk_doc_end_object(doc);
    }
    lk_doc_end_array(doc);
    lk_doc_end_object(doc);
}

/* Prints the events in the order of their times, then what a person can do. */
static void end_story(struct story *story)
{
    if (is_in_state(story, "uncertain")) {
        struct lk_slice reference = latchkey_buf_slice(&story->reference);

        lk_put(&story->advice, "latchkey resolve ");
        lk_put_text(&story->advice, reference);
        lk_put(&story->advice, " --completed STATUS --why TEXT\n"
                               "latchkey release ");
        lk_put_text(&story->advice, reference);
        lk_put(&story->advice, " --why TEXT\n");
    }
    end_headline(story);
    qsort(story->events, story->count, sizeof(*story->events), compare_events);
    if (story->cli->json) {
        write_story(story);
    } else {
        print_story(story);
    }
}

/* The table of facts is freed by printing it: into a buffer that is dropped. */
static void free_story(struct story *story)
{
    struct lk_buf unused = {0};

    for (size_t i = 0; i < story->count; i++) {
        latchkey_buf_free(&story->events[i].text);
    }
    free(story->events);
    lk_table_flush(&story->facts, &unused);
    latchkey_buf_free(&unused);
    latchkey_buf_free(&story->headline);
    latchkey_buf_free(&story->advice);
    latchkey_buf_free(&story->state);
    latchkey_buf_free(&story->reference);
}

/* ---- Showing it ---------------------------------------------------------- */

static void report_missing(struct lk_cli *cli)
{
    const struct lk_name *name = &cli->subject.name;
    struct lk_buf text = {0};

    if (cli->json) {
        lk_put(&cli->out, "null\n");
    }
    lk_put_text(&text, name->tenant);
    lk_put(&text, " has no operation with this scope and key: ");
    lk_put_text(&text, name->key);
    lk_complain("tenant %.*s", (int)text.len, text.data);
    latchkey_buf_free(&text);
}

/*
 * The operation cli->subject. With --headers or --body its response too, which
 * is noted in the audit log. LK_EXIT_NO: there is none, and it has complained.
 */
enum lk_exit lk_operation_fetch(struct lk_cli *cli,
                                const struct lk_reply **operation)
{
    struct lk_action look = {0};
    enum lk_exit result = LK_EXIT_DONE;

    lk_words_add(&look.words, "LOOKUP");
    lk_words_add_name(&look.words, cli);
    if (lk_args_flag(&cli->args, "headers") ||
        lk_args_flag(&cli->args, "body")) {
        lk_words_add(&look.words, "BODY");
        result = lk_action_words(cli, &look, NULL);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &look.words, operation);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if ((*operation)->type == LK_REPLY_NIL) {
        report_missing(cli);
        return LK_EXIT_NO;
    }
    return (*operation)->type == LK_REPLY_ARRAY ? LK_EXIT_DONE
                                                : lk_complain_reply(cli);
}

/* One call after the other: the operation, its jobs, the audit log. Each
 * reply is used up before the next call. */
enum lk_exit lk_operation_show(struct lk_cli *cli, void *context)
{
    struct story story = {
        .cli = cli,
        .doc = {.out = &cli->out},
        .facts = {.columns = 2, .colour = cli->colour},
    };
    const struct lk_reply *operation;
    enum lk_exit result = lk_operation_fetch(cli, &operation);

    (void)context;
    if (result != LK_EXIT_DONE) {
        return result;
    }
    begin_story(&story, operation);
    if (cli->json) {
        lk_doc_array(&story.doc, "jobs");
    }
    result = ask_jobs(&story);
    if (cli->json) {
        lk_doc_end_array(&story.doc);
        lk_doc_array(&story.doc, "audit");
    }
    if (result == LK_EXIT_DONE) {
        result = ask_audit(&story);
    }
    if (cli->json) {
        lk_doc_end_array(&story.doc);
    }
    if (result == LK_EXIT_DONE) {
        end_story(&story);
    }
    free_story(&story);
    return result;
}

/* ==== `latchkey get`: one operation by its name */

static const struct lk_option get_options[] = {
    {"headers", NULL, "print only the stored headers, as they are"},
    {"body", NULL, "print only the stored body, byte for byte"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_get = {
    "Shows operations with their history: when they were claimed and "
    "completed,\n"
    "by whom, their jobs, and what operators did. They are named by one or\n"
    "more references, by TENANT SCOPE KEY or by the provider's id of what a\n"
    "job made. The scope is usually the method and the path, as one word:\n"
    "'POST /pay'.\n"
    "With --headers and --body, the stored response itself is printed; --why\n"
    "is required: the audit log stores who read it and why. On a terminal\n"
    "its control characters are escaped; in a file or a pipe it is byte for\n"
    "byte what was stored.",
    get_options};

/* The stored response itself, without anything around it. LK_EXIT_NO: none is
 * stored. */
static enum lk_exit show_response(struct lk_cli *cli,
                                  const struct lk_reply *operation)
{
    bool headers = lk_args_flag(&cli->args, "headers");
    bool body = lk_args_flag(&cli->args, "body");

    if (lk_field(operation, "body") == NULL) {
        struct lk_slice state = lk_field_text(operation, "state");

        lk_complain("there is no stored response: the operation is %.*s%s",
                    (int)state.len, state.data,
                    lk_field(operation, "omitted-reason") == NULL
                        ? ""
                        : ", but its response was not stored");
        return LK_EXIT_NO;
    }
    if (headers) {
        lk_put_stored(&cli->out, lk_field_text(operation, "headers"));
        lk_put(&cli->out, "%s", body ? "\r\n" : "");
    }
    if (body) {
        lk_put_stored(&cli->out, lk_field_text(operation, "body"));
    }
    return LK_EXIT_DONE;
}

static enum lk_exit get_response_only(struct lk_cli *cli, void *context)
{
    const struct lk_reply *operation;
    enum lk_exit result = lk_operation_fetch(cli, &operation);

    (void)context;
    return result == LK_EXIT_DONE ? show_response(cli, operation) : result;
}

enum lk_exit lk_run_get(struct lk_cli *cli)
{
    bool response_only =
        lk_args_flag(&cli->args, "headers") || lk_args_flag(&cli->args, "body");

    return lk_each_operation(cli, LK_MEANS_EACH,
                             response_only && !cli->json ? get_response_only
                                                         : lk_operation_show,
                             NULL);
}
