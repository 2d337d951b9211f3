/* config_bench.h - what the tests of the configuration share. */
#ifndef LK_CONFIG_BENCH_H
#define LK_CONFIG_BENCH_H

#include "config/config.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A configuration under test, in a directory of its own. */
struct bench {
    struct lk_config config;
    struct lk_buf errors;
    struct lk_buf warnings;
    char folder[64];
    char file[96];
};

static inline int set_up(void **state)
{
    struct bench *bench = calloc(1, sizeof(*bench));

    assert_non_null(bench);
    strcpy(bench->folder, "/tmp/latchkey-config-XXXXXX");
    assert_non_null(mkdtemp(bench->folder));
    snprintf(bench->file, sizeof(bench->file), "%s/l.conf", bench->folder);
    assert_int_equal(lk_config_init(&bench->config), LK_OK);
    *state = bench;
    return 0;
}

static inline int tear_down(void **state)
{
    struct bench *bench = *state;
    char command[128];

    lk_config_free(&bench->config);
    latchkey_buf_free(&bench->errors);
    latchkey_buf_free(&bench->warnings);
    snprintf(command, sizeof(command), "rm -rf '%s'", bench->folder);
    assert_int_equal(system(command), 0);
    free(bench);
    return 0;
}

static inline void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static inline enum lk_status load(struct bench *bench, const char *text)
{
    write_file(bench->file, text, 0600);
    return lk_config_load(&bench->config, bench->file, &bench->errors);
}

static inline enum lk_status set(struct bench *bench, const char *assignment)
{
    return lk_config_set(&bench->config, assignment, &bench->errors);
}

static inline enum lk_status check(struct bench *bench)
{
    return lk_config_check(&bench->config, &bench->errors, &bench->warnings);
}

/* The text, without the name of the temporary directory. */
static inline void assert_text(struct bench *bench, struct lk_buf *buf,
                               const char *expected)
{
    char *text = calloc(1, buf->len + 1);
    size_t skip = strlen(bench->folder) + 1;
    char *at;

    assert_non_null(text);
    if (buf->len > 0) {
        memcpy(text, buf->data, buf->len);
    }
    while ((at = strstr(text, bench->folder))) {
        memmove(at, at + skip, strlen(at + skip) + 1);
    }
    assert_string_equal(text, expected);
    free(text);
    buf->len = 0;
}

static inline void assert_value(struct bench *bench, const char *setting,
                                const char *expected)
{
    struct lk_buf out = {0};

    assert_int_equal(
        lk_config_get(&bench->config, latchkey_slice(setting), &out), LK_OK);
    assert_text(bench, &out, expected);
    latchkey_buf_free(&out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
