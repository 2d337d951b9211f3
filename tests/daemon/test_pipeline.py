"""Pipelines, and what one client may do to others: nothing is dropped,
overtaken or held up."""

import signal
import socket
import struct
import threading
import time

import pytest

from support import build
from support.life import (FINGERPRINT, begin, claim, complete, finish, name,
                          new_key, until, verdict)
from support.resp import Error, encode, fields

SIGNED = ("WHO", "jo", "WHY", "a test")
MINUTE = 60000


def claim_of(key, *options):
    return encode("CLAIM", *name(key), FINGERPRINT, *options)


def info_of(raw, what):
    info = raw("INFO").decode()
    return int(info.split(what + ":", 1)[1].split("\r\n", 1)[0])


def waiters(raw):
    return info_of(raw, "blocked_clients")


# ---- the end of a pipeline ----


def test_a_pipeline_whose_sender_has_shut_down_is_run_to_its_end(daemon, raw):
    # C41
    large = new_key()
    finish(raw, large, 200, b"", b"b" * 100000)
    for _ in range(10):
        fresh = [new_key() for _ in range(3)]
        # The lookup holds the rest back, so that the end is known before it
        # is run; the replies are more than is written at once.
        half = daemon.raw(daemon.tcp_address)
        half.send_bytes(encode("LOOKUP", *name(large)) +
                        claim_of(large) * 40 +
                        b"".join(map(claim_of, fresh)))
        half.sock.shutdown(socket.SHUT_WR)
        assert fields(half.read())["state"] == b"completed"
        for _ in range(40):
            assert verdict(half.read()) == "REPLAY"
        for _ in fresh:
            assert verdict(half.read()) == "NEW"
        assert half.at_end()


def test_a_claim_that_could_wait_is_answered_after_a_shutdown(daemon, raw):
    half = daemon.raw()
    half.send_bytes(claim_of(new_key(), "WAIT", MINUTE))
    half.sock.shutdown(socket.SHUT_WR)
    assert verdict(half.read()) == "NEW"
    assert half.at_end()


@pytest.mark.parametrize("how", ["unix", "tcp"])
def test_a_claim_of_a_client_that_has_left_is_not_begun(daemon, raw, how):
    # C41: it lay in the socket while the daemon stood still.
    key, held = new_key(), new_key()
    token = begin(raw, held)
    left = daemon.raw(daemon.tcp_address if how == "tcp" else None)
    assert left("PING") == "PONG"
    daemon.signal(signal.SIGSTOP)
    left.send_bytes(claim_of(key, "OWNER", "gone") +
                    encode("COMPLETE", *name(held), token, 200, "", "kept"))
    if how == "tcp":  # else it could not be told from a shutdown
        left.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                             struct.pack("ii", 1, 0))
    left.close()
    daemon.signal(signal.SIGCONT)
    # What it held is settled all the same.
    until(lambda: verdict(claim(raw, held)) == "REPLAY")
    assert verdict(claim(raw, key)) == "NEW"


def test_a_claim_that_waited_for_the_store_is_not_begun_for_nobody(faulty):
    # C41
    daemon = faulty()
    raw, first, left = daemon.raw(), daemon.raw(), daemon.raw()
    key, other = new_key(), new_key()
    daemon.set_faults("hold before_append")
    first.send_bytes(claim_of(new_key()))
    until(lambda: info_of(raw, "queued_ops") == 1)
    time.sleep(0.3)  # until it is alone in its batch
    left.send_bytes(claim_of(key, "OWNER", "gone"))
    other_client = daemon.raw()
    other_client.send_bytes(claim_of(other))
    until(lambda: info_of(raw, "queued_ops") == 3)
    left.close()
    time.sleep(1.2)  # only what is old is looked at
    daemon.set_faults()
    assert verdict(first.read()) == verdict(other_client.read()) == "NEW"
    assert verdict(claim(raw, key)) == "NEW"


def test_a_job_is_answered_after_a_shutdown(daemon):
    half = daemon.raw(user="operator")
    half.send_bytes(encode("VERIFY") + encode("PING"))
    half.sock.shutdown(socket.SHUT_WR)
    assert half.read()[0] == b"ok"
    assert half.read() == "PONG"
    assert half.at_end()


# ---- order ----


@pytest.mark.parametrize("settings", [[], ["limits.cache_bytes=0"]],
                         ids=["cache", "no cache"])
def test_an_eviction_does_not_overtake_an_earlier_claim(make_daemon, settings):
    # C35
    raw = make_daemon(settings=settings).raw(user="operator")
    for _ in range(50):
        key, other = new_key(), new_key()
        finish(raw, key, 200, b"", b"kept")
        raw.send_bytes(claim_of(other) + claim_of(key) +
                       encode("EVICT", *name(key), *SIGNED) +
                       claim_of(key, "NONEW"))
        replies = [raw.read() for _ in range(4)]
        assert verdict(replies[0]) == "NEW"
        assert replies[1][:4] == [b"REPLAY", 200, b"", b"kept"]
        assert replies[2] == "OK"
        assert verdict(replies[3]) == "REFUSED"


