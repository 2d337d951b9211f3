"""ACCEPT, ENQUEUE, JOBS, JOB, TARGET and RESOLVE TOKEN, on both stores that keep
jobs, and what the one that keeps none says to them."""

import signal
import socket
import subprocess
import threading

import pytest

from support import build, stores
from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, new_key, until, verdict)
from support.resp import Error, fields

SCOPE = "POST /payments"
WHO = ("WHO", "oncall", "WHY", "because")
REQUEST = ("POST", "/payments?x=1", "Content-Type: text/plain\r\n", b"a\x00b")
# Nobody listens there.
NOWHERE = "http://127.0.0.1:1"
GATEWAY = "courier.gateway=unix:/nowhere/gateway"
HELD = ["courier.enabled=no", GATEWAY, "target.pay.url=" + NOWHERE,
        "target.crm.url=https://crm.example/v1"]


@pytest.fixture(params=["sqlite", "postgres"])
def make(request, make_daemon):
    """Starts daemons, all on one store where several can share it."""
    url = None
    if request.param == "postgres":
        url = stores.make_postgres(request.getfixturevalue("postgres"))

    def start(*settings, **options):
        return make_daemon(settings=list(settings), url=url, **options)

    start.url = url
    return start


@pytest.fixture
def held(make):
    """A daemon with targets and no courier: jobs wait."""
    return make(*HELD)


@pytest.fixture
def raw(held):
    return held.raw()


@pytest.fixture
def operator(held):
    return held.raw(user="operator")


def accept(raw, key, *options, fingerprint=FINGERPRINT, request=REQUEST):
    return raw("ACCEPT", "acme", SCOPE, key, fingerprint, *request, *options)


def enqueue(raw, key, token, name, *options, target="pay", path="/charges"):
    return raw("ENQUEUE", "acme", SCOPE, key, token, name, target, path,
               *options)


def jobs(operator, *options):
    reply = operator("JOBS", *options)
    assert isinstance(reply, list), reply
    return [fields(row) for row in reply[1]]


def show(operator, number, *options):
    reply = operator("JOB", "SHOW", number, *options)
    assert reply is not None and not isinstance(reply, Error), reply
    job = fields(reply)
    job["history"] = [fields(row) for row in job["history"]]
    return job


def only_job(operator, *options):
    found = jobs(operator, *options)
    assert len(found) == 1, found
    return found[0]


def outbox(operator, line):
    """INFO, once it has the line: stores on servers count now and then."""
    info = operator("INFO", "outbox").decode()
    return info if line in info else None


# ---- ENQUEUE ----------------------------------------------------------------

def test_a_job_is_shown_as_it_was_queued(raw, operator):
    # C28: the key that the provider will get is known from the start.
    key = new_key()
    token = begin(raw, key)
    assert enqueue(raw, key, token, "charge", "METHOD", "PUT", "HEADERS",
                   "X-A: b\r\n", "BODY", b"{\x00}") == "OK"
    job = only_job(operator)
    assert "body" not in job
    assert (job["name"], job["target"], job["method"], job["path"],
            job["state"]) == (b"charge", b"pay", b"PUT", b"/charges",
                              b"waiting")
    assert (job["tenant"], job["scope"], job["key"]) == (
        b"acme", SCOPE.encode(), key.encode())
    assert (job["attempts"], job["forgiven"], job["called"], job["sent"],
            job["status"], job["ended-ms"]) == (0, 0, 0, 0, 0, 0)
    assert job["provider-id"] == job["reason"] == b""
    assert job["created-ms"] > 0 and job["due-ms"] >= job["created-ms"]
    assert len(job["downstream-key"]) == 32
    record = fields(raw("LOOKUP", "acme", SCOPE, key))
    assert job["reference"] == record["reference"]
    whole = show(operator, job["id"], "BODY", *WHO)
    assert (whole["headers"], whole["body"]) == (b"X-A: b\r\n", b"{\x00}")
    assert (whole["answer-headers"], whole["answer-body"]) == (b"", b"")
    assert whole["history"] == []
    assert whole["downstream-key"] == job["downstream-key"]


