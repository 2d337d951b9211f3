/* test_compare.c - rows, values and the join of two ledgers (C32). */
#include "cli/compare.h"
#include "cli/csv.h"
#include "lib/body.h"
#include "lib/json.h"

#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- CSV ------------------------------------------------------------------
 */

/* Reads all of `text`, given to the reader in pieces of `piece` bytes: rows
 * as "a|b|c\n", what is malformed as "!\n". */
static void read_rows(const char *text, size_t piece, char delimiter,
                      struct lk_buf *out)
{
    struct lk_csv csv = {.delimiter = delimiter};
    size_t length = strlen(text), start = 0, have = 0;

    while (start < length) {
        bool at_end = start + have == length;
        size_t used = 0;
        enum lk_status status = lk_csv_read(
            &csv, (struct lk_slice){text + start, have}, at_end, &used);

        if (status == LK_AGAIN) {
            assert_false(at_end);
            have =
                have + piece < length - start ? have + piece : length - start;
            continue;
        }
        if (status == LK_TOO_LARGE) {
            assert_int_equal(latchkey_buf_add_text(out, "broken\n"), LK_OK);
            break;
        }
        assert_true(used > 0);
        if (status == LK_MALFORMED) {
            assert_non_null(csv.fault);
            assert_int_equal(latchkey_buf_add_text(out, "!"), LK_OK);
        } else {
            assert_int_equal(status, LK_OK);
        }
        for (size_t i = 0; i < csv.count; i++) {
            assert_int_equal(
                latchkey_buf_printf(out, "%s%.*s", i == 0 ? "" : "|",
                                    (int)csv.fields[i].len, csv.fields[i].data),
                LK_OK);
        }
        assert_int_equal(latchkey_buf_add_text(out, "\n"), LK_OK);
        start += used;
        have = have > used ? have - used : 0;
    }
    lk_csv_free(&csv);
}

/* However the bytes come. */
static void check_rows(const char *text, const char *expected)
{
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        struct lk_buf out = {0};

        read_rows(text, piece, ',', &out);
        assert_int_equal(latchkey_buf_add(&out, "", 1), LK_OK);
        assert_string_equal(out.data, expected);
        latchkey_buf_free(&out);
    }
}

static void plain_rows_are_read(void **state)
{
    (void)state;
    check_rows("a,b\n1,2\n", "a|b\n1|2\n");
    check_rows("a,b\r\n1,2\r\n", "a|b\n1|2\n");
    check_rows("a,,\n", "a||\n");
    check_rows("last,row", "last|row\n");
    check_rows("last,", "last|\n");
    check_rows("a\n\nb\n", "a\n\nb\n");
}

static void quotes_hold_anything(void **state)
{
    (void)state;
    check_rows("\"a,b\",c\n", "a,b|c\n");
    check_rows("\"say \"\"hi\"\"\",\"\"\"\"\n", "say \"hi\"|\"\n");
    check_rows("\"two\r\nlines\",x\n", "two\r\nlines|x\n");
    check_rows("\"\"\n", "\n");
    check_rows("x,\"end\"", "x|end\n");
    check_rows("\"end \"\"\"", "end \"\n");
}

static void a_bad_row_costs_one_line(void **state)
{
    (void)state;
    check_rows("a\"b,c\nd,e\n", "!\nd|e\n");
    check_rows("\"a\"b,c\nd,e\n", "!\nd|e\n");
    check_rows("a\rb\nd,e\n", "!\nd|e\n");
    check_rows("a\"b", "!\n");
}

static void an_open_quote_makes_the_rest_unreadable(void **state)
{
    (void)state;
    check_rows("a,b\n\"c,d\ne,f\n", "a|b\nbroken\n");
}

static void another_delimiter_can_be_named(void **state)
{
    struct lk_buf out = {0};

    (void)state;
    read_rows("a;\"b;c\";d,e\n", 3, ';', &out);
    assert_int_equal(latchkey_buf_add(&out, "", 1), LK_OK);
    assert_string_equal(out.data, "a|b;c|d,e\n");
    latchkey_buf_free(&out);
}

