"""Requests that are accepted for later: 202, and where to ask."""

import re
import signal

import pytest

from support import stores
from support.app import tell
from support.gateway import guard
from support.later import HELD, later
from support.life import begin, new_key
from support.resp import fields

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PREFER = {"Prefer": "respond-async"}


@pytest.fixture
def make(folder, make_gateway):
    """A gateway; no courier takes what it accepts."""
    def build(*lines, daemon=None, **options):
        more = {"daemon": daemon} if daemon else {}
        return make_gateway(**later(folder, *lines, **options), **more)
    return build


@pytest.fixture
def gateway(make):
    return make()


def poll(gateway, reference, method="GET", **options):
    return gateway.request(method, "/operations/" + reference, **options)


def steady(answer):
    """All of it but the clock of the server."""
    return (answer.status, answer.reason, answer.body,
            [pair for pair in answer.headers if pair[0] != "Date"])


def jobs(gateway):
    """What the courier would find, whole."""
    with gateway.daemon.raw(user="operator") as raw:
        _, found = raw("JOBS", "WHOLE", "WHO", "test", "WHY",
                       "to compare")
    return [fields(job) for job in found]


def given(job):
    """The headers of a job as a dict."""
    return dict(line.split(": ", 1) for line in
                job["headers"].decode().splitlines())


# ---- 202 --------------------------------------------------------------------

def test_a_request_is_accepted_and_says_where_to_ask(gateway, app):
    # C31
    key = new_key()
    answer = gateway.post(key, b'{"amount":10}')
    assert (answer.status, answer.reason) == (202, "Accepted")
    assert answer.header("Location") == "/operations/" + answer.reference
    assert answer.header("Retry-After") == "1"
    assert answer.header("Content-Type") == "application/json"
    assert "Preference-Applied" not in answer.headers
    assert not answer.replayed
    assert answer.json() == {"reference": answer.reference,
                             "status": "accepted"}
    assert app.count() == 0 and gateway.state(key) == "accepted"
    entry, = gateway.logged(verdict="accepted", reference=answer.reference)
    assert entry["tenant"] == "acme"


def test_a_retry_gets_the_same_answer(gateway, app):
    # C31
    key = new_key()
    first = gateway.post(key)
    for _ in range(3):
        assert steady(gateway.post(key)) == steady(first)
    assert app.count() == 0 and len(jobs(gateway)) == 1


def test_the_whole_request_is_kept(gateway):
    # C31
    key = new_key()
    gateway.request("POST", "/a%20b/../c?x=1&y=%2F", b"body\0\xff", key=key,
                    headers={"Content-Type": "text/plain"})
    job, = jobs(gateway)
    assert (job["method"], job["path"]) == (b"POST", b"/a%20b/../c?x=1&y=%2F")
    assert job["body"] == b"body\0\xff" and job["target"] == b"@gateway"
    assert given(job)["Content-Type"] == "text/plain"


@pytest.mark.parametrize("size", [0, 1, 1024, 100000, 1048576])
def test_a_body_of_any_size_up_to_the_limit_is_kept(make, size):
    # In memory or in a file, with a length or in chunks.
    gateway = make("client_max_body_size 8m;", "client_body_buffer_size 8k;")
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for chunked in (False, True):
        key = new_key()
        answer = gateway.post(key, body, chunked=chunked)
        assert answer.status == 202
        assert jobs(gateway)[-1]["body"] == body


def test_a_larger_body_is_refused_and_nothing_is_accepted(make, app):
    # C31
    gateway = make("idempotency_async_body 1000;",
                   "client_body_buffer_size 1k;")
    for chunked in (False, True):
        key = new_key()
        answer = gateway.post(key, b"x" * 1001, chunked=chunked)
        assert (answer.status, answer.problem) == (413, "too-large")
        assert gateway.record(key) is None
        assert gateway.post(key, b"x" * 1000).status == 202
    assert app.count() == 0
    gateway.logged(2, verdict="too_large")


def test_a_retry_is_not_refused_for_its_size(make, app):
    # The first one was run at once: it did not ask for more.
    gateway = make("idempotency_async_body 1000;", mode="prefer")
    key = new_key()
    first = gateway.post(key, b"x" * 1001)
    assert first.status == 201
    again = gateway.post(key, b"x" * 1001, headers=PREFER)
    assert again.replayed and again.body == first.body


