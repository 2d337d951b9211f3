"""Every row of the state table, over the wire."""

import collections
import contextlib
import sqlite3

import pytest

from support import stores
from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, name, new_key, until, verdict)
from support.resp import Error, fields

HEADERS = b"Content-Type: application/json\r\nLocation: /payments/7\r\n"
BODIES = {
    "empty": b"",
    "text": b'{"id": 7}',
    "binary": bytes(range(256)) * 3,
    "line ends": b"\r\n\r\n$5\r\n*1\r\n",
    "large": bytes(range(251)) * 20000,
}


def state_of(raw, key, **more):
    return fields(raw("LOOKUP", *name(key, **more)))["state"].decode()


def make_uncertain(raw, key):
    token = begin(raw, key, "OWNER", "first")
    assert raw("DOUBT", *name(key), token, "time-out") == "OK"
    return token


# ---- absent -----------------------------------------------------------------

def test_the_first_claim_is_new_and_brings_token_lock_attempt_reference(raw):
    word, token, lock_until, attempt, reference = claim(raw, new_key())
    assert word == b"NEW"
    assert 0 < token < 2 ** 53
    assert lock_until > 1600000000000
    assert attempt == 1
    assert len(reference) == 14


def test_with_nonew_nothing_is_started(raw):
    key = new_key()
    assert claim(raw, key, "NONEW") == [b"REFUSED"]
    assert raw("LOOKUP", *name(key)) is None
    begin(raw, key)


@pytest.mark.parametrize("command", [
    ("COMPLETE", 5, 200, "", ""), ("RELEASE", 5), ("DOUBT", 5, "why"),
    ("EXTEND", 5, 1000)])
def test_a_token_for_an_absent_record_is_stale(raw, command):
    key = new_key()
    assert raw(command[0], *name(key), *command[1:]) == "STALE"
    assert raw("LOOKUP", *name(key)) is None


def test_keep_lookup_and_find_of_what_is_not_there_are_nil(raw):
    assert raw("KEEP", *name(new_key()), 1000) is None
    assert raw("LOOKUP", *name(new_key())) is None
    assert raw("FIND", "acme", "7D3F-92AB-1C4E") is None


# ---- in progress ------------------------------------------------------------

def test_a_second_claim_is_told_to_wait(raw):
    key = new_key()
    reference = claim(raw, key)[4]
    word, retry_after, told = claim(raw, key)
    assert word == b"INFLIGHT"
    assert 0 < retry_after <= 30000
    assert told == reference


def test_a_claim_whose_reply_was_lost_gets_its_own_token_again(raw):
    # C41
    key = new_key()
    first = claim(raw, key, "OWNER", "me")
    assert claim(raw, key, "OWNER", "me") == first
    assert verdict(claim(raw, key, "OWNER", "you")) == "INFLIGHT"
    assert verdict(claim(raw, key)) == "INFLIGHT"
    # NONEW starts nothing, but what is running is still the owner's.
    assert claim(raw, key, "OWNER", "me", "NONEW") == first


def test_a_claim_without_owner_is_nobodys(raw):
    key = new_key()
    begin(raw, key)
    assert verdict(claim(raw, key)) == "INFLIGHT"


def test_another_request_under_the_same_key_is_a_mismatch_in_every_state(raw):
    # C03
    key = new_key()
    first = claim(raw, key, "OWNER", "me")
    mismatch = [b"MISMATCH", first[4]]

    def other(*options):
        return claim(raw, key, *options, fingerprint=OTHER_FINGERPRINT)

    assert other() == mismatch
    assert other("OWNER", "me") == mismatch
    assert raw("DOUBT", *name(key), first[1], "time-out") == "OK"
    assert other() == mismatch
    assert other("REEXECUTE") == mismatch
    assert complete(raw, key, first[1], 200, b"", b"x") == "OK"
    assert other() == mismatch
    assert other("NONEW") == mismatch
    # The first is not disturbed.
    assert claim(raw, key)[:4] == [b"REPLAY", 200, b"", b"x"]


