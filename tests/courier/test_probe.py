"""Uncertain jobs and operations are asked about, and resolved by proof."""

import json
import sqlite3
import threading

import pytest

from support import stores
from support.life import (FINGERPRINT, begin, claim, complete, name, new_key,
                          until, verdict)
from support.provider import charge
from support.resp import fields
from support.witness import Witness

# Quick where the defaults are patient; the settle time is at least the time-out.
QUICK = {"timeout": "1s", "connect_timeout": "1s", "probe_settle": "1s",
         "probe_interval": "100ms"}
SETTLE = 1.0
LIST = {"probe": "/v1/charges?idempotency_key={key}", "probe_list": "/data"}


@pytest.fixture
def witness():
    made = Witness()
    yield made
    made.finish()


def start(box, to, settings=(), **more):
    box.target("pay", to, **{"idempotency": "no", **QUICK, **more})
    return box.start("daemon.log_level=debug", *settings)


def audited(box, action=None):
    found = [fields(entry) for entry in box.operator("AUDIT", "LIMIT", 1000)]
    return [entry for entry in found if entry["who"] == b"latchkey prober"
            and action in (None, entry["action"].decode())]


# ---- jobs ----

def test_what_the_provider_has_is_delivered(box, make_provider):
    # C32: presence is proof at once
    provider = make_provider(honours=False)
    start(box, provider, **LIST)
    key = box.leave(charge("cus_1", drop="after"))
    job = box.wait_job(key)
    made, = provider.charges()
    assert job["provider-id"] == made["id"] and job["attempts"] == 1
    assert len(provider.calls(job["downstream-key"])) == 1
    entry, = audited(box)
    assert b"target pay answered 200 to GET /v1/charges:" in entry["why"]
    assert b"idempotency_key" not in entry["why"]


def test_what_the_provider_never_had_is_called_again(box, make_provider):
    # C32: absence is proof after the settle time, seen twice
    provider = make_provider(honours=False)
    start(box, provider, probe="/v1/keys/{key}")
    key = box.leave(charge("cus_1", drop="before", times=1))
    job = box.wait_job(key)
    made, = provider.charges()
    assert job["provider-id"] == made["id"] and job["attempts"] == 2
    assert len(provider.calls(job["downstream-key"])) == 2


def test_absence_counts_after_the_settle_time_and_twice(box, witness):
    # C32
    start(box, witness.url, probe="/keys/{key}")
    witness.takes = lambda path: None if len(witness.posts) < 2 else 201
    key = box.leave(b"x")
    box.wait_job(key)
    first, second = witness.posts
    assert first[1]["Idempotency-Key"] == second[1]["Idempotency-Key"]
    assert second[3] - first[3] >= SETTLE
    asked = witness.asked(first[1]["Idempotency-Key"])
    settled = [when for _, _, _, when in asked
               if first[3] + SETTLE < when < second[3]]
    assert len(settled) >= 2
    assert {headers["Cache-Control"] for _, headers, _, _ in asked} == {
        "no-cache"}
    assert settled[-1] - settled[0] >= 0.1


@pytest.mark.parametrize("says", [
    (302, b"", [("Location", "/elsewhere")]), (200, b"no JSON"), (401, b""),
    (200, b'{"data":null}'), (404, b'{"data":[]}'), (500, b""),
    (200, b'{"data":[]}', [("Age", "60")])], ids=str)
@pytest.mark.stores("sqlite")
def test_an_answer_that_says_neither_proves_nothing(box, witness, says):
    # C32
    start(box, witness.url, probe="/keys/{key}", probe_list="/data")
    witness.says = lambda path: says
    key = box.leave(b"x")
    job = box.wait_job(key, "uncertain")
    until(lambda: len(witness.gets) >= 3)
    assert box.job_of(key) == job
    assert len(witness.posts) == 1 and not audited(box)


@pytest.mark.stores("sqlite")
def test_a_job_without_an_attempt_is_not_resolved(box, witness):
    """Damage: the attempt is what a resolution is fenced by."""
    start(box, witness.url, probe="/keys/{key}", id="json:/id")
    key = box.leave(b"x")
    job = box.wait_job(key, "uncertain")
    box.daemon.stop()
    with sqlite3.connect(box.daemon.store) as db:
        db.execute("UPDATE job SET attempts = 0")
    db.close()
    mine = job["downstream-key"]
    witness.says = lambda path: ((200, b'{"id":"ch_9"}') if mine in path
                                 else (404, b""))
    asked = len(witness.asked(mine))
    box.daemon.start()
    box.reconnect()
    until(lambda: len(witness.asked(mine)) >= asked + 2)
    assert box.job_of(key)["state"] == "uncertain" and not audited(box)