static void a_row_tells_how_many_lines_it_takes(void **state)
{
    struct lk_csv csv = {.delimiter = ','};
    size_t used;

    (void)state;
    assert_int_equal(
        lk_csv_read(&csv, LK_SLICE("\"1\n2\n\",\"\n\"\nnext"), true, &used),
        LK_OK);
    assert_int_equal(csv.lines, 4);
    assert_int_equal(
        lk_csv_read(&csv, LK_SLICE("\"1\n2\"x,\ny\n"), true, &used),
        LK_MALFORMED);
    assert_int_equal(csv.lines, 2);
    lk_csv_free(&csv);
}

/* ---- Values ---------------------------------------------------------------
 */

static const uint8_t key[LK_SIPHASH_KEY] = "0123456789abcde";

static bool same(const char *a, const char *b)
{
    uint64_t x, y;

    assert_int_equal(lk_value_hash(key, latchkey_slice(a), &x), LK_OK);
    assert_int_equal(lk_value_hash(key, latchkey_slice(b), &y), LK_OK);
    return x == y;
}

static void numbers_are_equal_by_value(void **state)
{
    static const char *const equal[][2] = {
        {"1", "1.0"},
        {"1", "1.000"},
        {"1e2", "100"},
        {"100", "1E+02"},
        {"0.5", ".5"},
        {"+7", "7"},
        {"2.", "2"},
        {"-0", "0"},
        {"0.10", "1e-1"},
        {"12.50", "12.5"},
        {"-3.0", "-3"},
        {"10000000000000000000000000.1", "10000000000000000000000000.10"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(equal) / sizeof(equal[0]); i++) {
        assert_true(same(equal[i][0], equal[i][1]));
    }
}

static void numbers_that_a_double_would_confuse_differ(void **state)
{
    static const char *const other[][2] = {
        {"9007199254740993", "9007199254740992"},
        {"0.1", "0.1000000000000000055511151231257827"},
        {"1e400", "1e401"},
        {"1", "-1"},
        {"0.3", "0.30000000000000004"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        assert_false(same(other[i][0], other[i][1]));
    }
}

static void what_is_no_number_is_equal_by_its_bytes(void **state)
{
    (void)state;
    assert_true(same("eur", "eur"));
    assert_false(same("eur", "EUR"));
    assert_false(same("007", "7"));
    assert_false(same("1 ", "1"));
    assert_false(same("1,000", "1000"));
    assert_false(same("0x10", "16"));
    assert_false(same("1e", "1"));
    assert_false(same("-", ""));
    assert_false(same(".", ""));
    assert_true(same("", ""));
    assert_false(same("0", ""));
}

/* ---- Picks ----------------------------------------------------------------
 */

static void values_are_picked_by_name_and_by_pointer(void **state)
{
    struct lk_picks picks = {0};
    static const char *const names[] = {"amount", "/to/iban", "/lines/1",
                                        "a/b",    "/a~1b",    "nil"};
    static const char *const expected[] = {"12.50", "DE\"1", "7", "x", "x", ""};

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(lk_picks_add(&picks, latchkey_slice(names[i])), LK_OK);
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(
            lk_picks_read(
                &picks, LK_SLICE("{\"other\":{\"amount\":1},\"amount\":12.50,"
                                 " \"to\":{\"iban\":\"DE\\\"1\"},\"nil\":null,"
                                 "\"lines\":[5,7],\"a\\/b\":\"x\"}")),
            LK_OK);
        for (size_t i = 0; i < 6; i++) {
            struct lk_slice value = picks.picks[i].value;

            assert_true(picks.picks[i].found);
            assert_true(
                latchkey_slice_equal(value, latchkey_slice(expected[i])));
        }
    }
    assert_int_equal(lk_picks_read(&picks, LK_SLICE("{}")), LK_OK);
    assert_false(picks.picks[0].found);
    lk_picks_free(&picks);
}

static void json_that_can_be_read_two_ways_is_refused(void **state)
{
    struct lk_picks picks = {0};
    static const char *const wrong[] = {
        "{\"a\":1,\"a\":2}", "{\"a\":1",   "{\"a\":}", "{\"a\":1}x",  "",
        "{\"a\" 1}",         "{\"a\":01}", "[1,]",     "{\"a\":tru}", "{'a':1}",
        "{\"b\":nul}",       "{\"a\":1,}"};
    struct lk_buf deep = {0};

    (void)state;
    assert_int_equal(lk_picks_add(&picks, LK_SLICE("a")), LK_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(lk_picks_read(&picks, latchkey_slice(wrong[i])),
                         LK_MALFORMED);
    }
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(latchkey_buf_add(&deep, "[", 1), LK_OK);
    }
    assert_int_equal(lk_picks_read(&picks, latchkey_buf_slice(&deep)),
                     LK_MALFORMED);
    assert_int_equal(lk_picks_add(&picks, LK_SLICE("/a~2")), LK_INVALID);
    latchkey_buf_free(&deep);
    lk_picks_free(&picks);
}

