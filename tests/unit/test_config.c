/* test_config.c - settings: defaults, files, options, and their errors. */
#include "config/config_table.h"
#include "tests/unit/config_bench.h"

#include <netinet/in.h>

/* ---- values ---------------------------------------------------------------
 */

static void everything_has_a_default(void **state)
{
    struct bench *bench = *state;
    struct lk_config *config = &bench->config;

    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings, "");
    assert_int_equal(config->listen_count, 1);
    assert_string_equal(config->listen[0].path, "/run/latchkey/latchkeyd.sock");
    assert_string_equal(config->store_url,
                        "sqlite:/var/lib/latchkey/latchkey.db");
    assert_int_equal(config->ttl_ms, 24 * 3600 * 1000);
    assert_int_equal(config->lock_ms, 30000);
    assert_int_equal(config->max_ttl_ms, 400LL * 86400000);
    assert_int_equal(config->max_lock_ms, 86400000);
    assert_int_equal(config->command_bytes, 16 << 20);
    assert_int_equal(config->socket_mode, 0660);
    assert_int_equal(config->log_level, LK_LOG_INFO);
    assert_null(config->password);
    assert_int_equal(lk_config_initial_role(config), LK_ROLE_USE);
}

static void a_file_sets_what_it_names(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "\xef\xbb\xbf# a comment\n"
                                 "; another\n"
                                 "[daemon]\n"
                                 "listen = unix:/tmp/a , 127.0.0.1:7420\n"
                                 "    listen = [::1]:7420\r\n"
                                 "log_level: debug\n"
                                 "[limits]\n"
                                 "cache_bytes = 0\n"
                                 "command_bytes=64k\n"
                                 "[store]\n"
                                 "lock = 1500ms\n"
                                 "ttl = 48h"),
                     LK_OK);
    assert_value(bench, "daemon.listen",
                 "unix:/tmp/a, 127.0.0.1:7420, [::1]:7420");
    assert_value(bench, "daemon.log_level", "debug");
    assert_value(bench, "limits.cache_bytes", "0");
    assert_value(bench, "limits.command_bytes", "64k");
    assert_value(bench, "store.lock", "1500ms");
    assert_value(bench, "store.ttl", "2d");
    assert_value(bench, "store.max_ttl", "400d");
}

static void options_override_the_file(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[daemon]\nlisten = unix:/tmp/a\n"
                                 "[store]\nlock = 5s\n"),
                     LK_OK);
    assert_int_equal(set(bench, "store.lock=7s"), LK_OK);
    assert_int_equal(set(bench, "store.lock=8s"), LK_OK);
    assert_int_equal(set(bench, "daemon.listen=unix:/tmp/b"), LK_OK);
    assert_int_equal(lk_config_set_value(&bench->config, "daemon.listen",
                                         "localhost:0", &bench->errors),
                     LK_OK);
    assert_value(bench, "store.lock", "8s");
    assert_value(bench, "daemon.listen", "unix:/tmp/b, localhost:0");
}

struct row {
    const char *assignment;
    const char *error; /* NULL: it is good */
};

