"""What becomes of an operation: by what its app says, by what the client gets,
and by what nginx makes of both."""

import email.utils
import pathlib
import re

import pytest

from support import build
from support.app import pattern, tell
from support.gateway import check_config, guard, nginx_of, params
from support.later import PlayedCourier, later
from support.later import outcome as told
from support.life import new_key
from support.wire import encode_request

PROTOCOLS = ["http", "fastcgi", "scgi", "uwsgi"]
FILES = """
location /files/ { internal; alias @FOLDER@/; }
location /dead/ { internal; proxy_pass http://@DEAD@; }
location /denied/ { internal; deny all; }
location /cycle/ { internal; rewrite ^ /cycle/again last; }
location /busy/ { internal; return 503 busy; }
"""
TO_OTHER = """
location @other { proxy_set_header X-App ""; proxy_pass http://@APP@; }
location @dead { proxy_pass http://@DEAD@; }
location /open/ { return 200 page; }
location = /missing { root @FOLDER@; }
"""
STATES = {"kept": "completed", "omitted": "completed",
          "released": "released", "doubted": "uncertain"}


def location(protocol, *lines):
    if protocol == "http":
        return guard("/", *lines)
    return guard("/", params(protocol), *lines, to="%s_pass @%s@;" % (
        protocol, protocol.upper()))


def word(text, *more):
    """Headers by which an app says what came of it."""
    return [["Latchkey-Outcome", text], ["Content-Type", "text/plain"], *more]


def accel(place, *more):
    return [["X-Accel-Redirect", place], *more]


def becomes(gateway, key, outcome):
    """The store and the log agree on it."""
    assert gateway.state(key) == STATES[outcome]
    (entry,) = gateway.logged(key=key, verdict="new")
    assert entry["outcome"] == outcome


@pytest.fixture
def files(make_gateway):
    """A gateway whose app may point to files and to what fails."""
    def make(*lines, more=""):
        gateway = make_gateway(start=False, locations=guard("/", *lines)
                               + FILES + more)
        (gateway.folder / "digits").write_text("0123456789")
        return gateway.start()
    return make


# ---- the app says what came of it -------------------------------------------

@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_app_says_counts_for_more_than_its_status(make_gateway, app,
                                                           protocol):
    # C09
    gateway = make_gateway(locations=location(protocol))
    for status, said, outcome in (
            (500, "done", "kept"), (504, "done", "kept"),
            (429, "Done", "kept"), (201, "done", "kept"),
            (201, "nothing", "released"), (404, "nothing", "released"),
            (502, "nothing", "released"), (500, "nothing", "released"),
            (201, "unknown", "doubted"), (500, "unknown", "doubted"),
            (400, "UNKNOWN", "doubted")):
        key = new_key()
        first = gateway.post(key, headers=tell(status=status, body="x",
                                               headers=word(said)))
        assert (first.status, first.body) == (status, b"x"), (status, said)
        assert "Latchkey-Outcome" not in first.headers
        becomes(gateway, key, outcome)
        again = gateway.post(key)
        assert "Latchkey-Outcome" not in again.headers
        assert app.count(key) == (2 if outcome == "released" else 1)
        assert again.replayed == (outcome == "kept")
        if outcome == "kept":
            assert (again.status, again.body) == (status, b"x")
            assert b"atchkey" not in gateway.record(key)["headers"]


@pytest.mark.parametrize("headers", [
    word("maybe"), word(""), word("done, nothing"),
    word("done", ["Latchkey-Outcome", "nothing"])], ids=str)
def test_a_word_that_cannot_be_read_is_logged_and_never_runs_it_again(
        gateway, app, headers):
    # C09
    for status, outcome in ((201, "kept"), (404, "kept"), (500, "doubted"),
                            (429, "doubted")):
        key = new_key()
        first = gateway.post(key, headers=tell(status=status,
                                               headers=headers))
        assert first.status == status
        assert "Latchkey-Outcome" not in first.headers
        becomes(gateway, key, outcome)
        gateway.post(key)
        assert app.count(key) == 1
        gateway.wait_for_log("Latchkey-Outcome.*%s.* is not one of"
                             % first.reference)


