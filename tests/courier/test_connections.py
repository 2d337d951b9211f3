"""What the courier holds on to: connections, streams and memory."""

import collections
import os
import pathlib
import socket
import threading

import pytest

from support import build
from support.gateway import Gateway
from support.life import until
from support.provider import charge

TOGETHER = 24
# Of each target. One that hangs for 20 seconds each time, with ten calls at
# once, has 43200 of them in a day.
CALLS = int(os.environ.get("LATCHKEY_HANGS", 1200))
AT_ONCE = 20


# ---- HTTP/2 ----

@pytest.fixture
def front(app):
    """nginx with TLS and HTTP/2 before the app, which it tells by what
    connection a call came."""
    made = Gateway(
        app=app, tls=True, module=False, workers=1,
        locations="location / { proxy_pass http://@APP@;"
                  " proxy_set_header X-Protocol $server_protocol;"
                  " proxy_set_header X-Connection $connection; }")
    yield made.start()
    made.kill()  # else it waits for connections that idle
    made.finish()


def call_together(box, app, front, **more):
    """Calls that all have left before the first of them is answered: how many
    came by each connection."""
    app.manner = {"hold": "all"}
    box.target("hook", "https://localhost:%d" % front.tls_port,
               ca_file=front.folder / "cert.pem", concurrency=TOGETHER,
               timeout="300s", id="json:/call", **more).start()
    keys = box.leave_many(TOGETHER, lambda key: key.encode(), target="hook",
                          path="/x")
    app.wait_held("all", TOGETHER)
    app.release("all")
    # Each has the answer that was given to it, and no other.
    answered = {call.body.decode(): call for call in app.calls}
    assert len(app.calls) == len(answered) == TOGETHER
    for key in keys:
        job = box.wait_job(key)
        assert job["downstream-key"] == answered[key].key
        assert job["provider-id"] == str(answered[key].number)
    return collections.Counter(call.header("X-Connection")
                               for call in app.calls)


@pytest.mark.parametrize("http", ["auto", "2"])
@pytest.mark.stores("sqlite")
def test_calls_at_the_same_time_share_a_connection_of_http_2(box, app, front,
                                                             http):
    used = call_together(box, app, front, http=http)
    assert {call.header("X-Protocol") for call in app.calls} == {"HTTP/2.0"}
    assert list(used.values()) == [TOGETHER]


@pytest.mark.stores("sqlite")
def test_with_http_1_1_each_call_has_a_connection_while_it_runs(box, app,
                                                                front):
    used = call_together(box, app, front, http="1.1")
    assert set(used.values()) == {1} and len(used) == TOGETHER


@pytest.mark.stores("sqlite")
def test_where_keys_are_not_honoured_nothing_shares_a_connection(box, app,
                                                                 front):
    # C27: what shares one may be sent again in secret when it ends.
    used = call_together(box, app, front, http="2", idempotency="no")
    assert {call.header("X-Protocol") for call in app.calls} == {"HTTP/2.0"}
    assert set(used.values()) == {1} and len(used) == TOGETHER


# ---- a day of trouble ----

class Watch:
    """How many sockets a process has at most, while it is looked at."""

    def __init__(self, pid):
        self.folder = pathlib.Path("/proc/%d/fd" % pid)
        self.most = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def count(self):
        found = 0
        for name in os.listdir(self.folder):
            try:
                found += os.readlink(self.folder / name).startswith("socket:")
            except FileNotFoundError:
                pass  # closed meanwhile
        return found

    def _look(self):
        while not self.over.wait(0.01):
            self.most = max(self.most, self.count())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join()


def rss(pid):
    for line in pathlib.Path("/proc/%d/status" % pid).read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.fixture
def silent():
    """Accepts connections and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


def test_a_day_of_hanging_dead_and_slow_targets_stays_within_bounds(
        box, make_provider, silent):
    """C30: no more sockets at any time than calls may run at once, none of
    them in the end, and no more memory after all the calls than after a
    quarter of them."""
    slow = make_provider(manner={"pace": 40})
    cut = make_provider(manner={"drop": "after"})
    giant = make_provider(manner={"giant": 1 << 20})
    dead = make_provider()
    dead.kill()
    attempts = 10
    more = {"timeout": "50ms", "backoff": "1ms", "backoff_max": "2ms",
            "concurrency": AT_ONCE, "attempts": attempts}
    places = {"silent": silent, "slow": slow.url, "dead": dead.url,
              "cut": cut.url}
    for name, place in places.items():
        box.target(name, place, **more)
    box.target("giant", giant, concurrency=4)
    # Caches may grow; that is what they are for.
    box.start("courier.answer_bytes=64k", "limits.cache_bytes=0",
              "store.cache_pages=100")
    box.raw, box.operator

    def go_through(share):
        for name in places:
            box.leave_many(share // attempts, charge, target=name)
        box.leave_many(share // 100, charge, target="giant")
        return box.wait_settled(timeout=300)

    with Watch(box.daemon.pid) as watch:
        base = watch.count()
        go_through(CALLS // 4)
        early = rss(box.daemon.pid)
        for _ in range(3):
            counts = go_through(CALLS // 4)
    late = rss(box.daemon.pid)
    jobs = 4 * (CALLS // 4 // attempts) * len(places)
    assert counts["dead"] == jobs
    for name in places:
        status = box.target_status(name)
        assert int(status["failed"]) == jobs // len(places) * attempts
    assert watch.most <= base + len(places) * AT_ONCE + 4 + 8, (
        base, watch.most)
    # What stays open are idle connections to those who answered.
    until(lambda: watch.count() <= base + 4 + 8, 60)
    if not build.is_sanitized():
        assert late - early < 4 << 20, (early, late)


# ---- connections that die ----

class Closing:
    """Answers the first request of a connection. Reads the second to its end,
    and closes without an answer. What came: (connection, key) of each."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.came = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        number = 0
        while True:
            try:
                peer = self.listener.accept()[0]
            except OSError:
                return
            number += 1
            threading.Thread(target=self._serve, args=(peer, number),
                             daemon=True).start()

    def _serve(self, peer, number):
        with peer, peer.makefile("rb") as lines:
            for answers in (True, False):
                if not self._read(lines, number):
                    return
                if answers:
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n"
                                 b"\r\n{\"id\":\"x\"}")

    def _read(self, lines, number):
        headers = {}
        for line in iter(lines.readline, b"\r\n"):
            if not line:
                return False
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip().decode()
        lines.read(int(headers[b"content-length"]))
        self.came.append((number, headers[b"idempotency-key"]))
        return True


@pytest.fixture
def closing():
    made = Closing()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("honours", ["yes", "no"])
def test_every_request_that_leaves_is_an_attempt_on_record(box, closing,
                                                           honours):
    # C27, C28: also where a kept connection dies under a request.
    box.target("pay", closing.url, idempotency=honours, http="1.1").start()
    jobs = [box.wait_job(box.leave(charge("cus_1", 1))) for _ in range(2)]
    for job in jobs:
        came = [key for _, key in closing.came if key == job["downstream-key"]]
        assert len(came) == job["attempts"] == len(job["history"]), job
    assert [job["attempts"] for job in jobs] == [
        1, 2 if honours == "yes" else 1]
    if honours == "no":
        assert [number for number, _ in closing.came] == [1, 2]
    else:
        assert "the connection was closed" in jobs[1]["history"][0]["reason"]
