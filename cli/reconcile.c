/* reconcile.c - `latchkey reconcile`: a provider's ledger against ours. */
#include "cli/reconcile.h"
#include "cli/commands.h"

#include <stdlib.h>
#include <sys/random.h>

/* The provider's clock may be ahead of ours by that. */
enum { AHEAD_MS = 5 * 60 * 1000 };

/* ---- The target -----------------------------------------------------------
 */

/* A wrong name would make every line one that only the provider has. */
static enum lk_exit check_target(struct lk_run *run)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "STATUS");
    lk_words_add(&words, run->target);
    result = lk_call(run->cli, &words, &reply);
    if (result == LK_EXIT_DONE &&
        (reply->type != LK_REPLY_ARRAY || reply->count == 0)) {
        lk_complain("there is no target \"%s\"; latchkey target status lists "
                    "them",
                    run->target);
        return LK_EXIT_USAGE;
    }
    if (result == LK_EXIT_DONE) {
        run->settle_ms = lk_field_number(&reply->elements[0], "settle_ms");
        run->coverage.unsettled = run->settle_ms == 0;
        run->forgotten_ms =
            lk_field_number(&reply->elements[0], "forgotten_ms");
    }
    return result;
}

static enum lk_exit probe(struct lk_run *run)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "PROBE");
    lk_words_add(&words, run->target);
    result = lk_call_patiently(run->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(run->cli);
    }
    run->probed = true;
    run->probe_happened = lk_field_number(reply, "happened");
    run->probe_absent = lk_field_number(reply, "absent");
    run->probe_open = lk_field_number(reply, "open");
    return LK_EXIT_DONE;
}

/* ---- Reading the export ---------------------------------------------------
 */

static enum lk_exit complain_status(enum lk_status status)
{
    if (status == LK_TOO_LARGE) {
        lk_complain("too many jobs have one and the same provider's id, or "
                    "value of --match: give more --memory, or --id-column '' "
                    "if the ids mean nothing");
    } else {
        lk_complain("cannot use temporary files: %s",
                    latchkey_status_text(status));
    }
    return LK_EXIT_FAILED;
}

static uint16_t line_flags(const struct lk_run *run, struct lk_slice time)
{
    uint16_t flags = 0;
    uint64_t ms;

    if (run->export.columns[LK_COLUMN_TIME].name == NULL ||
        latchkey_timestamp_parse(time, &ms) != LK_OK) {
        return LK_ITEM_WINDOW;
    }
    if (ms >= run->since_ms && (run->until_ms == 0 || ms < run->until_ms)) {
        flags |= LK_ITEM_WINDOW;
    }
    if (run->forgotten_ms != 0 && ms <= run->forgotten_ms + AHEAD_MS) {
        flags |= LK_ITEM_OLDER;
    }
    return flags;
}

static enum lk_exit add_row(struct lk_run *run, const struct lk_row *row)
{
    struct lk_item item = {.place = row->place, .number = row->line};
    enum lk_status status;

    if (row->cells[LK_COLUMN_KEY].len > 0) {
        item.flags |= LK_ITEM_KEY;
        item.key = lk_hash_text(run, row->cells[LK_COLUMN_KEY]);
    }
    if (row->cells[LK_COLUMN_ID].len > 0) {
        item.flags |= LK_ITEM_ID;
        item.id = lk_hash_text(run, row->cells[LK_COLUMN_ID]);
    }
    item.flags |= line_flags(run, row->cells[LK_COLUMN_TIME]);
    for (size_t i = 0; i < run->pair_count; i++) {
        lk_must(lk_value_hash(run->key, row->cells[LK_COLUMN_VALUES + i],
                              &item.values[i]));
    }
    run->coverage.lines++;
    status = lk_reconcile_add(run->reconcile, LK_THERE, &item);
    return status == LK_OK ? LK_EXIT_DONE : complain_status(status);
}

static enum lk_exit read_export(struct lk_run *run)
{
    struct lk_export *export = &run->export;
    struct lk_row row;
    bool more = true;
    enum lk_exit result = LK_EXIT_DONE;

