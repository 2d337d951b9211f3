"""Clients of all kinds: TLS, HTTP/2, slow ones and ones that leave."""

import subprocess

import pytest

from support import build
from support.app import pattern, tell
from support.gateway import guard
from support.h2 import Http2
from support.life import new_key, until
from support.wire import encode_request

SMALL_BUFFER = "client_body_buffer_size 1k; client_max_body_size 20m;"


# ---- HTTP/1 ----

def test_one_connection_carries_every_kind_of_answer(gateway, app):
    # C02
    connection = gateway.raw()

    def ask(key, body=b"{}", **manner):
        return connection.ask("POST", "/", gateway.headers(
            tell(**manner), key), body)

    keys = [new_key() for _ in range(6)]
    for _ in range(2):
        assert ask(keys[0]).status == 201
        assert ask(keys[1], bytes=300000).body == pattern(300000)
        assert ask(keys[2], status=204).status == 204
        assert ask(keys[3], status=404).status == 404
        assert ask(keys[0], b"other").problem == "key-reused"
        assert ask("a b").problem == "key-invalid"
        assert connection.ask("GET", "/", gateway.headers()).status == 201
    assert ask(keys[4], status=502).status == 502
    assert ask(keys[4]).problem == "outcome-unknown"
    # After an answer that was cut, nothing more may come on it.
    cut = ask(keys[5], bytes=5000, truncate=10)
    assert cut.status == 502 or not cut.complete


def test_requests_that_follow_without_waiting_are_answered_in_order(gateway,
                                                                    app):
    # C02
    connection = gateway.raw()
    keys = [new_key() for _ in range(5)]
    connection.send(b"".join(
        encode_request("POST", "/", gateway.headers(None, key), b"{}")
        for key in keys + keys))
    answers = [connection.response() for _ in range(10)]
    assert [a.json()["call"] for a in answers] == [1, 2, 3, 4, 5] * 2
    assert [a.replayed for a in answers] == [False] * 5 + [True] * 5


def test_a_client_that_leaves_at_any_byte_of_its_request_starts_nothing(
        gateway, app):
    # C11
    key = new_key()
    whole = encode_request("POST", "/", gateway.headers(None, key),
                           b'{"amount": 1}')
    for end in range(len(whole)):
        connection = gateway.raw()
        connection.send(whole[:end])
        if end % 2:
            connection.reset()
        else:
            connection.close()
    assert gateway.record(key) is None
    answer = gateway.post(key, b'{"amount": 1}')
    assert answer.status == 201 and not answer.replayed
    assert app.count() == 1


def test_a_client_that_leaves_right_after_its_request_wedges_nothing(gateway,
                                                                     app):
    # C11, C41
    keys = [new_key() for _ in range(60)]
    for number, key in enumerate(keys):
        connection = gateway.leave(key=key)
        connection.reset() if number % 2 else connection.close()
    for key in keys:
        answer = gateway.settled(key)
        assert answer.status == 201
        assert app.count(key) == 1


def test_a_request_in_single_bytes_is_one_request(gateway, app):
    # C02
    key = new_key()
    connection = gateway.raw()
    for byte in encode_request("POST", "/", gateway.headers(None, key),
                               b'{"amount": 1}'):
        connection.send(bytes([byte]))
    assert connection.response().status == 201
    assert gateway.post(key, b'{ "amount": 1 }').problem == "key-reused"
    assert gateway.post(key, b'{"amount": 1}').replayed and app.count() == 1


def test_a_client_that_reads_slowly_gets_all_of_it(gateway, app):
    # C02
    key = new_key()
    for replayed in (False, True):
        connection = gateway.leave(key=key, headers=tell(bytes=1000000))
        head = connection.head()
        assert head[3].get("Idempotent-Replayed") == (
            "true" if replayed else None)
        parts = []
        while sum(map(len, parts)) < 1000000:
            parts.append(connection.stream.exactly(
                min(10000, 1000000 - sum(map(len, parts)))))
        assert b"".join(parts) == pattern(1000000)
    assert app.count() == 1


