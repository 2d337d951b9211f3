"""Jobs that fail: for a while, for good, too often; and who is told."""

import email.utils
import time

import pytest

from support.life import new_key, until
from support.provider import charge


def lines(daemon, event):
    return [line for line in daemon.log if "event=%s" % event in line]


# ---- dead letters ----

def test_a_job_that_keeps_failing_is_dead_after_its_limit_and_it_is_said(
        box, provider):
    # C29
    provider.control(fail=503)
    box.target("pay", provider, attempts="3").start()
    job = box.wait_job(box.leave(charge()), "dead")
    assert job["attempts"] == 3 and len(provider.calls()) == 3
    assert job["status"] == 503 and job["reason"]
    assert b"out of order" in box.bodies(job)["answer-body"]
    assert [(one["number"], one["status"]) for one in job["history"]][:2] == \
        [(1, 503), (2, 503)]
    assert [one["id"] for one in box.jobs("STATE", "dead")] == [job["id"]]
    line = box.daemon.wait_for_log("event=job-dead")
    assert "level=error" in line and "target=pay" in line
    assert job["reference"] in line
    assert int(box.target_status()["dead"]) == 1
    assert "dead" in box.operator("INFO").decode()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 301, 501])
@pytest.mark.stores("sqlite")
def test_what_is_not_temporary_is_dead_at_once(box, provider, status):
    # C29
    provider.control(fail=status)
    box.target("pay", provider,
               temporary="408 425 429 500 502 503 504").start()
    job = box.wait_job(box.leave(charge()), "dead")
    assert (job["attempts"], job["status"]) == (1, status)
    assert len(provider.calls()) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
@pytest.mark.stores("sqlite")
def test_what_is_temporary_is_tried_again(box, provider, status):
    provider.control(fail=status, times=2)
    box.target("pay", provider).start()
    job = box.wait_job(box.leave(charge()))
    assert job["attempts"] == 3
    assert [call["did"] for call in provider.calls()] == \
        ["failed", "failed", "charged"]


@pytest.mark.parametrize("status", [500, 503, 520, 522, 524, 598])
@pytest.mark.stores("sqlite")
def test_without_keys_a_service_that_fails_is_not_called_again(
        box, make_provider, status):
    # C27: it may have happened, whatever the number
    provider = make_provider(honours=False)
    provider.control(fail=status)
    box.target("pay", provider).start()
    job = box.wait_job(box.leave(charge()), "uncertain")
    assert (job["attempts"], job["status"]) == (1, status)
    assert len(provider.calls()) == 1


@pytest.mark.stores("sqlite")
def test_without_keys_it_is_called_again_where_nothing_has_happened(
        box, make_provider):
    # C27: because HTTP says so, or the target's settings
    provider = make_provider(honours=False)
    box.target("pay", provider, safe_statuses="503").start()
    for calls, status in enumerate((408, 425, 429, 503), 1):
        provider.control(fail=status, times=1)
        assert box.wait_job(box.leave(charge()))["attempts"] == 2
        assert len(provider.calls()) == 2 * calls


@pytest.mark.stores("sqlite")
def test_a_target_says_itself_what_succeeds_and_what_is_temporary(box,
                                                                  provider):
    box.target("pay", provider, success="2xx 409", temporary="404 5xx",
               attempts="2").start()
    provider.control(fail=409)
    assert box.wait_job(box.leave(charge()))["status"] == 409
    provider.control(fail=404)
    assert box.wait_job(box.leave(charge()), "dead")["attempts"] == 2
    provider.control(fail=429)
    assert box.wait_job(box.leave(charge()), "dead")["attempts"] == 1


