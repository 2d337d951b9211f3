/* test_config_targets.c - [target NAME] and [route NAME]: what they set, what
 * is refused, and what is never shown. */
#include "config/config_table.h"
#include "tests/unit/config_bench.h"

static const struct lk_target *target(struct bench *bench, const char *name)
{
    const struct lk_target *found =
        lk_target_find(&bench->config.targets, latchkey_slice(name));

    assert_non_null(found);
    return found;
}

static void a_target_has_a_default_for_everything_but_its_url(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target pay]\nurl = https://pay.example\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings, "");

    const struct lk_target *pay = target(bench, "pay");
    assert_string_equal(pay->url, "https://pay.example");
    assert_null(pay->socket);
    assert_null(pay->headers);
    assert_int_equal(pay->connect_timeout_ms, 3000);
    assert_int_equal(pay->timeout_ms, 30000);
    assert_int_equal(pay->concurrency, 16);
    assert_int_equal(pay->rate, 0);
    assert_int_equal(pay->burst, 0);
    assert_int_equal(pay->attempts, 12);
    assert_int_equal(pay->max_age_ms, 3 * 86400000);
    assert_int_equal(pay->key_life_ms, 23 * 3600000);
    assert_int_equal(pay->backoff_ms, 1000);
    assert_int_equal(pay->backoff_max_ms, 3600000);
    assert_int_equal(pay->retry_after_max_ms, 86400000);
    assert_true(lk_statuses_have(&pay->success, 200));
    assert_true(lk_statuses_have(&pay->success, 299));
    assert_false(lk_statuses_have(&pay->success, 300));
    assert_true(lk_statuses_have(&pay->temporary, 429));
    assert_true(lk_statuses_have(&pay->temporary, 599));
    assert_false(lk_statuses_have(&pay->temporary, 404));
    assert_int_equal(pay->honours, 0);
    assert_string_equal(pay->key_header, "Idempotency-Key");
    assert_null(pay->sign_secret);
    assert_int_equal(pay->circuit_failures, 10);
    assert_int_equal(pay->http, LK_HTTP_AUTO);
    assert_int_equal(pay->probe.settle_ms, 30000);
    assert_true(lk_statuses_have(&pay->probe.absent, 404));
    assert_false(lk_statuses_have(&pay->probe.absent, 410)); /* it was there */
    assert_true(lk_config_has_courier(&bench->config));
}

static void a_target_is_what_the_file_says(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target crm.v2]\n"
                                 "url = unix:/run/crm.sock:/hooks/\n"
                                 "header = X-One: 1\n"
                                 "header = Host: crm.internal\n"
                                 "timeout = 5s\n"
                                 "rate = 100/s\n"
                                 "burst = 7\n"
                                 "success = 200, 202\n"
                                 "idempotency = yes\n"
                                 "id = json:/data/0/id\n"
                                 "sign = whsec_MDEyMzQ1Njc4OWFiY2RlZg==\n"
                                 "http = 2\n"
                                 "probe = /look?key={key}&tenant={tenant}\n"
                                 "probe_list =\n"
                                 "probe_settle = 1m\n"
                                 "[route refunds]\n"
                                 "scope = POST /refunds*\n"
                                 "target = crm.v2\n"
                                 "probe = /refunds/{key}\n"
                                 "probe_absent = 404\n"
                                 "adopt = yes\n"
                                 "rollback = crm.v2 /undo/{reference}\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings, "");

    const struct lk_target *crm = target(bench, "crm.v2");
    assert_string_equal(crm->socket, "/run/crm.sock");
    assert_string_equal(crm->url, "http://localhost/hooks");
    assert_string_equal(crm->headers, "X-One: 1\r\nHost: crm.internal\r\n");
    assert_int_equal(crm->rate, 100);
    assert_int_equal(crm->burst, 7);
    assert_true(lk_statuses_have(&crm->success, 202));
    assert_false(lk_statuses_have(&crm->success, 201));
    assert_int_equal(crm->honours, 1);
    assert_int_equal(crm->http, LK_HTTP_2);
    assert_string_equal(crm->probe.list, "");
    /* Where a list is expected, a 404 may be a wrong path. */
    assert_false(lk_statuses_have(&crm->probe.absent, 404));

    assert_int_equal(bench->config.targets.route_count, 1);
    const struct lk_route *route = &bench->config.targets.routes[0];
    assert_string_equal(route->scope, "POST /refunds*");
    assert_null(route->tenant);
    assert_string_equal(route->rollback_target, "crm.v2");
    assert_string_equal(route->rollback_path, "/undo/{reference}");
    assert_int_equal(route->adopt, 1);
    /* What it does not say is the target's. */
    assert_string_equal(route->probe.list, "");
    assert_true(lk_statuses_have(&route->probe.absent, 404));
    assert_int_equal(route->probe.settle_ms, 60000);
    assert_false(lk_statuses_have(&route->probe.absent, 410));
}