    lk_bar_start(&run->bar, run->cli, "reading");
    while (result == LK_EXIT_DONE) {
        result = lk_export_next(export, &row, &more);
        if (result != LK_EXIT_DONE || !more) {
            break;
        }
        result = row.fault != NULL
                     ? lk_report_malformed(run, row.line, row.fault)
                     : add_row(run, &row);
        if ((run->coverage.lines & 0xfff) == 0) {
            lk_bar_show(&run->bar, export->offset,
                        (uint64_t) export->info.st_size);
        }
    }
    lk_bar_stop(&run->bar);
    run->coverage.unended = export->unended;
    return result == LK_EXIT_DONE ? lk_export_check(export) : result;
}

/* ---- What the join finds --------------------------------------------------
 */

static enum lk_exit take_finding(struct lk_run *run, enum lk_class of,
                                 const struct lk_finding *finding)
{
    enum lk_resolution outcome = LK_NOT_TRIED;
    enum lk_exit result = LK_EXIT_DONE;

    run->counts[of]++;
    if (run->apply && (of == LK_CLASS_HAPPENED || of == LK_CLASS_ABSENT)) {
        result = lk_resolve_by_proof(run, of, finding, &outcome);
        run->resolved[of] += outcome == LK_RESOLVED;
        run->refused += outcome == LK_REFUSED;
    }
    if (result == LK_EXIT_DONE && lk_class_is_open(of)) {
        result = lk_report_finding(run, of, finding, outcome);
    }
    return result;
}

/*
 * A key of ours is of one job. A reference may be of several, some of which may
 * be gone with their operations: only a line from after that, or any while no
 * job is gone, must be of a job that is here. And a job that was never called
 * has no line.
 */
static bool is_doubtful(const struct lk_run *run,
                        const struct lk_finding *finding)
{
    bool timed = run->export.columns[LK_COLUMN_TIME].name != NULL;
    bool others_gone = run->forgotten_ms != 0 &&
                       (!timed || (finding->there->flags & LK_ITEM_OLDER) != 0);

    return run->match.text != NULL && finding->by_key &&
           (others_gone || finding->here->attempt == 0);
}

/*
 * A line whose key of ours no job has is of another: keys are unique, and come
 * back as they went out. A reference may come back cut or written otherwise, so
 * that such a line may be of any job. One from before --since is of none that
 * is compared; with --until, it may also be from after that.
 */
static bool is_strange(const struct lk_run *run,
                       const struct lk_finding *finding)
{
    return run->match.text != NULL && finding->meeting == LK_ONLY_THERE &&
           finding->here == NULL &&
           (finding->there->flags & LK_ITEM_KEY) != 0 &&
           (finding->there->flags & LK_ITEM_SHARED) == 0 &&
           ((finding->there->flags & LK_ITEM_WINDOW) != 0 ||
            run->until_ms != 0);
}

static enum lk_status found(void *context, const struct lk_finding *finding)
{
    struct lk_run *run = context;
    enum lk_class of = lk_judge(finding);

    if (of == LK_CLASS_HAPPENED && is_doubtful(run, finding)) {
        of = LK_CLASS_AMBIGUOUS;
    }
    if (finding->meeting == LK_BOTH && finding->by_key) {
        run->coverage.by_key++;
    }
    if (finding->meeting == LK_ONLY_THERE && finding->here == NULL &&
        (finding->there->flags & LK_ITEM_KEY) == 0) {
        run->coverage.keyless++;
    }
    run->coverage.strange += is_strange(run, finding);
    run->coverage.missing += of == LK_CLASS_HERE;
    if (of == LK_CLASS_ABSENT) {
        /* Whether that proves anything is known only at the end. */
        return lk_spill_add(&run->pending, 0, finding->here);
    }
    run->failed = take_finding(run, of, finding);
    return run->failed == LK_EXIT_DONE ? LK_OK : LK_REPLY;
}

static void show_progress(void *context, uint64_t done, uint64_t total)
{
    struct lk_run *run = context;

    lk_bar_show(&run->bar, done, total);
}

