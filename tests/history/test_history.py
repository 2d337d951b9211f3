"""The checker of histories can fail, and the daemon passes it."""

import os

import pytest

from support import build, history
from support.history import record

# What precedes most of the stories below: owner 7 wins token 100.
WON = record(0, 5, "CLAIM", "NEW", owner=7, token=100)
DONE = record(10, 20, "COMPLETE", "OK", token=100, answer=55)

ALLOWED = {
    "a life": [
        WON, record(6, 8, "CLAIM", "INFLIGHT", owner=8), DONE,
        record(30, 31, "CLAIM", "REPLAY", owner=8, answer=55),
        record(30, 31, "CLAIM", "MISMATCH", "OTHER", owner=9),
        record(32, 33, "COMPLETE", "KEPT", token=100, answer=55),
        record(34, 35, "COMPLETE", "STALE", token=99, answer=57)],
    "a reply that was lost and asked for again": [
        record(0, None, "CLAIM", owner=7),
        record(10, 11, "CLAIM", "NEW", owner=7, token=100),
        record(12, 13, "CLAIM", "NEW", owner=7, token=100), ],
    "a new claim after a release": [
        WON, record(10, 11, "RELEASE", "OK", token=100),
        record(12, 13, "CLAIM", "NEW", owner=8, token=101)],
    "a new claim that overlaps the release": [
        WON, record(10, 20, "RELEASE", "OK", token=100),
        record(9, 12, "CLAIM", "NEW", owner=8, token=101)],
    "a new claim after a release without a reply": [
        WON, record(10, None, "RELEASE", token=100),
        record(12, 13, "CLAIM", "NEW", owner=8, token=101)],
    "a new claim after the TTL": [
        WON, record(10, 20, "COMPLETE", "OK", token=100, answer=55, ttl=100),
        record(115, 120, "CLAIM", "NEW", owner=8, token=101)],
    "a new claim after an eviction": [
        WON, DONE, record(30, 31, "EVICT", "OK"),
        record(32, 33, "CLAIM", "NEW", owner=8, token=101)],
    "a second run of what is doubted": [
        WON, record(10, 11, "DOUBT", "OK", token=100),
        record(12, 13, "CLAIM", "UNCERTAIN", owner=8),
        record(14, 15, "CLAIM", "NEW", "REEXECUTE", owner=9, token=101),
        record(16, 17, "COMPLETE", "STALE", token=100, answer=55)],
    "a second run after the lock": [
        WON, record(30001, 30010, "CLAIM", "UNCERTAIN", owner=8),
        record(30020, 30021, "CLAIM", "NEW", "REEXECUTE", owner=9, token=101)],
    "a completion that nobody acknowledged": [
        WON, record(10, None, "COMPLETE", token=100, answer=55),
        record(12, 13, "CLAIM", "INFLIGHT", owner=8),
        record(14, 15, "CLAIM", "REPLAY", owner=8, answer=55)],
}