static void options_name_targets_too(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target pay.eu]\nurl = https://a.example\n"
                                 "header = A: 1\nheader = B: 2\n"),
                     LK_OK);
    assert_int_equal(set(bench, "target.pay.eu.url=https://b.example/"), LK_OK);
    assert_int_equal(set(bench, "target.pay.eu.header=C: 3"), LK_OK);
    assert_int_equal(set(bench, "target.pay.eu.header=D: 4"), LK_OK);
    assert_int_equal(set(bench, "target.new.url=http://127.0.0.1:8080"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings, "");
    assert_string_equal(target(bench, "pay.eu")->url, "https://b.example");
    assert_string_equal(target(bench, "pay.eu")->headers, "C: 3\r\nD: 4\r\n");
    assert_string_equal(target(bench, "new")->url, "http://127.0.0.1:8080");
}

struct row {
    const char *assignment;
    const char *error; /* NULL: it is good */
};

static const struct row rows[] = {
    {"url=https://host", NULL},
    {"url=https://host:443/a/b", NULL},
    {"url=http://[::1]:80", NULL},
    {"url=unix:/run/x.sock", NULL},
    {"url=ftp://host",
     "\"ftp://host\" is not the URL of a service; use https://HOST, "
     "http://HOST or unix:/PATH"},
    {"url=host", "\"host\" is not the URL of a service; use https://HOST, "
                 "http://HOST or unix:/PATH"},
    {"url=https://", "\"https://\" has no host, or one that is not a name or "
                     "an address"},
    {"url=https:///x", "\"https:///x\" has no host, or one that is not a name "
                       "or an address"},
    {"url=https://me:hush@host",
     "\"https://me:****@host\" must not hold a user or a password; use a "
     "header"},
    {"url=https://host:0", "\"https://host:0\" has a port that is not in 1 to "
                           "65535"},
    {"url=https://host:99999", "\"https://host:99999\" has a port that is not "
                               "in 1 to 65535"},
    {"url=https://host:x",
     "\"https://host:x\" has a port that is not a number"},
    {"url=https://ho st", "\"https://ho st\" has a host that is not a name or "
                          "an address"},
    {"url=https://[::1", "\"https://[::1\" has no host, or one that is not a "
                         "name or an address"},
    {"url=https://host/a?b=c", "\"https://host/a?b=c\" must not have a query "
                               "or a fragment"},
    {"url=https://host#f", "\"https://host#f\" must not have a query or a "
                           "fragment"},
    {"url=https://host/a/../b", "\"https://host/a/../b\" must not contain "
                                "\".\" or \"..\" as a segment"},
    {"url=unix:x", "\"unix:x\" is not unix:/PATH, or a path too long for a "
                   "socket"},
    {"header=X-Api: 1", NULL},
    {"header=nothing", "must be lines of the form Name: value; use Name: "
                       "value"},
    {"header=Content-Length: 5",
     "must not set the host, the framing of the message, Idempotency-Key, or "
     "what begins with Latchkey-; use Name: value"},
    {"success=2xx 404", NULL},
    {"success=20x", "\"20x\" is not a list of statuses; use 200 or 2xx, with "
                    "spaces between"},
    {"success=700", "\"700\" is not a list of statuses; use 200 or 2xx, with "
                    "spaces between"},
    {"rate=5", NULL},
    {"rate=5/m", "\"5/m\" is not a rate; use calls a second, as in 100/s, or "
                 "0 for any"},
    {"id=header:X-Id", NULL},
    {"id=X-Id", "\"X-Id\" is not a place; use header:NAME or json:/POINTER"},
    {"sign=hunter2", "is not a signing secret; use whsec_ and at least 12 "
                     "bytes in base64"},
    {"http=3", "\"3\" is neither auto, 1.1 nor 2"},
    {"ca_file=/does/not/exist", "\"/does/not/exist\" cannot be read"},
    {"probe=/x/{name}/{key}", NULL},
    {"probe=//evil/{key}", "\"//evil/{key}\" must not begin with two slashes"},
    {"probe=/x/{secret}",
     "\"/x/{secret}\" has an unknown placeholder; use {key}, "
     "{id}, {tenant}, {scope}, {name} or {reference}"},
    {"probe_list=data", "\"data\" is not a JSON Pointer; it begins with a "
                        "slash, or is empty for the whole document"},
    {"timeout=0", "\"0\" is out of range; use 1ms to 1d"},
    {"timeot=5s", "there is no such setting; is timeout meant?"},
    {"Timeout=5s", "there is no such setting; is timeout meant?"},
    {"colour=red", "there is no such setting; latchkeyd.conf(5) lists them"},
    {"header=X: ${env:LATCHKEY_TEST_NOWHERE}",
     "the environment variable \"LATCHKEY_TEST_NOWHERE\" is not set, or "
     "empty"},
    {"header=X: ${file:relative}", "the file \"relative\" is not an absolute "
                                   "path"},
    {"header=X: ${file:/does/not/exist}",
     "the file \"/does/not/exist\" cannot be read: No "
     "such file or directory"},
    {"header=X: ${vault:x}", "the text in ${...}, \"vault:x\" is neither "
                             "file:/PATH nor env:NAME"},
    {"header=X: ${file:/x", "in \"X: ${file:/x\" a ${ is never closed"},
};