def test_a_name_is_queued_once_and_a_stale_token_queues_nothing(raw, operator):
    key = new_key()
    token = begin(raw, key)
    assert enqueue(raw, key, token, "charge") == "OK"
    assert enqueue(raw, key, token, "charge") == "EXISTS"
    other = enqueue(raw, key, token, "charge", path="/other")
    assert isinstance(other, Error) and "another call" in other, other
    assert enqueue(raw, key, token + 1, "mail") == "STALE"
    assert enqueue(raw, new_key(), token, "mail") == "STALE"
    assert enqueue(raw, key, token, "mail", target="crm") == "OK"
    assert complete(raw, key, token, 201, b"A: b\r\n", b"done") == "OK"
    late = enqueue(raw, key, token, "late")
    assert late[:4] == [b"KEPT", 201, b"A: b\r\n", b"done"]
    assert sorted(job["name"] for job in jobs(operator)) == [b"charge",
                                                             b"mail"]


def test_a_delay_is_kept_with_the_job(raw, operator):
    key = new_key()
    assert enqueue(raw, key, begin(raw, key), "later", "DELAY",
                   3600000) == "OK"
    job = only_job(operator)
    assert job["due-ms"] - job["created-ms"] == 3600000


def test_an_unknown_target_is_refused_and_the_known_ones_are_named(raw):
    key = new_key()
    token = begin(raw, key)
    reply = enqueue(raw, key, token, "charge", target="payy")
    assert isinstance(reply, Error)
    assert "payy" in reply and "crm" in reply and "pay" in reply


K = ("acme", SCOPE, "bad-input")
BAD = {
    "a path of another host": (
        ("ENQUEUE", *K, 1, "n", "pay", "//evil/x"), "path"),
    "a whole URL": (("ENQUEUE", *K, 1, "n", "pay", "http://evil/"), "path"),
    "a way up": (("ENQUEUE", *K, 1, "n", "pay", "/a/%2e%2E/b"), "path"),
    "a line break in a path": (
        ("ENQUEUE", *K, 1, "n", "pay", "/a\r\nX: y"), "path"),
    "an empty path": (("ENQUEUE", *K, 1, "n", "pay", ""), "path"),
    "a long path": (("ENQUEUE", *K, 1, "n", "pay", "/" + "a" * 8192), "path"),
    "an empty name": (("ENQUEUE", *K, 1, "", "pay", "/x"), "name"),
    "a long name": (("ENQUEUE", *K, 1, "n" * 256, "pay", "/x"), "name"),
    "a name that is not printable": (
        ("ENQUEUE", *K, 1, b"n\x00", "pay", "/x"), "name"),
    "the gateway as a target": (
        ("ENQUEUE", *K, 1, "n", "@gateway", "/x"), "target"),
    "a method that there is not": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "METHOD", "TRACE"), "method"),
    "a header that frames": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "HEADERS",
         "Content-Length: 5\r\n"), "headers"),
    "a header that is two": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "HEADERS",
         "A: b\nHost: evil\r\n"), "headers"),
    "a header with a space in its name": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "HEADERS",
         "A: b\r\nB c: d\r\n"), "line 2"),
    "a body that is too large": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "BODY", b"x" * (1 << 20) + b"x"),
        "TOO LARGE"),
    "a delay that is no number": (
        ("ENQUEUE", *K, 1, "n", "pay", "/x", "DELAY", "soon"), "DELAY"),
    "a token that is no number": (
        ("ENQUEUE", *K, "x", "n", "pay", "/x"), "token"),
    "no fingerprint": (("ACCEPT", *K, "", *REQUEST), "fingerprint"),
    "a request without a method": (
        ("ACCEPT", *K, "fp", "", "/x", "", ""), "method"),
    "a request with a small method": (
        ("ACCEPT", *K, "fp", "post", "/x", "", ""), "method"),
    "a request with a line break in its path": (
        ("ACCEPT", *K, "fp", "POST", "/x\r\nA: b", "", ""), "path"),
    "a request with a bare line feed": (
        ("ACCEPT", *K, "fp", "POST", "/x", "A: b\nC: d\r\n", ""), "headers"),
    "a request with a header that does not end": (
        ("ACCEPT", *K, "fp", "POST", "/x", "A: b", ""), "headers"),
    "a request with a control character in a header's name": (
        ("ACCEPT", *K, "fp", "POST", "/x", "A: b\r\nB\x01: d\r\n", ""),
        "line 2"),
    "a request that is too large": (
        ("ACCEPT", *K, "fp", "POST", "/x", "", b"x" * (1 << 20) + b"x"),
        "TOO LARGE"),
    "a tenant of two lines": (
        ("ACCEPT", "a\r\nLatchkey-Key: x", SCOPE, "k", "fp", *REQUEST),
        "tenant"),
    "a scope of two lines": (
        ("ACCEPT", "acme", "POST /\r\nA: b", "k", "fp", *REQUEST), "scope"),
    "a TTL of nothing": (("ACCEPT", *K, "fp", *REQUEST, "TTL", 0), "TTL"),
}