def test_a_holder_that_shows_life_keeps_its_lock(make_daemon):
    # C22
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()
    key, other = new_key(), new_key()
    token = begin(raw, key, "LOCK", 600)
    begin(raw, other, "LOCK", 600)
    # The other one shows how much time has passed.
    while verdict(claim(raw, other)) == "INFLIGHT":
        assert raw("EXTEND", *name(key), token, 600) == "OK"
    assert verdict(claim(raw, other)) == "UNCERTAIN"
    assert verdict(claim(raw, key)) == "INFLIGHT"
    assert complete(raw, key, token) == "OK"


def test_a_lapsed_lock_becomes_uncertain_by_itself(make_daemon):
    # C22
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()
    key = new_key()
    begin(raw, key, "LOCK", 50)
    until(lambda: state_of(raw, key) == "uncertain")


def test_a_lapsed_lock_becomes_uncertain_by_the_next_claim(make_daemon):
    # C22
    daemon = make_daemon(settings=["store.sweep_interval=1h",
                                   "store.lock=50ms"])
    raw = daemon.raw()
    key = new_key()
    reference = claim(raw, key)[4]
    until(lambda: verdict(claim(raw, key)) != "INFLIGHT")
    word, reason, since, told = claim(raw, key)
    assert (word, told) == (b"UNCERTAIN", reference)
    assert isinstance(reason, bytes) and isinstance(since, int)
    assert state_of(raw, key) == "uncertain"


def test_a_late_completion_with_the_current_token_counts(make_daemon):
    # C22
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()
    key = new_key()
    token = begin(raw, key, "LOCK", 50)
    until(lambda: verdict(claim(raw, key)) == "UNCERTAIN")
    assert complete(raw, key, token, 200, b"", b"late") == "OK"
    assert claim(raw, key)[3] == b"late"


# ---- uncertain --------------------------------------------------------------

def test_a_doubted_operation_is_not_run_again_unless_asked(raw):
    key = new_key()
    token = make_uncertain(raw, key)
    word, reason, since, _ = claim(raw, key)
    assert (word, reason) == (b"UNCERTAIN", b"time-out")
    assert since > 1600000000000
    assert verdict(claim(raw, key, "OWNER", "first")) == "UNCERTAIN"
    again = claim(raw, key, "REEXECUTE")
    assert again[0] == b"NEW"
    assert again[1] > token
    assert again[3] == 2  # the attempt


def test_nonew_wins_over_reexecute(raw):
    key = new_key()
    make_uncertain(raw, key)
    assert claim(raw, key, "REEXECUTE", "NONEW") == [b"REFUSED"]
    assert state_of(raw, key) == "uncertain"


def test_an_old_token_is_stale_and_changes_nothing(raw):
    # C22
    key = new_key()
    old = make_uncertain(raw, key)
    token = begin(raw, key, "REEXECUTE")
    assert complete(raw, key, old, 200, b"", b"old") == "STALE"
    assert raw("RELEASE", *name(key), old) == "STALE"
    assert raw("DOUBT", *name(key), old, "why") == "STALE"
    assert raw("EXTEND", *name(key), old, 99000) == "STALE"
    assert verdict(claim(raw, key)) == "INFLIGHT"
    assert complete(raw, key, token, 200, b"", b"new") == "OK"
    assert complete(raw, key, old, 200, b"", b"old") == "STALE"
    assert claim(raw, key)[3] == b"new"


def test_a_doubted_operation_can_be_completed_and_released_not_extended(raw):
    for command, told, after in (
            (("COMPLETE", 200, "", "x"), "OK", "REPLAY"),
            (("RELEASE",), "OK", "REFUSED"),
            (("EXTEND", 60000), "STALE", "UNCERTAIN"),
            (("DOUBT", "another reason"), "OK", "UNCERTAIN")):
        key = new_key()
        token = make_uncertain(raw, key)
        reply = raw(command[0], *name(key), token, *command[1:])
        assert reply == told, command
        assert verdict(claim(raw, key, "NONEW")) == after, command