FORBIDDEN = {
    "one token for two owners": [
        WON, record(6, 7, "CLAIM", "NEW", owner=8, token=100)],
    "one token for two operations": [
        WON, record(6, 7, "CLAIM", "NEW", owner=8, token=100, key=2)],
    "NEW while an earlier NEW is unresolved": [
        WON, record(6, 7, "CLAIM", "NEW", owner=8, token=101)],
    "NEW while an earlier NEW is unresolved (both at once)": [
        WON, record(1, 6, "CLAIM", "NEW", owner=8, token=101)],
    "NEW while an earlier NEW is unresolved (doubted, no REEXECUTE)": [
        WON, record(10, 11, "DOUBT", "OK", token=100),
        record(12, 13, "CLAIM", "NEW", owner=8, token=101)],
    "NEW while an earlier NEW is unresolved (lapsed, no REEXECUTE)": [
        WON, record(40000, 40001, "CLAIM", "NEW", owner=8, token=101)],
    "NEW while an earlier NEW is unresolved (the lock is valid)": [
        WON, record(29000, 29001, "CLAIM", "NEW", "REEXECUTE", owner=8,
                    token=101)],
    "NEW while an earlier NEW is unresolved (the lock was extended)": [
        WON, record(20000, 20001, "EXTEND", "OK", token=100),
        record(40000, 40001, "CLAIM", "NEW", "REEXECUTE", owner=8,
               token=101)],
    "NEW while an earlier NEW is unresolved (released too late)": [
        WON, record(6, 7, "CLAIM", "NEW", owner=8, token=101),
        record(10, 11, "RELEASE", "OK", token=100)],
    "NEW while an earlier NEW is unresolved (within the TTL)": [
        WON, record(10, 20, "COMPLETE", "OK", token=100, answer=55, ttl=100),
        record(90, 95, "CLAIM", "NEW", owner=8, token=101)],
    "NEW while an earlier NEW is unresolved (completed, then lapsed)": [
        WON, DONE, record(40000, 40001, "CLAIM", "NEW", "REEXECUTE", owner=8,
                          token=101)],
    "would be NEW while an earlier NEW is unresolved": [
        WON, record(6, 7, "CLAIM", "REFUSED", "NONEW", owner=8)],
    "a token that falls": [
        WON, record(10, 11, "RELEASE", "OK", token=100),
        record(12, 13, "CLAIM", "NEW", owner=8, token=99)],
    "an answer that nobody sent": [
        WON, DONE, record(30, 31, "CLAIM", "REPLAY", owner=8, answer=56)],
    "an answer before it was sent": [
        WON, record(6, 7, "CLAIM", "REPLAY", owner=8, answer=55), DONE],
    "two answers for one token": [
        WON, record(10, None, "COMPLETE", token=100, answer=55),
        record(10, None, "COMPLETE", token=100, answer=56),
        record(30, 31, "CLAIM", "REPLAY", owner=8, answer=55),
        record(32, 33, "CLAIM", "REPLAY", owner=8, answer=56)],
    "two answers for one token (both acknowledged)": [
        WON, DONE, record(10, 20, "COMPLETE", "OK", token=100, answer=56)],
    "KEPT with the answer of another token": [
        WON, DONE, record(30, 31, "EVICT", "OK"),
        record(32, 33, "CLAIM", "NEW", owner=8, token=101),
        record(34, 35, "COMPLETE", "OK", token=101, answer=56),
        record(36, 37, "COMPLETE", "KEPT", token=101, answer=55)],
    "a completion that was acknowledged is not replayed": [
        WON, DONE, record(30, 31, "CLAIM", "INFLIGHT", owner=8)],
    "a completion that was acknowledged is not replayed (other request)": [
        WON, DONE, record(30, 31, "CLAIM", "REPLAY", "OTHER", owner=8,
                          answer=55)],
    "a completion that was acknowledged is not replayed (uncertain)": [
        WON, DONE, record(40000, 40001, "CLAIM", "UNCERTAIN", owner=8)],
    "a completion that was acknowledged is not replayed (gone)": [
        WON, DONE, record(30, 31, "CLAIM", "REFUSED", "NONEW", owner=8)],
    "another answer than the one that was acknowledged": [
        WON, DONE, record(10, None, "COMPLETE", token=100, answer=56),
        record(30, 31, "CLAIM", "REPLAY", owner=8, answer=56)],
    "a holder that was overtaken was not told STALE": [
        WON, record(10, 11, "DOUBT", "OK", token=100),
        record(14, 15, "CLAIM", "NEW", "REEXECUTE", owner=9, token=101),
        record(16, 17, "COMPLETE", "OK", token=100, answer=55)],
    "OK for a token that was released": [
        WON, record(10, 11, "RELEASE", "OK", token=100),
        record(12, 13, "COMPLETE", "OK", token=100, answer=55)],
    "OK for a token that was completed": [
        WON, DONE, record(30, 31, "RELEASE", "OK", token=100)],
    "a token that nobody was given was accepted": [
        record(0, 1, "COMPLETE", "OK", token=100, answer=55)],
    "MISMATCH for the same fingerprint": [
        WON, record(6, 7, "CLAIM", "MISMATCH", owner=8)],
    "another fingerprint, and no MISMATCH": [
        WON, record(6, 7, "CLAIM", "INFLIGHT", "OTHER", owner=8)],
    "UNCERTAIN without a doubt or a lapsed lock": [
        WON, record(6, 7, "CLAIM", "UNCERTAIN", owner=8)],
    "running or uncertain after its acknowledged end": [
        WON, record(10, 11, "RELEASE", "OK", token=100),
        record(12, 13, "CLAIM", "INFLIGHT", owner=8)],
    "running or uncertain after its acknowledged end (expired)": [
        WON, record(10, 20, "COMPLETE", "OK", token=100, answer=55, ttl=100),
        record(200, 210, "CLAIM", "INFLIGHT", owner=8)],
    "running or uncertain after its acknowledged end (lapsed)": [
        WON, record(10, 20, "COMPLETE", "OK", token=100, answer=55, ttl=100),
        record(40000, 40001, "CLAIM", "UNCERTAIN", owner=8)],
    "STALE for the current token": [
        WON, record(6, 7, "COMPLETE", "STALE", token=100, answer=55)],
}


