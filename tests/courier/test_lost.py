"""Couriers, providers and databases that are lost in the middle of a call: in
the end the provider's ledger is compared with ours."""

import signal
import time

import pytest

from support.life import (FINGERPRINT, claim, complete, name, new_key, until,
                          verdict)
from support.outbox import check_books
from support.provider import charge
from support.resp import Closed

# In the order in which a job meets them.
BEFORE_THE_CALL = ["after_lease", "courier_leased", "after_called",
                   "courier_before_call"]
AFTER_THE_CALL = ["courier_after_call", "after_end", "courier_recorded"]
# What is lost here was never marked as called, so it is simply called again.
NEVER_CALLED = {"after_lease", "courier_leased"}
JOBS, AT_ONCE = 30, 3
# Where the key is honoured a call needs no mark before it.
CASES = [(point, honours) for honours in (True, False)
         for point in BEFORE_THE_CALL + AFTER_THE_CALL
         if not (honours and point == "after_called")]


def order(box, word, target="pay"):
    try:
        reply = box.operator("TARGET", word, target, "WHO", "t", "WHY", "t")
        assert reply == "OK", reply
    except (Closed, OSError):
        pass  # the daemon was killed before it could say so


def start_again(box, daemon=None):
    daemon = daemon or box.daemon
    daemon.set_faults()
    daemon.start()
    box.reconnect()


# ---- the gateway dies ----

def test_a_gateway_that_is_lost_before_it_takes_a_request(box, lost_gateway):
    """C31, C27: all that the courier knows is that it sent it; the store knows
    that the app never heard of it, so it is simply sent again."""
    box.start("courier.gateway=unix:%s" % lost_gateway.path)
    key = new_key()
    assert verdict(box.raw("ACCEPT", *name(key), FINGERPRINT, "POST", "/",
                           "", "x")) == "ACCEPTED"
    until(lambda: len(lost_gateway.tokens) > 1)
    assert verdict(claim(box.raw, key)) == "ACCEPTED"
    done = []

    def run(token):  # the app has, and then the gateway is lost
        assert box.daemon.raw()("EXTEND", *name(key), token, 60000) == "OK"
        done.append(complete(box.daemon.raw(), key, token, 201))
    lost_gateway.take = run
    until(lambda: done == ["OK"])
    box.wait_job(key, name="")
    # Whoever had it before is overtaken.
    assert lost_gateway.tokens == sorted(set(lost_gateway.tokens))
    assert complete(box.raw, key, lost_gateway.tokens[0]) == "STALE"


# ---- the courier dies ----

@pytest.mark.parametrize("point,honours", CASES)
@pytest.mark.parametrize("number", [1, 3])
def test_a_courier_killed_at_any_point(box, make_provider, point, honours,
                                       number):
    """C27, C22: honoured keys: each job exactly once. Not honoured: at most
    once, and what is not known to have happened is uncertain."""
    provider = make_provider(honours=honours)
    box.target("pay", provider, concurrency=AT_ONCE).start(faults=())
    order(box, "PAUSE")
    keys = box.leave_many(JOBS, lambda key: charge(key))
    box.daemon.set_faults("kill %s %d" % (point, number))
    order(box, "RESUME")
    box.daemon.expected_exit = True
    assert box.daemon.wait() == -signal.SIGKILL, box.daemon.log_text()
    made = len(provider.charges())
    start_again(box)
    box.wait_settled()
    counts = check_books(box, provider, keys)
    if honours:
        assert counts == {"delivered": JOBS}
        return
    # What was called, and what had ended in a work that was not done: on
    # PostgreSQL another one may be under way.
    assert counts["uncertain"] <= AT_ONCE * (2 if box.server else 1)
    if point in NEVER_CALLED and number == 1:
        assert counts == {"delivered": JOBS} and made == 0
    if point == "courier_after_call":
        assert counts["uncertain"] >= 1
    for job in box.jobs("STATE", "uncertain"):
        assert job["called"] and job["reason"]
        # Nobody called it twice to find out.
        assert len(provider.calls(job["downstream-key"])) <= 1


