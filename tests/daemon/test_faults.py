"""Disks that fill up and disks that fail: nothing is acknowledged falsely."""

import select
import sqlite3
import time

import pytest

from support.life import (FINGERPRINT, begin, claim, complete, finish, name,
                          new_key, until, verdict)
from support.resp import Closed, Error, encode, fields

FAILURES = {
    "full": "fail write ENOSPC wal forever",
    "write": "fail write EIO wal forever",
    "sync": "fail sync EIO wal forever",
}


@pytest.fixture
def quick(faulty):
    """A daemon with fault points that sweeps, and so probes, often."""
    def make(*lines, settings=()):
        return faulty(*lines, settings=["store.sweep_interval=20ms",
                                        *settings])
    return make


def is_unavailable(reply):
    return isinstance(reply, Error) and reply.code == "UNAVAILABLE"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_failing_disk_is_told_and_recovers_without_a_restart(quick,
                                                               failure):
    # C19, C23
    daemon = quick()
    raw = daemon.raw()
    done, running, fresh = new_key(), new_key(), new_key()
    finish(raw, done, 200, b"", b"before")
    token = begin(raw, running, "OWNER", "me")
    daemon.set_faults(failure)
    for _ in range(5):
        assert is_unavailable(claim(raw, fresh, "OWNER", "me"))
        assert is_unavailable(complete(raw, running, token, 200, b"", b"x"))
    # What is kept may still be told, but nothing is started.
    reply = claim(raw, done)
    assert is_unavailable(reply) or reply[3] == b"before"
    assert raw("PING") == "PONG"
    daemon.set_faults()
    until(lambda: not is_unavailable(claim(raw, done)))
    assert claim(raw, done)[3] == b"before"
    # Whatever became of the refused ones, the same words find out.
    first = until(lambda: (reply := claim(raw, fresh, "OWNER", "me"))
                  and not is_unavailable(reply) and reply)
    assert first[0] == b"NEW"
    assert verdict(claim(raw, fresh, "OWNER", "you")) == "INFLIGHT"
    completed = complete(raw, running, token, 200, b"", b"x")
    assert verdict(completed) in ("OK", "KEPT")
    assert claim(raw, running)[3] == b"x"
    daemon.kill()
    daemon.set_faults()
    daemon.start()
    raw = daemon.raw()
    assert claim(raw, fresh, "OWNER", "me") == first
    assert claim(raw, running)[3] == b"x"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_what_was_acknowledged_before_a_failure_survives_a_kill_in_it(
        quick, failure):
    # C20, C23
    daemon = quick()
    raw = daemon.raw()
    done = {}
    for _ in range(30):
        key = new_key()
        finish(raw, key, 200, b"", key.encode())
        done[key] = key.encode()
    daemon.set_faults(failure)
    refused = new_key()
    assert is_unavailable(claim(raw, refused, "OWNER", "me"))
    daemon.kill()
    daemon.set_faults()
    daemon.start()
    raw = daemon.raw()
    for key, body in done.items():
        assert claim(raw, key)[3] == body
    assert claim(raw, refused, "OWNER", "me")[0] == b"NEW"


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("after", range(0, 15, 3))
def test_a_failure_at_any_moment_never_leads_to_two_holders(quick, call,
                                                            error, after):
    # C23
    daemon = quick()
    raw, other = daemon.raw(), daemon.raw()
    refused = []

    def insist(ask, *words):
        """Asks until the store can decide."""
        def answer():
            reply = ask(*words)
            refused.extend([reply] if is_unavailable(reply) else [])
            return None if is_unavailable(reply) else reply
        return until(answer)

    daemon.set_faults("fail %s %s any after %d count 3" % (call, error, after))
    for _ in range(15):
        key = new_key()
        mine = insist(claim, raw, key, "OWNER", "me")
        assert mine[0] == b"NEW"
        theirs = insist(claim, other, key, "OWNER", "you")
        assert verdict(theirs) == "INFLIGHT"
        answer = insist(complete, raw, key, mine[1], 200, b"", b"x")
        assert verdict(answer) in ("OK", "KEPT")
        assert insist(claim, other, key)[3] == b"x"
    assert refused, "nothing failed"


def test_a_failed_sync_reopens_the_store_from_what_is_there(quick):
    # C23
    daemon = quick()
    raw, reader = daemon.raw(), daemon.raw(user="reader")
    done = new_key()
    finish(raw, done)
    daemon.set_faults("fail sync EIO wal count 1")
    assert is_unavailable(claim(raw, new_key()))
    daemon.set_faults()
    until(lambda: not is_unavailable(claim(raw, new_key())))
    assert verdict(claim(raw, done)) == "REPLAY"
    stats = fields(reader("STATS"))
    assert stats["reopened"] >= 1
    assert verdict(reader("VERIFY")) == "ok"


