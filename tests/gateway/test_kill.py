"""kill -9 of the daemon, of nginx and of the app at every step.

Nothing that was acknowledged is lost, nothing runs twice, and what is unknown
is called unknown. LATCHKEY_KILL_SECONDS says how long the last one takes (4),
LATCHKEY_KILL_SEED what it kills.
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from support import build
from support.app import tell
from support.gateway import free_port, guard, is_alive
from support.life import new_key, rounds, until
from support.service import halt
from support.wire import Cut

SECONDS = float(os.environ.get("LATCHKEY_KILL_SECONDS") or 4)
POINTS = ["before_append", "before_sync", "after_sync", "before_reply"]
# Only commands of the test pass the points: no sweeper comes in between, and
# a lock that has lapsed is found by the next claim.
SETTINGS = ["store.sweep_interval=1h"]


def state_of(pid):
    text = pathlib.Path("/proc/%d/stat" % pid).read_text()
    return text.rsplit(")", 1)[1].split()[0]


def finally_told(gateway, key, path="/"):
    """What a client is told that asks until there is a verdict."""
    def answer():
        try:
            got = gateway.post(key, path=path)
        except (Cut, OSError):
            return None
        return got if got.problem not in ("in-progress", "unavailable") and \
            got.status != 503 else None
    return until(answer, pause=0.05)


@contextlib.contextmanager
def full_port():
    """A port of this machine where a connection is never made."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_what_nginx_held_when_it_was_terminated_is_settled_at_once(
        make_gateway, app):
    # C20, C21: long before the lock lapses.
    with full_port() as port:
        gateway = make_gateway(workers=1, locations=guard(
            "/", "idempotency_lock 600s;") + guard(
                "/far", "idempotency_lock 600s;", "proxy_connect_timeout 60s;",
                to="proxy_pass http://127.0.0.1:%d;" % port))
        sent, unsent, done = new_key(), new_key(), new_key()
        assert gateway.post(done).status == 201
        futures = [gateway.later(body=b"{}", key=sent,
                                 headers=tell(hold="work")),
                   gateway.later("POST", "/far", b"{}", key=unsent)]
        app.wait_held("work")
        gateway.wait_state(unsent, "in_progress", scope="POST /far")
        gateway.terminate()
        gateway.wait_state(sent, "uncertain")
        gateway.wait_state(unsent, "released", scope="POST /far")
        assert b"terminated" in gateway.record(sent)["reason"]
        for future in futures:
            with pytest.raises((Cut, OSError)):
                future.result()
        app.release("work")
        gateway.start()
        assert gateway.post(done).replayed
        assert gateway.post(sent).problem == "outcome-unknown"


class Life:
    """One operation that is stopped at a step of its life."""

    def __init__(self, faulty, make_gateway, app, timeout="30s", lock="30s"):
        self.app = app
        self.daemon = faulty(settings=SETTINGS)
        self.gateway = make_gateway(
            daemon=self.daemon, workers=1, locations=guard(
                "/", "idempotency_lock %s;" % lock,
                "idempotency_timeout %s;" % timeout))
        assert finally_told(self.gateway, "before").status == 201
        self.key = new_key()

    def begin(self):
        self.future = self.gateway.later(body=b"{}", key=self.key,
                                         headers=tell(hold="work"))

    def reach(self, step):
        """`claim POINT`, `work`, `answered` or `complete POINT`."""
        kind, _, point = step.partition(" ")
        if kind == "claim":
            self.stop_at(point)
            self.begin()
            self.wait_stopped()
            return
        self.begin()
        self.app.wait_held("work")
        if kind == "complete":
            self.stop_at(point)
            self.app.release("work")
            self.wait_stopped()
        elif kind == "answered":
            self.daemon.signal(signal.SIGSTOP)
            self.app.release("work")
            self.app.wait_answered(2)

    def stop_at(self, point):
        # A process stops a moment after it was told to; until then, hold.
        self.daemon.set_faults("stop " + point, "hold " + point)

    def wait_stopped(self):
        until(lambda: state_of(self.daemon.pid) == "T")

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.set_faults()

    def kill_worker(self):
        (pid,) = self.gateway.workers()
        self.gateway.kill_worker(pid)
        until(lambda: not is_alive(pid))
        until(self.gateway.workers)

    def recover(self):
        """Whatever is dead comes back, whatever stands goes on."""
        self.daemon.set_faults()
        if self.daemon.is_running():
            self.daemon.signal(signal.SIGCONT)
        else:
            self.daemon.start()
        if not self.gateway.is_running():
            self.gateway.start()
        self.app.release("work")

    def told(self):
        """What the first client got; None: no answer at all."""
        try:
            answer = self.future.result()
            return answer if answer.complete else None
        except (Cut, OSError):
            return None

    def check(self, *allowed):
        """Ends it; `allowed` is what the operation may have become:
        (the last verdict, how often the app was called by then)."""
        told = self.told()
        final = finally_told(self.gateway, self.key)
        verdict = final.problem or ("replay" if final.replayed else "fresh")
        count = self.app.count(self.key)
        assert count <= 1, "it ran twice"
        assert (verdict, count) in allowed
        if told is not None and told.status == 201:
            assert verdict == "replay" and final.body == told.body
        if verdict != "outcome-unknown":
            assert final.status == 201
            assert finally_told(self.gateway, self.key).body == final.body
        assert self.app.count(self.key) == count