@pytest.mark.parametrize("make", ["sqlite"], indirect=True)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_changes_nothing(raw, operator, case):
    words, names = BAD[case]
    reply = raw(*words)
    assert isinstance(reply, Error) and reply.code == "ERR", reply
    assert names.lower() in reply.lower()
    assert raw("LOOKUP", *K) is None
    assert jobs(operator) == []


BAD_ORDERS = {
    "a state that there is not": (("JOBS", "STATE", "lost"), "STATE"),
    "a target that cannot be one": (("JOBS", "TARGET", "Pay"), "target"),
    "a reference that cannot be one": (("JOBS", "REFERENCE", "x"),
                                       "REFERENCE"),
    "a limit beyond all bounds": (("JOBS", "LIMIT", 1001), "LIMIT"),
    "an id that is no number": (("JOB", "SHOW", "x"), "id"),
    "one word too many": (("JOB", "SHOW", 1, "now"), "now"),
    "an order that there is not": (("JOB", "EAT", 1, *WHO), "EAT"),
    "an order without a reason": (("JOB", "RETRY", 1, "WHO", "x"), "WHY"),
    "an option of another order": (
        ("JOB", "RETRY", 1, *WHO, "PROVIDER", "x"), "PROVIDER"),
    "a provider's id that is not printable": (
        ("JOB", "DELIVERED", 1, *WHO, "PROVIDER", b"\xff"), "PROVIDER"),
    "a status of 99": (
        ("JOB", "DELIVERED", 1, *WHO, "STATUS", 99), "STATUS"),
    "a target's order without a target": (("TARGET", "PAUSE"), "target"),
    "a target's order without a reason": (("TARGET", "PAUSE", "pay"), "WHO"),
    "a target's order that there is not": (("TARGET", "EAT", "pay"), "EAT"),
    "a token of nothing": (
        ("RESOLVE", *K, "RELEASED", *WHO, "TOKEN", 0), "TOKEN"),
}


@pytest.mark.parametrize("make", ["sqlite"], indirect=True)
@pytest.mark.parametrize("case", BAD_ORDERS)
def test_a_bad_order_is_named(operator, case):
    words, names = BAD_ORDERS[case]
    reply = operator(*words)
    assert isinstance(reply, Error) and reply.code == "ERR", reply
    assert names.lower() in reply.lower()


# ---- ACCEPT -----------------------------------------------------------------

def test_what_is_accepted_stays_so_until_somebody_runs_it(raw, operator):
    # C31: the same ACCEPTED on a retry, by ACCEPT or by CLAIM.
    key = new_key()
    first = accept(raw, key)
    assert first[0] == b"ACCEPTED" and first[1] > 0
    assert accept(raw, key) == first
    assert claim(raw, key) == first
    assert accept(raw, key, fingerprint=OTHER_FINGERPRINT) == [b"MISMATCH",
                                                              first[2]]
    record = fields(raw("LOOKUP", "acme", SCOPE, key))
    assert record["state"] == b"accepted"
    assert record["since-ms"] == first[1]
    job = only_job(operator, "REFERENCE", first[2], "WHOLE", *WHO)
    assert (job["name"], job["target"], job["state"]) == (b"", b"@gateway",
                                                          b"waiting")
    assert (job["method"], job["path"], job["headers"], job["body"]) == (
        b"POST", b"/payments?x=1", b"Content-Type: text/plain\r\n", b"a\x00b")
    assert job["downstream-key"] == b""