def test_what_the_app_says_to_the_gateway_is_not_for_clients(make_gateway,
                                                             app):
    # C17
    gateway = make_gateway(
        locations=guard("/required") + guard("/optional", mode="optional")
        + guard("/observe", mode="observe")
        + guard("/large", "idempotency_response_max 1k;"))
    for method in ("GET", "POST"):
        for path in ("/required", "/optional", "/observe", "/large"):
            for key in (None, new_key()):
                answer = gateway.request(
                    method, path, b"{}", key=key, headers=tell(
                        bytes=5000, headers=word("done")))
                assert answer.status in (201, 400)
                assert "Latchkey-Outcome" not in answer.headers, path
    checked = check_config(guard(
        "/", "idempotency_replay_headers Latchkey-Outcome;"))
    assert not checked.ok and "never replayed" in checked.text


# ---- how long it is remembered ----------------------------------------------

DAY = 24 * 60 * 60 * 1000


def keep(*times):
    """Headers by which an app says how long that is."""
    return [["Latchkey-Keep", time] for time in times]


def remembered(gateway, key, **name):
    """For how many ms from its completion."""
    record = gateway.record(key, **name)
    return record["expires-ms"] - record["completed-ms"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_app_may_have_it_remembered_longer(make_gateway, protocol):
    # C09
    gateway = make_gateway(locations=location(protocol))
    for headers, days in ((keep("30d"), 30), (keep("2592000"), 30),
                          (keep("1h"), 1), (keep("3d", "30d", "2d"), 30),
                          (keep("1y"), 365)):
        key = new_key()
        first = gateway.post(key, headers=tell(headers=headers))
        again = gateway.post(key)
        for answer in (first, again):
            assert answer.status == 201
            assert "Latchkey-Keep" not in answer.headers
            left = email.utils.parsedate_to_datetime(
                answer.header("Idempotency-Expires")).timestamp() * 1000 \
                - gateway.record(key)["completed-ms"]
            assert abs(left - days * DAY) < DAY / 2
        assert again.replayed and remembered(gateway, key) == days * DAY
        assert b"atchkey" not in gateway.record(key)["headers"]


@pytest.mark.parametrize("time", ["", "0", "-1d", "soon", "36501d", "30 d x",
                                  "99999999999999999999d"])
def test_a_time_that_cannot_be_read_is_logged_and_does_not_count(gateway,
                                                                 time):
    key = new_key()
    first = gateway.post(key, headers=tell(headers=keep(time)))
    assert first.status == 201 and "Latchkey-Keep" not in first.headers
    gateway.wait_for_log(r"\[error\].*Latchkey-Keep.*%s.*30d"
                         % first.reference)
    assert gateway.post(key).replayed and remembered(gateway, key) == DAY


def test_a_time_beyond_what_the_daemon_allows_does_not_count(make_gateway,
                                                             make_daemon):
    daemon = make_daemon(settings=["store.max_ttl=2d"])
    gateway = make_gateway(daemon=daemon, locations=guard("/") + guard(
        "/none", "idempotency_keep no_body;"))
    for path, status in (("/", 201), ("/none", 409)):
        key = new_key()
        scope = "POST " + path
        first = gateway.post(key, path=path, headers=tell(
            headers=keep("30d")))
        assert first.status == 201
        gateway.wait_for_log("Latchkey-Keep.*%s.*store.max_ttl"
                             % first.reference)
        assert gateway.post(key, path=path).status == status
        assert remembered(gateway, key, scope=scope) == DAY


def test_a_time_counts_with_what_else_the_app_says(files, app):
    # C09: what completes, not what is released; the page of another; omitted
    gateway = files("idempotency_response_max 1k;")
    for manner, outcome in (
            (dict(status=500, headers=keep("30d") + word("done")), "kept"),
            (dict(headers=keep("30d") + accel("/files/digits")), "kept"),
            (dict(bytes=5000, headers=keep("30d")), "omitted")):
        key = new_key()
        gateway.post(key, headers=tell(**manner))
        becomes(gateway, key, outcome)
        assert remembered(gateway, key) == 30 * DAY
    key = new_key()
    gateway.post(key, headers=tell(status=500, headers=keep("30d")))
    becomes(gateway, key, "released")


def test_a_time_counts_for_an_answer_that_is_stored_late(make_gateway, app):
    # C09
    gateway = make_gateway(locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_connect_timeout 1s;"))
    key = new_key()
    first = gateway.later(key=key, body=b"{}", headers=tell(
        hold="run", headers=keep("30d")))
    app.wait_held("run")
    gateway.daemon.kill()
    app.release("run")
    assert first.result().status == 503
    gateway.daemon.start()
    assert gateway.settled(key).replayed
    assert remembered(gateway, key) == 30 * DAY


def test_a_time_counts_for_what_the_courier_brings(folder, make_gateway):
    # C09
    gateway = make_gateway(**later(folder))
    courier = PlayedCourier(gateway, folder)
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(
        headers=keep("30d")))
    assert told(answer) == "completed"
    assert "Latchkey-Keep" not in answer.headers
    assert remembered(gateway, key) == 30 * DAY


def test_an_observer_hears_what_the_app_says_too(make_gateway, app):
    # C09, C43
    gateway = make_gateway(locations=guard(mode="observe"))
    key = new_key()
    gateway.post(key, headers=tell(status=500, headers=word("unknown")))
    gateway.logged(key=key, outcome="doubted")
    gateway.wait_state(key, "uncertain")


def test_what_the_app_says_holds_where_it_points_elsewhere(files, app):
    # C09
    gateway = files()
    for status, said, outcome in (
            (500, "done", "kept"), (200, "unknown", "doubted"),
            (200, "nothing", "released")):
        key = new_key()
        first = gateway.post(key, headers=tell(status=status, headers=accel(
            "/files/digits", *word(said))))
        assert (first.status, first.body) == (200, b"0123456789")
        assert "Latchkey-Outcome" not in first.headers
        becomes(gateway, key, outcome)


@pytest.mark.parametrize("status,said,calls,state", [
    (503, "unknown", 1, "uncertain"), (502, "nothing", 2, "completed"),
    (503, "", 1, "uncertain"), (503, "done", 2, "completed")])
def test_another_app_takes_over_if_the_first_did_not_leave_it_open(
        make_gateway, app, status, said, calls, state):
    # C21
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;", "error_page 502 503 = @other;")
        + TO_OTHER)
    key = new_key()
    first = gateway.post(key, headers=tell(status=status, headers=word(said)))
    assert app.count() == calls and gateway.state(key) == state
    if calls == 1:
        assert first.problem == "outcome-unknown"
        assert first.header("Retry-After") == "30"
    again = gateway.post(key)
    assert app.count() == calls and again.replayed == (calls == 2)