@pytest.mark.parametrize("honours", [True, False])
def test_killed_while_the_provider_works(box, make_provider, honours):
    """C27: the external call was made, its answer has nobody to go to."""
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=3)
    box.target("pay", provider).start()
    keys = box.leave_many(3, lambda key: charge(key))
    provider.wait_in_flight(3)
    box.daemon.kill()
    assert len(provider.charges()) == 3
    box.daemon.start()
    box.reconnect()
    box.wait_settled()
    counts = check_books(box, provider, keys)
    assert counts == {"delivered" if honours else "uncertain": 3}
    assert len(provider.calls()) == (6 if honours else 3)


def test_uncertain_jobs_stay_so_over_restarts(box, make_provider):
    # C27
    provider = make_provider(honours=False)
    box.target("pay", provider).start()
    key = box.leave(charge(drop="after"))
    box.wait_job(key, "uncertain")
    for end in (box.daemon.kill, box.daemon.stop):
        end()
        box.daemon.start()
        box.reconnect()
        box.wait_job(box.leave(charge("other")))
        assert box.job_of(key)["state"] == "uncertain"
    assert len(provider.charges("cus_1")) == 1


@pytest.mark.parametrize("honours", [True, False])
def test_a_daemon_that_is_stopped_ends_its_calls_first(box, make_provider,
                                                       honours):
    # C40
    provider = make_provider(honours=honours)
    provider.control(delay=300)
    box.target("pay", provider, concurrency="3").start()
    keys = box.leave_many(12, lambda key: charge(key))
    provider.wait_in_flight(3)
    box.daemon.stop()
    provider.control()
    box.daemon.start()
    box.reconnect()
    box.wait_settled()
    assert check_books(box, provider, keys) == {"delivered": 12}
    assert len(provider.calls()) == 12


def stop_while_called(box, provider, grace):
    """A job's key; the daemon has been told to stop while the provider works."""
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.grace=" + grace)
    key = box.leave(charge())
    provider.wait_in_flight(1)
    box.daemon.expected_exit = True
    box.daemon.signal(signal.SIGTERM)
    box.daemon.wait_for_log("event=courier-stopping")
    return key


@pytest.mark.parametrize("honours", [True, False])
def test_a_stop_waits_for_calls_as_long_as_it_is_told(box, make_provider,
                                                      honours):
    # C40
    provider = make_provider(honours=honours)
    key = stop_while_called(box, provider, "1h")
    provider.release()
    assert box.daemon.wait() == 0, box.daemon.log_text()
    box.daemon.start()
    box.reconnect()
    assert box.wait_job(key)["attempts"] == 1 and len(provider.calls()) == 1


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.parametrize("how", ["a second signal", "no grace"])
def test_a_stop_that_does_not_wait_says_what_is_not_known(
        box, make_provider, honours, how):
    # C40, C27: in 1 h the test would have been given up.
    provider = make_provider(honours=honours)
    key = stop_while_called(box, provider, "0" if how == "no grace" else "1h")
    if how == "a second signal":
        box.daemon.signal(signal.SIGTERM)
    assert box.daemon.wait() == 0, box.daemon.log_text()
    box.daemon.start()
    box.reconnect()
    job = box.wait_job(key, "delivered" if honours else "uncertain")
    assert len(provider.charges()) == 1
    if honours:
        # A lease that was under way at the stop is an attempt without a call.
        assert job["attempts"] >= 2 and len(provider.calls()) == 2
        return
    assert "stopped before a response came" in job["reason"]
    assert len(provider.calls()) == 1


# ---- leases ----

