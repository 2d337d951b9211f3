/*
 * find.c - which operations the words of a command line mean, and `latchkey
 * find`.
 *
 *   REFERENCE...         one or more, in any spelling in which one is pasted
 *   TENANT REFERENCE     only if it is that tenant's
 *   TENANT SCOPE KEY     the name itself
 *   PROVIDER-ID          of what one of its jobs made; may mean several
 *
 * lk_each_operation() calls a function for each of them, with cli->subject set
 * to it. In JSON several operations are one document, {"operations":[...]},
 * whatever happens to one of them.
 */
#include "cli/commands.h"
#include "cli/job_view.h"

#include <string.h>

static const struct lk_option find_options[] = {{0}};

const struct lk_manual lk_manual_find = {
    "Shows an operation and its history by its reference, such as\n"
    "7D3F-92AB-1C4E, which every response carries, or by the provider's id of\n"
    "what one of its jobs made, such as pi_123. Lower case works too, and the\n"
    "dashes may be left out. With a TENANT, the reference of another tenant's\n"
    "operation is not found.",
    find_options};

/* ---- Words --------------------------------------------------------------- */

/* Any secret does: it decides what a reference means, not what is one. */
static bool is_reference(struct lk_slice text)
{
    static const uint8_t secret[LK_REFERENCE_KEY] = {0};
    uint64_t number;

    return latchkey_reference_decode(text, secret, &number) == LK_OK;
}

/* How far the characters go that a reference, or a word like it, has. */
static size_t span_reference(const char *text)
{
    return strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "abcdefghijklmnopqrstuvwxyz_-");
}

/* The reference in a word as it was pasted: "(7D3F-92AB-1C4E)." or "Reference:
 * 7D3F-92AB-1C4E". Without its dashes it must be all of the word. */
static bool take_reference(const char *word, struct lk_slice *reference)
{
    size_t whole = strlen(word);

    for (const char *at = word; *at != '\0'; at += *at != '\0') {
        *reference = (struct lk_slice){at, span_reference(at)};
        if ((reference->len == LK_REFERENCE_TEXT || reference->len == whole) &&
            is_reference(*reference)) {
            return true;
        }
        at += reference->len;
    }
    return false;
}

/* How many words from the first on are references. */
static size_t count_references(const struct lk_args *args)
{
    struct lk_slice reference;
    size_t count = 0;

    while (count < args->word_count &&
           take_reference(args->words[count], &reference)) {
        count++;
    }
    return count;
}

/* ---- Each of them -------------------------------------------------------- */

/* One run over the words; `many`: the output is a list. */
struct visit {
    struct lk_cli *cli;
    enum lk_meaning meaning;
    lk_subject_fn act;
    void *context;
    bool many;
    size_t visited;
};

/*
 * Copies the name and the reference: the reply is gone with the next call. The
 * room is reserved first, so the slices stay valid. The token is the fence for
 * an uncertain operation; 0: there is none.
 */
static void take_subject(struct lk_cli *cli, const struct lk_reply *operation)
{
    static const char *const names[] = {"tenant", "scope", "key", "reference"};
    struct lk_subject *subject = &cli->subject;
    struct lk_slice *slices[] = {&subject->name.tenant, &subject->name.scope,
                                 &subject->name.key, &subject->reference};
    size_t total = 1;

    for (size_t i = 0; i < 4; i++) {
        total += lk_field_text(operation, names[i]).len;
    }
    subject->text.len = 0;
    lk_must(latchkey_buf_reserve(&subject->text, total));
    for (size_t i = 0; i < 4; i++) {
        struct lk_slice text = lk_field_text(operation, names[i]);

        *slices[i] =
            (struct lk_slice){subject->text.data + subject->text.len, text.len};
        lk_put_raw(&subject->text, text);
    }
    subject->token = latchkey_slice_equal(lk_field_text(operation, "state"),
                                          LK_SLICE("uncertain"))
                         ? lk_field_number(operation, "token")
                         : 0;
}

/* What separates one operation from the next. */
static void begin_element(struct visit *visit)
{
    struct lk_cli *cli = visit->cli;

    if (visit->many && visit->visited > 0 && cli->json) {
        lk_put(&cli->out, ",");
    } else if (visit->visited > 0 && visit->meaning == LK_MEANS_EACH) {
        lk_put(&cli->out, "\n");
    }
    visit->visited++;
}

/* Ends an element of the list: a document without its newline. */
static void end_element(struct visit *visit)
{
    struct lk_buf *out = &visit->cli->out;

    while (visit->many && out->len > 0 && out->data[out->len - 1] == '\n') {
        out->len--;
    }
}

/* The element of a list for an operation that could not be shown. */
static void put_refusal(struct visit *visit, const char *result,
                        struct lk_slice reference)
{
    struct lk_doc doc = {.out = &visit->cli->out};

    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "result", latchkey_slice(result));
    lk_doc_text(&doc, "reference", reference);
    lk_doc_end_object(&doc);
}

