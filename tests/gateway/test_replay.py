"""One request runs, and every retry gets what it got."""

import collections
import email.utils
import threading
import time

import pytest

from support.app import pattern, tell
from support.gateway import guard
from support.life import new_key, until

LISTED = [("Content-Type", "text/x-thing; charset=utf-8"),
          ("Content-Language", "fr"), ("Content-Disposition", "inline"),
          ("Location", "/things/7"), ("ETag", '"v7"'),
          ("Last-Modified", "Tue, 01 Jan 2019 00:00:00 GMT"),
          ("Link", "</a>; rel=next"), ("Link", "</b>; rel=prev"),
          ("Cache-Control", "no-store"), ("Vary", "Accept"),
          ("Access-Control-Allow-Origin", "*"),
          ("Content-Location", "/things/7.json"),
          ("Content-Range", "bytes 0-0/7"), ("Allow", "GET, HEAD"),
          ("Accept-Post", "text/plain"), ("Accept-Patch", "text/plain"),
          ("Retry-After", "7"), ("Preference-Applied", "respond-async"),
          ("Content-Digest", "sha-256=:AA==:"),
          ("Repr-Digest", "sha-256=:AA==:"),
          ("Expires", "Tue, 01 Jan 2019 00:00:00 GMT"),
          ("Content-Security-Policy", "default-src 'none'"),
          ("X-Content-Type-Options", "nosniff")]
UNLISTED = [("Set-Cookie", "session=1"), ("Set-Cookie", "other=2"),
            ("X-Request-Id", "r-1"), ("X-RateLimit-Remaining", "3"),
            ("X-Thing", "7"), ("Keep-Alive", "timeout=3"),
            ("Proxy-Authenticate", "Basic"), ("WWW-Authenticate", "Basic"),
            ("Date", "Tue, 01 Jan 2019 00:00:00 GMT"),
            ("Server", "app/1")]


def together(count, work):
    """Runs work(i) in so many threads at the same moment; the results."""
    results = [None] * count
    barrier = threading.Barrier(count)

    def run(i):
        barrier.wait()
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def seconds(date):
    return email.utils.parsedate_to_datetime(date).timestamp()


def expiry(response):
    return seconds(response.header("Idempotency-Expires"))


def ask_200(gateways, key, app):
    """200 equal requests; the app answers when it was called."""
    def ask(i):
        return gateways[i % len(gateways)].post(key,
                                                headers=tell(hold="start"))

    def answer():
        app.wait_held("start")
        app.release("start")

    threading.Thread(target=answer).start()
    return together(200, ask)


def test_of_two_hundred_waiting_requests_one_runs_and_all_get_its_bytes(
        make_gateway, app):
    # C01, C07
    gateway = make_gateway(workers=3, reuseport=True, locations=guard(
        "/", "idempotency_wait 30s;"))
    key = new_key()
    answers = ask_200([gateway], key, app)
    assert app.count() == 1
    assert collections.Counter(a.status for a in answers) == {201: 200}
    assert len({a.body for a in answers}) == 1
    assert len({a.reference for a in answers}) == 1
    assert sum(a.replayed for a in answers) == 199
    log = gateway.logged(200, key=key)
    assert len({entry["pid"] for entry in log}) > 1
    verdicts = collections.Counter(entry["verdict"] for entry in log)
    assert verdicts == {"new": 1, "replay": 199}


def test_of_two_hundred_impatient_requests_at_two_gateways_one_runs(
        make_gateway, app):
    # C01
    gateways = [make_gateway(reuseport=True), make_gateway(reuseport=True)]
    key = new_key()
    answers = ask_200(gateways, key, app)
    assert app.count() == 1
    final = [a for a in answers if a.status == 201]
    others = [a for a in answers if a.status != 201]
    assert final and {a.body for a in final} == {final[0].body}
    assert all(a.problem == "in-progress" for a in others)
    assert all(int(a.header("Retry-After")) >= 1 for a in others)
    for gateway in gateways:
        again = gateway.post(key)
        assert again.replayed and again.body == final[0].body