static void a_bad_value_of_a_target_is_named(void **state)
{
    struct bench *bench = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char assignment[256], expected[512] = "";
        size_t len = strcspn(rows[i].assignment, "=");

        snprintf(assignment, sizeof(assignment), "target.pay.%s",
                 rows[i].assignment);
        if (rows[i].error) {
            snprintf(expected, sizeof(expected), "target.pay.%.*s: %s\n",
                     (int)len, rows[i].assignment, rows[i].error);
        }
        assert_int_equal(set(bench, assignment),
                         rows[i].error ? LK_INVALID : LK_OK);
        assert_text(bench, &bench->errors, expected);
    }
}

static void errors_in_a_section_name_line_section_and_setting(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench,
                          "[target Pay]\n"
                          "url = https://x\n"
                          "[target pay]\n"
                          "url = https://x\n"
                          "url = https://y\n"
                          "concurency = 3\n"
                          "[target]\n"
                          "url = https://x\n"
                          "[route]\n"
                          "scope = x\n"
                          "[target aaaaaaaaaabbbbbbbbbbccccccccccdddddddd"
                          "ddeeeeeeeeee]\n"
                          "[targets x]\n"
                          "url = https://x\n"),
                     LK_INVALID);
    assert_text(
        bench, &bench->errors,
        "l.conf:2: target.Pay.url: the name \"Pay\" must be made of a-z, 0-9, "
        "'-', '_' and '.'\n"
        "l.conf:5: target.pay.url: was given before, in line 4\n"
        "l.conf:6: target.pay.concurency: there is no such setting; is "
        "concurrency meant?\n"
        "l.conf:8: target.url: the section has no name; write [target NAME]\n"
        "l.conf:10: route.scope: the section has no name; write [route NAME]\n"
        "l.conf:11: the section's name is too long; it may have 49 "
        "characters\n"
        "l.conf:13: targets x.url: there is no such setting; "
        "is store.ttl meant?\n");
}

static void a_default_gives_way_to_what_was_written(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target short]\n"
                                 "url = https://a.example\n"
                                 "timeout = 2s\n"
                                 "backoff_max = 500ms\n"
                                 "[target wrong]\n"
                                 "url = https://b.example\n"
                                 "backoff = 2s\n"
                                 "backoff_max = 1s\n"
                                 "connect_timeout = 3s\n"
                                 "timeout = 2s\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_int_equal(target(bench, "short")->connect_timeout_ms, 2000);
    assert_int_equal(target(bench, "short")->backoff_ms, 500);
    assert_text(bench, &bench->errors,
                "l.conf:9: target.wrong.connect_timeout: is longer than the "
                "timeout of the whole call\n"
                "l.conf:7: target.wrong.backoff: is longer than "
                "backoff_max\n");
}

