"""Beside nginx's other modules and within its redirects."""

import gzip
import threading

import pytest

from support.app import pattern, tell
from support.gateway import guard
from support.life import new_key, until

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