def test_presence_later_is_proof_though_absence_was_seen(box, witness):
    # C32: the provider was slow to show it
    start(box, witness.url, probe="/keys/{key}", id="json:/id")
    key = box.leave(b"x")
    job = box.wait_job(key, "uncertain")
    mine = job["downstream-key"]
    witness.wait_asked(mine)
    witness.says = lambda path: ((200, b'{"id":"ch_9"}') if mine in path
                                 else (404, b""))
    job = box.wait_job(key)
    assert job["provider-id"] == "ch_9" and len(witness.posts) == 1


def test_a_decision_of_a_person_in_between_stands(box, witness):
    # C32: the attempt is compared when it is resolved
    start(box, witness.url, probe="/keys/{key}")
    key = box.leave(b"x")
    job = box.wait_job(key, "uncertain")
    mine = job["downstream-key"]
    witness.wait_asked(mine)
    witness.says = lambda path: (404, b"")
    witness.gate.clear()
    seen = len(witness.asked(mine))
    until(lambda: len(witness.asked(mine)) > seen)
    assert box.order("DROP", job) == "OK"
    witness.says = lambda path: (200, b"{}")
    witness.gate.set()
    box.daemon.wait_for_log("event=probe-overtaken")
    assert box.job_of(key)["state"] == "dropped"
    assert not audited(box)


def test_a_probe_that_says_yes_to_everything_is_not_believed(box, witness):
    # C32: it does not know the query, say
    start(box, witness.url, probe="/charges?unknown={key}", probe_list="/data")
    witness.says = lambda path: (200, b'{"data":[{"id":"ch_1"}]}')
    key = box.leave(b"x")
    box.wait_job(key, "uncertain")
    box.daemon.wait_for_log("event=probe-unsound")
    assert box.job_of(key)["state"] == "uncertain"
    assert box.operator("TARGET", "PROBE", "pay") == [
        b"happened", 0, b"absent", 0, b"open", 1]
    assert box.job_of(key)["state"] == "uncertain"


@pytest.mark.stores("sqlite")
def test_it_is_not_believed_because_it_does_not_know_a_tenant(box, witness):
    # C32: what cannot exist is asked about of a tenant that does
    start(box, witness.url, probe="/{tenant}/charges?unknown={key}")
    witness.says = lambda path: ((200, b"") if path.startswith("/acme/")
                                 else (404, b""))
    key = box.leave(b"x")
    box.wait_job(key, "uncertain")
    box.daemon.wait_for_log("event=probe-unsound")
    assert box.job_of(key)["state"] == "uncertain"


def test_a_probe_that_says_no_to_everything_is_not_believed(box, witness):
    # C32: the path is wrong, or the service is not itself; what is known to be
    # there is asked about before absence counts
    start(box, witness.url, probe="/keys/{key}")
    witness.takes = lambda path: 201
    known = box.wait_job(box.leave(b"x"))["downstream-key"]
    witness.takes = lambda path: None
    key = box.leave(b"y")
    box.wait_job(key, "uncertain")
    box.daemon.wait_for_log("event=probe-unsound")
    assert witness.asked(known)
    assert box.job_of(key)["state"] == "uncertain" and not audited(box)
    witness.takes = lambda path: 201
    witness.says = lambda path: (200 if known in path else 404, b"")
    assert box.wait_job(key)["attempts"] == 2
    assert len(witness.posts) == 3


def test_a_service_that_does_not_answer_is_left_alone_for_longer(box, witness):
    start(box, witness.url, probe="/keys/{key}")
    witness.says = lambda path: (503, b"", [("Retry-After", "3600")])
    keys = [box.leave(b"x") for _ in range(5)]
    for key in keys:
        box.wait_job(key, "uncertain")
    box.daemon.wait_for_log("event=probe-failed")
    assert len(witness.gets) == 1


def test_an_operator_may_ask_at_once(box, witness):
    start(box, witness.url, probe="/keys/{key}", probe_interval="1h",
          id="json:/id")
    key = box.leave(b"x")
    mine = box.wait_job(key, "uncertain")["downstream-key"]
    assert box.operator("TARGET", "PROBE", "pay") == [
        b"happened", 0, b"absent", 0, b"open", 1]
    witness.says = lambda path: ((200, b'{"id":"ch_1"}') if mine in path
                                 else (404, b""))
    assert box.operator("TARGET", "PROBE", "pay") == [
        b"happened", 1, b"absent", 0, b"open", 0]
    assert box.job_of(key)["provider-id"] == "ch_1"
    assert box.operator("TARGET", "PROBE", "pay") == [
        b"happened", 0, b"absent", 0, b"open", 0]