/* ---- The join -------------------------------------------------------------
 */

enum lk_side { LK_HERE, LK_THERE };

/* What was reported of each item, by its number. */
struct world {
    struct lk_comparison *comparison;
    uint64_t both, by_id, repeated, there, here, differing;
    uint64_t shared_here, shared_there;
    uint32_t last_differs;
    uint64_t last_here, last_there;
    unsigned char *seen_here; /* how often each job was told of */
    unsigned char *seen_there;
};

static enum lk_status take(void *context, const struct lk_finding *finding)
{
    struct world *world = context;

    switch (finding->meeting) {
    case LK_BOTH:
        world->both++;
        world->by_id += !finding->by_key;
        world->differing += finding->differs != 0;
        world->last_differs = finding->differs;
        break;
    case LK_REPEATED:
        world->repeated++;
        break;
    case LK_ONLY_THERE:
        world->there++;
        world->shared_there += (finding->there->flags & LK_ITEM_SHARED) != 0;
        break;
    case LK_ONLY_HERE:
        world->here++;
        world->shared_here += (finding->here->flags & LK_ITEM_SHARED) != 0;
        break;
    }
    if (finding->there != NULL) {
        world->last_there = finding->there->number;
        if (world->seen_there != NULL) {
            world->seen_there[finding->there->number]++;
        }
    }
    if (finding->here != NULL && finding->meeting != LK_REPEATED &&
        !(finding->meeting == LK_ONLY_THERE)) {
        world->last_here = finding->here->number;
        if (world->seen_here != NULL) {
            world->seen_here[finding->here->number]++;
        }
    }
    return LK_OK;
}

static void begin_with(struct world *world, size_t memory, unsigned pairs,
                       bool shared_keys)
{
    struct lk_comparison_setup setup = {
        .memory = memory,
        .pairs = pairs,
        .shared_keys = shared_keys,
        .found = take,
        .context = world,
    };

    *world = (struct world){0};
    assert_int_equal(lk_comparison_open(&setup, &world->comparison), LK_OK);
}

static void begin(struct world *world, size_t memory, unsigned pairs)
{
    begin_with(world, memory, pairs, false);
}

static void begin_shared(struct world *world, size_t memory)
{
    begin_with(world, memory, 0, true);
}

static void end(struct world *world)
{
    assert_int_equal(lk_comparison_run(world->comparison), LK_OK);
    lk_comparison_close(world->comparison);
}

static struct lk_hash128 hash(uint64_t kind, uint64_t number)
{
    uint64_t text[2] = {kind, number};
    struct lk_siphash state;

    lk_siphash_init(&state, key);
    lk_siphash_update(&state, text, sizeof(text));
    return lk_siphash_final128(&state);
}

