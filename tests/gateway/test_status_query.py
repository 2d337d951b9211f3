"""What became of an operation: asked by its caller, and by nobody else."""

import re
import signal
import urllib.parse

import pytest

from support.app import tell
from support.gateway import check_config, guard
from support.life import claim, new_key, until

STATUS = """
location = /status {
    idempotency_tenant $http_x_api_key;
    idempotency_status %s;
}
"""
FAST = "rate=100000r/s burst=10000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SECRET = "sensitive-body-of-the-answer"


def places(options=FAST, *lines):
    return guard("/", *lines) + STATUS % options


@pytest.fixture
def gateway(make_gateway):
    return make_gateway(locations=places())


def ask(gateway, method="GET", tenant="acme", path="/status", **query):
    return gateway.request(method, path + "?" + urllib.parse.urlencode(
        query, quote_via=urllib.parse.quote), tenant=tenant)


def raw_query(gateway, query):
    return gateway.request("GET", "/status" + query)


def steady(answer):
    """All of it but the clock of the server."""
    return (answer.status, answer.reason, answer.body,
            [pair for pair in answer.headers if pair[0] != "Date"])


# ---- what is told -----------------------------------------------------------

def test_a_finished_operation_is_found_by_reference_and_by_key(gateway):
    key = new_key()
    first = gateway.post(key, headers=tell(body=SECRET))
    for query in ({"reference": first.reference},
                  {"reference": first.reference.lower().replace("-", "")},
                  {"key": key, "scope": "POST /"},
                  {"key": '"%s"' % key, "scope": "POST /"}):
        answer = ask(gateway, **query)
        assert answer.status == 200, query
        assert answer.header("Content-Type") == "application/json"
        assert answer.header("Cache-Control") == "no-store"
        told = answer.json()
        assert set(told) == {"state", "reference", "attempt", "claimed",
                             "completed", "expires", "status"}
        assert (told["state"], told["reference"]) == ("completed",
                                                      first.reference)
        assert (told["attempt"], told["status"]) == (1, 201)
        assert all(TIME.fullmatch(told[name])
                   for name in ("claimed", "completed", "expires"))
        assert told["claimed"] <= told["completed"] < told["expires"]


def test_the_key_may_be_in_its_header_and_stays_out_of_the_uri(gateway):
    key = new_key()
    first = gateway.post(key)
    for value in (key, '"%s"' % key):
        answer = gateway.request("GET", "/status?scope=POST%20/", key=value)
        assert answer.json()["reference"] == first.reference
    # A program that sends it with whatever it asks.
    answer = gateway.request("GET", "/status?reference=" + first.reference,
                             key="another")
    assert answer.json()["reference"] == first.reference
    assert not any(key in line["uri"] for line in gateway.access())


@pytest.mark.parametrize("query,headers,problem,says", [
    ("?scope=POST%20/&key=a", ["a"], "query-invalid", "give one"),
    ("?scope=POST%20/", ["a", "a"], "query-invalid", "twice"),
    ("?scope=POST%20/", ["a b"], "key-invalid", ""),
    ("?scope=POST%20/", [], "query-invalid", "Idempotency-Key"),
    ("", ["a"], "query-invalid", "scope"),
    ("", [], "query-invalid", "reference")])
def test_a_key_in_a_header_that_says_nothing_clear_is_refused(
        gateway, query, headers, problem, says):
    answer = gateway.request("GET", "/status" + query, headers=[
        ("Idempotency-Key", value) for value in headers])
    assert (answer.status, answer.problem) == (400, problem)
    assert says in answer.json()["detail"]


def test_neither_body_nor_token_nor_fingerprint_is_told(gateway):
    key = new_key()
    first = gateway.post(key, headers=tell(body=SECRET))
    record = gateway.record(key)
    text = ask(gateway, reference=first.reference).body
    assert first.body == SECRET.encode() == record["body"]
    for hidden in (record["body"], record["fingerprint"], key.encode(),
                   b'"token"', b'"headers"'):
        assert hidden not in text


