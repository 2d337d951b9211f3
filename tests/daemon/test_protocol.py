"""The wire: forms of replies, order, bad input, roles, and the start."""

import os
import re
import signal
import socket
import subprocess

import pytest

from support import build
from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, name, new_key, verdict)
from support.resp import Closed, Error, Push, Simple, encode, fields

NEW_REPLY = re.compile(
    rb"\*5\r\n\$3\r\nNEW\r\n:\d+\r\n:\d{13}\r\n:1\r\n"
    rb"\$14\r\n[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}\r\n")


def read_bytes(raw, pattern):
    """The reply as bytes, once all of it is there."""
    while not pattern.fullmatch(raw.buffer):
        raw._more()
    found, raw.buffer = raw.buffer, b""
    return found


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request):
    return request.param


@pytest.fixture
def wire(daemon, protocol):
    return daemon.raw(protocol=protocol)


# ---- forms ------------------------------------------------------------------

def test_verdicts_are_a_bulk_word_and_integers(wire):
    key = new_key()
    wire.send("CLAIM", *name(key), FINGERPRINT)
    read_bytes(wire, NEW_REPLY)
    wire.send("CLAIM", *name(key), FINGERPRINT)
    read_bytes(wire, re.compile(
        rb"\*3\r\n\$8\r\nINFLIGHT\r\n:\d+\r\n\$14\r\n\S{14}\r\n"))
    wire.send("CLAIM", *name(key), OTHER_FINGERPRINT)
    read_bytes(wire, re.compile(
        rb"\*2\r\n\$8\r\nMISMATCH\r\n\$14\r\n\S{14}\r\n"))
    wire.send("CLAIM", *name(new_key()), FINGERPRINT, "NONEW")
    read_bytes(wire, re.compile(rb"\*1\r\n\$7\r\nREFUSED\r\n"))


def test_ok_and_stale_are_simple_strings(wire):
    key = new_key()
    token = begin(wire, key)
    wire.send("EXTEND", *name(key), token, 60000)
    read_bytes(wire, re.compile(rb"\+OK\r\n"))
    wire.send("EXTEND", *name(key), token + 1, 60000)
    read_bytes(wire, re.compile(rb"\+STALE\r\n"))
    for command, reply in (
            (("DOUBT", *name(key), token, "why"), Simple("OK")),
            (("COMPLETE", *name(key), token, 200, "", ""), Simple("OK")),
            (("KEEP", *name(key), 1000), Simple("OK"))):
        got = wire(*command)
        assert (type(got), got) == (Simple, reply)


def test_replay_and_kept_have_one_form(wire):
    key = new_key()
    token = finish(wire, key, 201, b"A: b\r\n", b"body")
    tail = (rb":201\r\n\$6\r\nA: b\r\n\r\n\$4\r\nbody\r\n:\d{13}\r\n:\d{13}\r\n"
            rb"\$14\r\n\S{14}\r\n")
    wire.send("CLAIM", *name(key), FINGERPRINT)
    read_bytes(wire, re.compile(rb"\*7\r\n\$6\r\nREPLAY\r\n" + tail))
    wire.send("RELEASE", *name(key), token)
    read_bytes(wire, re.compile(rb"\*7\r\n\$4\r\nKEPT\r\n" + tail))


def test_omitted_and_uncertain_have_their_forms(wire):
    key = new_key()
    token = begin(wire, key)
    assert wire("DOUBT", *name(key), token, "why") == "OK"
    wire.send("CLAIM", *name(key), FINGERPRINT)
    read_bytes(wire, re.compile(
        rb"\*4\r\n\$9\r\nUNCERTAIN\r\n\$3\r\nwhy\r\n:\d{13}\r\n"
        rb"\$14\r\n\S{14}\r\n"))
    assert complete(wire, key, token, 201, b"", b"", "OMIT", "big") == "OK"
    wire.send("CLAIM", *name(key), FINGERPRINT)
    read_bytes(wire, re.compile(
        rb"\*6\r\n\$7\r\nOMITTED\r\n:201\r\n\$3\r\nbig\r\n:\d{13}\r\n"
        rb":\d{13}\r\n\$14\r\n\S{14}\r\n"))


