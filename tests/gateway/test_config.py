"""What nginx -t says: each message names the directive, place and remedy."""

import re

import pytest

from support.gateway import check_config, guard
from support.service import free_port

TENANT = "idempotency_tenant $http_x_api_key;"
TO = "proxy_pass http://@APP@;"


def refused(locations, *words, at="idempotency ", **options):
    """nginx -t fails, and its message names file, line and all words.

    at: what the line contains; None: a line with any of them will do.
    """
    checked = check_config(locations, **options)
    assert not checked.ok, "it was accepted:\n" + locations
    message = next((line for line in checked.text.splitlines()
                    if "[emerg]" in line), "")
    found = re.search(r"nginx\.conf:(\d+)\b", message)
    assert found, message
    line = int(found.group(1))
    if at is None:
        assert "idempotency" in checked.config.splitlines()[line - 1], message
    else:
        assert line == checked.line_of(at), (message, checked.line_of(at))
    for word in words:
        assert word in message, message
    return message


def accepted(locations, **options):
    checked = check_config(locations, **options)
    assert checked.ok, checked.text
    return checked


# ---- what a guarded location needs ----

@pytest.mark.parametrize("mode", ["observe", "optional", "required"])
def test_a_guarded_location_without_a_tenant_does_not_start(mode):
    # C15
    refused("location / { idempotency %s; %s }" % (mode, TO),
            "idempotency_tenant")


def test_a_tenant_may_come_from_outside_the_location():
    # C15
    accepted("location / { idempotency required; %s }" % TO, http=TENANT)
    accepted("location / { idempotency required; %s }" % TO, server=TENANT)
    accepted("idempotency required; %s location / { %s }" % (TENANT, TO))
    accepted("location / { %s }" % TO)
    accepted("location / { idempotency off; %s }" % TO,
             server="idempotency required;" + TENANT)


def test_a_guard_that_is_inherited_needs_a_tenant_too():
    # C15
    refused("location /a { %s }" % TO, "idempotency_tenant",
            server="idempotency required;")


@pytest.mark.parametrize("kind,to", [
    ("proxy", TO), ("fastcgi", "fastcgi_pass @FASTCGI@;"),
    ("uwsgi", "uwsgi_pass @UWSGI@;"), ("scgi", "scgi_pass @SCGI@;")])
def test_an_upstream_that_would_repeat_a_request_is_refused(kind, to):
    # C01
    name = "%s_next_upstream" % kind
    refused(guard("/", "%s error non_idempotent;" % name, to=to), name,
            "non_idempotent")
    accepted(guard("/", "%s error timeout;" % name, to=to))
    for method in ("PUT", "DELETE"):
        methods = "idempotency_methods POST %s;" % method
        refused(guard("/", methods, to=to), name, "off")
        accepted(guard("/", methods, "%s off;" % name, to=to))
    # Inherited settings count as well.
    refused(guard("/", to=to), name,
            server="%s error non_idempotent;" % name)


@pytest.mark.parametrize("where", ["@app { %s", "/app { internal; %s"])
def test_what_a_redirect_leads_to_must_not_repeat_a_request_either(where):
    # C15
    def ask(methods, setting):
        return (guard("/", methods, "try_files /none %s;" % where.split()[0],
                      to="") + "location %s %s }" % (where % setting, TO))

    refused(ask("", "proxy_next_upstream error non_idempotent;"),
            "non_idempotent", "proxy_next_upstream", "remove")
    accepted(ask("", "proxy_next_upstream error timeout;"))
    refused(ask("idempotency_methods PUT;", ""), "proxy_next_upstream", "off")
    accepted(ask("idempotency_methods PUT;", "proxy_next_upstream off;"))


def test_what_a_redirect_may_lead_to_is_warned_of():
    # C15
    checked = accepted(
        guard("/", "try_files /none /app;", to="") +
        "location /app { proxy_next_upstream non_idempotent; %s }" % TO)
    assert "[warn]" in checked.text and "non_idempotent" in checked.text


def test_an_answer_in_slices_is_refused():
    # C15
    refused(guard("/", "slice 1m;"), "slice 0")
    refused(guard("/"), "slice 0", server="slice 1m;")
    accepted(guard("/", "slice 0;"), server="slice 1m;")
    refused(guard("/", to="try_files /none @app;") +
            "location @app { slice 1m; %s }" % TO, "slice 0")


def test_grpc_is_refused():
    # C15
    refused(guard(to="grpc_pass grpc://@APP@;"), "grpc_pass")