def is_in_doubt(reply):
    return is_unavailable(reply) and "is not known" in reply


@pytest.mark.parametrize("command", [
    "CLAIM", "RELEASE", "JOB DROP", "TARGET PAUSE"])
def test_whoever_is_left_in_doubt_is_told_what_to_do_about_it(faulty, command):
    # C23: only a claim has an owner; an order speaks of one attempt.
    daemon = faulty(settings=["courier.enabled=no", "store.sweep_interval=1h",
                              "target.pay.url=http://127.0.0.1:1"])
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    key = new_key()
    token = begin(raw, key)
    assert raw("ENQUEUE", *name(key), token, "j", "pay", "/") == "OK"
    who = ("WHO", "t", "WHY", "t")
    send = {"CLAIM": lambda: claim(raw, new_key()),
            "RELEASE": lambda: raw("RELEASE", *name(key), token),
            "JOB DROP": lambda: operator("JOB", "DROP", 1, *who),
            "TARGET PAUSE": lambda: operator("TARGET", "PAUSE", "pay", *who)}
    daemon.set_faults("fail sync EIO wal count 1")
    reply = send[command]()
    assert is_in_doubt(reply), reply
    assert ("OWNER" in reply) == (command == "CLAIM"), reply
    assert ("ATTEMPT" in reply) == (command == "JOB DROP"), reply
    assert "again" in reply
    daemon.set_faults()
    until(lambda: not is_unavailable(claim(raw, new_key())))


def test_trouble_is_visible_to_whoever_watches(quick):
    # C19
    daemon = quick()
    raw = daemon.raw()
    since = len(daemon.lines)
    daemon.set_faults(FAILURES["full"])
    assert is_unavailable(claim(raw, new_key()))
    daemon.wait_for_log("level=error", since=since)
    info = raw("INFO").decode()
    assert "available:0" in info or "available:no" in info, info
    daemon.set_faults()
    until(lambda: not is_unavailable(claim(raw, new_key())))


def test_a_checkpoint_that_fails_loses_nothing(quick):
    # C23
    daemon = quick(settings=["store.checkpoint_pages=20"])
    raw = daemon.raw()
    done = []
    daemon.set_faults("fail write EIO db count 5", "fail sync EIO db count 2")
    for _ in range(300):
        key = new_key()
        token = until(lambda: (reply := claim(raw, key, "OWNER", "me"))
                      and not is_unavailable(reply) and reply)[1]
        until(lambda: not is_unavailable(
            complete(raw, key, token, 200, b"", b"x" * 500)))
        done.append(key)
    daemon.kill()
    daemon.set_faults()
    daemon.start()
    raw = daemon.raw()
    assert all(claim(raw, key)[3] == b"x" * 500 for key in done)