def write(path, records):
    path.write_bytes(b"".join(records))
    return path


@pytest.mark.parametrize("story", ALLOWED)
def test_what_the_state_machine_allows_is_no_violation(story, tmp_path):
    found, printed = history.check(write(tmp_path / "h", ALLOWED[story]))
    assert not found, printed


@pytest.mark.parametrize("story", FORBIDDEN)
def test_what_the_state_machine_forbids_is_found(story, tmp_path):
    found, printed = history.check(write(tmp_path / "h", FORBIDDEN[story]))
    assert found
    assert "VIOLATION: " + story.split(" (")[0] in printed


BUSY = [WON, record(10, 11, "RELEASE", "OK", token=100)]


@pytest.mark.parametrize("story", [
    [*BUSY, record(12, 13, "CLAIM", "INFLIGHT", owner=8)],
    [*BUSY, record(12, 13, "CLAIM", "INFLIGHT", "OTHER", owner=9)],
    [*BUSY, record(12, 13, "CLAIM", "INFLIGHT", "NONEW", owner=8)],
    [WON, record(6, 7, "CLAIM", "INFLIGHT", "OTHER", owner=8)],
    [WON, DONE, record(30, 31, "CLAIM", "INFLIGHT", owner=8)],
])
def test_a_transaction_may_be_at_work_on_a_record_of_postgres(story, tmp_path):
    path = write(tmp_path / "h", story)
    assert history.check(path)[0]
    assert not history.check(path, busy=True)[0]


@pytest.mark.parametrize("story", [
    [*BUSY, record(12, 13, "CLAIM", "UNCERTAIN", owner=8)],
    [WON, DONE, record(30, 31, "CLAIM", "UNCERTAIN", owner=8)],
    [WON, record(6, 7, "CLAIM", "REPLAY", "OTHER", owner=8)],
])
def test_no_transaction_explains_anything_else(story, tmp_path):
    assert history.check(write(tmp_path / "h", story), busy=True)[0]


def test_a_violation_is_found_across_files(tmp_path):
    files = [write(tmp_path / "one", [WON]),
             write(tmp_path / "two", [record(6, 7, "CLAIM", "NEW", owner=8,
                                             token=101)])]
    assert not history.check(files[0])[0]
    assert history.check(*files)[0]


def test_a_race_of_two_million_claims_obeys_the_state_machine(daemon,
                                                              tmp_path):
    # C01 (the daemon's part), C02, C03, C22, C41
    claims = int(os.environ.get("LATCHKEY_RACE_CLAIMS", 0)) or (
        100000 if build.is_sanitized() else 2000000)
    report = history.race(daemon, tmp_path / "h", claims=claims,
                          keys=max(200, claims // 100), connections=64,
                          readback=True, seed=os.getpid())
    print(report)
    found, printed = history.check(tmp_path / "h")
    print(printed)
    assert not found, printed
    seen = history.counts(report)
    # A race in which nothing happens proves nothing.
    for word in ("NEW", "REPLAY", "INFLIGHT", "UNCERTAIN", "MISMATCH", "OK",
                 "KEPT", "lost"):
        assert seen[word] > 0, report
    assert seen["UNAVAILABLE"] == 0