def test_a_client_that_stops_its_body_is_not_waited_for(make_gateway, app):
    # C11
    gateway = make_gateway(server="client_body_timeout 1s;")
    key = new_key()
    connection = gateway.raw()
    connection.send(encode_request("POST", "/", gateway.headers(None, key),
                                   b"0123456789")[:-5])
    connection.at_end()
    gateway.logged(key=key, status=408)
    assert gateway.record(key) is None and app.count() == 0


def test_a_body_over_the_limit_is_refused_and_claims_nothing(make_gateway,
                                                             app):
    # C12
    gateway = make_gateway(server="client_max_body_size 1k;")
    key = new_key()
    assert gateway.post(key, b"x" * 2000).status == 413
    assert gateway.post(key, b"x" * 2000, chunked=True).status == 413
    assert gateway.record(key) is None and app.count() == 0
    assert gateway.post(key, b"x" * 1000).status == 201


def test_the_form_of_the_body_on_its_way_does_not_matter(make_gateway, app):
    # C03
    gateway = make_gateway(server=SMALL_BUFFER)
    for size in (0, 10, 100000):
        key = new_key()
        body = pattern(size)
        first = gateway.post(key, body, chunked=True)
        assert first.status == 201
        assert app.last.body == body
        assert gateway.post(key, body).body == first.body
        assert gateway.post(key, body, chunked=True).replayed
        assert gateway.post(key, body + b"x",
                            chunked=True).problem == "key-reused"


@pytest.mark.parametrize("line", [
    "", "client_body_in_file_only clean;", "client_body_in_single_buffer on;",
    "client_body_in_file_only on;"])
def test_large_bodies_in_files_are_compared_to_the_last_byte(make_gateway,
                                                             app, line):
    # C03
    gateway = make_gateway(server=SMALL_BUFFER + line)
    key = new_key()
    body = pattern(5000000)
    first = gateway.post(key, body)
    assert first.status == 201
    assert app.last.length == len(body)
    assert gateway.post(key, body).body == first.body
    assert gateway.post(key, body[:-1] + b"\1").problem == "key-reused"
    assert app.count() == 1


def test_a_client_that_waits_for_100_continue_gets_it(gateway, app):
    # C02
    key = new_key()
    for _ in range(2):
        connection = gateway.raw()
        head = encode_request("POST", "/", gateway.headers(
            {"Expect": "100-continue"}, key), b"{}")
        connection.send(head[:-2])
        assert connection.head()[1] == 100
        connection.send(head[-2:])
        assert connection.response().status == 201
    assert app.count() == 1


def test_a_client_of_http_1_0_is_served(gateway, app):
    # C02
    key = new_key()
    first = gateway.post(key, version="1.0", headers=tell(
        bytes=5000, chunked=True))
    again = gateway.post(key, version="1.0")
    assert first.body == again.body == pattern(5000)
    assert again.replayed and app.count() == 1


def test_an_answer_of_100_megabytes_passes_without_being_held(make_gateway,
                                                              app):
    # C12
    gateway = make_gateway(workers=1, http="proxy_max_temp_file_size 0;")
    key = new_key()
    size = 100 * 1000 * 1000
    connection = gateway.leave(key=key, headers=tell(bytes=size))
    head = connection.head()
    assert head[1] == 201
    left = size
    while left:
        left -= len(connection.stream.exactly(min(left, 1 << 20)))
    assert gateway.settled(key).problem == "answer-not-kept"
    assert app.count() == 1
    if not build.is_sanitized():
        (pid,) = gateway.workers()
        assert peak_memory(pid) < 40 << 20


def peak_memory(pid):
    with open("/proc/%d/status" % pid) as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


# ---- TLS and HTTP/2 ----

def parse(result):
    """curl -i: (status, header text, body)."""
    assert result.returncode == 0, result.stderr
    head, _, body = result.stdout.partition(b"\r\n\r\n")
    text = head.decode().lower()
    return int(text.split()[1]), text, body


