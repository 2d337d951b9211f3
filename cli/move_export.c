/*
 * move_export.c - `latchkey export`: all operations and the audit log, as JSON
 * lines.
 *
 *   begin        version, kind of store, secret of the references, last token
 *   operation    one line each, with its response
 *   audit        one line each
 *   end          how many of both: without it the file was cut
 *
 * It reads from a daemon (EXPORT, page by page) or opens a store itself
 * (--store); both paths end in put_export_line(). Members are in move_lines.c.
 */
#include "cli/commands.h"
#include "cli/move.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lines asked of a daemon; bytes that are written at once; operations read from
 * a store at once, with their responses. */
enum { PAGE = 1000, FLUSH_BYTES = 1 << 20, STEP = 64 };

static const struct lk_option export_options[] = {
    {"store", "URL", "read this store directly, without a daemon"},
    LK_OPTION_SET,
    {"output", "FILE", "write a new file, private to you (standard output)"},
    {"without-jobs", NULL, "leave unfinished jobs behind"},
    {"why", "TEXT", "the reason, kept in the audit log (export)"},
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_export = {
    "Writes every operation, with its response, and the audit log as lines of\n"
    "JSON, for latchkey import. A daemon keeps working in the meantime: run a\n"
    "second export for what changes while the first one runs. With --store "
    "the\n"
    "store is opened directly; no daemon may have an embedded store open "
    "then.\n"
    "\n"
    "Jobs are not exported. While some are unfinished the export is refused,\n"
    "unless --without-jobs leaves them behind; operations that were accepted "
    "and\n"
    "have not run are then uncertain in the export.\n"
    "\n"
    "The file holds stored responses and the secret of the references: "
    "protect\n"
    "it as you protect the store.",
    export_options};

struct export
{
    struct lk_cli *cli;
    const char *path; /* NULL: standard output */
    int fd;
    struct lk_buf out;
    struct lk_line line;
    struct lk_bar bar;
    uint64_t total; /* about how many operations */
    uint64_t operations;
    uint64_t audit;
    uint64_t jobs;     /* unfinished in the store */
    uint64_t accepted; /* operations that have not run */
    uint64_t last_id;  /* of the audit log, and how many the last page had */
    size_t last_page;
    enum lk_exit result;
};

/* ---- The file ------------------------------------------------------------ */

/* A new file, for its owner alone; an existing one is never overwritten. */
static enum lk_exit open_output(struct export *export)
{
    export->path = lk_args_value(&export->cli->args, "output");
    export->fd = STDOUT_FILENO;
    if (export->path == NULL || strcmp(export->path, "-") == 0) {
        export->path = NULL;
        return LK_EXIT_DONE;
    }
    export->fd =
        open(export->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (export->fd >= 0) {
        return LK_EXIT_DONE;
    }
    lk_complain("cannot write %s: %s", export->path, strerror(errno));
    return LK_EXIT_USAGE;
}

/* Writes what has been collected; a failure is reported once, and ends the
 * export. */
static void flush_export(struct export *export)
{
    const char *at = export->out.data;
    size_t left = export->out.len;

    while (left > 0 && export->result == LK_EXIT_DONE) {
        ssize_t written = write(export->fd, at, left);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            lk_complain("cannot write the export: %s", strerror(errno));
            export->result = LK_EXIT_FAILED;
            break;
        }
        at += written;
        left -= (size_t)written;
    }
    export->out.len = 0;
}

/* Flushes the file to the disk, and removes it if the export failed: a file
 * that is not whole is of no use. */
static void close_output(struct export *export)
{
    if (export->path == NULL || export->fd < 0) {
        return;
    }
    if (export->result == LK_EXIT_DONE && fsync(export->fd) != 0) {
        lk_complain("cannot write %s: %s", export->path, strerror(errno));
        export->result = LK_EXIT_FAILED;
    }
    close(export->fd);
    if (export->result != LK_EXIT_DONE) {
        unlink(export->path);
    }
}

/* ---- Lines --------------------------------------------------------------- */

/*
 * Without its request, an accepted operation cannot run. A client was promised
 * that it would run, so it is not left out: as an uncertain one it is seen, and
 * decided. If it runs here in the meantime, its newer state replaces this one.
 */
static void doubt_accepted(struct export *export,
                           struct lk_operation *operation)
{
    if (operation->state == LK_STATE_ACCEPTED) {
        operation->state = LK_STATE_UNCERTAIN;
        operation->reason =
            LK_SLICE("it was accepted, and its request was left "
                     "in the store that it comes from");
        export->accepted++;
    }
}

/*
 * Writes export->line, and counts it. A failure to write is in export->result.
 */
static void put_export_line(struct export *export)
{
    struct lk_line *line = &export->line;

    if (line->type == LK_LINE_OPERATION) {
        doubt_accepted(export, &line->operation);
    }
    export->operations += line->type == LK_LINE_OPERATION;
    export->audit += line->type == LK_LINE_AUDIT;
    if (line->type == LK_LINE_BEGIN) {
        export->total = line->begin.operations;
    }
    lk_line_write(&export->out, line);
    if (export->out.len >= FLUSH_BYTES) {
        flush_export(export);
        lk_bar_show(&export->bar, export->operations, export->total);
    }
}

static void put_end(struct export *export)
{
    lk_line_free(&export->line);
    export->line.type = LK_LINE_END;
    export->line.end.operations = export->operations;
    export->line.end.audit = export->audit;
    lk_line_write(&export->out, &export->line);
    flush_export(export);
}

/* ---- Jobs ---------------------------------------------------------------- */

/* LK_EXIT_NO: there are unfinished jobs, and --without-jobs is not given. */
static enum lk_exit judge_jobs(const struct export *export)
{
    if (export->jobs == 0 || lk_args_flag(&export->cli->args, "without-jobs")) {
        return LK_EXIT_DONE;
    }
    lk_complain(
        "an export has no jobs, and %llu of this store %s not finished: let "
        "the courier finish, and settle what is uncertain or dead (latchkey "
        "jobs lists them); or leave them behind: --without-jobs",
        (unsigned long long)export->jobs, export->jobs == 1 ? "is" : "are");
    return LK_EXIT_NO;
}

/* The unfinished jobs of all targets. */
static enum lk_exit count_online(struct export *export)
{
    static const char *const states[] = {"waiting", "leased", "uncertain",
                                         "dead"};
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "STATUS");
    result = lk_call_patiently(export->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(export->cli);
    }
    for (size_t i = 0; i < reply->count; i++) {
        for (size_t j = 0; j < sizeof(states) / sizeof(states[0]); j++) {
            export->jobs += lk_field_number(&reply->elements[i], states[j]);
        }
    }
    return judge_jobs(export);
}

