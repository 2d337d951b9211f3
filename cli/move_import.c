/*
 * move_import.c - `latchkey import`: imports the operations of an export.
 *
 * Lines are collected into batches of one type (BATCH lines or BATCH_BYTES),
 * and each batch is one step of the store: all of it or nothing. The store
 * decides for each operation whether it is newer than its own, so an import may
 * be interrupted and run again.
 */
#include "cli/commands.h"
#include "cli/move.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 1024, BATCH_BYTES = 4 << 20 };

static const struct lk_option import_options[] = {
    {"store", "URL", "where the operations go (LATCHKEY_STORE)"},
    LK_OPTION_SET,
    {"why", "TEXT", "the reason, kept in the audit log (import)"},
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_import = {
    "Imports the operations and the audit log that latchkey export has "
    "written\n"
    "to FILE, or to standard input. The store is opened directly: no daemon "
    "may\n"
    "have an embedded store open in the meantime; a store on a server may be "
    "in\n"
    "use.\n"
    "\n"
    "An operation is imported if the store has none of its name, or an "
    "earlier\n"
    "one: a smaller token, or the same token in an earlier state. You can run\n"
    "it again: it then imports only what is newer. References stay valid if "
    "the\n"
    "store has given out none of its own.",
    import_options};

struct import {
    struct lk_cli *cli;
    struct lk_lines lines;
    struct lk_store *store;
    struct lk_line *batch;           /* BATCH of them */
    struct lk_operation *operations; /* of these lines, for the store */
    struct lk_audit_entry *audit;
    size_t count;
    size_t bytes;
    enum lk_line_type type; /* of the lines in the batch */
    uint64_t operations_read;
    uint64_t audit_read;
    struct lk_import total;
    bool ended;
};

/* ---- The batch ----------------------------------------------------------- */

/* Makes the stored response of a completed operation from its line. The line
 * owns it (lk_line_free), the array for the store borrows it. */
static void set_operation(struct import *import, size_t at)
{
    struct lk_line *line = &import->batch[at];
    struct lk_operation *operation = &line->operation;

    if (operation->state == LK_STATE_COMPLETED && !operation->omitted) {
        line->response.status = operation->status;
        operation->response_bytes =
            line->response.headers.len + line->response.body.len;
        operation->stored =
            lk_stored_make(operation->token, operation->completed_ms,
                           &line->response, (struct lk_slice){0});
        lk_must(operation->stored == NULL ? LK_NOMEM : LK_OK);
    }
    import->operations[at] = *operation;
}

/* One step of the store; the counts are added only if it was taken. */
static enum lk_status give_operations(struct import *import)
{
    struct lk_import result = {.highest_token = import->total.highest_token};
    enum lk_status status;

    for (size_t i = 0; i < import->count; i++) {
        set_operation(import, i);
    }
    status = import->store->class->import(import->store, import->operations,
                                          import->count, &result);
    if (status == LK_OK) {
        import->total.taken += result.taken;
        import->total.older += result.older;
        import->total.renumbered += result.renumbered;
        if (result.highest_token > import->total.highest_token) {
            import->total.highest_token = result.highest_token;
        }
    }
    return status;
}

static enum lk_status give_audit(struct import *import)
{
    for (size_t i = 0; i < import->count; i++) {
        import->audit[i] = import->batch[i].audit;
    }
    return import->store->class->import_audit(import->store, import->audit,
                                              import->count);
}

/* Gives the batch to the store, and empties it. LK_EXIT_NO: the store refuses
 * one of its lines, and has taken none of them.
 */
static enum lk_exit import_batch(struct import *import)
{
    enum lk_status status = LK_OK;

    assert(import->type == LK_LINE_OPERATION || import->type == LK_LINE_AUDIT ||
           import->count == 0);
    if (import->count > 0) {
        status = import->type == LK_LINE_OPERATION ? give_operations(import)
                                                   : give_audit(import);
    }
    if (status == LK_INVALID) {
        lk_complain("this store cannot hold an operation in the %zu lines up "
                    "to line %llu",
                    import->count, (unsigned long long)import->lines.number);
        return LK_EXIT_NO;
    }
    import->count = import->bytes = 0;
    return status == LK_OK ? LK_EXIT_DONE
                           : lk_complain_store(status, "it was written");
}

/* ---- Lines --------------------------------------------------------------- */

/* LK_EXIT_NO, with the number of the line. */
static enum lk_exit refuse_import_line(const struct import *import,
                                       const char *wrong)
{
    lk_complain("line %llu of %s: %s", (unsigned long long)import->lines.number,
                import->lines.title, wrong);
    return LK_EXIT_NO;
}

/* What is wrong with the operation of a line, or NULL: members that one state
 * needs, which the table of members cannot express. */
static const char *find_fault(const struct lk_line *line)
{
    const struct lk_operation *operation = &line->operation;

    if (operation->token == 0) {
        return "its token is 0";
    }
    switch (operation->state) {
    case LK_STATE_IN_PROGRESS:
        return operation->lock_until_ms == 0 ? "it has no end of its lock"
                                             : NULL;
    case LK_STATE_UNCERTAIN:
        return operation->since_ms == 0 ? "it does not say since when" : NULL;
    case LK_STATE_COMPLETED:
        if (operation->status < 100) {
            return "it has no status";
        }
        if (operation->omitted && operation->reason.len == 0) {
            return "its response was omitted without a reason";
        }
        return operation->expires_ms == 0 ? "it does not say until when" : NULL;
    case LK_STATE_RELEASED:
        return operation->expires_ms == 0 ? "it does not say until when" : NULL;
    default:
        return "no store imports an operation in this state";
    }
}

/* The counts of the last line must be those of the lines before it. */
static enum lk_exit end_file(struct import *import, const struct lk_line *line)
{
    if (line->end.operations != import->operations_read ||
        line->end.audit != import->audit_read) {
        return refuse_import_line(import,
                                  "the counts are not those of the lines "
                                  "before: some are missing");
    }
    import->ended = true;
    return import_batch(import);
}

/*
 * Takes the line that was read into batch[count]. If it is of another type than
 * the batch, the batch is imported first and the line becomes the first of the
 * next one.
 */
static enum lk_exit take_import_line(struct import *import)
{
    struct lk_line *line = &import->batch[import->count];
    const char *fault = NULL;
    enum lk_exit result = LK_EXIT_DONE;

    if (import->ended || line->type == LK_LINE_BEGIN) {
        return refuse_import_line(import, "it does not belong there");
    }
    if (line->type == LK_LINE_END) {
        return end_file(import, line);
    }
    fault = line->type == LK_LINE_OPERATION ? find_fault(line) : NULL;
    if (fault != NULL) {
        return refuse_import_line(import, fault);
    }
    if (import->count > 0 && line->type != import->type) {
        struct lk_line last = *line;

        import->batch[import->count] = (struct lk_line){0};
        result = import_batch(import);
        lk_line_free(&import->batch[0]);
        import->batch[0] = last;
        line = &import->batch[0];
    }
    import->type = line->type;
    import->count++;
    import->bytes += line->bytes.len;
    import->operations_read += line->type == LK_LINE_OPERATION;
    import->audit_read += line->type == LK_LINE_AUDIT;
    if (result == LK_EXIT_DONE &&
        (import->count == BATCH || import->bytes >= BATCH_BYTES)) {
        result = import_batch(import);
    }
    return result;
}

/* Reads and takes lines until the end. LK_EXIT_NO: the file was cut or has a
 * bad line; what was imported before stays. */
static enum lk_exit take_lines(struct import *import)
{
    struct lk_bar bar;
    enum lk_exit result = LK_EXIT_DONE;
    bool more = true;

    lk_bar_start(&bar, import->cli, "import");
    while (result == LK_EXIT_DONE && more) {
        result =
            lk_lines_next(&import->lines, &import->batch[import->count], &more);
        if (result == LK_EXIT_DONE && more) {
            result = take_import_line(import);
        }
        lk_bar_show(&bar, import->lines.done, import->lines.total);
    }
    lk_bar_stop(&bar);
    if (result == LK_EXIT_DONE && !import->ended) {
        lk_complain("%s ends after line %llu without its last line: it was cut",
                    import->lines.title,
                    (unsigned long long)import->lines.number);
        result = LK_EXIT_NO;
    }
    return result;
}

/* ---- The begin ----------------------------------------------------------- */

/* 32 hexadecimal digits; false: it is something else. */
static bool read_secret(struct lk_slice hex, uint8_t secret[LK_REFERENCE_KEY])
{
    if (hex.len != 2 * (size_t)LK_REFERENCE_KEY) {
        return false;
    }
    for (size_t i = 0; i < LK_REFERENCE_KEY; i++) {
        char digits[3] = {hex.data[2 * i], hex.data[2 * i + 1], '\0'};
        char *end;

        secret[i] = (uint8_t)strtoul(digits, &end, 16);
        if (*end != '\0') {
            return false;
        }
    }
    return true;
}

/* References are computed from a secret: a store that has given out none of
 * its own takes the secret of the export, so that references stay valid. */
static enum lk_exit adopt_references(struct import *import, struct lk_slice hex)
{
    uint8_t secret[LK_REFERENCE_KEY];
    uint8_t own[LK_REFERENCE_KEY];
    enum lk_status status;

    memcpy(own, import->store->reference_secret, sizeof(own));
    if (!read_secret(hex, secret)) {
        return refuse_import_line(import,
                                  "\"reference_secret\" is missing or is not "
                                  "32 hexadecimal digits");
    }
    status = import->store->class->adopt(import->store, secret);
    if (status == LK_BUSY) {
        lk_complain("the store has given out references of its own: those of "
                    "the imported operations change");
    } else if (status == LK_OK && import->store->shared &&
               memcmp(own, secret, sizeof(own)) != 0) {
        lk_hint(import->cli, "references go over to this store: restart "
                             "daemons that have it open already");
    }
    return status == LK_OK || status == LK_BUSY
               ? LK_EXIT_DONE
               : lk_complain_store(status, "it imported the references");
}

/* The first line, before a store is opened: a wrong file changes nothing. */
static enum lk_exit read_begin(struct import *import)
{
    struct lk_line *line = &import->batch[0];
    bool more = true;
    enum lk_exit result = lk_lines_next(&import->lines, line, &more);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!more || line->type != LK_LINE_BEGIN) {
        lk_complain("%s is not an export of latchkey", import->lines.title);
        return LK_EXIT_NO;
    }
    if (line->begin.version != LK_EXPORT_VERSION) {
        lk_complain("%s has version %llu of the format, and this latchkey "
                    "knows version %d; use the latchkey that wrote it, or a "
                    "later one",
                    import->lines.title,
                    (unsigned long long)line->begin.version, LK_EXPORT_VERSION);
        return LK_EXIT_NO;
    }
    return LK_EXIT_DONE;
}

