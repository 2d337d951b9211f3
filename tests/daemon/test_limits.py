"""Sizes are bounded, and whoever is slow or greedy hurts nobody else."""

import resource
import select
import socket

import pytest

from support import build
from support.life import (FINGERPRINT, begin, claim, complete, finish, name,
                          new_key, until, verdict)
from support.resp import Closed, Error, Raw, encode, fields

MANY = 300 if build.is_sanitized() else 2000


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 8192)
    if wanted < MANY + 200:
        pytest.skip("this machine allows %d open files only" % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_connections_claim_at_once(many_files, make_daemon):
    daemon = make_daemon()
    clients = [daemon.raw() for _ in range(MANY)]
    key = new_key()
    for i, client in enumerate(clients):
        client.send("CLAIM", *name(key), FINGERPRINT, "OWNER", i)
    # C01, the daemon's part: one of them runs it.
    words = [verdict(client.read()) for client in clients]
    assert sorted(set(words)) == ["INFLIGHT", "NEW"]
    assert words.count("NEW") == 1
    token = fields(clients[0]("LOOKUP", *name(key)))["token"]
    assert complete(clients[0], key, token, 200, b"", b"same") == "OK"
    for client in clients:
        client.send("CLAIM", *name(key), FINGERPRINT)
    assert all(client.read()[3] == b"same" for client in clients)


def test_connections_that_come_and_go_leave_nothing_behind(daemon):
    def files():
        import os
        return len(os.listdir("/proc/%d/fd" % daemon.pid))

    raw = daemon.raw()
    assert raw("PING") == "PONG"
    before = files()
    for i in range(300):
        with Raw(daemon.address) as client:
            if i % 3 == 0:
                client.send_bytes(b"*2\r\n$4\r\nECH")
            elif i % 3 == 1:
                client.send("CLAIM", *name(new_key()), FINGERPRINT)
    until(lambda: files() <= before)
    assert raw("PING") == "PONG"


def test_one_connection_too_many_is_told_so(make_daemon):
    daemon = make_daemon(settings=["limits.connections=3"])
    clients = [daemon.raw() for _ in range(3)]
    assert all(client("PING") == "PONG" for client in clients)
    surplus = daemon.raw()
    reply = surplus.read()
    assert isinstance(reply, Error) and "max number of clients" in reply
    assert surplus.at_end()
    assert clients[0]("PING") == "PONG"
    clients[1].close()

    def free_again():
        with Raw(daemon.address) as client:
            client.send("PING")
            try:
                return client.read() == "PONG"
            except (Closed, OSError):
                return False

    until(free_again)


def test_a_reader_too_slow_for_its_answers_is_cut_off(make_daemon):
    daemon = make_daemon(settings=["limits.output_bytes=1m",
                                   "limits.command_bytes=1m"])
    raw, other = daemon.raw(), daemon.raw()
    key = new_key()
    finish(other, key, 200, b"", b"x" * 500000)
    # Asks for hundreds of megabytes and reads none of it.
    ask = encode("CLAIM", *name(key), FINGERPRINT) * 50
    raw.sock.settimeout(10)
    try:
        for _ in range(40):
            raw.send_bytes(ask)
            assert other("PING") == "PONG"
    except OSError:
        pass  # cut off, or no longer read from
    assert verdict(claim(other, key)) == "REPLAY"
    assert memory_of(daemon) < 300 * 1024
    # What it gets, if anything, is whole answers up to the cut.
    try:
        while raw.read()[3] == b"x" * 500000:
            pass
    except (Closed, socket.timeout, OSError):
        pass


def memory_of(daemon):
    """Resident memory, in KiB; sanitizers have their own needs."""
    if build.is_sanitized():
        return 0
    with open("/proc/%d/statm" % daemon.pid) as statm:
        return int(statm.read().split()[1]) * 4


def test_a_reader_that_is_slow_but_reads_gets_everything(make_daemon):
    daemon = make_daemon()
    raw = daemon.raw(timeout=60 * build.patience())
    key = new_key()
    body = bytes(range(256)) * 400
    finish(raw, key, 200, b"", body)
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.send_bytes(encode("CLAIM", *name(key), FINGERPRINT) * 100)
    for _ in range(100):
        assert raw.read()[3] == body


def test_a_command_half_sent_holds_up_nobody_and_is_given_up(make_daemon):
    daemon = make_daemon(settings=["limits.client_timeout=300ms"])
    raw, other = daemon.raw(), daemon.raw()
    whole = encode("CLAIM", *name("half"), FINGERPRINT)
    raw.send_bytes(whole[:-10])
    begin(other, new_key())
    assert raw.at_end()
    assert other("LOOKUP", *name("half")) is None


def test_an_idle_connection_is_closed_only_if_asked_for(make_daemon):
    daemon = make_daemon(settings=["limits.idle_timeout=200ms"])
    assert daemon.raw().at_end()


def test_a_command_over_the_limit_is_refused_before_it_is_received(
        make_daemon):
    daemon = make_daemon(settings=["limits.command_bytes=64k"])
    raw, other = daemon.raw(), daemon.raw()
    key = new_key()
    token = begin(other, key)
    head = encode("COMPLETE", *name(key), token, 200, "")
    head = head.replace(b"*7\r\n", b"*8\r\n", 1)
    raw.send_bytes(head + b"$100000\r\n")
    reply = raw.read()
    assert isinstance(reply, Error) and reply.code == "ERR"
    assert raw.at_end()
    # Nothing is lost by it: the holder can still complete, as omitted.
    assert verdict(claim(other, key)) == "INFLIGHT"
    assert complete(other, key, token, 200, b"", b"", "OMIT",
                    "too large") == "OK"


def test_a_body_as_large_as_the_limit_allows_is_replayed(daemon, raw):
    # C02
    key = new_key()
    body = bytes(range(256)) * 4 * 1024 * 15  # 15 MiB
    token = begin(raw, key)
    assert complete(raw, key, token, 200, b"A: b\r\n", body) == "OK"
    assert claim(raw, key)[1:4] == [200, b"A: b\r\n", body]
    daemon.restart()
    raw = daemon.raw()
    assert claim(raw, key)[1:4] == [200, b"A: b\r\n", body]
    assert fields(raw("LOOKUP", *name(key)))["body"] == body


def test_a_full_queue_slows_down_and_loses_nothing(make_daemon):
    daemon = make_daemon(settings=["limits.queue_ops=8", "limits.batch_ops=4"])
    clients = [daemon.raw() for _ in range(20)]
    keys = {client: [new_key() for _ in range(50)] for client in clients}
    for client in clients:
        client.send_bytes(b"".join(
            encode("CLAIM", *name(key), FINGERPRINT)
            for key in keys[client]))
    tokens = set()
    for client in clients:
        for _ in keys[client]:
            reply = client.read()
            assert reply[0] == b"NEW", reply
            tokens.add(reply[1])
    assert len(tokens) == 20 * 50


def test_a_queue_full_of_bytes_slows_down_and_loses_nothing(make_daemon):
    daemon = make_daemon(settings=["limits.queue_bytes=1m",
                                   "limits.command_bytes=1m"])
    raw, other = daemon.raw(), daemon.raw()
    keys = [new_key() for _ in range(30)]
    tokens = [begin(raw, key) for key in keys]
    commands = b"".join(
        encode("COMPLETE", *name(key), token, 200, "", key * 40000)
        for key, token in zip(keys, tokens))
    replies = 0
    raw.sock.setblocking(False)
    while commands or replies < len(keys):
        readable, writable, _ = select.select(
            [raw.sock], [raw.sock] if commands else [], [], 60)
        assert readable or writable, "nothing moves"
        if writable:
            commands = commands[raw.sock.send(commands):]
        if readable:
            raw.buffer += raw.sock.recv(65536)
            replies = raw.buffer.count(b"+OK\r\n")
    assert raw.buffer == b"+OK\r\n" * len(keys)
    for key in keys:
        assert claim(other, key)[3] == key.encode() * 40000


def test_a_client_that_leaves_in_the_middle_leaves_its_claims(daemon, raw):
    # C41: what was sent happens, and the owner finds it again.
    keys = [new_key() for _ in range(100)]
    gone = daemon.raw()
    gone.send_bytes(b"".join(
        encode("CLAIM", *name(key), FINGERPRINT, "OWNER", "me")
        for key in keys))
    gone.close()
    for key in keys:
        first = claim(raw, key, "OWNER", "me")
        assert first[0] == b"NEW"
        assert claim(raw, key, "OWNER", "me") == first
        assert verdict(claim(raw, key, "OWNER", "you")) == "INFLIGHT"