/* In a target {key} is a job's key, in a route the client's. */
static void a_route_asks_by_its_own_path_only(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target a]\nurl = https://a\n"
                                 "probe = /x/{key}\n"
                                 "[route r]\nscope = s\ntarget = a\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "l.conf:5: route.r.probe: is missing, and there is no "
                "rollback\n");
}

static void a_route_that_only_rolls_back_needs_no_other_target(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[store]\nlock = 5m\n"
                                 "[target a]\nurl = https://a\n"
                                 "probe = /x/{key}\n"
                                 "[route r]\nscope = s\n"
                                 "rollback = a /undo/{key}\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_null(bench->config.targets.routes[0].probe.path);
    /* So long its holder may not know that its lock has lapsed. */
    assert_int_equal(bench->config.targets.routes[0].probe.settle_ms, 300000);
}

static void what_makes_no_sense_together_is_refused(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target a]\n"
                                 "timeout = 10s\n"
                                 "connect_timeout = 20s\n"
                                 "probe_settle = 5s\n"
                                 "success = 2xx 503\n"
                                 "burst = 3\n"
                                 "probe_absent = 204\n"
                                 "cert_file = /dev/null\n"
                                 "[target b]\n"
                                 "url = http://b.example\n"
                                 "[route r]\n"
                                 "target = c\n"
                                 "rollback = d /x\n"
                                 "[route s]\n"
                                 "scope = POST /s\n"
                                 "target = b\n"
                                 "probe_settle = 1s\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(
        bench, &bench->errors,
        "l.conf:2: target.a.url: is missing\n"
        "l.conf:6: target.a.burst: is only for a target with a rate\n"
        "l.conf:3: target.a.connect_timeout: is longer than the timeout of "
        "the whole call\n"
        "l.conf:2: target.a.temporary: names a status that success names too\n"
        "l.conf:8: target.a.cert_file: cert_file and key_file belong "
        "together\n"
        "l.conf:4: target.a.probe_settle: is shorter than the target's "
        "timeout: a call could still be in progress when its absence is taken "
        "for proof\n"
        "l.conf:7: target.a.probe_absent: names a status that probe_happened "
        "names too; one cannot prove both\n"
        "l.conf:12: route.r.scope: is missing\n"
        "l.conf:12: route.r.target: there is no target of that name\n"
        "l.conf:13: route.r.rollback: there is no target of that name\n"
        "l.conf:15: route.s.probe: is missing, and there is no rollback\n"
        "l.conf:17: route.s.probe_settle: is shorter than the target's "
        "timeout: a call could still be in progress when its absence is taken "
        "for proof\n");
    assert_text(bench, &bench->warnings,
                "l.conf:10: target.b.url: what is sent can be read and "
                "changed on its way; use https\n");
}

static void only_an_address_of_this_machine_may_do_without_https(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[target a]\nurl = http://127.1.2.3:80/x\n"
                                 "[target b]\nurl = http://[::1]/x\n"
                                 "[target c]\nurl = http://localhost\n"
                                 "[target d]\nurl = http://127.evil.example\n"
                                 "[target e]\nurl = http://localhost.evil\n"
                                 "[target f]\nurl = http://128.0.0.1\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
#define PLAIN "what is sent can be read and changed on its way; use https\n"
    assert_text(bench, &bench->warnings,
                "l.conf:8: target.d.url: " PLAIN
                "l.conf:10: target.e.url: " PLAIN
                "l.conf:12: target.f.url: " PLAIN);
#undef PLAIN
}

static void assert_dumped(struct bench *bench, struct lk_buf *dump,
                          const char *text, bool there)
{
    if ((memmem(dump->data, dump->len, text, strlen(text)) != NULL) != there) {
        fail_msg("\"%s\" in:\n%.*s", text, (int)dump->len, dump->data);
    }
}