/* A key or an id of 0 is none. */
static void add(struct world *world, enum lk_side side, uint64_t number,
                uint64_t name, uint64_t id, uint64_t value)
{
    struct lk_item item = {
        .number = number, .key = hash(1, name), .id = hash(2, id)};

    item.flags =
        (uint16_t)((name != 0 ? LK_ITEM_KEY : 0) | (id != 0 ? LK_ITEM_ID : 0));
    item.values[0] = value;
    assert_int_equal(
        side == LK_HERE
            ? lk_comparison_add_job(world->comparison, &item, NULL, 0)
            : lk_comparison_add_line(world->comparison, &item),
        LK_OK);
}

static void a_key_that_several_have_lets_nobody_meet(void **state)
{
    /* With room for all, and in partitions that are split. */
    static const size_t memory[] = {1 << 20, 1 << 12};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct world world;

        begin_shared(&world, memory[i]);
        add(&world, LK_HERE, 1, 11, 0, 0); /* one of each */
        add(&world, LK_THERE, 1, 11, 21, 0);
        add(&world, LK_THERE, 2, 11, 21, 0); /* the same object again */
        add(&world, LK_HERE, 2, 12, 0, 0);   /* two jobs */
        add(&world, LK_HERE, 3, 12, 0, 0);
        add(&world, LK_THERE, 3, 12, 23, 0);
        add(&world, LK_HERE, 4, 13, 0, 0); /* two objects */
        add(&world, LK_THERE, 4, 13, 24, 0);
        add(&world, LK_THERE, 5, 13, 25, 0);
        add(&world, LK_HERE, 5, 14, 26, 0); /* told apart by the id */
        add(&world, LK_HERE, 6, 14, 0, 0);
        add(&world, LK_THERE, 6, 14, 26, 0);
        add(&world, LK_HERE, 7, 15, 0, 0); /* two jobs, and nothing there */
        add(&world, LK_HERE, 8, 15, 0, 0);
        end(&world);
        assert_int_equal(world.both, 2);
        assert_int_equal(world.by_id, 1);
        assert_int_equal(world.repeated, 1);
        assert_int_equal(world.here, 6);
        assert_int_equal(world.shared_here, 4); /* 2, 3, 4, 6 */
        assert_int_equal(world.there, 3);
        assert_int_equal(world.shared_there, 3);
    }
}

static void the_four_cases_are_told_apart(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 1 << 20, 1);
    add(&world, LK_HERE, 1, 11, 0, 5);
    add(&world, LK_THERE, 1, 11, 0, 5); /* the same */
    add(&world, LK_HERE, 2, 12, 0, 5);
    add(&world, LK_THERE, 2, 12, 0, 6); /* differs */
    add(&world, LK_HERE, 3, 13, 0, 5);  /* only here */
    add(&world, LK_THERE, 4, 14, 0, 5); /* only there */
    end(&world);
    assert_int_equal(world.both, 2);
    assert_int_equal(world.differing, 1);
    assert_int_equal(world.here, 1);
    assert_int_equal(world.there, 1);
}

static void what_has_no_key_meets_by_the_id(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 1 << 20, 0);
    add(&world, LK_HERE, 1, 11, 21, 0);
    add(&world, LK_THERE, 1, 0, 21, 0); /* by the id */
    add(&world, LK_HERE, 2, 12, 22, 0);
    add(&world, LK_THERE, 2, 99, 22, 0); /* by the id, with another key */
    add(&world, LK_HERE, 3, 13, 0, 0);
    add(&world, LK_THERE, 3, 0, 23, 0);
    end(&world);
    assert_int_equal(world.both, 2);
    assert_int_equal(world.by_id, 2);
    assert_int_equal(world.differing, 1);
    assert_int_equal(world.here, 1);
    assert_int_equal(world.there, 1);
}

static void another_id_under_the_same_key_differs(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 1 << 20, 0);
    add(&world, LK_HERE, 1, 11, 21, 0);
    add(&world, LK_THERE, 1, 11, 22, 0);
    end(&world);
    assert_int_equal(world.both, 1);
    assert_int_equal(world.last_differs, LK_DIFFERS_ID);
}