# ---- a page stands in for the app's answer ----------------------------------

@pytest.mark.parametrize("place,status", [
    ("/dead/x", 502), ("/cycle/x", 500), ("/files/none", 404),
    ("/denied/x", 403), ("/files/../../x", 404)])
@pytest.mark.parametrize("app_status", [200, 404])
def test_an_error_of_nginx_is_not_kept_for_what_the_app_answered(
        files, app, place, status, app_status):
    # C12: it is known what the app did; its answer is not there.
    gateway = files()
    key = new_key()
    first = gateway.post(key, headers=tell(status=app_status,
                                           headers=accel(place)))
    assert first.status == status
    if status == app_status:  # the page says what the app said
        becomes(gateway, key, "kept")
        assert gateway.post(key).body == first.body
    else:
        becomes(gateway, key, "omitted")
        again = gateway.post(key)
        assert again.status == 409
        for answer in (first, again):
            assert answer.problem == "answer-not-kept"
            assert answer.json()["original-status"] == app_status
            assert answer.json()["reference"] == first.reference
    assert app.count(key) == 1


def test_a_page_that_is_an_error_does_not_undo_what_the_app_did(files, app):
    # C12: by configuration, or by another app that the first one names.
    gateway = files(more="""
        location /more/ { internal; proxy_set_header X-App
            '{"status": 500, "body": "more"}'; proxy_pass http://@APP@; }""")
    for place, status, body in (("/busy/x", 503, b"busy"),
                                ("/more/x", 500, b"more")):
        key = new_key()
        first = gateway.post(key, headers=tell(status=201,
                                               headers=accel(place)))
        assert (first.status, first.body) == (status, body)
        becomes(gateway, key, "omitted")
        calls = app.count()
        again = gateway.post(key)
        assert again.json()["original-status"] == 201
        assert again.problem == "answer-not-kept" and app.count() == calls


@pytest.mark.parametrize("status", [404, 410])
def test_a_second_app_out_of_reach_is_not_what_the_first_one_answered(
        make_gateway, app, status):
    # C12
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;", "error_page 404 410 = @dead;")
        + TO_OTHER)
    key = new_key()
    first = gateway.post(key, headers=tell(status=status))
    assert (first.status, first.problem) == (502, "answer-not-kept")
    becomes(gateway, key, "omitted")
    assert gateway.post(key).json()["original-status"] == status
    assert app.count() == 1


