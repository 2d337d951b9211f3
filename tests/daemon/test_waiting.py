"""WAIT and AWAIT: told as soon as it is decided, without polling."""

import socket

import pytest

from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, name, new_key, until, verdict)
from support.resp import Error, Push, encode, fields

MINUTE = 60000


@pytest.fixture
def sweeping(make_daemon):
    return make_daemon(settings=["store.sweep_interval=20ms"])


def wait_for(raw, key, *options, ms=MINUTE, **more):
    raw.send("CLAIM", "acme", "POST /payments", key,
             more.get("fingerprint", FINGERPRINT), "WAIT", ms, *options)


def waiters(raw):
    """How many wait, by INFO."""
    info = raw("INFO").decode()
    lines = dict(line.split(":", 1) for line in info.split("\r\n")
                 if ":" in line)
    for field in ("waiters", "blocked_clients"):
        if field in lines:
            return int(lines[field])
    raise AssertionError("INFO does not tell how many wait:\n" + info)


def parked(daemon, count):
    raw = daemon.raw()
    until(lambda: waiters(raw) == count)


def test_who_waits_gets_the_answer_when_it_is_there(daemon, raw):
    # C07
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    wait_for(waiting, key)
    parked(daemon, 1)
    assert complete(raw, key, token, 200, b"A: b\r\n", b"answer") == "OK"
    assert waiting.read()[:4] == [b"REPLAY", 200, b"A: b\r\n", b"answer"]


def test_who_waits_takes_over_after_a_release_and_only_one_does(daemon, raw):
    # C07
    key = new_key()
    token = begin(raw, key)
    waiting = [daemon.raw() for _ in range(10)]
    for one in waiting:
        wait_for(one, key)
    parked(daemon, len(waiting))
    assert raw("RELEASE", *name(key), token) == "OK"
    # One of them holds it now; the others wait for that one.
    parked(daemon, len(waiting) - 1)
    token = fields(raw("LOOKUP", *name(key)))["token"]
    assert complete(raw, key, token, 200, b"", b"second") == "OK"
    replies = [one.read() for one in waiting]
    assert sorted(verdict(reply) for reply in replies) == (
        ["NEW"] + ["REPLAY"] * 9)
    assert {reply[3] for reply in replies if reply[0] == b"REPLAY"} == {
        b"second"}


