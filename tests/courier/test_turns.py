"""Targets that are changed or go while jobs are on their way, orders at the
last attempt, and one target's large bodies: nothing is called twice, nothing
is stuck, nobody waits for another."""

import socket

import pytest

from support.build import patience
from support.life import until
from support.outbox import target_settings
from support.provider import charge


def start_with(box, *lines):
    """The same store, with other targets."""
    box.daemon.settings = box.settings + list(lines)
    box.daemon.start()
    box.reconnect()


def kill_while_called(box, provider, **more):
    """A job whose courier is lost while the provider works; its key."""
    provider.control(hang="after", next=1)
    box.target("pay", provider, **more).start("courier.lease=300ms")
    box.settings = box.settings + ["courier.lease=300ms"]
    key = box.leave(charge())
    provider.wait_in_flight(1)
    box.daemon.kill()
    return key


def test_what_was_called_with_an_honoured_key_is_not_called_without(
        box, make_provider):
    # C27: the operator finds out that the service does not honour keys.
    provider = make_provider(honours=False)
    key = kill_while_called(box, provider, idempotency="yes")
    start_with(box, *target_settings("pay", provider.url, idempotency="no"))
    job = box.wait_job(key, "uncertain")
    assert job["sent"] and len(provider.charges()) == 1
    assert len(provider.calls()) == 1


def test_a_lost_call_is_made_again_once_its_key_is_honoured(box, provider):
    # C27: the other way round.
    key = kill_while_called(box, provider, idempotency="no")
    start_with(box, *target_settings("pay", provider.url))
    job = box.wait_job(key)
    assert len(provider.charges()) == 1 and len(provider.calls()) == 2
    assert {call["key"] for call in provider.calls()} == \
        {job["downstream-key"]}


LOST = {"drop": "after", "cut": 1, "fail": 504}


@pytest.mark.parametrize("manner", LOST)
@pytest.mark.parametrize("answer", [None, 503])
def test_what_waits_because_an_answer_was_lost_is_not_called_without_its_key(
        box, make_provider, manner, answer):
    """C27: also if a later attempt was answered: that says nothing of the
    one before."""
    provider = make_provider(honours=False)
    provider.control(**{manner: LOST[manner]}, next=1)
    box.target("pay", provider, idempotency="yes", backoff="1h",
               backoff_max="1h").start()
    key = box.leave(charge())
    until(lambda: box.job_of(key)["history"])
    if answer:
        provider.control(fail=answer, next=1)
        assert box.order("RETRY", box.job_of(key)) == "OK"
        until(lambda: len(box.job_of(key)["history"]) == 2)
    called, made = len(provider.calls()), len(provider.charges())
    box.daemon.stop()
    start_with(box, *target_settings("pay", provider.url, idempotency="no"))
    assert box.order("RETRY", box.job_of(key)) == "OK"
    job = box.wait_job(key, "uncertain")
    assert "an earlier response was lost" in job["reason"]
    assert len(provider.calls()) == called
    assert int(box.target_status()["doubts"]) == 1
    assert "job=%d" % job["id"] in box.daemon.wait_for_log("job-uncertain")
    # Somebody knows that it has not happened: then it is called.
    assert box.order("AGAIN", job) == "OK"
    box.wait_job(key)
    assert len(provider.charges()) == made + 1


def test_a_dead_job_whose_answer_was_lost_is_not_retried_without_its_key(
        box, make_provider):
    # C27: one that was refused is, whatever is said of keys.
    provider = make_provider(honours=False)
    provider.control(drop="after", next=1)
    box.target("pay", provider, idempotency="yes", attempts="1").start()
    lost = box.leave(charge("lost"))
    box.wait_job(lost, "dead")
    provider.control(fail=429, next=1)
    refused = box.leave(charge("refused"))
    box.wait_job(refused, "dead")
    box.daemon.stop()
    start_with(box, *target_settings("pay", provider.url, idempotency="no"))
    for key in (lost, refused):
        assert box.order("RETRY", box.job_of(key)) == "OK"
    box.wait_job(refused)
    box.wait_job(lost, "uncertain")
    assert len(provider.charges("lost")) == 1


