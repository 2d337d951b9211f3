"""Stock Redis clients, unchanged, live the whole life of an operation."""

import base64
import json
import os
import pathlib
import re
import subprocess

import pytest
import redis

from support import build
from support.life import FINGERPRINT, OTHER_FINGERPRINT, new_key
from support.node import need_node, node_modules
from support.resp import fields

HEADERS = b"Content-Type: application/json\r\nX-Odd: a\\b\r\n"
BODY = b'{"id": 7}\r\n\x00\xff\x80' + bytes(range(256))
HERE = pathlib.Path(__file__).resolve().parent


def text(reply):
    return reply.decode() if isinstance(reply, bytes) else reply


def live(call):
    """The life of one operation; `call(*words)` gives bytes, numbers, lists."""
    name = ("acme", "POST /payments", new_key())

    new = call("CLAIM", *name, FINGERPRINT, "OWNER", "me")
    assert text(new[0]) == "NEW"
    token = int(new[1])
    assert call("CLAIM", *name, FINGERPRINT, "OWNER", "me") == new  # C41
    inflight = call("CLAIM", *name, FINGERPRINT)
    assert text(inflight[0]) == "INFLIGHT" and inflight[2] == new[4]
    mismatch = call("CLAIM", *name, OTHER_FINGERPRINT)
    assert text(mismatch[0]) == "MISMATCH"
    assert text(call("COMPLETE", *name, token + 1, 201, HEADERS,
                     BODY)) == "STALE"
    assert text(call("COMPLETE", *name, token, 201, HEADERS, BODY)) == "OK"
    replay = call("CLAIM", *name, FINGERPRINT)  # C02
    assert text(replay[0]) == "REPLAY"
    assert int(replay[1]) == 201
    assert replay[2:4] == [HEADERS, BODY]
    kept = call("RELEASE", *name, token)
    assert text(kept[0]) == "KEPT" and kept[1:] == replay[1:]
    record = call("LOOKUP", *name)
    if isinstance(record, dict):
        record = [item for pair in record.items() for item in pair]
    record = dict(zip(map(text, record[::2]), record[1::2]))
    assert text(record["state"]) == "completed"
    assert record["body"] == BODY
    assert not call("LOOKUP", *name[:2], "no-such-key")


# ---- redis-py ---------------------------------------------------------------

def test_redis_py(daemon):
    live(daemon.redis().execute_command)


def test_redis_py_over_tcp_with_a_pool_and_a_pipeline(daemon):
    host, port = daemon.tcp_address.split(":")
    client = redis.Redis(host=host, port=int(port), db=0,
                         client_name="payments", health_check_interval=1)
    live(client.execute_command)
    assert client.ping()
    pipeline = client.pipeline(transaction=False)
    keys = [new_key() for _ in range(50)]
    for key in keys:
        pipeline.execute_command("CLAIM", "acme", "s", key, FINGERPRINT)
    assert [reply[0] for reply in pipeline.execute()] == [b"NEW"] * 50
    assert client.info()
    client.close()


def test_redis_py_raises_our_errors(daemon):
    with pytest.raises(redis.ResponseError, match="tenant"):
        daemon.redis().execute_command("CLAIM", "", "s", "k", "f")


def test_redis_py_logs_in(daemon):
    # C36
    with pytest.raises(redis.exceptions.NoPermissionError):
        daemon.redis().execute_command("LIST")
    assert daemon.redis(user="reader").execute_command("LIST")
    client = redis.Redis(unix_socket_path=str(daemon.socket),
                         username="reader", password="wrong")
    with pytest.raises(redis.ResponseError, match="WRONGPASS"):
        client.ping()
    client.close()


def test_redis_py_gets_what_it_awaits_as_a_message(daemon):
    # C07; AWAIT's reply is no subscription, so a bare connection reads it.
    client = daemon.redis()
    name = ("acme", "s", new_key())
    token = client.execute_command("CLAIM", *name, FINGERPRINT)[1]
    connection = client.connection_pool.get_connection("AWAIT")
    connection.send_command("AWAIT", "id", *name, 60000)
    assert connection.read_response() == b"QUEUED"
    client.execute_command("RELEASE", *name, token)
    assert connection.read_response() == [b"message", b"settled", b"id"]
    client.connection_pool.release(connection)


# ---- redis-cli --------------------------------------------------------------

def quote(word):
    """As redis-cli reads its standard input."""
    data = word if isinstance(word, bytes) else str(word).encode()
    return '"%s"' % "".join("\\x%02x" % byte for byte in data)


def unquote(value):
    """A reply line of redis-cli: a quoted string, a number, a simple word."""
    value = value.strip()
    if value.startswith("(integer) "):
        return int(value[len("(integer) "):])
    if value == "(nil)":
        return None
    if not value.startswith('"'):
        return value.encode()
    names = {"n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "b": b"\b",
             '"': b'"', "\\": b"\\"}
    out, at = b"", 1
    while value[at] != '"':
        if value[at] != "\\":
            out += value[at].encode("latin-1")
            at += 1
        elif value[at + 1] == "x":
            out += bytes([int(value[at + 2:at + 4], 16)])
            at += 4
        else:
            out += names[value[at + 1]]
            at += 2
    return out