static bool count_target(void *context,
                         const struct lk_target_summary *standing)
{
    struct export *export = context;

    for (int state = 0; state < LK_JOB_DELIVERED; state++) {
        export->jobs += standing->jobs[state];
    }
    return true;
}

static void tell_left_behind(const struct export *export)
{
    if (export->jobs > 0) {
        lk_complain("%llu unfinished jobs stay behind",
                    (unsigned long long)export->jobs);
    }
    if (export->accepted > 0) {
        lk_complain("%llu operations were accepted and have not run: they are "
                    "uncertain in the export",
                    (unsigned long long)export->accepted);
    }
}

/* ---- From a daemon ------------------------------------------------------- */

/* Asks the daemon for the first line: what the store is, the secret of its
 * references, and the last token. */
static enum lk_exit begin_online(struct export *export)
{
    struct lk_action action = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&action.words, "EXPORT");
    lk_words_add(&action.words, "BEGIN");
    result = lk_action_words(export->cli, &action, "export");
    if (result == LK_EXIT_DONE) {
        result = lk_call(export->cli, &action.words, &reply);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY ||
        lk_field_number(reply, "version") != LK_EXPORT_VERSION) {
        return lk_complain_reply(export->cli);
    }
    bool keeps_jobs =
        !latchkey_slice_equal(lk_field_text(reply, "store"), LK_SLICE("redis"));
    lk_line_take(&export->line, LK_LINE_BEGIN, reply);
    put_export_line(export);
    if (export->result == LK_EXIT_DONE && keeps_jobs) {
        return count_online(export);
    }
    return export->result;
}