static void a_second_object_of_one_key_is_not_overlooked(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 1 << 20, 0);
    add(&world, LK_HERE, 1, 11, 21, 0);
    add(&world, LK_THERE, 1, 11, 21, 0);
    add(&world, LK_THERE, 2, 11, 21, 0); /* the same line again */
    add(&world, LK_THERE, 3, 11, 22, 0); /* a second charge */
    add(&world, LK_HERE, 2, 12, 0, 0);
    add(&world, LK_THERE, 4, 12, 0, 0);
    add(&world, LK_THERE, 5, 12, 0, 0); /* nobody can tell: told */
    end(&world);
    assert_int_equal(world.both, 2);
    assert_int_equal(world.repeated, 1);
    assert_int_equal(world.there, 2);
}

/* Both sides far larger than the memory, in every combination. */
static void every_item_is_told_of_once_however_small_the_memory(void **state)
{
    enum { N = 300000 };
    struct world world;

    (void)state;
    sqlite3_memory_highwater(1);
    begin(&world, 1 << 17, 1);
    world.seen_here = calloc(N + 1, 1);
    world.seen_there = calloc(N + 1, 1);
    for (uint64_t i = 1; i <= N; i++) {
        /* Of six: two by key (one differs), one by id, one here alone, one
         * there alone, one on neither side of the other's. */
        uint64_t kind = i % 6;
        bool by_id = kind == 2;

        if (kind != 4) {
            add(&world, LK_HERE, i, i, by_id ? i : 0, 1);
        }
        if (kind != 3) {
            add(&world, LK_THERE, i,
                by_id       ? 0
                : kind == 5 ? N + i
                            : i,
                by_id ? i : 0, kind == 1 ? 2 : 1);
        }
    }
    end(&world);
    assert_true(sqlite3_memory_highwater(0) < 3 << 20);
    assert_int_equal(world.both, N / 2);
    assert_int_equal(world.differing, N / 6);
    assert_int_equal(world.by_id, N / 6);
    assert_int_equal(world.here, N / 3);
    assert_int_equal(world.there, N / 3);
    for (uint64_t i = 1; i <= N; i++) {
        assert_int_equal(world.seen_here[i], i % 6 != 4);
        assert_int_equal(world.seen_there[i], i % 6 != 3);
    }
    free(world.seen_here);
    free(world.seen_there);
}

/* Which would take hours if each had to look past all others. */
static void jobs_of_one_id_meet_a_line_each(void **state)
{
    const uint64_t jobs = 300000;
    struct world world;

    (void)state;
    begin(&world, 256 << 20, 0);
    world.seen_here = calloc(jobs + 1, 1);
    for (uint64_t i = 1; i <= jobs; i++) {
        add(&world, LK_HERE, i, 0, i % 2 != 0 ? 7 : 8, 0);
        add(&world, LK_THERE, i, 0, i % 2 != 0 ? 7 : 8, 0);
    }
    add(&world, LK_THERE, jobs + 1, 0, 7, 0);
    end(&world);
    assert_int_equal(world.both, jobs);
    assert_int_equal(world.repeated, 1);
    assert_int_equal(world.here + world.there, 0);
    for (uint64_t i = 1; i <= jobs; i++) {
        assert_int_equal(world.seen_here[i], 1);
    }
    free(world.seen_here);
}

/* Which takes no more memory than others. */
static void one_line_meets_one_of_many_jobs_of_its_id(void **state)
{
    struct world world;

    (void)state;
    sqlite3_memory_highwater(1);
    begin(&world, 1 << 20, 0);
    for (uint64_t i = 1; i <= 50000; i++) {
        add(&world, LK_HERE, i, i, 7, 0);
    }
    add(&world, LK_THERE, 1, 0, 7, 0);
    end(&world);
    assert_int_equal(world.both, 1);
    assert_int_equal(world.by_id, 1);
    assert_int_equal(world.here, 49999);
    assert_int_equal(world.there, 0);
    assert_true(sqlite3_memory_highwater(0) < 3 << 20);
}