def test_a_header_with_a_control_character_is_not_stored(gateway, app):
    """The answer is, whatever an app writes into a header."""
    app.manner = {"status": 201, "body": "done", "headers": [
        ["Location", "/a\x01b"], ["ETag", '"7"']]}
    key = new_key()
    first, again = gateway.post(key), gateway.post(key)
    assert first.header("Location") == "/a\x01b"
    assert (again.status, again.body) == (201, b"done")
    assert again.header("Idempotent-Replayed") == "true"
    assert again.header("ETag") == '"7"' and "Location" not in again.headers
    assert app.count() == 1


@pytest.mark.parametrize("manner", [
    {}, {"body": ""}, {"bytes": 70000}, {"bytes": 1000000},
    {"bytes": 256, "chunked": True}, {"bytes": 1000000, "chunked": True},
    {"bytes": 300, "plain": True},
    {"bytes": 300, "http10": True}, {"body": "", "chunked": True},
    {"status": 200}, {"status": 202}, {"status": 204}, {"status": 205},
    {"status": 303, "headers": [["Location", "http://x/y"]]},
    {"status": 304}, {"status": 404}, {"status": 402}, {"status": 409},
    {"status": 422, "body": "no"}, {"status": 499},
], ids=str)
def test_a_retry_gets_the_stored_answer_byte_for_byte(gateway, app, manner):
    # C02, C08
    key = new_key()
    first = gateway.post(key, headers=tell(**manner))
    assert first.status == manner.get("status", 201)
    if "bytes" in manner:
        assert first.body == pattern(manner["bytes"])
    for _ in range(2):
        again = gateway.post(key, headers=tell(status=200, body="other"))
        assert (again.status, again.body) == (first.status, first.body)
        assert again.complete and again.replayed and not first.replayed
        assert again.reference == first.reference
        assert again.header("Location") == first.header("Location")
        # The gateway's clock and the daemon's may stand either side of a
        # full second.
        assert abs(expiry(again) - expiry(first)) <= 1
    assert app.count() == 1
    assert gateway.logged(2, key=key, verdict="replay")
    (entry,) = gateway.logged(key=key, verdict="new")
    assert entry["outcome"] == "kept" and entry["attempt"] == "1"
    assert entry["reference"] == first.reference


def test_listed_headers_are_replayed_in_their_order_and_no_others(gateway):
    # C02, C17
    key = new_key()
    first = gateway.post(key, headers=tell(headers=LISTED + UNLISTED,
                                           body="x"))
    again = gateway.post(key)
    for name, value in LISTED:
        assert value in first.headers.all(name), name
        assert again.headers.all(name) == first.headers.all(name), name
    assert first.headers.all("Set-Cookie") == ["session=1", "other=2"]
    for name in {name for name, _ in UNLISTED} - {"Date", "Server"}:
        assert name not in again.headers, name
    assert again.header("Date") != "Tue, 01 Jan 2019 00:00:00 GMT"
    assert again.header("Server") != "app/1"
    stored = gateway.record(key)["headers"]
    assert b"session=1" not in stored and b"X-Thing" not in stored
    # With its own framing: nothing twice, nothing of the hop.
    assert again.header("Content-Length") == "1"
    assert "Transfer-Encoding" not in again.headers


@pytest.mark.parametrize("status,name,value", [
    (405, "Allow", "GET"), (206, "Content-Range", "bytes 0-0/7"),
    (416, "Content-Range", "bytes */7"), (202, "Retry-After", "7"),
    (413, "Retry-After", "7"), (415, "Accept-Post", "text/plain"),
    (415, "Accept-Patch", "text/plain")])
def test_what_a_status_demands_is_replayed_with_it(gateway, status, name,
                                                   value):
    # C02
    key = new_key()
    for _ in range(2):
        answer = gateway.post(key, headers=tell(
            status=status, body="x", headers=[[name, value]]))
        assert answer.status == status and answer.body == b"x"
        assert answer.headers.all(name) == [value]


@pytest.mark.parametrize("line", [
    "expires 1h;", "expires off;", "expires epoch;", "gzip on; gzip_types *; "
    "gzip_min_length 1;", "sub_filter a b; sub_filter_types *;",
    "proxy_force_ranges on;", "add_header X-A b; etag off;"])