def lock_at(step):
    """Short, for it must lapse; but no sign of life may come in between the
    app's answer and the point where the daemon stops."""
    return "3s" if step.startswith("complete") else "1s"


STEPS = (["claim " + point for point in POINTS] + ["work", "answered"]
         + ["complete " + point for point in POINTS])


@pytest.fixture
def live(faulty, make_gateway, app):
    return lambda **options: Life(faulty, make_gateway, app, **options)


# ---- the daemon ----

@pytest.mark.parametrize("step", STEPS)
def test_a_daemon_that_is_killed_and_back_in_time_is_not_noticed(live, step):
    # C20, C41
    life = live()
    life.reach(step)
    life.kill_daemon()
    life.recover()
    assert life.told().status == 201
    life.check(("replay", 1))


@pytest.mark.parametrize("step", STEPS)
def test_a_daemon_that_is_killed_and_back_too_late_costs_a_503(live, step):
    # C20, C41, C42
    life = live(timeout="%dms" % (200 * build.patience()))
    life.reach(step)
    life.kill_daemon()
    life.app.release("work")
    told = life.told()
    assert told.status == 503
    if step.startswith("claim"):
        assert told.problem == "unavailable"
        assert life.app.count(life.key) == 0
        life.recover()
        life.check(("fresh", 1))
    else:
        assert told.problem == "outcome-unknown"
        life.recover()
        life.check(("replay", 1))


# ---- nginx ----

@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_is_killed_leaves_an_answer_or_an_open_outcome(live,
                                                                     step):
    # C20, C22
    life = live(lock=lock_at(step))
    life.reach(step)
    life.kill_worker()
    life.recover()
    assert life.told() is None
    if step.startswith("claim"):
        life.check(("outcome-unknown", 0))
    elif step == "work":
        life.check(("outcome-unknown", 1))
    elif step == "answered":
        life.check(("outcome-unknown", 1), ("replay", 1))
    else:
        life.check(("replay", 1))


@pytest.mark.parametrize("step", STEPS)
def test_a_machine_that_goes_down_leaves_an_answer_or_an_open_outcome(live,
                                                                      step):
    # C20: nginx and the daemon at once
    life = live(lock=lock_at(step))
    life.reach(step)
    life.kill_daemon()
    life.gateway.kill()
    life.recover()
    assert life.told() is None
    kind, _, point = step.partition(" ")
    unknown = ("outcome-unknown", 0 if kind == "claim" else 1)
    other = ("fresh", 1) if kind == "claim" else ("replay", 1)
    if point == "before_append":
        life.check(other if kind == "claim" else unknown)
    elif point == "before_sync":
        life.check(unknown, other)
    elif point:
        life.check(unknown if kind == "claim" else other)
    else:
        life.check(unknown)


@pytest.mark.parametrize("step", ["claim before_sync", "work",
                                  "complete before_sync"])