/* Writes who imports, and why, into the audit log of the store. */
static enum lk_exit note_import(struct import *import)
{
    struct lk_action action = {0};
    struct lk_line_begin *begin = &import->batch[0].begin;
    struct lk_buf text = {0};
    enum lk_status status = LK_OK;
    enum lk_exit result = lk_action_words(import->cli, &action, "import");

    if (result == LK_EXIT_DONE) {
        lk_put(&text, "import from %.*s", (int)begin->store.len,
               begin->store.data);
        const struct lk_audit_entry entry = {
            .action = latchkey_buf_slice(&text),
            .who = action.words.words[1],
            .why = action.words.words[3],
        };
        status = import->store->class->note(import->store, &entry);
    }
    latchkey_buf_free(&text);
    return status == LK_OK ? result
                           : lk_complain_store(status, "it was written");
}

/* Tokens of the store go on above the highest one of the export: a holder of
 * before must never meet its own token again. */
static enum lk_exit begin_import(struct import *import)
{
    struct lk_line_begin *begin = &import->batch[0].begin;
    const struct lk_store_class *class = import->store->class;
    enum lk_exit result;

    if (class->import == NULL || class->import_audit == NULL ||
        class->adopt == NULL) {
        lk_complain("a %s store cannot import", class->scheme);
        return LK_EXIT_NO;
    }
    import->total.highest_token = begin->last_token;
    result = adopt_references(import, begin->reference_secret);
    return result == LK_EXIT_DONE ? note_import(import) : result;
}