/* Calls the function for cli->subject, and keeps the list well formed if it
 * fails. */
static enum lk_exit act_on(struct visit *visit, struct lk_slice reference)
{
    struct lk_cli *cli = visit->cli;
    enum lk_exit result;
    size_t begun;

    begin_element(visit);
    begun = cli->out.len;
    result = visit->act(cli, visit->context);
    if (visit->many && cli->json) {
        /* Half an element would break the document. */
        cli->out.len = result > LK_EXIT_NO ? begun : cli->out.len;
        if (cli->out.len == begun) {
            put_refusal(visit, "ERR", reference);
        }
        end_element(visit);
    } else if (visit->many) {
        /* Messages about one operation come before those about the next. */
        enum lk_exit flushed = lk_cli_flush(cli);
        result = flushed > result ? flushed : result;
    }
    return result;
}

/* There is no such operation: complains, and writes null or an element for it.
 * LK_EXIT_NO. */
static enum lk_exit miss_operation(struct visit *visit, const char *what,
                                   struct lk_slice word)
{
    struct lk_cli *cli = visit->cli;

    lk_complain("%sno operation has %s %.*s",
                visit->meaning == LK_MEANS_ONE ? "nothing was changed: " : "",
                what, (int)word.len, word.data);
    if (cli->json && !visit->many && visit->meaning == LK_MEANS_EACH) {
        lk_put(&cli->out, "null\n");
    } else if (cli->json) {
        begin_element(visit);
        put_refusal(visit, "NIL", word);
        end_element(visit);
    }
    return LK_EXIT_NO;
}

/* ---- By reference -------------------------------------------------------- */

/* LK_EXIT_NO: there is none; it does not complain. `tenant` may be NULL. */
static enum lk_exit fetch_by_reference(struct lk_cli *cli, const char *tenant,
                                       struct lk_slice reference)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "FIND");
    if (tenant != NULL) {
        lk_words_add(&words, tenant);
    }
    lk_words_add_slice(&words, reference);
    result = lk_call(cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type == LK_REPLY_NIL) {
        return LK_EXIT_NO;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(cli);
    }
    take_subject(cli, reply);
    return LK_EXIT_DONE;
}

/* `tenant` NULL: of any tenant. */
static enum lk_exit visit_reference(struct visit *visit, const char *tenant,
                                    struct lk_slice reference)
{
    enum lk_exit result = fetch_by_reference(visit->cli, tenant, reference);

    if (result == LK_EXIT_NO) {
        return miss_operation(visit,
                              tenant == NULL ? "the reference"
                                             : "in this tenant the reference",
                              reference);
    }
    return result == LK_EXIT_DONE ? act_on(visit, reference) : result;
}

/* ---- By what a provider calls it ----------------------------------------- */

/* Appends the references of the jobs' operations, each once, all of the same
 * length and with nothing between them. */
static void collect_references(struct lk_buf *found,
                               const struct lk_reply *jobs)
{
    for (size_t i = 0; i < jobs->count; i++) {
        struct lk_slice reference =
            lk_field_text(&jobs->elements[i], "reference");
        bool known = reference.len != LK_REFERENCE_TEXT;

        for (size_t at = 0; at < found->len && !known;
             at += LK_REFERENCE_TEXT) {
            known = memcmp(found->data + at, reference.data,
                           LK_REFERENCE_TEXT) == 0;
        }
        if (!known) {
            lk_put_raw(found, reference);
        }
    }
}

/* Fills `found` with the references of all operations that have such a job. */
static enum lk_exit find_by_provider(struct lk_cli *cli, const char *id,
                                     struct lk_buf *found)
{
    const struct lk_jobs_filter filter = {.provider_id = id};
    const struct lk_reply *jobs;
    uint64_t cursor = 0;
    enum lk_exit result;

