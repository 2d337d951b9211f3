/* up_log.c - the logs of nginx and the daemon, for people. They are files and
 * not pipes: a terminal that stands still must not hold up a request. */
#include "cli/up.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 256 * 1024,
    HELD_MAX_BYTES = 16 * 1024,
    FREE_STEP = 4 * 1024 * 1024, /* disk space is given back in such steps */
    METHOD_COLUMNS = 16, /* a client may send one of thousands of letters */
};

enum field {
    TIME,
    METHOD,
    STATUS,
    VERDICT,
    OUTCOME,
    REFERENCE,
    DURATION,
    URI,
    FIELDS,
};

/* ---- One request ----------------------------------------------------------
 */

static bool split(struct lk_slice line, struct lk_slice fields[FIELDS])
{
    for (size_t i = 0; i < FIELDS; i++) {
        const char *tab = memchr(line.data, '\t', line.len);
        size_t length = tab == NULL ? line.len : (size_t)(tab - line.data);

        if ((tab == NULL) != (i + 1 == FIELDS)) {
            return false;
        }
        fields[i] = (struct lk_slice){line.data, length};
        if (tab != NULL) {
            line.data += length + 1;
            line.len -= length + 1;
        }
    }
    return true;
}

/* nginx has escaped quotes and control characters, but not all that drives a
 * terminal. */
static void put_field(struct lk_buf *cell, struct lk_slice field)
{
    if (field.len == 0) {
        lk_put(cell, "-");
    } else {
        lk_put_line(cell, field);
    }
}

/* A column is as wide as the widest that was ever in it. */
static void put_method(struct lk_buf *cell, struct lk_slice method)
{
    struct lk_buf text = {0};

    put_field(&text, method);
    lk_put_cut(cell, latchkey_buf_slice(&text), METHOD_COLUMNS);
    latchkey_buf_free(&text);
}

static void put_clock(struct lk_buf *cell, struct lk_slice msec)
{
    time_t seconds = 0;
    struct tm local;
    char text[16] = "-";

    for (size_t i = 0;
         i < msec.len && msec.data[i] >= '0' && msec.data[i] <= '9'; i++) {
        seconds = seconds * 10 + (msec.data[i] - '0');
    }
    if (localtime_r(&seconds, &local) != NULL) {
        strftime(text, sizeof(text), "%H:%M:%S", &local);
    }
    lk_put(cell, "%s", text);
}

/* "1.234" seconds, as nginx writes them. */
static void put_took(struct lk_buf *cell, struct lk_slice seconds)
{
    unsigned long ms = 0;

    for (size_t i = 0; i < seconds.len && i < 12; i++) {
        if (seconds.data[i] >= '0' && seconds.data[i] <= '9') {
            ms = ms * 10 + (unsigned long)(seconds.data[i] - '0');
        }
    }
    if (ms < 10000) {
        lk_put(cell, "%lu ms", ms);
    } else {
        lk_put(cell, "%lu.%lu s", ms / 1000, ms / 100 % 10);
    }
}

/* A query may hold secrets: only that there is one is shown. */
static void put_path(struct lk_buf *cell, struct lk_slice uri)
{
    const char *query = memchr(uri.data, '?', uri.len);

    if (query != NULL) {
        uri.len = (size_t)(query - uri.data);
    }
    put_field(cell, uri);
    lk_put(cell, "%s", query == NULL ? "" : "?...");
}

static enum lk_put_colour colour_of(struct lk_slice verdict,
                                    struct lk_slice outcome)
{
    static const struct {
        const char *word;
        enum lk_put_colour colour;
    } colours[] = {
        {"doubted", LK_ALARM},
        {"late", LK_ALARM},
        {"stale", LK_ALARM},
        {"uncertain", LK_ALARM},
        {"unavailable", LK_ALARM},
        {"released", LK_BUSYING},
        {"mismatch", LK_BUSYING},
        {"inflight", LK_BUSYING},
        {"limited", LK_BUSYING},
        {"key_missing", LK_BUSYING},
        {"key_invalid", LK_BUSYING},
        {"tenant_missing", LK_BUSYING},
        {"request_invalid", LK_BUSYING},
        {"too_old", LK_BUSYING},
        {"replay", LK_BOLD},
        {"accepted", LK_GOOD},
        {"new", LK_GOOD},
        {"passed", LK_DIM},
    };

    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        struct lk_slice word = latchkey_slice(colours[i].word);

