"""Sizes are bounded, and whoever is slow or greedy hurts nobody else."""

import itertools
import resource
import select
import socket

import pytest

from support import build
from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, name, new_key, until, verdict)
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


def test_an_answer_larger_than_the_present_limits_is_told(make_daemon):
    # C02: stored under other limits, or by an app in its own transaction
    daemon = make_daemon(settings=["limits.output_bytes=8m",
                                   "limits.command_bytes=8m"])
    key, body = new_key(), b"x" * 6000000
    finish(daemon.raw(), key, 200, b"", body)
    daemon.settings[:] = ["limits.output_bytes=1m", "limits.command_bytes=1m"]
    daemon.restart()
    raw = daemon.raw()
    raw.send_bytes(encode("CLAIM", *name(key), FINGERPRINT))
    # Its first bytes are here, so the rest of it is on its way.
    assert raw.sock.recv(1, socket.MSG_PEEK)
    raw.send_bytes(encode("PING") * 3)
    assert raw.read()[3] == body
    assert [raw.read() for _ in range(3)] == ["PONG"] * 3


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


def is_cut_off(client):
    try:
        return client.sock.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_command_that_trickles_is_given_up(make_daemon):
    daemon = make_daemon(settings=["limits.client_timeout=300ms"])
    raw = daemon.raw()
    endless = itertools.cycle(encode("ECHO", "x" * 10000)[:-2])

    def send_one():
        try:
            raw.send_bytes(bytes([next(endless)]))
        except OSError:
            return True
        return is_cut_off(raw)

    until(send_one)
    assert "command-half-sent" in daemon.wait_for_log("client-closed")


def test_replies_that_are_taken_in_drops_are_given_up(make_daemon):
    daemon = make_daemon(settings=["limits.client_timeout=1s"])
    raw = daemon.raw()
    key = new_key()
    finish(raw, key, 200, b"", b"x" * 4000000)
    raw.send("CLAIM", *name(key), FINGERPRINT)
    # The kernel lets the daemon on with each drop, but it is none of its own.
    until(lambda: raw.sock.recv(460) and any(
        "output-not-read" in line for line in daemon.log))


# ---- memory -----------------------------------------------------------------

CEILING = 64  # MiB


@pytest.fixture
def small(make_daemon):
    return make_daemon(settings=["limits.client_bytes=%dm" % CEILING])


def send_what_is_taken(client, data):
    client.sock.settimeout(0.05)
    try:
        client.send_bytes(data)
    except OSError:
        pass


def send_on(client, data):
    """Sends what is taken soon, and returns the rest."""
    client.sock.settimeout(0.05)
    try:
        return data[client.sock.send(data):]
    except TimeoutError:
        return data
    except OSError:
        return b""


def within_the_ceiling(daemon, before):
    """By the daemon's own account, and by the kernel's: room is left for the
    command that goes on, and for what a buffer leaves behind that grew."""
    with daemon.raw() as client:
        held = int(info(client)["client_bytes"])
    return (held <= (CEILING + 2 * 32) << 20 and
            memory_of(daemon) < before + 3 * (CEILING << 10))


def test_commands_half_sent_by_many_share_one_ceiling(small):
    other = small.raw()
    before = memory_of(small)
    half = encode("COMPLETE", *name("k"), 1, 200, "", "x" * 15000000)[:-9]
    greedy = [small.raw() for _ in range(40)]
    for client in greedy:
        send_what_is_taken(client, half)
        assert other("PING") == "PONG"
        assert within_the_ceiling(small, before)
    # Those who do not go on make room for a large command that is whole.
    key = new_key()
    token = begin(other, key)

    def is_completed():
        with small.raw() as client:
            try:
                return verdict(complete(client, key, token, 200, b"",
                                        b"y" * 15000000)) in ("OK", "KEPT")
            except (Closed, OSError):
                return False

    until(is_completed)
    assert within_the_ceiling(small, before)
    assert "why=memory-full" in small.wait_for_log("client-closed")
    assert "limits.client_bytes" in small.wait_for_log("memory-short")
    # The flood is told of by number.
    assert sum("client-closed" in line for line in small.log) < 20
    assert claim(other, key)[3] == b"y" * 15000000