def redis_cli(daemon, *options):
    def call(*words):
        line = " ".join(map(quote, words)) + "\n"
        result = subprocess.run(
            ["redis-cli", "-s", str(daemon.socket), "--no-raw", *options],
            input=line, capture_output=True, encoding="latin-1", timeout=60)
        assert result.returncode == 0, result.stderr
        lines = result.stdout.rstrip("\n").split("\n")
        if not re.match(r"\s*\d+[)#] ", lines[0]):
            return unquote(lines[0])
        pairs = [re.sub(r"^\s*\d+[)#] ", "", line) for line in lines]
        if re.match(r"\s*\d+# ", lines[0]):
            return dict(map(split_pair, pairs))
        return [unquote(line) for line in pairs]
    return call


def split_pair(line):
    key, value = re.match(r'("(?:[^"\\]|\\.)*") => (.*)', line, re.S).groups()
    return unquote(key), unquote(value)


@pytest.mark.parametrize("options", [(), ("-3",)], ids=["RESP2", "RESP3"])
def test_redis_cli(daemon, options):
    live(redis_cli(daemon, *options))


def test_redis_cli_over_tcp_and_with_a_user(daemon):
    # C36
    host, port = daemon.tcp_address.split(":")

    def run(*words):
        return subprocess.run(["redis-cli", "-h", host, "-p", port, *words],
                              capture_output=True, text=True,
                              timeout=60).stdout

    assert run("PING") == "PONG\n"
    assert "NOPERM" in run("STATS")
    assert "NOPERM" not in run("--user", "reader", "--pass", "reader-secret",
                               "--no-auth-warning", "STATS")


# ---- redis-benchmark --------------------------------------------------------

COUNT = 2000 if build.is_sanitized() else 20000


def benchmark(daemon, protocol, *words, count=COUNT):
    """Runs one command `count` times; numbers of INFO, before and after."""
    options = ["-c", "20", "-P", "16", "-r", "1000000"] if count > 1 else [
        "-c", "1"]
    before = claims_counted(daemon)
    result = subprocess.run(
        ["redis-benchmark", "-s", str(daemon.socket), "-n", str(count),
         *options, "-q", *protocol, *map(str, words)],
        capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rror" not in result.stdout + result.stderr
    assert "requests per second" in result.stdout
    after = claims_counted(daemon)
    return {verdict: after[verdict] - before[verdict] for verdict in after
            if after[verdict] != before[verdict]}


def claims_counted(daemon):
    """Claims by verdict."""
    text = daemon.raw()("INFO", "claims").decode()
    return {verdict: int(number) for verdict, number in
            re.findall(r"claims_(\w+):(\d+)", text)}


@pytest.mark.parametrize("protocol", [(), ("-3",)], ids=["RESP2", "RESP3"])
def test_redis_benchmark(daemon, protocol):
    told = benchmark(daemon, protocol, "CLAIM", "acme", "POST /payments",
                     "key-__rand_int__", FINGERPRINT)
    assert set(told) <= {"new", "inflight"}
    assert sum(told.values()) == COUNT
    raw = daemon.raw(user="reader")
    cursor, page = raw("LIST", "LIMIT", 1000)
    assert len(page) == 1000


@pytest.mark.parametrize("protocol", [(), ("-3",)], ids=["RESP2", "RESP3"])
def test_redis_benchmark_lives_the_life_of_an_operation(daemon, protocol):
    # C02
    name = ("acme", "POST /payments", new_key())
    ask = ("CLAIM", *name, FINGERPRINT)
    raw = daemon.raw()
    assert benchmark(daemon, protocol, *ask, count=1) == {"new": 1}
    assert benchmark(daemon, protocol, *ask) == {"inflight": COUNT}
    token = fields(raw("LOOKUP", *name))["token"]
    assert benchmark(daemon, protocol, "COMPLETE", *name, token, 201,
                     "A: b\r\n", "paid", count=1) == {}
    assert benchmark(daemon, protocol, *ask) == {"replay": COUNT}
    assert raw(*ask)[:4] == [b"REPLAY", 201, b"A: b\r\n", b"paid"]


# ---- ioredis ----------------------------------------------------------------

def decode(reply):
    if isinstance(reply, list):
        return [decode(item) for item in reply]
    if isinstance(reply, dict) and "bytes" in reply:
        return base64.b64decode(reply["bytes"])
    return reply


def test_ioredis(daemon):
    need_node()
    env = dict(os.environ, NODE_PATH=str(
        node_modules(HERE / "clients", "clients") / "node_modules"))
    node = subprocess.Popen(
        ["node", str(HERE / "clients" / "ioredis.js"), str(daemon.socket)],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(*words):
        line = [base64.b64encode(
            word if isinstance(word, bytes) else str(word).encode()).decode()
            for word in words]
        node.stdin.write(json.dumps(line) + "\n")
        node.stdin.flush()
        return decode(json.loads(node.stdout.readline()))

    try:
        live(call)
        assert "tenant" in call("CLAIM", "", "s", "k", "f")["error"]
        node.stdin.close()
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
        node.stdout.close()