@pytest.mark.parametrize("mode", ["off", "observe"])
@pytest.mark.parametrize("status,headers", [
    (200, [["X-Accel-Redirect", "@guarded"]]), (404, None)], ids=str)
def test_who_leads_to_the_guard_has_not_done_what_it_guards(
        make_gateway, app, status, headers, mode):
    # C02, C12: neither what it says nor that it was reached counts.
    first = guard("/", "proxy_intercept_errors on;",
                  "error_page 404 = @guarded;", mode=mode)
    gateway = make_gateway(locations=first + guard(
        "@guarded", to="proxy_pass http://@DEAD@;"))
    key, manner = new_key(), tell(status=status, headers=headers)
    answer = gateway.post(key, headers=manner)
    assert (answer.status, answer.problem) == (502, "not-reached")
    becomes(gateway, key, "released")
    gateway.reload(locations=first + guard(
        "@guarded", "proxy_set_header X-App '{\"status\": $arg_s}';"))
    for said, outcome in ((500, "released"), (502, "doubted"), (201, "kept")):
        key = new_key()
        path = "/?s=%d" % said
        assert gateway.post(key, path=path, headers=manner).status == said
        becomes(gateway, key, outcome)


@pytest.mark.parametrize("status", [500, 429, 401])
def test_an_operation_whose_client_is_told_of_success_runs_once(files, app,
                                                                status):
    # C02: whatever status the app wrote beside X-Accel-Redirect.
    gateway = files()
    key = new_key()
    for number in range(3):
        answer = gateway.post(key, headers=tell(
            status=status, headers=accel("/files/digits")))
        assert (answer.status, answer.body) == (200, b"0123456789")
        assert answer.replayed == (number > 0)
    assert app.count() == 1
    becomes(gateway, key, "kept")


@pytest.mark.parametrize("lines,status,outcome", [
    ("error_page 500 =200 /open/x;", 200, "kept"),
    ("error_page 500 /open/x;", 500, "released"),
    ("error_page 500 =302 https://status.example/;", 302, "released"),
    ("error_page 500 =404 /open/x;", 404, "released"),
    ("error_page 500 /missing;", 404, "released")])
def test_an_error_page_is_success_only_if_it_says_so(make_gateway, app, lines,
                                                     status, outcome):
    # C09
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;", lines) + TO_OTHER)
    key = new_key()
    first = gateway.post(key, headers=tell(status=500))
    assert first.status == status
    becomes(gateway, key, outcome)


# ---- the app is not reached -------------------------------------------------

@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_app_out_of_reach_is_told_as_what_it_is(make_gateway, app,
                                                   protocol):
    # C21: nothing happened, and a program can see it.
    gateway = make_gateway(locations=location(protocol))
    key = new_key()
    app.stop()
    first = gateway.post(key)
    assert (first.status, first.problem) == (502, "not-reached")
    assert first.header("Retry-After") == "1" and first.reference
    assert first.json()["reference"] == first.reference
    becomes(gateway, key, "released")
    app.start()
    assert gateway.post(key).status == 201 and app.count() == 1


LUA = pathlib.Path("/usr/lib/nginx/modules/ngx_http_lua_module.so")


@pytest.mark.skipif(
    not LUA.exists() or nginx_of(build.BUILD) != "/usr/sbin/nginx",
    reason="no module of this nginx can run a program")
def test_a_program_in_nginx_that_stands_in_is_an_app(make_gateway):
    # C02, C12: what it did is not done again; a page that it makes may be.
    gateway = make_gateway(
        main="".join("load_module %s;" % LUA.with_name(name) for name in (
            "ndk_http_module.so", LUA.name)),
        locations="".join(guard(
            path, "error_page 502 %s @program;" % as_, to="proxy_pass "
            "http://@DEAD@;") for path, as_ in (("/", "="), ("/page", "=200")))
        + """
        location @program { content_by_lua_block {
            if ngx.var.arg_e then ngx.exit(tonumber(ngx.var.arg_e)) end
            if ngx.var.arg_s then ngx.status = tonumber(ngx.var.arg_s) end
            ngx.say("queued") } }""")
    for path, status, outcome in (
            ("/?s=202", 202, "kept"), ("/?s=404", 404, "kept"),
            ("/?s=503", 503, "released"), ("/?s=504", 504, "doubted"),
            ("/?e=404", 404, "kept"), ("/?e=503", 503, "released"),
            ("/?e=504", 504, "doubted"), ("/page", 200, "released")):
        key = new_key()
        first = gateway.post(key, path=path)
        assert first.status == status and first.problem != "not-reached"
        assert first.body == b"queued\n" or "?e=" in path
        (entry,) = gateway.logged(key=key)
        assert entry["outcome"] == outcome
        assert gateway.post(key, path=path).replayed == (outcome == "kept")


