/* test_call.c - what a job may ask for, by the table that SQL is held to as
 * well. */
#include "store/jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE "tests/store/calls.txt"

static int digit(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

/* In place; returns the length. */
static size_t unescape(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        switch (*++at) {
        case 't':
            *to++ = '\t';
            break;
        case 'r':
            *to++ = '\r';
            break;
        case 'n':
            *to++ = '\n';
            break;
        case 'x':
            *to++ = (char)(digit(at[1]) * 16 + digit(at[2]));
            at += 2;
            break;
        default:
            *to++ = *at;
            break;
        }
    }
    return (size_t)(to - text);
}

static const char *fault_of(const char *kind, struct lk_slice value)
{
    size_t line;

    if (!strcmp(kind, "path")) {
        return lk_path_fault(value);
    }
    if (!strcmp(kind, "method")) {
        return lk_method_fault(value);
    }
    if (!strcmp(kind, "target")) {
        return lk_target_name_fault(value);
    }
    return !strcmp(kind, "answer") ? lk_header_lines_fault(value, &line)
                                   : lk_headers_fault(value, &line);
}

static void every_line_of_the_table_is_judged_as_it_says(void **state)
{
    FILE *file = fopen(TABLE, "r");
    char *line = NULL;
    size_t room = 0;
    size_t lines = 0;
    ssize_t len;

    (void)state;
    assert_non_null(file);
    while ((len = getline(&line, &room, file)) > 0) {
        char *value, *fault;
        if (*line == '#') {
            continue;
        }
        line[len - 1] = 0;
        assert_non_null(value = strchr(line, '\t'));
        *value++ = 0;
        assert_non_null(fault = strchr(value, '\t'));
        *fault++ = 0;
        struct lk_slice given = {value, unescape(value)};
        const char *found = fault_of(line, given);
        if (strcmp(found ? found : "-", fault) != 0) {
            fail_msg("%s %.*s: %s instead of %s", line, (int)given.len,
                     given.data, found ? found : "-", fault);
        }
        lines++;
    }
    assert_true(lines > 50);
    free(line);
    fclose(file);
}

static void a_path_has_a_bound(void **state)
{
    char path[LK_PATH_MAX + 1];

    (void)state;
    memset(path, '/', sizeof(path));
    path[1] = 'a';
    assert_null(lk_path_fault((struct lk_slice){path, LK_PATH_MAX}));
    assert_string_equal(lk_path_fault((struct lk_slice){path, LK_PATH_MAX + 1}),
                        "is longer than 8192 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_of_the_table_is_judged_as_it_says),
        cmocka_unit_test(a_path_has_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