def test_the_first_reason_of_a_doubt_stands(raw):
    key = new_key()
    token = make_uncertain(raw, key)
    assert raw("DOUBT", *name(key), token, "another reason") == "OK"
    assert claim(raw, key)[1] == b"time-out"


def test_an_uncertain_record_never_expires(make_daemon):
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()
    doubted, finished = new_key(), new_key()
    token = begin(raw, doubted, "TTL", 100)
    assert raw("DOUBT", *name(doubted), token, "time-out") == "OK"
    finish(raw, finished, options=("TTL", 200))
    until(lambda: raw("LOOKUP", *name(finished)) is None)
    assert verdict(claim(raw, doubted)) == "UNCERTAIN"


# ---- completed --------------------------------------------------------------

@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("cache", ["64m", "0"])
def test_a_retry_gets_the_answer_byte_for_byte(make_daemon, body, cache):
    # C02; from the cache of answers, from the store, after a restart
    daemon = make_daemon(settings=["limits.cache_bytes=" + cache])
    raw = daemon.raw()
    key = new_key()
    finish(raw, key, 201, HEADERS, body)
    first = claim(raw, key)
    assert first[:4] == [b"REPLAY", 201, HEADERS, body]
    assert claim(raw, key) == first
    daemon.restart()
    assert claim(daemon.raw(), key) == first


@pytest.mark.parametrize("status", [402, 404, 409, 422, 200, 302, 500])
def test_whatever_status_was_completed_is_replayed(raw, status):
    # C08
    key = new_key()
    finish(raw, key, status, b"", b"no money")
    assert claim(raw, key)[:4] == [b"REPLAY", status, b"", b"no money"]


def test_the_first_completion_stands(raw):
    key = new_key()
    token = finish(raw, key, 201, HEADERS, b"first")
    kept = complete(raw, key, token, 500, b"", b"second")
    assert kept[:4] == [b"KEPT", 201, HEADERS, b"first"]
    assert raw("RELEASE", *name(key), token) == kept
    assert raw("DOUBT", *name(key), token, "why") == kept
    assert raw("EXTEND", *name(key), token, 5000) == kept
    assert kept[1:] == claim(raw, key)[1:]


def test_the_ttl_runs_from_completion_and_its_end_is_told(raw):
    # C10
    key = new_key()
    finish(raw, key)
    completed, expires = claim(raw, key)[4:6]
    assert expires - completed == 24 * 3600 * 1000
    other = new_key()
    token = begin(raw, other, "TTL", 5000)
    assert complete(raw, other, token) == "OK"
    completed, expires = claim(raw, other)[4:6]
    assert expires - completed == 5000
    third = new_key()
    token = begin(raw, third, "TTL", 5000)
    assert complete(raw, third, token, 200, b"", b"", "TTL", 7000) == "OK"
    completed, expires = claim(raw, third)[4:6]
    assert expires - completed == 7000


@pytest.mark.parametrize("sweep", ["20ms", "1h"])
def test_after_its_ttl_a_key_is_new(make_daemon, sweep):
    # C10; whether or not the reaper has come by
    daemon = make_daemon(settings=["store.sweep_interval=" + sweep])
    raw = daemon.raw()
    key = new_key()
    token = finish(raw, key, options=("TTL", 60))
    until(lambda: verdict(claim(raw, key, "NONEW")) == "REFUSED")
    assert raw("LOOKUP", *name(key)) is None
    assert complete(raw, key, token) == "STALE"
    # Even for another request.
    again = claim(raw, key, fingerprint=OTHER_FINGERPRINT)
    assert again[0] == b"NEW" and again[1] > token and again[3] == 1