static const struct row rows[] = {
    {"store.lock=0", "store.lock: \"0\" is out of range; use 1ms to 365d\n"},
    {"store.lock=30x", "store.lock: \"30x\" is not a duration; use a number "
                       "with ms, s, m, h or d\n"},
    {"store.lock=30", "store.lock: \"30\" has no unit; add ms, s, m, h or d, "
                      "as in 30s\n"},
    {"store.lock=-1s", "store.lock: \"-1s\" is not a duration; use a number "
                       "with ms, s, m, h or d\n"},
    {"store.lock=99999999999999999999ms",
     "store.lock: \"99999999999999999999ms\" is not a duration; use a number "
     "with ms, s, m, h or d\n"},
    {"store.ttl=9007199254740991d",
     "store.ttl: \"9007199254740991d\" is not a duration; use a number with "
     "ms, s, m, h or d\n"},
    {"store.lock=18446744073709551617ms",
     "store.lock: \"18446744073709551617ms\" is not a duration; use a number "
     "with ms, s, m, h or d\n"},
    {"store.ttl=36500d", NULL},
    {"store.ttl=36501d",
     "store.ttl: \"36501d\" is out of range; use 1ms to 36500d\n"},
    {"store.lock", "store.lock: \"\" is not a duration; use a number with "
                   "ms, s, m, h or d\n"},
    {"limits.idle_timeout=0", NULL},
    {"limits.cache_bytes=1g", NULL},
    {"limits.cache_bytes=1234567", NULL},
    {"limits.cache_bytes=1t", "limits.cache_bytes: \"1t\" is not a size; use "
                              "a number of bytes, or one with k, m or g\n"},
    {"limits.connections=1k", "limits.connections: \"1k\" is not a number; "
                              "use decimal digits\n"},
    {"limits.connections=0",
     "limits.connections: \"0\" is out of range; use 1 to 1000000\n"},
    {"daemon.socket_mode=0600", NULL},
    {"daemon.socket_mode=888", "daemon.socket_mode: \"888\" is not a mode; "
                               "use three octal digits, as in 660\n"},
    {"daemon.socket_mode=4755", "daemon.socket_mode: \"4755\" is not a mode; "
                                "use three octal digits, as in 660\n"},
    {"daemon.log_level=warn", NULL},
    {"daemon.log_level=loud", "daemon.log_level: \"loud\" is not a level; "
                              "use error, warn, info or debug\n"},
    {"daemon.store=sqlite:", "daemon.store: \"sqlite:\" is not a store; use "
                             "sqlite:PATH, postgres://HOST/DATABASE or "
                             "redis://HOST:PORT\n"},
    {"daemon.store=mysql://me:hush@db/app",
     "daemon.store: \"mysql://me:****@db/app\" is not a store; use "
     "sqlite:PATH, postgres://HOST/DATABASE or redis://HOST:PORT\n"},
    {"daemon.store=postgres://me:hush@db:pg/app",
     "daemon.store: the port in the URL of the store is not a number\n"},
    {"daemon.store=postgres://a,b:1,2/app?hots=c",
     "daemon.store: the URL of the store is not one that PostgreSQL's library "
     "understands\n"},
    {"daemon.store=redis://db/first",
     "daemon.store: the database in the Redis URL is not a number\n"},
    {"store.cache=redis://:6379/?x",
     "store.cache: the Redis URL has no options behind a question mark; they "
     "are settings\n"},
    {"daemon.store=://me:hush@db/", "daemon.store: \"://me:****@db/\" is not a "
                                    "store; use sqlite:PATH, "
                                    "postgres://HOST/DATABASE or "
                                    "redis://HOST:PORT\n"},
    {"daemon.store=redis-sentinel://10.0.0.1:26379/main", NULL},
    {"store.strict=yes", NULL},
    {"store.strict=1", "store.strict: \"1\" is neither yes nor no\n"},
    {"store.cache=redis://127.0.0.1:6379", NULL},
    {"store.cache=none", NULL},
    {"store.cache=disk:/tmp", "store.cache: \"disk:/tmp\" is not a cache; use "
                              "redis://HOST:PORT or none\n"},
    {"store.prefix=shop-1", NULL},
    {"store.prefix={x}", "store.prefix: \"{x}\" is not a prefix; use up to 32 "
                         "letters, digits, hyphens, dots and underscores\n"},
    {"daemon.store=/tmp/x.db", "daemon.store: \"/tmp/x.db\" is not a store; "
                               "use sqlite:PATH, postgres://HOST/DATABASE or "
                               "redis://HOST:PORT\n"},
    {"auth.password=", "auth.password: must not be empty\n"},
    {"auth.password_file=pw",
     "auth.password_file: \"pw\" is not an absolute path\n"},
    {"lock=5s", "\"lock\" is not a setting; use section.name=value\n"},
    {"store.lokc=5s",
     "store.lokc: there is no such setting; is store.lock meant?\n"},
    {"limits.lock=5s",
     "limits.lock: there is no such setting; is store.lock meant?\n"},
    {"sotre.sweep_intervall=5s", "sotre.sweep_intervall: there is no such "
                                 "setting; is store.sweep_interval meant?\n"},
    {"store.colour=blue", "store.colour: there is no such setting; "
                          "latchkeyd.conf(5) lists them\n"},
    {"store.\n=1", "store.\\n: there is no such setting; latchkeyd.conf(5) "
                   "lists them\n"},
};

static void a_bad_value_is_named_with_what_is_accepted(void **state)
{
    struct bench *bench = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum lk_status status = set(bench, rows[i].assignment);

        assert_int_equal(status, rows[i].error ? LK_INVALID : LK_OK);
        assert_text(bench, &bench->errors, rows[i].error ? rows[i].error : "");
    }
}