def test_an_operation_that_runs_is_in_progress(gateway, app):
    key = new_key()
    running = gateway.later("POST", "/", b"{}", key=key,
                            headers=tell(hold="it"))
    app.wait_held("it")
    told = ask(gateway, key=key, scope="POST /").json()
    assert told["state"] == "in_progress" and told["attempt"] == 1
    assert "status" not in told and "completed" not in told
    app.release("it")
    assert running.result().status == 201
    assert ask(gateway, key=key, scope="POST /").json()["state"] == "completed"


def test_an_uncertain_operation_says_why_and_since_when(gateway):
    key = new_key()
    gateway.post(key, headers=tell(close=True))
    told = ask(gateway, key=key, scope="POST /").json()
    assert told["state"] == "uncertain" and told["uncertain_reason"]
    assert TIME.fullmatch(told["since"]) and "status" not in told


def test_an_answer_that_was_not_kept_says_why(make_gateway):
    gateway = make_gateway(locations=places(FAST,
                                            "idempotency_response_max 1k;"))
    key = new_key()
    assert gateway.post(key, headers=tell(bytes=5000)).status == 201
    told = ask(gateway, key=key, scope="POST /").json()
    assert (told["state"], told["status"]) == ("completed", 201)
    assert told["omitted_reason"]


def test_a_released_operation_is_still_known(gateway):
    key = new_key()
    gateway.post(key, headers=tell(status=500))
    told = ask(gateway, key=key, scope="POST /").json()
    assert told["state"] == "released" and "status" not in told


def test_text_of_a_record_cannot_leave_its_string(gateway):
    raw = gateway.daemon.raw()
    key = new_key()
    reply = claim(raw, key, scope="s")
    reason = b'","state":"completed"\r\n\xff\x00'
    assert raw("DOUBT", "acme", "s", key, reply[1], reason) == "OK"
    told = ask(gateway, key=key, scope="s").json()
    assert told["state"] == "uncertain"
    assert told["uncertain_reason"] == '","state":"completed"\r\n\ufffd\0'


def test_head_is_get_without_a_body(gateway):
    first = gateway.post(new_key())
    get = ask(gateway, reference=first.reference)
    head = ask(gateway, "HEAD", reference=first.reference)
    assert (head.status, head.body) == (200, b"")
    assert head.header("Content-Length") == get.header("Content-Length")


def test_a_large_answer_does_not_get_in_the_way(make_gateway):
    gateway = make_gateway(locations=places(FAST,
                                            "idempotency_response_max 8m;"))
    first = gateway.post(new_key(), headers=tell(bytes=5000000))
    assert ask(gateway, reference=first.reference).json()["status"] == 201


def test_a_scope_of_any_bytes_can_be_asked_for(gateway):
    scope = b"POST /\xc3\xa4?&=+%00 \x00\xff"
    key = 'with "quotes" \\ and spaces'
    assert claim(gateway.daemon.raw(), key, scope=scope)[0] == b"NEW"
    quoted = '"%s"' % key.replace("\\", "\\\\").replace('"', '\\"')
    for encode in (urllib.parse.quote, urllib.parse.quote_plus):
        answer = raw_query(gateway, "?key=%s&scope=%s" % (
            encode(quoted, safe=""), encode(scope, safe="")))
        assert answer.json()["state"] == "in_progress"


# ---- whose it is ------------------------------------------------------------

def test_c18_what_is_not_there_and_what_is_anothers_are_the_same_404(gateway):
    # C13, C18
    key = new_key()
    first = gateway.post(key)
    absent = ask(gateway, tenant="other", reference="0000-0000-0000")
    assert (absent.status, absent.problem) == (404, "not-found")
    assert absent.header("Cache-Control") == "no-store"
    assert absent.reference is None
    for answer in (ask(gateway, tenant="other", reference=first.reference),
                   ask(gateway, tenant="other", key=key, scope="POST /"),
                   ask(gateway, tenant="other", key="x", scope="POST /"),
                   ask(gateway, tenant="other", key=key, scope="POST /y")):
        assert steady(answer) == steady(absent)
    assert ask(gateway, reference=first.reference).status == 200