def test_keep_lengthens_the_ttl(raw):
    key = new_key()
    finish(raw, key, options=("TTL", 5000))
    assert raw("KEEP", *name(key), 3600000) == "OK"
    completed, expires = claim(raw, key)[4:6]
    assert expires - completed >= 3600000
    # Never shortens it.
    assert raw("KEEP", *name(key), 10) == "OK"
    assert claim(raw, key)[5] == expires


def test_an_answer_that_is_not_kept_is_never_run_again(daemon, raw):
    # C12
    key = new_key()
    token = begin(raw, key)
    reply = complete(raw, key, token, 201, b"", b"", "OMIT", "too large")
    assert reply == "OK"
    omitted = claim(raw, key)
    assert omitted[:3] == [b"OMITTED", 201, b"too large"]
    assert omitted[4] - omitted[3] == 24 * 3600 * 1000
    assert verdict(claim(raw, key, "REEXECUTE")) == "OMITTED"
    daemon.restart()
    assert claim(daemon.raw(), key) == omitted


# ---- released ---------------------------------------------------------------

def test_a_released_operation_runs_fresh_with_its_reference(raw):
    key = new_key()
    first = claim(raw, key)
    assert raw("RELEASE", *name(key), first[1]) == "OK"
    assert state_of(raw, key) == "released"
    assert raw("RELEASE", *name(key), first[1]) == "STALE"
    assert complete(raw, key, first[1]) == "STALE"
    again = claim(raw, key, fingerprint=OTHER_FINGERPRINT)
    assert again[0] == b"NEW"
    assert again[1] > first[1]
    assert again[3] == 2
    assert again[4] == first[4]


# ---- apart ------------------------------------------------------------------

def test_two_tenants_with_one_key_never_meet(raw):
    # C13
    key = new_key()
    token = finish(raw, key, 201, b"", b"acme's")
    mine = fields(raw("LOOKUP", *name(key)))
    assert verdict(claim(raw, key, "NONEW", tenant="umbrella")) == "REFUSED"
    assert raw("LOOKUP", *name(key, tenant="umbrella")) is None
    assert complete(raw, key, token, tenant="umbrella") == "STALE"
    theirs = claim(raw, key, tenant="umbrella",
                   fingerprint=OTHER_FINGERPRINT)
    assert theirs[0] == b"NEW"
    assert theirs[4] != mine["reference"]
    assert claim(raw, key)[3] == b"acme's"


def test_names_that_only_look_alike_when_joined_are_apart(raw):
    # C13, C14
    finish(raw, "k", tenant="ab", scope="c")
    for tenant, scope, key in (("a", "bc", "k"), ("ab", "ck", "c"),
                               ("abc", "k", "k"), ("ab", "c", "kk")):
        assert raw("LOOKUP", tenant, scope, key) is None
        assert verdict(claim(raw, key, "NONEW", tenant=tenant,
                             scope=scope)) == "REFUSED"


def test_one_key_on_two_endpoints_is_two_operations(raw):
    # C14
    key = new_key()
    finish(raw, key, 201, b"", b"payment")
    assert begin(raw, key, scope="POST /refunds",
                 fingerprint=OTHER_FINGERPRINT)
    assert claim(raw, key)[3] == b"payment"


def test_a_reference_of_another_tenant_is_as_one_that_does_not_exist(raw):
    # C18
    key = new_key()
    reference = claim(raw, key)[4]
    assert fields(raw("FIND", "acme", reference))["key"] == key.encode()
    assert raw("FIND", "umbrella", reference) is None
    assert raw("FIND", "umbrella", "0000-0000-0000") is None


def test_a_reference_alone_is_for_those_who_may_read_all_tenants_C18_C36(
        daemon, raw):
    key = new_key()
    reference = claim(raw, key)[4]
    for user in ("reader", "operator"):
        ask = daemon.raw(user=user)
        found = fields(ask("FIND", reference))
        assert (found["tenant"], found["key"]) == (b"acme", key.encode())
        assert ask("FIND", "0000-0000-0000") is None
        assert "must look like" in str(ask("FIND", "not a reference"))
    refused = raw("FIND", reference)
    assert isinstance(refused, Error) and str(refused).startswith("NOPERM")
    assert "tenant" in str(refused)