@pytest.mark.parametrize("where", ["@app { %s }", "/app { internal; %s }"])
def test_grpc_is_refused_behind_a_redirect_too(where):
    # C15
    def ask(to):
        return guard("/", to="try_files /none %s;" % where.split()[0]) + (
            "location " + where % to)

    message = refused(ask("grpc_pass grpc://@APP@;"), "grpc_pass",
                      "proxy_pass", at=None)
    assert where.split()[0] in message
    accepted(ask(TO))
    # Nothing is guarded: nothing is asked of it.
    accepted(ask("grpc_pass grpc://@APP@;").replace("required", "off"))


def test_a_user_whom_nobody_checks_is_no_tenant():
    # C15, C16
    refused(guard(tenant="$remote_user"), "$remote_user", "auth_basic")
    refused(guard(tenant="u-${remote_user}"), "auth_basic")
    accepted(guard("/", "idempotency_auth app;", tenant="$remote_user"))
    accepted(guard("/", "auth_basic x;", "auth_basic_user_file f;",
                   tenant="$remote_user"))
    accepted(guard("/", "auth_request /a;", tenant="$remote_user"))


@pytest.mark.parametrize("lines", [
    ["auth_basic x;", "auth_basic_user_file f;"], ["auth_request /a;"]])
def test_a_check_that_another_one_can_replace_is_none(lines):
    # C15, C16
    refused(guard("/", *lines, "satisfy any;", tenant="$remote_user"),
            "$remote_user", "satisfy any")
    refused(guard("/", *lines, tenant="$remote_user"), "satisfy any",
            server="satisfy any;")
    accepted(guard("/", *lines, "satisfy all;", tenant="$remote_user"),
             server="satisfy any;")
    accepted(guard("/", *lines, "satisfy any;", "idempotency_auth app;",
                   tenant="$remote_user"))


def warnings(locations, **options):
    """What nginx -t warns of, if it accepts all of it."""
    return [line for line in accepted(locations, **options).text.splitlines()
            if "[warn]" in line and "idempotency" in line]


BASIC = ["auth_basic x;", "auth_basic_user_file f;"]


@pytest.mark.parametrize("tenant", [
    "$http_x_account", "$cookie_session", "$arg_account", "a-${arg_account}",
    "$args", "$request_uri", "$uri", "$host", "$remote_user:$http_x_account"])
def test_a_tenant_that_a_client_may_write_is_warned_of(tmp_path, tenant):
    # C15: whoever it has proved to be
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)

    def warned(*lines, word=""):
        return warnings(guard("/", *lines, tenant=tenant + word),
                        http="idempotency_secret %s;" % secret)

    for lines in (BASIC, ["auth_request /a;"]):
        (warning,) = warned(*lines)
        for text in ("idempotency_tenant", "hashed", "trusted",
                     tenant.split(":")[-1].replace("a-", "").strip("${}")):
            assert text in warning
        assert re.search(r"nginx\.conf:\d+\b", warning)
        for word in (" hashed", " trusted", " hashed trusted"):
            assert warned(*lines, word=word) == []
    assert warned("idempotency_auth app;") == []
    assert warned(word=" trusted") == []


@pytest.mark.parametrize("lines", [
    "set $account $http_x_account;",
    "set $other a-$arg_account; set $account $other;",
    "if ($http_x_account ~ ^(.+)$) { set $account $1; }",
    "rewrite ^/x/(.+)$ /$1; set $account $1;"])
def test_a_variable_that_is_set_from_what_a_client_wrote_is_warned_of(lines):
    # C15
    for options in ({"server": lines}, {"locations": lines}):
        (warning,) = warnings(
            guard("/", *BASIC, options.get("locations", ""),
                  tenant="$account"), server=options.get("server", ""))
        assert "$account" in warning


@pytest.mark.parametrize("inside,warned", [
    ("default $http_x_account;", 1), ("default ''; key $http_x_account;", 1),
    ("default ''; ~^(?<all>.+)$ $all;", 1), ("default ''; ~^(.+)$ $1;", 1),
    ("default a-$more;", 1), ("default ''; key acme; next acme;", 0),
    ("default $remote_user;", 0), ("hostnames; default ''; *.a acme;", 0),
    ("", 0)])
