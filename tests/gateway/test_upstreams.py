"""Every kind of upstream is guarded in the same way."""

import pytest

from support.app import pattern, tell
from support.gateway import guard, params
from support.life import new_key

KEEPALIVE = """
upstream app { server @APP@; keepalive 8; }
upstream fcgi { server @FASTCGI@; keepalive 8; }
"""
SMALL = ("proxy_buffer_size 1k;", "proxy_buffers 2 1k;",
         "proxy_busy_buffers_size 1k;")
PROXY = {
    "http/1.0": [],
    "http/1.1": ["proxy_http_version 1.1;"],
    "unbuffered": ["proxy_buffering off;", "proxy_http_version 1.1;"],
    "small buffers": [*SMALL, "proxy_max_temp_file_size 0;"],
    "temporary files": [*SMALL, "proxy_temp_file_write_size 4k;",
                        "sendfile on;", "proxy_http_version 1.1;"],
    "request unbuffered": ["proxy_request_buffering off;",
                           "proxy_http_version 1.1;"],
    "threads": [*SMALL, "proxy_temp_file_write_size 4k;", "aio threads;",
                "aio_write on;"],
}
CGI = {
    "fastcgi": ("fastcgi", []),
    "fastcgi unbuffered": ("fastcgi", ["fastcgi_buffering off;"]),
    "scgi": ("scgi", []),
    "scgi unbuffered": ("scgi", ["scgi_buffering off;"]),
    "uwsgi": ("uwsgi", []),
    "uwsgi unbuffered": ("uwsgi", ["uwsgi_buffering off;"]),
}


def location(kind):
    if kind == "keepalive":
        return guard("/", "proxy_http_version 1.1;",
                     'proxy_set_header Connection "";',
                     to="proxy_pass http://app;")
    if kind == "fastcgi kept":
        return guard("/", params("fastcgi"), "fastcgi_keep_conn on;",
                     to="fastcgi_pass fcgi;")
    if kind in PROXY:
        return guard("/", *PROXY[kind])
    protocol, lines = CGI[kind]
    return guard("/", params(protocol), *lines, to="%s_pass @%s@;" % (
        protocol, protocol.upper()))


KINDS = [*PROXY, "keepalive", "fastcgi kept", *CGI]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def any_gateway(make_gateway, kind):
    return make_gateway(
        http=KEEPALIVE + "client_max_body_size 20m;",
        locations=location(kind))


def test_answers_of_every_form_are_kept_and_replayed(any_gateway, app, kind):
    # C02, C08
    manners = [{}, {"bytes": 900000}, {"body": ""}, {"status": 204},
               {"status": 402, "bytes": 5000}, {"bytes": 70000, "plain": True},
               {"status": 302, "headers": [["Location", "http://x/y"]]}]
    if "cgi" not in kind:
        manners.append({"bytes": 300000, "chunked": True})
    for count, manner in enumerate(manners, 1):
        key = new_key()
        first = any_gateway.post(key, headers=tell(**manner))
        assert first.status == manner.get("status", 201), manner
        if "bytes" in manner:
            assert first.body == pattern(manner["bytes"]), manner
        again = any_gateway.post(key)
        assert again.replayed and again.status == first.status
        assert again.body == first.body, manner
        assert again.header("Location") == first.header("Location")
        assert app.count() == count


def test_the_app_gets_the_request_as_it_was_sent(any_gateway, app):
    # C02
    for size in (0, 1, 5000, 3000000):
        key = new_key()
        body = pattern(size)
        first = any_gateway.post(key, body, "/p?q=1", headers={
            "Content-Type": "application/octet-stream"})
        assert first.status == 201
        call = app.last
        assert (call.method, call.target) == ("POST", "/p?q=1")
        assert call.length == size
        assert call.body == body[:1 << 20]
        assert call.header("Idempotency-Key") == key
        assert call.header("Latchkey-Tenant") == "acme"
        assert call.header("Latchkey-Scope") == "POST /p"
        assert call.header("Latchkey-Reference") == first.reference
        record = any_gateway.record(key, scope="POST /p")
        assert call.header("Latchkey-Token") == str(record["token"])
        assert any_gateway.post(key, body, "/p?q=1", headers={
            "Content-Type": "application/octet-stream"}).replayed
    assert app.count() == 4