def test_a_reference_is_found_however_it_is_spelled(raw):
    key = new_key()
    reference = claim(raw, key)[4]
    plain = reference.replace(b"-", b"").lower()
    assert fields(raw("FIND", "acme", plain))["key"] == key.encode()
    malformed = raw("FIND", "acme", "not a reference")
    assert malformed is None or isinstance(malformed, Error)


# ---- what LOOKUP tells ------------------------------------------------------

def test_lookup_tells_the_story_of_a_record(raw):
    # C35
    key = new_key()
    new = claim(raw, key)
    record = fields(raw("LOOKUP", *name(key)))
    assert record["tenant"] == b"acme"
    assert record["scope"] == b"POST /payments"
    assert record["key"] == key.encode()
    assert record["state"] == b"in_progress"
    assert record["token"] == new[1]
    assert record["lock-until-ms"] == new[2]
    assert record["attempt"] == 1
    assert record["reference"] == new[4]
    assert record["fingerprint"] == FINGERPRINT.encode()
    assert isinstance(record["claimed-ms"], int)
    assert record["ttl-ms"] == 24 * 3600 * 1000
    assert raw("DOUBT", *name(key), new[1], "time-out") == "OK"
    record = fields(raw("LOOKUP", *name(key)))
    assert record["state"] == b"uncertain"
    assert record["reason"] == b"time-out"
    assert isinstance(record["since-ms"], int)
    assert complete(raw, key, new[1], 402, HEADERS, b"\x00x") == "OK"
    record = fields(raw("LOOKUP", *name(key)))
    assert record["state"] == b"completed"
    assert (record["status"], record["headers"], record["body"]) == (
        402, HEADERS, b"\x00x")
    assert record["expires-ms"] - record["completed-ms"] == 24 * 3600 * 1000


# ---- the operator -----------------------------------------------------------

def last_audit(operator):
    return fields(operator("AUDIT", "LIMIT", 1000)[-1])


def test_an_operator_resolves_what_is_uncertain_and_it_is_audited(raw,
                                                                  operator):
    # C35
    key = new_key()
    token = make_uncertain(raw, key)
    reply = operator("RESOLVE", *name(key), "COMPLETED", 201, HEADERS, b"paid",
                     "WHO", "oncall", "WHY", "seen at the provider")
    assert reply == "OK"
    assert claim(raw, key)[:4] == [b"REPLAY", 201, HEADERS, b"paid"]
    entry = last_audit(operator)
    # The name that was given, and the user that gave it.
    assert entry["who"] == b"operator/oncall"
    assert entry["why"] == b"seen at the provider"
    assert entry["key"] == key.encode()
    assert entry["token"] == token
    assert entry["at-ms"] > 1600000000000
    # What is finished stays.
    kept = operator("RESOLVE", *name(key), "RELEASED", "WHO", "oncall",
                    "WHY", "x")
    assert kept[:2] == [b"KEPT", 201]