static enum lk_exit take_pending(struct lk_run *run)
{
    bool proof = lk_absence_fault(&run->coverage) == NULL;
    struct lk_spill_reader reader;
    enum lk_status status = lk_spill_seal(&run->pending);
    enum lk_exit result = LK_EXIT_DONE;
    const void *item;

    if (status != LK_OK) {
        return complain_status(status);
    }
    lk_spill_read(&reader, &run->pending, 0);
    while (result == LK_EXIT_DONE && (item = lk_spill_next(&reader)) != NULL) {
        struct lk_finding finding = {.meeting = LK_ONLY_HERE, .here = item};

        result = take_finding(run, proof ? LK_CLASS_ABSENT : LK_CLASS_OPEN,
                              &finding);
    }
    status = lk_spill_read_end(&reader);
    return status == LK_OK ? result : complain_status(status);
}

/* ---- The command ----------------------------------------------------------
 */

static enum lk_exit open_join(struct lk_run *run)
{
    struct lk_reconcile_setup setup = {
        .memory = run->memory,
        .pairs = (unsigned)run->pair_count,
        .shared_keys = run->match.text != NULL,
        .temporary = lk_temporary,
        .found = found,
        .progress = show_progress,
        .context = run,
    };
    enum lk_status status = lk_reconcile_open(&setup, &run->reconcile);
    int fd = -1;

    if (status == LK_OK) {
        status = lk_temporary(NULL, &fd);
    }
    if (status == LK_OK) {
        status = lk_spill_open(&run->pending, fd, lk_item_size(setup.pairs), 1,
                               1 << 16);
    }
    if (status != LK_OK) {
        return complain_status(status);
    }
    if (getrandom(run->key, sizeof(run->key), 0) != (ssize_t)sizeof(run->key)) {
        lk_complain("there is no randomness");
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

static enum lk_exit join(struct lk_run *run)
{
    enum lk_status status;

    lk_bar_start(&run->bar, run->cli, "comparing");
    status = lk_reconcile_run(run->reconcile);
    lk_bar_stop(&run->bar);
    if (run->failed != LK_EXIT_DONE) {
        return run->failed;
    }
    return status == LK_OK ? take_pending(run) : complain_status(status);
}

static enum lk_exit compare(struct lk_run *run)
{
    enum lk_exit result = lk_export_open(run->cli, &run->export);

    run->coverage.has_header =
        !run->export.json && run->export.columns[LK_COLUMN_KEY].index >= 0;
    if (result == LK_EXIT_DONE) {
        result = open_join(run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_ledger_read(run);
    }
    /* What was forgotten while it was read counts as well. */
    if (result == LK_EXIT_DONE) {
        result = check_target(run);
    }
    lk_run_disconnect(run);
    if (result == LK_EXIT_DONE) {
        result = read_export(run);
    }
    return result == LK_EXIT_DONE ? join(run) : result;
}

enum lk_exit lk_run_reconcile(struct lk_cli *cli)
{
    struct lk_run run = {
        .cli = cli,
        .target = cli->args.words[0],
        .export = {.fd = -1},
        .spool = {.fd = -1},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_run_options(&run);

    if (result == LK_EXIT_DONE) {
        result = check_target(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_open(&run);
    }
    if (result == LK_EXIT_DONE && lk_args_flag(&cli->args, "probe")) {
        result = probe(&run);
    }
    if (result == LK_EXIT_DONE && run.export.path != NULL) {
        result = compare(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_end(&run);
    }
    if (run.report != NULL) {
        fclose(run.report);
    }
    lk_reconcile_close(run.reconcile);
    lk_spill_close(&run.pending);
    lk_spool_close(&run.spool);
    lk_export_close(&run.export);
    for (size_t i = 0; i < run.pair_count; i++) {
        free(run.pairs[i].here);
    }
    free(run.match.here);
    latchkey_buf_free(&run.lines);
    return result == LK_EXIT_FAILED ? LK_EXIT_UNREACHABLE : result;
}