def test_a_limit_of_the_daemon_counts_too(make, make_daemon, app):
    gateway = make(daemon=make_daemon(
        settings=[*HELD, "courier.request_bytes=1k"]))
    key = new_key()
    answer = gateway.post(key, b"x" * 1025)
    assert (answer.status, answer.problem) == (413, "too-large")
    gateway.wait_for_log("idempotency_async: .*courier.request_bytes")
    assert gateway.record(key) is None and app.count() == 0


def test_headers_go_by_an_allow_list(gateway):
    # C31, C41: credentials are not stored.
    key = new_key()
    sent = {
        "Content-Type": "application/json", "Content-Encoding": "identity",
        "Content-Language": "de", "Accept": "text/plain",
        "Accept-Language": "de", "User-Agent": "test/1",
        "traceparent": "00-a-b-01", "tracestate": "a=b",
        "X-Request-Id": "r1", "X-Account": "7", "Host": "api.example:8080",
        "Authorization": "Bearer secret", "Cookie": "session=secret",
        "X-Other": "x", "Accept-Encoding": "gzip", "Forwarded": "for=me",
        "Connection": "keep-alive", "TE": "trailers",
        "Latchkey-Tenant": "globex", "Latchkey_Token": "1",
    }
    assert gateway.post(key, headers=sent).status == 202
    job, = jobs(gateway)
    kept = {name.lower(): value for name, value in given(job).items()}
    assert kept == {
        "content-type": "application/json", "content-encoding": "identity",
        "content-language": "de", "accept": "text/plain",
        "accept-language": "de", "user-agent": "test/1",
        "traceparent": "00-a-b-01", "tracestate": "a=b",
        "x-request-id": "r1", "x-account": "7", "host": "api.example:8080",
        "idempotency-key": key,
    }


def test_a_route_names_more_headers_even_credentials(make):
    gateway = make(route=[], locations=guard(
        "/more", "idempotency_async always;",
        "idempotency_async_location https://api.example/ops/;",
        "idempotency_async_headers Authorization X-Other;"))
    answer = gateway.post(new_key(), path="/more", headers={
        "Authorization": "Bearer x", "X-Other": "1", "X-Account": "7"})
    assert answer.header("Location") == ("https://api.example/ops/"
                                         + answer.reference)
    kept = given(jobs(gateway)[0])
    assert kept["Authorization"] == "Bearer x" and kept["X-Other"] == "1"
    assert "X-Account" not in kept


def test_the_place_to_ask_and_when_are_configured(make):
    gateway = make(route=["idempotency_async_retry 90s;"])
    assert gateway.post(new_key()).header("Retry-After") == "90"


def test_add_header_always_applies(make):
    gateway = make(route=["add_header X-Cors yes always;"])
    answer = gateway.post(new_key())
    assert answer.status == 202 and answer.header("X-Cors") == "yes"


def test_http_2_brings_its_host(folder, make_gateway):
    gateway = make_gateway(h2=True, **later(folder))
    answer = gateway.curl("-d", "{}", "-H", "Idempotency-Key: k", "-H",
                          "X-API-Key: acme", h2=True)
    assert answer.stdout.startswith(b"HTTP/2 202")
    kept = {name.lower(): value for name, value in
            given(jobs(gateway)[0]).items()}
    assert kept["host"] == "localhost:%d" % gateway.h2_port


def test_methods_that_are_guarded_are_accepted(make):
    gateway = make("idempotency_methods POST PUT DELETE;",
                   "proxy_next_upstream off;")
    for method in ("POST", "PUT", "DELETE"):
        assert gateway.request(method, "/", b"{}",
                               key=new_key()).status == 202
    assert {job["method"] for job in jobs(gateway)} == {b"POST", b"PUT",
                                                        b"DELETE"}


# ---- the wish ---------------------------------------------------------------

@pytest.mark.parametrize("value", [
    "respond-async", "Respond-Async", "RESPOND-ASYNC", "respond-async, wait=10",
    "wait=10,respond-async", "return=minimal ,  respond-async",
    "respond-async; x=1", 'foo="a, b"; bar, respond-async',
    'foo="a \\" , b", respond-async', ",, respond-async ,", "respond-async=",
    ["return=minimal", "respond-async"], ["respond-async", "wait=5"],
], ids=str)
def test_a_client_prefers_an_answer_later(make, app, value):
    # C31
    gateway = make(mode="prefer")
    values = value if isinstance(value, list) else [value]
    answer = gateway.post(new_key(), headers=[("Prefer", one)
                                              for one in values])
    assert answer.status == 202
    assert answer.header("Preference-Applied") == "respond-async"
    assert app.count() == 0


