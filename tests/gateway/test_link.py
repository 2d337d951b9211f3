"""The gateway's connections to the daemon: cut, mute, garbled, slow, many."""

import collections
import os
import re
import shutil
import signal
import socket
import threading
import time

import pytest

from support import build
from support.app import pattern, tell
from support.gateway import guard
from support.life import begin, new_key, until
from support.resp import connect

PATIENT = guard("/", "idempotency_timeout 20s;")


class Middleman:
    """Stands between a gateway and a daemon, and tampers with replies."""

    def __init__(self, target):
        self.target = target
        self.folder = build.folder("mm")
        self.address = "unix:%s/socket" % self.folder
        self.changed = threading.Condition()
        self.left = None      # bytes of replies until the connection is cut
        self.most = 65536     # bytes of replies that go out at a time
        self.mute = False     # takes everything, gives nothing
        self.deaf = []        # connections whose ends hear nothing any more
        self.poison = None    # words in a command that end its connection
        self.garble = None    # what the next reply is replaced by
        self.kept = None      # commands that are kept back; None: none are
        self.accepted = 0
        self.pairs = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.folder / "socket"))
        self.listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.changed:
                self.accepted += 1
                self.changed.notify_all()
            if self.mute:
                self.pairs.append((client, client))
                continue
            try:
                server = connect(self.target)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            self.pairs.append(pair)
            for source, to, tamper in ((client, server, None),
                                       (server, client, self._tamper)):
                threading.Thread(target=self._pass, daemon=True,
                                 args=(pair, source, to, tamper)).start()

    def _pass(self, pair, source, to, tamper):
        try:
            while data := source.recv(65536):
                if pair in self.deaf:
                    continue
                if self.kept is not None and not tamper:
                    self.kept.append((to, data))
                    continue
                if not tamper and self.poison and all(
                        word in data for word in self.poison):
                    break
                if tamper:
                    tamper(to, data)
                else:
                    to.sendall(data)
        except OSError:
            pass
        if any(to in pair for to, _ in self.kept or ()):
            return
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _tamper(self, to, data):
        if self.mute:
            return
        if self.garble:
            data, self.garble = self.garble, None
        with self.changed:
            if self.left is not None and len(data) >= self.left:
                data, self.left, cut = data[:self.left], None, True
            else:
                cut = False
                if self.left is not None:
                    self.left -= len(data)
        for start in range(0, len(data), self.most):
            to.sendall(data[start:start + self.most])
        if cut:
            raise ConnectionAbortedError

    def deliver(self):
        """What was kept arrives, though whoever sent it may have left."""
        kept, self.kept = self.kept, None
        for end in {to for to, _ in kept}:
            # At once: the first reply ends it, with nobody there.
            end.sendall(b"".join(data for to, data in kept if to is end))

    def say(self, data):
        """Says something that nobody has asked for."""
        for client, _ in self.pairs:
            try:
                client.sendall(data)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        for pair in self.pairs:
            for end in pair:
                end.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def middleman(make_daemon):
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    middleman = Middleman(daemon.address)
    middleman.daemon = daemon
    yield middleman
    middleman.close()


@pytest.fixture
def behind(middleman, make_gateway):
    """A gateway with one worker that reaches its daemon by a middleman."""
    def make(**options):
        options.setdefault("locations", PATIENT)
        options.setdefault("server", "send_timeout 60s;")
        return make_gateway(daemon=middleman.daemon, workers=1,
                            daemon_address=middleman.address, **options)
    return make


def is_unavailable(answer):
    return (answer.status, answer.problem) == (503, "unavailable")


def insist(gateway, key, **options):
    """Asks as a good client does; the final answer."""
    return until(lambda: (a := gateway.post(key, **options)).status == 201
                 and a, pause=0.02)


def test_a_connection_that_is_cut_anywhere_is_not_noticed(behind, middleman,
                                                          app):
    # C41: in the reply to the claim, between, and in that to the completion.
    gateway = behind()
    assert gateway.post("first").status == 201
    for left in [*range(0, 50, 5), *range(50, 70)]:
        key = new_key()
        middleman.left = left
        answer = gateway.post(key)
        middleman.left = None
        assert answer.status == 201 and not answer.replayed, left
        assert app.by_key[key] == 1, left
        again = gateway.post(key)
        assert again.replayed and again.body == answer.body, left
    assert middleman.accepted >= 20