def test_without_their_master_workers_finish_what_they_have_begun(live, step):
    # C20
    life = live()
    life.reach(step)
    gateway = life.gateway
    orphans = gateway.children()
    gateway.expected_exit = True
    gateway.process.kill()
    gateway.wait()
    life.daemon.set_faults()
    life.daemon.signal(signal.SIGCONT)
    life.app.release("work")
    try:
        told = life.told()
        assert told.status == 201
    finally:
        for pid in orphans:
            gateway.kill_worker(pid)
        until(lambda: not any(map(is_alive, orphans)))
    gateway.start()
    life.check(("replay", 1))


def test_a_worker_that_slept_past_its_lock_runs_nothing_twice(
        make_gateway, make_daemon, app):
    # C20, C22: a machine that was paused
    gateway = make_gateway(
        daemon=make_daemon(settings=["store.sweep_interval=20ms"]),
        workers=1, locations=guard("/", "idempotency_lock 1s;"))
    other = make_gateway(workers=1, daemon=gateway.daemon, locations=guard(
        "/", "idempotency_lock 1s;"))
    key = new_key()
    future = gateway.later(body=b"{}", key=key, headers=tell(hold="work"))
    app.wait_held("work")
    (pid,) = gateway.workers()
    halt(pid)
    try:
        assert finally_told(other, key).problem == "outcome-unknown"
        app.release("work")
        app.wait_answered(1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert future.result().status == 201
    assert other.post(key).body == future.result().body
    assert app.count() == 1


# ---- the app ----

PROGRAM = """
import os, sys
from support.app import App

class Ledger(App):
    def record(self, call):
        line = "%s\\n" % call.key
        os.write(ledger, line.encode())
        super().record(call)

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
app = Ledger()
app.ports = {"http": int(sys.argv[2])}
app.start()
print("ready", flush=True)
sys.stdin.read()
"""


class Program:
    """The app as a process of its own, with a ledger that outlives it."""

    def __init__(self, folder):
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.port = free_port()
        self.address = "127.0.0.1:%d" % self.port
        self.start()

    def start(self):
        env = dict(os.environ, PYTHONPATH=str(build.ROOT / "tests"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.ledger), str(self.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def count(self, key):
        return self.ledger.read_text().split().count(key)


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.kill()


UNKNOWN = {"outcome-unknown"}


@pytest.mark.parametrize("manner,problems", [
    ({"hold": "for ever"}, UNKNOWN), ({"hold_body": "for ever"}, UNKNOWN),
    ({"hold_body": "for ever", "bytes": 500000, "chunked": True}, UNKNOWN),
    # Its status was known, and that it is not kept, before it was cut.
    ({"hold_body": "for ever", "bytes": 3000000},
     UNKNOWN | {"answer-not-kept"}),
], ids=["while it works", "in a short answer", "in an answer of chunks",
        "in an answer over the limit"])
def test_an_app_that_is_killed_leaves_the_outcome_open(make_gateway, program,
                                                       manner, problems):
    # C12, C20, C21
    gateway = make_gateway(app=program)
    key = new_key()
    future = gateway.later(body=b"{}", key=key, headers=tell(**manner))
    until(lambda: program.count(key) == 1)
    program.kill()
    told = future.result()
    assert told.status == 502 or not told.complete
    assert finally_told(gateway, key).problem in problems
    program.start()
    assert finally_told(gateway, key).problem in problems
    assert program.count(key) == 1


def test_an_app_that_is_killed_before_it_reads_runs_nothing_twice(
        make_gateway, program):
    # C20, C21: nginx has sent it or not, and cannot know what became of it
    gateway = make_gateway(app=program)
    for _ in range(5):
        key = new_key()
        halt(program.process.pid)
        future = gateway.later(body=b"{}", key=key)
        gateway.wait_state(key, "in_progress")
        program.kill()
        assert future.result().status == 502
        program.start()
        final = finally_told(gateway, key)
        assert final.problem == "outcome-unknown" or final.status == 201
        assert program.count(key) == (final.status == 201)


def test_an_app_that_is_killed_after_its_answer_is_not_missed(make_gateway,
                                                              program):
    # C20
    gateway = make_gateway(app=program)
    key = new_key()
    first = gateway.post(key)
    program.kill()
    assert first.status == 201
    assert gateway.post(key).body == first.body
    program.start()
    assert gateway.post(key).replayed and program.count(key) == 1


# ---- anything at any time ----

class Chaos:
    """Kills something, again and again, under the hands of its clients."""

    def __init__(self, gateway, seed):
        self.gateway = gateway
        self.daemon = gateway.daemon
        self.random = random.Random(seed)
        self.kills = 0

    def strike(self):
        self.random.choice([self.kill_daemon, self.kill_at_point,
                            self.kill_worker, self.kill_worker,
                            self.kill_nginx])()
        self.kills += 1

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.start()

    def kill_at_point(self):
        self.daemon.expected_exit = True
        self.daemon.set_faults("kill %s %d" % (
            self.random.choice(POINTS), self.random.randrange(1, 20)))
        try:
            self.daemon.wait(5)
        except subprocess.TimeoutExpired:  # nobody came that far
            self.daemon.kill()
        self.daemon.set_faults()
        self.daemon.start()

    def kill_worker(self):
        workers = self.gateway.workers()
        if workers:
            self.gateway.kill_worker(self.random.choice(workers))

    def kill_nginx(self):
        self.gateway.kill()
        self.gateway.start()


class Client(threading.Thread):
    """Notes every answer to every key; gives up on a key now and then."""

    def __init__(self, gateway, number, stopping):
        super().__init__()
        self.gateway = gateway
        self.random = random.Random(number)
        self.stopping = stopping
        self.answers = {}
        self.strange = []

    def run(self):
        while not self.stopping.is_set():
            key = new_key()
            bodies = self.answers.setdefault(key, set())
            delay = self.random.choice([0, 0.001, 0.01, 0.05])
            for _ in range(self.random.randrange(1, 5)):
                self.ask(key, bodies, delay)

    def ask(self, key, bodies, delay):
        try:
            answer = self.gateway.post(key, headers=tell(delay=delay))
        except (Cut, OSError):
            time.sleep(0.01)
            return
        if answer.status == 201 and answer.complete:
            bodies.add(answer.body)
        elif answer.complete and answer.problem not in (
                "in-progress", "outcome-unknown", "unavailable"):
            self.strange.append(answer)


def test_kills_of_anything_at_any_time(faulty, make_gateway, app):
    # C20, C40, C41
    seed = int(os.environ.get("LATCHKEY_KILL_SEED") or 1)
    gateway = make_gateway(
        daemon=faulty(settings=["store.sweep_interval=50ms"]),
        locations=guard("/", "idempotency_lock 1s;",
                        "idempotency_timeout 1s;"))
    gateway.allow(r"bind\(\) to .* failed .*in use")
    chaos = Chaos(gateway, seed)
    stopping = threading.Event()
    clients = [Client(gateway, number, stopping) for number in range(6)]
    for client in clients:
        client.start()

    def enough():
        return chaos.kills > SECONDS and got_through(clients) > 50

    for _ in rounds(SECONDS, enough):
        chaos.strike()
        time.sleep(chaos.random.random() / 5)
    stopping.set()
    for client in clients:
        client.join()
    assert not [answer for client in clients for answer in client.strange]
    answers = {key: bodies for client in clients
               for key, bodies in client.answers.items()}
    check_all(gateway, app, answers)


def got_through(clients):
    return sum(map(len, (bodies for client in clients
                         for bodies in list(client.answers.values()))))


def check_all(gateway, app, answers):
    outcomes = {"replay": 0, "fresh": 0, "outcome-unknown": 0}
    for key, bodies in answers.items():
        assert app.count(key) <= 1, key
        assert len(bodies) <= 1, key
        before = app.count(key)
        final = finally_told(gateway, key)
        verdict = final.problem or ("replay" if final.replayed else "fresh")
        outcomes[verdict] += 1
        assert app.count(key) == before + (verdict == "fresh") <= 1
        if bodies:
            assert verdict == "replay" and bodies == {final.body}, key
    assert outcomes["replay"] > outcomes["outcome-unknown"]
