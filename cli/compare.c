/*
 * compare.c - jobs against the lines of an export: which job meets which line,
 * whether two values are equal, and what a finding means.
 *
 * The join happens in a temporary SQLite database (an empty name: SQLite makes
 * a private file, removes its name at once, and deletes it on close):
 *
 *   job, line   the two sides, in the order in which they came
 *   job_turn    value, turn -> job: the jobs that have a value (of the key, or
 *               of the id), counted from 1 in their order
 *   line_turn   the same for lines, of values that some job has
 *   shared      keys that do not say which job is which line (--match)
 *   meeting     line -> job, and how they met
 *   met         the jobs that met a line
 *   deferred    jobs to be reported once more, at the end
 *
 * The n-th line of a value meets the n-th job of it. A line for which no job is
 * left repeats the first line if it has the same id, else it is one too many:
 * `here` is then the first job. Both rounds, by the key and by the id, are the
 * same SQL. SQLite's external sorter orders the values, and every table is
 * filled in the order of its primary key, so the cache may be small.
 */
#include "cli/compare.h"

#include "lib/json.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] =
    "PRAGMA journal_mode = OFF;"
    "PRAGMA synchronous = OFF;"
    "PRAGMA locking_mode = EXCLUSIVE;"
    "PRAGMA temp_store = FILE;"
    "CREATE TABLE job (seq INTEGER PRIMARY KEY, key BLOB, id BLOB,"
    " number INTEGER, attempt INTEGER, flags INTEGER, state INTEGER,"
    " compared BLOB, texts BLOB);"
    "CREATE TABLE line (seq INTEGER PRIMARY KEY, key BLOB, id BLOB,"
    " number INTEGER, place INTEGER, flags INTEGER, compared BLOB);"
    "CREATE TABLE shared (key BLOB PRIMARY KEY) WITHOUT ROWID;"
    "CREATE TABLE meeting (line INTEGER PRIMARY KEY, job INTEGER, how INTEGER);"
    "CREATE TABLE met (job INTEGER PRIMARY KEY);"
    "CREATE TABLE deferred (job INTEGER PRIMARY KEY);"
    "BEGIN;";

/* What `meeting.how` says; the SQL below has the numbers by these names. */
enum how { HOW_KEY = 1, HOW_ID = 2, HOW_REPEATED = 3, HOW_EXTRA = 4 };

/* One round, by %w: the column `key` or `id`. What met something by the key
 * does not take part in the round by the id. */
static const char find_job_turns[] =
    "CREATE TABLE job_turn (value BLOB, turn INTEGER, job INTEGER,"
    " PRIMARY KEY (value, turn)) WITHOUT ROWID;"
    "INSERT INTO job_turn"
    " SELECT \"%w\", row_number() OVER (PARTITION BY \"%w\" ORDER BY seq), seq"
    " FROM job LEFT JOIN met ON met.job = job.seq"
    " WHERE \"%w\" IS NOT NULL AND met.job IS NULL;";
static const char find_line_turns[] =
    "CREATE TABLE line_turn (value BLOB, turn INTEGER, line INTEGER, id BLOB,"
    " PRIMARY KEY (value, turn)) WITHOUT ROWID;"
    "INSERT INTO line_turn"
    " SELECT \"%w\", row_number() OVER (PARTITION BY \"%w\" ORDER BY seq), seq,"
    "  id"
    " FROM line"
    " CROSS JOIN job_turn ON job_turn.value = line.\"%w\" AND job_turn.turn = 1"
    " LEFT JOIN meeting ON meeting.line = line.seq"
    " WHERE meeting.line IS NULL;";

/* Keys of several jobs, or of several lines that are not one object. */
static const char find_shared[] =
    "INSERT INTO shared SELECT value FROM line_turn GROUP BY value"
    " HAVING (count(*) > 1 AND (count(id) < count(*) OR min(id) <> max(id)))"
    "  OR EXISTS (SELECT 1 FROM job_turn"
    "   WHERE job_turn.value = line_turn.value AND job_turn.turn = 2);";