/* ---- The end ------------------------------------------------------------- */

static void report_import(struct import *import)
{
    struct lk_cli *cli = import->cli;
    const struct lk_import *total = &import->total;
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_integer(&doc, "operations", (int64_t)import->operations_read);
        lk_doc_integer(&doc, "taken", (int64_t)total->taken);
        lk_doc_integer(&doc, "older", (int64_t)total->older);
        lk_doc_integer(&doc, "renumbered", (int64_t)total->renumbered);
        lk_doc_integer(&doc, "audit", (int64_t)import->audit_read);
        lk_doc_end_object(&doc);
        return;
    }
    lk_put(&cli->out,
           "%llu operations: %llu taken, %llu already there or newer, %llu "
           "with another reference; %llu audit entries\n",
           (unsigned long long)import->operations_read,
           (unsigned long long)total->taken, (unsigned long long)total->older,
           (unsigned long long)total->renumbered,
           (unsigned long long)import->audit_read);
}

/* The last line has the counts of all lines: what was imported before a file
 * turns out to be cut stays, and a message asks for the whole file. */
static enum lk_exit import_into(struct import *import, const char *url)
{
    struct lk_store_config config;
    struct lk_config settings;
    enum lk_exit result =
        lk_store_settings(import->cli, url, &settings, &config);

    if (result == LK_EXIT_DONE) {
        result = read_begin(import);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_store_connect(import->cli, settings.store_url, &config,
                                  &import->store);
    }
    if (result == LK_EXIT_DONE) {
        result = begin_import(import);
    }
    if (result == LK_EXIT_DONE) {
        result = take_lines(import);
        if (result == LK_EXIT_DONE) {
            report_import(import);
        } else if (import->total.taken > 0) {
            lk_complain("%llu operations have been taken and stay; import the "
                        "whole file when it is there",
                        (unsigned long long)import->total.taken);
        }
    }
    lk_store_close(import->store);
    lk_config_free(&settings);
    return result;
}

enum lk_exit lk_run_import(struct lk_cli *cli)
{
    struct import import = {.cli = cli};
    const char *url = lk_store_url(cli);
    const char *path = cli->args.word_count > 0 ? cli->args.words[0] : "-";
    enum lk_exit result;

    if (url == NULL) {
        return lk_complain_usage(cli, "name the store with --store URL or "
                                      "LATCHKEY_STORE");
    }
    result = lk_lines_open(&import.lines, path);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    import.batch = lk_must_make(BATCH + 1, sizeof(*import.batch));
    import.operations = lk_must_make(BATCH, sizeof(*import.operations));
    import.audit = lk_must_make(BATCH, sizeof(*import.audit));
    result = import_into(&import, url);
    for (size_t i = 0; i <= BATCH; i++) {
        lk_line_free(&import.batch[i]);
    }
    free(import.batch);
    free(import.operations);
    free(import.audit);
    lk_lines_close(&import.lines);
    return result;
}
