/* test_auth.c - passwords, users and roles (C36), and their reload (C40). */
#include "tests/unit/config_bench.h"

static void a_password_comes_from_a_file(void **state)
{
    struct bench *bench = *state;
    char secret[96], assignment[128];

    snprintf(secret, sizeof(secret), "%s/secret", bench->folder);
    snprintf(assignment, sizeof(assignment), "auth.password_file=%s", secret);
    write_file(secret, "tea and biscuits\nnot this\n", 0644);
    assert_int_equal(set(bench, assignment), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_string_equal(bench->config.password, "tea and biscuits");
    assert_int_equal(lk_config_initial_role(&bench->config), LK_ROLE_NONE);
    assert_text(bench, &bench->warnings,
                "auth.password_file: every user of this machine can read the "
                "password file; chmod 640 and give it the daemon's group\n");
}

static void a_password_given_twice_is_refused(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[auth]\npassword = a\n"
                                 "password_file = /nowhere\n"),
                     LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "l.conf:3: auth.password_file: auth.password is given too; "
                "use one of them\n");
}

static void a_password_file_must_hold_a_password(void **state)
{
    struct bench *bench = *state;
    char secret[96], assignment[128];

    snprintf(secret, sizeof(secret), "%s/secret", bench->folder);
    snprintf(assignment, sizeof(assignment), "auth.password_file=%s", secret);
    assert_int_equal(set(bench, assignment), LK_OK);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "auth.password_file: \"secret\": no such file; write the "
                "password into it\n");
    write_file(secret, "\nsecond line\n", 0600);
    assert_int_equal(check(bench), LK_INVALID);
    assert_text(bench, &bench->errors,
                "auth.password_file: \"secret\": the first line must be a "
                "password of 1 to 512 bytes\n");
}

