/*
 * compare.c - jobs against the lines of an export: which job meets which line,
 * whether two values are equal, and what a finding means.
 *
 * The join happens in a temporary SQLite database (an empty name: SQLite makes
 * a private file, removes its name at once, and deletes it on close):
 *
 *   chunk       the lines in their order, CHUNK_BYTES of items in a row: most
 *               lines of an export need only be stored and read again
 *   job         the jobs in their order
 *   line        seq (counted from 1) of the lines that may have a job
 *   job_turn    value, turn -> job: the jobs that have a value (of the key, or
 *               of the id), counted from 1 in their order
 *   line_turn   the same for lines, of values that some job has
 *   shared      keys that do not say which job is which line (--match)
 *   meeting     line -> job, and how they met
 *   met         the jobs that met a line
 *   deferred    jobs to be reported once more, at the end
 *
 * Which lines may have a job is found by a set of bits, one for each hash of a
 * job's key or id: a line without a bit in it has no job, and SQL decides about
 * the others.
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
    "CREATE TABLE chunk (lines BLOB);"
    "CREATE TABLE job (seq INTEGER PRIMARY KEY, key BLOB, id BLOB, item BLOB,"
    " texts BLOB);"
    "CREATE TABLE line (seq INTEGER PRIMARY KEY, key BLOB, id BLOB);"
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

#define JOB_COLUMNS "job.seq, job.item, job_key.key IS NOT NULL"
#define JOB_SHARED  " LEFT JOIN shared AS job_key ON job_key.key = job.key"

static const char select_chunks[] = "SELECT lines FROM chunk ORDER BY rowid";
static const char select_known[] =
    "SELECT " JOB_COLUMNS ", line.seq, line_key.key IS NOT NULL, meeting.how"
    " FROM line"
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

enum { CHUNK_BYTES = 32 << 10 };

struct lk_comparison {
    struct lk_comparison_setup setup;
    size_t item_size; /* of what is stored: the start of a struct lk_item */
    sqlite3 *db;
    sqlite3_stmt *add_chunk; /* these live as long as the database */
    sqlite3_stmt *add_job;
    sqlite3_stmt *add_line;
    sqlite3_stmt *defer;
    sqlite3_stmt *get_texts;
    sqlite3_stmt *known; /* select_known, while lines are reported */
    uint64_t known_seq;  /* the line of its row; 0: there is none left */
    uint64_t seq;        /* of the line that was read last from the chunks */
    uint64_t done;       /* of the bar */
    uint64_t items;
    uint8_t *job_bits;   /* which lines may have a job; see the top */
    size_t job_bytes;    /* of job_bits, at least 1 */
    struct lk_buf lines; /* the items of the next chunk */
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

/* A quarter of the memory is the page cache's, and another the sorter's, which
 * takes as much as the cache may have. */
static enum lk_status bound_memory(struct lk_comparison *c)
{
    size_t kib = c->setup.memory / 4 / 1024;

    c->job_bytes = c->setup.memory / 16 + 1;
    c->job_bits = calloc(c->job_bytes, 1);
    if (c->job_bits == NULL) {
        return LK_NOMEM;
    }
    return run_made_sql(
        c, sqlite3_mprintf("PRAGMA cache_size = -%lld; PRAGMA cache_spill = 1;",
                           (long long)(kib < 64 ? 64 : kib)));
}

static enum lk_status prepare_all(struct lk_comparison *c)
{
    const struct {
        sqlite3_stmt **statement;
        const char *sql;
    } all[] = {
        {&c->add_chunk, "INSERT INTO chunk (lines) VALUES (?1)"},
        {&c->add_job,
         "INSERT INTO job (key, id, item, texts) VALUES (?1, ?2, ?3, ?4)"},
        {&c->add_line, "INSERT INTO line (key, id, seq) VALUES (?1, ?2, ?3)"},
        {&c->defer, "INSERT INTO deferred VALUES (?1)"},
        {&c->get_texts, "SELECT texts FROM job WHERE seq = ?1"},
    };
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (status == LK_OK) {
            status = prepare_sql(c, all[i].sql, all[i].statement);
        }
    }
    return status;
}

enum lk_status lk_comparison_open(const struct lk_comparison_setup *setup,
                                  struct lk_comparison **comparison)
{
    struct lk_comparison *c = calloc(1, sizeof(*c));
    enum lk_status status;

    *comparison = c;
    if (c == NULL) {
        return LK_NOMEM;
    }
    assert(setup->pairs <= LK_PAIRS_MAX);
    c->setup = *setup;
    c->item_size = offsetof(struct lk_item, values) +
                   setup->pairs * sizeof(((struct lk_item *)NULL)->values[0]);
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
    return status == LK_OK ? prepare_all(c) : status;
}

