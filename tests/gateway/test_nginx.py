"""Beside nginx's other modules and within its redirects."""

import gzip
import threading

import pytest

from support.app import pattern, tell
from support.gateway import guard
from support.life import new_key, until
from support.wire import encode_request

TENANT = "idempotency_tenant $http_x_api_key;"
TO = "proxy_pass http://@APP@;"


def twice(gateway, app, path="/", calls=1, **manner):
    """A request and its retry get the same; the first answer."""
    key = new_key()
    before = app.count()
    first = gateway.post(key, path=path, headers=tell(**manner))
    again = gateway.post(key, path=path)
    assert (again.status, again.body) == (first.status, first.body)
    assert again.replayed and not first.replayed
    assert app.count() == before + calls
    return first


# ---- filters ----

def test_compression_is_applied_to_what_is_kept(make_gateway, app):
    # C02
    gateway = make_gateway(server="gzip on; gzip_types *; "
                                  "gzip_min_length 1;")
    wants = {"Accept-Encoding": "gzip"}
    key = new_key()
    first = gateway.post(key, headers=dict(wants, **tell(status=200, bytes=90000)))
    assert first.header("Content-Encoding") == "gzip"
    assert gzip.decompress(first.body) == pattern(90000)
    again = gateway.post(key, headers=wants)
    assert again.replayed
    assert gzip.decompress(again.body) == pattern(90000)
    plain = gateway.post(key)
    assert "Content-Encoding" not in plain.headers
    assert plain.body == pattern(90000) and app.count() == 1


def test_what_is_added_to_answers_is_added_to_all_of_them(make_gateway, app):
    # C02
    gateway = make_gateway(server='add_header X-Always yes always; '
                                  'add_header Access-Control-Allow-Origin "*"'
                                  ' always;')
    key = new_key()
    answers = [gateway.post(key), gateway.post(key), gateway.post(),
               gateway.post(key, b"other"),
               gateway.post(new_key(), headers=tell(status=500))]
    for answer in answers:
        assert answer.header("X-Always") == "yes", answer
        assert answer.header("Access-Control-Allow-Origin") == "*", answer


@pytest.mark.parametrize("line", [
    "sub_filter call CALLED; sub_filter_types *;",
    "add_before_body /open/b; add_after_body /open/a; addition_types *;",
    "expires 1h;", "ssi on; ssi_types *;", "charset utf-8;",
    "proxy_hide_header Location;", "gunzip on;",
    "chunked_transfer_encoding off;", "etag off;",
])
def test_filters_do_the_same_to_an_answer_and_to_its_replay(make_gateway, app,
                                                            line):
    # C02
    gateway = make_gateway(locations=guard("/", line) + """
        location /open { return 200 added; }""")
    twice(gateway, app)
    twice(gateway, app, body="x" * 2000)
    twice(gateway, app, status=404, body="none")


# ---- error pages ----

def test_problems_are_not_replaced_by_error_pages(make_gateway, app):
    # C06
    gateway = make_gateway(
        server="error_page 400 409 422 503 /open/page;",
        locations=guard() + "location /open { return 200 page; }")
    key = new_key()
    assert gateway.post().problem == "key-missing"
    assert gateway.post(key, b"1").status == 201
    assert gateway.post(key, b"2").problem == "key-reused"
    gateway.daemon.stop()
    assert gateway.post(key, b"1").problem == "unavailable"
    gateway.daemon.start()


def test_problems_keep_their_status_where_an_error_code_led(make_gateway,
                                                            app):
    # C03, C06: without "=" nginx would give every answer the code's.
    gateway = make_gateway(locations="""
        location / { error_page 418 @app; return 418; }
    """ + guard("@app"))
    key = new_key()
    assert gateway.post().problem == "key-missing"
    first = gateway.post(key, b"1")
    assert first.json()["call"] == 1
    mismatch = gateway.post(key, b"2")
    assert (mismatch.status, mismatch.problem) == (422, "key-reused")
    again = gateway.post(key, b"1")
    assert (again.status, again.body) == (first.status, first.body)
    assert again.replayed and app.count() == 1


def test_an_error_page_in_place_of_an_answer_is_what_is_kept(make_gateway,
                                                             app):
    # C02, C09
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;",
        "error_page 404 /open/missing;", "error_page 500 =500 /open/broken;",
    ) + """
        location /open/missing { return 404 "no such thing"; }
        location /open/broken { return 500 "sorry"; }
    """)
    first = twice(gateway, app, status=404, body="from the app")
    assert (first.status, first.body) == (404, b"no such thing")
    key = new_key()
    broken = gateway.post(key, headers=tell(status=500))
    assert (broken.status, broken.body) == (500, b"sorry")
    assert gateway.post(key).status == 201  # released: it runs again