def test_a_dead_job_can_be_retried_and_has_all_its_attempts_again(
        box, provider):
    # C29, C35
    provider.control(fail=503)
    box.target("pay", provider, attempts="2").start()
    key = box.leave(charge())
    job = box.wait_job(key, "dead")
    assert box.order("RETRY", job, who="ann", why="fixed") == "OK"
    until(lambda: len(provider.calls()) == 4)
    again = box.wait_job(key, "dead")
    assert again["attempts"] == 4 and again["forgiven"] >= 2
    provider.control()
    assert box.order("RETRY", again) == "OK"
    done = box.wait_job(key)
    assert done["attempts"] == 5
    assert {call["key"] for call in provider.calls()} == \
        {job["downstream-key"]}
    assert b"ann" in repr(box.operator("AUDIT")).encode()


def test_a_dead_job_can_be_dropped_and_is_never_called_again(box, provider):
    # C29, C35
    provider.control(fail=400)
    box.target("pay", provider).start()
    key = box.leave(charge())
    job = box.wait_job(key, "dead")
    assert box.order("DROP", job, who="ann", why="refunded by hand") == "OK"
    assert box.wait_job(key, "dropped")
    assert box.order("RETRY", job).startswith("ERR")
    provider.control()
    box.wait_job(box.leave(charge("other")))
    assert [line["customer"] for line in provider.charges()] == ["other"]
    assert b"refunded by hand" in repr(box.operator("AUDIT")).encode()


def test_whoever_may_only_read_can_list_and_not_order(box, provider):
    # C36
    provider.control(fail=400)
    box.target("pay", provider).start()
    job = box.wait_job(box.leave(charge()), "dead")
    reader = box.daemon.raw(user="reader")
    assert [one["id"] for one in box.jobs(raw=reader)] == [job["id"]]
    for words in (("JOB", "RETRY", job["id"]), ("JOB", "DROP", job["id"]),
                  ("TARGET", "PAUSE", "pay")):
        reply = reader(*words, "WHO", "x", "WHY", "y")
        assert reply.startswith(("NOPERM", "NOAUTH")), reply
    assert box.job_of(job["key"])["state"] == "dead"


def test_an_order_for_an_attempt_that_is_over_changes_nothing(box, provider):
    provider.control(fail=400)
    box.target("pay", provider).start()
    job = box.wait_job(box.leave(charge()), "dead")
    assert box.order("RETRY", job, "ATTEMPT", 7).startswith("ERR")
    assert box.job_of(job["key"])["state"] == "dead"
    assert box.order("RETRY", {"id": 987654321}) is None
    assert box.order("RETRY", job, "ATTEMPT", 1) == "OK"


def test_a_job_that_is_too_old_is_dead_and_was_never_called(box, provider):
    # C29: max_age; what it waited for does not matter
    box.target("pay", provider, attempts="1000", max_age="1ms").start()
    key = new_key()
    box.leave(charge(), key=key, delay=5)
    job = box.wait_job(key, "dead")
    assert "max_age" in job["reason"] and provider.calls() == []


def test_a_job_that_is_too_old_and_may_have_happened_is_uncertain(
        box, provider):
    # C27, C29
    provider.control(fail=503)
    box.target("pay", provider, attempts="1000", max_age="4s").start()
    job = box.wait_job(box.leave(charge()), "uncertain")
    assert 1 <= job["attempts"] < 1000 and job["reason"]


# ---- the provider forgets keys ----

def test_what_was_sent_is_not_called_again_once_its_key_is_forgotten(
        box, provider):
    # C27, C35: unless somebody knows that it has not happened
    provider.control(drop="before", next=1)
    box.target("pay", provider, key_life="1ms").start()
    key = box.leave(charge())
    job = box.wait_job(key, "uncertain")
    assert "key_life" in job["reason"] and len(provider.calls()) == 1
    result = box.daemon.cli("resolve", "--job", job["id"], "--again", "--why",
                            "not in their books", user="operator")
    assert result.returncode == 0, result.stderr
    box.wait_job(key)
    assert len(provider.charges()) == 1
    assert b"job again" in repr(box.operator("AUDIT")).encode()