def test_what_is_in_doubt_is_called_again_while_its_key_is_honoured(
        box, provider):
    # C27: a restart changes nothing about it.
    provider.control(drop="after", next=1)
    box.target("pay", provider, backoff="1h", backoff_max="1h").start()
    key = box.leave(charge())
    until(lambda: box.job_of(key)["history"])
    box.daemon.stop()
    start_with(box, *target_settings("pay", provider.url))
    assert box.order("RETRY", box.job_of(key)) == "OK"
    box.wait_job(key)
    assert len(provider.charges()) == 1 and len(provider.calls()) == 2


@pytest.mark.parametrize("word,state", [("DROP", "dropped"),
                                        ("DELIVERED", "delivered")])
def test_a_lost_job_of_a_target_that_is_gone_is_told_of_and_can_be_ended(
        box, make_provider, word, state):
    provider = make_provider(honours=False)
    key = kill_while_called(box, provider)
    start_with(box, *target_settings("other", provider.url))
    line = box.daemon.wait_for_log("event=target-unknown",
                                   since=box.daemon.started_at)
    assert "target=pay" in line.replace('"', "")
    job = box.job_of(key)
    assert job["state"] == "leased"
    assert box.order("RETRY", job).startswith("ERR")
    until(lambda: box.order(word, job) == "OK")
    assert box.job_of(key)["state"] == state
    # It comes back, and changes nothing any more.
    box.daemon.stop()
    start_with(box, *target_settings("pay", provider.url))
    box.wait_job(box.leave(charge("other")))
    assert box.job_of(key)["state"] == state
    assert len(provider.charges("cus_1")) == 1


def test_a_living_lease_cannot_be_ended_by_an_order(box, provider):
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.lease=60s")
    key = box.leave(charge())
    provider.wait_in_flight(1)
    for word in ("DROP", "DELIVERED", "AGAIN", "RETRY"):
        assert box.order(word, box.job_of(key)).startswith("ERR")
    provider.release()
    box.wait_job(key)


def test_again_is_a_call_even_after_the_last_attempt(box, make_provider):
    # What has not happened does not count against the limit.
    provider = make_provider(honours=False)
    provider.control(drop="before", next=1)
    box.target("pay", provider, attempts="1").start()
    key = box.leave(charge())
    job = box.wait_job(key, "uncertain")
    assert box.order("AGAIN", job) == "OK"
    job = box.wait_job(key)
    assert job["attempts"] == 2 and len(provider.charges()) == 1


@pytest.fixture
def silent():
    """Accepts connections, thousands of them, and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


@pytest.mark.stores("sqlite")
def test_large_bodies_of_a_silent_target_leave_room_for_the_others(
        box, provider, silent):
    # C30: they hold more memory than all jobs in hand may.
    box.target("bad", silent, concurrency="100", timeout="60s")
    box.target("pay", provider).start()
    for _ in range(80):
        box.leave(b"x" * 1000000, target="bad")
    until(lambda: int(box.target_status("bad")["in-flight"]) >= 32)
    box.leave_many(10, lambda key: charge(key))
    until(lambda: len(provider.charges()) == 10)
    assert int(box.target_status("bad")["in-flight"]) < 80
    box.daemon.kill()


@pytest.mark.stores("sqlite")
def test_a_header_of_the_job_cannot_stand_beside_the_key(box, app):
    # C28: whatever the key's header is called.
    box.target("pay", "http://" + app.address, key_header="Request-Id",
               header="X-Mine: target", id="json:/call").start()
    key = box.leave(b"{}", path="/x", headers="request-id: mine\r\n"
                    "X-Mine: job\r\nContent-Type: text/plain\r\n")
    job = box.wait_job(key)
    assert app.last.headers.all("Request-Id") == [job["downstream-key"]]
    assert app.last.headers.all("X-Mine") == ["target"]


@pytest.mark.stores("sqlite")
def test_however_many_calls_run_their_leases_are_renewed(box, silent):
    # C22: more than fit into three works.
    for name in ("one", "two", "three", "four"):
        box.target(name, silent, idempotency="no", concurrency="1000",
                   timeout="600s")
    box.start("courier.lease=%ds" % (3 * patience()), "courier.batch=1000")
    for name in ("one", "two", "three", "four"):
        box.leave_many(850, lambda key: b"{}", target=name)

    def leases():
        found = [job for job in box.jobs() if job["state"] != "waiting"]
        return [job["due-ms"] for job in found if job["called"]]
    until(lambda: len(leases()) == 3400)
    last = max(leases())
    until(lambda: min(leases()) > last or box.states()["uncertain"],
          pause=0.5)
    assert box.states() == {"leased": 3400}
    box.daemon.kill()