static void each_user_has_the_role_of_its_password(void **state)
{
    struct bench *bench = *state;
    struct lk_config *config = &bench->config;
    char secret[96], text[256];

    snprintf(secret, sizeof(secret), "%s/secret", bench->folder);
    write_file(secret, "from a file", 0600);
    snprintf(text, sizeof(text),
             "[auth]\npassword = hunter\n[users]\n"
             "reader = read see everything\nboss=operate file:%s\n",
             secret);
    assert_int_equal(load(bench, text), LK_OK);
    assert_int_equal(check(bench), LK_OK);
#define LOGIN(name, password)                                                  \
    lk_config_login(config, LK_SLICE(name), LK_SLICE(password))
    assert_int_equal(LOGIN("", "hunter"), LK_ROLE_USE);
    assert_int_equal(LOGIN("default", "hunter"), LK_ROLE_USE);
    assert_int_equal(LOGIN("reader", "see everything"), LK_ROLE_READ);
    assert_int_equal(LOGIN("boss", "from a file"), LK_ROLE_OPERATE);
    assert_int_equal(LOGIN("", "hunte"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("", "hunter2"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("", "hunter\0"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("", ""), LK_ROLE_NONE);
    assert_int_equal(LOGIN("reader", "hunter"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("reader", "from a file"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("Boss", "from a file"), LK_ROLE_NONE);
    assert_int_equal(LOGIN("boss", ""), LK_ROLE_NONE);
#undef LOGIN
}

static void without_a_password_no_password_is_right(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(
        lk_config_login(&bench->config, LK_SLICE(""), LK_SLICE("")),
        LK_ROLE_NONE);
}

static void errors_and_output_never_show_a_password(void **state)
{
    struct bench *bench = *state;
    struct lk_buf out = {0};

    assert_int_equal(load(bench, "[auth]\npassword = hunter\n[users]\n"
                                 "ops = operate hunter\napp = hunter\n"
                                 "web = boss hunter\nops = read hunter\n"
                                 "job = read file:hunter\nbot = read\n"
                                 "default = read hunter\n"),
                     LK_INVALID);
    assert_int_equal(lk_config_dump(&bench->config, &out), LK_OK);
    assert_null(memmem(out.data, out.len, "hunter", 6));
    assert_non_null(memmem(out.data, out.len, "# ops = operate", 15));
    assert_null(memmem(bench->errors.data, bench->errors.len, "hunter", 6));
    assert_non_null(memmem(bench->errors.data, bench->errors.len,
                           "l.conf:7: users.ops: is given twice", 35));
    assert_int_equal(
        lk_config_get(&bench->config, LK_SLICE("auth.password"), &out),
        LK_NOT_FOUND);
    assert_int_equal(lk_config_get(&bench->config, LK_SLICE("users.ops"), &out),
                     LK_NOT_FOUND);
    latchkey_buf_free(&out);
}

static void a_readable_file_with_passwords_is_warned_of(void **state)
{
    struct bench *bench = *state;

    write_file(bench->file, "[auth]\npassword = a\n", 0644);
    assert_int_equal(
        lk_config_load(&bench->config, bench->file, &bench->errors), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings,
                "l.conf: every user of this machine can read the passwords in "
                "it; chmod 640, or use password files\n");
}

static void users_without_a_password_for_apps_are_warned_of(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[users]\nops = operate one\n"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings,
                "auth.password_file: is not set, so [users] keeps no one from "
                "data commands: every client that connects may claim, complete "
                "and read stored responses\n");
    bench->warnings.len = 0;
    assert_int_equal(set(bench, "auth.password=two"), LK_OK);
    assert_int_equal(check(bench), LK_OK);
    assert_text(bench, &bench->warnings, "");
}

static void a_secret_on_the_command_line_can_be_hidden(void **state)
{
    char password[] = "auth.password=hunter", user[] = "users.ops=read hunter";
    char file[] = "auth.password_file=/etc/x", lock[] = "store.lock=5s";

    lk_config_hide_secret(password);
    lk_config_hide_secret(user);
    lk_config_hide_secret(file);
    lk_config_hide_secret(lock);
    assert_string_equal(password, "auth.password=******");
    assert_string_equal(user, "users.ops=***********");
    assert_string_equal(file, "auth.password_file=/etc/x");
    assert_string_equal(lock, "store.lock=5s");
}

#define BIT(role) (1U << LK_ROLE_##role)

static unsigned roles_of(const struct bench *bench, uint32_t uid, uint32_t gid,
                         uint32_t other)
{
    uint32_t groups[] = {gid, other};
    struct lk_peer peer = {
        .known = true, .uid = uid, .groups = groups, .group_count = 2};

    return lk_config_peer_roles(&bench->config, &peer);
}

static void a_peer_has_the_roles_of_its_user_and_groups(void **state)
{
    struct bench *bench = *state;
    const unsigned own = BIT(USE) | BIT(OPERATE);
    struct lk_peer unknown = {.uid = 0};

    assert_int_equal(roles_of(bench, 0, 0, 0), own);
    assert_int_equal(roles_of(bench, geteuid(), 7, 7),
                     geteuid() == 65534 ? 0 : own);
    assert_int_equal(roles_of(bench, 4001, 0, 0), 0);
    assert_int_equal(lk_config_peer_roles(&bench->config, &unknown), 0);
    assert_int_equal(load(bench, "[peers]\n4001 = read\n4002 = use operate\n"
                                 "@4003 = read,use\n@4004 = operate\n"),
                     LK_OK);
    assert_int_equal(roles_of(bench, 4001, 4001, 4002), BIT(READ));
    assert_int_equal(roles_of(bench, 4002, 7, 7), BIT(USE) | BIT(OPERATE));
    assert_int_equal(roles_of(bench, 4009, 4003, 7), BIT(USE) | BIT(READ));
    assert_int_equal(roles_of(bench, 4001, 7, 4004), BIT(READ) | BIT(OPERATE));
    assert_int_equal(roles_of(bench, 4003, 4001, 4002), 0);
    assert_int_equal(roles_of(bench, 0, 7, 4003), own | BIT(READ));
    /* Root may be given less, but what its groups have it has. */
    assert_int_equal(set(bench, "peers.root=none"), LK_OK);
    assert_int_equal(roles_of(bench, 0, 7, 7), 0);
    assert_int_equal(roles_of(bench, 0, 7, 4003), BIT(USE) | BIT(READ));
    assert_int_equal(set(bench, "peers.root=read"), LK_OK);
    assert_int_equal(roles_of(bench, 0, 7, 7), BIT(READ));
}

static void who_comes_from_another_user_namespace_is_no_one(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(load(bench, "[peers]\n65534 = operate\n@65534 = read\n"),
                     LK_INVALID);
    assert_text(
        bench, &bench->errors,
        "l.conf:2: peers.65534: the user 65534 may be anyone of another "
        "user namespace, and cannot have a role\n"
        "l.conf:3: peers.@65534: the group 65534 may be anyone of "
        "another user namespace, and cannot have a role\n");
    assert_int_equal(roles_of(bench, 65534, 65534, 65534), 0);
}

static void peers_that_make_no_sense_are_refused(void **state)
{
    struct bench *bench = *state;
    struct lk_buf out = {0};

    assert_int_equal(load(bench, "[peers]\n4001 = read\n4001 = use\n"
                                 "nowhere-at-all = read\n"
                                 "@nowhere-at-all = read\nroot = king\n"
                                 "root = none read\nroot =\n"),
                     LK_INVALID);
#define ROLES                                                                  \
    "is not a list of roles; use \"use\", \"read\" and \"operate\", or "       \
    "\"none\"\n"
    assert_text(
        bench, &bench->errors,
        "l.conf:3: peers.4001: is given twice\n"
        "l.conf:4: peers.nowhere-at-all: there is no such user on this "
        "machine; create it, or correct the name\n"
        "l.conf:5: peers.@nowhere-at-all: there is no such group on this "
        "machine; create it, or correct the name\n"
        "l.conf:6: peers.root: \"king\" " ROLES
        "l.conf:7: peers.root: \"none read\" " ROLES
        "l.conf:8: peers.root: \"\" " ROLES);
#undef ROLES
    assert_int_equal(set(bench, "peers.@4003=operate, use"), LK_OK);
    assert_int_equal(set(bench, "peers.root=none"), LK_OK);
    assert_int_equal(lk_config_dump(&bench->config, &out), LK_OK);
    assert_int_equal(latchkey_buf_add(&out, "", 1), LK_OK);
    assert_non_null(strstr(out.data, "[peers]\n4001 = read\n"
                                     "@4003 = use operate\nroot = none\n"));
    latchkey_buf_free(&out);
}

static void a_login_stays_as_long_as_its_line_is_the_same(void **state)
{
    struct bench *bench = *state;
    struct lk_config after;

    assert_int_equal(load(bench, "[auth]\npassword = app\n[users]\n"
                                 "a = read one\nb = read one\nc = read one\n"
                                 "d = read one\n"),
                     LK_OK);
    assert_int_equal(lk_config_init(&after), LK_OK);
    write_file(bench->file,
               "[auth]\npassword = new\n[users]\na = read one\n"
               "b = read two\nc = operate one\n",
               0600);
    assert_int_equal(lk_config_load(&after, bench->file, &bench->errors),
                     LK_OK);
#define SAME(name) lk_config_same_login(&bench->config, &after, LK_SLICE(name))
    assert_true(SAME("a"));
    assert_false(SAME("b"));
    assert_false(SAME("c"));
    assert_false(SAME("d"));
    assert_false(SAME(""));
    assert_false(SAME("default"));
    free(after.password);
    after.password = strdup("app");
    assert_true(SAME("") && SAME("default"));
    free(after.password);
    after.password = NULL;
    assert_false(SAME(""));
#undef SAME
    lk_config_free(&after);
}

static void a_reload_takes_what_may_change_and_names_the_rest(void **state)
{
    struct bench *bench = *state;
    struct lk_config *running = &bench->config;
    struct lk_config fresh;
    struct lk_buf restart = {0};

    assert_int_equal(set(bench, "users.ops=read one"), LK_OK);
    assert_int_equal(lk_config_init(&fresh), LK_OK);
    assert_int_equal(lk_config_set(&fresh, "store.lock=5s", &restart), LK_OK);
    assert_int_equal(lk_config_set(&fresh, "store.reap_rows=9", &restart),
                     LK_OK);
    assert_int_equal(lk_config_set(&fresh, "daemon.listen=unix:/b", &restart),
                     LK_OK);
    assert_int_equal(lk_config_set(&fresh, "auth.password=new", &restart),
                     LK_OK);
    assert_int_equal(lk_config_set(&fresh, "users.ops=operate two", &restart),
                     LK_OK);
    assert_int_equal(lk_config_set(&fresh, "users.app=read three", &restart),
                     LK_OK);
    assert_int_equal(lk_config_adopt(running, &fresh, &restart), LK_OK);
    assert_text(bench, &restart, "daemon.listen\nstore.reap_rows\n");
    assert_value(bench, "store.lock", "5s");
    assert_value(bench, "store.reap_rows", "256");
    assert_string_equal(running->listen[0].path,
                        "/run/latchkey/latchkeyd.sock");
    assert_string_equal(running->password, "new");
    assert_int_equal(running->user_count, 2);
    assert_int_equal(lk_config_login(running, LK_SLICE("ops"), LK_SLICE("two")),
                     LK_ROLE_OPERATE);
    assert_int_equal(fresh.user_count, 1);
    lk_config_free(&fresh);
    latchkey_buf_free(&restart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_password_comes_from_a_file),
        TEST(a_password_given_twice_is_refused),
        TEST(a_password_file_must_hold_a_password),
        TEST(each_user_has_the_role_of_its_password),
        TEST(without_a_password_no_password_is_right),
        TEST(errors_and_output_never_show_a_password),
        TEST(a_readable_file_with_passwords_is_warned_of),
        TEST(users_without_a_password_for_apps_are_warned_of),
        TEST(a_secret_on_the_command_line_can_be_hidden),
        TEST(a_peer_has_the_roles_of_its_user_and_groups),
        TEST(who_comes_from_another_user_namespace_is_no_one),
        TEST(peers_that_make_no_sense_are_refused),
        TEST(a_login_stays_as_long_as_its_line_is_the_same),
        TEST(a_reload_takes_what_may_change_and_names_the_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