def test_headers_that_nginx_changes_are_changed_on_a_replay_too(make_gateway,
                                                                line):
    # C02: none is there twice, or only once.
    gateway = make_gateway(locations=guard("/", line))
    key = new_key()
    wants = {"Accept-Encoding": "gzip"}
    first, again = (gateway.post(key, headers=dict(wants, **tell(
        status=200, headers=LISTED + [("Cache-Control", "private")],
        bytes=500))) for _ in range(2))
    assert again.replayed and again.body == first.body
    own = {"idempotent-replayed", "date", "idempotency-expires", "expires"}
    names = {name.lower() for name, _ in [*first.headers, *again.headers]}
    for name in names - own:
        assert again.headers.all(name) == first.headers.all(name), name
    assert len(again.headers.all("Expires")) == len(
        first.headers.all("Expires"))


def test_a_route_may_add_to_the_replayed_headers(make_gateway):
    # C17
    gateway = make_gateway(locations=guard(
        "/", "idempotency_replay_headers X-Thing X-Other;"))
    key = new_key()
    gateway.post(key, headers=tell(headers=UNLISTED))
    again = gateway.post(key)
    assert again.header("X-Thing") == "7"
    assert "X-Request-Id" not in again.headers
    assert "Set-Cookie" not in again.headers


def test_a_compressed_answer_is_kept_as_it_came(gateway):
    # C02
    key = new_key()
    headers = [["Content-Encoding", "gzip"], ["Content-Type", "text/plain"]]
    first = gateway.post(key, headers=tell(bytes=999, headers=headers))
    again = gateway.post(key)
    assert again.header("Content-Encoding") == "gzip"
    assert again.body == first.body == pattern(999)


@pytest.mark.parametrize("name,value", [
    ("If-None-Match", '"v7"'), ("If-None-Match", "*"),
    ("If-Match", '"other"'), ("Range", "bytes=0-3"),
    ("If-Modified-Since", "Tue, 01 Jan 2019 00:00:00 GMT"),
    ("If-Unmodified-Since", "Mon, 01 Jan 2018 00:00:00 GMT")])
def test_conditions_and_ranges_do_not_change_a_replay(gateway, name, value):
    # C02
    key = new_key()
    gateway.post(key, headers=tell(status=200, headers=LISTED, bytes=500))
    again = gateway.post(key, headers={name: value})
    assert (again.status, again.body) == (200, pattern(500))
    assert again.replayed


@pytest.mark.parametrize("status", [401, 407, 408, 425, 429, 500, 501, 503,
                                    507, 599])
def test_answers_that_are_not_final_release_the_key(gateway, app, status):
    # C09
    key = new_key()
    first = gateway.post(key, headers=tell(status=status, body="later"))
    assert (first.status, first.body) == (status, b"later")
    assert "Idempotency-Expires" not in first.headers
    (entry,) = gateway.logged(key=key)
    assert entry["outcome"] == "released"
    second = gateway.post(key)
    assert second.status == 201 and not second.replayed
    assert second.reference == first.reference
    assert app.count() == 2
    assert app.last.header("Latchkey-Attempt") == "2"
    assert gateway.post(key).replayed


@pytest.mark.parametrize("status", [502, 504])
def test_a_bad_gateway_behind_the_app_leaves_the_outcome_open(gateway, app,
                                                              status):
    # C09
    key = new_key()
    first = gateway.post(key, headers=tell(status=status, body="behind"))
    assert (first.status, first.body) == (status, b"behind")
    assert first.reference
    again = gateway.post(key)
    assert (again.status, again.problem) == (409, "outcome-unknown")
    assert again.json()["reference"] == first.reference == again.reference
    assert app.count() == 1
    (entry,) = gateway.logged(key=key, verdict="new")
    assert entry["outcome"] == "doubted"
    gateway.logged(key=key, verdict="uncertain")


@pytest.mark.parametrize("keep,status,kept", [
    ("5xx", 500, True), ("5xx", 503, True), ("5xx", 599, True),
    ("5xx", 502, False), ("5xx", 504, False), ("5xx 502", 502, True),
    ("503", 503, True), ("503", 500, False), ("429", 429, True),
    ("default", 500, False)])
def test_a_route_may_keep_more(make_gateway, app, keep, status, kept):
    # C09
    gateway = make_gateway(locations=guard("/", "idempotency_keep %s;" % keep))
    key = new_key()
    first = gateway.post(key, headers=tell(status=status, body="e"))
    assert first.status == status
    again = gateway.post(key)
    assert again.replayed == kept
    if kept:
        assert (again.status, again.body) == (status, b"e")
        assert app.count() == 1


