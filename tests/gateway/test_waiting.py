"""The original is still running: refuse, or wait for it."""

import signal
import time

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key, until

WAIT = guard("/", "idempotency_wait 25s;")


def test_a_retry_of_a_running_request_is_told_when_to_come_back(gateway,
                                                                app):
    # C07
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    answer = gateway.post(key)
    assert (answer.status, answer.problem) == (409, "in-progress")
    assert answer.json()["title"] == (
        "A request is outstanding for this Idempotency-Key")
    assert 1 <= int(answer.header("Retry-After")) <= 60
    reference = app.last.header("Latchkey-Reference")
    assert answer.reference == answer.json()["reference"] == reference
    app.release("run")
    assert first.result().status == 201
    assert gateway.post(key).replayed and app.count() == 1
    gateway.logged(key=key, verdict="inflight", status=409)


def test_a_waiting_retry_gets_the_answer_when_it_is_there(make_gateway, app):
    # C07
    gateway = make_gateway(locations=WAIT)
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    claims = claims_of(gateway)
    waiting = [gateway.later(body=b"{}", key=key) for _ in range(20)]
    until(lambda: waiters(gateway) >= 20)
    time.sleep(0.5)  # long enough for a loop to be seen
    assert claims_of(gateway) == claims + 20
    assert waiters(gateway) == 20
    assert not any(future.done() for future in waiting)
    app.release("run")
    for future in waiting:
        answer = future.result()
        assert answer.replayed and answer.body == first.result().body
    assert app.count() == 1
    # One claim before and one after the wait.
    assert claims_of(gateway) == claims + 40
    entries = gateway.logged(20, key=key, verdict="replay")
    assert all(float(entry["wait_time"]) >= 0 for entry in entries)


@pytest.mark.parametrize("room", [100, 1])
def test_a_waiting_retry_does_not_ask_in_a_loop(make_gateway, make_daemon,
                                                app, room):
    # C07: also when the daemon's list of those who wait is full.
    daemon = make_daemon(settings=["limits.waiters=%d" % room])
    gateway = make_gateway(daemon=daemon, workers=1, locations=WAIT)
    keys = [new_key(), new_key()]
    first = [gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
             for key in keys]
    app.wait_held("run", 2)
    claims = claims_of(gateway)
    waiting = [gateway.later(body=b"{}", key=key) for key in keys]
    until(lambda: waiters(gateway) >= 2)
    time.sleep(1.5)  # long enough for a loop to be seen
    asked = claims_of(gateway) - claims
    assert asked == 2 if room > 1 else 2 <= asked <= 4
    assert not any(future.done() for future in waiting)
    app.release("run")
    for future, original in zip(waiting, first):
        assert future.result().replayed
        assert future.result().body == original.result().body
    assert app.count() == 2


def claims_of(gateway):
    """How many CLAIMs the daemon has had."""
    return gateway.commands("claim")


def waiters(gateway):
    """How many AWAITs."""
    return gateway.commands("await")


def test_a_waiting_retry_runs_if_the_first_is_released(make_gateway, app):
    # C07, C09
    gateway = make_gateway(locations=WAIT)
    key = new_key()
    first = gateway.later(body=b"{}", key=key,
                          headers=tell(hold="run", status=500))
    app.wait_held("run")
    second = gateway.later(body=b"{}", key=key)
    until(lambda: waiters(gateway))
    app.release("run")
    assert first.result().status == 500
    assert second.result().status == 201
    assert not second.result().replayed and app.count() == 2


def test_a_waiting_retry_is_told_of_an_uncertain_outcome(make_gateway, app):
    # C07, C21
    gateway = make_gateway(locations=WAIT)
    key = new_key()
    first = gateway.later(body=b"{}", key=key,
                          headers=tell(hold="run", reset=True))
    app.wait_held("run")
    second = gateway.later(body=b"{}", key=key)
    until(lambda: waiters(gateway))
    app.release("run")
    assert first.result().status == 502
    assert second.result().problem == "outcome-unknown"
    assert app.count() == 1


def test_a_wait_ends_with_409_when_its_time_is_over(make_gateway, app):
    # C07
    gateway = make_gateway(locations=guard("/", "idempotency_wait 300ms;"))
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    answer = gateway.post(key)
    assert answer.problem == "in-progress"
    assert int(answer.header("Retry-After")) >= 1
    (entry,) = gateway.logged(key=key, verdict="inflight")
    assert float(entry["wait_time"]) >= 0.29
    app.release("run")
    assert first.result().status == 201


def test_a_client_that_stops_waiting_disturbs_nobody(make_gateway, app):
    # C07, C11
    gateway = make_gateway(locations=WAIT)
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    impatient = gateway.leave(key=key)
    patient = gateway.later(body=b"{}", key=key)
    until(lambda: waiters(gateway) >= 2)
    impatient.reset()
    gateway.logged(key=key, status=499)
    app.release("run")
    assert first.result().status == 201
    assert patient.result().replayed and app.count() == 1


@pytest.mark.parametrize("away", [False, True])
def test_a_wait_survives_a_restart_of_the_daemon(make_gateway, app, away):
    # C07, C40: it may take much longer than a client of this test waits, and
    # the first may end while the daemon is away.
    gateway = make_gateway(
        http="idempotency_connect_timeout 20s;",
        locations=guard("/", "idempotency_wait 3000s;",
                        "idempotency_timeout 20s;"))
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    second = gateway.later(body=b"{}", key=key)
    until(lambda: waiters(gateway))
    gateway.daemon.stop()
    if away:
        app.release("run")
        app.wait_answered(1)
    gateway.daemon.start()
    app.release("run")
    assert first.result().status == 201
    assert second.result().replayed
    assert second.result().body == first.result().body
    assert app.count() == 1


def test_waiting_on_a_daemon_that_hangs_ends_in_time(make_gateway, app):
    # C07, C19
    gateway = make_gateway(locations=guard("/", "idempotency_wait 1s;",
                                           "idempotency_timeout 1s;"))
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    second = gateway.later(body=b"{}", key=key)
    until(lambda: waiters(gateway))
    gateway.daemon.signal(signal.SIGSTOP)
    try:
        assert second.result().status in (409, 503)
    finally:
        gateway.daemon.signal(signal.SIGCONT)
    app.release("run")
    assert first.result().status in (201, 503)
    assert app.count() == 1