/* A reference and an id may have the same text. */
static void a_shared_key_does_not_keep_an_equal_id_from_meeting(void **state)
{
    struct lk_hash128 both = hash(1, 7);
    struct lk_item lines[] = {
        {.number = 1, .key = both, .flags = LK_ITEM_KEY},
        {.number = 2, .key = both, .flags = LK_ITEM_KEY},
        {.number = 3, .id = both, .flags = LK_ITEM_ID},
    };
    struct lk_item jobs[] = {
        {.number = 1, .key = both, .flags = LK_ITEM_KEY},
        {.number = 2, .id = both, .flags = LK_ITEM_ID},
    };
    struct world world;

    (void)state;
    begin_shared(&world, 1 << 20);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(lk_comparison_add_line(world.comparison, &lines[i]),
                         LK_OK);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            lk_comparison_add_job(world.comparison, &jobs[i], NULL, 0), LK_OK);
    }
    end(&world);
    assert_int_equal(world.both, 1);
    assert_int_equal(world.by_id, 1);
    assert_int_equal(world.shared_there, 2);
    assert_int_equal(world.shared_here, 1);
}

/* ---- Jobs that are reported again, and their texts ------------------------
 */

struct shelf {
    struct lk_comparison *comparison;
    bool ended;
    unsigned again; /* jobs reported after the run */
};

static enum lk_status put_off(void *context, const struct lk_finding *finding)
{
    struct shelf *shelf = context;
    struct lk_slice texts[2];
    struct lk_buf buf = {0};
    bool first = finding->here->number == 1;

    assert_int_equal(finding->meeting, LK_ONLY_HERE);
    if (!shelf->ended) {
        return lk_comparison_defer(shelf->comparison, finding->here);
    }
    shelf->again++;
    assert_int_equal(
        lk_comparison_texts(shelf->comparison, finding->here, &buf, texts, 2),
        LK_OK);
    assert_true(
        latchkey_slice_equal(texts[0], latchkey_slice(first ? "one" : "")));
    assert_int_equal(texts[1].len, first ? 4 : 255);
    assert_int_equal(finding->here->attempt, 9);
    assert_int_equal(finding->here->values[1], 12);
    latchkey_buf_free(&buf);
    return LK_OK;
}

static void a_deferred_job_comes_again_with_its_texts(void **state)
{
    struct shelf shelf = {0};
    struct lk_comparison_setup setup = {
        .memory = 1 << 20, .pairs = 2, .found = put_off, .context = &shelf};
    char longest[300];
    const struct lk_slice texts[2][2] = {
        {{"one", 3}, {"more", 4}},
        {{"", 0}, {longest, sizeof(longest)}},
    };

    (void)state;
    memset(longest, 'x', sizeof(longest));
    assert_int_equal(lk_comparison_open(&setup, &shelf.comparison), LK_OK);
    for (uint64_t i = 1; i <= 2; i++) {
        struct lk_item job = {.number = i, .attempt = 9, .values = {11, 12}};

        assert_int_equal(
            lk_comparison_add_job(shelf.comparison, &job, texts[i - 1], 2),
            LK_OK);
    }
    assert_int_equal(lk_comparison_run(shelf.comparison), LK_OK);
    assert_int_equal(shelf.again, 0);
    shelf.ended = true;
    assert_int_equal(lk_comparison_take_deferred(shelf.comparison), LK_OK);
    assert_int_equal(shelf.again, 2);
    lk_comparison_close(shelf.comparison);
}

static enum lk_status refuse(void *context, const struct lk_finding *finding)
{
    (void)context;
    (void)finding;
    return LK_REPLY;
}

static void who_is_told_can_end_it(void **state)
{
    struct world world = {0};
    struct lk_comparison_setup setup = {
        .memory = 1 << 20, .found = refuse, .context = &world};

    (void)state;
    assert_int_equal(lk_comparison_open(&setup, &world.comparison), LK_OK);
    add(&world, LK_HERE, 1, 1, 0, 0);
    assert_int_equal(lk_comparison_run(world.comparison), LK_REPLY);
    lk_comparison_close(world.comparison);
}