def test_an_answer_lives_for_its_ttl_and_says_until_when(make_gateway, app):
    # C10
    gateway = make_gateway(locations=guard("/", "idempotency_ttl 2s;"))
    key = new_key()
    future = gateway.later(key=key, body=b"{}", headers=tell(hold="long"))
    app.wait_held("long")
    claimed = gateway.record(key)["claimed-ms"]
    # Longer than the TTL: it must be counted from the end.
    until(lambda: time.time() * 1000 > claimed + 2200)
    app.release("long")
    first = future.result()
    expires = expiry(first)
    assert expires * 1000 > claimed + 3100
    assert expires - seconds(first.header("Date")) in (1, 2, 3)
    again = gateway.post(key)
    assert again.replayed
    assert abs(expiry(again) - expires) <= 1
    fresh = until(lambda: (a := gateway.post(key)) and not a.replayed and a)
    assert fresh.status == 201 and app.count() == 2


def test_without_a_setting_answers_are_kept_for_a_day(gateway):
    # C10
    first = gateway.post(new_key())
    lifetime = expiry(first) - seconds(first.header("Date"))
    assert 86390 < lifetime < 86410


@pytest.mark.parametrize("lines,manner", [
    ("idempotency_response_max 16k;", {"bytes": 16385}),
    ("idempotency_response_max 16k;", {"bytes": 3000000}),
    ("idempotency_response_max 16k;", {"bytes": 50000, "chunked": True}),
    ("idempotency_response_max 16k;", {"bytes": 50000, "plain": True}),
    ("idempotency_keep no_body;", {"bytes": 1}),
    ("idempotency_keep no_body;", {"bytes": 500000}),
], ids=str)
def test_what_is_not_kept_is_told_and_never_run_again(make_gateway, app,
                                                      lines, manner):
    # C12
    gateway = make_gateway(locations=guard("/", lines))
    key = new_key()
    first = gateway.post(key, headers=tell(status=202, **manner))
    assert first.status == 202 and first.body == pattern(manner["bytes"])
    again = gateway.settled(key)
    assert (again.status, again.problem) == (409, "answer-not-kept")
    document = again.json()
    assert document.get("original-status",
                        document.get("original_status")) == 202
    assert document["reference"] == first.reference
    assert not again.replayed and app.count() == 1
    assert gateway.logged(key=key, verdict="new")[0]["outcome"] == "omitted"
    gateway.logged(key=key, verdict="omitted")


def test_a_response_of_exactly_the_limit_is_kept(make_gateway):
    # C12
    gateway = make_gateway(locations=guard(
        "/", "idempotency_response_max 16k;"))
    key = new_key()
    gateway.post(key, headers=tell(bytes=16384))
    assert gateway.post(key).body == pattern(16384)


def test_a_response_of_unknown_length_is_kept_to_its_last_byte(make_gateway,
                                                               app):
    # C12: it is held in blocks, the first of 4096 bytes
    gateway = make_gateway(workers=1, locations=guard(
        "/", "proxy_http_version 1.1;", "idempotency_response_max 64k;"))
    sizes = (0, 1, 4095, 4096, 4097, 8192, 8193, 16384, 32769, 65535, 65536)
    for buffering in ("yes", "no"):
        for size in sizes:
            key = new_key()
            first = gateway.post(key, headers=tell(
                bytes=size, chunked=True,
                headers=[["X-Accel-Buffering", buffering]]))
            again = gateway.post(key)
            assert again.replayed
            assert first.body == again.body == pattern(size)
    assert app.count() == 2 * len(sizes)


@pytest.mark.parametrize("end", ["close", "reset", "shut"])
def test_a_client_that_leaves_finds_the_answer_when_it_comes_back(
        gateway, app, end):
    # C11
    key = new_key()
    connection = gateway.leave(key=key, headers=tell(hold="work"))
    app.wait_held("work")
    getattr(connection, end)()
    busy = gateway.post(key)
    assert busy.problem == "in-progress"
    app.release("work")
    answer = gateway.settled(key)
    assert answer.replayed and answer.json()["call"] == 1
    assert app.count() == 1