def test_who_waits_is_told_of_a_doubt(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    wait_for(waiting, key)
    parked(daemon, 1)
    assert raw("DOUBT", *name(key), token, "time-out") == "OK"
    assert waiting.read()[:2] == [b"UNCERTAIN", b"time-out"]


def test_who_waits_with_reexecute_runs_what_is_doubted(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    wait_for(waiting, key, "REEXECUTE")
    parked(daemon, 1)
    assert raw("DOUBT", *name(key), token, "time-out") == "OK"
    reply = waiting.read()
    assert reply[0] == b"NEW" and reply[1] > token


def test_who_waits_is_told_of_a_lapsed_lock(sweeping):
    # C22
    raw, waiting = sweeping.raw(), sweeping.raw()
    key = new_key()
    begin(raw, key, "LOCK", 200)
    wait_for(waiting, key)
    assert verdict(waiting.read()) == "UNCERTAIN"


def test_who_waits_is_told_of_an_operators_decision(daemon, raw, operator):
    key = new_key()
    begin(raw, key)
    waiting = daemon.raw()
    wait_for(waiting, key)
    parked(daemon, 1)
    assert operator("RESOLVE", *name(key), "COMPLETED", 200, "", "by hand",
                    "WHO", "oncall", "WHY", "seen", "RUNNING") == "OK"
    assert waiting.read()[3] == b"by hand"


def test_who_has_waited_long_enough_is_told_that_it_runs(raw):
    key = new_key()
    begin(raw, key)
    wait_for(raw, key, ms=50)
    word, retry_after, _ = raw.read()
    assert word == b"INFLIGHT" and retry_after > 0


def test_a_wait_of_zero_does_not_wait(raw):
    key = new_key()
    begin(raw, key)
    assert verdict(claim(raw, key, "WAIT", 0)) == "INFLIGHT"


def test_what_is_decided_already_is_told_at_once(raw):
    done, doubted = new_key(), new_key()
    finish(raw, done)
    assert verdict(claim(raw, done, "WAIT", MINUTE)) == "REPLAY"
    assert verdict(claim(raw, done, "WAIT", MINUTE,
                         fingerprint=OTHER_FINGERPRINT)) == "MISMATCH"
    token = begin(raw, doubted, "WAIT", MINUTE)
    assert raw("DOUBT", *name(doubted), token, "why") == "OK"
    assert verdict(claim(raw, doubted, "WAIT", MINUTE)) == "UNCERTAIN"


def test_the_owner_does_not_wait_for_itself(raw):
    # C41
    key = new_key()
    first = claim(raw, key, "OWNER", "me")
    assert claim(raw, key, "OWNER", "me", "WAIT", MINUTE) == first


def test_a_wait_holds_up_what_follows_it_on_its_connection_only(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    waiting.send_bytes(
        encode("CLAIM", *name(key), FINGERPRINT, "WAIT", MINUTE) +
        encode("PING") + encode("LOOKUP", *name(key)))
    parked(daemon, 1)
    assert raw("PING") == "PONG"
    assert complete(raw, key, token, 200, b"", b"x") == "OK"
    assert verdict(waiting.read()) == "REPLAY"
    assert waiting.read() == "PONG"
    assert fields(waiting.read())["state"] == b"completed"


def test_who_waits_and_goes_away_is_forgotten(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    wait_for(waiting, key)
    parked(daemon, 1)
    waiting.close()
    parked(daemon, 0)
    # Nobody takes the key over in the name of who is gone.
    assert raw("RELEASE", *name(key), token) == "OK"
    assert verdict(claim(raw, key, "NONEW")) == "REFUSED"


def test_many_wait_for_one_and_all_get_the_same_bytes(daemon, raw):
    # C07
    key = new_key()
    token = begin(raw, key)
    body = bytes(range(256)) * 64
    waiting = [daemon.raw() for _ in range(300)]
    for one in waiting:
        wait_for(one, key)
    parked(daemon, len(waiting))
    assert complete(raw, key, token, 200, b"", body) == "OK"
    assert all(one.read()[:4] == [b"REPLAY", 200, b"", body]
               for one in waiting)


def test_many_wait_for_many(daemon, raw):
    keys = [new_key() for _ in range(100)]
    tokens = {key: begin(raw, key) for key in keys}
    waiting = [(key, daemon.raw()) for key in keys * 2]
    for key, one in waiting:
        wait_for(one, key)
    parked(daemon, len(waiting))
    raw.send_bytes(b"".join(
        encode("COMPLETE", *name(key), tokens[key], 200, "", key)
        for key in reversed(keys)))
    for key, one in waiting:
        assert one.read()[3] == key.encode()


def test_beyond_the_limit_nobody_is_parked(make_daemon):
    daemon = make_daemon(settings=["limits.waiters=2"])
    raw = daemon.raw()
    key = new_key()
    begin(raw, key)
    waiting = [daemon.raw() for _ in range(2)]
    for one in waiting:
        wait_for(one, key)
    parked(daemon, 2)
    reply = claim(raw, key, "WAIT", MINUTE)
    assert verdict(reply) == "INFLIGHT" or isinstance(reply, Error)


# ---- AWAIT ------------------------------------------------------------------

@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request):
    return request.param


def settled(push):
    """The id of a push, in either form."""
    if isinstance(push, Push):
        assert push[0] == b"settled" and len(push) == 2, push
    else:
        assert push[:2] == [b"message", b"settled"] and len(push) == 3, push
    return push[-1].decode()


@pytest.mark.parametrize("end", ["COMPLETE", "RELEASE", "DOUBT", "lapse"])
def test_await_is_told_of_every_end(sweeping, protocol, end):
    # C07
    raw, other = sweeping.raw(protocol=protocol), sweeping.raw()
    key = new_key()
    token = begin(other, key, "LOCK", 150 if end == "lapse" else MINUTE)
    assert raw("AWAIT", "some id", *name(key), MINUTE) == "QUEUED"
    more = {"COMPLETE": (200, "", ""), "DOUBT": ("why",)}.get(end, ())
    if end != "lapse":
        assert other(end, *name(key), token, *more) == "OK"
    assert settled(raw.read()) == "some id"


def test_await_of_what_does_not_run_is_told_at_once(daemon, protocol):
    raw = daemon.raw(protocol=protocol)
    done = new_key()
    finish(raw, done)
    for key in (done, new_key()):
        assert raw("AWAIT", key, *name(key), MINUTE) == "QUEUED"
        assert settled(raw.read()) == key


def test_awaits_of_one_connection_hold_up_nothing(daemon, protocol):
    raw = daemon.raw(protocol=protocol)
    keys = [new_key() for _ in range(50)]
    tokens = [begin(raw, key) for key in keys]
    for key in keys:
        assert raw("AWAIT", key, *name(key), MINUTE) == "QUEUED"
    assert raw("PING") == "PONG"
    other = daemon.raw()
    for key, token in zip(keys, tokens):
        assert complete(other, key, token) == "OK"
    assert {settled(raw.read()) for _ in keys} == set(keys)
    assert raw("PING") == "PONG"


def test_a_push_never_stands_inside_another_reply(daemon, protocol):
    # The end of the operation is among the commands of the same pipeline.
    raw = daemon.raw(protocol=protocol)
    key = new_key()
    token = begin(raw, key)
    assert raw("AWAIT", "id", *name(key), MINUTE) == "QUEUED"
    raw.send_bytes(encode("COMPLETE", *name(key), token, 200, "", "x" * 9000) +
                   encode("CLAIM", *name(key), FINGERPRINT) + encode("PING"))
    replies = [raw.read() for _ in range(4)]
    pushes = [reply for reply in replies if isinstance(reply, list) and
              reply[0] in (b"settled", b"message")]
    assert [settled(push) for push in pushes] == ["id"]
    rest = [reply for reply in replies if reply not in pushes]
    assert rest[0] == "OK" and rest[1][0] == b"REPLAY" and rest[2] == "PONG"


def test_an_await_whose_time_is_up_is_forgotten_silently(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    assert raw("AWAIT", "short", *name(key), 30) == "QUEUED"
    parked(daemon, 0)
    assert complete(raw, key, token) == "OK"
    assert raw("PING") == "PONG"
    raw.sock.settimeout(0.2)
    with pytest.raises(socket.timeout):
        raw.read()


def test_an_await_whose_client_is_gone_is_forgotten(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    waiting = daemon.raw()
    assert waiting("AWAIT", "id", *name(key), MINUTE) == "QUEUED"
    waiting.close()
    parked(daemon, 0)
    assert complete(raw, key, token) == "OK"


def test_one_operation_awaited_twice_is_told_twice(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    assert raw("AWAIT", "one", *name(key), MINUTE) == "QUEUED"
    assert raw("AWAIT", "two", *name(key), MINUTE) == "QUEUED"
    assert complete(daemon.raw(), key, token) == "OK"
    assert {settled(raw.read()), settled(raw.read())} == {"one", "two"}