@pytest.mark.parametrize("lines,status,body", [
    ("error_page 502 /open/x;", 502, b"page"),
    ("error_page 502 =200 /open/x;", 200, b"page"),
    ("error_page 502 =503 /open/x;", 503, b"page"),
    ("error_page 502 https://status.example/;", 302, None)])
def test_an_error_page_answers_for_an_app_out_of_reach(make_gateway, lines,
                                                       status, body):
    # C21
    gateway = make_gateway(locations=guard(
        "/", lines, to="proxy_pass http://@DEAD@;") + TO_OTHER)
    key = new_key()
    first = gateway.post(key)
    assert first.status == status and first.problem is None
    if body:
        assert first.body == body
    becomes(gateway, key, "released")


@pytest.mark.parametrize("place", ["@dead", "/missing"])
def test_an_error_page_that_fails_does_not_hide_that_nothing_happened(
        make_gateway, place):
    # C21
    gateway = make_gateway(locations=guard(
        "/", "error_page 502 = %s;" % place, to="proxy_pass http://@DEAD@;")
        + TO_OTHER)
    key = new_key()
    first = gateway.post(key)
    assert (first.status, first.problem) == (502, "not-reached")
    becomes(gateway, key, "released")


# ---- a route releases more --------------------------------------------------

def test_a_route_may_release_what_the_client_can_correct(make_gateway, app):
    # C09: the corrected request may have the same key.
    gateway = make_gateway(
        server="idempotency_release 400 422;",
        locations=guard("/") + guard("/kept", "idempotency_release default;")
        + guard("/other", "idempotency_keep 5xx;",
                "idempotency_release 503;"))
    for path, status, released in (
            ("/", 400, True), ("/", 422, True), ("/", 404, False),
            ("/kept", 400, False), ("/other", 400, False),
            ("/other", 500, False), ("/other", 503, True)):
        key = new_key()
        first = gateway.post(key, b"wrong", path, headers=tell(status=status))
        assert first.status == status
        second = gateway.post(key, b"right", path)
        assert second.problem == (None if released else "key-reused")
        assert second.status == (201 if released else 422)
        assert app.count(key) == (2 if released else 1)


@pytest.mark.parametrize("lines,message", [
    ("idempotency_release 201;", "statuses from 400 to 599"),
    ("idempotency_release 4xx;", "statuses from 400 to 599"),
    ("idempotency_release default 400;", "statuses from 400 to 599"),
    ("idempotency_release 400; idempotency_release 422;", "is duplicate"),
    ("idempotency_release 503 400; idempotency_keep 429 503;",
     "status 503 is in \"idempotency_keep\" and in")])
def test_what_a_route_releases_must_make_sense(lines, message):
    # C09
    checked = check_config(guard("/", lines))
    assert not checked.ok and message in checked.text


# ---- the app completes it itself --------------------------------------------

def complete(gateway, app, key, status, headers, body, *more):
    """As the app does from its own transaction, with its token."""
    with gateway.daemon.raw() as raw:
        assert raw("COMPLETE", "acme", "POST /", key,
                   app.last.header("Latchkey-Token"), status, headers, body,
                   *more) == "OK"


def run_and_complete(gateway, app, key, stored, *more, **manner):
    """The answer to the request whose app completes it and then does so."""
    hold = "run" + key
    first = gateway.later(key=key, body=b"{}", headers=tell(hold=hold,
                                                            **manner))
    app.wait_held(hold)
    complete(gateway, app, key, *stored, *more)
    app.release(hold)
    return first.result()


STORED = (201, "Location: /stored\r\nContent-Type: text/plain\r\n", "made")


@pytest.mark.parametrize("manner", [
    {"status": 500}, {"status": 504}, {"close": True},
    {"bytes": 500, "truncate": 10}, {"status": 200, "body": "other"},
    {"bytes": 5000000}], ids=str)