def test_a_map_that_gives_what_a_client_wrote_is_warned_of(inside, warned):
    # C15: one that gives what it lists verifies
    maps = ("map $arg_more $more { default $arg_more; } "
            "map $http_x_key $account { %s } "
            "map $remote_user $part { default ''; ~^(.+)@ $1; }" % inside)
    for lines, tenant in (("", "$account"), ("set $of $account;", "$of")):
        assert len(warnings(guard("/", *BASIC, lines, tenant=tenant),
                            http=maps)) == warned
    assert warnings(guard("/", *BASIC, tenant="$part"), http=maps) == []


@pytest.mark.parametrize("path,server", [
    ("~ ^/(?<account>[^/]+)/", ""),
    ("/", "server_name ~^(?<account>.+)[.]test$;")])
def test_a_capture_of_the_path_or_the_host_is_warned_of(path, server):
    # C15: by its name as well as by its number
    assert len(warnings(guard(path, *BASIC, tenant="$account"),
                        server=server)) == 1
    assert warnings(guard(path, *BASIC, tenant="$remote_user"),
                    server=server) == []


def test_a_map_that_we_ask_replaces_none_of_the_configuration():
    maps = "map $pid $latchkey_map { default $http_x_account; }"
    (warning,) = warnings(guard("/", *BASIC, tenant="$latchkey_map"),
                          http=maps)
    assert "$latchkey_map" in warning


def test_maps_that_give_each_other_end():
    maps = "".join("map $uri $m%d { default $m%d; a $m%d; }" % (
        number, (number + 1) % 3, number) for number in range(3))
    assert warnings(guard("/", *BASIC, tenant="$m0"), http=maps) == []


def test_a_server_full_of_variables_is_looked_at_once_and_to_the_end():
    # As many ways through it as there are, it would not end today.
    maps = "".join("map $pid $m%d { %s }" % (
        number, "".join("k%d a-$m%d;" % (key, number + 1)
                        for key in range(100))) for number in range(6))
    maps += "map $pid $m6 { default $%s; }"
    lines = "".join("if ($s%d = 1) { set $s%d $s%d-$s%d-$hostname; }" % (
        number, number + 1, number, number + 1) for number in range(100))
    lines += "set $s0 $m0;"
    for last, warned in (("server_name", 0), ("http_x_account", 1)):
        assert len(warnings(guard("/", *BASIC, tenant="$s9"), server=lines,
                            http=maps % last)) == warned


@pytest.mark.parametrize("lines", [
    "set $account $remote_user;", "set $account acme;",
    "if ($remote_user ~ ^(.+)@) { set $account $1; }",
    "set $other $http_x_account; set $account $remote_user;",
    "auth_request /a; auth_request_set $account $upstream_http_x_account;"])
def test_a_variable_that_no_client_writes_is_not_warned_of(lines):
    # C15
    assert warnings(guard("/", *BASIC, lines, tenant="$account")) == []


def test_a_realm_that_may_be_off_verifies_nobody():
    # C15, C16
    realm = ["auth_basic $realm;", "auth_basic_user_file f;"]
    maps = "map $http_x_open $realm { default off; 1 API; }"
    refused(guard("/", *realm, tenant="$remote_user"), "realm", http=maps)
    accepted(guard("/", *BASIC, tenant="$remote_user"), http=maps)
    accepted(guard("/", *realm, "auth_request /a;", tenant="$remote_user"),
             http=maps)
    accepted(guard("/", *realm, tenant="$remote_user trusted"), http=maps)


def test_a_password_does_not_verify_a_certificate():
    # C15, C16
    tenant = "$ssl_client_s_dn"
    refused(guard("/", *BASIC, tenant=tenant), "certificate",
            "ssl_verify_client")
    accepted(guard("/", "auth_request /a;", tenant=tenant))


@pytest.mark.parametrize("lines,warned", [
    (["return 200;"], 1), (["return 200 done;"], 1),
    (["set $a $uri;", "rewrite ^/x(.*)$ /y$1;", "return 204;"], 1),
    (["if ($arg_a = 1) { set $b x$arg_b-$1; }", "return 204;"], 1),
    (["if ($http_x_account = '') { return 401; }"], 0),
    (["if ($http_x_account ~ (a)) { set $b $1; return 401; }"], 0),
    (["if (-f $request_filename) { return 401; }"], 0),
    (["break;", "return 200;"], 0)])