/* ---- What it means --------------------------------------------------------
 */

static enum lk_class judge(enum lk_meeting meeting, enum lk_job_state job,
                           unsigned flags, uint32_t differs)
{
    struct lk_item here = {.state = (uint16_t)job, .flags = (uint16_t)flags};
    struct lk_item there = {.flags = (uint16_t)flags};
    struct lk_finding finding = {.meeting = meeting, .differs = differs};

    finding.here = meeting == LK_ONLY_THERE ? NULL : &here;
    finding.there = meeting == LK_ONLY_HERE ? NULL : &there;
    return lk_judge(&finding);
}

static void presence_is_proof_for_whatever_is_not_delivered(void **state)
{
    (void)state;
    assert_int_equal(judge(LK_BOTH, LK_JOB_DELIVERED, 0, 0), LK_CLASS_MATCHED);
    assert_int_equal(judge(LK_BOTH, LK_JOB_UNCERTAIN, 0, 0), LK_CLASS_HAPPENED);
    assert_int_equal(judge(LK_BOTH, LK_JOB_DEAD, 0, 0), LK_CLASS_HAPPENED);
    assert_int_equal(judge(LK_BOTH, LK_JOB_WAITING, 0, 0), LK_CLASS_HAPPENED);
    assert_int_equal(judge(LK_BOTH, LK_JOB_LEASED, 0, 0), LK_CLASS_UNDER_WAY);
    assert_int_equal(judge(LK_BOTH, LK_JOB_DROPPED, 0, 0), LK_CLASS_DIFFERING);
    assert_int_equal(judge(LK_BOTH, LK_JOB_UNCERTAIN, 0, 1),
                     LK_CLASS_DIFFERING);
    assert_int_equal(judge(LK_BOTH, LK_JOB_DELIVERED, 0, 1),
                     LK_CLASS_DIFFERING);
}

static void absence_counts_only_where_the_export_is_complete(void **state)
{
    const unsigned settled = LK_ITEM_WINDOW | LK_ITEM_SETTLED | LK_ITEM_KEY;
    const unsigned later = LK_ITEM_WINDOW | LK_ITEM_LATER;

    (void)state;
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN, settled, 0),
                     LK_CLASS_ABSENT);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN,
                           settled & ~(unsigned)LK_ITEM_KEY, 0),
                     LK_CLASS_OPEN);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN, later, 0),
                     LK_CLASS_OPEN);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN, LK_ITEM_WINDOW, 0),
                     LK_CLASS_OPEN);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DELIVERED, settled, 0),
                     LK_CLASS_HERE);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DELIVERED, LK_ITEM_WINDOW, 0),
                     LK_CLASS_HERE);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DELIVERED, later, 0),
                     LK_CLASS_LATER);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DEAD, settled, 0),
                     LK_CLASS_NEITHER);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN, LK_ITEM_SETTLED, 0),
                     LK_CLASS_OUTSIDE);
    assert_int_equal(judge(LK_ONLY_THERE, LK_JOB_DEAD, LK_ITEM_WINDOW, 0),
                     LK_CLASS_THERE);
    assert_int_equal(judge(LK_ONLY_THERE, LK_JOB_DEAD, 0, 0), LK_CLASS_OUTSIDE);
}

static void what_shares_its_key_is_for_a_person(void **state)
{
    const unsigned shared =
        LK_ITEM_WINDOW | LK_ITEM_SETTLED | LK_ITEM_KEY | LK_ITEM_SHARED;

    (void)state;
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_UNCERTAIN, shared, 0),
                     LK_CLASS_AMBIGUOUS);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DELIVERED, shared, 0),
                     LK_CLASS_AMBIGUOUS);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_DEAD, shared, 0),
                     LK_CLASS_AMBIGUOUS);
    assert_int_equal(judge(LK_ONLY_HERE, LK_JOB_WAITING, shared, 0),
                     LK_CLASS_NEITHER);
    assert_int_equal(judge(LK_ONLY_THERE, LK_JOB_DEAD, shared, 0),
                     LK_CLASS_AMBIGUOUS);
    assert_true(lk_class_is_open(LK_CLASS_AMBIGUOUS));
}

