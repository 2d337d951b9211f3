"""The daemon or the app is gone, the answer is cut: nothing is guessed."""

import signal
import socket
import time

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key, until


def is_unavailable(answer):
    if answer.status != 503:
        return False
    assert answer.problem == "unavailable"
    assert int(answer.header("Retry-After")) >= 1
    return True


# ---- the daemon ----

def test_without_a_daemon_the_answer_is_503_at_once_and_nothing_runs(
        make_gateway, make_daemon, app):
    # C19: at once, for the time-out is longer than the test's patience.
    daemon = make_daemon(start=False)
    gateway = make_gateway(daemon=daemon, server="send_timeout 1100s;",
                           locations=guard("/", "idempotency_timeout 500s;"))
    key = new_key()
    for _ in range(5):
        assert is_unavailable(gateway.post(key))
    assert app.count() == 0
    gateway.logged(5, verdict="unavailable", outcome="")
    daemon.start()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count() == 1
    daemon.stop()
    assert is_unavailable(gateway.post(key))
    assert is_unavailable(gateway.post(new_key()))
    daemon.start()
    again = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert again.replayed and again.body == answer.body
    assert app.count() == 1


def test_requests_that_need_no_daemon_go_on_without_one(make_gateway, app,
                                                        make_daemon):
    # C19
    gateway = make_gateway(daemon=make_daemon(start=False),
                           locations=guard(mode="optional"))
    assert gateway.post().status == 201
    assert gateway.request("GET", body=None).status == 201
    assert is_unavailable(gateway.post(new_key()))
    assert app.count() == 2


def test_a_daemon_that_does_not_answer_costs_its_time_out_and_no_run(
        make_gateway, app):
    # C19, C41
    gateway = make_gateway(locations=guard("/", "idempotency_timeout 1s;"))
    key = new_key()
    assert gateway.post("before").status == 201
    gateway.daemon.signal(signal.SIGSTOP)
    try:
        assert is_unavailable(gateway.post(key))
    finally:
        gateway.daemon.signal(signal.SIGCONT)
    assert app.count() == 1
    # Nobody is told "in progress" for good: what was claimed is released.
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count() == 2


@pytest.mark.parametrize("failure", [
    "fail write ENOSPC wal forever", "fail sync EIO wal forever"])
def test_a_store_that_is_full_or_broken_stops_the_app_and_recovers(
        make_gateway, faulty, app, failure):
    # C19
    daemon = faulty(settings=["store.sweep_interval=20ms"])
    gateway = make_gateway(daemon=daemon)
    key = new_key()
    assert gateway.post("before").status == 201
    daemon.set_faults(failure)
    for _ in range(3):
        assert is_unavailable(gateway.post(key))
    assert app.count() == 1
    daemon.set_faults()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert not answer.replayed and app.count() == 2


def test_a_second_daemon_is_asked_when_the_first_is_gone(make_gateway,
                                                         make_daemon, app):
    # C19
    daemon = make_daemon()
    gateway = make_gateway(
        daemon_address="unix:/tmp/nobody-listens-here", daemon=daemon,
        http="idempotency_server %s;" % daemon.address)
    key = new_key()
    answer = until(lambda: (a := gateway.post(key)).status == 201 and a)
    assert gateway.post(key).body == answer.body
    assert app.count() == 1


def test_a_daemon_on_tcp_with_a_password_works(make_gateway, make_daemon,
                                               app):
    # C19
    daemon = make_daemon(tcp=True, settings=["users.web=use web-secret"])
    gateway = make_gateway(daemon_address=daemon.tcp_address, daemon=daemon,
                           server_options="user=web password=web-secret")
    key = new_key()
    assert gateway.post(key).status == 201
    assert gateway.post(key).replayed
    wrong = make_gateway(daemon_address=daemon.tcp_address, daemon=daemon,
                         server_options="user=web password=other")
    assert is_unavailable(wrong.post(key))
    assert app.count() == 1
    log = "\n".join(wrong.log() + gateway.log())
    assert "web-secret" not in log and "password=other" not in log


# ---- the app ----