void lk_comparison_close(struct lk_comparison *c)
{
    if (c == NULL) {
        return;
    }
    sqlite3_finalize(c->add_chunk);
    sqlite3_finalize(c->add_job);
    sqlite3_finalize(c->add_line);
    sqlite3_finalize(c->defer);
    sqlite3_finalize(c->get_texts);
    sqlite3_finalize(c->known);
    sqlite3_close(c->db);
    free(c->job_bits);
    latchkey_buf_free(&c->lines);
    latchkey_buf_free(&c->texts);
    free(c);
}

/* ---- Loading --------------------------------------------------------------
 */

/* NULL, which meets nothing, if the item does not have it. What is bound must
 * stay until the step. */
static void bind_hash(sqlite3_stmt *statement, int at, bool has,
                      const struct lk_hash128 *hash)
{
    sqlite3_bind_blob(statement, at, has ? hash : NULL, sizeof(*hash),
                      SQLITE_STATIC);
}

static void bind_values(sqlite3_stmt *statement, const struct lk_item *item)
{
    bind_hash(statement, 1, (item->flags & LK_ITEM_KEY) != 0, &item->key);
    bind_hash(statement, 2, (item->flags & LK_ITEM_ID) != 0, &item->id);
}

/* The hashes are random, so any bits of one serve as its place. */
static void mark_hash(struct lk_comparison *c, struct lk_hash128 hash)
{
    c->job_bits[(hash.lo >> 3) % c->job_bytes] |=
        (uint8_t)(1U << (hash.lo & 7));
}

static bool is_marked(const struct lk_comparison *c, struct lk_hash128 hash)
{
    return c->job_bits[(hash.lo >> 3) % c->job_bytes] >> (hash.lo & 7) & 1;
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
    if ((job->flags & LK_ITEM_KEY) != 0) {
        mark_hash(c, job->key);
    }
    if ((job->flags & LK_ITEM_ID) != 0) {
        mark_hash(c, job->id);
    }
    bind_values(c->add_job, job);
    sqlite3_bind_blob(c->add_job, 3, job, (int)c->item_size, SQLITE_STATIC);
    sqlite3_bind_blob(c->add_job, 4, c->texts.data, (int)c->texts.len,
                      SQLITE_STATIC);
    return step_once(c->add_job);
}

static enum lk_status store_chunk(struct lk_comparison *c)
{
    enum lk_status status;

    sqlite3_bind_blob(c->add_chunk, 1, c->lines.data, (int)c->lines.len,
                      SQLITE_STATIC);
    status = step_once(c->add_chunk);
    c->lines.len = 0;
    return status;
}

enum lk_status lk_comparison_add_line(struct lk_comparison *c,
                                      const struct lk_item *line)
{
    enum lk_status status = latchkey_buf_add(&c->lines, line, c->item_size);

    c->items++;
    return status == LK_OK && c->lines.len >= CHUNK_BYTES ? store_chunk(c)
                                                          : status;
}

/* ---- Meeting --------------------------------------------------------------
 */

/* Reading takes one half of the bar, the preparation the other. */
static void show_bar(struct lk_comparison *c)
{
    if (c->setup.progress != NULL) {
        c->setup.progress(c->setup.context, c->done, c->items * 2);
    }
}

/* Shown once in 4096 items. */
static void advance_bar(struct lk_comparison *c, uint64_t more)
{
    uint64_t before = c->done;

    c->done += more;
    if (before >> 12 != c->done >> 12) {
        show_bar(c);
    }
}

/* From SQLite, now and then: the bar is drawn while a statement runs. */
static int keep_bar(void *context)
{
    show_bar(context);
    return 0;
}

static enum lk_status for_each_row(
    struct lk_comparison *c, const char *sql,
    enum lk_status (*take)(struct lk_comparison *, sqlite3_stmt *))
{
    sqlite3_stmt *row = NULL;
    enum lk_status status = prepare_sql(c, sql, &row);
    int code = SQLITE_DONE;

    while (status == LK_OK && (code = sqlite3_step(row)) == SQLITE_ROW) {
        status = take(c, row);
    }
    if (status == LK_OK) {
        status = sql_status(code);
    }
    sqlite3_finalize(row);
    return status;
}

/* A row of select_chunks: gives its lines to `take`, c->seq is theirs. */
static enum lk_status for_each_line(
    struct lk_comparison *c, sqlite3_stmt *row,
    enum lk_status (*take)(struct lk_comparison *, struct lk_item *))
{
    const char *at = sqlite3_column_blob(row, 0);
    size_t left = (size_t)sqlite3_column_bytes(row, 0);
    enum lk_status status = at == NULL ? LK_NOMEM : LK_OK;
    struct lk_item line;