/* %d: how those meet that meet by this round's value. Shared keys count in the
 * round by the key only: an id may have the same text. */
static const char meet[] =
    "INSERT INTO meeting"
    " SELECT line_turn.line, coalesce(job_turn.job, first_job.job),"
    "  CASE WHEN job_turn.job IS NOT NULL THEN %d"
    "   WHEN line_turn.id = first_line.id THEN 3 ELSE 4 END"
    " FROM line_turn"
    " LEFT JOIN shared ON shared.key = line_turn.value AND %d = 1"
    " LEFT JOIN job_turn ON job_turn.value = line_turn.value"
    "  AND job_turn.turn = line_turn.turn"
    " LEFT JOIN job_turn AS first_job ON job_turn.job IS NULL"
    "  AND first_job.value = line_turn.value AND first_job.turn = 1"
    " LEFT JOIN line_turn AS first_line ON job_turn.job IS NULL"
    "  AND first_line.value = line_turn.value AND first_line.turn = 1"
    " WHERE shared.key IS NULL"
    " ORDER BY line_turn.line;"
    "INSERT INTO met SELECT job FROM meeting WHERE how = %d ORDER BY job;"
    "DROP TABLE line_turn;"
    "DROP TABLE job_turn;";

#define LINE_COLUMNS                                                           \
    "line.key, line.id, line.number, line.place, line.flags, 0, 0,"            \
    " line.compared, line_key.key IS NOT NULL"
#define JOB_COLUMNS                                                            \
    "job.key, job.id, job.number, job.seq, job.flags, job.attempt,"            \
    " job.state, job.compared, job_key.key IS NOT NULL"
#define JOB_SHARED " LEFT JOIN shared AS job_key ON job_key.key = job.key"
enum { ITEM_COLUMNS = 9 };

static const char select_lines[] =
    "SELECT " LINE_COLUMNS ", meeting.how, " JOB_COLUMNS " FROM line"
    " LEFT JOIN meeting ON meeting.line = line.seq"
    " LEFT JOIN job ON job.seq = meeting.job"
    " LEFT JOIN shared AS line_key ON line_key.key = line.key" JOB_SHARED
    " ORDER BY line.seq";
static const char select_jobs[] =
    "SELECT " JOB_COLUMNS " FROM job" JOB_SHARED
    " LEFT JOIN met ON met.job = job.seq WHERE met.job IS NULL"
    " ORDER BY job.seq";
static const char select_deferred[] =
    "SELECT " JOB_COLUMNS " FROM deferred"
    " CROSS JOIN job ON job.seq = deferred.job" JOB_SHARED
    " ORDER BY deferred.job";

struct lk_comparison {
    struct lk_comparison_setup setup;
    sqlite3 *db;
    sqlite3_stmt *add_job; /* these live as long as the database */
    sqlite3_stmt *add_line;
    sqlite3_stmt *defer;
    sqlite3_stmt *get_texts;
    uint64_t done; /* of the bar */
    uint64_t items;
    struct lk_buf texts;
};

/* ---- SQLite ---------------------------------------------------------------
 */

static enum lk_status sql_status(int code)
{
    switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return LK_OK;
    case SQLITE_FULL:
        return LK_FULL;
    case SQLITE_NOMEM:
        return LK_NOMEM;
    default:
        return LK_IO;
    }
}

static enum lk_status prepare_sql(struct lk_comparison *c, const char *sql,
                                  sqlite3_stmt **statement)
{
    return sql_status(sqlite3_prepare_v3(
        c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, statement, NULL));
}

/* Runs statements that return no rows; frees `sql`, which may be NULL. */
static enum lk_status run_made_sql(struct lk_comparison *c, char *sql)
{
    int code =
        sql == NULL ? SQLITE_NOMEM : sqlite3_exec(c->db, sql, NULL, NULL, NULL);

    sqlite3_free(sql);
    return sql_status(code);
}

/* Steps a statement that returns no row, and makes it ready for the next. */
static enum lk_status step_once(sqlite3_stmt *statement)
{
    enum lk_status status = sql_status(sqlite3_step(statement));
    int code = sqlite3_reset(statement);