POINTS = ["before_append", "before_sync", "after_sync", "before_reply"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("command", ["CLAIM", "COMPLETE", "RELEASE", "DOUBT"])
def test_killed_at_each_step_of_each_command(faulty, point, command):
    # C20, C41; nothing but the command passes the point
    daemon = faulty(settings=["store.sweep_interval=1h"])
    raw = daemon.raw()
    begin(raw, new_key())  # whatever a start writes has been written
    key = new_key()
    token = None
    if command != "CLAIM":
        token = begin(raw, key, "OWNER", "me")
    daemon.set_faults("kill " + point)
    words = {"CLAIM": (FINGERPRINT, "OWNER", "me"),
             "COMPLETE": (token, 200, "", "answer"), "RELEASE": (token,),
             "DOUBT": (token, "why")}[command]
    daemon.expected_exit = True
    raw.send_bytes(encode(command, *name(key), *words))
    with pytest.raises(Closed):
        raw.read()
    assert daemon.wait() == -9
    daemon.set_faults()
    daemon.start()
    raw = daemon.raw()
    if command == "CLAIM":
        mine = claim(raw, key, "OWNER", "me")
        assert mine[0] == b"NEW"
        assert verdict(claim(raw, key, "OWNER", "you")) == "INFLIGHT"
        assert complete(raw, key, mine[1]) == "OK"
        return
    # It happened or it did not; asked again, it has.
    allowed = {"COMPLETE": ("INFLIGHT", "REPLAY"),
               "RELEASE": ("INFLIGHT", "REFUSED"),
               "DOUBT": ("INFLIGHT", "UNCERTAIN")}[command]
    seen = verdict(claim(raw, key, "NONEW"))
    assert seen in allowed
    if point in ("after_sync", "before_reply"):
        assert seen == allowed[1]
    again = raw(command, *name(key), *words)
    assert verdict(again) in ("OK", "KEPT", "STALE")
    assert verdict(claim(raw, key, "NONEW")) == allowed[1]


def test_a_daemon_that_is_stopped_and_goes_on_has_lost_nothing(quick):
    """A machine that sleeps, or a debugger: SIGSTOP in the middle of it."""
    daemon = quick("stop before_sync 20")
    raw = daemon.raw()
    keys = [new_key() for _ in range(40)]
    raw.send_bytes(b"".join(
        encode("CLAIM", *name(key), FINGERPRINT, "OWNER", "me")
        for key in keys))
    replies = []
    for key in keys:
        deadline = time.monotonic() + 30
        while True:
            raw.sock.settimeout(0.1)
            try:
                replies.append(raw.read())
                break
            except TimeoutError:
                assert time.monotonic() < deadline
                daemon.signal(18)  # SIGCONT
    assert all(reply[0] == b"NEW" for reply in replies)


@pytest.mark.parametrize("end", ["COMPLETE", "RELEASE"])
@pytest.mark.parametrize("passes", [2, 3, 5, 8, 12, 17])
def test_what_has_expired_does_not_come_back_when_the_reaper_is_killed(
        quick, passes, end):
    # C10, C20: the rows of a record go in several steps, or all stay
    daemon = quick(settings=["store.reap_rows=8"])
    raw = daemon.raw()
    # Old records that stay, so that the reaper has a way to go.
    for _ in range(100):
        begin(raw, new_key())
    expired = [new_key() for _ in range(30)]
    for key in expired:
        token = begin(raw, key, "TTL", 100)
        more = (200, "", "x") if end == "COMPLETE" else ()
        assert raw(end, *name(key), token, *more) == "OK"
    until(lambda: all(verdict(claim(raw, key, "NONEW")) == "REFUSED"
                      for key in expired))
    daemon.expected_exit = True
    daemon.set_faults("kill in_reaper %d" % passes)
    # More that expires, until enough is dead for the reaper to come.
    try:
        while daemon.is_running():
            key = new_key()
            finish(raw, key, options=("TTL", 1))
            expired.append(key)
    except (Closed, OSError):
        pass
    assert daemon.wait() == -9
    daemon.set_faults()
    daemon.start()
    raw = daemon.raw()
    back = {key: verdict(claim(raw, key, "NONEW")) for key in expired[:30]}
    assert set(back.values()) == {"REFUSED"}


# ---- one order of events ----


def now_ms(operator):
    stats = operator("STATS")
    return dict(zip(stats[::2], stats[1::2]))[b"now-ms"]


def test_what_is_kept_longer_just_in_time_is_never_gone_for_others(faulty):
    # A slow disk, and the old end of its life passes before the commit.
    daemon = faulty()
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    for ttl in (1000, 5000, 25000):
        key = new_key()
        token = begin(raw, key)
        assert complete(raw, key, token, 200, b"", b"x", "TTL", ttl) == "OK"
        ends = fields(raw("LOOKUP", *name(key)))["expires-ms"]
        daemon.set_faults("hold before_sync")
        raw.send("KEEP", *name(key), 3600000)
        until(lambda: now_ms(operator) > ends, timeout=60)
        seen = [operator("LOOKUP", *name(key)), claim(operator, key),
                complete(operator, key, token, 200, b"", b"y")]
        daemon.set_faults()
        if raw.read() == "OK":
            break  # else this machine was too slow for that TTL
    assert fields(seen[0])["state"] == b"completed"
    assert seen[1][:4] == [b"REPLAY", 200, b"", b"x"]
    assert verdict(seen[2]) == "KEPT"
    assert claim(operator, key)[:4] == [b"REPLAY", 200, b"", b"x"]


def reasons_stored(daemon):
    with sqlite3.connect(daemon.store) as db:
        return db.execute("SELECT count(*) FROM answer").fetchone()[0]


def test_a_doubt_has_its_own_reason_until_it_is_over(faulty):
    daemon = faulty()
    raw, other = daemon.raw(), daemon.raw()
    key = new_key()
    token = begin(raw, key)
    assert raw("DOUBT", *name(key), token, "no answer") == "OK"
    daemon.set_faults("hold after_commit")
    raw.send("RELEASE", *name(key), token)
    until(lambda: reasons_stored(daemon) == 0)
    other.send("LOOKUP", *name(key))
    # It is not for the reader to make up another reason in between.
    hasty, _, _ = select.select([other.sock], [], [], 0.3)
    if hasty:
        assert fields(other.read())["reason"] == b"no answer"
    daemon.set_faults()
    assert raw.read() == "OK"
    if not hasty:
        assert fields(other.read())["state"] == b"released"