    assert(left % c->item_size == 0);
    for (; status == LK_OK && left > 0; left -= c->item_size) {
        memcpy(&line, at, c->item_size);
        at += c->item_size;
        c->seq++;
        status = take(c, &line);
    }
    return status;
}

/* Into `line`, if it may have a job. */
static enum lk_status pick_line(struct lk_comparison *c, struct lk_item *line)
{
    if (!((line->flags & LK_ITEM_KEY) != 0 && is_marked(c, line->key)) &&
        !((line->flags & LK_ITEM_ID) != 0 && is_marked(c, line->id))) {
        return LK_OK;
    }
    bind_values(c->add_line, line);
    sqlite3_bind_int64(c->add_line, 3, (sqlite3_int64)c->seq);
    return step_once(c->add_line);
}

static enum lk_status pick_lines(struct lk_comparison *c, sqlite3_stmt *row)
{
    return for_each_line(c, row, pick_line);
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

/* Reads JOB_COLUMNS, the first of the row. */
static void read_job(const struct lk_comparison *c, sqlite3_stmt *row,
                     struct lk_item *job)
{
    const void *item = sqlite3_column_blob(row, 1);

    assert(item != NULL &&
           (size_t)sqlite3_column_bytes(row, 1) == c->item_size);
    memcpy(job, item, c->item_size);
    job->place = (uint64_t)sqlite3_column_int64(row, 0);
    if (sqlite3_column_int(row, 2) != 0) {
        job->flags |= LK_ITEM_SHARED;
    }
}

/* To the next line that may have a job. */
static enum lk_status step_known(struct lk_comparison *c)
{
    int code = sqlite3_step(c->known);

    c->known_seq =
        code == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(c->known, 3) : 0;
    return sql_status(code);
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

/* The line is c->seq; the row of select_known is its own, or a later line's. */
static enum lk_status report_line(struct lk_comparison *c, struct lk_item *line)
{
    bool known = c->known_seq == c->seq;
    int how = known ? sqlite3_column_int(c->known, 5) : 0; /* 0: NULL */
    struct lk_item here;
    struct lk_finding finding = {.there = line};
    enum lk_status status;

    if (known && sqlite3_column_int(c->known, 4) != 0) {
        line->flags |= LK_ITEM_SHARED;
    }
    if (how != 0) {
        read_job(c, c->known, &here);
        finding.here = &here;
    }
    switch (how) {
    case HOW_KEY:
    case HOW_ID:
        finding.meeting = LK_BOTH;
        finding.by_key = how == HOW_KEY;
        finding.differs = find_differences(c, &here, line);
        break;
    case HOW_REPEATED:
        finding.meeting = LK_REPEATED;
        break;
    default:
        finding.meeting = LK_ONLY_THERE;
        break;
    }
    advance_bar(c, 1);
    status = c->setup.found(c->setup.context, &finding);
    return status == LK_OK && known ? step_known(c) : status;
}

static enum lk_status report_lines(struct lk_comparison *c, sqlite3_stmt *row)
{
    return for_each_line(c, row, report_line);
}

/* A row of select_jobs or select_deferred. */
static enum lk_status report_job(struct lk_comparison *c, sqlite3_stmt *row)
{
    struct lk_item here;
    struct lk_finding finding = {.meeting = LK_ONLY_HERE, .here = &here};

    read_job(c, row, &here);
    advance_bar(c, 1);
    return c->setup.found(c->setup.context, &finding);
}

enum lk_status lk_comparison_run(struct lk_comparison *c)
{
    enum lk_status status = c->lines.len > 0 ? store_chunk(c) : LK_OK;

    sqlite3_progress_handler(c->db, 1000000, keep_bar, c);
    if (status == LK_OK) {
        status = for_each_row(c, select_chunks, pick_lines);
    }
    if (status == LK_OK) {
        status = meet_by(c, "key", HOW_KEY);
    }
    if (status == LK_OK) {
        status = meet_by(c, "id", HOW_ID);
    }
    sqlite3_progress_handler(c->db, 0, NULL, NULL);
    c->done = c->items;
    c->seq = 0;
    if (status == LK_OK) {
        status = prepare_sql(c, select_known, &c->known);
    }
    if (status == LK_OK) {
        status = step_known(c);
    }
    if (status == LK_OK) {
        status = for_each_row(c, select_chunks, report_lines);
    }
    return status == LK_OK ? for_each_row(c, select_jobs, report_job) : status;
}

enum lk_status lk_comparison_defer(struct lk_comparison *c,
                                   const struct lk_item *job)
{
    sqlite3_bind_int64(c->defer, 1, (sqlite3_int64)job->place);
    return step_once(c->defer);
}

enum lk_status lk_comparison_take_deferred(struct lk_comparison *c)
{
    return for_each_row(c, select_deferred, report_job);
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