def test_the_audit_log_is_asked_for_one_operation(raw, operator):
    key, other = new_key(), new_key()
    for one in (key, other, key):
        make_uncertain(raw, one)
        operator("RESOLVE", *name(one), "RELEASED", "WHO", "oncall", "WHY",
                 "of " + one)
    tenant, scope, _ = name(key)
    own = ("AUDIT", "TENANT", tenant, "SCOPE", scope, "KEY", key)
    first, second = map(fields, operator(*own))
    assert first["why"] == second["why"] == ("of " + key).encode()
    assert first["id"] < second["id"]
    assert (first["job"], first["target"]) == (0, b"")
    assert [fields(entry)["id"] for entry in operator(*own, "NEWEST")] == [
        second["id"], first["id"]]
    assert [fields(entry)["id"] for entry in operator(
        *own, "NEWEST", "LIMIT", 1, "BEFORE", second["id"])] == [first["id"]]
    assert operator(*own, "AFTER", second["id"]) == []
    assert operator(*own, "COUNT") == 2
    assert operator(*own, "WHO", "oncall", "ACTION", "resolve", "COUNT") == 2
    assert operator(*own, "WHO", "operator", "COUNT") == 2
    assert operator(*own, "WHO", "call", "COUNT") == 0
    assert operator(*own, "ACTION", "evict", "COUNT") == 0
    assert operator(*own, "SINCE", second["at-ms"], "UNTIL",
                    second["at-ms"] + 1, "COUNT") >= 1
    assert operator(*own, "SINCE", second["at-ms"] + 1, "COUNT") == 0
    assert operator(*own, "JOB", 1, "COUNT") == 0


@pytest.mark.parametrize("outcome", (
    ("RELEASED",), ("COMPLETED", 200, "", "by hand")), ids=lambda o: o[0])
def test_an_operation_whose_holder_lives_is_not_resolved(raw, operator,
                                                         outcome):
    # C22, C35: the app works on it, and a retry would run beside it.
    key = new_key()
    token = begin(raw, key)
    before = operator("AUDIT", "LIMIT", 1000)
    reply = operator("RESOLVE", *name(key), *outcome, "WHO", "oncall", "WHY",
                     "impatient")
    assert verdict(reply) == "INFLIGHT" and reply[1] > 0
    assert reply[2] == fields(raw("LOOKUP", *name(key)))["reference"]
    assert operator("AUDIT", "LIMIT", 1000) == before
    assert verdict(claim(raw, key)) == "INFLIGHT"
    assert complete(raw, key, token) == "OK"


def test_an_operator_may_answer_for_releasing_a_running_operation(raw,
                                                                  operator):
    # C35
    key = new_key()
    token = begin(raw, key)
    assert operator("RESOLVE", *name(key), "RELEASED", "WHO", "oncall", "WHY",
                    "the app never started", "RUNNING") == "OK"
    assert complete(raw, key, token) == "STALE"
    assert begin(raw, key) > token
    entry = last_audit(operator)
    assert entry["why"] == b"the app never started"
    assert entry["action"] == b"resolve released (running)"


def test_an_operator_evicts_an_answer_and_caches_forget_it(raw, operator):
    # C35
    key = new_key()
    token = finish(raw, key)
    assert verdict(claim(raw, key)) == "REPLAY"
    assert operator("EVICT", *name(key), "WHO", "oncall", "WHY",
                    "wrong") == "OK"
    assert verdict(claim(raw, key, "NONEW")) == "REFUSED"
    assert complete(raw, key, token) == "STALE"
    assert begin(raw, key) > token
    entry = last_audit(operator)
    assert (entry["who"], entry["why"]) == (b"operator/oncall", b"wrong")


def is_stored(daemon, marker):
    """Is it in any file of the store, freed page or log?"""
    return any(marker in path.read_bytes()
               for path in daemon.folder.iterdir() if path.is_file())