def test_a_completion_in_blocks_is_repeated_on_another_connection(
        behind, middleman, app):
    # C41: the reply to it is cut; KEPT has the same bytes as the blocks
    gateway = behind()
    assert gateway.post("first").status == 201
    for left in range(44, 65, 3):
        key = new_key()
        middleman.left = left
        answer = gateway.post(key, headers=tell(bytes=20000, chunked=True))
        middleman.left = None
        again = gateway.post(key)
        assert not answer.replayed and again.replayed, left
        assert answer.body == again.body == pattern(20000), left
        assert app.by_key[key] == 1, left
    assert middleman.accepted >= 5


def test_replies_that_come_byte_by_byte_are_understood(behind, middleman,
                                                       app):
    # C02
    middleman.most = 1
    gateway = behind()
    for chunked in (False, True):
        key = new_key()
        answer = gateway.post(key, headers=tell(bytes=20000, chunked=chunked))
        again = gateway.post(key)
        assert again.replayed
        assert again.body == answer.body == pattern(20000)
    assert app.count() == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_large_answers_go_both_ways_and_disturb_nobody(make_gateway, app,
                                                       chunked):
    # C02: one of unknown length is held in many blocks
    gateway = make_gateway(locations=guard(
        "/", "proxy_http_version 1.1;", "idempotency_response_max 12m;"))
    keys = [new_key() for _ in range(4)]
    large = [gateway.later(key=key, body=b"{}",
                           headers=tell(bytes=9 << 20, chunked=chunked))
             for key in keys]
    small = [gateway.later(key=new_key(), body=b"{}") for _ in range(40)]
    assert all(future.result().status == 201 for future in small)
    for future, key in zip(large, keys):
        assert future.result().body == pattern(9 << 20)
        again = gateway.post(key)
        assert again.replayed and again.body == pattern(9 << 20)
    assert app.count() == 44


def test_an_answer_that_the_daemon_finds_too_large_is_never_run_again(
        make_gateway, make_daemon, app):
    # C12: refused in the middle of the command, with others behind it. The
    # answer goes, the time for which the app has it remembered stays.
    daemon = make_daemon(settings=["limits.command_bytes=1m"])
    gateway = make_gateway(
        daemon=daemon, workers=1,
        locations=guard("/", "idempotency_response_max 8m;"))
    key = new_key()
    first = gateway.later(key=key, body=b"{}", headers=tell(
        bytes=6 << 20, headers=[["Latchkey-Keep", "30d"]]))
    others = [gateway.later(key=new_key(), body=b"{}") for _ in range(20)]
    assert first.result().body == pattern(6 << 20)
    assert all(future.result().status == 201 for future in others)
    again = gateway.post(key)
    assert (again.status, again.problem) == (409, "answer-not-kept")
    assert again.json()["original-status"] == 201
    assert app.by_key[key] == 1
    record = gateway.record(key)
    assert record["expires-ms"] - record["completed-ms"] == 30 * 86400000


def test_what_is_no_reply_closes_the_connection_and_decides_nothing(
        behind, middleman, app):
    # C19
    gateway = behind()
    assert gateway.post("first").status == 201
    middleman.garble = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    key = new_key()
    assert gateway.post(key).status == 201
    assert app.by_key[key] == 1
    gateway.wait_for_log("latchkeyd at .* cannot be read")


FORGED = b" with args beginning with: secret-key \x1b[2J\x07\x7f\x9b31m\xe2"


def assert_no_tail(gateway, line):
    """Of an error the code is logged, and none of what came with it."""
    assert re.search(r"[:,;] (it says )?(NOAUTH|ERR) \(", line), line
    assert "secret" not in gateway.log_text()
    assert set(gateway.error_log.read_bytes()) <= {10, *range(0x20, 0x7f)}


@pytest.mark.parametrize("step,reply,says", [
    ("greeting", b"-NOAUTH", "refuses this gateway"),
    ("claim", b"-ERR", "refused a claim"),
    ("completion", b"-ERR", "refused the response"),
], ids=["greeting", "claim", "completion"])
def test_of_an_error_only_the_code_is_in_the_log(
        behind, middleman, app, step, reply, says):
    reply += FORGED + b"\r\n"
    if step == "greeting":
        middleman.garble = reply
    gateway = behind()
    if step != "greeting":
        assert gateway.post("first").status == 201
    if step == "claim":
        middleman.garble = reply
    future = gateway.later(key="k1", body=b"{}", headers=tell(hold="run"))
    if step == "completion":
        app.wait_held("run")
        middleman.garble = reply
    app.release("run")
    line = gateway.wait_for_log("latchkeyd.* " + says)
    assert future.result().status in (201, 503)
    assert_no_tail(gateway, line)