def test_nil_is_the_protocols_own(wire, protocol):
    wire.send("LOOKUP", *name(new_key()))
    nil = rb"_\r\n" if protocol == 3 else rb"(\$-1|\*-1)\r\n"
    read_bytes(wire, re.compile(nil))


def test_a_record_is_a_map_in_resp3_and_a_flat_list_in_resp2(wire, protocol):
    key = new_key()
    finish(wire, key)
    reply = wire("LOOKUP", *name(key))
    assert type(reply) is (dict if protocol == 3 else list)
    assert fields(reply)["state"] == b"completed"
    reference = fields(reply)["reference"]
    assert fields(wire("FIND", "acme", reference)) == fields(reply)


def test_hello_switches_the_protocol_and_back(raw):
    reply = raw("HELLO", 3)
    assert isinstance(reply, dict) and reply[b"proto"] == 3
    assert reply[b"server"]
    reply = raw("HELLO", "2")
    assert isinstance(reply, list) and fields(reply)["proto"] == 2
    assert isinstance(raw("HELLO"), list)
    refused = raw("HELLO", 4)
    assert isinstance(refused, Error) and refused.code == "NOPROTO"
    assert raw("PING") == "PONG"


def test_hello_can_log_in_and_name_the_client(daemon):
    raw = daemon.raw()
    reply = raw("HELLO", 3, "AUTH", "reader", "reader-secret", "SETNAME", "me")
    assert isinstance(reply, dict), reply
    assert fields(raw("STATS"))
    wrong = daemon.raw()("HELLO", 3, "AUTH", "reader", "wrong")
    assert isinstance(wrong, Error) and wrong.code == "WRONGPASS"


# ---- order ------------------------------------------------------------------

def test_replies_keep_the_order_of_commands(raw):
    # Claims that wait for the store, replays from memory, errors, reads.
    keys = [new_key() for _ in range(200)]
    done = new_key()
    finish(raw, done, 200, b"", b"x" * 1000)
    batch = b""
    for i, key in enumerate(keys):
        batch += encode("CLAIM", *name(key), FINGERPRINT, "OWNER", i)
        batch += encode("CLAIM", *name(done), FINGERPRINT)
        batch += encode("ECHO", i)
        batch += encode("LOOKUP", *name(key))
        batch += encode("NONSENSE", i)
        batch += encode("CLAIM", *name(key), FINGERPRINT)
    raw.send_bytes(batch)
    for i, key in enumerate(keys):
        assert raw.read()[0] == b"NEW"
        assert raw.read()[:4] == [b"REPLAY", 200, b"", b"x" * 1000]
        assert raw.read() == str(i).encode()
        # What came before on this connection has happened.
        assert fields(raw.read())["key"] == key.encode()
        assert isinstance(raw.read(), Error)
        assert raw.read()[0] == b"INFLIGHT"


def test_a_whole_life_in_one_pipeline_of_one_key(raw):
    key = new_key()
    begin(raw, key)
    token = fields(raw("LOOKUP", *name(key)))["token"]
    raw.send_bytes(
        encode("EXTEND", *name(key), token, 9000) +
        encode("CLAIM", *name(key), FINGERPRINT) +
        encode("COMPLETE", *name(key), token, 200, "", "answer") +
        encode("CLAIM", *name(key), FINGERPRINT) +
        encode("RELEASE", *name(key), token) +
        encode("LOOKUP", *name(key)))
    assert raw.read() == "OK"
    assert verdict(raw.read()) == "INFLIGHT"
    assert raw.read() == "OK"
    assert raw.read()[3] == b"answer"
    assert raw.read()[0] == b"KEPT"
    assert fields(raw.read())["state"] == b"completed"