@pytest.mark.parametrize("honours", [True, False])
def test_a_call_may_take_longer_than_its_lease(box, make_provider, honours):
    # C22: as long as the courier lives, the job is its own.
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.lease=1500ms")
    other = box.start("courier.lease=1500ms") if box.is_shared else None
    key = box.leave(charge())
    provider.wait_in_flight(1)
    first = box.job_of(key)
    # A whole lease later it is still the same attempt.
    until(lambda: box.job_of(key)["due-ms"] >= first["due-ms"] + 1500)
    assert len(provider.calls()) == 1
    provider.release()
    job = box.wait_job(key)
    assert job["attempts"] == 1 and len(provider.calls()) == 1
    if other:
        other.stop()


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("postgres")
def test_a_courier_stopped_past_its_lease_changes_nothing_afterwards(
        box, make_provider, honours):
    # C22, C27
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.lease=500ms")
    key = box.leave(charge())
    provider.wait_in_flight(1)
    first = box.daemon
    first.signal(signal.SIGSTOP)
    second = box.daemon = box.make_daemon(
        url=box.url, settings=first.settings)
    box.reconnect()
    box.wait_job(key, "delivered" if honours else "uncertain")
    provider.release()
    first.signal(signal.SIGCONT)
    # The first one hears its answer, and is told that it is too late.
    box.wait_job(box.leave(charge("after"), raw=first.raw()))
    job = box.job_of(key)
    assert job["state"] == ("delivered" if honours else "uncertain")
    assert len(provider.charges("cus_1")) == 1
    assert len(provider.calls(job["downstream-key"])) == (2 if honours else 1)
    second.stop()


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("sqlite")
def test_a_stopped_daemon_goes_on_and_repeats_nothing(box, make_provider,
                                                      honours):
    # C22: the embedded store has no other courier.
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.lease=300ms")
    key = box.leave(charge())
    provider.wait_in_flight(1)
    due = box.job_of(key)["due-ms"]
    box.daemon.signal(signal.SIGSTOP)
    until(lambda: time.time() * 1000 > due + 300)
    provider.release()
    box.daemon.signal(signal.SIGCONT)
    box.wait_settled()
    check_books(box, provider, [key])
    assert len(provider.charges()) == 1
    if not honours:
        assert len(provider.calls()) == 1


@pytest.mark.parametrize("point,honours", CASES)
@pytest.mark.stores("postgres")
def test_a_courier_stopped_at_any_point_while_another_goes_on(
        box, make_provider, point, honours):
    # C22, C27: SIGSTOP past the lease, then SIGCONT.
    provider = make_provider(honours=honours)
    box.target("pay", provider, concurrency=AT_ONCE)
    first = box.start("courier.lease=500ms", faults=())
    order(box, "PAUSE")
    keys = box.leave_many(JOBS, lambda key: charge(key))
    first.set_faults("stop %s 2" % point)
    order(box, "RESUME")
    until(lambda: is_stopped(first.pid))
    first.set_faults()
    box.daemon = box.make_daemon(url=box.url, settings=first.settings)
    box.reconnect()
    box.wait_settled()
    first.signal(signal.SIGCONT)
    until(lambda: not is_stopped(first.pid))
    # Whatever the first one still had in hand has come back by then.
    keys.append(box.leave(charge("after"), raw=first.raw()))
    box.wait_job(keys[-1])
    counts = check_books(box, provider, keys)
    if honours:
        assert counts == {"delivered": JOBS + 1}
    for job in box.jobs("STATE", "uncertain"):
        assert len(provider.calls(job["downstream-key"])) <= 1
    first.stop()
    assert check_books(box, provider, keys) == counts