def test_a_courier_that_was_lost_for_longer_than_a_key_lives(box, provider):
    # C27, C20
    box.target("pay", provider, key_life="1ms").start(faults=())
    box.daemon.set_faults("kill courier_after_call")
    box.daemon.expected_exit = True
    key = box.leave(charge(), complete_it=False)
    box.daemon.wait()
    box.daemon.set_faults()
    box.daemon.start()
    box.reconnect()
    assert "key_life" in box.wait_job(key, "uncertain")["reason"]
    assert len(provider.calls()) == len(provider.charges()) == 1


def test_a_dead_job_is_not_retried_once_its_key_is_forgotten(box, provider):
    # C27, C29
    provider.control(fail=503, next=1)
    box.target("pay", provider, key_life="1ms", attempts="1").start()
    key = box.leave(charge())
    job = box.wait_job(key, "dead")
    assert "key_life" in box.order("RETRY", job)
    result = box.daemon.cli("dead", "retry", job["id"], "--why", "x",
                            user="operator")
    assert result.returncode == 1 and "resolve --job" in result.stderr
    assert box.job_of(key)["state"] == "dead" and len(provider.calls()) == 1
    assert box.order("AGAIN", job) == "OK"
    box.wait_job(key)


def test_a_poison_job_does_not_keep_the_others_of_its_target(box, provider):
    # C29, C30
    box.target("pay", provider, attempts="4", concurrency="2").start()
    poison = [box.leave(charge("p%d" % n, fail=500)) for n in range(5)]
    good = box.leave_many(40, lambda key: charge(key))
    for key in good[-1:]:
        box.wait_job(key)
    box.wait_settled()
    states = {job["key"]: job["state"] for job in box.jobs()}
    assert {states[key] for key in poison} == {"dead"}
    assert {states[key] for key in good} == {"delivered"}
    assert len(provider.charges()) == 40


# ---- when again ----

def test_retry_after_in_seconds_is_a_lower_bound(box, provider):
    provider.control(fail=429, times=1, retry_after="2")
    box.target("pay", provider).start()
    key = box.leave(charge())
    provider.wait_calls(1)
    waiting = box.wait_job(key, "waiting")
    assert waiting["due-ms"] - waiting["created-ms"] >= 2000
    box.wait_job(key)
    first, second = provider.calls()
    assert second["ms"] - first["ms"] >= 1990


def test_retry_after_as_a_date_is_a_lower_bound(box, provider):
    box.target("pay", provider).start()
    at = int(time.time()) + 3
    provider.control(fail=503, times=1,
                     retry_after=email.utils.formatdate(at, usegmt=True))
    key = box.leave(charge())
    provider.wait_calls(1)
    # A moment passes between the daemon's clock and the store's.
    assert box.wait_job(key, "waiting")["due-ms"] >= at * 1000 - 100
    assert box.wait_job(key)["ended-ms"] >= at * 1000 - 100


@pytest.mark.stores("sqlite")
def test_a_retry_after_beyond_reason_is_cut(box, provider):
    provider.control(fail=503, times=1, retry_after="86400000")
    box.target("pay", provider, retry_after_max="1s").start()
    box.wait_job(box.leave(charge()))


# ---- how many, how fast ----

def test_no_more_calls_are_in_flight_than_the_target_allows(box, provider):
    provider.control(hang="after")
    box.target("pay", provider, concurrency="5").start()
    box.leave_many(40, lambda key: charge(key))
    provider.wait_in_flight(5)
    box.wait_job(box.leave(charge(), target="pay", path="/v1/ledger",
                           method="GET"), "waiting")
    provider.control(delay=5)
    provider.release()
    box.wait_settled()
    assert provider.status()["most_in_flight"] == 5
    assert len(provider.charges()) == 40