def test_those_who_stand_still_make_room_for_more_than_one_piece(make_daemon):
    daemon = make_daemon(settings=["limits.client_bytes=%dm" % CEILING,
                                   "limits.client_timeout=1h"])
    other = daemon.raw()
    half = encode("COMPLETE", *name("k"), 1, 200, "", "x" * 15000000)[:-9]
    silent = []

    def held():
        return int(info(other)["client_bytes"])

    def is_short():  # as the daemon has it
        return held() > CEILING << 20

    def send_half():
        """Until memory is short, or one more has sent all it will."""
        silent.append(daemon.raw())
        rest = half
        while rest and not is_short():
            rest = send_on(silent[-1], rest)

    def is_half_free():
        # Those who had just sent something when others were closed were not
        # slow yet, and stayed: then memory has to become short again.
        while not is_short():
            send_half()
        until(lambda: not is_short())
        return held() <= (CEILING // 2 + 4) << 20

    # Not just below the ceiling, where who goes on would be stopped again.
    until(is_half_free)
    assert "why=memory-full" in daemon.wait_for_log("client-closed")


def test_a_large_command_does_not_wait_for_each_that_stands_still(make_daemon):
    daemon = make_daemon(settings=[
        "limits.client_bytes=4m", "limits.command_bytes=1m",
        "limits.queue_bytes=1m", "limits.client_timeout=1h"])
    other = daemon.raw(timeout=60 * build.patience())
    key = new_key()
    token = begin(other, key)
    half = encode("COMPLETE", *name("k"), 1, 200, "", "x" * 900000)[:450000]
    silent = [daemon.raw() for _ in range(40)]
    for client in silent:
        send_what_is_taken(client, half)
    assert complete(other, key, token, 200, b"", b"y" * 900000) == "OK"


def test_first_pieces_of_many_share_one_ceiling(make_daemon):
    daemon = make_daemon(settings=[
        "limits.client_bytes=16m", "limits.command_bytes=1m",
        "limits.queue_bytes=1m", "limits.client_timeout=1h"])
    other = daemon.raw()
    piece = encode("COMPLETE", *name("k"), 1, 200, "", "x" * 900000)[:130000]
    silent = [daemon.raw() for _ in range(600)]

    def closed():
        numbers = info(other)
        assert int(numbers["client_bytes"]) <= 34 << 20
        return int(numbers["closed_by_server"])

    for client in silent:
        client.send_bytes(piece)
        closed()
    # Nor do those take more together who go on when others are closed.
    until(lambda: closed() >= 150)


def test_replies_unread_by_many_share_one_ceiling(small):
    other = small.raw()
    key = new_key()
    finish(other, key, 200, b"", b"x" * 1000000)
    before = memory_of(small)
    greedy = [small.raw() for _ in range(12)]
    for client in greedy:
        send_what_is_taken(client, encode("CLAIM", *name(key), FINGERPRINT) * 60)
        assert within_the_ceiling(small, before)
        assert verdict(claim(other, key)) == "REPLAY"
    # Who begins to read gets all that was asked for.
    late = small.raw()
    late.send_bytes(encode("CLAIM", *name(key), FINGERPRINT) * 60)
    assert all(late.read()[3] == b"x" * 1000000 for _ in range(60))


# ---- places -----------------------------------------------------------------

def guarded(make_daemon, *settings):
    return make_daemon(settings=["auth.password=open-sesame", *settings])


def test_who_does_not_log_in_is_closed(make_daemon):
    daemon = guarded(make_daemon, "limits.auth_timeout=200ms")

    def log_in():
        client = daemon.raw()
        try:
            return client("AUTH", "open-sesame") == "OK" and client
        except (Closed, OSError):
            return None  # this machine was slower than that

    known = until(log_in)
    silent = [daemon.raw() for _ in range(30)]
    assert all(client.at_end() for client in silent)
    assert known("PING") == "PONG"
    # One line, and their number a minute later.
    assert sum("why=no-auth" in line for line in daemon.log) < 5
    assert int(info(known)["closed_by_server"]) >= 30


def test_who_is_reset_again_and_again_has_no_more_time(make_daemon):
    daemon = guarded(make_daemon, "limits.auth_timeout=1s")
    raw = daemon.raw()

    def is_closed():
        try:
            return raw("RESET") != "RESET"
        except (Closed, OSError):
            return True

    until(is_closed)
    assert "why=no-auth" in daemon.wait_for_log("client-closed")


def test_who_does_not_log_in_keeps_no_one_out(make_daemon):
    daemon = guarded(make_daemon, "limits.unauthenticated=4",
                     "limits.auth_timeout=1h")
    known = []
    for _ in range(8):
        known.append(daemon.raw())
        assert known[-1]("AUTH", "open-sesame") == "OK"
    silent = [daemon.raw() for _ in range(20)]
    # The newest one has the place of the one that was silent for longest.
    late = daemon.raw()
    assert late("AUTH", "open-sesame") == "OK"
    assert all(client.at_end() for client in silent[:17])
    until(lambda: info(late)["unauthenticated_clients"] == "3")
    assert all(client("PING") == "PONG" for client in known)
    assert all(client("PING").code == "NOAUTH" for client in silent[17:])
    # Who gives up the role is one of them.
    assert late("RESET") == "RESET"
    assert info(known[0])["unauthenticated_clients"] == "4"


def test_the_last_place_is_for_who_logs_in(make_daemon):
    daemon = guarded(make_daemon, "limits.connections=3",
                     "limits.auth_timeout=1h")
    silent = [daemon.raw() for _ in range(3)]
    known = [daemon.raw() for _ in range(3)]
    for client in known:
        assert client("AUTH", "open-sesame") == "OK"
    assert all(client.at_end() for client in silent)
    assert "max number of clients" in daemon.raw().read()
    assert all(client("PING") == "PONG" for client in known)


def test_who_is_known_by_the_kernel_need_not_log_in(make_daemon):
    daemon = make_daemon(tcp=True, own=True, settings=[
        "auth.password=open-sesame", "limits.auth_timeout=200ms"])
    known = daemon.raw()
    assert Raw(daemon.tcp_address).at_end()  # it came later
    assert known("PING") == "PONG"
    assert info(known)["unauthenticated_clients"] == "0"


def test_who_has_not_logged_in_has_little_room(make_daemon):
    daemon = guarded(make_daemon)
    raw = daemon.raw()
    raw.send_bytes(b"*2\r\n$4\r\nAUTH\r\n$20000\r\n")
    assert "over the limit" in raw.read() and raw.at_end()


# ---- guesses ----------------------------------------------------------------

def test_guesses_are_slowed_down_however_many_make_them(make_daemon):
    # C36
    daemon = make_daemon(settings=["limits.auth_delay=1s"])
    other = daemon.raw(user="operator")
    guessers = [daemon.raw() for _ in range(40)]
    for client in guessers[:6]:
        assert client("AUTH", "reader", "guess").code == "WRONGPASS"
    for client in guessers:
        client.send("AUTH", "reader", "guess")
    # Neither who is logged in waits for them, nor another user.
    assert other("PING") == "PONG"
    assert daemon.raw(user="operator")("PING") == "PONG"
    replies = [client.read() for client in guessers]
    refused = [reply for reply in replies if "too many wrong" in reply]
    assert len(refused) > 10
    assert all(reply.code == "WRONGPASS" for reply in replies
               if reply not in refused)
    # Who knows the password gets in all the same, and guesses go on.
    with daemon.raw() as reader:
        until(lambda: reader("AUTH", "reader", "reader-secret") == "OK")
        assert reader("HELLO", 3, "AUTH", "reader", "guess").code == "WRONGPASS"
    assert sum("auth-failed" in line for line in daemon.log) < 10


def test_an_idle_connection_is_closed_only_if_asked_for(make_daemon):
    daemon = make_daemon(settings=["limits.idle_timeout=200ms"])
    assert daemon.raw().at_end()


def test_who_has_a_reply_to_take_is_not_idle(make_daemon):
    daemon = make_daemon()
    key, body = new_key(), b"x" * 10000000
    finish(daemon.raw(), key, 200, b"", body)
    daemon.settings[:] = ["limits.idle_timeout=2s"]
    daemon.restart()
    raw = daemon.raw()
    raw.send("CLAIM", *name(key), FINGERPRINT)
    assert raw.sock.recv(1, socket.MSG_PEEK)
    assert daemon.raw().at_end()  # it came later, and had nothing to do
    assert raw.read()[3] == body


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


def info(raw):
    """INFO's numbers and words by name."""
    lines = raw("INFO").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def send_until_stuck(client, data):
    """Sends for as long as the daemon reads; what it did not take."""
    client.sock.settimeout(0.5 * build.patience())
    sent = 0
    try:
        while sent < len(data):
            sent += client.sock.send(data[sent:sent + 65536])
    except TimeoutError:
        pass
    client.sock.settimeout(20 * build.patience())
    return data[sent:]


def test_a_full_queue_stops_reading_and_loses_nothing(faulty):
    limit = 8
    daemon = faulty(settings=["limits.queue_ops=%d" % limit,
                              "limits.batch_ops=4"])
    watcher = daemon.raw()
    daemon.set_faults("hold before_sync")
    early = [daemon.raw() for _ in range(limit - 1)]
    for client in early:
        client.send("CLAIM", *name(new_key()), FINGERPRINT)
    until(lambda: info(watcher)["queued_ops"] == str(limit - 1))
    assert info(watcher)["queue_stalls"] == "0"
    # Far more than all buffers on the way take; the store stands still.
    flood = daemon.raw()
    keys = [new_key() for _ in range(30000)]
    commands = b"".join(encode("CLAIM", *name(key), FINGERPRINT)
                        for key in keys)
    rest = send_until_stuck(flood, commands)
    assert len(rest) > len(commands) // 2, "everything was read"
    # Asked before there was room, answered when there is.
    watcher.send("INFO")
    daemon.set_faults()
    seen = dict(line.split(":", 1) for line
                in watcher.read().decode().splitlines() if ":" in line)
    assert int(seen["queued_ops"]) <= limit
    assert int(seen["queue_stalls"]) > 0
    for client in early:
        assert client.read()[0] == b"NEW"
    # What was sent is answered; the last command may have been cut.
    whole = commands[:len(commands) - len(rest)].count(b"*5\r\n$5\r\nCLAIM")
    end = len(b"".join(encode("CLAIM", *name(key), FINGERPRINT)
                       for key in keys[:whole]))
    flood.send_bytes(commands[len(commands) - len(rest):end])
    replies = [flood.read() for _ in range(whole)]
    assert all(reply[0] == b"NEW" for reply in replies)
    assert len({reply[1] for reply in replies}) == whole
    until(lambda: info(watcher)["queued_ops"] == "0")


def test_a_queue_full_of_bytes_stops_reading_and_loses_nothing(faulty):
    daemon = faulty(settings=["limits.queue_bytes=1m",
                              "limits.command_bytes=1m"])
    raw, other = daemon.raw(), daemon.raw()
    keys = [new_key() for _ in range(30)]
    tokens = [begin(raw, key) for key in keys]
    commands = b"".join(
        encode("COMPLETE", *name(key), token, 200, "", key * 40000)
        for key, token in zip(keys, tokens))
    daemon.set_faults("hold before_sync")
    whole = len(commands)
    commands = send_until_stuck(raw, commands)
    assert len(commands) > whole // 2, "everything was read"
    daemon.set_faults()
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
    assert int(info(other)["queue_stalls"]) > 0


@pytest.mark.parametrize("cache", ["default", "none"])
def test_what_is_known_does_not_wait_for_a_sync(faulty, cache):
    """Replays, refusals and lookups are answered while a claim is held up."""
    daemon = faulty(settings=["limits.cache_bytes=0"] if cache == "none"
                    else [])
    raw, other = daemon.raw(), daemon.raw()
    done, omitted, running = new_key(), new_key(), new_key()
    finish(other, done, 200, b"", b"known")
    finish(other, omitted, 200, b"", b"", options=("OMIT", "too large"))
    token = begin(other, running)
    before = info(other)
    daemon.set_faults("hold before_sync")
    raw.send("CLAIM", *name(new_key()), FINGERPRINT)
    until(lambda: info(other)["queued_ops"] == "1")
    for _ in range(3):
        assert claim(other, done)[3] == b"known"
    assert verdict(claim(other, omitted)) == "OMITTED"
    assert verdict(claim(other, running)) == "INFLIGHT"
    assert verdict(claim(other, done,
                         fingerprint=OTHER_FINGERPRINT)) == "MISMATCH"
    assert complete(other, running, token + 1) == "STALE"
    assert verdict(complete(other, done, 1)) in ("KEPT", "STALE")
    assert fields(other("LOOKUP", *name(done)))["body"] == b"known"
    assert other("LOOKUP", *name(new_key())) is None
    after = info(other)
    hits = int(after["cache_hits"]) - int(before["cache_hits"])
    assert hits == 0 if cache == "none" else hits >= 3
    # All of it while the claim was on its way.
    assert after["queued_ops"] == "1"
    daemon.set_faults()
    assert raw.read()[0] == b"NEW"


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