CUTS = [{"close": True}, {"reset": True}, {"bytes": 5000, "truncate": 100},
        {"bytes": 5000, "truncate": 0}, {"bytes": 500000, "truncate": 499999},
        {"bytes": 5000, "reset_body": 100}]


def test_a_lost_answer_leaves_the_outcome_open(any_gateway, app):
    # C21
    for count, manner in enumerate(CUTS, 1):
        key = new_key()
        first = any_gateway.post(key, headers=tell(**manner))
        assert first.status in (502, 503) or not first.complete, manner
        again = any_gateway.post(key)
        assert again.problem == "outcome-unknown", manner
        assert app.count() == count, manner


def test_errors_of_the_app_release_or_leave_open(any_gateway, app):
    # C09
    key = new_key()
    assert any_gateway.post(key, headers=tell(status=500)).status == 500
    assert any_gateway.post(key).status == 201
    key = new_key()
    assert any_gateway.post(key, headers=tell(status=504)).status == 504
    assert any_gateway.post(key).problem == "outcome-unknown"


def test_an_app_out_of_reach_releases_the_key(any_gateway, app):
    # C21
    key = new_key()
    app.stop()
    assert any_gateway.post(key).status == 502
    assert any_gateway.state(key) == "released"
    app.start()
    assert any_gateway.post(key).status == 201
    assert app.count() == 1


def test_a_client_that_leaves_does_not_stop_the_app(any_gateway, app):
    # C11
    for manner in ({"hold": "one"}, {"hold_body": "two", "bytes": 50000}):
        key = new_key()
        name = manner.get("hold") or manner["hold_body"]
        connection = any_gateway.leave(key=key, headers=tell(**manner))
        app.wait_held(name)
        connection.reset()
        assert any_gateway.post(key).problem == "in-progress"
        app.release(name)
        answer = any_gateway.settled(key)
        assert answer.replayed and answer.status == 201
        assert len(answer.body) == manner.get("bytes", len(answer.body))
    assert app.count() == 2


def test_a_fastcgi_answer_without_its_end_leaves_the_outcome_open(
        make_gateway, app):
    # C21: without a length only the end of the request tells a whole answer
    # from a part of one.
    gateway = make_gateway(http=KEEPALIVE, locations=location("fastcgi"))
    key = new_key()
    first = gateway.post(key, headers=tell(bytes=5000, truncate=100,
                                           plain=True))
    assert first.status == 502 or not first.complete
    assert gateway.post(key).problem == "outcome-unknown"
    assert app.count() == 1


def test_a_fastcgi_answer_of_its_full_length_is_whole_without_its_end(
        make_gateway, app):
    # C02
    gateway = make_gateway(http=KEEPALIVE, locations=location("fastcgi"))
    key = new_key()
    first = gateway.post(key, headers=tell(bytes=5000, truncate=5000))
    assert first.status == 201 and len(first.body) == 5000
    again = gateway.post(key)
    assert again.replayed and again.body == first.body
    assert app.count() == 1


def test_a_connection_that_is_kept_is_used_again(make_gateway, app):
    # C02
    gateway = make_gateway(workers=1, http=KEEPALIVE,
                           locations=location("keepalive"))
    for _ in range(20):
        key = new_key()
        assert gateway.post(key).status == 201
        assert gateway.post(key).replayed
    assert app.count() == 20


def test_a_kept_connection_that_the_app_closed_is_not_a_run(make_gateway,
                                                            app):
    # C21: whatever nginx makes of it, the app must not run twice.
    gateway = make_gateway(workers=1, http=KEEPALIVE,
                           locations=location("keepalive"))
    for _ in range(5):
        key = new_key()
        assert gateway.post(new_key()).status == 201
        app.stop()
        app.start()
        first = gateway.post(key)
        again = gateway.post(key)
        assert app.count(key) == 1 or again.problem == "outcome-unknown"
        assert first.status in (201, 502)


def test_an_app_that_answers_before_it_reads_the_body(any_gateway, app):
    # C02
    key = new_key()
    first = any_gateway.post(key, b"x" * 100000,
                             headers=tell(early=True, status=402))
    assert first.status == 402
    again = any_gateway.post(key, b"x" * 100000)
    assert again.replayed and again.body == first.body and app.count() == 1