def test_a_return_that_leaves_nothing_to_guard_is_warned_of(lines, warned):
    # C15
    found = [line for line in warnings(guard("/", *lines, tenant="x trusted"))
             if '"return"' in line]
    assert len(found) == warned
    # It inherits a guard that others need.
    assert warnings("location /ping { %s }" % " ".join(lines),
                    server="idempotency required;"
                    "idempotency_tenant x trusted;") == []


@pytest.mark.parametrize("lines,address,warned", [
    ("", "*:%d", 1), ("", "[::]:%d", 1), ("", "127.0.0.1:%d", 0),
    ("", "[::1]:%d", 0), ("", "unix:@FOLDER@/s%d", 0),
    ("allow 127.0.0.1; deny all;", "*:%d", 0), (" ".join(BASIC), "*:%d", 0),
    ("internal;", "*:%d", 0), ("auth_basic off;", "*:%d", 1)])
def test_counters_that_are_open_to_everybody_are_warned_of(lines, address,
                                                           warned):
    # C15
    found = warnings("", http="server { listen %s; location = /counters { "
                     "idempotency_counters; %s } }" % (
                         address % free_port(), lines))
    assert len(found) == warned
    assert all("idempotency_counters" in line and "allow" in line
               for line in found)


def test_a_hashed_tenant_needs_a_secret(tmp_path):
    # C13
    hashed = guard(tenant="$http_x_api_key hashed")
    refused(hashed, "idempotency_secret")
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    accepted(hashed, http="idempotency_secret %s;" % secret)
    secret.write_text("short")
    refused(hashed, "idempotency_secret", "16", at="idempotency_secret",
            http="idempotency_secret %s;" % secret)
    refused(hashed, "idempotency_secret", at="idempotency_secret",
            http="idempotency_secret %s;" % (tmp_path / "none"))


# ---- values ----

@pytest.mark.parametrize("line,words", [
    ("idempotency_lock 500ms;", ["idempotency_lock"]),
    ("idempotency_ttl 0;", ["idempotency_ttl"]),
    ("idempotency_ttl 900ms;", ["idempotency_ttl"]),
    ("idempotency_ttl 36501d;", ["idempotency_ttl", "36500d"]),
    ("idempotency_lock 366d;", ["idempotency_lock", "365d"]),
    ("idempotency_late 0 64m;", ["idempotency_late"]),
    ("idempotency_late 10m 1;", ["idempotency_late"]),
    ("idempotency_late 10m 1k;", ["idempotency_late"]),
    ("idempotency_response_max 257m;", ["idempotency_response_max", "256"]),
    ("idempotency_response_max 0;", ["idempotency_response_max", "no_body"]),
    ("idempotency_timeout 61s;", ["idempotency_timeout", "send_timeout"]),
])
def test_a_value_out_of_its_range_is_refused(line, words):
    checked = check_config(guard("/", line))
    assert not checked.ok
    message = next(text for text in checked.text.splitlines()
                   if "[emerg]" in text)
    assert re.search(r"nginx\.conf:(%d|%d)\b" % (
        checked.line_of("idempotency req"),
        checked.line_of(line.split(";")[0])), message), message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("line,words", [
    ("idempotency_ttl 401d;", ["idempotency_ttl", "store.max_ttl", "400d"]),
    ("idempotency_lock 25h;", ["idempotency_lock", "store.max_lock", "1d"]),
])
def test_a_time_that_the_daemon_must_be_set_to_allow_is_warned_of(line, words):
    checked = accepted(guard("/", line))
    (message,) = (text for text in checked.text.splitlines()
                  if "[warn]" in text and "store." in text)
    assert re.search(r"nginx\.conf:%d\b" % checked.line_of("idempotency req"),
                     message), message
    for word in words:
        assert word in message, message
    usual = accepted(guard("/", "idempotency_ttl 400d;",
                           "idempotency_lock 1d;"))
    assert "store." not in usual.text