def test_a_command_may_arrive_byte_by_byte(raw):
    for byte in encode("CLAIM", *name(new_key()), FINGERPRINT):
        raw.send_bytes(bytes([byte]))
    assert raw.read()[0] == b"NEW"


def test_commands_may_be_typed_as_a_line(raw):
    raw.send_bytes(b'CLAIM acme "POST /payments" inline-key 1:ab\r\n')
    assert raw.read()[0] == b"NEW"
    raw.send_bytes(b"ping\n")
    assert raw.read() == "PONG"


def test_commands_and_options_are_read_in_any_case(raw):
    key = new_key()
    assert raw("claim", *name(key), FINGERPRINT, "owner", "me", "Lock",
               5000)[0] == b"NEW"
    assert raw("Claim", *name(key), FINGERPRINT, "OWNER", "me")[0] == b"NEW"


# ---- bad input --------------------------------------------------------------

K = ("acme", "POST /payments", "bad-input")
BAD = {
    "an unknown command": (("FLY", "away"), "FLY"),
    "a command with NUL": ((b"PING\0",), "unknown"),
    "a command with a space": (("PING ",), "unknown"),
    "no arguments": (("CLAIM",), "CLAIM"),
    "too few arguments": (("CLAIM", "acme", "scope", "key"), "CLAIM"),
    "too many arguments": (("RELEASE", *K, 5, "now"), "RELEASE"),
    "an empty tenant": (("CLAIM", "", "scope", "key", "fp"), "tenant"),
    "an empty scope": (("CLAIM", "acme", "", "key", "fp"), "scope"),
    "an empty key": (("CLAIM", "acme", "scope", "", "fp"), "key"),
    "a long tenant": (("CLAIM", "a" * 256, "s", "key", "fp"), "tenant"),
    "a long scope": (("CLAIM", "acme", "s" * 1025, "key", "fp"), "scope"),
    "a long key": (("CLAIM", "acme", "s", "k" * 256, "fp"), "key"),
    "a key with a control character": (
        ("CLAIM", "acme", "s", b"k\n", "fp"), "key"),
    "an empty fingerprint": (("CLAIM", *K, ""), "fingerprint"),
    "a long fingerprint": (("CLAIM", *K, "f" * 129), "fingerprint"),
    "a long owner": (("CLAIM", *K, "fp", "OWNER", "o" * 65), "OWNER"),
    "an empty owner": (("CLAIM", *K, "fp", "OWNER", ""), "OWNER"),
    "an unknown option": (("CLAIM", *K, "fp", "PLEASE"), "PLEASE"),
    "an option without value": (("CLAIM", *K, "fp", "TTL"), "TTL"),
    "an option given twice": (
        ("CLAIM", *K, "fp", "TTL", 5, "TTL", 6), "TTL"),
    "a TTL that is no number": (("CLAIM", *K, "fp", "TTL", "soon"), "TTL"),
    "a TTL of nothing": (("CLAIM", *K, "fp", "TTL", 0), "TTL"),
    "a negative lock": (("CLAIM", *K, "fp", "LOCK", -5), "LOCK"),
    "a lock beyond the limit": (
        ("CLAIM", *K, "fp", "LOCK", 10 ** 15), "LOCK"),
    "a wait beyond all numbers": (
        ("CLAIM", *K, "fp", "WAIT", 10 ** 30), "WAIT"),
    "a token that is no number": (("RELEASE", *K, "x"), "token"),
    "a token of 2^53": (("RELEASE", *K, 2 ** 53), "token"),
    "a status that is no number": (
        ("COMPLETE", *K, 5, "ok", "", ""), "status"),
    "a status of 99": (("COMPLETE", *K, 5, 99, "", ""), "status"),
    "a status of 600": (("COMPLETE", *K, 5, 600, "", ""), "status"),
    "an empty OMIT": (("COMPLETE", *K, 5, 200, "", "", "OMIT", ""), "OMIT"),
    "a header without an end": (
        ("COMPLETE", *K, 5, 200, "A: b", ""), "headers"),
    "a header in another, by LF": (
        ("COMPLETE", *K, 5, 200, "A: b\nB: c\r\n", ""), "headers"),
    "a header in another, by CR": (
        ("COMPLETE", *K, 5, 200, "A: b\rB: c\r\n", ""), "headers"),
    "a header with NUL": (
        ("COMPLETE", *K, 5, 200, "A: b\0\r\n", ""), "headers"),
    "a header with a space in its name": (
        ("COMPLETE", *K, 5, 200, "A: b\r\nB c: d\r\n", ""), "line 2"),
    "a header with a control character in its name": (
        ("COMPLETE", *K, 5, 200, "A\x01: b\r\n", ""), "line 1"),
    "a header with a control character in its value": (
        ("COMPLETE", *K, 5, 200, "A: b\r\nB: \x1b[2J\r\n", ""), "line 2"),
    "an empty reason": (("DOUBT", *K, 5, ""), "reason"),
    "a long reason": (("DOUBT", *K, 5, "r" * 256), "reason"),
    "EXTEND by nothing": (("EXTEND", *K, 5, 0), "lock"),
    "KEEP for nothing": (("KEEP", *K, 0), "ttl"),
    "SELECT of another database": (("SELECT", 1), "SELECT"),
    "AWAIT without time": (("AWAIT", "id", *K), "AWAIT"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_changes_nothing(raw, case):
    words, names = BAD[case]
    reply = raw(*words)
    assert isinstance(reply, Error), reply
    assert reply.code == "ERR", reply
    assert names.lower() in reply.lower()
    assert raw("PING") == "PONG"
    assert raw("LOOKUP", *K) is None


def test_headers_that_are_not_kept_are_not_looked_at(raw):
    key = new_key()
    token = begin(raw, key)
    assert raw("COMPLETE", *name(key), token, 200, "A: b\n", "", "OMIT",
               "secret") == "OK"


def test_an_operator_keeps_no_header_in_which_another_hides(raw, operator):
    key = new_key()
    token = begin(raw, key)
    assert raw("DOUBT", *name(key), token, "why") == "OK"
    words = ("RESOLVE", *name(key), "COMPLETED", 200)
    for bad in ("A: b\nB: c\r\n", "A: b\r\nB c: d\r\n", "A\x01: b\r\n"):
        reply = operator(*words, bad, "", "WHO", "op", "WHY", "seen")
        assert isinstance(reply, Error) and "headers" in reply
    assert operator(*words, "A: b\r\nB: c\r\n", "", "WHO", "op", "WHY",
                    "seen") == "OK"


def test_an_error_is_one_line_whatever_was_sent(raw):
    raw.send(b"BAD\r\n+OK\r\n", "x")
    reply = raw.read()
    assert isinstance(reply, Error)
    reply = raw("CLAIM", *K, "fp", b"\r\n-ERR\x00\xff")
    assert isinstance(reply, Error) and "\x00" not in reply
    assert raw("PING") == "PONG"


@pytest.mark.parametrize("size", ["tenant", "scope", "key", "fingerprint",
                                  "owner"])
def test_names_work_up_to_their_limits(raw, size):
    words = {"tenant": "t", "scope": "s", "key": new_key(),
             "fingerprint": "f", "owner": "o"}
    words[size] = "x" * {"tenant": 255, "scope": 1024, "key": 255,
                         "fingerprint": 128, "owner": 64}[size]
    line = ("CLAIM", words["tenant"], words["scope"], words["key"],
            words["fingerprint"], "OWNER", words["owner"])
    first = raw(*line)
    assert first[0] == b"NEW"
    assert raw(*line) == first
    record = fields(raw("LOOKUP", *line[1:4]))
    assert record["fingerprint"] == words["fingerprint"].encode()


def test_tenant_and_scope_may_hold_any_bytes(raw):
    odd = bytes(range(256))[:255]
    first = raw("CLAIM", odd, b"\x00\xff scope", "key", "fp", "OWNER", odd[:60])
    assert first[0] == b"NEW"
    record = fields(raw("LOOKUP", odd, b"\x00\xff scope", "key"))
    assert (record["tenant"], record["scope"]) == (odd, b"\x00\xff scope")


HOSTILE = {
    "a gigabyte announced": b"*2\r\n$4\r\nECHO\r\n$1073741824\r\n",
    "a negative length": b"*2\r\n$4\r\nECHO\r\n$-7\r\n",
    "a length that is no number": b"*2\r\n$4\r\nECHO\r\n$x\r\n",
    "a length beyond all numbers": b"*1\r\n$99999999999999999999\r\n",
    "a million words": b"*1000000\r\n$4\r\nECHO\r\n",
    "words without length": b"*1\r\nPING\r\n",
    "no line end after a word": b"*1\r\n$4\r\nPINGxx*1\r\n",
    "an endless line": b"A" * (1 << 20),
    "an unfinished quote": b'ECHO "never ends\r\n',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_framing_is_refused_and_hurts_nobody_else(daemon, case):
    other = daemon.raw()
    raw = daemon.raw()
    try:
        raw.send_bytes(HOSTILE[case])
        reply = raw.read()
        assert isinstance(reply, Error), reply
        assert reply.code == "ERR"
        if case != "an unfinished quote":
            assert raw.at_end()
    except (Closed, BrokenPipeError, ConnectionResetError):
        assert case == "an endless line"
    assert other("PING") == "PONG"
    assert memory_of(daemon) < 1 << 20


def memory_of(daemon):
    """Resident memory, in KiB; sanitizers have their own needs."""
    if build.is_sanitized():
        return 0
    with open("/proc/%d/status" % daemon.pid) as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def test_what_is_announced_takes_no_memory(daemon):
    before = memory_of(daemon)
    clients = [daemon.raw() for _ in range(50)]
    for client in clients:
        client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$8000000\r\nxyz")
    assert daemon.raw()("PING") == "PONG"
    assert memory_of(daemon) - before < 50 * 1024


# ---- what Redis clients ask -------------------------------------------------

def test_the_small_talk_of_redis_clients_is_answered(raw):
    assert raw("PING") == "PONG"
    assert raw("PING", "hello") == b"hello"
    assert raw("ECHO", "x") == b"x"
    assert raw("SELECT", 0) == "OK"
    assert raw("CLIENT", "SETNAME", "me") == "OK"
    assert raw("CLIENT", "GETNAME") == b"me"
    assert isinstance(raw("CLIENT", "ID"), int)
    assert isinstance(raw("COMMAND"), list)
    assert isinstance(raw("CONFIG", "GET", "save"), list)
    info = raw("INFO").decode()
    assert re.search(r"^[a-z_]*version:", info, re.M), info
    assert "# Chores" in info
    assert raw("QUIT") == "OK"
    assert raw.at_end()


def test_config_get_tells_settings_and_no_secret(daemon):
    raw = daemon.raw(user="operator")
    assert b"operator-secret" not in repr(raw("CONFIG", "GET", "*")).encode()
    assert "operator-secret" not in raw("INFO").decode()


# ---- roles ------------------------------------------------------------------

READ = {"LIST": ("LIST",), "STATS": ("STATS",), "AUDIT": ("AUDIT",),
        "VERIFY": ("VERIFY",)}
WHO = ("WHO", "oncall", "WHY", "because")
OPERATE = {
    "RESOLVE": ("RESOLVE", *K, "RELEASED", *WHO),
    "EVICT": ("EVICT", *K, *WHO),
    "BACKUP": ("BACKUP", "/nowhere/at/all", *WHO),
    "CLOCK": ("CLOCK", "ACCEPT", *WHO),
}


@pytest.mark.parametrize("command", [*READ.values(), *OPERATE.values()],
                         ids=[*READ, *OPERATE])
def test_operator_commands_refuse_whoever_has_no_role(raw, command):
    # C36
    reply = raw(*command)
    assert isinstance(reply, Error) and reply.code == "NOPERM", reply
    assert command[0] in reply
    assert ("operate" if command[0] in OPERATE else "read") in reply


@pytest.mark.parametrize("command", OPERATE.values(), ids=OPERATE)
def test_a_reader_may_not_operate(daemon, command):
    # C36
    reply = daemon.raw(user="reader")(*command)
    assert isinstance(reply, Error) and reply.code == "NOPERM", reply


@pytest.mark.parametrize("user", ["reader", "operator"])
def test_who_may_not_claim_is_told_both_ways_to_the_role(make_daemon, user):
    # C36
    daemon = make_daemon(settings=["auth.password=open-sesame",
                                   "users.web=use web-secret"])
    reply = daemon.raw(user=user)("CLAIM", *K, "fp")
    assert isinstance(reply, Error) and reply.code == "NOPERM", reply
    for part in ("CLAIM", " use role", "[auth]", "[users]"):
        assert part in reply, reply
    web = daemon.raw()
    assert web("AUTH", "web", "web-secret") == "OK"
    assert web("CLAIM", *K, "fp")[0] == b"NEW"


@pytest.mark.parametrize("command", READ.values(), ids=READ)
@pytest.mark.parametrize("user", ["reader", "operator"])
def test_readers_and_operators_may_read(daemon, command, user):
    # C36
    reply = daemon.raw(user=user)(*command)
    assert not isinstance(reply, Error), reply


def test_a_wrong_password_gives_nothing_and_is_not_logged(daemon):
    # C36
    raw = daemon.raw()
    for words in (("operator", "wrong-guess"), ("nobody", "wrong-guess"),
                  ("operator", ""), ("reader", "operator-secret")):
        reply = raw("AUTH", *words)
        assert isinstance(reply, Error) and reply.code == "WRONGPASS", reply
    assert raw("EVICT", *K, *WHO).code == "NOPERM"
    assert not any("wrong-guess" in line or "-secret" in line
                   for line in daemon.log)
    with open("/proc/%d/cmdline" % daemon.pid, "rb") as cmdline:
        assert b"operator-secret" not in cmdline.read()


def test_with_a_password_nothing_works_without_it(make_daemon):
    # C36
    daemon = make_daemon(settings=["auth.password=open-sesame"])
    raw = daemon.raw()
    for words in (("CLAIM", *K, "fp"), ("LOOKUP", *K), ("FIND", "acme", "x"),
                  ("LIST",), ("INFO",), ("COMPLETE", *K, 1, 200, "", ""),
                  ("AWAIT", "id", *K, 1000)):
        reply = raw(*words)
        assert isinstance(reply, Error) and reply.code == "NOAUTH", (words,
                                                                     reply)
    wrong = raw("AUTH", "open-sesam")
    assert isinstance(wrong, Error) and wrong.code == "WRONGPASS"
    assert raw("AUTH", "open-sesame") == "OK"
    assert raw("CLAIM", *K, "fp")[0] == b"NEW"
    assert raw("LIST").code == "NOPERM"
    # The usual name for a client that has none.
    assert daemon.raw()("AUTH", "default", "open-sesame") == "OK"


def test_a_password_file_works_and_is_read_once_more_at_reload(make_daemon,
                                                               tmp_path):
    secret = tmp_path / "password"
    secret.write_text("first-one\n")
    secret.chmod(0o600)
    daemon = make_daemon(settings=["auth.password_file=%s" % secret])
    assert daemon.raw()("AUTH", "first-one") == "OK"
    secret.write_text("second-one\n")
    since = len(daemon.log)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reload", since=since)
    assert daemon.raw()("AUTH", "second-one") == "OK"
    assert daemon.raw()("AUTH", "first-one").code == "WRONGPASS"


# ---- the start --------------------------------------------------------------

def run(*arguments):
    return subprocess.run(
        [str(build.BUILD / "latchkeyd"), *map(str, arguments)],
        capture_output=True, text=True, timeout=60 * build.patience())


def test_version_and_help_say_what_they_should():
    version = run("--version")
    assert version.returncode == 0
    assert re.search(r"latchkeyd.*\d+\.\d+\.\d+", version.stdout)
    usage = run("--help")
    assert usage.returncode == 0
    for option in ("--store", "--listen", "--set", "--config",
                   "--check-config", "--version", "--help"):
        assert option in usage.stdout


def test_an_unknown_option_is_named():
    result = run("--stoer", "sqlite:/x")
    assert result.returncode != 0
    assert "--stoer" in result.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_it_does_not_start_without_password(tmp_path, address):
    result = run("--store", "sqlite:%s" % (tmp_path / "db"),
                 "--listen", address)
    assert result.returncode != 0
    assert address in result.stderr and "password" in result.stderr


def test_beyond_loopback_it_starts_with_a_password(make_daemon):
    daemon = make_daemon(listen=["0.0.0.0:0"],
                         settings=["auth.password=open-sesame"])
    assert daemon.raw()("PING") is not None


def test_a_second_daemon_on_the_same_store_refuses_to_start(daemon, tmp_path):
    begin(daemon.raw(), "still-there")
    result = run("--store", "sqlite:%s" % daemon.store,
                 "--listen", "unix:%s" % (tmp_path / "s"))
    assert result.returncode != 0
    assert str(daemon.store) in result.stderr
    assert daemon.raw()("LOOKUP", *name("still-there"))


def test_a_second_daemon_does_not_take_the_socket_of_the_first(daemon,
                                                               tmp_path):
    result = run("--store", "sqlite:%s" % (tmp_path / "db"),
                 "--listen", daemon.address)
    assert result.returncode != 0
    assert str(daemon.socket) in result.stderr
    assert daemon.raw()("PING") == "PONG"


def test_a_socket_left_behind_by_a_dead_daemon_is_in_nobodys_way(daemon):
    daemon.kill()
    assert daemon.socket.exists()
    daemon.start()
    assert daemon.raw()("PING") == "PONG"


def test_a_file_that_is_no_socket_is_not_removed(tmp_path):
    precious = tmp_path / "s"
    precious.write_text("precious")
    result = run("--store", "sqlite:%s" % (tmp_path / "db"),
                 "--listen", "unix:%s" % precious)
    assert result.returncode != 0
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("setting, named", [
    ("store.lock=never", "store.lock"), ("store.lokc=5s", "store.lokc"),
    ("limits.connections=0", "limits.connections"),
    ("nonsense", "nonsense"), ("users.app=king secret-word", "users.app"),
    ("store.lock=2d", "store.lock")])
def test_a_bad_setting_is_named_and_nothing_starts(tmp_path, setting, named):
    result = run("--store", "sqlite:%s" % (tmp_path / "db"),
                 "--listen", "unix:%s" % (tmp_path / "s"), "--set", setting)
    assert result.returncode != 0
    assert named in result.stderr
    assert "secret-word" not in result.stderr
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("url", ["mongo:/x", "sqlite:/nowhere/at/all.db",
                                 "nothing"])
def test_a_store_that_cannot_be_opened_is_named(tmp_path, url):
    result = run("--store", url, "--listen", "unix:%s" % (tmp_path / "s"))
    assert result.returncode != 0
    assert url.split(":")[-1] in result.stderr


def test_a_file_that_is_no_store_is_left_alone(tmp_path):
    other = tmp_path / "letter.txt"
    other.write_bytes(b"Dear store, " * 1000)
    result = run("--store", "sqlite:%s" % other,
                 "--listen", "unix:%s" % (tmp_path / "s"))
    assert result.returncode != 0
    assert str(other) in result.stderr
    assert other.read_bytes() == b"Dear store, " * 1000


def test_check_config_reads_everything_and_starts_nothing(tmp_path):
    config = tmp_path / "latchkeyd.conf"
    config.write_text("[daemon]\nlisten = unix:%s\nstore = sqlite:%s\n"
                      "[store]\nlock = 20s\n" % (tmp_path / "s",
                                                 tmp_path / "db"))
    good = run("--config", config, "--check-config")
    assert good.returncode == 0, good.stderr
    assert not (tmp_path / "db").exists() and not (tmp_path / "s").exists()
    config.write_text("[store]\nlock = 20 bananas\nttl = 1s\nlokc = 5s\n")
    bad = run("--config", config, "--check-config")
    assert bad.returncode != 0
    # Each thing that is wrong, by file and line.
    assert "latchkeyd.conf:2: store.lock" in bad.stderr
    assert "latchkeyd.conf:4" in bad.stderr and "lokc" in bad.stderr


def test_a_configuration_file_works_and_set_overrides_it(make_daemon,
                                                         tmp_path):
    config = tmp_path / "latchkeyd.conf"
    config.write_text("[store]\nlock = 20s\nttl = 2h\n")
    daemon = make_daemon(config=config, settings=["store.lock=7s"])
    raw = daemon.raw()
    key = new_key()
    token = begin(raw, key)
    record = fields(raw("LOOKUP", *name(key)))
    assert record["ttl-ms"] == 7200000
    assert record["lock-until-ms"] - record["claimed-ms"] == 7000
    assert raw("RELEASE", *name(key), token) == "OK"


def test_the_socket_is_open_to_owner_and_group_only(daemon):
    assert oct(os.stat(daemon.socket).st_mode & 0o777) == oct(0o660)


def test_the_store_is_closed_to_others(daemon):
    finish(daemon.raw(), new_key())
    for path in daemon.folder.glob("store.db*"):
        assert os.stat(path).st_mode & 0o007 == 0, path


def test_both_kinds_of_address_work_at_once(daemon):
    key = new_key()
    over_tcp = daemon.raw(daemon.tcp_address)
    token = begin(over_tcp, key)
    assert complete(daemon.raw(), key, token, 200, b"", b"x") == "OK"
    assert claim(over_tcp, key)[3] == b"x"


def test_the_log_is_one_line_per_event_and_escapes_what_comes_from_outside(
        make_daemon):
    daemon = make_daemon(settings=["daemon.log_level=debug"])
    raw = daemon.raw()
    raw("AUTH", b"odd\nevent=ready", "x")
    raw("CLIENT", "SETNAME", "a\x1b[31m")
    raw(b"FLY\r\n", b"level=error")
    raw("PING")
    assert not any("\x1b" in line for line in daemon.log)
    assert not any(line.startswith("event=ready") for line in daemon.log)
    assert all(line.startswith(("time=", "latchkeyd: warning: auth."))
               for line in daemon.log), daemon.log


def test_a_connection_can_be_half_closed_and_still_gets_its_answers(daemon):
    raw = daemon.raw()
    raw.send("CLAIM", *name(new_key()), FINGERPRINT)
    raw.sock.shutdown(socket.SHUT_WR)
    assert raw.read()[0] == b"NEW"
    assert raw.at_end()


def test_await_is_pushed_in_the_form_of_the_protocol(daemon, protocol):
    raw, other = daemon.raw(protocol=protocol), daemon.raw()
    key = new_key()
    token = begin(other, key)
    assert raw("AWAIT", "id-1", *name(key), 60000) == "QUEUED"
    assert other("RELEASE", *name(key), token) == "OK"
    push = raw.read()
    if protocol == 3:
        assert isinstance(push, Push) and push == [b"settled", b"id-1"]
    else:
        assert push == [b"message", b"settled", b"id-1"]