/* [cursor, [operation...]]; *cursor 0: that was the last page. */
static enum lk_exit put_page(struct export *export, uint64_t *cursor)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "EXPORT");
    lk_words_add_number(&words, *cursor);
    lk_words_add_number(&words, PAGE);
    result = lk_call_patiently(export->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count != 2 ||
        reply->elements[0].type != LK_REPLY_INTEGER ||
        reply->elements[1].type != LK_REPLY_ARRAY) {
        return lk_complain_reply(export->cli);
    }
    for (size_t i = 0; i < reply->elements[1].count; i++) {
        lk_line_take(&export->line, LK_LINE_OPERATION,
                     &reply->elements[1].elements[i]);
        put_export_line(export);
    }
    *cursor = (uint64_t)reply->elements[0].integer;
    return export->result;
}

/*
 * The next entries after export->last_id; export->last_page 0: there are none.
 */
static enum lk_exit put_audit_page(struct export *export)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "AUDIT");
    lk_words_add(&words, "AFTER");
    lk_words_add_number(&words, export->last_id);
    lk_words_add(&words, "LIMIT");
    lk_words_add_number(&words, PAGE);
    result = lk_call_patiently(export->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(export->cli);
    }
    for (size_t i = 0; i < reply->count; i++) {
        lk_line_take(&export->line, LK_LINE_AUDIT, &reply->elements[i]);
        export->last_id = export->line.audit.id;
        put_export_line(export);
    }
    export->last_page = reply->count;
    return export->result;
}

/* Through the daemon, page by page, while it serves others. */
static enum lk_exit export_online(struct export *export)
{
    uint64_t cursor = 0;
    enum lk_exit result = begin_online(export);

    while (result == LK_EXIT_DONE) {
        result = put_page(export, &cursor);
        if (cursor == 0) {
            break;
        }
    }
    do {
        if (result == LK_EXIT_DONE) {
            result = put_audit_page(export);
        }
    } while (result == LK_EXIT_DONE && export->last_page > 0);
    return result;
}

/* ---- From a store -------------------------------------------------------- */

/* Called by the store for each operation. The line borrows the texts and the
 * stored response only until it is written. */
static bool put_operation(void *context, const struct lk_operation *operation)
{
    struct export *export = context;
    struct lk_line *line = &export->line;

    lk_line_free(line);
    line->type = LK_LINE_OPERATION;
    line->operation = *operation;
    if (operation->state == LK_STATE_COMPLETED && !operation->omitted &&
        operation->stored != NULL) {
        line->response = operation->stored->response;
    }
    put_export_line(export);
    line->operation.stored = NULL; /* the store's */
    return true;
}

static bool put_audit_entry(void *context, const struct lk_audit_entry *entry)
{
    struct export *export = context;

    lk_line_free(&export->line);
    export->line.type = LK_LINE_AUDIT;
    export->line.audit = *entry;
    export->last_id = entry->id;
    export->last_page++;
    put_export_line(export);
    return true;
}

/*
 * The first line. The secret goes with it: without it references would change.
 */