def test_an_error_page_does_not_hide_that_the_outcome_is_open(make_gateway,
                                                              app):
    # C21
    gateway = make_gateway(
        server="error_page 502 504 =200 /open/sorry;",
        locations=guard() + 'location /open { return 200 "sorry"; }')
    key = new_key()
    first = gateway.post(key, headers=tell(reset=True))
    assert (first.status, first.body) == (200, b"sorry")
    assert gateway.post(key).problem == "outcome-unknown"
    app.stop()
    key = new_key()
    assert gateway.post(key).body == b"sorry"
    assert gateway.state(key) == "released"


def test_another_app_may_take_over_what_the_first_never_got(make_gateway,
                                                            app):
    # C21
    gateway = make_gateway(locations=guard(
        "/", "error_page 502 = @other;",
        to="proxy_pass http://@DEAD@;") + "location @other { %s }" % TO)
    key = new_key()
    first = gateway.post(key)
    assert first.status == 201 and first.reference
    assert app.last.header("Latchkey-Reference") == first.reference
    assert gateway.post(key).body == first.body
    assert app.count() == 1


@pytest.mark.parametrize("manner", [dict(reset=True), dict(status=504)],
                         ids=["reset", "504 of the app"])
@pytest.mark.parametrize("through", ["@other", "/other/"])
def test_no_other_app_takes_over_what_the_first_may_have_done(
        make_gateway, app, through, manner):
    # C21: the request would run in two places.
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;",
        "error_page 502 504 = %s;" % through) + """
        location %s {
            proxy_set_header X-App "";
            proxy_pass http://@APP@;
        }""" % through)
    key = new_key()
    first = gateway.post(key, headers=tell(**manner))
    assert first.problem == "outcome-unknown"
    assert first.status == manner.get("status", 502)
    assert app.count() == 1
    assert gateway.post(key).problem == "outcome-unknown"
    assert gateway.state(key) == "uncertain" and app.count() == 1


def test_an_outcome_that_is_open_never_looks_like_success(make_gateway, app):
    # C21: "=200" was meant for what the other app answers.
    gateway = make_gateway(locations=guard(
        "/", "proxy_read_timeout 1s;", "error_page 502 504 =200 @other;") + """
        location @other {
            proxy_set_header X-App "";
            proxy_pass http://@APP@;
        }""")
    for manner, status in ((dict(reset=True), 502), (dict(hold="x"), 504)):
        key = new_key()
        first = gateway.post(key, headers=tell(**manner))
        assert (first.status, first.problem) == (status, "outcome-unknown")
        assert gateway.post(key).problem == "outcome-unknown"
        assert app.count(key) == 1