@pytest.mark.parametrize("first", [True, False], ids=["alone", "behind"])
@pytest.mark.parametrize("end", ["RELEASE", "COMPLETE", "REEXECUTE",
                                 "RESOLVE"])
def test_the_end_of_a_doubt_does_not_overtake_an_earlier_claim(operator, end,
                                                               first):
    # C35
    for _ in range(30):
        key, other = new_key(), new_key()
        token = begin(operator, key)
        assert operator("DOUBT", *name(key), token, "timed out") == "OK"
        ends = {
            "RELEASE": encode("RELEASE", *name(key), token),
            "COMPLETE": encode("COMPLETE", *name(key), token, 200, "", "x"),
            "REEXECUTE": claim_of(key, "REEXECUTE"),
            "RESOLVE": encode("RESOLVE", *name(key), "RELEASED", *SIGNED),
        }
        operator.send_bytes((b"" if first else claim_of(other)) +
                            claim_of(key) + ends[end])
        if not first:
            assert verdict(operator.read()) == "NEW"
        assert operator.read()[:2] == [b"UNCERTAIN", b"timed out"]
        assert verdict(operator.read()) == (
            "NEW" if end == "REEXECUTE" else "OK")


def test_a_replay_that_lost_its_answer_is_not_decided_behind_later_ones(faulty):
    # C35
    daemon = faulty(settings=["limits.cache_bytes=0"])
    operator, raw, other = (daemon.raw(user="operator"), daemon.raw(),
                            daemon.raw())
    for followed in (False, True):
        key = new_key()
        finish(operator, key, 200, b"", b"kept")
        daemon.set_faults("hold before_load")
        decided = info_of(other, "peeked")
        raw.send_bytes(claim_of(key))
        until(lambda: info_of(other, "peeked") > decided)
        assert operator("EVICT", *name(key), *SIGNED) == "OK"
        if followed:
            raw.send_bytes(claim_of(key))
            until(lambda: verdict(claim(other, key, "NONEW")) == "INFLIGHT")
        daemon.set_faults()
        first = raw.read()
        if followed:
            assert isinstance(first, Error) and first.code == "UNAVAILABLE"
            first = raw.read()
        assert verdict(first) == "NEW"


def test_a_reset_drops_an_await_right_before_it(daemon, raw):
    key = new_key()
    token = begin(raw, key)
    other = daemon.raw()
    # The new claim keeps the await from being told at once.
    other.send_bytes(claim_of(new_key()) +
                     encode("AWAIT", "id", *name(key), MINUTE) +
                     encode("RESET"))
    assert verdict(other.read()) == "NEW"
    assert [other.read(), other.read()] == ["QUEUED", "RESET"]
    assert complete(raw, key, token, 200) == "OK"
    assert other("PING") == "PONG"


def test_evictions_by_many_never_make_a_claim_go_round_for_ever(make_daemon):
    daemon = make_daemon(settings=["limits.cache_bytes=0"])
    key = new_key()
    stop = threading.Event()
    failed = []

    def churn():
        raw = daemon.raw(user="operator")
        try:
            while not stop.is_set():
                reply = claim(raw, key)
                if verdict(reply) == "NEW":
                    complete(raw, key, reply[1], 200, b"", b"x" * 1000)
                raw("EVICT", *name(key), *SIGNED)
        except Exception as error:  # shown by the test
            failed.append(error)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        raw = daemon.raw()
        for _ in range(300):
            reply = claim(raw, key, "NONEW")
            if isinstance(reply, Error):
                assert reply.code == "UNAVAILABLE", reply
            else:
                assert verdict(reply) in ("REFUSED", "INFLIGHT", "REPLAY")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed


# ---- waiters ----


def test_who_waits_is_told_of_an_end_that_was_not_known_to_count(faulty):
    # C07, C23: the commit counted although its sync failed.
    daemon = faulty(settings=["store.sweep_interval=20ms"])
    raw, waiting, awaiting = daemon.raw(), daemon.raw(), daemon.raw()
    key, running = new_key(), new_key()
    token = begin(raw, key, "LOCK", 10 * MINUTE)
    begin(raw, running, "LOCK", 10 * MINUTE)
    waiting.send_bytes(claim_of(key, "WAIT", MINUTE))
    assert awaiting("AWAIT", "done", *name(key), MINUTE) == "QUEUED"
    assert awaiting("AWAIT", "runs", *name(running), MINUTE) == "QUEUED"
    until(lambda: waiters(raw) == 3)
    daemon.set_faults("fail sync EIO wal")
    assert complete(raw, key, token, 200, b"", b"x").code == "UNAVAILABLE"
    daemon.set_faults()
    # Nobody sends it again.
    assert waiting.read()[:4] == [b"REPLAY", 200, b"", b"x"]
    assert awaiting.read() == [b"message", b"settled", b"done"]
    assert awaiting("PING") == "PONG"
    assert waiters(raw) == 1


# ---- one client and the others ----


