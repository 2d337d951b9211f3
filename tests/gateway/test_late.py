"""Claims and answers that meet a daemon which is not there."""

import pathlib
import re
import signal
import time

import pytest

from support.app import tell
from support.gateway import guard, params
from support.life import new_key, until

QUICK = guard("/", "idempotency_timeout 1s;")


def start_one(gateway, app, key, **manner):
    """A request that stands in the app; its future."""
    future = gateway.later(body=b"{}", key=key,
                           headers=tell(hold=key, **manner))
    app.wait_held(key)
    return future


def claim_without_reply(gateway, daemon, key):
    """The claim is stored, the daemon dies before it says so."""
    assert gateway.settled("before").status == 201
    daemon.set_faults("kill before_reply")
    future = gateway.later(body=b"{}", key=key)
    daemon.wait()
    daemon.set_faults()
    return future


@pytest.fixture
def quick_gateway(make_gateway):
    return make_gateway(locations=QUICK)


# ---- C42 ----

@pytest.mark.parametrize("manner", [
    {"bytes": 50000}, {"status": 204}, {"status": 402}], ids=str)
def test_an_answer_that_cannot_be_stored_is_stored_when_the_daemon_is_back(
        quick_gateway, app, manner):
    # C42
    gateway, key = quick_gateway, new_key()
    future = start_one(gateway, app, key, **manner)
    gateway.daemon.stop()
    app.release(key)
    first = future.result()
    assert (first.status, first.problem) == (503, "outcome-unknown")
    assert int(first.header("Retry-After")) >= 1
    assert first.json()["reference"] == app.last.header("Latchkey-Reference")
    assert gateway.post(key).problem == "unavailable"
    gateway.daemon.start()
    again = until(lambda: (a := gateway.post(key)).replayed and a)
    assert again.status == manner.get("status", 201)
    assert len(again.body) == manner.get("bytes", len(again.body))
    assert app.count() == 1
    assert gateway.logged(key=key, verdict="new")[0]["outcome"] == "late"


def test_a_store_that_fails_at_the_answer_gets_it_later(make_gateway, faulty,
                                                        app):
    # C42
    daemon = faulty(settings=["store.sweep_interval=20ms"])
    gateway = make_gateway(daemon=daemon, locations=QUICK)
    key = new_key()
    future = start_one(gateway, app, key)
    daemon.set_faults("fail write ENOSPC wal forever")
    app.release(key)
    first = future.result()
    assert (first.status, first.problem) == (503, "outcome-unknown")
    daemon.set_faults()
    again = until(lambda: (a := gateway.post(key)).replayed and a)
    assert again.json()["call"] == 1 and app.count() == 1


def test_a_daemon_that_hangs_at_the_answer_gets_it_later(quick_gateway, app):
    # C42
    gateway, key = quick_gateway, new_key()
    future = start_one(gateway, app, key)
    gateway.daemon.signal(signal.SIGSTOP)
    try:
        app.release(key)
        first = future.result()
    finally:
        gateway.daemon.signal(signal.SIGCONT)
    assert (first.status, first.problem) == (503, "outcome-unknown")
    again = until(lambda: (a := gateway.post(key)).replayed and a)
    assert again.json()["call"] == 1 and app.count() == 1


def test_a_daemon_that_is_back_in_time_is_not_noticed(make_gateway, app):
    # C42
    gateway = make_gateway(locations=guard("/", "idempotency_timeout 30s;"))
    key = new_key()
    future = start_one(gateway, app, key)
    gateway.daemon.stop()
    app.release(key)
    gateway.daemon.start()
    assert future.result().status == 201
    assert gateway.settled(key).replayed and app.count() == 1


def test_a_doubt_that_cannot_be_stored_is_stored_later(quick_gateway, app):
    # C21, C42
    gateway, key = quick_gateway, new_key()
    future = start_one(gateway, app, key, reset=True)
    gateway.daemon.stop()
    app.release(key)
    assert future.result().status in (502, 503)
    gateway.daemon.start()
    until(lambda: gateway.post(key).problem == "outcome-unknown")
    assert app.count() == 1