def is_stopped(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


# ---- two couriers ----

@pytest.mark.stores("postgres")
def test_two_couriers_on_one_database_never_deliver_a_job_twice(
        box, make_provider):
    # C27
    provider = make_provider(honours=False)
    box.target("pay", provider, concurrency="8")
    first = box.start("courier.batch=16")
    second = box.start("courier.batch=16")
    provider.control(hang="after", next=16)
    keys = box.leave_many(600, lambda key: charge(key))
    provider.wait_in_flight(9)  # one of them has eight at most
    provider.release()
    box.wait_settled()
    assert check_books(box, provider, keys) == {"delivered": 600}
    assert len(provider.calls()) == 600
    shares = [int(box.target_status(raw=one.raw(user="reader"))["sent-ok"])
              for one in (first, second)]
    assert sum(shares) == 600 and min(shares) > 0, shares


@pytest.mark.stores("postgres")
def test_a_daemon_that_is_only_a_courier_delivers_and_decides_nothing(
        box, provider):
    box.target("pay", provider).start("courier.enabled=no")
    courier = box.start(arguments=["--courier-only"])
    key = box.leave(charge())
    box.wait_job(key)
    with courier.raw() as raw:
        reply = raw("CLAIM", "acme", "s", "k", "f")
        assert reply.startswith("ERR") or reply.startswith("NOPERM"), reply
    assert len(provider.charges()) == 1


# ---- the database dies ----

@pytest.mark.stores("postgres")
def test_a_courier_that_starts_before_its_database_delivers_once_it_is_there(
        box, provider, postgres):
    # C19, C27
    box.target("pay", provider).start("courier.enabled=no")
    key = box.leave(charge())
    postgres.kill()
    box.start(arguments=["--courier-only"])
    postgres.start()
    box.wait_job(key)
    assert len(provider.charges()) == 1


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("postgres")
def test_an_answer_that_cannot_be_stored_yet_is_stored_later(
        box, make_provider, postgres, honours):
    # C27, C42: PostgreSQL is away while the provider answers.
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=4)
    box.target("pay", provider).start("courier.lease=1s")
    keys = box.leave_many(4, lambda key: charge(key))
    provider.wait_in_flight(4)
    postgres.kill()
    provider.release()
    until(lambda: provider.status()["in_flight"] == 0)
    postgres.start()
    box.wait_settled()
    assert check_books(box, provider, keys) == {"delivered": 4}
    assert len(provider.calls()) == 4


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("postgres")
def test_the_database_is_killed_while_jobs_are_delivered(
        box, make_provider, postgres, honours):
    # C27, C20
    provider = make_provider(honours=honours)
    provider.control(delay_20=50)
    box.target("pay", provider, concurrency="8").start()
    order(box, "PAUSE")
    keys = box.leave_many(300, lambda key: charge(key))
    order(box, "RESUME")
    for share in (30, 120):
        provider.wait_charges(share)
        postgres.kill()
        postgres.start()
    box.reconnect()
    box.wait_settled()
    counts = check_books(box, provider, keys)
    if honours:
        assert counts == {"delivered": 300}


# ---- the provider dies ----

@pytest.mark.parametrize("honours", [True, False])
def test_the_provider_is_killed_again_and_again(box, make_provider, honours):
    # C27, C20
    provider = make_provider(honours=honours)
    provider.control(delay_20=100)
    box.target("pay", provider, concurrency="4", attempts="1000").start()
    keys = box.leave_many(120, lambda key: charge(key))
    for share in (20, 50, 80):
        provider.wait_charges(share)
        provider.kill()
        provider.start()
    box.wait_settled()
    counts = check_books(box, provider, keys)
    if honours:
        assert counts == {"delivered": 120}
    # Uncertain is what was sent and cut off. How many that are is the kernel's
    # to say: a listener that is being torn down still takes connections.
    for job in box.jobs():
        assert job["state"] != "uncertain" or job["reason"].startswith(
            ("sent, no response",
             "answered 200, but the response is incomplete")), job


def test_a_provider_that_stands_still_loses_nothing(box, provider):
    # C30
    box.target("pay", provider, timeout="500ms", attempts="1000").start()
    provider.pause()
    keys = box.leave_many(10, lambda key: charge(key))
    until(lambda: all(job["attempts"] >= 2 for job in box.jobs()) and
          len(box.jobs()) == 10)
    provider.resume()
    box.wait_settled()
    assert check_books(box, provider, keys) == {"delivered": 10}