def unread_by(clients, id):
    """Bytes of replies that a client has not taken, by CLIENT LIST."""
    line = next(line for line in clients.decode().splitlines()
                if line.startswith("id=%d " % id))
    return int(line.split(" obl=", 1)[1].split(" ", 1)[0])


@pytest.mark.parametrize("command", ["LOOKUP", "CLAIM"])
def test_who_asks_for_much_leaves_the_reader_to_others(make_daemon, command):
    daemon = make_daemon(settings=["limits.output_bytes=1g",
                                   "limits.cache_bytes=0"])
    greedy, raw = daemon.raw(), daemon.raw()
    key, count, size = new_key(), 100, 1000000
    finish(raw, key, 200, b"", b"x" * size)
    asked = {"LOOKUP": encode("LOOKUP", *name(key)), "CLAIM": claim_of(key)}
    id = greedy("CLIENT", "ID")
    # Both have sent everything before the daemon sees any of it.
    daemon.signal(signal.SIGSTOP)
    greedy.send_bytes(claim_of(new_key()) + asked[command] * count)
    raw.send_bytes(claim_of(new_key()) + encode("LOOKUP", *name("none")) +
                   encode("RESET") +
                   encode("AUTH", "operator", "operator-secret") +
                   encode("CLIENT", "LIST"))
    daemon.signal(signal.SIGCONT)
    assert verdict(raw.read()) == "NEW"
    assert [raw.read() for _ in range(3)] == [None, "RESET", "OK"]
    # RESET, and so the list, came when the lookup had been answered.
    assert unread_by(raw.read(), id) < count / 2 * size
    assert verdict(greedy.read()) == "NEW"
    for _ in range(count):
        reply = greedy.read()
        body = reply[3] if command == "CLAIM" else fields(reply)["body"]
        assert len(body) == size


def test_replays_of_one_pipeline_come_in_order_from_the_disk(make_daemon):
    raw = make_daemon(settings=["limits.cache_bytes=0"]).raw()
    keys = [new_key() for _ in range(100)]
    for key in keys:
        finish(raw, key, 200, b"", key.encode())
    raw.send_bytes(claim_of(new_key()) + b"".join(map(claim_of, keys)) * 3)
    assert verdict(raw.read()) == "NEW"
    for key in keys * 3:
        assert raw.read()[3] == key.encode()


def test_who_leaves_with_much_to_load_holds_up_nobody(make_daemon):
    daemon = make_daemon(settings=["limits.cache_bytes=0"])
    raw = daemon.raw()
    key = new_key()
    finish(raw, key, 200, b"", b"x" * 1000000)
    for _ in range(5):
        gone = daemon.raw()
        gone.send_bytes(claim_of(new_key()) + claim_of(key) * 500)
        gone.close()
        gone = daemon.raw()
        gone.send_bytes(encode("LOOKUP", *name(key)) * 500)
        gone.close()
    assert raw("LOOKUP", *name("none")) is None
    until(lambda: b"queued_ops:0\r\n" in raw("INFO"))


def test_waiters_of_a_large_answer_all_get_it_uncached(make_daemon):
    # C07
    daemon = make_daemon(settings=["limits.cache_bytes=0"])
    raw = daemon.raw()
    key = new_key()
    token = begin(raw, key, "LOCK", 10 * MINUTE)
    waiting = [daemon.raw() for _ in range(40)]
    for one in waiting:
        one.send_bytes(claim_of(key, "WAIT", MINUTE))
    until(lambda: waiters(raw) == len(waiting))
    body = bytes(range(256)) * 4000
    assert complete(raw, key, token, 200, b"", body) == "OK"
    for one in waiting:
        assert one.read()[:4] == [b"REPLAY", 200, b"", body]


# ---- limits ----


@pytest.mark.parametrize("limit, size", [("output_bytes", "1025m"),
                                         ("command_bytes", "513m")])
def test_a_limit_beyond_what_can_be_sent_or_stored_is_refused(make_daemon,
                                                              limit, size):
    sizes = {"command_bytes": "512m", "output_bytes": "1g",
             "queue_bytes": "1g", "client_bytes": "4g"}

    def make(**options):
        settings = ["limits.%s=%s" % pair for pair in sizes.items()]
        return make_daemon(settings=settings, **options)

    make()
    sizes[limit] = size
    daemon = make(start=False).launch()
    assert daemon.wait() == 2
    assert "limits.%s: " % limit in daemon.log_text()


# ---- passwords ----


@pytest.mark.parametrize("words", [("AUTH",), ("HELLO", "3", "AUTH")],
                         ids=["AUTH", "HELLO"])
def test_a_password_in_the_place_of_the_user_is_in_no_log(daemon, words):
    raw = daemon.raw()
    assert raw(*words, "operator-secret", "operator").code == "WRONGPASS"
    assert "user=unknown" in daemon.wait_for_log("auth-failed")
    assert raw(*words, "operator", "wrong").code == "WRONGPASS"
    daemon.wait_for_log('user="operator"')
    assert "secret" not in daemon.log_text()