    return status == LK_OK ? sql_status(code) : status;
}

/* Half of the memory is the page cache's, the other half the sorter's, which
 * takes as much as the cache may have. */
static enum lk_status bound_memory(struct lk_comparison *c)
{
    size_t kib = c->setup.memory / 2 / 1024;

    return run_made_sql(
        c, sqlite3_mprintf("PRAGMA cache_size = -%lld; PRAGMA cache_spill = 1;",
                           (long long)(kib < 64 ? 64 : kib)));
}

enum lk_status lk_comparison_open(const struct lk_comparison_setup *setup,
                                  struct lk_comparison **comparison)
{
    static const char add_job[] =
        "INSERT INTO job (key, id, number, attempt, flags, state, compared,"
        " texts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    static const char add_line[] =
        "INSERT INTO line (key, id, number, place, flags, compared)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?7)";
    struct lk_comparison *c = calloc(1, sizeof(*c));
    enum lk_status status;

    *comparison = c;
    if (c == NULL) {
        return LK_NOMEM;
    }
    assert(setup->pairs <= LK_PAIRS_MAX);
    c->setup = *setup;
    status = sql_status(sqlite3_open_v2(
        "", &c->db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
        NULL));
    if (status == LK_OK) {
        status = run_made_sql(c, sqlite3_mprintf("%s", schema));
    }
    if (status == LK_OK) {
        status = bound_memory(c);
    }
    if (status == LK_OK) {
        status = prepare_sql(c, add_job, &c->add_job);
    }
    if (status == LK_OK) {
        status = prepare_sql(c, add_line, &c->add_line);
    }
    if (status == LK_OK) {
        status = prepare_sql(c, "INSERT INTO deferred VALUES (?1)", &c->defer);
    }
    return status == LK_OK
               ? prepare_sql(c, "SELECT texts FROM job WHERE seq = ?1",
                             &c->get_texts)
               : status;
}

void lk_comparison_close(struct lk_comparison *c)
{
    if (c == NULL) {
        return;
    }
    sqlite3_finalize(c->add_job);
    sqlite3_finalize(c->add_line);
    sqlite3_finalize(c->defer);
    sqlite3_finalize(c->get_texts);
    sqlite3_close(c->db);
    latchkey_buf_free(&c->texts);
    free(c);
}

/* ---- Loading --------------------------------------------------------------
 */

/* An item that has no key, or no id, has NULL there: NULL meets nothing. What
 * is bound must stay until the step. */
static void bind_item(const struct lk_comparison *c, sqlite3_stmt *statement,
                      const struct lk_item *item)
{
    if ((item->flags & LK_ITEM_KEY) != 0) {
        sqlite3_bind_blob(statement, 1, &item->key, sizeof(item->key),
                          SQLITE_STATIC);
    } else {
        sqlite3_bind_null(statement, 1);
    }
    if ((item->flags & LK_ITEM_ID) != 0) {
        sqlite3_bind_blob(statement, 2, &item->id, sizeof(item->id),
                          SQLITE_STATIC);
    } else {
        sqlite3_bind_null(statement, 2);
    }
    sqlite3_bind_int64(statement, 3, (sqlite3_int64)item->number);
    sqlite3_bind_int64(statement, 5, item->flags);
    sqlite3_bind_blob(statement, 7, item->values,
                      (int)(c->setup.pairs * sizeof(item->values[0])),
                      SQLITE_STATIC);
}

/* Each text behind its length, one byte. */
static enum lk_status join_texts(struct lk_buf *buf,
                                 const struct lk_slice *texts, size_t count)
{
    enum lk_status status = LK_OK;

    buf->len = 0;
    for (size_t i = 0; i < count && status == LK_OK; i++) {
        size_t length = texts[i].len < LK_TEXT_MAX ? texts[i].len : LK_TEXT_MAX;
        uint8_t prefix = (uint8_t)length;

        status = latchkey_buf_add(buf, &prefix, 1);
        if (status == LK_OK) {
            status = latchkey_buf_add(buf, texts[i].data, length);
        }
    }
    return status;
}