def test_of_an_error_to_a_question_only_the_code_is_in_the_log(
        behind, middleman):
    gateway = behind(locations=PATIENT + """
        location = /status {
            idempotency_tenant $http_x_api_key;
            idempotency_status;
        }""")
    first = gateway.post("first")
    middleman.garble = b"-ERR" + FORGED + b"\r\n"
    answer = gateway.request("GET", "/status?reference=" + first.reference)
    assert is_unavailable(answer)
    line = gateway.wait_for_log("latchkeyd did not report")
    assert_no_tail(gateway, line)


def test_a_redis_in_place_of_the_daemon_is_told_nothing(make_gateway, app,
                                                        redis_server):
    # C19
    redis_server.admin.config_set("slowlog-log-slower-than", 0)
    gateway = make_gateway(daemon_address="unix:%s" % redis_server.socket,
                           workers=1)
    key = "secret-" + new_key()
    for _ in range(5):
        assert is_unavailable(gateway.post(key))
    line = gateway.wait_for_log("is not a latchkeyd")
    assert "[error]" in line and "Redis" in line
    assert "idempotency_server" in line and str(redis_server.socket) in line
    assert gateway.log_text().count("is not a latchkeyd") == 1
    assert key not in gateway.log_text()
    seen = {entry["command"].split()[0]
            for entry in redis_server.admin.slowlog_get(128)}
    assert b"HELLO" in seen and b"CLAIM" not in seen
    assert app.count() == 0


def test_a_redis_that_is_too_old_for_the_greeting_is_known_too(behind,
                                                               middleman):
    # C19
    middleman.garble = (b"-ERR unknown command `HELLO`, with args beginning "
                        b"with: `2`, `AUTH`, `default`, `secret`, \r\n")
    gateway = behind()
    gateway.post(new_key())
    gateway.wait_for_log("is not a latchkeyd")
    assert "secret" not in gateway.log_text()


def test_a_daemon_cannot_write_lines_of_its_own_into_the_log(behind,
                                                             middleman):
    gateway = behind()
    assert gateway.post("first").status == 201
    middleman.garble = b"-ERR one\nsecond line\r\n"
    assert gateway.post(new_key()).status in (201, 503)
    gateway.wait_for_log("latchkeyd.* cannot be read")
    assert not any(line.startswith("second") for line in gateway.log())


@pytest.mark.parametrize("word", [
    b"+OK\r\n", b"*5\r\n$3\r\nNEW\r\n:7\r\n:9\r\n:1\r\n$1\r\nR\r\n"])
def test_a_reply_that_nobody_asked_for_is_given_to_nobody(behind, middleman,
                                                          app, word):
    # C13, C19
    gateway = behind()
    answer = gateway.post("first")
    middleman.say(word)
    gateway.wait_for_log("latchkeyd at .* cannot be read")
    again = insist(gateway, "first")
    assert again.replayed and again.body == answer.body
    assert app.count() == 1


def test_replies_go_to_those_who_asked(make_gateway, app):
    # C13: one pipeline for all, and a short wait that gives up within it.
    gateway = make_gateway(workers=1)
    keys = [new_key() for _ in range(200)]
    futures = [gateway.later(key=key, body=key.encode()) for key in keys]
    answers = {key: future.result() for key, future in zip(keys, futures)}
    assert all(answer.status == 201 for answer in answers.values())
    futures = [gateway.later(key=key, body=key.encode()) for key in keys]
    for key, future in zip(keys, futures):
        again = future.result()
        assert again.replayed and again.body == answers[key].body
        assert again.reference == answers[key].reference
    assert len({answer.reference for answer in answers.values()}) == 200
    assert app.count() == 200


def test_a_server_that_accepts_and_says_nothing_is_not_used(behind, middleman,
                                                            app):
    # C19
    middleman.mute = True
    alone = behind(http="idempotency_connect_timeout 200ms;")
    assert is_unavailable(alone.post(new_key()))
    alone.wait_for_log("latchkeyd at .* does not answer in time")
    assert app.count() == 0
    both = behind(http="idempotency_connect_timeout 200ms; "
                  "idempotency_server %s;" % middleman.daemon.address)
    assert both.post(new_key()).status == 201
    middleman.mute = False
    assert insist(alone, new_key()).status == 201