@pytest.mark.parametrize("manner", [
    {"garbage": True}, {"status": 200, "bytes": 5000, "truncate": 100},
    {"bytes": 5000, "truncate": 100, "chunked": True}], ids=str)
@pytest.mark.parametrize("to", [
    "proxy_http_version 1.1; proxy_pass http://@APP@;",
    params("fastcgi") + "fastcgi_pass @FASTCGI@;"], ids=["http", "fastcgi"])
def test_what_is_no_answer_is_none_while_the_daemon_is_away(
        make_gateway, app, manner, to):
    # C21, C42
    gateway = make_gateway(locations=guard(
        "/", "idempotency_timeout 1s;", to=to))
    key = new_key()
    future = start_one(gateway, app, key, **manner)
    gateway.daemon.stop()
    app.release(key)
    first = future.result()
    assert (first.status, first.problem) == (502, "outcome-unknown")
    assert first.complete and first.reference
    gateway.daemon.start()
    until(lambda: gateway.post(key).problem == "outcome-unknown")
    assert app.count() == 1


def test_a_late_answer_has_a_time_limit(make_gateway, make_daemon, app):
    # C42
    daemon = make_daemon(settings=["store.sweep_interval=50ms"])
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_late 1s;",
        "idempotency_lock 2s;"))
    key = new_key()
    future = start_one(gateway, app, key)
    daemon.stop()
    app.release(key)
    assert future.result().problem == "outcome-unknown"
    gateway.wait_for_log("late|gave up|given up")
    daemon.start()
    answer = gateway.settled(key)
    assert answer.problem == "outcome-unknown"
    assert app.count() == 1


def test_late_answers_beyond_their_memory_are_not_kept_and_not_run_again(
        make_gateway, make_daemon, app):
    # C42
    daemon = make_daemon(settings=["store.sweep_interval=50ms"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_late 1m 64k;",
        "idempotency_lock 2s;"))
    key = new_key()
    future = start_one(gateway, app, key, bytes=500000)
    daemon.stop()
    app.release(key)
    assert future.result().problem == "outcome-unknown"
    daemon.start()
    answer = gateway.settled(key)
    assert answer.problem in ("outcome-unknown", "answer-not-kept")
    assert app.count() == 1


def test_settlements_beyond_their_memory_leave_their_outcome_open(
        make_gateway, make_daemon, app):
    # C42: whatever their kind, their number is bounded.
    daemon = make_daemon(settings=["store.sweep_interval=50ms"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard(
        "/", "idempotency_timeout 300ms;", "idempotency_late 1m 64k;",
        "idempotency_lock 1s;"))
    keys = [new_key() for _ in range(40)]
    futures = [gateway.later(body=b"{}", key=key, headers=tell(
        hold="run", status=500)) for key in keys]
    app.wait_held("run", len(keys))
    daemon.stop()
    app.release("run")
    assert {future.result().status for future in futures} == {500}
    gateway.wait_for_log("idempotency_late: no memory is left")
    daemon.start()
    answers = [gateway.settled(key) for key in keys]
    ran = [key for key, answer in zip(keys, answers)
           if answer.status == 201]
    assert ran and len(ran) < len(keys)
    for key, answer in zip(keys, answers):
        assert answer.status == 201 or answer.problem == "outcome-unknown"
        assert app.count(key) == 1 + (key in ran)


def test_an_answer_that_is_late_comes_before_those_who_would_run_it_again(
        make_gateway, make_daemon, app):
    # C42: the lock has lapsed, but the gateway has the answer.
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard(
        "/", "idempotency_timeout 100ms;", "idempotency_lock 1s;",
        "idempotency_uncertain reexecute;"))
    key = new_key()
    future = start_one(gateway, app, key)
    daemon.kill()
    app.release(key)
    assert future.result().problem == "outcome-unknown"
    time.sleep(2.5)  # so long that tries have become rare
    daemon.start()
    answer = gateway.settled(key)
    assert answer.replayed and app.count() == 1