@pytest.mark.parametrize("size", [60, 3000, 200000])
def test_no_file_holds_an_answer_that_was_evicted(daemon, raw, operator, size):
    keys = [new_key() for _ in range(20)]
    bodies = [b"<secret-%d>" % i * (size // 11) for i in range(20)]
    for key, body in zip(keys, bodies):
        finish(raw, key, 200, b"", body)
    for key, body in list(zip(keys, bodies))[::2]:
        assert is_stored(daemon, body[:11])
        assert operator("EVICT", *name(key), "WHO", "oncall", "WHY",
                        "private") == "OK"
        assert not is_stored(daemon, body[:11])
    assert [claim(raw, key)[3] for key in keys[1::2]] == bodies[1::2]


def test_an_answer_evicted_while_the_log_is_read_goes_when_that_ends(
        daemon, raw, operator):
    """A backup or a verify may be running: nobody waits for it."""
    key = new_key()
    finish(raw, key, 200, b"", b"<secret>")
    with contextlib.closing(sqlite3.connect(daemon.store)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM answer").fetchone()
        assert operator("EVICT", *name(key), "WHO", "oncall", "WHY",
                        "private") == "OK"
        assert is_stored(daemon, b"<secret>")
    until(lambda: not is_stored(daemon, b"<secret>"))


def test_only_a_completed_record_can_be_evicted(raw, operator):
    key = new_key()
    assert operator("EVICT", *name(key), "WHO", "a", "WHY", "b") is None
    begin(raw, key)
    reply = operator("EVICT", *name(key), "WHO", "a", "WHY", "b")
    assert isinstance(reply, Error) and "in_progress" in reply
    assert verdict(claim(raw, key)) == "INFLIGHT"


def test_resolving_what_is_not_there_is_nil_and_leaves_no_entry(operator):
    before = operator("AUDIT", "LIMIT", 1000)
    assert operator("RESOLVE", *name(new_key()), "RELEASED", "WHO", "a", "WHY",
                    "b") is None
    assert operator("AUDIT", "LIMIT", 1000) == before


@pytest.mark.parametrize("answer", [(), (201,), (201, HEADERS)])
def test_a_resolution_says_which_parts_of_the_answer_are_missing(
        raw, operator, answer):
    key = new_key()
    token = begin(raw, key)
    raw("DOUBT", *name(key), token, "timed out")
    reply = operator("RESOLVE", *name(key), "COMPLETED", *answer, "WHO", "a",
                     "WHY", "b")
    assert "COMPLETED needs a status, headers and a body" in str(reply)
    assert verdict(claim(raw, key)) == "UNCERTAIN"


@pytest.mark.parametrize("words", [("WHO", "oncall"), ("WHY", "because"), (),
                                   ("WHO", "", "WHY", "x"),
                                   ("WHO", "oncall", "WHY", "")])
def test_nobody_acts_without_saying_who_and_why(raw, operator, words):
    # C35
    key = new_key()
    finish(raw, key)
    reply = operator("EVICT", *name(key), *words)
    assert isinstance(reply, Error) and reply.code == "ERR"
    assert "WHO" in reply or "WHY" in reply
    assert verdict(claim(raw, key)) == "REPLAY"


def test_list_shows_every_record_once_in_pages(raw, operator):
    # C35
    keys = [new_key() for _ in range(25)]
    for key in keys:
        begin(raw, key)
    finish(raw, new_key())
    seen, cursor = [], 0
    while True:
        cursor, page = operator("LIST", "STATE", "in_progress", "LIMIT", 10,
                                "CURSOR", cursor)
        assert len(page) <= 10
        seen += [fields(row)["key"].decode() for row in page]
        if cursor in (0, b"0"):
            break
    assert sorted(seen) == sorted(keys)


def test_list_keeps_tenants_and_states_apart(raw, operator):
    finish(raw, "one", tenant="acme", body=b"12345", headers=b"A: b\r\n")
    begin(raw, "two", tenant="umbrella")

    def listed(*options):
        return {fields(row)["key"] for row in operator("LIST", *options)[1]}

    assert listed() == {b"one", b"two"}
    assert listed("TENANT", "umbrella") == {b"two"}
    assert listed("STATE", "completed") == {b"one"}
    assert listed("STATE", "uncertain") == set()
    assert listed("OLDER", 3600000) == set()
    row = fields(operator("LIST", "TENANT", "acme")[1][0])
    assert row["answer-bytes"] == 11
    assert "body" not in row and "headers" not in row


def test_the_audit_log_is_read_on_from_an_entry(raw, operator):
    for i in range(3):
        key = new_key()
        finish(raw, key)
        assert operator("EVICT", *name(key), "WHO", "oncall", "WHY",
                        "number %d" % i) == "OK"
    entries = [fields(entry) for entry in operator("AUDIT", "LIMIT", 2)]
    assert [entry["why"] for entry in entries] == [b"number 0", b"number 1"]
    rest = operator("AUDIT", "AFTER", entries[-1]["id"])
    assert [fields(entry)["why"] for entry in rest] == [b"number 2"]


def test_verify_finds_nothing_wrong_with_a_sound_store(raw, operator):
    for _ in range(20):
        finish(raw, new_key())
    report = operator("VERIFY")
    assert verdict(report) == "ok"


def test_stats_count_records_and_verdicts(raw, operator):
    key = new_key()
    finish(raw, key)
    claim(raw, key)
    stats = fields(operator("STATS"))
    assert stats.pop("trouble") == b""
    assert stats and all(isinstance(value, int) for value in stats.values())
    assert 1 in stats.values()


# ---- what needs a person is in the log ----

STORES = {
    "sqlite": lambda ask: {},
    "postgres": lambda ask: {
        "url": stores.make_postgres(ask("postgres"))},
    "redis": lambda ask: {
        "url": ask("redis_server").url(),
        "settings": ["store.prefix=" + stores.make_prefix()]},
}


def counts(operator):
    """Operations by state: as STATS has them, and as LIST shows them."""
    stats = fields(operator("STATS"))
    listed = collections.Counter(
        fields(record)["state"].decode() for record in operator("LIST")[1])
    return ({state: stats["records-" + state.replace("_", "-")]
             for state in ("in_progress", "uncertain", "completed",
                           "released")},
            {state: listed[state] for state in (
                "in_progress", "uncertain", "completed", "released")},
            stats["records"])


@pytest.mark.parametrize("kind", STORES)
def test_stats_and_list_agree_whatever_the_keeper_has_not_seen(
        make_daemon, request, kind):
    """On a server another daemon is the keeper, and does not come by."""
    options = STORES[kind](request.getfixturevalue)
    settings = options.pop("settings", [])
    if kind != "sqlite":
        make_daemon(settings=settings + ["store.sweep_interval=1h"], **options)
    daemon = make_daemon(settings=settings + ["store.sweep_interval=50ms"],
                         **options)
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    finish(raw, new_key())
    finish(raw, new_key(), options=("TTL", 1))
    begin(raw, new_key())
    begin(raw, new_key(), "LOCK", 1)
    for command, more in (("RELEASE", ()), ("DOUBT", ("why",))):
        key = new_key()
        token = begin(raw, key)
        assert raw(command, *name(key), token, *more) == "OK"
    expected = {"in_progress": 1, "uncertain": 2, "completed": 1,
                "released": 1}
    until(lambda: counts(operator) == (expected, expected, 5))


def test_a_daemon_that_only_delivers_counts_as_well(make_daemon, postgres):
    url = stores.make_postgres(postgres)
    front = make_daemon(url=url, settings=["store.sweep_interval=1h"])
    only = make_daemon(url=url, arguments=["--courier-only"])
    raw, operator = front.raw(), only.raw(user="operator")
    key = new_key()
    assert raw("DOUBT", *name(key), begin(raw, key), "why") == "OK"
    until(lambda: counts(operator)[0]["uncertain"] == 1)
    assert only.cli("health").returncode == 1


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("how", ("doubted", "lapsed"))
def test_an_uncertain_operation_is_in_the_log_without_a_courier(
        request, make_daemon, kind, how):
    # C22
    options = STORES[kind](request.getfixturevalue)
    options["settings"] = ["store.sweep_interval=50ms",
                           *options.get("settings", ())]
    daemon = make_daemon(**options)
    key = new_key()
    raw = daemon.raw()
    if how == "doubted":
        make_uncertain(raw, key)
    else:
        begin(raw, key, "LOCK", 1)
    line = daemon.wait_for_log("event=uncertain kind=operation")
    assert " level=warn " in line
    assert "count=1" in line and "oldest_s=" in line