def test_what_is_accepted_outlives_a_kill(make):
    # C31
    daemon = make(*HELD)
    key = new_key()
    first = accept(daemon.raw(), key)
    daemon.kill()
    daemon.start()
    assert claim(daemon.raw(), key) == first
    job = only_job(daemon.raw(user="operator"), "WHOLE", *WHO)
    assert (job["state"], job["body"]) == (b"waiting", b"a\x00b")


def test_a_running_claim_is_not_accepted_and_an_answer_is_replayed(raw):
    key = new_key()
    token = begin(raw, key)
    assert verdict(accept(raw, key)) == "INFLIGHT"
    assert complete(raw, key, token, 201, b"A: b\r\n", b"done") == "OK"
    assert accept(raw, key)[:4] == [b"REPLAY", 201, b"A: b\r\n", b"done"]
    key = new_key()
    token = begin(raw, key)
    assert raw("DOUBT", "acme", SCOPE, key, token, "lost") == "OK"
    assert verdict(accept(raw, key)) == "UNCERTAIN"
    key = new_key()
    token = begin(raw, key)
    assert raw("RELEASE", "acme", SCOPE, key, token) == "OK"
    assert verdict(accept(raw, key)) == "ACCEPTED"


def test_a_request_ends_with_its_operation(raw, operator):
    # C29: whoever gives up on what was accepted can say so, with a reason.
    key = new_key()
    accept(raw, key)
    job = only_job(operator)
    reply = operator("JOB", "DROP", job["id"], *WHO)
    assert isinstance(reply, Error) and "RESOLVE" in reply, reply
    assert operator("RESOLVE", "acme", SCOPE, key, "COMPLETED", 410, "",
                    "gone", *WHO) == "OK"
    assert claim(raw, key)[:4] == [b"REPLAY", 410, b"", b"gone"]
    assert show(operator, job["id"])["state"] == b"dropped"
    assert jobs(operator, "STATE", "unfinished") == []

    key = new_key()
    accept(raw, key)
    assert operator("RESOLVE", "acme", SCOPE, key, "RELEASED", *WHO) == "OK"
    assert jobs(operator, "STATE", "unfinished") == []
    assert verdict(claim(raw, key)) == "NEW"


def test_a_claim_that_waits_is_told_when_a_request_ends(held, raw, operator):
    key = new_key()
    accept(raw, key)
    raw.send("CLAIM", "acme", SCOPE, key, FINGERPRINT, "WAIT", 60000)
    until(lambda: "blocked_clients:1" in
          operator("INFO", "clients").decode())
    assert operator("RESOLVE", "acme", SCOPE, key, "COMPLETED", 200, "", "x",
                    *WHO) == "OK"
    assert raw.read()[:2] == [b"REPLAY", 200]


# ---- JOBS and JOB -----------------------------------------------------------

def test_jobs_are_found_by_what_they_are(raw, operator):
    keys = [new_key() for _ in range(3)]
    for number, key in enumerate(keys):
        token = begin(raw, key, tenant="tenant-%d" % (number % 2))
        reply = raw("ENQUEUE", "tenant-%d" % (number % 2), SCOPE, key, token,
                    "n", "pay" if number else "crm", "/x")
        assert reply == "OK"
    everything = jobs(operator)
    assert [job["key"].decode() for job in everything] == keys
    assert [job["key"].decode() for job in jobs(operator, "TARGET", "pay")
            ] == keys[1:]
    assert [job["key"].decode() for job in jobs(operator, "TENANT", "tenant-0")
            ] == [keys[0], keys[2]]
    assert jobs(operator, "STATE", "dead") == []
    assert len(jobs(operator, "STATE", "waiting")) == 3
    assert len(jobs(operator, "STATE", "unfinished")) == 3
    assert only_job(operator, "REFERENCE", everything[1]["reference"]
                    )["key"].decode() == keys[1]
    assert jobs(operator, "PROVIDER", "pi_1") == []
    for job in everything[:2]:
        assert operator("JOB", "DELIVERED", job["id"], *WHO,
                        "PROVIDER", "pi_1") == "OK"
    assert [job["key"].decode() for job in jobs(operator, "PROVIDER", "pi_1")
            ] == keys[:2]
    assert only_job(operator, "PROVIDER", "pi_1", "TARGET", "pay"
                    )["key"].decode() == keys[1]
    assert only_job(operator, "PROVIDER", "pi_1", "LIMIT", 1
                    )["key"].decode() == keys[0]
    assert jobs(operator, "UNTIL", everything[0]["created-ms"]) == []
    assert len(jobs(operator, "SINCE", everything[0]["created-ms"])) == 3
    assert jobs(operator, "OLDER", 3600000) == []
    assert operator("JOB", "SHOW", 10 ** 9) is None
    assert operator("JOB", "DROP", 10 ** 9, *WHO) is None