enum lk_status lk_comparison_add_job(struct lk_comparison *c,
                                     const struct lk_item *job,
                                     const struct lk_slice *texts, size_t count)
{
    enum lk_status status = join_texts(&c->texts, texts, count);

    if (status != LK_OK) {
        return status;
    }
    c->items++;
    bind_item(c, c->add_job, job);
    sqlite3_bind_int64(c->add_job, 4, job->attempt);
    sqlite3_bind_int64(c->add_job, 6, job->state);
    sqlite3_bind_blob(c->add_job, 8, c->texts.data, (int)c->texts.len,
                      SQLITE_STATIC);
    return step_once(c->add_job);
}

enum lk_status lk_comparison_add_line(struct lk_comparison *c,
                                      const struct lk_item *line)
{
    c->items++;
    bind_item(c, c->add_line, line);
    sqlite3_bind_int64(c->add_line, 4, (sqlite3_int64)line->place);
    return step_once(c->add_line);
}

/* ---- Meeting --------------------------------------------------------------
 */

/* Reading takes one half of the bar, the preparation the other. */
static void advance_bar(struct lk_comparison *c, uint64_t more)
{
    c->done += more;
    if (c->setup.progress != NULL) {
        c->setup.progress(c->setup.context, c->done, c->items * 2);
    }
}

/* From SQLite, now and then: the bar is drawn while a statement runs. */
static int keep_bar(void *context)
{
    advance_bar(context, 0);
    return 0;
}

static enum lk_status meet_by(struct lk_comparison *c, const char *column,
                              enum how how)
{
    enum lk_status status = run_made_sql(
        c, sqlite3_mprintf(find_job_turns, column, column, column));

    advance_bar(c, c->items / 6);
    if (status == LK_OK) {
        status = run_made_sql(
            c, sqlite3_mprintf(find_line_turns, column, column, column));
    }
    advance_bar(c, c->items / 6);
    if (status == LK_OK && c->setup.shared_keys && how == HOW_KEY) {
        status = run_made_sql(c, sqlite3_mprintf("%s", find_shared));
    }
    if (status == LK_OK) {
        status = run_made_sql(c, sqlite3_mprintf(meet, how, how, how));
    }
    advance_bar(c, c->items / 6);
    return status;
}

/* ---- Reporting ------------------------------------------------------------
 */

static void read_hash(sqlite3_stmt *row, int column, struct lk_hash128 *hash)
{
    const void *data = sqlite3_column_blob(row, column);

    if (data != NULL) {
        assert(sqlite3_column_bytes(row, column) == sizeof(*hash));
        memcpy(hash, data, sizeof(*hash));
    }
}

/* Reads the columns from `first` on. */
static void read_item(const struct lk_comparison *c, sqlite3_stmt *row,
                      int first, struct lk_item *item)
{
    size_t size = c->setup.pairs * sizeof(item->values[0]);
    const void *compared;

    memset(item, 0, offsetof(struct lk_item, values));
    read_hash(row, first, &item->key);
    read_hash(row, first + 1, &item->id);
    item->number = (uint64_t)sqlite3_column_int64(row, first + 2);
    item->place = (uint64_t)sqlite3_column_int64(row, first + 3);
    item->flags = (uint16_t)sqlite3_column_int(row, first + 4);
    item->attempt = (uint32_t)sqlite3_column_int64(row, first + 5);
    item->state = (uint16_t)sqlite3_column_int(row, first + 6);
    compared = sqlite3_column_blob(row, first + 7);
    if (size > 0) {
        assert(compared != NULL &&
               (size_t)sqlite3_column_bytes(row, first + 7) == size);
        memcpy(item->values, compared, size);
    }
    if (sqlite3_column_int(row, first + 8) != 0) {
        item->flags |= LK_ITEM_SHARED;
    }
}