static void errors_of_a_file_name_the_line_and_all_are_told(void **state)
{
    struct bench *bench = *state;
    char text[1024];

    snprintf(text, sizeof(text),
             "[store]\n"
             "lock = 30x\n"
             "ttl = 1h\n"
             "ttl = 2h\n"
             "tll = 2h\n"
             "max_ttl = 3d ; three days\n"
             "# a comment may be as long as it likes %0300d\n"
             "max_lock = %0300d\n"
             "[nonsense\n"
             "sweep_interval = 1s\n"
             "strict = yes\t# it matters\n"
             "[users]\n"
             "ann = use se #cr#et\n",
             0, 0);
    assert_int_equal(load(bench, text), LK_INVALID);
    assert_text(
        bench, &bench->errors,
        "l.conf:2: store.lock: \"30x\" is not a duration; use a number with "
        "ms, s, m, h or d\n"
        "l.conf:4: store.ttl: was given before, in line 3\n"
        "l.conf:5: store.tll: there is no such setting; is store.ttl meant?\n"
        "l.conf:6: a comment must be on a line of its own\n"
        "l.conf:8: the line is too long; it may have 198 characters\n"
        "l.conf:11: a comment must be on a line of its own\n"
        "l.conf:9: expected [section] or name = value\n");
    assert_value(bench, "store.sweep_interval", "1s");
}

static void the_longest_line_is_read_whole(void **state)
{
    struct bench *bench = *state;
    char path[190], text[256];

    memset(path, 'x', sizeof(path));
    for (int len = 181; len <= 182; len++) {
        lk_config_free(&bench->config);
        assert_int_equal(lk_config_init(&bench->config), LK_OK);
        snprintf(text, sizeof(text), "[daemon]\nstore = sqlite:/%.*s\n", len,
                 path);
        /* "store = sqlite:/" has 16 characters. */
        assert_int_equal(load(bench, text),
                         len + 16 <= 198 ? LK_OK : LK_INVALID);
        if (len + 16 <= 198) {
            assert_int_equal(strlen(bench->config.store_url), len + 8);
        }
    }
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(
        lk_config_load(&bench->config, bench->file, &bench->errors), LK_IO);
    assert_text(
        bench, &bench->errors,
        "l.conf: cannot be read: No such file or directory; is this the "
        "right file, and may this user read it?\n");
    assert_int_equal(mkdir(bench->file, 0700), 0);
    assert_int_equal(
        lk_config_load(&bench->config, bench->file, &bench->errors), LK_IO);
    assert_text(bench, &bench->errors,
                "l.conf: cannot be read: Is a directory; is this the right "
                "file, and may this user read it?\n");
}

/* ---- addresses -------------------------------------------------------------
 */

struct address {
    const char *text;
    bool good;
    bool loopback;
};

static const struct address addresses[] = {
    {"unix:/run/x", true, true},
    {"unix:x.sock", true, true},
    {"127.0.0.1:7420", true, true},
    {"127.8.9.1:1", true, true},
    {"localhost:7420", true, true},
    {"[::1]:7420", true, true},
    {"[::ffff:127.0.0.1]:1", true, true},
    {"0.0.0.0:7420", true, false},
    {"192.0.2.1:65535", true, false},
    {"[::]:7420", true, false},
    {"[2001:db8::1]:7420", true, false},
    {"[::ffff:192.0.2.1]:1", true, false},
    {"unix:", false, false},
    {"", false, false},
    {"7420", false, false},
    {":7420", false, false},
    {"127.0.0.1", false, false},
    {"127.0.0.1:", false, false},
    {"127.0.0.1:65536", false, false},
    {"127.0.0.1:-1", false, false},
    {"127.0.0.1:0x1", false, false},
    {"127.1:7420", false, false},
    {"::1:7420", false, false},
    {"[::1]", false, false},
    {"[::1:7420", false, false},
    {"[127.0.0.1]:1", false, false},
    {"example.org:80", false, false},
    {"127.0.0.1:1,", false, false},
};

static void addresses_are_read_strictly(void **state)
{
    struct bench *bench = *state;

    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        const struct address *address = &addresses[i];
        struct lk_listen *last;

        bench->config.listen_source = LK_CONFIG_DEFAULT;
        if (lk_config_set_value(&bench->config, "daemon.listen", address->text,
                                &bench->errors) !=
            (address->good ? LK_OK : LK_INVALID)) {
            fail_msg("%s", address->text);
        }
        if (address->good) {
            last = &bench->config.listen[0];
            assert_int_equal(bench->config.listen_count, 1);
            assert_int_equal(last->loopback, address->loopback);
        }
    }
}