static void put_begin(struct export *export, struct lk_store *store)
{
    struct lk_store_stats stats = {0};
    struct lk_buf secret = {0};

    store->class->stats(store, &stats);
    for (size_t i = 0; i < LK_REFERENCE_KEY; i++) {
        lk_put(&secret, "%02x", store->reference_secret[i]);
    }
    lk_line_free(&export->line);
    export->line.type = LK_LINE_BEGIN;
    export->line.begin = (struct lk_line_begin){
        .version = LK_EXPORT_VERSION,
        .store = latchkey_slice(store->class->scheme),
        .reference_secret = latchkey_buf_slice(&secret),
        .last_token = stats.last_token,
        .operations = stats.operations,
        .now_ms = stats.now_ms,
    };
    put_export_line(export);
    latchkey_buf_free(&secret);
}

/* In small steps: each operation comes with its response. */
static enum lk_status put_operations(struct export *export,
                                     struct lk_store *store)
{
    struct lk_list_query query = {
        .any_state = true, .limit = STEP, .whole = true};
    enum lk_status status;

    do {
        status = store->class->list(store, &query, put_operation, export,
                                    &query.cursor);
    } while (status == LK_OK && query.cursor != 0 &&
             export->result == LK_EXIT_DONE);
    return status;
}

static enum lk_status put_audit(struct export *export, struct lk_store *store)
{
    enum lk_status status;

    do {
        export->last_page = 0;
        const struct lk_audit_query query = {.after = export->last_id,
                                             .limit = PAGE};
        status = store->class->audit(store, &query, put_audit_entry, export);
    } while (status == LK_OK && export->last_page > 0 &&
             export->result == LK_EXIT_DONE);
    return status;
}

/* Opening an embedded store makes one where there is none. */
static enum lk_exit check_there(const char *url)
{
    const char *path = url + strlen("sqlite:");

    if (lk_url_is(url, "sqlite") && access(path, R_OK) != 0) {
        lk_complain("cannot read %s: %s", path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

/* Directly from the store; an embedded one must not be open in a daemon. */
static enum lk_exit export_store(struct export *export, const char *url)
{
    struct lk_store_config config;
    struct lk_config settings;
    struct lk_store *store = NULL;
    enum lk_status status = LK_OK;
    enum lk_exit result =
        lk_store_settings(export->cli, url, &settings, &config);

    if (result == LK_EXIT_DONE) {
        result = check_there(settings.store_url);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_store_connect(export->cli, settings.store_url, &config, &store);
    }
    if (result == LK_EXIT_DONE && store->class->targets != NULL) {
        status = store->class->targets(store, count_target, export);
        result = status == LK_OK ? judge_jobs(export) : result;
    }
    if (result == LK_EXIT_DONE && status == LK_OK) {
        put_begin(export, store);
        status = put_operations(export, store);
    }
    if (result == LK_EXIT_DONE && status == LK_OK) {
        status = put_audit(export, store);
    }
    lk_bar_stop(&export->bar);
    lk_store_close(store);
    lk_config_free(&settings);
    if (status != LK_OK) {
        result = lk_complain_store(status, "it was read");
    }
    return result;
}

/* The first failure counts. The last line is written only after success. */
enum lk_exit lk_run_export(struct lk_cli *cli)
{
    struct export export = {.cli = cli};
    const char *url = lk_args_value(&cli->args, "store");
    enum lk_exit result = open_output(&export);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_bar_start(&export.bar, cli, "export");
    result = url == NULL ? export_online(&export) : export_store(&export, url);
    lk_bar_stop(&export.bar);
    if (export.result == LK_EXIT_DONE) {
        export.result = result;
    }
    if (export.result == LK_EXIT_DONE) {
        put_end(&export);
    }
    close_output(&export);
    if (export.result == LK_EXIT_DONE) {
        tell_left_behind(&export);
        lk_hint(cli, "exported %llu operations and %llu audit entries",
                (unsigned long long)export.operations,
                (unsigned long long)export.audit);
    }
    lk_line_free(&export.line);
    latchkey_buf_free(&export.out);
    return export.result;
}