static void secrets_are_put_in_and_never_shown(void **state)
{
    struct bench *bench = *state;
    char secret[128], text[512];
    struct lk_buf dump = {0};

    snprintf(secret, sizeof(secret), "%s/token", bench->folder);
    write_file(secret, "hush-1\n", 0600);
    setenv("LATCHKEY_TEST_TOKEN", "hush-2", 1);
    snprintf(text, sizeof(text),
             "[target a]\n"
             "url = https://a.example\n"
             "header = Authorization: Bearer ${file:%s}\n"
             "header = X: ${env:LATCHKEY_TEST_TOKEN}${env:LATCHKEY_TEST_TOKEN}"
             "!\n"
             "header = Y: hush-3\n"
             "sign = whsec_aHVzaC00aHVzaC00aHVzaC00\n"
             "concurrency = 3\n",
             secret);
    assert_int_equal(load(bench, text), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_string_equal(target(bench, "a")->headers,
                        "Authorization: Bearer hush-1\r\n"
                        "X: hush-2hush-2!\r\n"
                        "Y: hush-3\r\n");
    assert_int_equal(lk_config_dump(&bench->config, &dump), LK_OK);
    assert_dumped(bench, &dump, "[target a]\n", true);
    assert_dumped(bench, &dump, "concurrency = 3\n", true);
    assert_dumped(bench, &dump, "timeout = 30s\n", true);
    assert_dumped(bench, &dump, "# header = Y: (secret)\n", true);
    assert_dumped(bench, &dump, "# sign =  (secret)\n", true);
    assert_dumped(bench, &dump, "hush-", false);
    assert_dumped(bench, &dump, "aHVzaC", false);

    /* A secret that cannot be a header is not shown either. */
    write_file(secret, "hush-1\nhush-5\n", 0600);
    bench->errors.len = 0;
    snprintf(text, sizeof(text), "target.a.header=Z: ${file:%s}", secret);
    assert_int_equal(set(bench, text), LK_INVALID);
    assert_dumped(bench, &bench->errors, "hush", false);
    latchkey_buf_free(&dump);
}

static void a_secret_on_the_command_line_is_overwritten(void **state)
{
    char header[] = "target.a.header=Authorization: Bearer hush";
    char sign[] = "target.a.b.sign=whsec_hush";
    char plain[] = "target.a.url=https://x";

    lk_config_hide_secret(header);
    lk_config_hide_secret(sign);
    lk_config_hide_secret(plain);
    assert_null(strstr(header, "hush"));
    assert_null(strstr(sign, "hush"));
    assert_string_equal(plain, "target.a.url=https://x");
}

static void targets_that_are_written_out_load_again(void **state)
{
    struct bench *bench = *state;
    struct lk_buf first = {0}, second = {0};

    assert_int_equal(load(bench, "[target a]\nurl = unix:/run/a.sock:/b\n"
                                 "rate = 3/s\nprobe = /x/{key}\n"
                                 "probe_list =\n"
                                 "[route r]\nscope = POST /x\ntarget = a\n"
                                 "rollback = a /undo\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &first), LK_OK);
    assert_int_equal(latchkey_buf_add(&first, "", 1), LK_OK);
    lk_config_free(&bench->config);
    assert_int_equal(lk_config_init(&bench->config), LK_OK);
    assert_int_equal(load(bench, first.data), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &second), LK_OK);
    assert_int_equal(latchkey_buf_add(&second, "", 1), LK_OK);
    assert_string_equal(first.data, second.data);
    latchkey_buf_free(&first);
    latchkey_buf_free(&second);
}

static void a_reload_replaces_targets_and_routes(void **state)
{
    struct bench *bench = *state;
    struct lk_config fresh;
    struct lk_buf notes = {0};

    assert_int_equal(set(bench, "target.a.url=https://a"), LK_OK);
    assert_int_equal(set(bench, "target.b.url=https://b"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(lk_config_init(&fresh), LK_OK);
    assert_int_equal(
        lk_config_set(&fresh, "target.c.url=https://c", &bench->errors), LK_OK);
    assert_int_equal(lk_config_check(&fresh, &bench->errors, &bench->warnings),
                     LK_OK);
    assert_int_equal(lk_config_adopt(&bench->config, &fresh, &notes), LK_OK);
    assert_int_equal(notes.len, 0);
    lk_config_free(&fresh);
    assert_int_equal(bench->config.targets.count, 1);
    assert_string_equal(target(bench, "c")->url, "https://c");
    latchkey_buf_free(&notes);
}

static void a_copy_of_targets_is_a_copy(void **state)
{
    struct bench *bench = *state;
    struct lk_targets copy;

    assert_int_equal(load(bench, "[target a]\nurl = https://a\nheader = A: 1\n"
                                 "probe = /x\n[route r]\nscope = s\n"
                                 "target = a\nprobe = /y\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(lk_targets_copy(&bench->config.targets, &copy), LK_OK);
    lk_config_free(&bench->config);
    assert_int_equal(lk_config_init(&bench->config), LK_OK);
    assert_string_equal(copy.targets[0].headers, "A: 1\r\n");
    assert_string_equal(copy.routes[0].probe.path, "/y");
    assert_null(lk_target_find(&copy, LK_SLICE("b")));
    lk_targets_free(&copy);
    assert_int_equal(copy.count, 0);
}

static void a_courier_runs_if_there_is_something_to_deliver(void **state)
{
    struct bench *bench = *state;

    assert_false(lk_config_has_courier(&bench->config));
    assert_int_equal(set(bench, "courier.gateway=unix:/run/gateway.sock"),
                     LK_OK);
    assert_string_equal(bench->config.gateway, "/run/gateway.sock");
    assert_true(lk_config_has_courier(&bench->config));
    assert_value(bench, "courier.gateway", "unix:/run/gateway.sock");
    assert_int_equal(set(bench, "courier.enabled=no"), LK_OK);
    assert_false(lk_config_has_courier(&bench->config));
    assert_int_equal(set(bench, "courier.gateway=none"), LK_OK);
    assert_int_equal(set(bench, "courier.enabled=yes"), LK_OK);
    assert_true(lk_config_has_courier(&bench->config));
}

static void one_that_only_delivers_needs_a_shared_store(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(set(bench, "courier.only=yes"), LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "courier.only: needs a store in PostgreSQL: a file belongs to "
                "one daemon, and a Redis keeps no jobs\n");
    assert_int_equal(set(bench, "daemon.store=postgres://db/x"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_int_equal(bench->config.listen_count, 0);
    assert_true(lk_config_has_courier(&bench->config));
}

static void assert_documented(const char *text, const struct lk_setting *table,
                              size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char line[64];

        snprintf(line, sizeof(line), ".It Ic %s ", table[i].name);
        if (!strstr(text, line)) {
            fail_msg("no \"%s\"", line);
        }
    }
}

static void the_manual_documents_every_setting_of_targets(void **state)
{
    FILE *file = fopen("man/latchkeyd.conf.5", "re");
    char *text = calloc(1, 256 * 1024);

    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, 256 * 1024 - 1, file) > 0);
    fclose(file);
    assert_documented(text, lk_target_settings, lk_target_setting_count);
    /* A route's probes are a target's. */
    assert_documented(text, lk_route_settings, lk_route_setting_count);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_target_has_a_default_for_everything_but_its_url),
        TEST(a_target_is_what_the_file_says),
        TEST(options_name_targets_too),
        TEST(a_bad_value_of_a_target_is_named),
        TEST(errors_in_a_section_name_line_section_and_setting),
        TEST(a_default_gives_way_to_what_was_written),
        TEST(a_route_asks_by_its_own_path_only),
        TEST(a_route_that_only_rolls_back_needs_no_other_target),
        TEST(what_makes_no_sense_together_is_refused),
        TEST(only_an_address_of_this_machine_may_do_without_https),
        TEST(secrets_are_put_in_and_never_shown),
        TEST(a_secret_on_the_command_line_is_overwritten),
        TEST(targets_that_are_written_out_load_again),
        TEST(a_reload_replaces_targets_and_routes),
        TEST(a_copy_of_targets_is_a_copy),
        TEST(a_courier_runs_if_there_is_something_to_deliver),
        TEST(one_that_only_delivers_needs_a_shared_store),
        TEST(the_manual_documents_every_setting_of_targets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