def memory_of(pid):
    """What a process has in memory, in bytes."""
    status = pathlib.Path("/proc/%d/status" % pid).read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


def test_trying_again_takes_no_more_memory(make_gateway, faulty, app):
    # C42
    daemon = faulty(settings=["store.sweep_interval=20ms"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard("/")
                           + "location /open { proxy_pass http://@APP@; }")
    (pid,) = gateway.workers()
    path, keys = "/" + "p" * 900, ["k" * 240 + new_key() for _ in range(200)]
    futures = [gateway.later(path=path, body=b"{}", key=key, headers=tell(
        hold="run", bytes=1000, headers=[["Location", "l" * 900]]))
        for key in keys]
    app.wait_held("run", len(futures))
    daemon.set_faults("fail write ENOSPC wal forever")
    app.release("run")
    for future in futures:
        assert future.result().problem == "outcome-unknown"
    # Memory that is free would hide what is taken: others use it up.
    for _ in keys + keys:
        gateway.leave("/open", headers=tell(hold="open"))
    app.wait_held("open", 2 * len(keys))
    tried = gateway.commands("complete")
    before = memory_of(pid)
    until(lambda: gateway.commands("complete") >= tried + 2 * len(keys))
    grown = memory_of(pid) - before
    daemon.set_faults()
    assert grown < 300000


def test_a_gateway_that_leaves_stores_its_late_answers_if_it_can(
        quick_gateway, app):
    # C42
    gateway, key = quick_gateway, new_key()
    future = start_one(gateway, app, key)
    gateway.daemon.stop()
    app.release(key)
    assert future.result().problem == "outcome-unknown"
    gateway.reload()
    gateway.daemon.start()
    again = until(lambda: (a := gateway.post(key)).replayed and a)
    assert again.json()["call"] == 1 and app.count() == 1


# ---- C41 ----

def test_a_claim_whose_reply_was_lost_is_repeated_and_runs_once(
        make_gateway, faulty, app):
    # C41
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 30s;"))
    key = new_key()
    future = claim_without_reply(gateway, daemon, key)
    daemon.start()
    answer = future.result()
    assert answer.status == 201 and app.count(key) == 1
    assert app.last.header("Latchkey-Attempt") == "1"
    assert gateway.settled(key).body == answer.body
    assert app.count(key) == 1


@pytest.mark.parametrize("absence", [0, 2.5])
def test_a_claim_whose_reply_came_too_late_wedges_nothing(
        make_gateway, faulty, app, absence):
    # C41: also when it takes more than one try in the background.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=QUICK)
    key = new_key()
    future = claim_without_reply(gateway, daemon, key)
    assert future.result().problem == "unavailable"
    time.sleep(absence)
    daemon.start()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count(key) == 1
    assert gateway.settled(key).body == answer.body


def test_a_lost_claim_wedges_nothing_though_its_lock_has_lapsed(
        make_gateway, faulty, app):
    # C22, C41: who claimed it and never knew still lets go of it.
    daemon = faulty(settings=["store.sweep_interval=20ms"])
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_lock 1s;"))
    key = new_key()
    future = claim_without_reply(gateway, daemon, key)
    assert future.result().problem == "unavailable"
    time.sleep(1.2)  # a lock lapses by the clock
    daemon.start()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count(key) == 1
    assert gateway.settled(key).body == answer.body


def test_a_claim_that_hangs_in_the_daemon_wedges_nothing(make_gateway,
                                                         faulty, app):
    # C41
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=QUICK)
    key = new_key()
    daemon.set_faults("hold before_reply")
    assert gateway.post(key).problem == "unavailable"
    daemon.set_faults()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count(key) == 1