        if (latchkey_slice_equal(word, outcome) ||
            latchkey_slice_equal(word, verdict)) {
            return colours[i].colour;
        }
    }
    return LK_PLAIN;
}

/* Once for each kind: newcomers need it, and no one twice. */
static void put_hint(struct lk_up_log *log, struct lk_slice verdict,
                     struct lk_buf *out)
{
    static const char *const kinds[] = {"tenant_missing", "key_missing"};

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (latchkey_slice_equal(verdict, latchkey_slice(kinds[i])) &&
            (log->hinted >> i & 1) == 0) {
            log->hinted |= 1U << i;
            lk_up_put_hint(log->up, i == 0, out);
        }
    }
}

static void put_request(struct lk_up_log *log, struct lk_slice line,
                        struct lk_buf *out)
{
    static const char *const names[] = {
        "TIME", "METHOD", "CODE", "VERDICT", "REFERENCE", "TOOK", "PATH"};
    struct lk_slice field[FIELDS];
    struct lk_table *table = &log->table;
    struct lk_buf *cell;

    if (!split(line, field)) {
        lk_put_line(out, line);
        lk_put(out, "\n");
        return;
    }
    if (table->widths[0] == 0) {
        lk_table_heading(table, names);
    }
    put_clock(lk_table_cell(table, LK_DIM), field[TIME]);
    put_method(lk_table_cell(table, LK_PLAIN), field[METHOD]);
    put_field(lk_table_cell(table, LK_PLAIN), field[STATUS]);
    cell = lk_table_cell(table, colour_of(field[VERDICT], field[OUTCOME]));
    put_field(cell, field[VERDICT]);
    if (field[OUTCOME].len > 0) {
        lk_put(cell, " ");
        put_field(cell, field[OUTCOME]);
    }
    put_field(lk_table_cell(table, LK_PLAIN), field[REFERENCE]);
    put_took(lk_table_cell(table, LK_DIM), field[DURATION]);
    put_path(lk_table_cell(table, LK_PLAIN), field[URI]);
    lk_table_flush(table, out);
    put_hint(log, field[VERDICT], out);
    log->unreached =
        log->unreached || latchkey_slice_equal(field[STATUS], LK_SLICE("502"));
}

/* ---- A log ----------------------------------------------------------------
 */

enum lk_exit lk_up_log_open(struct lk_up_log *log, const char *path)
{
    /* Opened for writing too, or the space could not be given back. */
    log->fd =
        open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    if (log->fd < 0) {
        lk_complain("cannot open %s: %s", path, strerror(errno));
        return LK_EXIT_FAILED;
    }
    log->table.columns = FIELDS - 1; /* verdict and outcome are one */
    log->table.right = 1U << 5;
    log->table.rigid = 0x1f; /* only the path is cut on a terminal */
    log->table.widths[1] = 6;
    log->table.widths[3] = 14;
    log->table.widths[4] = 14;
    log->table.widths[5] = 7;
    return LK_EXIT_DONE;
}

static bool has_word(struct lk_slice line, const char *word)
{
    return memmem(line.data, line.len, word, strlen(word)) != NULL;
}

static void put_message(const struct lk_up_log *log, struct lk_slice line,
                        struct lk_buf *err)
{
    lk_put(err, "%s: ", log->name);
    lk_put_line(err, line);
    lk_put(err, "\n");
}

/* What it asks for is an option here. */
static void put_daemon_hint(struct lk_up_log *log, struct lk_slice line,
                            struct lk_buf *err)
{
    if (has_word(line, "run: latchkey migrate") && log->hinted == 0) {
        log->hinted = 1;
        lk_put(err, "latchkey: latchkey up does that with --migrate; until it "
                    "is done, requests with a key get 503\n");
    }
}