static uint32_t find_differences(const struct lk_comparison *c,
                                 const struct lk_item *here,
                                 const struct lk_item *there)
{
    uint16_t both = here->flags & there->flags;
    uint32_t differs = 0;

    for (unsigned i = 0; i < c->setup.pairs; i++) {
        if (here->values[i] != there->values[i]) {
            differs |= UINT32_C(1) << i;
        }
    }
    if ((both & LK_ITEM_KEY) != 0 && !lk_hash128_equal(here->key, there->key)) {
        differs |= LK_DIFFERS_KEY;
    }
    if ((both & LK_ITEM_ID) != 0 && !lk_hash128_equal(here->id, there->id)) {
        differs |= LK_DIFFERS_ID;
    }
    return differs;
}

/* A row of select_lines. */
static enum lk_status report_line(struct lk_comparison *c, sqlite3_stmt *row)
{
    int how = sqlite3_column_int(row, ITEM_COLUMNS); /* 0: NULL */
    struct lk_item here, there;
    struct lk_finding finding = {.there = &there};

    read_item(c, row, 0, &there);
    if (how != 0) {
        read_item(c, row, ITEM_COLUMNS + 1, &here);
        finding.here = &here;
    }
    switch (how) {
    case HOW_KEY:
    case HOW_ID:
        finding.meeting = LK_BOTH;
        finding.by_key = how == HOW_KEY;
        finding.differs = find_differences(c, &here, &there);
        break;
    case HOW_REPEATED:
        finding.meeting = LK_REPEATED;
        break;
    default:
        finding.meeting = LK_ONLY_THERE;
        break;
    }
    return c->setup.found(c->setup.context, &finding);
}

/* A row of select_jobs or select_deferred. */
static enum lk_status report_job(struct lk_comparison *c, sqlite3_stmt *row)
{
    struct lk_item here;
    struct lk_finding finding = {.meeting = LK_ONLY_HERE, .here = &here};

    read_item(c, row, 0, &here);
    return c->setup.found(c->setup.context, &finding);
}

static enum lk_status report_rows(
    struct lk_comparison *c, const char *sql,
    enum lk_status (*report)(struct lk_comparison *, sqlite3_stmt *))
{
    sqlite3_stmt *row = NULL;
    enum lk_status status = prepare_sql(c, sql, &row);
    uint64_t count = 0;
    int code = SQLITE_DONE;

    while (status == LK_OK && (code = sqlite3_step(row)) == SQLITE_ROW) {
        status = report(c, row);
        if ((++count & 0xfff) == 0) {
            advance_bar(c, 0x1000);
        }
    }
    if (status == LK_OK) {
        status = sql_status(code);
    }
    sqlite3_finalize(row);
    return status;
}

enum lk_status lk_comparison_run(struct lk_comparison *c)
{
    enum lk_status status;

    sqlite3_progress_handler(c->db, 1000000, keep_bar, c);
    status = meet_by(c, "key", HOW_KEY);
    if (status == LK_OK) {
        status = meet_by(c, "id", HOW_ID);
    }
    sqlite3_progress_handler(c->db, 0, NULL, NULL);
    c->done = c->items;
    if (status == LK_OK) {
        status = report_rows(c, select_lines, report_line);
    }
    return status == LK_OK ? report_rows(c, select_jobs, report_job) : status;
}

enum lk_status lk_comparison_defer(struct lk_comparison *c,
                                   const struct lk_item *job)
{
    sqlite3_bind_int64(c->defer, 1, (sqlite3_int64)job->place);
    return step_once(c->defer);
}

enum lk_status lk_comparison_take_deferred(struct lk_comparison *c)
{
    return report_rows(c, select_deferred, report_job);
}

/* Takes apart what join_texts has made. */
static enum lk_status split_texts(const struct lk_buf *buf,
                                  struct lk_slice *texts, size_t count)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        size_t length = at < buf->len ? (uint8_t)buf->data[at] : 0;

        if (at + 1 + length > buf->len) {
            return LK_IO;
        }
        texts[i] = (struct lk_slice){buf->data + at + 1, length};
        at += 1 + length;
    }
    return LK_OK;
}