@pytest.fixture
def both(make_gateway):
    return make_gateway(tls=True, h2=True, locations=guard(
        "/", "idempotency_wait 20s;"))


@pytest.mark.parametrize("options", [{"tls": True}, {"h2": True}], ids=str)
def test_http_2_requests_are_replayed(both, app, options):
    # C02
    key = new_key()
    words = ["-H", "X-API-Key: acme", "-H", "Idempotency-Key: " + key,
             "-H", "X-App: " + tell(bytes=200000, headers=[
                 ["Set-Cookie", "a=b"], ["Link", "</a>"],
                 ["Link", "</b>"]])["X-App"], "--data-binary", "{}"]
    status, head, body = parse(both.curl(*words, **options))
    assert head.startswith("http/2 201") and body == pattern(200000)
    assert "set-cookie" in head and "idempotency-reference: " in head
    assert "idempotent-replayed" not in head
    status, head, again = parse(both.curl(*words, **options))
    assert status == 201 and again == body
    assert "idempotent-replayed: true" in head and "set-cookie" not in head
    assert head.count("link: ") == 2
    assert app.count() == 1
    # The same operation over HTTP/1.
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert both.post(key, headers=form).replayed
    assert both.post(key, tls=True, headers=form).replayed


def test_http_2_requests_are_refused_as_others_are(both, app):
    # C05, C06
    with Http2(both.h2_port) as client:
        for headers, problem in (
                ([], b"key-missing"),
                ([("Idempotency-Key", "a b")], b"key-invalid"),
                ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
                 b"key-invalid")):
            stream = client.post(both.headers(headers), b"{}")
            assert problem in client.body(stream)
    assert app.count() == 0


def test_many_streams_of_one_connection_with_one_key_run_once(both, app):
    # C01
    key = new_key()
    with Http2(both.h2_port) as client:
        streams = [client.post(both.headers(tell(hold="go"), key), b"{}")
                   for _ in range(50)]
        app.wait_held("go")
        app.release("go")
        bodies = {client.body(stream) for stream in streams}
    assert len(bodies) == 1 and app.count() == 1
    assert b'"call": 1' in bodies.pop()
    both.logged(49, key=key, verdict="replay", status=201)


def test_a_stream_that_is_reset_does_not_stop_the_app(both, app):
    # C11
    key, other = new_key(), new_key()
    with Http2(both.h2_port) as client:
        stream = client.post(both.headers(tell(hold="work"), key), b"{}")
        app.wait_held("work")
        client.reset(stream)
        assert b'"call": 2' in client.body(
            client.post(both.headers(None, other), b"{}"))
        app.release("work")
        assert b'"call": 1' in client.body(
            client.post(both.headers(None, key), b"{}"))
    assert app.count() == 2


def test_a_stream_that_is_reset_while_it_waits_disturbs_nobody(both, app):
    # C07
    key = new_key()
    with Http2(both.h2_port) as client:
        first = client.post(both.headers(tell(hold="work"), key), b"{}")
        app.wait_held("work")
        waiting = [client.post(both.headers(None, key), b"{}")
                   for _ in range(5)]
        until(lambda: both.commands("await") >= 5)
        for stream in waiting[1:]:
            client.reset(stream)
        app.release("work")
        assert b'"call": 1' in client.body(waiting[0])
        assert b'"call": 1' in client.body(first)
    assert both.post(key).replayed and app.count() == 1


def test_a_client_that_is_killed_finds_its_answer_later(both, app):
    # C11
    key = new_key()
    process = subprocess.Popen(
        ["curl", "-sS", "-k", "-H", "X-API-Key: acme", "-H",
         "Idempotency-Key: " + key, "-H",
         "X-App: " + tell(hold="work")["X-App"], "-H", "Content-Type:",
         "--data-binary", "{}", "https://127.0.0.1:%d/" % both.tls_port],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    app.wait_held("work")
    process.kill()
    process.wait()
    app.release("work")
    assert both.post(key).replayed and app.count() == 1
