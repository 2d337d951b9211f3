/* test_log.c - lines of the log, and what the service manager is told. */
#include "daemon/log.h"
#include "daemon/notify.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static void text_from_outside_is_quoted_for_the_log(void **state)
{
    char buf[32];

#define QUOTE(text) lk_log_quote(LK_SLICE(text), buf, sizeof(buf))
    assert_string_equal(QUOTE(""), "\"\"");
    assert_string_equal(QUOTE("plain"), "\"plain\"");
    assert_string_equal(QUOTE("a\"b\\c"), "\"a\\\"b\\\\c\"");
    assert_string_equal(QUOTE("a\nlevel=error\r\t"),
                        "\"a\\nlevel=error\\r\\t\"");
    assert_string_equal(QUOTE("\x1b[0m\0\xc3\xa9"),
                        "\"\\x1b[0m\\x00\\xc3\\xa9\"");
    assert_string_equal(QUOTE("123456789012345678901234567890"),
                        "\"12345678901234567890123456...\"");
    assert_string_equal(QUOTE("12345678901234567890123456789"),
                        "\"12345678901234567890123456789\"");
    assert_string_equal(QUOTE("1234567890123456789012345\n\n\n"),
                        "\"1234567890123456789012345...\"");
    assert_string_equal(lk_log_quote(LK_SLICE("123456789"), buf, 8),
                        "\"12...\"");
#undef QUOTE
}

/* What `write` puts on standard error. */
static void capture(char *text, size_t size, void (*write_log)(void))
{
    int ends[2], saved = dup(STDERR_FILENO);
    ssize_t len;

    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_true(saved >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    write_log();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    len = read(ends[0], text, size - 1);
    close(ends[0]);
    assert_true(len >= 0);
    text[len] = '\0';
}

static void log_some(void)
{
    lk_log_set_level(LK_LOG_WARN);
    lk_log(LK_LOG_INFO, "unheard", "a=%d", 1);
    lk_log(LK_LOG_WARN, "heard", "a=%s b=%d", "x\ny", 2);
    lk_log(LK_LOG_ERROR, "bare", "%s", "");
    lk_log_set_level(LK_LOG_INFO);
}

static void log_long(void)
{
    lk_log(LK_LOG_INFO, "long", "a=%05000d", 0);
}

static void an_event_is_one_line_of_names_and_values(void **state)
{
    char text[4096], *line;

    capture(text, sizeof(text), log_some);
    line = strchr(text, ' ');
    assert_non_null(line);
    assert_memory_equal(text, "time=", 5);
    assert_memory_equal(line, " level=warn event=heard a=x?y b=2\n", 34);
    assert_non_null(strstr(line, "Z level=error event=bare"));
    assert_null(strstr(text, "unheard"));
    capture(text, sizeof(text), log_long);
    assert_true(strlen(text) <= LK_LOG_LINE);
    assert_string_equal(text + strlen(text) - 5, "0...\n");
}

static void the_service_manager_is_told(void **state)
{
    char folder[] = "/tmp/latchkey-notify-XXXXXX";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    char text[256] = "";

    assert_non_null(mkdtemp(folder));
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    assert_int_equal(lk_notify(LK_NOTIFY_READY, NULL), LK_OK);
    assert_int_equal(setenv("NOTIFY_SOCKET", "relative", 1), 0);
    assert_int_equal(lk_notify(LK_NOTIFY_READY, NULL), LK_INVALID);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", folder);
    assert_int_equal(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    assert_int_equal(lk_notify(LK_NOTIFY_READY, NULL), LK_IO);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(lk_notify(LK_NOTIFY_READY, "1 record"), LK_OK);
    assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), 23);
    assert_memory_equal(text, "READY=1\nSTATUS=1 record", 23);
    assert_int_equal(lk_notify(LK_NOTIFY_RELOADING, NULL), LK_OK);
    assert_true(recv(fd, text, sizeof(text), MSG_DONTWAIT) > 27);
    assert_memory_equal(text, "RELOADING=1\nMONOTONIC_USEC=", 27);
    assert_int_equal(lk_notify(LK_NOTIFY_STOPPING, NULL), LK_OK);
    assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), 11);
    assert_memory_equal(text, "STOPPING=1\n", 11);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
    unlink(address.sun_path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_from_outside_is_quoted_for_the_log),
        cmocka_unit_test(an_event_is_one_line_of_names_and_values),
        cmocka_unit_test(the_service_manager_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