@pytest.mark.parametrize("value", [
    None, "", "wait=10", "return=respond-async", "respond-asynchronous",
    "x-respond-async", 'foo="respond-async"', 'foo="a, respond-async"',
    'foo="\\", respond-async"', 'foo="a, respond-async, b"',
    "foo; respond-async", "respond async",
], ids=str)
def test_a_client_that_does_not_ask_for_it_is_served_at_once(make, app, value):
    gateway = make(mode="prefer")
    answer = gateway.post(new_key(),
                          headers={} if value is None else {"Prefer": value})
    assert answer.status == 201 and app.count() == 1
    assert "Preference-Applied" not in answer.headers


def test_what_was_obeyed_is_not_passed_on(gateway):
    # The rest of the wishes is for the app.
    gateway.post(new_key(), headers=[
        ("Prefer", 'respond-async, return=minimal, wait=10, foo="a, b"; c'),
        ("Prefer", "respond-async")])
    job, = jobs(gateway)
    assert re.findall(r"(?mi)^prefer: (.*)\r$", job["headers"].decode()) == [
        'return=minimal, foo="a, b"; c']


def test_off_ignores_the_wish(make, app):
    gateway = make(mode="off")
    assert gateway.post(new_key(), headers=PREFER).status == 201
    assert app.count() == 1 and jobs(gateway) == []


def test_a_request_without_a_key_passes_where_it_may(make, app):
    gateway = make(guarded="optional")
    assert gateway.post().status == 201 and app.count() == 1
    assert gateway.post(new_key()).status == 202


def test_a_request_without_a_key_is_refused_where_it_must_have_one(gateway,
                                                                   app):
    assert gateway.post().problem == "key-missing" and app.count() == 0


def test_a_read_is_served_at_once(gateway, app):
    assert gateway.request("GET", "/", None, headers=PREFER).status == 201
    assert app.count() == 1


def test_an_observer_counts_what_it_would_have_accepted(make, app):
    gateway = make(guarded="observe")
    key = new_key()
    answer = gateway.post(key, headers=PREFER)
    assert answer.status == 201 and app.count() == 1
    assert "Preference-Applied" not in answer.headers
    gateway.wait_for_log("observe: would not have run it now: accepted")
    gateway.logged(verdict="accepted", outcome="kept")
    gateway.wait_state(key, "completed")
    assert jobs(gateway) == []
    assert gateway.post(key).status == 201 and app.count() == 2
    gateway.logged(verdict="replay")


# ---- other verdicts ---------------------------------------------------------

def test_the_same_key_for_another_request_is_refused(gateway, app):
    # C09
    key = new_key()
    gateway.post(key, b"1")
    assert gateway.post(key, b"2").problem == "key-reused"
    assert len(jobs(gateway)) == 1


def test_a_retry_without_the_wish_gets_202_too(make, app):
    # C31
    gateway = make(mode="prefer")
    key = new_key()
    first = gateway.post(key, headers=PREFER)
    again = gateway.post(key)
    assert again.status == 202 and again.reference == first.reference
    assert again.header("Location") == first.header("Location")
    assert "Preference-Applied" not in again.headers
    assert app.count() == 0
    gateway.logged(2, verdict="accepted")


def test_a_wish_while_the_first_request_runs_is_told_so(make, app):
    gateway = make(mode="prefer")
    key = new_key()
    running = gateway.later("POST", "/", b"{}", key=key,
                            headers=tell(hold="it"))
    app.wait_held("it")
    answer = gateway.post(key, headers=PREFER)
    assert (answer.status, answer.problem) == (409, "in-progress")
    app.release("it")
    first = running.result()
    again = gateway.post(key, headers=PREFER)
    assert again.replayed and again.body == first.body
    assert jobs(gateway) == []


def test_a_wish_may_wait_for_the_first_request(make, app):
    gateway = make("idempotency_wait 20s;", mode="prefer")
    key = new_key()
    running = gateway.later("POST", "/", b"{}", key=key,
                            headers=tell(hold="it"))
    app.wait_held("it")
    waiting = gateway.later("POST", "/", b"{}", key=key, headers=PREFER)
    app.release("it")
    assert waiting.result().body == running.result().body
    assert waiting.result().replayed