static void an_address_is_ready_to_bind(void **state)
{
    struct bench *bench = *state;
    struct sockaddr_in *v4;
    struct sockaddr_in6 *v6;

    assert_int_equal(set(bench, "daemon.listen=localhost:7420,[::1]:7421"),
                     LK_OK);
    v4 = (struct sockaddr_in *)&bench->config.listen[0].address;
    v6 = (struct sockaddr_in6 *)&bench->config.listen[1].address;
    assert_int_equal(v4->sin_family, AF_INET);
    assert_int_equal(ntohs(v4->sin_port), 7420);
    assert_int_equal(ntohl(v4->sin_addr.s_addr), INADDR_LOOPBACK);
    assert_int_equal(v6->sin6_family, AF_INET6);
    assert_int_equal(ntohs(v6->sin6_port), 7421);
}

static void a_socket_path_must_fit_its_address(void **state)
{
    struct bench *bench = *state;
    char text[160];

    snprintf(text, sizeof(text), "daemon.listen=unix:/%0106d", 0);
    assert_int_equal(set(bench, text), LK_OK);
    snprintf(text, sizeof(text), "daemon.listen=unix:/%0107d", 0);
    assert_int_equal(set(bench, text), LK_INVALID);
}

/* ---- settings together ------------------------------------------------------
 */

static void a_port_open_to_others_needs_a_password(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[daemon]\nlisten = 0.0.0.0:7420\n"), LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "l.conf:2: daemon.listen: 0.0.0.0:7420 can be reached from "
                "other machines, so a password is needed; set "
                "auth.password_file, or listen on a unix socket or "
                "127.0.0.1\n");
    assert_int_equal(set(bench, "auth.password=secret"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
}

static void a_password_file_is_named_with_the_line_of_its_user(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[users]\na = read file:/nowhere/a\n"
                                 "b = read secret\nc = use file:/nowhere/c\n"),
                     LK_OK);
    assert_int_equal(set(bench, "users.d=use file:/nowhere/d"), LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "l.conf:2: users.a: \"/nowhere/a\": no such file; "
                "write the password into it\n"
                "l.conf:4: users.c: \"/nowhere/c\": no such file; "
                "write the password into it\n"
                "users.d: \"/nowhere/d\": no such file; write the password "
                "into it\n");
}

static const struct row together[] = {
    {"store.lock=2d", "store.lock: is longer than store.max_lock\n"
                      "store.lock: must be shorter than store.ttl: a response "
                      "is kept longer than a claim goes without a sign of "
                      "life\n"},
    {"store.ttl=401d", "store.ttl: is longer than store.max_ttl\n"},
    {"store.ttl=30s", "store.lock: must be shorter than store.ttl: a response "
                      "is kept longer than a claim goes without a sign of "
                      "life\n"},
    {"limits.output_bytes=1m",
     "limits.output_bytes: is less than limits.command_bytes: the largest "
     "response that can be kept could not be replayed\n"},
    {"limits.queue_bytes=1m",
     "limits.queue_bytes: is less than limits.command_bytes: the largest "
     "command could never be queued\n"},
    {"limits.client_bytes=63m",
     "limits.client_bytes: is less than four times limits.command_bytes: few "
     "clients could send the largest command at once\n"},
    {"limits.queue_ops=1000",
     "limits.queue_ops: is less than limits.batch_ops\n"},
    {"daemon.listen=unix:/tmp/a,unix:/tmp/a",
     "daemon.listen: unix:/tmp/a is given twice\n"},
};

static void settings_that_contradict_each_other_are_refused(void **state)
{
    struct bench *bench = *state;

    for (size_t i = 0; i < sizeof(together) / sizeof(together[0]); i++) {
        lk_config_free(&bench->config);
        assert_int_equal(lk_config_init(&bench->config), LK_OK);
        assert_int_equal(set(bench, together[i].assignment), LK_OK);
        assert_int_equal(check(bench), LK_INVALID);
        assert_text(bench, &bench->errors, together[i].error);
    }
}

static void a_store_that_can_never_be_strict_is_refused(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[daemon]\nstore = redis://db\n"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(set(bench, "store.strict=yes"), LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "l.conf:2: daemon.store: store.strict is set, and no Redis "
                "promises that much, whatever its settings: use PostgreSQL or "
                "the embedded store, or do not ask for it\n");
}

static void what_is_written_out_loads_again(void **state)
{
    struct bench *bench = *state;
    struct lk_buf first = {0}, second = {0};

    assert_int_equal(set(bench, "daemon.listen=unix:/a,127.0.0.1:1"), LK_OK);
    assert_int_equal(set(bench, "store.lock=1234ms"), LK_OK);
    assert_int_equal(set(bench, "limits.cache_bytes=3000"), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &first), LK_OK);
    assert_int_equal(latchkey_buf_add(&first, "", 1), LK_OK);
    lk_config_free(&bench->config);
    assert_int_equal(lk_config_init(&bench->config), LK_OK);
    assert_int_equal(load(bench, first.data), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &second), LK_OK);
    assert_int_equal(latchkey_buf_add(&second, "", 1), LK_OK);
    assert_string_equal(first.data, second.data);
    latchkey_buf_free(&first);
    latchkey_buf_free(&second);
}

