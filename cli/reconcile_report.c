/*
 * reconcile_report.c - what `latchkey reconcile` does with a finding: reports
 * it, as JSON lines for programs and in words for people, and resolves the job
 * if the finding is proof and --apply was given.
 */
#include "cli/reconcile.h"
#include "lib/time.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 5 }; /* findings of a class that people see without asking */

/* One finding, with its texts. */
struct entry {
    enum lk_class of;
    const struct lk_finding *finding;
    enum lk_resolution outcome;
    struct lk_slice here[LK_TEXTS];
    struct lk_row there;
    struct lk_buf texts;
};

/* The same file, also by another name or a link. */
static bool is_export(const struct lk_run *run, int fd)
{
    struct stat ours, theirs;

    return run->export.path != NULL && fstat(fd, &ours) == 0 &&
           stat(run->export.path, &theirs) == 0 &&
           ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

/* Empties the file, and makes it private to its owner: it names tenants and
 * amounts. What is not a regular file stays as it is. */
static bool make_empty(int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 &&
           (!S_ISREG(info.st_mode) ||
            (ftruncate(fd, 0) == 0 && fchmod(fd, 0600) == 0));
}

/* Opens --report before anything is compared; it is emptied, private to its
 * owner, and must not be the export itself. */
enum lk_exit lk_report_open(struct lk_run *run)
{
    int fd;

    if (run->cli->json) {
        lk_doc_object(&run->doc, NULL);
        lk_doc_text(&run->doc, "target", latchkey_slice(run->target));
        lk_doc_array(&run->doc, "findings");
    }
    if (run->report_path == NULL) {
        return LK_EXIT_DONE;
    }
    fd = open(run->report_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && is_export(run, fd)) {
        close(fd);
        return lk_complain_usage(run->cli, "--report would overwrite the "
                                           "export");
    }
    run->report = fd < 0 || !make_empty(fd) ? NULL : fdopen(fd, "w");
    if (run->report == NULL) {
        lk_complain("cannot write %s: %s", run->report_path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

/* What jobs and lines meet by, and where its text is. */
static const char *key_name(const struct lk_run *run)
{
    return run->match.text != NULL ? run->match.text : "key";
}

static size_t key_text(const struct lk_run *run)
{
    return run->match.text != NULL ? LK_TEXT_MATCH : LK_TEXT_KEY;
}

/* ---- For programs -------------------------------------------------------- */

static void write_difference(struct lk_doc *doc, const char *what,
                             struct lk_slice here, struct lk_slice there)
{
    lk_doc_object(doc, NULL);
    lk_doc_text(doc, "what", latchkey_slice(what));
    lk_doc_text(doc, "here", here);
    lk_doc_text(doc, "there", there);
    lk_doc_end_object(doc);
}

/* One object for each value that differs: what, here, there. */
static void write_differences(struct lk_run *run, const struct entry *entry,
                              struct lk_doc *doc)
{
    uint32_t differs = entry->finding->differs;

    lk_doc_array(doc, "differs");
    for (size_t i = 0; i < run->pair_count; i++) {
        if ((differs >> i & 1) != 0) {
            write_difference(doc, run->pairs[i].text,
                             entry->here[LK_TEXT_VALUES + i],
                             entry->there.cells[LK_COLUMN_VALUES + i]);
        }
    }
    if ((differs & LK_DIFFERS_KEY) != 0) {
        write_difference(doc, key_name(run), entry->here[key_text(run)],
                         entry->there.cells[LK_COLUMN_KEY]);
    }
    if ((differs & LK_DIFFERS_ID) != 0) {
        write_difference(doc, "id", entry->here[LK_TEXT_ID],
                         entry->there.cells[LK_COLUMN_ID]);
    }
    lk_doc_end_array(doc);
}

/* What --apply does about a finding that is proof; NULL: nothing. */
static const char *action_word(const struct entry *entry)
{
    return entry->of == LK_CLASS_HAPPENED ? "delivered"
           : entry->of == LK_CLASS_ABSENT ? "again"
                                          : NULL;
}

/* One finding as a JSON object: the members of docs/reconcile.md, "The
 * report". */
static void write_entry(struct lk_run *run, const struct entry *entry,
                        struct lk_doc *doc)
{
    static const char *const names[] = {"reference", "tenant", "name",
                                        "downstream_key", "provider_id"};
    static const char *const outcomes[] = {"proposed", "done", "refused"};
    const struct lk_item *here = entry->finding->here;
    const struct lk_item *there = entry->finding->there;

    lk_doc_object(doc, NULL);
    lk_doc_text(doc, "class", latchkey_slice(lk_class_word(entry->of)));
    if (here != NULL) {
        lk_doc_integer(doc, "job", (int64_t)here->number);
        lk_doc_text(
            doc, "state",
            latchkey_slice(lk_job_state_word((enum lk_job_state)here->state)));
        for (size_t i = 0; i < LK_TEXT_MATCH; i++) {
            lk_doc_text(doc, names[i], entry->here[i]);
        }
        if (run->match.text != NULL) {
            lk_doc_text(doc, "match", entry->here[LK_TEXT_MATCH]);
        }
    }
    if (there != NULL) {
        lk_doc_integer(doc, "line", (int64_t)there->number);
        lk_doc_text(doc, "line_key", entry->there.cells[LK_COLUMN_KEY]);
        lk_doc_text(doc, "line_id", entry->there.cells[LK_COLUMN_ID]);
    }
    if (entry->of == LK_CLASS_DIFFERING) {
        write_differences(run, entry, doc);
    }
    if (action_word(entry) != NULL) {
        lk_doc_text(doc, "resolution", latchkey_slice(action_word(entry)));
        lk_doc_text(doc, "outcome", latchkey_slice(outcomes[entry->outcome]));
    }
    lk_doc_end_object(doc);
}

/* Writes `line` to the report, and frees it. */
static enum lk_exit write_line(struct lk_run *run, struct lk_buf *line)
{
    size_t length = line->len;
    bool failed =
        length > 0 && fwrite(line->data, 1, length, run->report) < length;

    latchkey_buf_free(line);
    if (failed) {
        lk_complain("cannot write %s: %s", run->report_path, strerror(errno));
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* ---- For people ---------------------------------------------------------- */

static void put_difference(struct lk_buf *out, const char *what,
                           struct lk_slice here, struct lk_slice there)
{
    lk_put(out, "; ");
    lk_put_text(out, latchkey_slice(what));
    lk_put(out, ": ");
    lk_put_text(out, here.len == 0 ? LK_SLICE("nothing") : here);
    lk_put(out, " here, ");
    lk_put_text(out, there.len == 0 ? LK_SLICE("nothing") : there);
    lk_put(out, " there");
}

/* One part of the line for each value that differs. */
static void put_differences(struct lk_run *run, const struct entry *entry,
                            const struct lk_item *here)
{
    uint32_t differs = entry->finding->differs;
    struct lk_buf *out = &run->lines;

    if (here->state == LK_JOB_DROPPED) {
        lk_put(out, "; dropped here, but it is there");
    }
    for (size_t i = 0; i < run->pair_count; i++) {
        if ((differs >> i & 1) != 0) {
            put_difference(out, run->pairs[i].text,
                           entry->here[LK_TEXT_VALUES + i],
                           entry->there.cells[LK_COLUMN_VALUES + i]);
        }
    }
    if ((differs & LK_DIFFERS_KEY) != 0) {
        put_difference(out, key_name(run), entry->here[key_text(run)],
                       entry->there.cells[LK_COLUMN_KEY]);
    }
    if ((differs & LK_DIFFERS_ID) != 0) {
        put_difference(out, "id", entry->here[LK_TEXT_ID],
                       entry->there.cells[LK_COLUMN_ID]);
    }
}

/* One finding as a line for people, escaped. */
static void put_entry(struct lk_run *run, const struct entry *entry)
{
    const struct lk_item *here = entry->finding->here;
    const struct lk_item *there = entry->finding->there;
    struct lk_buf *out = &run->lines;

    lk_put(out, "  %-15s", lk_class_word(entry->of));
    if (here != NULL) {
        lk_put(out, " job %llu (%s, ", (unsigned long long)here->number,
               lk_job_state_word((enum lk_job_state)here->state));
        lk_put_text(out, entry->here[LK_TEXT_REFERENCE]);
        lk_put(out, ")");
    }
    if (there != NULL) {
        struct lk_slice key = entry->there.cells[LK_COLUMN_KEY];
        struct lk_slice id = entry->there.cells[LK_COLUMN_ID];

        lk_put(out, "%s line %llu, ", here == NULL ? "" : ",",
               (unsigned long long)there->number);
        lk_put(out, "%s ",
               key.len == 0              ? "id"
               : run->match.text != NULL ? run->match.there
                                         : "key");
        lk_put_text(out, key.len > 0 ? key : id);
    }
    if (entry->of == LK_CLASS_AMBIGUOUS) {
        lk_put(out, "; %s",
               here == NULL || there == NULL ? "others have the same value"
               : here->attempt == 0
                   ? "this job was never called"
                   : "it may belong to a job that is already deleted");
    }
    if (entry->of == LK_CLASS_THERE && here != NULL) {
        lk_put(out, "; another line has this key too");
    }
    if (entry->of == LK_CLASS_DIFFERING && here != NULL) {
        put_differences(run, entry, here);
    }
    if (entry->outcome == LK_REFUSED) {
        lk_put(out, "; it has changed in the meantime");
    }
    lk_put(out, "\n");
}

/* ---- Both ---------------------------------------------------------------- */

/* The texts of a finding: of the job from the comparison, of the line from
 * the export, which is read again. They are valid until entry->texts is
 * freed, and the line until the next row is read. */
static enum lk_exit fetch_texts(struct lk_run *run, struct entry *entry)
{
    const struct lk_finding *finding = entry->finding;

    if (finding->here != NULL &&
        lk_comparison_texts(run->comparison, finding->here, &entry->texts,
                            entry->here,
                            LK_TEXT_VALUES + run->pair_count) != LK_OK) {
        lk_complain("cannot read a temporary file");
        return LK_EXIT_FAILED;
    }
    return finding->there == NULL
               ? LK_EXIT_DONE
               : lk_export_again(&run->export, finding->there->place,
                                 &entry->there);
}

/* Reports one finding to --report, --json and people, whichever is asked for;
 * people see the first SHOWN of a class. */
enum lk_exit lk_report_finding(struct lk_run *run, enum lk_class of,
                               const struct lk_finding *finding,
                               enum lk_resolution outcome)
{
    struct entry entry = {.of = of, .finding = finding, .outcome = outcome};
    bool shown = !run->cli->json && run->counts[of] <= SHOWN;
    enum lk_exit result = LK_EXIT_DONE;

    run->told++;
    if (!run->cli->json && run->report == NULL && !shown) {
        return LK_EXIT_DONE;
    }
    result = fetch_texts(run, &entry);
    if (result == LK_EXIT_DONE && run->report != NULL) {
        struct lk_buf line = {0};
        struct lk_doc doc = {.out = &line};

        write_entry(run, &entry, &doc);
        result = write_line(run, &line);
    }
    if (result == LK_EXIT_DONE && run->cli->json) {
        write_entry(run, &entry, &run->doc);
        result = lk_cli_flush(run->cli);
    }
    if (result == LK_EXIT_DONE && shown) {
        put_entry(run, &entry);
        run->shown++;
    }
    latchkey_buf_free(&entry.texts);
    return result;
}

/* A line that could not be read has a number and a reason, nothing else. */
static void write_malformed(struct lk_doc *doc, uint64_t number,
                            const char *fault)
{
    lk_doc_object(doc, NULL);
    lk_doc_text(doc, "class", LK_SLICE("malformed"));
    lk_doc_integer(doc, "line", (int64_t)number);
    lk_doc_text(doc, "fault", latchkey_slice(fault));
    lk_doc_end_object(doc);
}

/* A line that cannot be read counts as open: it might be the missing proof. */
enum lk_exit lk_report_malformed(struct lk_run *run, uint64_t number,
                                 const char *fault)
{
    enum lk_exit result = LK_EXIT_DONE;

    run->coverage.malformed++;
    run->told++;
    if (run->report != NULL) {
        struct lk_buf line = {0};
        struct lk_doc doc = {.out = &line};

        write_malformed(&doc, number, fault);
        result = write_line(run, &line);
    }
    if (run->cli->json && result == LK_EXIT_DONE) {
        write_malformed(&run->doc, number, fault);
        result = lk_cli_flush(run->cli);
    } else if (run->coverage.malformed <= SHOWN) {
        run->shown++;
        lk_put(&run->lines, "  %-15s line %llu: %s\n", "malformed",
               (unsigned long long)number, fault);
    }
    return result;
}

/* ---- The end ------------------------------------------------------------- */

/* The number of findings that a person must still look at. */
static uint64_t count_open(const struct lk_run *run)
{
    uint64_t open = run->coverage.malformed + run->probe_open;

    for (int i = 0; i < LK_CLASSES; i++) {
        if (lk_class_is_open((enum lk_class)i)) {
            open += run->counts[i] - run->resolved[i];
        }
    }
    return open;
}

/* An export without lines and a target without jobs: a wrong file, or a daemon
 * that has only just begun. */
static bool is_nothing(const struct lk_run *run)
{
    return run->export.path != NULL && run->jobs == 0 &&
           run->coverage.lines == 0 && run->coverage.malformed == 0;
}

/* The same members at the end of --json and in the last line of --report. */
static void write_reconcile_summary(const struct lk_run *run,
                                    struct lk_doc *doc)
{
    const char *fault = lk_absence_fault(&run->coverage);

    lk_doc_integer(doc, "lines", (int64_t)run->coverage.lines);
    lk_doc_integer(doc, "malformed", (int64_t)run->coverage.malformed);
    lk_doc_integer(doc, "jobs", (int64_t)run->jobs);
    for (int i = 0; i < LK_CLASSES; i++) {
        lk_doc_integer(doc, lk_class_word((enum lk_class)i),
                       (int64_t)run->counts[i]);
    }
    lk_doc_integer(doc, "resolved_delivered",
                   (int64_t)run->resolved[LK_CLASS_HAPPENED]);
    lk_doc_integer(doc, "resolved_again",
                   (int64_t)run->resolved[LK_CLASS_ABSENT]);
    lk_doc_integer(doc, "refused", (int64_t)run->refused);
    lk_doc_integer(doc, "forgotten_ms", (int64_t)run->forgotten_ms);
    if (run->probed) {
        lk_doc_integer(doc, "probe_happened", (int64_t)run->probe_happened);
        lk_doc_integer(doc, "probe_absent", (int64_t)run->probe_absent);
        lk_doc_integer(doc, "probe_open", (int64_t)run->probe_open);
    }
    if (fault == NULL) {
        lk_doc_null(doc, "absence_fault");
    } else {
        lk_doc_text(doc, "absence_fault", latchkey_slice(fault));
    }
    lk_doc_integer(doc, "open", (int64_t)count_open(run));
}

/* `always`: also if it is 0. */
static void put_count(struct lk_run *run, uint64_t count, bool always,
                      const char *label, const char *meaning)
{
    if (count > 0 || always) {
        lk_put(&run->cli->out, "%12llu  %-15s %s\n", (unsigned long long)count,
               label, meaning);
    }
}

/* The counts by class; those that matter in every run are printed also if
 * they are 0. */
static void put_counts(struct lk_run *run)
{
    static const struct {
        enum lk_class of;
        bool always;
        const char *label;
        const char *meaning;
    } rows[] = {
        {LK_CLASS_MATCHED, true, "matched", "delivered here, and there"},
        {LK_CLASS_DIFFERING, true, "differing",
         "on both sides, but not the same"},
        {LK_CLASS_THERE, true, "only there", "no job explains them"},
        {LK_CLASS_HERE, true, "only here", "delivered here, but not there"},
        {LK_CLASS_OPEN, true, "uncertain", "not there, which proves nothing"},
        {LK_CLASS_UNDER_WAY, false, "under way", "there, and being called"},
        {LK_CLASS_NEITHER, false, "neither", "not done here, and not there"},
        {LK_CLASS_LATER, false, "later", "delivered after the export"},
        {LK_CLASS_REPEATED, false, "repeated", "lines that are there twice"},
        {LK_CLASS_OUTSIDE, false, "outside", "not of the time compared"},
        {LK_CLASS_OLDER, false, "older", "older than what is stored here"},
        {LK_CLASS_AMBIGUOUS, false, "ambiguous",
         "--match does not say which is which"},
    };
    const char *fault = lk_absence_fault(&run->coverage);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put_count(run, run->counts[rows[i].of], rows[i].always, rows[i].label,
                  rows[i].meaning);
    }
    put_count(run, run->counts[LK_CLASS_HAPPENED], true, "happened",
              run->apply ? "not delivered here, but there: resolved"
                         : "not delivered here, but there: --apply resolves");
    put_count(run, run->counts[LK_CLASS_ABSENT], true, "did not happen",
              run->apply ? "uncertain here, not there: called again"
                         : "uncertain here, not there: --apply calls again");
    put_count(run, run->refused, false, "of these not",
              "resolved: they changed in the meantime");
    put_count(run, run->coverage.malformed, false, "malformed",
              "lines that cannot be understood");
    if (run->counts[LK_CLASS_THERE] > 0 && run->forgotten_ms != 0 &&
        run->export.columns[LK_COLUMN_TIME].name == NULL) {
        lk_put(&run->cli->out,
               "Some jobs are already deleted, and lines without a time may be "
               "theirs: --time-column.\n");
    }
    if (run->counts[LK_CLASS_OPEN] > 0 && fault != NULL) {
        lk_put(&run->cli->out, "Absence proves nothing: %s.\n", fault);
    }
}

/*
 * The summary for people: counts, the findings that were shown, and a verdict.
 */
static void put_words(struct lk_run *run)
{
    struct lk_buf *out = &run->cli->out;
    uint64_t open = count_open(run);

    if (run->probed) {
        lk_put(out,
               "asked target %s: %llu happened, %llu did not, %llu still "
               "uncertain\n",
               run->target, (unsigned long long)run->probe_happened,
               (unsigned long long)run->probe_absent,
               (unsigned long long)run->probe_open);
    }
    if (run->export.path != NULL) {
        lk_put_text(out, latchkey_slice(run->export.path));
        lk_put(out, " against target %s: %llu line%s, %llu job%s\n",
               run->target, (unsigned long long)run->coverage.lines,
               run->coverage.lines == 1 ? "" : "s",
               (unsigned long long)run->jobs, run->jobs == 1 ? "" : "s");
        put_counts(run);
    }
    lk_table_put_lines(out, latchkey_buf_slice(&run->lines));
    if (run->told > run->shown) {
        lk_put(out, "  ... and more: --report FILE lists all %llu\n",
               (unsigned long long)run->told);
    }
    if (open > 0) {
        lk_put(out, "%llu open\n", (unsigned long long)open);
    } else if (is_nothing(run)) {
        lk_put(out, "nothing was compared: there are no lines and no jobs\n");
    } else {
        lk_put(out, "everything is reconciled\n");
    }
}

/* The summary is the last line: a report without it belongs to a run that did
 * not end. */
static enum lk_exit close_report(struct lk_run *run)
{
    struct lk_buf line = {0};
    struct lk_doc doc = {.out = &line};
    FILE *report = run->report;
    enum lk_exit result;

    if (report == NULL) {
        return LK_EXIT_DONE;
    }
    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "class", LK_SLICE("summary"));
    lk_doc_text(&doc, "target", latchkey_slice(run->target));
    write_reconcile_summary(run, &doc);
    lk_doc_end_object(&doc);
    result = write_line(run, &line);
    run->report = NULL;
    if (fclose(report) != 0 && result == LK_EXIT_DONE) {
        lk_complain("cannot write %s: %s", run->report_path, strerror(errno));
        result = LK_EXIT_FAILED;
    }
    return result;
}

/* LK_EXIT_NO: something is open, or nothing was compared. */
enum lk_exit lk_report_end(struct lk_run *run)
{
    enum lk_exit result = close_report(run);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (run->cli->json) {
        lk_doc_end_array(&run->doc);
        write_reconcile_summary(run, &run->doc);
        lk_doc_end_object(&run->doc);
    } else {
        put_words(run);
    }
    return count_open(run) > 0 || is_nothing(run) ? LK_EXIT_NO : LK_EXIT_DONE;
}

/* ---- Resolving by proof -------------------------------------------------- */

#define WHO "latchkey reconcile"

enum { IDLE_MS = 1000, NAME_MOST = 200, MATCH_MOST = 32 };

/* The daemon may close an idle connection: the next call opens another. */
void lk_run_disconnect(struct lk_run *run)
{
    latchkey_client_close(run->cli->client);
    run->cli->client = NULL;
}

/* A long time may have passed since the last resolution. */
static void refresh_connection(struct lk_run *run)
{
    uint64_t now_ms = lk_monotonic_ms();

    if (now_ms - run->acted_ms > IDLE_MS) {
        lk_run_disconnect(run);
    }
    run->acted_ms = now_ms;
}

/* A path may be longer than a reason may be, even escaped; a name is not. */
static struct lk_slice base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct lk_slice name = latchkey_slice(slash == NULL ? path : slash + 1);

    name.len = name.len > NAME_MOST ? NAME_MOST : name.len;
    return name;
}

/* The daemon accepts only printable ids; a finding is proof without one, too.
 */
static bool is_id(struct lk_slice id)
{
    for (size_t i = 0; i < id.len; i++) {
        if (id.data[i] <= ' ' || id.data[i] > '~') {
            return false;
        }
    }
    return id.len > 0 && id.len <= LK_PROVIDER_ID_MAX;
}

/* The reason for the audit log. */
static void put_why(struct lk_run *run, enum lk_class of,
                    const struct lk_finding *finding, struct lk_buf *why)
{
    char until[LK_TIMESTAMP_TEXT + 1];

    if (of == LK_CLASS_HAPPENED) {
        lk_put(why, "it is in line %llu of ",
               (unsigned long long)finding->there->number);
        lk_put_text(why, base_name(run->export.path));
        if (run->match.text != NULL && finding->by_key) {
            struct lk_slice match = latchkey_slice(run->match.text);

            match.len = match.len > MATCH_MOST ? MATCH_MOST : match.len;
            lk_put(why, ", by ");
            lk_put_text(why, match);
        }
        return;
    }
    latchkey_timestamp_text(run->complete_ms, until);
    lk_put(why, "it is not in ");
    lk_put_text(why, base_name(run->export.path));
    lk_put(why, ", which is complete until %s", until);
}

/* The line that is the proof, read again: it must still be the same. */
static enum lk_exit read_proof(struct lk_run *run, const struct lk_item *there,
                               struct lk_row *row)
{
    enum lk_exit result = lk_export_again(&run->export, there->place, row);
    struct lk_slice key = row->cells[LK_COLUMN_KEY];
    struct lk_slice id = row->cells[LK_COLUMN_ID];

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (row->fault != NULL ||
        (key.len > 0 &&
         !lk_hash128_equal(lk_hash_text(run, key), there->key)) ||
        (id.len > 0 && !lk_hash128_equal(lk_hash_text(run, id), there->id))) {
        lk_complain("%s has changed while it was compared", run->export.path);
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* The daemon refuses a job that has changed since it was read: its attempt is
 * the fence. */
enum lk_exit lk_resolve_by_proof(struct lk_run *run, enum lk_class of,
                                 const struct lk_finding *finding,
                                 enum lk_resolution *outcome)
{
    struct lk_job_seen item = {finding->here->number, finding->here->attempt};
    struct lk_action_counts counts = {0};
    struct lk_words words = {0};
    struct lk_buf why = {0};
    struct lk_row row = {0};
    enum lk_exit result = LK_EXIT_DONE;

    /* What is sent cannot be taken back: only proof may get here. */
    assert(run->apply && finding->here != NULL);
    assert(of == LK_CLASS_HAPPENED
               ? finding->meeting == LK_BOTH && finding->differs == 0
               : of == LK_CLASS_ABSENT && run->ended && run->proven);
    put_why(run, of, finding, &why);
    lk_words_add(&words, "WHO");
    lk_words_add(&words, WHO);
    lk_words_add(&words, "WHY");
    lk_words_add_slice(&words, latchkey_buf_slice(&why));
    if (of == LK_CLASS_HAPPENED) {
        result = read_proof(run, finding->there, &row);
        if (is_id(row.cells[LK_COLUMN_ID])) {
            lk_words_add(&words, "PROVIDER");
            lk_words_add_slice(&words, row.cells[LK_COLUMN_ID]);
        }
    }
    if (result == LK_EXIT_DONE) {
        refresh_connection(run);
        result = lk_job_actions(run->cli,
                                of == LK_CLASS_HAPPENED ? "DELIVERED" : "AGAIN",
                                &item, 1, &words, &counts);
    }
    *outcome = counts.done > 0 ? LK_RESOLVED : LK_REFUSED;
    latchkey_buf_free(&counts.refusal);
    latchkey_buf_free(&why);
    return result;
}