def test_what_is_uncertain_or_omitted_stays_so(make, app):
    gateway = make("idempotency_response_max 1k;", mode="prefer")
    key = new_key()
    gateway.post(key, headers=tell(close=True))
    assert gateway.post(key, headers=PREFER).problem == "outcome-unknown"
    key = new_key()
    gateway.post(key, headers=tell(bytes=2000))
    assert gateway.post(key, headers=PREFER).problem == "answer-not-kept"
    assert jobs(gateway) == []


def test_what_is_too_old_is_not_accepted(make):
    gateway = make("idempotency_max_age $http_x_time 1h;")
    key = new_key()
    answer = gateway.post(key, headers={"X-Time": "1000000000"})
    assert (answer.status, answer.problem) == (400, "too-old")
    assert gateway.record(key) is None


# ---- without a daemon -------------------------------------------------------

def test_without_a_daemon_nothing_is_accepted(make, app):
    # C31: fail closed
    gateway = make("idempotency_connect_timeout 100ms;")
    gateway.post(new_key())
    gateway.daemon.kill()
    answer = gateway.post(new_key())
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert answer.header("Retry-After") and app.count() == 0


def test_nothing_is_accepted_that_nobody_will_deliver(make, make_daemon, app):
    # C31: 202 for ever would be a lie.
    gateway = make(daemon=make_daemon())
    key = new_key()
    answer = gateway.post(key)
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert gateway.state(key) is None and app.count() == 0
    gateway.wait_for_log("courier.gateway is not set")


def test_a_store_that_keeps_no_jobs_accepts_nothing(make, make_daemon,
                                                    redis_server, app):
    # C31: what may be forgotten must not be promised.
    gateway = make(daemon=make_daemon(
        url=redis_server.url(), settings=["store.prefix="
                                          + stores.make_prefix()]))
    key = new_key()
    answer = gateway.post(key)
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert app.count() == 0 and gateway.record(key) is None
    line = gateway.wait_for_log("idempotency_async: ")
    assert "[error]" in line and "Redis" in line and "PostgreSQL" in line


def test_an_accepted_request_survives_a_crash(make, app):
    # C31
    gateway = make()
    key = new_key()
    first = gateway.post(key, b"1")
    gateway.daemon.kill()
    gateway.daemon.start()
    assert steady(gateway.settled(key, b"1")) == steady(first)
    assert len(jobs(gateway)) == 1 and app.count() == 0


def test_a_reply_that_was_lost_is_asked_for_again(make, faulty, app):
    # C31: ACCEPT may be repeated.
    gateway = make(daemon=faulty(settings=HELD))
    key = new_key()
    gateway.daemon.set_faults("kill before_reply")
    waiting = gateway.later("POST", "/", b"{}", key=key)
    gateway.daemon.wait()
    gateway.daemon.set_faults()
    gateway.daemon.start()
    answer = waiting.result()
    assert answer.status in (202, 503)
    assert gateway.settled(key).status == 202
    assert len(jobs(gateway)) == 1 and app.count() == 0


def test_a_client_that_leaves_wedges_nothing(make, app):
    gateway = make()
    gateway.daemon.signal(signal.SIGSTOP)
    key = new_key()
    gateway.leave(key=key).reset()
    gateway.logged(status=499)
    gateway.daemon.signal(signal.SIGCONT)
    assert gateway.settled(key).status == 202
    assert len(jobs(gateway)) == 1 and app.count() == 0


# ---- asking -----------------------------------------------------------------

def test_asking_tells_how_far_it_has_come(gateway):
    # C31
    accepted = gateway.post(new_key())
    answer = gateway.request("GET", accepted.header("Location"))
    assert answer.status == 202
    assert answer.header("Retry-After") == "1"
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Content-Type") == "application/json"
    assert answer.reference == accepted.reference
    told = answer.json()
    assert TIME.fullmatch(told.pop("accepted_at"))
    assert told == {"reference": accepted.reference, "status": "accepted",
                    "attempts": 0}