enum lk_status lk_comparison_texts(struct lk_comparison *c,
                                   const struct lk_item *job,
                                   struct lk_buf *buf, struct lk_slice *texts,
                                   size_t count)
{
    enum lk_status status;
    int code;

    sqlite3_bind_int64(c->get_texts, 1, (sqlite3_int64)job->place);
    code = sqlite3_step(c->get_texts);
    buf->len = 0;
    status = code == SQLITE_DONE ? LK_IO : sql_status(code);
    if (status == LK_OK) {
        status =
            latchkey_buf_add(buf, sqlite3_column_blob(c->get_texts, 0),
                             (size_t)sqlite3_column_bytes(c->get_texts, 0));
    }
    sqlite3_reset(c->get_texts);
    return status == LK_OK ? split_texts(buf, texts, count) : status;
}

/* ---- Values ---------------------------------------------------------------
 */

static bool is_decimal_digit(char c)
{
    return c >= '0' && c <= '9';
}

/*
 * Writes a number the way JSON would: "+1", ".5" and "2." are numbers in some
 * exports. False: it cannot be one.
 */
static bool respell_number(struct lk_slice value, char *text, size_t size,
                           size_t *length)
{
    size_t i = 0, n = 0;

    if (value.len == 0 || value.len + 3 > size) {
        return false;
    }
    if (value.data[0] == '-') {
        text[n++] = '-';
    }
    i = value.data[0] == '-' || value.data[0] == '+';
    if (i < value.len && value.data[i] == '.' && i + 1 < value.len &&
        is_decimal_digit(value.data[i + 1])) {
        text[n++] = '0';
    }
    for (; i < value.len; i++) {
        char next = i + 1 < value.len ? value.data[i + 1] : '\0';

        if (value.data[i] == '.' && i > 0 &&
            is_decimal_digit(value.data[i - 1]) && !is_decimal_digit(next)) {
            continue;
        }
        text[n++] = value.data[i];
    }
    *length = n;
    return n > 0;
}

/* Longer ones are compared by their bytes. */
enum { DECIMAL_MAX = 256 };

enum lk_status lk_decimal(struct lk_slice value, struct lk_buf *out)
{
    char text[DECIMAL_MAX];
    size_t length, at = 0, mark = out->len;
    enum lk_status status;

    if (!respell_number(value, text, sizeof(text), &length)) {
        return LK_MALFORMED;
    }
    status = lk_json_read_number((struct lk_slice){text, length}, &at, out);
    if (status == LK_OK && at != length) {
        status = LK_MALFORMED;
    }
    if (status != LK_OK) {
        out->len = mark;
    }
    return status;
}

static bool may_be_number(struct lk_slice value)
{
    char c = value.data[0];

    return is_decimal_digit(c) || c == '-' || c == '+' || c == '.';
}

enum lk_status lk_value_hash(const uint8_t key[LK_SIPHASH_KEY],
                             struct lk_slice value, uint64_t *hash)
{
    struct lk_buf number = {0};
    enum lk_status status = LK_MALFORMED;

    *hash = 0;
    if (value.len == 0) {
        return LK_OK;
    }
    if (may_be_number(value)) {
        status = lk_decimal(value, &number);
    }
    if (status == LK_OK) {
        /* A text would have to begin with a NUL to be taken for one. */
        char tagged[DECIMAL_MAX * 2] = {0};
        size_t length =
            number.len < sizeof(tagged) - 1 ? number.len : sizeof(tagged) - 1;

        memcpy(tagged + 1, number.data, length);
        *hash = lk_siphash64(key, tagged, length + 1);
    } else if (status == LK_MALFORMED) {
        *hash = lk_siphash64(key, value.data, value.len);
        status = LK_OK;
    }
    latchkey_buf_free(&number);
    return status;
}

/* ---- What a finding means --------------------------------------------------
 */

static const struct {
    const char *word;
    bool open;
} classes[LK_CLASSES] = {
#define X(name, word, open) {word, open},
    LK_CLASS_MAP(X)
#undef X
};