@pytest.mark.parametrize("line,words", [
    ("idempotency_methods GET;", ["GET"]),
    ("idempotency_methods POST POST;", ["POST"]),
    ("idempotency_key sometimes;", ["sometimes"]),
    ("idempotency_key min=0;", ["min=0"]),
    ("idempotency_key min=256;", ["min=256"]),
    ("idempotency_keep 99;", ["99"]),
    ("idempotency_keep 600;", ["600"]),
    ("idempotency_keep sometimes;", ["sometimes"]),
    ("idempotency_keep default 5xx;", ["default", "alone"]),
    ("idempotency_keep 5xx default;", ["default", "alone"]),
    ("idempotency_headers none X-A;", ["none", "only parameter"]),
    ("idempotency_headers X-A none;", ["none", "only parameter"]),
    ("idempotency_replay_headers default X-A;", ["default", "only parameter"]),
    ("idempotency_problem_base foo;", ["foo", "URL", "https://"]),
    ("idempotency_problem_base /problems/;", ["/problems/", "URL"]),
    ("idempotency_mismatch_status 400;", ["400"]),
    ("idempotency_uncertain maybe;", ["maybe"]),
    ("idempotency_auth nobody;", ["nobody"]),
    ("idempotency_async sometimes;", ["sometimes", "prefer"]),
    ("idempotency_async_location operations/;", ["operations/", "slash"]),
    ("idempotency_async_location /operations;", ["/operations", "slash"]),
    ("idempotency_async_body many;", []),
    ("idempotency_async_headers Connection;", ["Connection"]),
    ("idempotency_async_headers X-A Latchkey-Tenant;", ["Latchkey-Tenant"]),
    ("idempotency_async_headers default X-A;", ["default", "only parameter"]),
    ("idempotency_async_retry soon;", []),
    ("idempotency_replay_headers Set-Cookie;", ["Set-Cookie"]),
    ("idempotency_replay_headers date;", ["date"]),
    ("idempotency_replay_headers X-A Proxy-Authenticate;",
     ["Proxy-Authenticate"]),
    ("idempotency_replay_headers Content-Length;", ["Content-Length"]),
    ("idempotency_replay_headers Connection;", ["Connection"]),
    ("idempotency_replay_headers Idempotency-Reference;",
     ["Idempotency-Reference"]),
    ("idempotency_ignore no-pointer;", ["no-pointer"]),
    ("idempotency_max_age $http_x_time soon;", ["soon"]),
    ("idempotency_max_age $http_x_time 5m skew=never;", ["never"]),
    ("idempotency_max_age $http_x_time;", []),
    ("idempotency_late never;", ["never"]),
    ("idempotency_server nonsense::1;", ["nonsense::1"]),
    ("idempotency_server unix:;", ["unix:"]),
    ("idempotency_server 127.0.0.1:7420 colour=red;", ["colour="]),
    ("idempotency_server 127.0.0.1:7420 password_file=/nowhere/x;",
     ["/nowhere/x"]),
    ("idempotency_ttl soon;", []),
    ("idempotency_wait;", []),
    ("idempotency_scope a b;", []),
])
def test_a_value_that_means_nothing_is_refused_by_its_line(line, words):
    name = line.split()[0].rstrip(";")
    refused(guard("/", line), name, *words, at=line)


def test_a_mode_that_is_unknown_is_refused():
    refused(guard(mode="sometimes"), "idempotency", "sometimes")


@pytest.mark.parametrize("name,value", [
    ("idempotency", "required"), ("idempotency_ttl", "1h"),
    ("idempotency_tenant", "x"), ("idempotency_scope", "x"),
    ("idempotency_keep", "5xx"), ("idempotency_late", "1m"),
    ("idempotency_methods", "POST"), ("idempotency_key", "uuid"),
    ("idempotency_replay_headers", "X-A"), ("idempotency_max_age", "off"),
    ("idempotency_async", "off"), ("idempotency_async_headers", "X-A"),
    ("idempotency_async_location", "/operations/")])
def test_a_directive_given_twice_is_refused(name, value):
    text = "location / { %s %s;\n%s %s; }" % (name, value, name, value)
    checked = check_config(text)
    assert not checked.ok and "duplicate" in checked.text
    assert name in checked.text


def test_directives_of_http_or_location_alone_are_refused_elsewhere(tmp_path):
    (tmp_path / "secret").write_text("0123456789abcdef")
    for place in ("server", "locations"):
        text = "idempotency_secret %s;" % (tmp_path / "secret")
        if place == "locations":
            text = "location / { %s }" % text
        checked = check_config(**{"locations": "", place: text})
        assert not checked.ok and "idempotency_secret" in checked.text
    for name in ("idempotency_status", "idempotency_counters"):
        checked = check_config(server=name + ";")
        assert not checked.ok and name in checked.text
        accepted("location /x { %s %s; }" % (TENANT, name))


@pytest.mark.parametrize("name", ["idempotency_status",
                                  "idempotency_counters"])
@pytest.mark.parametrize("other", [
    TO, "fastcgi_pass @FASTCGI@;", "empty_gif;", "stub_status;"])