    do {
        result = lk_jobs_page(cli, &filter, 1000, &cursor, &jobs);
        if (result == LK_EXIT_DONE) {
            collect_references(found, jobs);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    return result;
}

/* A command that changes something must mean one operation. */
static enum lk_exit refuse_several(const char *id, const struct lk_buf *found)
{
    lk_complain("nothing was changed: %zu operations have the provider's id "
                "%s; name the one that you mean by its reference:",
                found->len / LK_REFERENCE_TEXT, id);
    for (size_t at = 0; at < found->len; at += LK_REFERENCE_TEXT) {
        lk_complain("  %.*s", LK_REFERENCE_TEXT, found->data + at);
    }
    return LK_EXIT_NO;
}

static enum lk_exit visit_provider(struct visit *visit, const char *id)
{
    struct lk_buf found = {0};
    enum lk_exit result = find_by_provider(visit->cli, id, &found);

    if (result == LK_EXIT_DONE && found.len == 0) {
        /* It may also have been a reference, with a slip in it. */
        result = miss_operation(visit, "the reference or provider's id",
                                latchkey_slice(id));
    } else if (result == LK_EXIT_DONE && found.len > LK_REFERENCE_TEXT &&
               visit->meaning == LK_MEANS_ONE) {
        result = refuse_several(id, &found);
    } else if (result == LK_EXIT_DONE) {
        visit->many = found.len > LK_REFERENCE_TEXT;
        lk_put(&visit->cli->out, "%s",
               visit->many && visit->cli->json ? "{\"operations\":[" : "");
        for (size_t at = 0; at < found.len && result <= LK_EXIT_NO;
             at += LK_REFERENCE_TEXT) {
            enum lk_exit one = visit_reference(
                visit, NULL,
                (struct lk_slice){found.data + at, LK_REFERENCE_TEXT});
            result = one > result ? one : result;
        }
    }
    latchkey_buf_free(&found);
    return result;
}

/* Twelve digits may be either; what is a reference comes first. */
static enum lk_exit visit_word(struct visit *visit, const char *word)
{
    struct lk_slice reference;
    enum lk_exit result;

    if (!take_reference(word, &reference)) {
        return visit_provider(visit, word);
    }
    result = fetch_by_reference(visit->cli, NULL, reference);
    if (result == LK_EXIT_DONE) {
        return act_on(visit, reference);
    }
    if (result == LK_EXIT_NO && reference.len != LK_REFERENCE_TEXT) {
        return visit_provider(visit, word);
    }
    return result == LK_EXIT_NO
               ? miss_operation(visit, "the reference", reference)
               : result;
}

/* ---- All words ----------------------------------------------------------- */

static enum lk_exit complain_words(const struct lk_cli *cli, const char *word)
{
    return lk_complain_usage(cli,
                             "\"%s\" is not a reference; one looks like "
                             "7D3F-92AB-1C4E. Name operations by references, "
                             "or one by TENANT SCOPE KEY or by its provider's "
                             "id",
                             word);
}

/* Goes on after operations that are missing or were refused; stops at a failure
 * that the others would meet too, and says how many were not tried. */
static enum lk_exit visit_references(struct visit *visit)
{
    const struct lk_args *args = &visit->cli->args;
    enum lk_exit worst = LK_EXIT_DONE;
    size_t i;

    lk_put(&visit->cli->out, "%s", visit->cli->json ? "{\"operations\":[" : "");
    for (i = 0; i < args->word_count &&
                (worst == LK_EXIT_DONE || worst == LK_EXIT_NO ||
                 worst == LK_EXIT_FAILED);
         i++) {
        struct lk_slice reference = {0};
        enum lk_exit result;

        (void)take_reference(args->words[i], &reference);
        result = visit_reference(visit, NULL, reference);
        worst = result > worst ? result : worst;
    }
    if (i < args->word_count && worst != LK_EXIT_USAGE) {
        lk_complain("%zu more were not tried, from %s on", args->word_count - i,
                    args->words[i]);
    }
    return worst;
}

/* Decides by number and form of the words which of the four forms it is. */
static enum lk_exit visit_words(struct visit *visit)
{
    struct lk_cli *cli = visit->cli;
    const struct lk_args *args = &cli->args;
    size_t references = count_references(args);
    struct lk_slice reference;

    if (args->word_count == 3 && references < 3) {
        cli->subject.name = (struct lk_name){latchkey_slice(args->words[0]),
                                             latchkey_slice(args->words[1]),
                                             latchkey_slice(args->words[2])};
        return visit->act(cli, visit->context);
    }
    if (args->word_count == 1) {
        return visit_word(visit, args->words[0]);
    }
    if (args->word_count == 2 && references == 0 &&
        take_reference(args->words[1], &reference)) {
        return visit_reference(visit, args->words[0], reference);
    }
    if (references < args->word_count) {
        return complain_words(cli, args->words[references]);
    }
    visit->many = true;
    return visit_references(visit);
}

/* The worst exit status of all. LK_EXIT_USAGE: nothing was done. */
enum lk_exit lk_each_operation(struct lk_cli *cli, enum lk_meaning meaning,
                               lk_subject_fn act, void *context)
{
    struct visit visit = {
        .cli = cli, .meaning = meaning, .act = act, .context = context};
    enum lk_exit result = visit_words(&visit);

    if (visit.many && result != LK_EXIT_USAGE) {
        /* What was printed stays printed, also if the last one failed. */
        lk_put(&cli->out, "%s", cli->json ? "]}\n" : "");
        enum lk_exit flushed = lk_cli_flush(cli);
        result = flushed > result ? flushed : result;
    }
    return result;
}

/* ---- The command --------------------------------------------------------- */

enum lk_exit lk_run_find(struct lk_cli *cli)
{
    return lk_each_operation(cli, LK_MEANS_EACH, lk_operation_show, NULL);
}