def test_a_cursor_leads_through_all_jobs(raw, operator):
    key = new_key()
    token = begin(raw, key)
    for number in range(7):
        assert enqueue(raw, key, token, "n%d" % number) == "OK"
    seen, cursor = [], 0
    while True:
        cursor, rows = operator("JOBS", "LIMIT", 3, "CURSOR", cursor)
        assert len(rows) <= 3
        seen += [fields(row)["name"] for row in rows]
        if not cursor:
            break
    assert seen == [b"n%d" % number for number in range(7)]


def test_a_page_of_large_jobs_ends_in_time_and_goes_on(raw, operator):
    key = new_key()
    token = begin(raw, key)
    for number in range(10):
        assert enqueue(raw, key, token, "n%d" % number, "BODY",
                       b"x" * (1 << 20)) == "OK"
    seen, cursor, pages = [], 0, 0
    while True:
        cursor, rows = operator("JOBS", "WHOLE", *WHO, "CURSOR", cursor)
        seen += [fields(row)["name"] for row in rows]
        pages += 1
        if not cursor:
            break
    assert seen == [b"n%d" % number for number in range(10)]
    assert pages > 1


def test_a_job_that_waits_can_be_dropped_and_the_log_says_by_whom(raw,
                                                                  operator):
    # C29
    key = new_key()
    assert enqueue(raw, key, begin(raw, key), "charge") == "OK"
    number = only_job(operator)["id"]
    reply = operator("JOB", "AGAIN", number, *WHO)
    assert isinstance(reply, Error) and "waiting" in reply, reply
    reply = operator("JOB", "DROP", number, *WHO, "ATTEMPT", 7)
    assert isinstance(reply, Error), reply
    assert operator("JOB", "DROP", number, *WHO) == "OK"
    assert show(operator, number)["state"] == b"dropped"
    reply = operator("JOB", "DROP", number, *WHO)
    assert isinstance(reply, Error) and "dropped" in reply, reply
    entries = [fields(row) for row in operator("AUDIT")]
    last = entries[-1]
    assert (last["action"], last["who"], last["why"], last["key"]) == (
        b"job drop", b"operator/oncall", b"because", key.encode())


def test_many_orders_at_once_are_answered_in_order(raw, operator):
    key = new_key()
    token = begin(raw, key)
    for number in range(300):
        raw.send("ENQUEUE", "acme", SCOPE, key, token, "n%d" % number, "pay",
                 "/x")
    assert [raw.read() for _ in range(300)] == ["OK"] * 300
    ids = [job["id"] for job in jobs(operator, "LIMIT", 1000)]
    for number in ids:
        operator.send("JOB", "DROP", number, *WHO)
        operator.send("JOB", "SHOW", number)
    for number in ids:
        assert operator.read() == "OK"
        assert fields(operator.read())["state"] == b"dropped"
    assert jobs(operator, "STATE", "unfinished") == []


# ---- dead and uncertain -----------------------------------------------------