def test_a_rate_holds_calls_back(box, provider):
    box.target("pay", provider, rate="20/s", burst="1").start()
    box.leave_many(25, lambda key: charge(key))
    box.wait_settled()
    times = [call["ms"] for call in provider.calls()]
    assert len(times) == 25
    # 24 gaps of 50 ms, as they leave; some may be late when they arrive.
    assert times[-1] - times[0] >= 24 * 50 * 0.5
    for at in range(len(times) - 10):
        assert times[at + 10] - times[at] >= 10 * 50 * 0.2


# ---- the circuit ----

def test_the_circuit_opens_after_failures_and_then_nothing_is_called(
        box, make_provider):
    one, two = make_provider(), make_provider()
    one.control(fail=503)
    box.target("pay", one, circuit_failures="4", circuit_open="1h",
               concurrency="1", attempts="1000").target("mail", two).start()
    box.leave_many(10, lambda key: charge(key))
    box.daemon.wait_for_log("event=circuit-open")
    assert box.target_status()["circuit"] == "open"
    box.wait_job(box.leave(charge("other"), target="mail"))
    assert len(one.calls()) == 4


def test_the_circuit_closes_by_one_call_that_succeeds(box, provider):
    provider.control(fail=503)
    box.target("pay", provider, circuit_failures="4", circuit_open="300ms",
               concurrency="1", attempts="1000").start()
    keys = box.leave_many(10, lambda key: charge(key))
    box.daemon.wait_for_log("event=circuit-open")
    # While it fails, it is tried again.
    provider.wait_calls(4 + 2)
    provider.control()
    box.wait_settled()
    box.daemon.wait_for_log("event=circuit-closed")
    until(lambda: box.target_status()["circuit"] == "closed")
    assert len(provider.charges()) == len(keys)


def test_a_dead_provider_opens_its_circuit_and_costs_no_attempts_for_ever(
        box, provider):
    provider.kill()
    box.target("pay", provider, circuit_failures="3", circuit_open="200ms",
               attempts="1000").start()
    keys = box.leave_many(20, lambda key: charge(key))
    box.daemon.wait_for_log("event=circuit-open")
    provider.start()
    box.wait_settled()
    assert sorted(line["customer"] for line in provider.charges()) == \
        sorted(keys)


# ---- pause and resume ----

def test_a_paused_target_gets_nothing_until_it_is_resumed(box, make_provider):
    # C35
    one, two = make_provider(), make_provider()
    box.target("pay", one).target("mail", two).start()

    def say(word):
        reply = box.operator("TARGET", word, "pay", "WHO", "ann", "WHY", "x")
        assert reply == "OK", reply
    say("PAUSE")
    key = box.leave(charge("held"))
    other = box.leave(charge("free"), target="mail")
    box.wait_job(other)
    assert box.job_of(key)["state"] == "waiting" and not one.calls()
    assert int(box.target_status()["paused"]) == 1
    box.daemon.restart()
    box.reconnect()
    box.wait_job(box.leave(charge("free"), target="mail"))
    assert not one.calls()
    say("RESUME")
    box.wait_job(key)
    assert int(box.target_status()["paused"]) == 0
    assert b"ann" in repr(box.operator("AUDIT")).encode()


def test_a_target_that_is_taken_out_of_the_configuration_keeps_its_jobs(
        box, provider):
    box.target("pay", provider).target("mail", provider).start()
    provider.control(fail=503, retry_after="2")
    key = box.leave(charge(new_key()))
    provider.wait_calls(1)
    box.wait_job(key, "waiting")
    kept = list(box.daemon.settings)
    box.daemon.settings = [line for line in kept
                           if not line.startswith("target.pay.")]
    provider.control()
    box.daemon.restart()
    box.reconnect()
    box.wait_job(box.leave(charge("other"), target="mail"))
    assert box.job_of(key)["state"] == "waiting"
    box.daemon.settings = kept
    box.daemon.restart()
    box.reconnect()
    box.wait_job(key)