def test_an_app_that_cannot_be_reached_releases_the_key(gateway, app):
    # C21
    key = new_key()
    app.stop()
    first = gateway.post(key)
    assert first.status == 502 and first.reference
    assert "Idempotency-Expires" not in first.headers
    assert gateway.logged(key=key)[0]["outcome"] == "released"
    assert gateway.state(key) == "released"
    app.start()
    second = gateway.post(key)
    assert second.status == 201 and not second.replayed
    assert second.reference == first.reference
    assert app.last.header("Latchkey-Attempt") == "2"
    assert gateway.post(key).body == second.body and app.count() == 1


def test_a_request_moves_on_from_a_server_that_cannot_be_reached(
        make_gateway, app):
    # C21
    gateway = make_gateway(
        http="upstream two { server @DEAD@; server @APP@; }",
        locations=guard(to="proxy_pass http://two;"))
    for _ in range(4):
        key = new_key()
        assert gateway.post(key).status == 201
        assert gateway.post(key).replayed
    assert app.count() == 4


def test_with_no_server_left_the_key_is_released(make_gateway, app):
    # C21
    gateway = make_gateway(
        http="upstream none { server @DEAD@ fail_timeout=60s; "
             "server 127.0.0.1:8 fail_timeout=60s; }",
        locations=guard(to="proxy_pass http://none;"))
    key = new_key()
    for _ in range(3):
        assert gateway.post(key).status == 502
        assert gateway.state(key) == "released"


CUTS = {
    "closed": {"close": True},
    "reset": {"reset": True},
    "truncated": {"bytes": 5000, "truncate": 100},
    "truncated at once": {"bytes": 5000, "truncate": 0},
    "truncated late": {"bytes": 900000, "truncate": 899999},
    "truncated in chunks": {"bytes": 5000, "truncate": 100, "chunked": True},
    "reset in the body": {"bytes": 5000, "reset_body": 100},
}
BUFFERS = {"": "", "unbuffered": "proxy_buffering off;",
           "http/1.1": "proxy_http_version 1.1;"}


@pytest.mark.parametrize("line", BUFFERS.values(), ids=BUFFERS)
def test_an_app_that_was_reached_and_then_lost_leaves_the_outcome_open(
        make_gateway, app, line):
    # C21
    gateway = make_gateway(locations=guard("/", line))
    for count, (name, manner) in enumerate(CUTS.items(), 1):
        key = new_key()
        first = gateway.post(key, headers=tell(**manner))
        assert first.status == 502 or not first.complete, name
        again = gateway.post(key)
        assert (again.status, again.problem) == (409, "outcome-unknown"), name
        assert again.reference and app.count() == count, name
        (entry,) = gateway.logged(key=key, verdict="new")
        assert entry["outcome"] == "doubted", name


def test_an_answer_that_is_not_http_leaves_the_outcome_open(gateway, app):
    # C21
    key = new_key()
    connection = gateway.leave(key=key, headers=tell(garbage=True))
    until(lambda: gateway.state(key) not in (None, "in_progress"))
    assert gateway.post(key).problem == "outcome-unknown"
    assert connection.head()[1] == 502
    assert app.count() == 1


def test_a_cut_that_the_limit_let_through_still_leaves_the_outcome_open(
        make_gateway, app):
    # C12, C21: the client already has a part; the retry must not be told
    # that all is well, nor run.
    gateway = make_gateway(locations=guard(
        "/", "idempotency_response_max 8k;"))
    key = new_key()
    first = gateway.post(key, headers=tell(bytes=200000, truncate=150000))
    assert first.status == 502 or not first.complete
    again = gateway.settled(key)
    assert again.problem in ("outcome-unknown", "answer-not-kept")
    assert app.count() == 1


def test_an_app_that_takes_too_long_leaves_the_outcome_open(make_gateway,
                                                            app):
    # C21
    gateway = make_gateway(locations=guard("/", "proxy_read_timeout 1s;"))
    key = new_key()
    first = gateway.post(key, headers=tell(hold="long"))
    assert first.status == 504 and first.reference
    again = gateway.post(key)
    assert again.problem == "outcome-unknown"
    assert again.reference == first.reference
    app.release("long")
    assert gateway.post(key).problem == "outcome-unknown"
    assert app.count() == 1