class Silent:
    """Takes connections, reads what comes, and hangs up without an answer."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.requests = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with sock:
                self.requests += bool(sock.recv(65536))

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def silent():
    made = Silent()
    yield made
    made.close()


def test_what_is_dead_is_listed_retried_and_dropped(make):
    # C29
    daemon = make("target.pay.url=" + NOWHERE, "target.pay.attempts=2",
                  "target.pay.backoff=1ms", "store.poll=50ms")
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    key = new_key()
    assert enqueue(raw, key, begin(raw, key), "charge") == "OK"
    dead = until(lambda: jobs(operator, "STATE", "dead"))[0]
    assert (dead["attempts"], dead["called"], dead["sent"]) == (2, 0, 0)
    assert dead["reason"] and dead["ended-ms"]
    whole = show(operator, dead["id"])
    assert len(whole["history"]) >= 1
    assert whole["history"][0]["reason"]
    assert {attempt["called"] for attempt in whole["history"]} == {0}
    daemon.wait_for_log("event=job-dead")
    info = until(lambda: outbox(operator, "jobs_dead:1\r\n"))
    assert "courier:1\r\n" in info and "target_pay:configured=1" in info
    standing = fields(operator("TARGET", "STATUS", "pay")[0])
    assert standing["dead"] == 1 and standing["oldest-dead-ms"] > 0
    assert standing["gave-up"] == 1 and standing["last-error"]
    assert operator("JOB", "RETRY", dead["id"], *WHO) == "OK"
    again = until(lambda: [job for job in jobs(operator, "STATE", "dead")
                           if job["attempts"] > 2])[0]
    assert again["id"] == dead["id"] and again["forgiven"] >= 2
    assert operator("JOB", "DROP", dead["id"], *WHO) == "OK"
    assert jobs(operator, "STATE", "unfinished") == []


def test_what_is_uncertain_waits_for_a_word(make, silent):
    # C29: by whom, and what became of it, is in the audit log.
    daemon = make("target.pay.url=" + silent.url, "courier.probes=no",
                  "store.poll=50ms")
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    key = new_key()
    token = begin(raw, key)
    assert enqueue(raw, key, token, "one") == "OK"
    first = until(lambda: jobs(operator, "STATE", "uncertain"))[0]
    assert (first["attempts"], first["called"], first["sent"]) == (1, 1, 1)
    assert silent.requests == 1
    until(lambda: outbox(operator, "jobs_uncertain:1\r\n"))
    reply = operator("JOB", "RETRY", first["id"], *WHO)
    assert isinstance(reply, Error) and "uncertain" in reply
    assert operator("JOB", "AGAIN", first["id"], *WHO, "ATTEMPT", 1) == "OK"
    second = until(lambda: [job for job in jobs(operator, "STATE", "uncertain")
                            if job["attempts"] == 2])[0]
    assert silent.requests == 2
    reply = operator("JOB", "DELIVERED", second["id"], *WHO, "ATTEMPT", 1)
    assert isinstance(reply, Error), reply
    assert operator("JOB", "DELIVERED", second["id"], *WHO, "ATTEMPT", 2,
                    "PROVIDER", "ch_1", "STATUS", 201) == "OK"
    done = show(operator, first["id"])
    assert (done["state"], done["provider-id"], done["status"]) == (
        b"delivered", b"ch_1", 201)
    actions = [fields(row)["action"] for row in operator("AUDIT")]
    assert b"job again" in actions and b"job delivered" in actions


def test_a_resolution_with_a_token_counts_for_that_claim_alone(raw, operator):
    key = new_key()
    token = begin(raw, key)
    late = ("RESOLVE", "acme", SCOPE, key, "COMPLETED", 200, "", "x", *WHO,
            "TOKEN", token)
    assert operator(*late) == "STALE"  # it runs: nothing is to be proven
    assert raw("DOUBT", "acme", SCOPE, key, token, "lost") == "OK"
    assert operator("RESOLVE", "acme", SCOPE, key, "RELEASED", *WHO, "TOKEN",
                    token + 1) == "STALE"
    assert verdict(claim(raw, key)) == "UNCERTAIN"
    assert operator(*late) == "OK"
    assert claim(raw, key)[:2] == [b"REPLAY", 200]


# ---- TARGET -----------------------------------------------------------------

def test_targets_are_told_of_with_what_waits_for_them(held, raw, operator):
    key = new_key()
    assert enqueue(raw, key, begin(raw, key), "charge") == "OK"
    accept(raw, new_key())
    targets = {fields(row)["name"]: fields(row)
               for row in operator("TARGET", "STATUS")}
    assert list(targets) == [b"@gateway", b"crm", b"pay"]
    assert (targets[b"pay"]["configured"], targets[b"pay"]["waiting"]) == (1,
                                                                           1)
    assert targets[b"pay"]["oldest-due-ms"] > 0
    assert (targets[b"crm"]["configured"], targets[b"crm"]["waiting"]) == (1,
                                                                           0)
    assert (targets[b"@gateway"]["configured"],
            targets[b"@gateway"]["waiting"]) == (1, 1)
    assert {target["courier"] for target in targets.values()} == {0}
    assert operator("TARGET", "STATUS", "nobody") == []
    assert len(operator("TARGET", "STATUS", "pay")) == 1
    log = held.wait_for_log("event=targets")
    assert "crm" in log and "pay" in log and "jobs wait" in log
    assert NOWHERE not in log


def test_a_paused_target_gets_nothing_until_it_is_resumed(make, silent):
    daemon = make("target.pay.url=" + silent.url, "store.poll=50ms")
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    assert operator("TARGET", "PAUSE", "pay", *WHO) == "OK"
    standing = fields(operator("TARGET", "STATUS", "pay")[0])
    assert (standing["paused"], standing["who"], standing["why"]) == (
        1, b"operator/oncall", b"because")
    key = new_key()
    assert enqueue(raw, key, begin(raw, key), "charge") == "OK"
    daemon.restart()
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    standing = fields(operator("TARGET", "STATUS", "pay")[0])
    assert (standing["paused"], standing["waiting"]) == (1, 1)
    assert silent.requests == 0
    assert operator("TARGET", "RESUME", "pay", *WHO) == "OK"
    until(lambda: jobs(operator, "STATE", "uncertain"))
    assert silent.requests == 1
    standing = fields(operator("TARGET", "STATUS", "pay")[0])
    assert (standing["paused"], standing["doubts"]) == (0, 1)


def test_a_reload_brings_targets_and_takes_them_away(make, tmp_path):
    config = tmp_path / "l.conf"
    config.write_text("")
    config.chmod(0o600)
    daemon = make(config=config)
    assert "courier=no" in daemon.wait_for_log("event=targets")
    config.write_text("[target pay]\nurl = %s\n" % NOWHERE)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("event=courier-started")
    daemon.wait_for_log("event=reloaded")
    before = len(daemon.log)
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    key = new_key()
    token = begin(raw, key)
    assert isinstance(enqueue(raw, key, token, "a", target="crm"), Error)
    config.write_text("[target crm]\nurl = %s\nheader = X: hush\n" % NOWHERE)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("event=reloaded", since=before)
    assert enqueue(raw, key, token, "a", target="crm") == "OK"
    assert isinstance(enqueue(raw, key, token, "b", target="pay"), Error)
    assert not any("hush" in line for line in daemon.log)
    assert "hush" not in str(operator("CONFIG", "GET", "*"))


# ---- roles and stores -------------------------------------------------------

READ = {"JOBS": ("JOBS",), "JOB SHOW": ("JOB", "SHOW", 1),
        "TARGET STATUS": ("TARGET", "STATUS")}
OPERATE = {"JOB RETRY": ("JOB", "RETRY", 1, *WHO),
           "TARGET PAUSE": ("TARGET", "PAUSE", "pay", *WHO)}


@pytest.mark.parametrize("make", ["sqlite"], indirect=True)
@pytest.mark.parametrize("command", [*READ.values(), *OPERATE.values()],
                         ids=[*READ, *OPERATE])
def test_whoever_has_no_role_sees_and_orders_nothing(held, command):
    # C36
    looks = command in READ.values()
    reply = held.raw()(*command)
    assert isinstance(reply, Error) and reply.code == "NOPERM", reply
    assert ("read" if looks else "operate") in reply
    reply = held.raw(user="reader")(*command)
    assert isinstance(reply, Error) == (not looks), reply
    assert not isinstance(held.raw(user="operator")(*command), Error)


@pytest.mark.parametrize("command", [
    ("ACCEPT", *K, "fp", *REQUEST), ("ENQUEUE", *K, 1, "n", "pay", "/x"),
    ("JOBS",), ("JOB", "SHOW", 1), ("JOB", "DROP", 1, *WHO),
    ("TARGET", "STATUS"), ("TARGET", "PAUSE", "pay", *WHO)],
    ids=lambda words: " ".join(map(str, words[:2])))
def test_redis_keeps_no_jobs_and_says_so(make_daemon, redis_server, command):
    daemon = make_daemon(url=redis_server.url(), settings=[
        *HELD, "store.prefix=" + stores.make_prefix()])
    client = daemon.raw(user=None if command[0] in ("ACCEPT", "ENQUEUE")
                        else "operator")
    assert client(*command) == ("ERR a Redis store keeps no jobs: use the "
                                "embedded store or PostgreSQL")
    assert "keeps_jobs:0" in client("INFO", "outbox").decode()


# ---- a daemon that only delivers --------------------------------------------

def run_daemon(*arguments):
    return subprocess.run([str(build.BUILD / "latchkeyd"), *arguments],
                          capture_output=True, text=True,
                          timeout=30 * build.patience())


def test_one_that_only_delivers_refuses_a_store_of_its_own(tmp_path):
    result = run_daemon("--courier-only", "--store",
                        "sqlite:%s" % (tmp_path / "store.db"))
    assert result.returncode == 2
    assert "courier.only" in result.stderr and "PostgreSQL" in result.stderr
    assert "--courier-only" in run_daemon("--help").stdout


@pytest.mark.parametrize("make", ["postgres"], indirect=True)
def test_one_that_only_delivers_takes_no_data_and_sweeps_nothing(make, silent):
    settings = ["target.pay.url=" + silent.url, "store.sweep_interval=50ms",
                "store.poll=50ms", "courier.probes=no"]
    only = make(*settings, arguments=["--courier-only"])
    client = only.raw(user="operator")
    raw = only.raw()
    for command in (("CLAIM", *K, "fp"), ("ENQUEUE", *K, 1, "n", "pay", "/x"),
                    ("ACCEPT", *K, "fp", *REQUEST)):
        assert raw(*command) == "ERR this daemon only delivers jobs"
    assert "courier_only:1\r\n" in client("INFO", "outbox").decode()

    front = make(*settings, "courier.enabled=no", "store.sweep_interval=1h")
    key, lapsed = new_key(), new_key()
    begin(front.raw(), lapsed, "LOCK", 1000)
    assert enqueue(front.raw(), key, begin(front.raw(), key), "charge") == "OK"
    front.stop()
    job = until(lambda: jobs(client, "STATE", "uncertain"))[0]
    assert job["key"] == key.encode() and silent.requests == 1
    # What has lapsed is left to a daemon that keeps.
    until(lambda: fields(client("LOOKUP", "acme", SCOPE, lapsed))["state"] ==
          b"uncertain")
    keeper = make(*settings, "courier.enabled=no").raw(user="operator")
    until(lambda: fields(keeper("STATS"))["swept"] == 1)
    assert fields(client("STATS"))["swept"] == 0


@pytest.mark.parametrize("make", ["postgres"], indirect=True)
def test_one_that_only_delivers_needs_no_address(make, silent, make_daemon):
    front = make("target.pay.url=" + silent.url, "courier.enabled=no")
    only = make_daemon(start=False, url=make.url, settings=[
        "target.pay.url=" + silent.url, "store.poll=50ms",
        "courier.probes=no"], arguments=["--courier-only"])
    whole = only.command
    only.command = lambda: [word for word in whole()
                            if word not in ("--listen", only.address)]
    only.start()
    assert not any("event=listening" in line for line in only.log)
    key = new_key()
    raw, operator = front.raw(), front.raw(user="operator")
    assert enqueue(raw, key, begin(raw, key), "charge") == "OK"
    until(lambda: jobs(operator, "STATE", "uncertain"))
    only.stop()


def test_nothing_is_accepted_that_nobody_will_deliver(make):
    # C31: 202 for ever would be a lie; but what was accepted before is known.
    daemon = make(*HELD)
    accepted, done, fresh = new_key(), new_key(), new_key()
    accept(daemon.raw(), accepted)
    finish(daemon.raw(), done)
    daemon.stop()
    daemon.settings.remove(GATEWAY)
    daemon.start()
    raw = daemon.raw()
    reply = accept(raw, fresh)
    assert isinstance(reply, Error) and "courier.gateway" in reply, reply
    assert raw("LOOKUP", "acme", SCOPE, fresh) is None
    assert verdict(accept(raw, accepted)) == "ACCEPTED"
    assert verdict(accept(raw, done)) == "REPLAY"