/* Shows the held lines, all or those from warning upwards, and goes on holding
 * the rest. What has no level was not written by the daemon's log. */
static void put_held(struct lk_up_log *log, struct lk_buf *err, bool all)
{
    struct lk_buf *held = &log->held;
    size_t kept = 0;

    for (size_t at = 0; at < held->len;) {
        const char *text = held->data + at;
        size_t length =
            (size_t)((const char *)memchr(text, '\n', held->len - at) - text);
        struct lk_slice line = {text, length};

        at += length + 1;
        if (all || !(has_word(line, " level=info ") ||
                     has_word(line, " level=debug "))) {
            put_message(log, line, err);
            put_daemon_hint(log, line, err);
        } else {
            memmove(held->data + kept, text, length + 1);
            kept += length + 1;
        }
    }
    held->len = kept;
}

void lk_up_log_show_held(struct lk_up_log *log, struct lk_buf *err)
{
    put_held(log, err, true);
}

/* Until it is ready, everything is held, so that a failure is told in order. */
static void put_daemon_line(struct lk_up_log *log, struct lk_slice line,
                            struct lk_buf *err)
{
    log->ready = log->ready || has_word(line, " event=ready ");
    if (log->held.len > HELD_MAX_BYTES) {
        put_held(log, err, false);
        log->held.len = 0;
    }
    lk_put_raw(&log->held, line);
    lk_put(&log->held, "\n");
    if (log->ready) {
        put_held(log, err, false);
    }
}

static void put_line(struct lk_up_log *log, struct lk_slice line,
                     struct lk_buf *out, struct lk_buf *err)
{
    if (log->name == NULL) {
        put_request(log, line, out);
        return;
    }
    if (log->holds) {
        put_daemon_line(log, line, err);
        return;
    }
    if (line.len > 7 && memcmp(line.data, "nginx: ", 7) == 0) {
        line.data += 7; /* it says so itself while it starts */
        line.len -= 7;
    }
    put_message(log, line, err);
}

/* Takes whole lines from the front of `rest`; an endless one counts as whole.
 */
static void put_lines(struct lk_up_log *log, struct lk_buf *out,
                      struct lk_buf *err)
{
    struct lk_buf *rest = &log->rest;
    size_t start = 0;
    const char *end;

    while (start < rest->len &&
           (end = memchr(rest->data + start, '\n', rest->len - start))) {
        size_t length = (size_t)(end - rest->data) - start;

        put_line(log, (struct lk_slice){rest->data + start, length}, out, err);
        start += length + 1;
    }
    if (rest->len - start > LINE_MAX_BYTES) {
        put_line(log, (struct lk_slice){rest->data + start, rest->len - start},
                 out, err);
        start = rest->len;
    }
    if (start > 0) {
        memmove(rest->data, rest->data + start, rest->len - start);
        rest->len -= start;
    }
}

/* What has been shown takes no space on the disk, however long it runs. A file
 * system that cannot do this keeps the log. */
static void free_space(struct lk_up_log *log)
{
    if (log->seen - log->freed >= FREE_STEP) {
        (void)fallocate(log->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        log->freed, log->seen - log->freed);
        log->freed = log->seen;
    }
}

bool lk_up_log_read(struct lk_up_log *log, struct lk_buf *out,
                    struct lk_buf *err)
{
    char chunk[65536];
    ssize_t length =
        log->fd < 0 ? 0 : pread(log->fd, chunk, sizeof(chunk), log->seen);

    if (length <= 0) {
        return false;
    }
    log->seen += length;
    lk_must(latchkey_buf_add(&log->rest, chunk, (size_t)length));
    put_lines(log, out, err);
    free_space(log);
    return true;
}

void lk_up_log_close(struct lk_up_log *log)
{
    if (log->fd >= 0) {
        close(log->fd);
    }
    free(log->table.cells);
    latchkey_buf_free(&log->rest);
    latchkey_buf_free(&log->held);
    log->fd = -1;
}