def test_what_runs_and_what_has_run_can_be_asked_for(make, app):
    gateway = make(mode="prefer")
    key = new_key()
    with gateway.daemon.raw() as raw:
        token = begin(raw, key, scope="POST /")
        reference = gateway.record(key)["reference"].decode()
        told = poll(gateway, reference).json()
        assert TIME.fullmatch(told.pop("accepted_at"))
        assert told == {"reference": reference, "status": "running",
                        "attempts": 1}
        raw("COMPLETE", "acme", "POST /", key, token, 402,
            "Content-Type: text/plain\r\nSet-Cookie: a=b\r\n"
            "Cache-Control: public, max-age=60\r\n", "no money")
    answer = poll(gateway, reference)
    assert (answer.status, answer.body) == (402, b"no money")
    assert answer.replayed and answer.reference == reference
    assert answer.header("Idempotency-Expires")
    assert answer.header("Content-Type") == "text/plain"
    assert "Set-Cookie" not in answer.headers
    assert answer.header("Cache-Control") == "no-store"
    head = poll(gateway, reference, "HEAD")
    assert (head.status, head.body) == (402, b"")
    assert head.header("Content-Length") == "8"


def test_an_end_without_an_answer_is_told(make, app):
    # C27
    gateway = make("idempotency_response_max 1k;", mode="prefer")
    key = new_key()
    gateway.post(key, headers=tell(close=True))
    reference = gateway.record(key)["reference"].decode()
    answer = poll(gateway, reference)
    assert (answer.status, answer.problem) == (409, "outcome-unknown")
    assert answer.reference == reference
    omitted = gateway.post(new_key(), headers=tell(bytes=2000))
    answer = poll(gateway, omitted.reference)
    assert (answer.status, answer.problem) == (409, "answer-not-kept")
    assert answer.json()["original-status"] == 201
    released = gateway.post(new_key(), headers=tell(status=500))
    answer = poll(gateway, released.reference)
    assert (answer.status, answer.problem) == (404, "not-found")
    assert "given up" in answer.json()["detail"]


def test_another_tenant_finds_nothing(gateway):
    # C13, C18: not even that it is there.
    mine = gateway.post(new_key()).header("Location")
    other = gateway.request("GET", mine, tenant="globex")
    nothing = gateway.request("GET", "/operations/0000-0000-0000")
    nonsense = gateway.request("GET", "/operations/nonsense")
    assert other.problem == "not-found" and other.status == 404
    assert steady(other) == steady(nothing) == steady(nonsense)
    assert gateway.request("GET", mine, tenant=None).problem == (
        "tenant-missing")
    assert gateway.request("GET", mine).status == 202


@pytest.mark.parametrize("path", ["", "x/y/", "?reference=%s", "%s/", "%s/x"])
def test_only_a_reference_is_found(gateway, path):
    reference = gateway.post(new_key()).reference
    path = "/operations/" + (path % reference if "%" in path else path)
    assert gateway.request("GET", path).problem == "not-found"


def test_a_reference_may_be_written_as_people_do(gateway):
    reference = gateway.post(new_key()).reference
    assert poll(gateway, reference.lower().replace("-", "")).status == 202


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_asking_is_all_that_can_be_done(gateway, method):
    reference = gateway.post(new_key()).reference
    answer = poll(gateway, reference, method, body=b"x", key=new_key())
    assert answer.status == 405
    assert answer.header("Allow") == "GET, HEAD"


def test_asking_too_often_is_refused(make):
    # C18
    gateway = make(operations="rate=1r/m burst=2")
    reference = gateway.post(new_key()).reference
    answers = [poll(gateway, reference) for _ in range(3)]
    assert [answer.status for answer in answers] == [202, 202, 429]
    assert answers[2].header("Retry-After")
    assert poll(gateway, reference, tenant="globex").status == 404


def test_asking_without_a_daemon_says_so(make):
    gateway = make()
    reference = gateway.post(new_key()).reference
    gateway.daemon.kill()
    answer = poll(gateway, reference)
    assert (answer.status, answer.problem) == (503, "unavailable")


def test_accepted_requests_are_counted(make):
    gateway = make(locations="location = /count { idempotency_counters; }")
    key = new_key()
    gateway.post(key)
    gateway.post(key)
    gateway.logged(2, verdict="accepted")
    text = gateway.request("GET", "/count?format=prometheus").body.decode()
    assert re.search(r'verdict="accepted"[^}]*} 2', text), text
    assert 'verdict="too_large"' in text