/* ---- the documents follow the table
 * -------------------------------------------- */

static char *read_document(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = calloc(1, 65536);

    if (!file) {
        fail_msg("%s: run from the top of the repository", path);
    }
    assert_non_null(text);
    assert_true(fread(text, 1, 65535, file) > 0);
    fclose(file);
    return text;
}

static void a_password_in_a_url_is_never_shown(void **state)
{
    static const char *const urls[][2] = {
        {"postgres://me:hush@db/app", "postgres://me:****@db/app"},
        {"postgres://me:h@sh@a,b:5433/app?x=1",
         "postgres://me:****@a,b:5433/app?x=1"},
        {"redis://:hush@db:6379", "redis://:****@db:6379"},
        {"postgres:host=db password=hush user=me",
         "postgres:host=db password=**** user=me"},
        {"postgres:host=db password='a b' user=me",
         "postgres:host=db password=*************"},
        {"postgres://db/app?password=hush&user=me",
         "postgres://db/app?password=****&user=me"},
        {"postgres://me@db/app", "postgres://me@db/app"},
        {"sqlite:/var/lib/a:b@c", "sqlite:/var/lib/a:b@c"},
    };

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        char *url = strdup(urls[i][0]);
        assert_int_equal(lk_url_mask(url), strcmp(urls[i][0], urls[i][1]) != 0);
        assert_string_equal(url, urls[i][1]);
        free(url);
    }
}

static void the_sample_file_documents_every_setting_with_its_default(void **s)
{
    char *text = read_document("packaging/latchkeyd.conf");

    for (size_t i = 0; i < lk_setting_count; i++) {
        const struct lk_setting *setting = &lk_settings[i];
        char line[128];

        if (strcmp(setting->name, "*") == 0) {
            snprintf(line, sizeof(line), "\n[%s]\n", setting->section);
        } else {
            snprintf(line, sizeof(line), "\n#%s = %s", setting->name,
                     setting->initial ? setting->initial : "");
        }
        if (!strstr(text, line)) {
            fail_msg("no line \"%s\"", line + 1);
        }
    }
    free(text);
}

static void the_manual_documents_every_setting(void **state)
{
    char *text = read_document("man/latchkeyd.conf.5");

    for (size_t i = 0; i < lk_setting_count; i++) {
        char line[64];

        if (strcmp(lk_settings[i].name, "*") != 0) {
            snprintf(line, sizeof(line), ".It Ic %s", lk_settings[i].name);
            if (!strstr(text, line)) {
                fail_msg("no \"%s\"", line);
            }
        }
    }
    free(text);
}

static void the_sample_file_with_all_its_settings_is_the_default(void **state)
{
    struct bench *bench = *state;
    char *text = read_document("packaging/latchkeyd.conf");
    struct lk_buf before = {0}, after = {0};

    assert_int_equal(lk_config_dump(&bench->config, &before), LK_OK);
    /* A "#" straight before a name is a setting, "# " is prose. */
    for (char *at = text; (at = strstr(at, "\n#")); at++) {
        if (at[2] >= 'a' && at[2] <= 'z' && strncmp(at + 2, "password", 8)) {
            at[1] = ' ';
        }
    }
    assert_int_equal(load(bench, text), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &after), LK_OK);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, before.len);
    latchkey_buf_free(&before);
    latchkey_buf_free(&after);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(everything_has_a_default),
        TEST(a_file_sets_what_it_names),
        TEST(options_override_the_file),
        TEST(a_bad_value_is_named_with_what_is_accepted),
        TEST(errors_of_a_file_name_the_line_and_all_are_told),
        TEST(the_longest_line_is_read_whole),
        TEST(a_file_that_cannot_be_read_is_named),
        TEST(addresses_are_read_strictly),
        TEST(an_address_is_ready_to_bind),
        TEST(a_socket_path_must_fit_its_address),
        TEST(a_port_open_to_others_needs_a_password),
        TEST(a_password_file_is_named_with_the_line_of_its_user),
        TEST(settings_that_contradict_each_other_are_refused),
        TEST(a_store_that_can_never_be_strict_is_refused),
        TEST(what_is_written_out_loads_again),
        TEST(the_sample_file_documents_every_setting_with_its_default),
        TEST(a_password_in_a_url_is_never_shown),
        TEST(the_manual_documents_every_setting),
        TEST(the_sample_file_with_all_its_settings_is_the_default),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