def test_a_daemon_that_hangs_is_waited_for_once(make_gateway, app):
    # C19: then all are refused at once, and it is asked behind their backs.
    gateway = make_gateway(
        workers=1, locations=guard("/", "idempotency_timeout 500ms;"),
        http="idempotency_connect_timeout 400ms;")
    assert gateway.post(new_key()).status == 201
    gateway.daemon.signal(signal.SIGSTOP)
    try:
        assert is_unavailable(gateway.post(new_key()))
        for _ in range(40):
            assert is_unavailable(gateway.post(new_key()))
            time.sleep(0.05)
    finally:
        gateway.daemon.signal(signal.SIGCONT)
    entries = gateway.logged(41, verdict="unavailable")
    assert {entry["wait_time"] for entry in entries[1:]} == {"0.000"}
    assert insist(gateway, new_key()).status == 201
    assert app.count() == 2


def test_a_server_that_falls_silent_is_left_for_another(behind, middleman,
                                                        app):
    # C19, C41
    gateway = behind(
        locations=guard("/", "idempotency_timeout 500ms;"),
        http="idempotency_connect_timeout 100ms; "
        "idempotency_server %s;" % middleman.daemon.address)
    assert gateway.post("first").status == 201
    middleman.mute = True
    key = new_key()
    assert is_unavailable(gateway.post(key))
    assert insist(gateway, key).status == 201
    assert app.by_key[key] == 1
    assert gateway.post("first").replayed


def test_a_daemon_killed_under_load_costs_patience_and_nothing_else(
        make_gateway, make_daemon, app):
    # C01, C41
    daemon = make_daemon(tcp=True)
    gateway = make_gateway(daemon=daemon)
    over = threading.Event()
    bodies = collections.defaultdict(set)
    errors = []

    def work(number):
        count = 0
        try:
            while not over.is_set():
                count += 1
                key = "load-%d-%d" % (number, count)
                for _ in range(2):
                    bodies[key].add(insist(gateway, key).body)
        except BaseException as error:  # raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,))
               for number in range(8)]
    for thread in threads:
        thread.start()
    for kill in range(1, 4):
        until(lambda: app.count() > 60 * kill or errors)
        daemon.kill()
        daemon.start()
    over.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert set(app.by_key.values()) == {1}
    assert all(len(seen) == 1 for seen in bodies.values())


def test_each_loss_and_each_return_is_logged_once(make_gateway, make_daemon,
                                                  app):
    daemon = make_daemon()
    gateway = make_gateway(daemon=daemon, workers=1)
    assert gateway.post("first").status == 201
    for count in (1, 2):
        daemon.stop()
        for _ in range(20):
            assert is_unavailable(gateway.post(new_key()))
        # Several attempts fail before it is back.
        with socket.socket(socket.AF_UNIX) as stub:
            stub.bind(str(daemon.socket))
            stub.listen(16)
            for _ in range(3):
                stub.accept()[0].close()
        os.unlink(daemon.socket)
        daemon.start()
        assert insist(gateway, "first").replayed

        def lines(text):
            return [line for line in gateway.log() if text in line]

        assert len(lines("cannot be reached")) <= 2 * count
        assert len(lines("cannot be reached")) >= count
        until(lambda: sum(" answers" in line
                          for line in lines("[notice]")) == count)
        assert str(daemon.socket) in lines("cannot be reached")[0]


@pytest.mark.parametrize("options, says", [
    ("user=web password=wrong-secret", "WRONGPASS"), ("", "NOAUTH")])
def test_a_refused_password_is_told_without_it(make_gateway, make_daemon, app,
                                               options, says):
    # C19
    daemon = make_daemon(settings=["auth.password=right-secret"])
    gateway = make_gateway(daemon=daemon, server_options=options)
    assert is_unavailable(gateway.post(new_key()))
    line = gateway.wait_for_log("refuses this gateway")
    assert says in line and "idempotency_server" in line
    assert "secret" not in "\n".join(gateway.log())
    assert app.count() == 0