@pytest.mark.stores("sqlite")
def test_asking_needs_the_role_and_a_target_with_a_probe(box, witness):
    start(box, witness.url)
    assert box.raw("TARGET", "PROBE", "pay").code in ("NOPERM", "NOAUTH")
    for target in ("pay", "nobody"):
        assert box.operator("TARGET", "PROBE", target).code == "ERR"


def test_what_is_uncertain_is_told_with_its_age(box, witness):
    # C32: aged and alerted
    start(box, witness.url, probe="/keys/{key}", probe_interval="100ms")
    witness.says = lambda path: (400, b"")
    box.daemon.wait_for_log("event=ready")
    keys = [box.leave(b"x") for _ in range(3)]
    for key in keys:
        box.wait_job(key, "uncertain")
    line = box.daemon.wait_for_log("event=uncertain kind=job target=pay")
    assert " level=warn " in line and "oldest_s=" in line


@pytest.mark.stores("sqlite")
def test_a_daemon_stops_though_somebody_waits_for_a_probe(box, witness):
    start(box, witness.url, probe="/keys/{key}", timeout="60s",
          probe_settle="60s")
    witness.gate.clear()
    box.wait_job(box.leave(b"x"), "uncertain")
    box.operator.send("TARGET", "PROBE", "pay")
    box.operator.send("PING")
    until(lambda: witness.gets)
    box.daemon.stop()
    assert box.operator.read()  # what is open, or that it stops
    assert "stop-cut-short" not in box.daemon.log_text()


# ---- operations ----

ROUTE = {"scope": "POST /pay*", "target": "pay", "probe": "/ops/{key}",
         "probe_settle": "1s", "probe_interval": "100ms"}


def route(**more):
    return ["route.payments.%s=%s" % (option, value)
            for option, value in {**ROUTE, **more}.items()]


def doubt(box, key, **more):
    token = begin(box.raw, key, **more)
    place = name(key, **more)
    assert box.raw("DOUBT", *place, token, "the app went away") == "OK"
    return token


def present(word, body=b"{}", headers=()):
    return lambda path: ((200, body, headers) if word in path else (404, b""))


def test_an_operation_that_happened_is_completed(box, witness):
    # C22, C32: without its answer: it is never run again
    start(box, witness.url, route())
    key = new_key()
    witness.says = present(key)
    doubt(box, key)
    until(lambda: verdict(claim(box.raw, key)) == "OMITTED")
    reply = claim(box.raw, key)
    assert reply[1] == 200 and reply[2] == b"proved by probe"
    entry, = audited(box)
    assert b"target pay answered 200 to GET /ops/{key}" in entry["why"]


def test_an_operation_may_adopt_the_answer(box, witness):
    # C22
    start(box, witness.url, route(adopt="yes"))
    key = new_key()
    witness.says = present(key, b'{"id":"ch_7"}',
                           [("Content-Type", "application/json"),
                            ("Set-Cookie", "no=1")])
    doubt(box, key)
    until(lambda: verdict(claim(box.raw, key)) == "REPLAY")
    reply = claim(box.raw, key)
    assert reply[1:4] == [200, b"Content-Type: application/json\r\n",
                          b'{"id":"ch_7"}']


def test_an_operation_that_did_not_happen_is_released(box, witness):
    # C22, C32
    start(box, witness.url, route())
    key = new_key()
    doubt(box, key)
    until(lambda: verdict(claim(box.raw, key)) == "NEW")
    first, last = witness.asked(key)[0], witness.asked(key)[-1]
    assert len(witness.asked(key)) >= 2 and last[3] - first[3] >= 0.1


def test_other_scopes_and_tenants_are_not_asked_about(box, witness):
    start(box, witness.url, route(tenant="acme"))
    other, elsewhere, mine = new_key(), new_key(), new_key()
    doubt(box, other, scope="POST /refunds")
    doubt(box, elsewhere, tenant="globex")
    doubt(box, mine)
    until(lambda: verdict(claim(box.raw, mine)) == "NEW")
    assert not witness.asked(other) and not witness.asked(elsewhere)
    assert verdict(claim(box.raw, other, scope="POST /refunds")) == "UNCERTAIN"


def test_uncertain_operations_are_told_by_route(box, witness):
    # C22: aged and alerted
    start(box, witness.url, route())
    witness.says = lambda path: (400, b"")
    doubt(box, new_key())
    doubt(box, new_key(), scope="POST /refunds")
    for words in ("route=payments count=1", "count="):
        line = box.daemon.wait_for_log(
            "event=uncertain kind=operation %s" % words)
        assert " level=warn " in line and "oldest_s=" in line