def test_what_the_app_completed_is_completed_whatever_it_says_then(
        gateway, app, manner):
    # C26: the client gets it for the first time, not as a replay.
    key = new_key()
    first = run_and_complete(gateway, app, key, STORED, **manner)
    again = gateway.post(key)
    for answer in (first, again):
        assert (answer.status, answer.body) == (201, b"made")
        assert answer.header("Location") == "/stored"
        assert answer.reference == first.reference
        assert "Idempotency-Expires" in answer.headers
    assert again.replayed and not first.replayed
    becomes(gateway, key, "kept")
    assert app.count() == 1


def test_what_the_app_completed_without_its_answer_is_completed_too(
        make_gateway, app):
    # C12, C26, C34
    gateway = make_gateway(locations=guard() + """
        location = /counters { idempotency_counters; }""")
    key = new_key()
    first = run_and_complete(gateway, app, key, (201, "", ""), "OMIT",
                             "too secret", status=500)
    assert (first.status, first.problem) == (409, "answer-not-kept")
    becomes(gateway, key, "omitted")
    key = new_key()
    run_and_complete(gateway, app, key, STORED, status=500)
    becomes(gateway, key, "kept")
    text = gateway.request("GET", "/counters?format=prometheus", None).body
    counted = dict(re.findall(
        rb'outcomes_total{.*location="/",.*outcome="(\w+)"} (\d+)', text))
    assert {word: n for word, n in counted.items() if n != b"0"} == {
        b"omitted": b"1", b"kept": b"1"}


def test_the_first_client_gets_the_headers_that_are_stored(gateway, app):
    # C02, C26: the same answer but for its headers; what is never stored,
    # such as a cookie, is still the app's.
    key = new_key()
    first = run_and_complete(
        gateway, app, key, STORED, status=201, body="made", headers=[
            ["Location", "/sent"], ["Content-Type", "text/html"],
            ["ETag", '"sent"'], ["Link", "</a>; rel=next"],
            ["Cache-Control", "no-store"], ["Set-Cookie", "session=1"],
            ["X-Request-Id", "r-1"]])
    again = gateway.post(key)
    assert first.header("Set-Cookie") == "session=1"
    assert first.header("X-Request-Id") == "r-1"
    for answer in (first, again):
        assert (answer.status, answer.body) == (201, b"made")
        assert answer.headers.all("Location") == ["/stored"]
        assert answer.headers.all("Content-Type") == ["text/plain"]
        for name in ("ETag", "Link", "Cache-Control"):
            assert name not in answer.headers
    assert again.replayed and not first.replayed
    assert abs(seconds(first) - seconds(again)) <= 1


def seconds(answer):
    return email.utils.parsedate_to_datetime(
        answer.header("Idempotency-Expires")).timestamp()


# ---- answers that are none --------------------------------------------------

@pytest.mark.parametrize("lines", [
    "", "proxy_http_version 1.1;",
    "proxy_http_version 1.1; proxy_buffering off;", "proxy_buffer_size 1k;"])
@pytest.mark.parametrize("manner", [
    {"interim": [103], "hold": "final"}, {"interim": [100, 102, 103]},
    {"interim": [103] * 30, "bytes": 70000},
    {"interim": [103], "bytes": 5000, "chunked": True},
    {"interim": [103], "status": 404, "plain": True}], ids=str)
def test_interim_answers_are_passed_over(make_gateway, app, lines, manner):
    # C02
    if "1.1" not in lines and "chunked" in manner:
        lines += "proxy_http_version 1.1;"
    gateway = make_gateway(locations=guard("/", lines))
    key = new_key()
    with gateway.raw() as connection:
        connection.send(encode_request("POST", "/", gateway.headers(
            tell(**manner), key), b"{}"))
        if "hold" in manner:
            app.wait_held("final")
            app.release("final")
        first = connection.response()
        # And nothing of it is left for the next answer.
        again = connection.ask("POST", "/", gateway.headers({}, key), b"{}")
    assert first.status == again.status == manner.get("status", 201)
    assert first.complete and first.body == again.body
    if "bytes" in manner:
        assert first.body == pattern(manner["bytes"])
    assert "X-Interim" not in first.headers and "Link" not in first.headers
    assert again.replayed and app.count() == 1
    becomes(gateway, key, "kept")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_that_is_not_final_leaves_the_outcome_open(
        make_gateway, app, protocol):
    # C21: 101 to a client that has not asked for it; 103 as the only one.
    gateway = make_gateway(locations=location(protocol))
    statuses = [101] if protocol == "http" else [101, 103, 199]
    for status in statuses:
        key = new_key()
        first = gateway.post(key, headers=tell(status=status, body="?"))
        assert (first.status, first.problem) == (502, "outcome-unknown")
        becomes(gateway, key, "doubted")
        assert gateway.post(key).problem == "outcome-unknown"
        assert app.count(key) == 1