def test_a_location_has_one_source_of_answers(name, other):
    # The last one would win, and nobody would know.
    for lines in ("%s;\n%s" % (name, other), "%s\n%s;" % (other, name)):
        checked = check_config("location /x { %s %s }" % (TENANT, lines))
        assert not checked.ok, "it was accepted:\n" + lines
        message = next(line for line in checked.text.splitlines()
                       if "[emerg]" in line)
        assert name in message, message
        assert "location of its own" in message, message


def test_a_password_is_not_told_in_a_message():
    checked = check_config(guard(), http=(
        "idempotency_server 127.0.0.1:1 user=u password=hush-hush x=y;"))
    assert not checked.ok and "hush-hush" not in checked.text


def test_every_directive_is_accepted_at_every_level(tmp_path):
    lines = """
        idempotency optional;
        idempotency_connect_timeout 2s;
        idempotency_timeout 5s;
        idempotency_tenant $http_x_api_key;
        idempotency_auth app;
        idempotency_scope "$request_method $uri";
        idempotency_bind $cookie_session;
        idempotency_headers X-A X-B;
        idempotency_ignore /a /b/c;
        idempotency_key uuid min=36;
        idempotency_methods POST PATCH;
        idempotency_ttl 1d;
        idempotency_lock 10s;
        idempotency_wait 3s;
        idempotency_keep 5xx 502 no_body;
        idempotency_replay_headers X-A;
        idempotency_response_max 2m;
        idempotency_mismatch_status 409;
        idempotency_uncertain hold;
        idempotency_async off;
        idempotency_async_location /operations/;
        idempotency_async_body 2m;
        idempotency_async_headers X-Account;
        idempotency_async_retry 5s;
        idempotency_max_age $http_x_time 5m skew=10s;
        idempotency_late 5m 8m;
        idempotency_problem_base https://example.org/;
    """
    accepted("location / { %s %s }" % (lines, TO))
    accepted("location / { %s }" % TO, server=lines)
    accepted("location / { %s }" % TO, http=lines)
    accepted("location / { %s }" % TO, http=lines, server=lines)
    for line in ("idempotency_headers none;", "idempotency_ignore none;",
                 "idempotency_keep default;", "idempotency_max_age off;",
                 "idempotency_replay_headers default;",
                 "idempotency_max_age uuidv7 1h;"):
        accepted(guard("/", line), http=lines.replace("optional", "off"))


def test_settings_are_inherited_and_overridden(make_gateway, app):
    gateway = make_gateway(
        server="idempotency required; idempotency_mismatch_status 409;"
               "idempotency_tenant $http_x_api_key;",
        locations="""
            location / { proxy_pass http://@APP@; }
            location /a { idempotency_mismatch_status 422;
                          proxy_pass http://@APP@; }
            location /off { idempotency off; proxy_pass http://@APP@; }
            location /b { proxy_pass http://@APP@;
                          location /b/c { idempotency optional;
                                          proxy_pass http://@APP@; } }
        """)
    for path, status in (("/", 409), ("/a", 422), ("/b", 409)):
        assert gateway.post("k", b"1", path).status == 201
        assert gateway.post("k", b"2", path).status == status
        assert gateway.post(path=path).problem == "key-missing"
    assert gateway.post(path="/off").status == 201
    assert gateway.post(path="/b/c").status == 201
    gateway.post("k", b"1", "/b/c")
    assert gateway.post("k", b"2", "/b/c").status == 409


def test_a_module_that_guards_nothing_changes_nothing(make_gateway, app,
                                                      make_daemon):
    gateway = make_gateway(daemon=make_daemon(start=False),
                           locations="location / { proxy_pass http://@APP@; }")
    for number in (1, 2):
        answer = gateway.post("same", headers={"Latchkey-Token": "forged"})
        assert answer.json()["call"] == number and not answer.reference
        assert not app.last.headers.all("Latchkey-Token")
    gateway.logged(2, verdict="", outcome="", reference="")


def test_a_reload_with_a_mistake_leaves_the_gateway_as_it_was(gateway, app):
    # C40
    workers = gateway.workers()
    gateway.allow(r"\[emerg\].*idempotency_tenant")
    gateway.config_file.write_text(gateway.config().replace(
        "idempotency_tenant $http_x_api_key;", ""))
    gateway.process.send_signal(1)
    gateway.wait_for_log(r"\[emerg\].*idempotency_tenant")
    assert gateway.workers() == workers
    assert gateway.post("k").status == 201