static void a_value_of_a_form_is_found_if_it_is_there_once(void **state)
{
    static const struct {
        const char *body, *name, *value;
    } rows[] = {
        {"a=1&order=A%2d7+x&b=2", "order", "A-7 x"},
        {"metadata%5Border%5D=7", "metadata[order]", "7"},
        {"order", "order", ""},
        {"a=b=c", "a", "b=c"},
        {"&&a=1&", "a", "1"},
        {"a=1&a=1", "a", NULL},
        {"aa=1", "a", NULL},
        {"", "a", NULL},
        {"a=%4", "a", NULL},
        {"%zz=1&a=2", "a", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lk_buf value = {0};
        enum lk_status status = lk_form_find(
            latchkey_slice(rows[i].body), latchkey_slice(rows[i].name), &value);

        assert_int_equal(status == LK_OK, rows[i].value != NULL);
        if (rows[i].value != NULL) {
            assert_true(latchkey_slice_equal(latchkey_buf_slice(&value),
                                             latchkey_slice(rows[i].value)));
        }
        latchkey_buf_free(&value);
    }
}

static void absence_proves_nothing_if_anything_is_doubtful(void **state)
{
    const struct lk_coverage good = {
        .complete = true, .has_header = true, .lines = 10, .by_key = 3};
    struct lk_coverage coverage = good;

    (void)state;
    assert_null(lk_absence_fault(&coverage));
    coverage.complete = false;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.malformed = 1;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.keyless = 1;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.by_key = 0;
    assert_non_null(lk_absence_fault(&coverage));
    coverage.lines = 0;
    assert_null(lk_absence_fault(&coverage));
    coverage.has_header = false;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.missing = 1;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.unended = true;
    assert_non_null(lk_absence_fault(&coverage));
    coverage = good;
    coverage.unsettled = true;
    assert_non_null(lk_absence_fault(&coverage));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_rows_are_read),
        cmocka_unit_test(quotes_hold_anything),
        cmocka_unit_test(a_bad_row_costs_one_line),
        cmocka_unit_test(an_open_quote_makes_the_rest_unreadable),
        cmocka_unit_test(another_delimiter_can_be_named),
        cmocka_unit_test(a_row_tells_how_many_lines_it_takes),
        cmocka_unit_test(numbers_are_equal_by_value),
        cmocka_unit_test(numbers_that_a_double_would_confuse_differ),
        cmocka_unit_test(what_is_no_number_is_equal_by_its_bytes),
        cmocka_unit_test(values_are_picked_by_name_and_by_pointer),
        cmocka_unit_test(json_that_can_be_read_two_ways_is_refused),
        cmocka_unit_test(the_four_cases_are_told_apart),
        cmocka_unit_test(what_has_no_key_meets_by_the_id),
        cmocka_unit_test(another_id_under_the_same_key_differs),
        cmocka_unit_test(a_second_object_of_one_key_is_not_overlooked),
        cmocka_unit_test(every_item_is_told_of_once_however_small_the_memory),
        cmocka_unit_test(jobs_of_one_id_meet_a_line_each),
        cmocka_unit_test(one_line_meets_one_of_many_jobs_of_its_id),
        cmocka_unit_test(a_shared_key_does_not_keep_an_equal_id_from_meeting),
        cmocka_unit_test(a_deferred_job_comes_again_with_its_texts),
        cmocka_unit_test(who_is_told_can_end_it),
        cmocka_unit_test(presence_is_proof_for_whatever_is_not_delivered),
        cmocka_unit_test(absence_counts_only_where_the_export_is_complete),
        cmocka_unit_test(absence_proves_nothing_if_anything_is_doubtful),
        cmocka_unit_test(a_key_that_several_have_lets_nobody_meet),
        cmocka_unit_test(what_shares_its_key_is_for_a_person),
        cmocka_unit_test(a_value_of_a_form_is_found_if_it_is_there_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