def test_c18_both_ask_the_daemon_the_same_number_of_times(gateway):
    first = gateway.post(new_key())
    asked = gateway.commands("find")
    ask(gateway, tenant="other", reference=first.reference)
    assert gateway.commands("find") == asked + 1
    ask(gateway, tenant="other", reference="0000-0000-0000")
    assert gateway.commands("find") == asked + 2


@pytest.mark.parametrize("tenant", [None, "", "x" * 256])
def test_c13_without_a_caller_nothing_is_told(gateway, tenant):
    first = gateway.post(new_key())
    answer = ask(gateway, tenant=tenant, reference=first.reference)
    assert (answer.status, answer.problem) == (400, "tenant-missing")


def test_a_hashed_tenant_is_asked_for_as_it_is_stored(make_gateway):
    # C13
    gateway = make_gateway(
        http="idempotency_tenant $http_x_api_key hashed;\n"
             "idempotency_secret @FOLDER@/secret;",
        locations=guard(tenant=None) +
        "location = /status { idempotency_status %s; }" % FAST, start=False)
    (gateway.folder / "secret").write_text("a secret of enough bytes")
    gateway.start()
    first = gateway.post(new_key())
    assert ask(gateway, reference=first.reference).status == 200
    assert ask(gateway, tenant="other",
               reference=first.reference).status == 404


def test_a_status_location_needs_a_tenant():
    checked = check_config("location = /status { idempotency_status; }")
    assert not checked.ok and "idempotency_tenant" in checked.text


# ---- questions that are none ------------------------------------------------

@pytest.mark.parametrize("query, word", [
    ("", "reference"), ("?", "reference"), ("?x=1", "reference"),
    ("?key=a", "scope"), ("?key=a&scope=", "scope"), ("?scope=a", "key"),
    ("?reference=", "7D3F"), ("?reference=7D3F-92AB-1C4", "7D3F"),
    ("?reference=7D3F-92AB-1C4G", "7D3F"),
    ("?reference=7D3F_92AB_1C4E", "7D3F"), ("?reference=%", "7D3F"),
    ("?reference=" + "A" * 3000, "7D3F"),
    ("?reference=7D3F-92AB-1C4E&key=a", "not both"),
    ("?reference=7D3F-92AB-1C4E&scope=a", "not both"),
    ("?key=%zz&scope=a", "percent"), ("?key=a&scope=%4", "percent"),
    ("?key=a&scope=%", "percent"), ("?key=a&scope=" + "s" * 1025, "1024"),
])
def test_a_question_that_is_none_is_told_what_is_missing(gateway, query, word):
    answer = raw_query(gateway, query)
    assert (answer.status, answer.problem) == (400, "query-invalid")
    assert word in answer.json()["detail"]


@pytest.mark.parametrize("key", ["", "a%20b", "%22open", "a" * 256, "%00",
                                 "%C3%A4"])
def test_a_key_that_is_none_is_told_why(gateway, key):
    answer = raw_query(gateway, "?key=%s&scope=a" % key)
    assert (answer.status, answer.problem) == (400, "key-invalid")
    assert answer.json()["detail"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH",
                                    "OPTIONS"])
def test_only_get_and_head_ask(gateway, method):
    first = gateway.post(new_key())
    answer = ask(gateway, method, reference=first.reference)
    assert answer.status == 405 and answer.header("Allow") == "GET, HEAD"


def test_the_body_of_a_question_is_passed_over(gateway):
    first = gateway.post(new_key())
    with gateway.raw() as connection:
        for _ in range(3):
            answer = connection.ask(
                "GET", "/status?reference=" + first.reference,
                gateway.headers(), b"x" * 100000)
            assert answer.status == 200


# ---- no daemon --------------------------------------------------------------

def test_without_a_daemon_it_says_so_and_recovers(make_gateway, make_daemon):
    daemon = make_daemon()
    gateway = make_gateway(daemon=daemon, locations=places(
        FAST, "idempotency_timeout 1s;"))
    first = gateway.post(new_key())
    daemon.stop()
    answer = ask(gateway, reference=first.reference)
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert int(answer.header("Retry-After")) >= 1
    assert answer.header("Cache-Control") == "no-store"
    daemon.start()
    until(lambda: ask(gateway, reference=first.reference).status == 200)