const char *lk_class_word(enum lk_class of)
{
    return classes[of].word;
}

bool lk_class_is_open(enum lk_class of)
{
    return classes[of].open;
}

/* The provider has it. If it differs from what we asked, a person must look, in
 * any state of the job. */
static enum lk_class judge_both(const struct lk_finding *finding)
{
    switch (finding->here->state) {
    case LK_JOB_LEASED:
        return LK_CLASS_UNDER_WAY;
    case LK_JOB_DROPPED:
        return LK_CLASS_DIFFERING;
    case LK_JOB_DELIVERED:
        return finding->differs != 0 ? LK_CLASS_DIFFERING : LK_CLASS_MATCHED;
    default:
        return finding->differs != 0 ? LK_CLASS_DIFFERING : LK_CLASS_HAPPENED;
    }
}

static enum lk_class judge_here(const struct lk_item *here)
{
    if ((here->flags & LK_ITEM_WINDOW) == 0) {
        return LK_CLASS_OUTSIDE;
    }
    switch (here->state) {
    case LK_JOB_UNCERTAIN:
        /* What has no key cannot be missed by it. */
        return (here->flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
               : (here->flags & LK_ITEM_SETTLED) != 0 &&
                       (here->flags & LK_ITEM_KEY) != 0
                   ? LK_CLASS_ABSENT
                   : LK_CLASS_OPEN;
    case LK_JOB_DEAD:
        return (here->flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
                                                   : LK_CLASS_NEITHER;
    case LK_JOB_DELIVERED:
        return (here->flags & LK_ITEM_SHARED) != 0  ? LK_CLASS_AMBIGUOUS
               : (here->flags & LK_ITEM_LATER) != 0 ? LK_CLASS_LATER
                                                    : LK_CLASS_HERE;
    default:
        return LK_CLASS_NEITHER;
    }
}

/* What has been forgotten here is not unknown. But if another line of the same
 * key has met the job, the job is here. */
static enum lk_class judge_there(const struct lk_finding *finding)
{
    uint16_t flags = finding->there->flags;

    if ((flags & LK_ITEM_WINDOW) == 0) {
        return LK_CLASS_OUTSIDE;
    }
    return (flags & LK_ITEM_OLDER) != 0 && finding->here == NULL
               ? LK_CLASS_OLDER
           : (flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
                                           : LK_CLASS_THERE;
}

enum lk_class lk_judge(const struct lk_finding *finding)
{
    switch (finding->meeting) {
    case LK_BOTH:
        return judge_both(finding);
    case LK_REPEATED:
        return LK_CLASS_REPEATED;
    case LK_ONLY_THERE:
        return judge_there(finding);
    default:
        return judge_here(finding->here);
    }
}

/*
 * Absence is the weaker proof, and a wrong one lets something happen twice. So
 * every line must have been understood, none may be the job's without saying
 * so, and the keys must be known to be ours.
 */
const char *lk_absence_fault(const struct lk_coverage *coverage)
{
    if (!coverage->complete) {
        return "it is not known until when the export is complete "
               "(--complete-until)";
    }
    if (coverage->malformed > 0) {
        return "some lines could not be read";
    }
    if (coverage->keyless > 0) {
        return "some lines without a key belong to no known job, and may be "
               "the missing ones";
    }
    if (coverage->strange > 0) {
        return "some lines have a value of --match that no job has, and may be "
               "the missing ones, cut or spelled differently";
    }
    if (coverage->lines > 0 ? coverage->by_key == 0 : !coverage->has_header) {
        return "no line of the export has the key of a job, so the column may "
               "hold other keys";
    }
    if (coverage->missing > 0) {
        return "jobs that were delivered before that time are not in the "
               "export, so it is not complete (or --since is missing)";
    }
    if (coverage->unended) {
        return "the last line has no newline, so the file may be cut off";
    }
    if (coverage->unsettled) {
        return "the daemon does not have this target, so it is not known how "
               "long a call may be on its way";
    }
    return NULL;
}