def test_who_cannot_be_put_on_the_list_of_waiters_still_gets_the_answer(
        make_gateway, make_daemon, app):
    # C07
    daemon = make_daemon(settings=["limits.waiters=1"])
    gateway = make_gateway(daemon=daemon,
                           locations=guard("/", "idempotency_wait 20s;"))
    keys = [new_key(), new_key()]
    first = [gateway.later(key=key, body=b"{}", headers=tell(hold="run"))
             for key in keys]
    app.wait_held("run", 2)
    waiting = [gateway.later(key=key, body=b"{}") for key in keys]
    until(lambda: gateway.commands("await") >= 2)
    app.release("run")
    for future, original in zip(waiting, first):
        answer = future.result()
        assert answer.replayed and answer.body == original.result().body
    assert app.count() == 2


def test_a_worker_that_leaves_takes_its_waiting_calls_to_their_end(
        make_gateway, make_daemon, app):
    # C42
    daemon = make_daemon()
    gateway = make_gateway(daemon=daemon, locations=PATIENT,
                           server="send_timeout 60s;")
    key = new_key()
    future = gateway.later(key=key, body=b"{}", headers=tell(hold="run"))
    app.wait_held("run")
    daemon.stop()
    app.release("run")
    app.wait_answered(1)
    gateway.reload()
    daemon.start()
    assert future.result().status == 201
    assert insist(gateway, key).replayed and app.count() == 1


def test_a_lost_claim_is_released_though_the_daemon_is_away_for_long(
        make_gateway, faulty, app):
    # C41: longer than the time-out of the claim, and of what asks after it.
    daemon = faulty(settings=["store.lock=600s"])
    gateway = make_gateway(daemon=daemon, workers=1, locations=guard(
        "/", "idempotency_timeout 300ms;", "idempotency_lock 600s;"))
    assert gateway.post("before").status == 201
    key = new_key()
    daemon.set_faults("kill before_reply")
    assert is_unavailable(gateway.post(key))
    daemon.wait()
    later = time.monotonic() + 2
    until(lambda: is_unavailable(gateway.post(new_key())) and
          time.monotonic() > later, pause=0.1)
    daemon.set_faults()
    daemon.start()
    answer = insist(gateway, key)
    assert not answer.replayed and app.by_key[key] == 1


LATE = (guard("/quick", "idempotency_timeout 300ms;", "idempotency_lock 600s;")
        + guard("/", "idempotency_timeout 50s;", "idempotency_lock 600s;"))


@pytest.fixture
def two_ways(behind, middleman):
    """A gateway that leaves the middleman for the daemon itself."""
    gateway = behind(locations=LATE, http="idempotency_connect_timeout 100ms; "
                     "idempotency_server %s;" % middleman.daemon.address)
    assert gateway.post("before").status == 201
    middleman.kept = []
    return gateway


def test_a_claim_that_arrives_after_its_release_is_released_too(
        two_ways, middleman, app):
    # C41
    key = new_key()
    waiting = two_ways.later(key=key, headers=tell(status=500))
    until(lambda: any(key.encode() in data for _, data in middleman.kept))
    assert is_unavailable(two_ways.post(new_key(), path="/quick"))
    assert waiting.result().status == 500
    two_ways.wait_state(key, "released")
    middleman.deliver()
    until(lambda: two_ways.record(key)["attempt"] == 2)
    two_ways.wait_state(key, "released")
    assert app.by_key[key] == 1


def test_a_claim_that_arrives_after_the_release_of_another_is_released_too(
        two_ways, middleman, app):
    # C41: who asked after it was told that another runs it.
    key, scope = new_key(), "POST /quick"
    waiting = two_ways.later("POST", "/quick", key=key)
    until(lambda: any(key.encode() in data for _, data in middleman.kept))
    with middleman.daemon.raw() as raw:
        sent = b"".join(data for _, data in middleman.kept)
        token = begin(raw, key, scope=scope, fingerprint=re.search(
            rb"1:[0-9a-f]{64}", sent).group())
        asked = two_ways.commands("claim")
        assert is_unavailable(waiting.result())
        until(lambda: two_ways.commands("claim") > asked)
        assert raw("RELEASE", "acme", scope, key, token) == "OK"
    middleman.deliver()
    until(lambda: two_ways.record(key, scope=scope)["attempt"] == 2)
    two_ways.wait_state(key, "released", scope=scope)
    assert app.by_key[key] == 0