def test_a_daemon_that_is_silent_is_not_waited_for_without_end(
        make_gateway, make_daemon):
    daemon = make_daemon()
    gateway = make_gateway(daemon=daemon, locations=guard("/") + """
        location = /status {
            idempotency_tenant $http_x_api_key;
            idempotency_timeout 300ms;
            idempotency_status %s;
        }""" % FAST)
    first = gateway.post(new_key())
    daemon.signal(signal.SIGSTOP)
    try:
        answer = ask(gateway, reference=first.reference)
        assert (answer.status, answer.problem) == (503, "unavailable")
        # Callers that leave while the daemon is silent do no harm.
        for _ in range(5):
            sock = gateway.socket()
            sock.sendall(b"GET /status?reference=%s HTTP/1.1\r\nHost: x\r\n"
                         b"X-API-Key: acme\r\n\r\n"
                         % first.reference.encode())
            sock.close()
    finally:
        daemon.signal(signal.SIGCONT)
    until(lambda: ask(gateway, reference=first.reference).status == 200)


# ---- the rate ---------------------------------------------------------------

def test_each_caller_has_a_rate_of_its_own(make_gateway):
    gateway = make_gateway(locations=places("rate=1r/m burst=3"))
    first = gateway.post(new_key())
    asked = [ask(gateway, reference=first.reference) for _ in range(5)]
    assert [answer.status for answer in asked] == [200, 200, 200, 429, 429]
    assert asked[-1].problem == "limited"
    assert 1 <= int(asked[-1].header("Retry-After")) <= 63
    assert asked[-1].header("Cache-Control") == "no-store"
    other = ask(gateway, tenant="other", reference=first.reference)
    assert other.status == 404


def test_each_location_has_a_rate_of_its_own(make_gateway):
    gateway = make_gateway(locations=places("rate=1r/m burst=2") + "".join(
        (STATUS % options).replace("/status", path) for path, options in (
            ("/other", "rate=1r/m burst=2"), ("/third", "rate=1r/m burst=3"))))
    for path, burst in (("/status", 2), ("/other", 2), ("/third", 3)):
        asked = [ask(gateway, path=path, key="a", scope="b").status
                 for _ in range(burst + 1)]
        assert asked == [404] * burst + [429], path


def test_questions_that_are_none_count_too(make_gateway):
    gateway = make_gateway(locations=places("rate=1r/m burst=2"))
    assert raw_query(gateway, "?key=a").status == 400
    assert raw_query(gateway, "?reference=x").status == 400
    assert raw_query(gateway, "?key=a").status == 429


def test_the_rate_survives_a_reload_and_more_locations(make_gateway):
    gateway = make_gateway(locations=places("rate=1r/m burst=2"))
    ask(gateway, key="a", scope="b")
    ask(gateway, key="a", scope="b")
    old = gateway.reload(locations=places("rate=1r/m burst=2") + "".join(
        "location /x%d { return 200; }" % i for i in range(200)))
    until(lambda: not old & set(gateway.workers()))
    assert ask(gateway, key="a", scope="b").status == 429


def test_a_bucket_fills_again(make_gateway):
    gateway = make_gateway(locations=places("rate=5r/s burst=1"))
    statuses = [ask(gateway, key="a", scope="b").status for _ in range(3)]
    assert statuses[0] == 404
    until(lambda: ask(gateway, key="a", scope="b").status == 404)


def test_more_callers_than_buckets_are_all_answered(make_gateway):
    gateway = make_gateway(locations=places("rate=1r/m burst=1"),
                           server="keepalive_requests 10000;")
    with gateway.raw() as connection:
        for number in range(6000):
            answer = connection.ask(
                "GET", "/status?key=a&scope=b",
                gateway.headers(tenant="tenant-%d" % number), b"")
            assert answer.status == 404, number


# ---- over other ways --------------------------------------------------------

def test_http2_asks_as_well(make_gateway):
    gateway = make_gateway(locations=places(), h2=True)
    first = gateway.post(new_key())
    got = gateway.curl("-H", "X-API-Key: acme", "--request-target",
                       "/status?reference=" + first.reference, h2=True)
    assert b"HTTP/2 200" in got.stdout and b'"completed"' in got.stdout