def test_a_time_out_within_the_answer_leaves_the_outcome_open(make_gateway,
                                                              app):
    # C21
    gateway = make_gateway(locations=guard("/", "proxy_read_timeout 1s;"))
    key = new_key()
    first = gateway.post(key, headers=tell(bytes=4000, hold_body="long"))
    assert first.status in (502, 504) or not first.complete
    assert gateway.post(key).problem == "outcome-unknown"
    app.release("long")
    assert app.count() == 1


def test_an_app_that_resets_while_it_gets_the_body_leaves_it_open(
        make_gateway, make_daemon):
    # C21
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway = make_gateway(locations=guard(
            "/", "client_max_body_size 20m;",
            to="proxy_pass http://127.0.0.1:%d;" % listener.getsockname()[1]))
        key = new_key()
        future = gateway.later(body=bytes(10 << 20), key=key)
        peer, _ = listener.accept()
        peer.recv(1000)
        peer.close()  # unread data: the kernel sends RST
        assert future.result().status == 502
        assert gateway.state(key) == "uncertain"


def test_a_route_may_run_what_is_uncertain_again(make_gateway, app):
    # C21
    gateway = make_gateway(locations=guard(
        "/", "idempotency_uncertain reexecute;"))
    key = new_key()
    first = gateway.post(key, headers=tell(reset=True))
    assert first.status == 502
    second = gateway.post(key)
    assert second.status == 201 and not second.replayed
    assert app.last.header("Latchkey-Attempt") == "2"
    assert gateway.post(key).replayed and app.count() == 2


def test_a_server_is_not_tried_after_another_may_have_run_it(make_gateway,
                                                             app):
    # C21
    gateway = make_gateway(
        http="upstream two { server @APP@; server localhost:%d; }"
             % int(app.address.rsplit(":")[1]),
        locations=guard(to="proxy_pass http://two;"))
    key = new_key()
    assert gateway.post(key, headers=tell(reset=True)).status == 502
    assert app.count() == 1
    assert gateway.post(key).problem == "outcome-unknown"
    assert app.count() == 1


# ---- locks ----

def test_a_slow_app_keeps_its_lock_as_long_as_its_gateway_lives(make_gateway,
                                                                make_daemon,
                                                                app):
    # C22: the lock lapses after a second and the app takes three and a half.
    daemon = make_daemon(settings=["store.sweep_interval=100ms"])
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_lock 1s;"))
    key = new_key()
    first = gateway.later(body=b"{}", key=key, headers=tell(delay=3.5))
    app.wait_calls(1)
    while not first.done():
        answer = gateway.post(key)
        assert answer.problem == "in-progress" or answer.replayed
        time.sleep(0.05)
    assert first.result().status == 201 and app.count() == 1
    assert gateway.post(key).body == first.result().body


def test_a_slow_app_keeps_its_lock_when_the_client_is_gone(make_gateway,
                                                           make_daemon, app):
    # C11, C22
    daemon = make_daemon(settings=["store.sweep_interval=100ms"])
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_lock 1s;"))
    key = new_key()
    connection = gateway.leave(key=key, headers=tell(delay=2.5))
    app.wait_calls(1)
    connection.close()
    answer = gateway.settled(key)
    assert answer.status == 201 and answer.replayed and app.count() == 1


def test_a_claim_of_a_killed_worker_becomes_uncertain(make_gateway,
                                                      make_daemon, app):
    # C20, C22
    daemon = make_daemon(settings=["store.sweep_interval=100ms"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard(
        "/", "idempotency_lock 1s;"))
    key = new_key()
    gateway.leave(key=key, headers=tell(hold="run"))
    app.wait_held("run")
    (pid,) = gateway.workers()
    gateway.kill_worker(pid)
    until(lambda: gateway.workers() and gateway.workers() != [pid])
    answer = gateway.settled(key)
    assert answer.problem == "outcome-unknown"
    app.release("run")
    assert app.count() == 1