def test_a_claim_that_arrives_after_its_client_was_sent_away_is_released_too(
        two_ways, middleman, app):
    # C41: its repetition found another holder, and the client got 409.
    key = new_key()
    waiting = two_ways.later(key=key)
    until(lambda: any(key.encode() in data for _, data in middleman.kept))
    with middleman.daemon.raw() as raw:
        sent = b"".join(data for _, data in middleman.kept)
        token = begin(raw, key, scope="POST /", fingerprint=re.search(
            rb"1:[0-9a-f]{64}", sent).group())
        assert is_unavailable(two_ways.post(new_key(), path="/quick"))
        assert waiting.result().status == 409
        assert raw("RELEASE", "acme", "POST /", key, token) == "OK"
    middleman.deliver()
    until(lambda: two_ways.record(key)["attempt"] == 2)
    two_ways.wait_state(key, "released")
    assert app.by_key[key] == 0


def test_what_a_daemon_cannot_decide_of_one_operation_is_asked_nowhere_else(
        behind, middleman, app):
    # C19: a daemon that can decide nothing is left, and is left once.
    gateway = behind(http="idempotency_server %s;" % middleman.daemon.address)
    assert gateway.post("before").status == 201
    asked = middleman.accepted
    for _ in range(2):
        key = new_key()
        middleman.garble = b"-UNAVAILABLE RECORD another transaction\r\n"
        assert is_unavailable(gateway.post(key))
        assert insist(gateway, key).status == 201
    assert middleman.accepted == asked and app.count() == 3
    assert "cannot decide now" not in gateway.log_text()
    middleman.garble = b"-UNAVAILABLE\r\n"
    assert gateway.post(new_key()).status == 201
    assert gateway.log_text().count("cannot decide now") == 1


def test_a_daemon_with_another_store_does_not_stand_in(make_daemon,
                                                       make_gateway, app):
    # C01: it knows nothing of what was claimed at the first.
    first, second = make_daemon(), make_daemon()
    gateway = make_gateway(daemon=first, workers=1,
                           http="idempotency_server %s;" % second.address)
    key = new_key()
    answer = gateway.post(key)
    assert answer.status == 201
    first.stop()
    until(lambda: "share one" in gateway.log_text())
    assert is_unavailable(gateway.post(key)) and app.count() == 1
    first.start()
    assert insist(gateway, key).body == answer.body and app.count() == 1


def test_one_daemon_may_come_back_with_another_store(make_daemon,
                                                     make_gateway, app):
    # C19
    daemon = make_daemon()
    gateway = make_gateway(daemon=daemon, workers=1)
    assert gateway.post(new_key()).status == 201
    daemon.stop()
    for path in daemon.store.parent.glob(daemon.store.name + "*"):
        path.unlink()
    daemon.start()
    assert insist(gateway, new_key()).status == 201


def test_a_late_answer_finds_out_that_its_connection_is_dead(behind,
                                                             middleman, app):
    # C42: no other request comes by and notices.
    gateway = behind(locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_connect_timeout 2s;",
        "idempotency_lock 60s;"))
    assert gateway.post(new_key()).status == 201
    key = new_key()
    future = gateway.later(key=key, body=b"{}", headers=tell(hold="run"))
    app.wait_held("run")
    middleman.deaf = list(middleman.pairs)
    app.release("run")
    assert future.result().problem == "outcome-unknown"
    until(lambda: gateway.state(key) == "completed")


def test_an_answer_that_never_gets_through_does_not_stop_the_others(
        behind, middleman, app):
    # C19
    gateway = behind(locations=guard(
        "/", "idempotency_timeout 1s;", "idempotency_late 6s;"))
    assert gateway.post(new_key()).status == 201
    key = new_key()
    middleman.poison = (key.encode(), b"COMPLETE")
    assert gateway.post(key).problem == "outcome-unknown"
    for _ in range(5):
        insist(gateway, new_key())
    assert gateway.state(key) != "completed"


def test_an_own_claim_that_lapses_before_it_is_repeated_is_released(
        behind, middleman, app):
    # C41: the lock is shorter than the time-out.
    gateway = behind(locations=guard(
        "/", "idempotency_timeout 20s;", "idempotency_lock 1s;"))
    assert gateway.post(new_key()).status == 201
    key = new_key()
    middleman.mute = True
    future = gateway.later(key=key, body=b"{}")
    until(lambda: gateway.state(key) == "in_progress")
    for pair in middleman.pairs:
        for end in pair:
            end.shutdown(socket.SHUT_RDWR)
    until(lambda: gateway.state(key) == "uncertain")
    middleman.mute = False
    first = future.result()
    if first.status != 201:  # the sweeper was there before the repetition
        assert is_unavailable(first) and app.by_key[key] == 0
    assert insist(gateway, key).replayed == (first.status == 201)
    assert app.by_key[key] == 1