def test_an_operation_that_was_overtaken_is_not_touched(box, witness):
    # C22: proof is about one claim, and the token says which
    start(box, witness.url, route())
    key = new_key()
    witness.gate.clear()
    doubt(box, key)
    until(lambda: witness.gets)      # what cannot exist
    witness.says = present(key)
    box.operator("RESOLVE", *name(key), "RELEASED", "WHO", "op", "WHY", "late")
    token = begin(box.raw, key)
    witness.gate.set()
    witness.wait_asked(key)
    box.daemon.wait_for_log("event=probe-overtaken")
    assert verdict(claim(box.raw, key)) == "INFLIGHT"
    assert complete(box.raw, key, token) == "OK"
    assert not audited(box)


def test_a_roll_back_must_succeed_before_the_release(box, witness):
    # C22
    start(box, witness.url, route(rollback="pay /undo/{key}"))
    key = new_key()
    token = doubt(box, key)
    # Each pause is twice as long as the one before.
    witness.takes = lambda path: 500 if len(witness.posts) < 2 else 204
    until(lambda: verdict(claim(box.raw, key)) == "NEW")
    # One that succeeded is made again, under its key, if that was not noted.
    assert len(witness.posts) >= 2
    for path, headers, body, _ in witness.posts:
        assert path == "/undo/" + key
        assert headers["Idempotency-Key"] == \
            witness.posts[0][1]["Idempotency-Key"]
        said = json.loads(body)
        assert said["key"] == key and said["token"] == token
        assert said["tenant"] == "acme" and said["reference"]


def test_without_a_probe_the_roll_back_alone_decides(box, witness):
    # C22; each attempt is undone under a key of its own
    start(box, witness.url, [one for one in route(rollback="pay /undo")
                             if ".probe=" not in one])
    key = new_key()
    witness.takes = lambda path: 200
    doubt(box, key)
    until(lambda: verdict(claim(box.raw, key)) == "NEW")
    token = claim(box.raw, key, "NONEW")
    assert verdict(token) == "INFLIGHT"
    assert len(witness.posts) == 1 and not witness.gets


@pytest.mark.stores("postgres")
def test_a_roll_back_is_not_made_again_because_its_operation_is_busy(
        box, witness):
    # C22: another transaction has the record when it is to be released
    start(box, witness.url, [one for one in route(rollback="pay /undo")
                             if ".probe=" not in one])
    key = new_key()
    rival = box.server.connect(stores.database_of(box.url), autocommit=False)

    def take(path):
        rival.execute("SELECT pg_advisory_xact_lock(latchkey.lock_id("
                      "%s, %s, %s))", name(key))
        threading.Timer(0.5, rival.rollback).start()
        return 200
    witness.takes = take
    doubt(box, key)
    box.daemon.wait_for_log("event=resolved", timeout=8)
    assert len(witness.posts) == 1


# ---- asynchronous requests ----

@pytest.mark.parametrize("happened", [True, False],
                         ids=["happened", "absent"])
def test_a_request_is_resolved_with_its_operation(box, witness,
                                                  lost_gateway, happened):
    # C22, C32
    start(box, witness.url, ["courier.gateway=unix:%s" % lost_gateway.path,
                             *route()])
    key = new_key()
    lost_gateway.take = lambda token: box.daemon.raw()(
        "EXTEND", *name(key), token, 60000)
    if happened:
        witness.says = present(key)
    reply = box.raw("ACCEPT", *name(key), FINGERPRINT, "POST", "/payments",
                    "Content-Type: text/plain\r\n", "x")
    assert verdict(reply) == "ACCEPTED"
    job = box.wait_job(key, "delivered" if happened else "dropped", name="")
    assert job["target"] == "@gateway" and job["attempts"] == 1
    assert verdict(claim(box.raw, key)) == ("OMITTED" if happened else "NEW")


# ---- life ----

def test_a_daemon_stops_though_a_probe_hangs(box, witness):
    start(box, witness.url, probe="/keys/{key}", timeout="60s",
          probe_settle="60s")
    witness.gate.clear()
    key = box.leave(b"x")
    box.wait_job(key, "uncertain")
    until(lambda: witness.gets)
    box.daemon.stop()


def test_two_daemons_do_not_resolve_twice(box, make_provider):
    # C32
    provider = make_provider(honours=False)
    box.target("pay", provider, idempotency="no", **QUICK, **LIST)
    box.start()
    if box.is_shared:
        box.start()
    keys = [box.leave(charge("cus_%d" % n, drop=where))
            for n in range(6) for where in ("after",)]
    for key in keys:
        box.wait_job(key)
    assert len(provider.charges()) == 6 and len(audited(box)) == 6