def test_another_app_may_answer_for_one_that_has_said_no(make_gateway, app):
    # C08
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;", "error_page 404 = @other;") + """
        location @other {
            proxy_set_header X-App "";
            proxy_pass http://@APP@;
        }""")
    key = new_key()
    first = gateway.post(key, headers=tell(status=404))
    assert first.status == 201 and app.count() == 2
    assert gateway.post(key).body == first.body and app.count() == 2


@pytest.mark.parametrize("status,rest", [
    (400, b"zz\r\n"), (413, b"800\r\n%s\r\n0\r\n\r\n" % bytes(2048))],
    ids=["400", "413"])
@pytest.mark.parametrize("page", [
    "root @FOLDER@;", "return 200 page;", "proxy_pass http://@APP@;"],
    ids=["file", "return", "app"])
@pytest.mark.parametrize("mode", ["required", "observe"])
def test_an_error_page_answers_for_a_body_that_fails_on_its_way(
        make_gateway, app, status, rest, page, mode):
    # C43: nothing was claimed, and nobody is left waiting.
    gateway = make_gateway(
        start=False, server="client_max_body_size 1k;",
        locations=guard("/", "error_page 400 413 /page;", mode=mode)
        + "location = /page { %s }" % page)
    (gateway.folder / "page").write_text("page")
    gateway.start()
    key = new_key()
    connection = gateway.raw()
    connection.send(encode_request("POST", "/", gateway.headers([
        ("Transfer-Encoding", "chunked"), ("Expect", "100-continue"),
        *tell(body="page").items()], key)))
    assert connection.head()[1] == 100  # from now on it waits for the body
    connection.send(rest)
    answer = connection.response()
    assert (answer.status, answer.body) == (status, b"page")
    assert gateway.record(key) is None
    assert [call.method for call in app.calls] in ([], ["GET"])


# ---- redirects within nginx ----

def test_try_files_leads_to_a_guarded_location(make_gateway, app):
    # C02
    gateway = make_gateway(
        locations="location / { try_files /none @app; }" + guard("@app"))
    twice(gateway, app, path="/x?y=1")
    assert app.last.header("Latchkey-Scope") == "POST /x"


def test_a_guarded_location_may_try_files(make_gateway, app):
    # C02
    gateway = make_gateway(locations=guard(
        "/", to="try_files /none @app;") + "location @app { %s }" % TO)
    first = twice(gateway, app, path="/x")
    assert app.last.header("Latchkey-Reference") == first.reference
    assert gateway.post(path="/x").problem == "key-missing"


def test_a_request_is_claimed_once_though_both_locations_are_guarded(
        make_gateway, app):
    # C02
    gateway = make_gateway(
        server="idempotency required;" + TENANT,
        locations="""
            location / { try_files /none /front.php?$args; }
            location ~ php$ { proxy_pass http://@APP@; }
            location /named { try_files /none @named; }
            location @named { proxy_pass http://@APP@; }
        """)
    twice(gateway, app, path="/x?y=1")
    assert app.last.target == "/front.php?y=1"
    assert app.last.header("Latchkey-Scope") == "POST /x"
    twice(gateway, app, path="/named/x")


def test_a_rewrite_changes_the_target_and_not_the_scope(make_gateway, app):
    # C14
    gateway = make_gateway(
        server="rewrite ^/old/(.*)$ /new/$1 last;",
        locations=guard("/new", "rewrite ^/new/(.*)$ /v2/$1 break;"))
    twice(gateway, app, path="/old/a")
    assert app.last.target == "/v2/a"
    assert app.last.header("Latchkey-Scope") == "POST /old/a"


def test_an_answer_may_come_from_where_the_app_points_to(make_gateway, app):
    # C02
    gateway = make_gateway(start=False, locations=guard() + """
        location /files/ { internal; alias @FOLDER@/files/; }
        location /more/ { internal; proxy_pass http://@APP@/more/; }
    """)
    (gateway.folder / "files").mkdir()
    (gateway.folder / "files/big").write_bytes(pattern(400000))
    gateway.start()
    first = twice(gateway, app, status=200, headers=[
        ["X-Accel-Redirect", "/files/big"], ["Content-Type", "x/y"]])
    assert first.body == pattern(400000)
    assert "X-Accel-Redirect" not in first.headers


@pytest.mark.parametrize("part", ["bytes=0-3", "bytes=2-", "bytes=0-1,3-4",
                                  "bytes=9999-"])
@pytest.mark.parametrize("line,manner", [
    ("proxy_force_ranges on;", {"body": "0123456789"}),
    ("", {"headers": [["X-Accel-Redirect", "/files/digits"]]}),
], ids=["forced", "a file"])
def test_nobody_gets_a_part_of_an_answer(make_gateway, app, line, manner,
                                         part):
    # C02: the whole of it, and nothing that the next answer could begin with.
    gateway = make_gateway(start=False, locations=guard("/", line) + """
        location /files/ { internal; alias @FOLDER@/; }""")
    (gateway.folder / "digits").write_text("0123456789")
    gateway.start()
    key = new_key()
    with gateway.raw() as connection:
        for number in range(3):
            answer = connection.ask("POST", "/", gateway.headers(
                dict(tell(status=200, **manner), Range=part), key), b"{}")
            assert (answer.status, answer.body) == (200, b"0123456789")
            assert "Content-Range" not in answer.headers
            assert answer.replayed == (number > 0)
    assert app.count() == 1


@pytest.mark.parametrize("condition", [
    ("If-None-Match", "*"), ("If-Match", '"other"'),
    ("If-Modified-Since", "Tue, 01 Jan 2030 00:00:00 GMT"),
    ("If-Unmodified-Since", "Tue, 01 Jan 2019 00:00:00 GMT")],
    ids=lambda pair: pair[0])
def test_a_condition_does_not_decide_what_an_operation_answers(
        make_gateway, app, condition):
    # C02: the app has run, whatever the client already has.
    gateway = make_gateway(start=False, locations=guard() + """
        location /files/ { internal; alias @FOLDER@/; }""")
    (gateway.folder / "digits").write_text("0123456789")
    gateway.start()
    key = new_key()
    for number in range(2):
        answer = gateway.post(key, headers=[condition, *tell(
            status=200, headers=[["X-Accel-Redirect", "/files/digits"]]
        ).items()])
        assert (answer.status, answer.body) == (200, b"0123456789")
        assert answer.replayed == (number > 0)
        assert answer.header("Last-Modified", "").endswith(" GMT")
    assert app.count() == 1


def test_static_content_behind_a_guard_is_harmless(make_gateway, app):
    gateway = make_gateway(start=False, locations=guard(
        "/", to="root @FOLDER@;") + guard("/gif", to="empty_gif;")
        + guard("/ret", to="return 202 done;"))
    (gateway.folder / "page").write_text("hello")
    gateway.start()
    for path in ("/page", "/gif", "/none"):
        key = new_key()
        first = gateway.post(key, path=path)
        assert first.status in (404, 405)
        assert gateway.post(key, path=path).status == first.status
        assert gateway.request("GET", path, None).status in (200, 404)
    assert gateway.post(new_key(), path="/ret").body == b"done"


@pytest.mark.parametrize("size", [0, 10, 3000000])
def test_a_file_is_put_once(make_gateway, size):
    # C01: by dav_methods, which wants the body in a file.
    gateway = make_gateway(locations=guard(
        "/", "idempotency_methods PUT;", "client_max_body_size 10m;",
        to="root @FOLDER@/files; dav_methods PUT; create_full_put_path on;"))
    key, body = new_key(), b"x" * size
    path = gateway.folder / "files" / "a" / "b"

    def put(content):
        return gateway.request("PUT", "/a/b", content, key=key)
    first = put(body)
    assert first.status == 201 and path.read_bytes() == body
    path.unlink()
    again = put(body)
    assert (again.status, again.replayed) == (201, True)
    assert not path.exists() and put(body + b"y").status == 422
    left = gateway.request("PUT", "/c", body, key=new_key())
    assert left.status == 201
    # The last one goes with its request, just after the answer.
    until(lambda: not [each for each in
                       (gateway.folder / "client_body").rglob("*")
                       if each.is_file()])


# ---- other modules ----

def test_a_limit_of_requests_counts_before_a_claim(make_gateway, app):
    # C16
    gateway = make_gateway(
        http="limit_req_zone $http_x_api_key zone=z:1m rate=1r/m;",
        locations=guard("/", "limit_req zone=z;", "limit_req_status 429;"))
    key, other = new_key(), new_key()
    assert gateway.post(key).status == 201
    limited = gateway.post(other)
    assert limited.status == 429 and limited.problem is None
    assert gateway.record(other) is None and app.count() == 1


def test_a_mirrored_request_is_claimed_once(make_gateway, app):
    # C01
    gateway = make_gateway(
        server="idempotency required;" + TENANT,
        locations="""
            location / { mirror /mirror; proxy_pass http://@APP@; }
            location = /mirror { internal;
                                 proxy_pass http://@APP@/copy; }
        """)
    key = new_key()
    first = gateway.post(key, b"payload")
    assert first.status == 201
    app.wait_calls(2)
    assert sorted(call.target for call in app.calls) == ["/", "/copy"]
    assert gateway.post(key, b"payload").body == first.body
    assert [call.target for call in app.calls].count("/") == 1
    assert all(call.body == b"payload" for call in app.calls)


@pytest.mark.parametrize("after", ["@after", "/after"])
@pytest.mark.parametrize("to", ["root @FOLDER@;", "proxy_pass http://@APP@;"],
                         ids=["file", "app"])
def test_what_is_done_after_a_request_is_not_what_was_asked_for(
        make_gateway, faulty, app, after, to):
    # C41: a client leaves during the claim, and nginx goes on to post_action.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, start=False, locations=guard(
        "/", "post_action %s;" % after, "idempotency_timeout 30s;") + """
        location %s { proxy_set_header X-After yes; %s }""" % (after, to))
    (gateway.folder / "after").write_text("done")
    gateway.start()
    assert gateway.post("before").status == 201
    key = new_key()
    daemon.set_faults("hold before_reply")
    connection = gateway.leave(key=key)
    until(lambda: gateway.commands("claim") == 2)
    connection.reset()
    gateway.logged(key=key)
    daemon.set_faults()
    answer = gateway.settled(key)
    assert answer.status == 201 and not answer.replayed
    assert gateway.post(key).body == answer.body
    runs = [call for call in app.calls
            if call.key == key and call.header("X-After") is None]
    assert len(runs) == 1 and runs[0].header("Latchkey-Attempt") == "2"


def test_logs_may_name_an_operation_whose_answer_was_lost(make_gateway, app):
    # C13: each line by its own operation, also when another has begun.
    names = ("tenant", "scope", "reference", "token", "attempt")
    gateway = make_gateway(
        workers=1, http="log_format names '%s';" % " ".join(
            "$http_latchkey_" + name for name in names),
        server="access_log @FOLDER@/names names; "
               "add_header X-Tenant $http_latchkey_tenant always;",
        locations=guard("/", "idempotency_response_max 1k;"))
    lost = [dict(reset=True), dict(bytes=900, truncate=100),
            dict(garbage=True), dict(bytes=5000), dict(status=500)]
    expected = []
    for number in range(4 * len(lost)):
        tenant, path = "tenant-%d" % number, "/" + "p" * (number * 37)
        answer = gateway.post(new_key(), tenant=tenant, path=path,
                              headers=tell(**lost[number % len(lost)]))
        if "X-Tenant" in answer.headers:
            assert answer.header("X-Tenant") == tenant
        call = app.last
        expected.append(" ".join([tenant, "POST", path] + [
            call.header("Latchkey-" + name) for name in names[2:]]))
    file = gateway.folder / "names"
    until(lambda: len(file.read_text().splitlines()) == len(expected))
    assert file.read_text().splitlines() == expected


@pytest.mark.parametrize("mode", ["required", "observe"])
def test_a_connection_that_is_handed_over_is_handed_over_once(make_gateway,
                                                              app, mode):
    # C12: there is no answer that could be kept.
    gateway = make_gateway(locations=guard(
        "/", "proxy_http_version 1.1;",
        "proxy_set_header Connection $http_connection;",
        "proxy_set_header Upgrade $http_upgrade;", mode=mode))
    upgrade = dict(tell(status=101, body="hello", plain=True, headers=[
        ["Connection", "Upgrade"], ["Upgrade", "greeting"]]),
        Connection="Upgrade", Upgrade="greeting")
    key = new_key()
    for count in (1, 2) if mode == "observe" else (1,):
        connection = gateway.leave(key=key, headers=upgrade)
        _, status, _, headers = connection.head()
        assert status == 101 and headers.get("Upgrade") == "greeting"
        assert connection.stream.exactly(5) == b"hello"
        connection.close()
        gateway.wait_state(key, "completed")
    again = gateway.post(key)
    if mode == "observe":
        assert again.status == 201 and app.count() == 3
        gateway.logged(2, key=key, verdict="omitted")
    else:
        assert (again.status, again.problem) == (409, "answer-not-kept")
        assert app.count() == 1
        gateway.logged(key=key, verdict="new", outcome="omitted", status=101)


def test_an_answer_is_not_lost_while_the_gateway_reloads(make_gateway, app):
    # C40
    gateway = make_gateway(locations=guard("/", "idempotency_lock 2s;"))
    key = new_key()
    future = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    old = gateway.reload()
    assert gateway.post(key).problem == "in-progress"
    app.release("run")
    assert future.result().status == 201
    assert gateway.post(key).body == future.result().body
    until(lambda: not old & set(gateway.children()))
    assert app.count() == 1


def test_an_answer_is_not_lost_while_the_gateway_stops(make_gateway, app):
    # C40
    gateway = make_gateway()
    key = new_key()
    future = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    gateway.process.send_signal(3)
    until(lambda: not gateway.workers())
    app.release("run")
    assert future.result().status == 201
    assert gateway.wait() == 0
    gateway.start()
    assert gateway.post(key).body == future.result().body


def test_a_reload_under_load_loses_nothing_and_runs_nothing_twice(
        make_gateway, app):
    # C40
    gateway = make_gateway()
    stopped = threading.Event()
    bad = []
    keys = [[] for _ in range(4)]

    def work(mine):
        while not stopped.is_set():
            key = new_key()
            first, again = gateway.post(key), gateway.post(key)
            if (first.status, again.status) != (201, 201) or \
                    first.body != again.body:
                bad.append((first, again))
            mine.append(key)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in keys]
    for thread in threads:
        thread.start()
    for count in (1, 2, 3):
        until(lambda: min(map(len, keys)) > 10 * count)
        gateway.reload()
    stopped.set()
    for thread in threads:
        thread.join()
    assert not bad
    assert all(app.count(key) == 1 for mine in keys for key in mine)