@pytest.mark.parametrize("lines", [
    "", "proxy_buffering off;", "proxy_buffer_size 1k; proxy_buffers 2 1k; "
    "proxy_busy_buffers_size 1k;"])
@pytest.mark.parametrize("size", [0, 10, 3000, 300000])
def test_a_body_that_cannot_be_read_leaves_the_outcome_open(
        make_gateway, app, lines, size):
    # C21: said as such, on a connection that goes on.
    gateway = make_gateway(locations=guard(
        "/", "proxy_http_version 1.1;", lines))
    key = new_key()
    with gateway.raw() as connection:
        first = connection.ask("POST", "/", gateway.headers(
            tell(bytes=size, bad_chunk=True), key), b"{}")
    assert (first.status, first.problem) == (502, "outcome-unknown")
    assert first.complete and first.header("Retry-After") == "30"
    becomes(gateway, key, "doubted")
    again = gateway.post(key)
    assert (again.status, again.problem) == (409, "outcome-unknown")
    assert again.header("Retry-After") == "30" and app.count() == 1


def test_a_large_body_that_cannot_be_read_to_its_end_looks_cut_off(
        make_gateway, app):
    # C12: its beginning is with the client by then.
    gateway = make_gateway(locations=guard(
        "/", "proxy_http_version 1.1;", "idempotency_response_max 1k;"))
    key = new_key()
    first = gateway.post(key, headers=tell(bytes=50000, bad_chunk=True))
    assert first.status == 201 and not first.complete
    assert gateway.post(key).problem == "answer-not-kept"


# ---- after the answer -------------------------------------------------------

def test_what_follows_an_answer_follows_only_if_the_app_ran(make_gateway,
                                                            app):
    # C02: not a replay, and not a refusal.
    gateway = make_gateway(workers=1, locations=guard(
        "/", "post_action @after;") + """
        location @after { proxy_set_header X-After yes;
                          proxy_pass http://@APP@; }""")
    key = new_key()
    with gateway.raw() as connection:
        for _ in range(3):
            assert connection.ask("POST", "/", gateway.headers({}, key),
                                  b"{}").status == 201
        assert connection.ask("POST", "/", gateway.headers({}, key),
                              b"other").problem == "key-reused"
        assert connection.ask("POST", "/", gateway.headers({}),
                              b"{}").problem == "key-missing"
        # The worker has done what there was to do when it answers this.
        last = new_key()
        assert connection.ask("POST", "/", gateway.headers({}, last),
                              b"{}").status == 201
    app.wait(lambda: len(after(app)) >= 2, "nothing followed")
    assert sorted(call.key for call in after(app)) == sorted([key, last])
    assert app.count() == 4


def after(app):
    return [call for call in app.calls if call.header("X-After")]


# ---- requests that run later ------------------------------------------------

@pytest.mark.parametrize("protocol", ["http", "uwsgi"])
def test_the_courier_hears_what_the_app_says(folder, make_gateway, app,
                                             protocol):
    # C31, C27
    to = {} if protocol == "http" else {
        "to": params(protocol) + "%s_pass @%s@;" % (protocol,
                                                    protocol.upper())}
    gateway = make_gateway(**later(folder, **to))
    courier = PlayedCourier(gateway, folder)
    for status, said, outcome in (
            (500, "done", "completed"), (201, "nothing", "released"),
            (500, "unknown", "uncertain"), (201, "?", "completed"),
            (503, "?", "uncertain")):
        key = new_key()
        answer = courier.bring(courier.begin(key), headers=tell(
            status=status, headers=word(said)))
        assert answer.headers.all("Latchkey-Outcome") == [outcome]
        assert told(answer) == outcome and answer.status == status
        assert gateway.state(key) == ("in_progress" if outcome == "released"
                                      else outcome)