def test_a_client_that_leaves_during_the_claim_starts_nothing(make_gateway,
                                                              faulty, app):
    # C41: a NEW that arrives after its request is gone is released.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 30s;"))
    assert gateway.post("before").status == 201
    key = new_key()
    daemon.set_faults("hold before_reply")
    connection = gateway.leave(key=key)
    until(lambda: gateway.commands("claim") == 2)
    connection.reset()
    gateway.logged(key=key, status=499)
    daemon.set_faults()
    answer = gateway.settled(key)
    assert answer.status == 201 and app.count(key) == 1


@pytest.mark.parametrize("line", [
    "", "idempotency_response_max 10;", "idempotency_keep no_body;"])
def test_a_completion_whose_reply_was_lost_is_repeated(make_gateway, faulty,
                                                       app, line):
    # C12, C41, C42: the client gets its answer, kept or not.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 30s;", line))
    key = new_key()
    future = start_one(gateway, app, key)
    daemon.set_faults("kill before_reply")
    app.release(key)
    daemon.wait()
    daemon.set_faults()
    daemon.start()
    answer = future.result()
    assert answer.status == 201 and answer.json()["call"] == 1
    again = gateway.settled(key)
    if line:
        assert again.problem == "answer-not-kept"
    else:
        assert again.body == answer.body
    assert app.count() == 1


# ---- what others did meanwhile ----

def test_an_answer_that_the_app_stored_itself_is_what_the_client_gets(
        gateway, app):
    # C17, C22: KEPT
    key = new_key()
    future = start_one(gateway, app, key)
    with gateway.daemon.raw() as raw:
        assert raw("COMPLETE", "acme", "POST /", key,
                   app.last.header("Latchkey-Token"), 202,
                   b"Content-Type: text/plain\r\nSet-Cookie: a=b\r\n"
                   b"Content-Length: 99\r\nIdempotent-Replayed: no\r\n",
                   b"by the app") == "OK"
    app.release(key)
    answer = future.result()
    assert (answer.status, answer.body) == (202, b"by the app")
    assert answer.header("Content-Type") == "text/plain"
    again = gateway.post(key)
    assert (again.status, again.body) == (202, b"by the app")
    # What may not be replayed is not, whoever stored it.
    for replay in (answer, again):
        assert "Set-Cookie" not in replay.headers
        assert replay.header("Content-Length") == "10"
        assert replay.replayed == (replay is again)


def test_an_answer_of_an_old_token_is_discarded(gateway, app):
    # C22: STALE
    key = new_key()
    future = start_one(gateway, app, key)
    fingerprint = gateway.record(key)["fingerprint"]
    token = int(app.last.header("Latchkey-Token"))
    with gateway.daemon.raw() as raw:
        assert raw("RELEASE", "acme", "POST /", key, token) == "OK"
        reply = raw("CLAIM", "acme", "POST /", key, fingerprint)
        assert reply[0] == b"NEW" and reply[1] != token
        app.release(key)
        answer = future.result()
        assert (answer.status, answer.problem) == (409, "in-progress")
        assert raw("COMPLETE", "acme", "POST /", key, reply[1], 200,
                   b"", b"the other's") == "OK"
    assert gateway.post(key).body == b"the other's"
    assert gateway.logged(key=key, verdict="new")[0]["outcome"] == "stale"


def test_an_operation_released_by_an_operator_is_not_answered_by_an_old_run(
        gateway, app):
    # C22, C35
    key = new_key()
    future = start_one(gateway, app, key)
    token = int(app.last.header("Latchkey-Token"))
    with gateway.daemon.raw() as raw:
        assert raw("RELEASE", "acme", "POST /", key, token) == "OK"
    app.release(key)
    answer = future.result()
    assert answer.status in (409, 503) and answer.problem
    second = gateway.post(key)
    assert second.status == 201 and not second.replayed
