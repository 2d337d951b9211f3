"""Reloads, restarts and upgrades under load: nothing is lost or run twice.

LATCHKEY_RELOAD_SECONDS says how long each of the long ones takes (3).
"""

import os
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest

from support import build
from support.app import tell
from support.gateway import guard, is_alive
from support.life import new_key, rounds, until
from support.wire import Connection, Cut, encode_request

SECONDS = float(os.environ.get("LATCHKEY_RELOAD_SECONDS") or 3)
CLIENTS = 6


class Load:
    """Clients that retry until they have an answer, and then once more."""

    def __init__(self, gateway, app, excused=()):
        self.gateway = gateway
        self.app = app
        self.excused = {"in-progress", *excused}
        self.stopping = threading.Event()
        self.answers = {}
        self.wrong = []
        self.retries = 0
        self.threads = [threading.Thread(target=self.work, args=(number,))
                        for number in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def work(self, number):
        choose = random.Random(number)
        ask = self.ask_anew if number % 2 else self.ask_on_one()
        while not self.stopping.is_set() and not self.wrong:
            key = new_key()
            request = encode_request("POST", "/", self.gateway.headers(
                tell(delay=choose.choice([0, 0, 0.002, 0.03])), key), b"{}")
            try:
                if choose.random() < 0.3:
                    self.leave(request, choose.choice([0, 0.002, 0.01]))
                first = self.insist(ask, request)
                again = self.insist(ask, request)
                if first.body != again.body or not again.replayed:
                    self.wrong.append((key, first, again))
                self.answers[key] = first
            except Exception as error:  # a thread's failure is the test's
                self.wrong.append((key, repr(error)))

    def leave(self, request, pause):
        with Connection(self.gateway.socket()) as connection:
            connection.send(request)
            time.sleep(pause)

    def ask_anew(self, request):
        with Connection(self.gateway.socket()) as connection:
            connection.send(request)
            return connection.response()

    def ask_on_one(self):
        """A client that keeps its connection; nginx may close it."""
        kept = []

        def ask(request):
            if not kept:
                kept.append(Connection(self.gateway.socket()))
            try:
                kept[0].send(request)
                answer = kept[0].response()
                closing = answer.header("Connection") == "close"
            except (Cut, OSError):
                answer, closing = None, True
            if closing:
                kept.pop().close()
            return answer

        return ask

    def insist(self, ask, request):
        """Asks until there is an answer of the app."""
        deadline = time.monotonic() + 30 * build.patience()
        while True:
            answer = ask(request)
            if answer is not None and answer.status == 201:
                assert answer.complete
                return answer
            if answer is not None:
                assert answer.problem in self.excused, answer
            self.retries += 1
            assert time.monotonic() < deadline, answer
            time.sleep(0.002)

    def check(self):
        assert not self.wrong, self.wrong[0]
        assert len(self.answers) > 20
        twice = [key for key in self.answers if self.app.count(key) != 1]
        assert not twice
        for key, answer in self.answers.items():
            assert answer.json()["key"] == key


def every(pause, act, load):
    """Does it again and again for SECONDS, and until some got through."""
    for _ in rounds(SECONDS, lambda: load.wrong or len(load.answers) > 20):
        act()
        time.sleep(pause)


def leave_no_worker_behind(gateway):
    until(lambda: len(gateway.children()) == gateway.worker_count
          == len(gateway.workers()))


def hang_up(gateway):
    return lambda: gateway.process.send_signal(signal.SIGHUP)


# ---- under load ----

@pytest.mark.parametrize("wait", ["", "idempotency_wait 5s;"],
                         ids=["impatient", "waiting"])
def test_reloads_ten_times_a_second_lose_nothing_and_run_nothing_twice(
        make_gateway, app, wait):
    # C40
    gateway = make_gateway(locations=guard("/", wait))
    with Load(gateway, app) as load:
        every(0.1, hang_up(gateway), load)
    load.check()
    leave_no_worker_behind(gateway)


def test_restarts_of_the_daemon_lose_nothing_and_run_nothing_twice(
        make_gateway, app):
    # C40, C41, C42
    gateway = make_gateway()
    with Load(gateway, app, {"unavailable", "outcome-unknown"}) as load:
        every(0.05, gateway.daemon.restart, load)
    load.check()


def test_both_at_once_lose_nothing_and_run_nothing_twice(make_gateway, app):
    # C40, C41, C42
    gateway = make_gateway(locations=guard("/", "idempotency_wait 5s;"))
    stopping = threading.Event()

    def restart():
        while not stopping.wait(0.1):
            gateway.daemon.restart()

    thread = threading.Thread(target=restart)
    with Load(gateway, app, {"unavailable", "outcome-unknown"}) as load:
        thread.start()
        every(0.1, hang_up(gateway), load)
        stopping.set()
        thread.join()
    load.check()
    leave_no_worker_behind(gateway)


# ---- one at a time ----

def test_an_answer_is_stored_though_client_and_gateway_are_leaving(gateway,
                                                                   app):
    # C11, C40
    key = new_key()
    client = gateway.leave(key=key, headers=tell(hold="work"))
    app.wait_held("work")
    client.close()
    gateway.process.send_signal(signal.SIGQUIT)
    until(lambda: not gateway.workers())
    app.release("work")
    assert gateway.wait() == 0
    assert gateway.state(key) == "completed"
    gateway.start()
    assert gateway.post(key).replayed
    assert app.count() == 1


def test_an_answer_is_stored_by_a_gateway_that_was_replaced_by_a_reload(
        gateway, app):
    # C11, C40
    key = new_key()
    client = gateway.leave(key=key, headers=tell(hold="work"))
    app.wait_held("work")
    client.close()
    old = gateway.reload()
    assert gateway.post(key).problem == "in-progress"
    app.release("work")
    until(lambda: not any(map(is_alive, old)))
    assert gateway.post(key).replayed
    assert app.count() == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_that_is_out_of_time_leaves_the_outcome_open(
        make_gateway, make_daemon, app, leaves):
    # C20, C40
    gateway = make_gateway(
        daemon=make_daemon(settings=["store.sweep_interval=20ms"]),
        main="worker_shutdown_timeout 1s;",
        locations=guard("/", "idempotency_lock 1s;"))
    key = new_key()
    client = gateway.leave(key=key, headers=tell(hold="work"))
    app.wait_held("work")
    if leaves:
        client.close()
    old = gateway.reload()
    until(lambda: not any(map(is_alive, old)))
    answer = gateway.settled(key)
    assert (answer.status, answer.problem) == (409, "outcome-unknown")
    app.release("work")
    assert gateway.settled(key).problem == "outcome-unknown"
    assert app.count() == 1


def test_a_worker_that_is_out_of_time_leaves_though_no_daemon_is_there(
        make_gateway, app):
    # C40
    gateway = make_gateway(workers=1, main="worker_shutdown_timeout 1s;",
                           locations=guard("/", "idempotency_timeout 1s;"))
    assert gateway.post(new_key()).status == 201
    future = gateway.later(key=new_key(), body=b"{}",
                           headers=tell(hold="work"))
    app.wait_held("work")
    gateway.daemon.kill()
    app.release("work")
    assert future.result().problem == "outcome-unknown"
    old = gateway.reload()
    until(lambda: not any(map(is_alive, old)))


def test_a_fast_shutdown_leaves_the_outcome_open_or_the_answer(make_gateway,
                                                               make_daemon,
                                                               app):
    # C20
    gateway = make_gateway(
        daemon=make_daemon(settings=["store.sweep_interval=20ms"]),
        locations=guard("/", "idempotency_lock 1s;"))
    key = new_key()
    gateway.leave(key=key, headers=tell(hold="work"))
    app.wait_held("work")
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0
    app.release("work")
    gateway.start()
    assert gateway.settled(key).problem == "outcome-unknown"
    assert app.count() == 1


# ---- another binary ----

class Upgrade:
    """A gateway that has left its terminal, as an upgrade needs it."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.pid_file = gateway.folder / "pid"
        self.old_file = gateway.folder / "pid.oldbin"

    def __enter__(self):
        gateway = self.gateway
        gateway.config_file.write_text(
            gateway.config().replace("daemon off;", "daemon on;"))
        subprocess.run(gateway.command(), env=gateway.environment(),
                       check=True, timeout=60)
        until(lambda: self.workers(self.master()))
        return self

    def __exit__(self, *_):
        for path in (self.old_file, self.pid_file):
            if path.exists():
                master = int(path.read_text())
                os.kill(master, signal.SIGTERM)
                until(lambda: not is_alive(master))

    def master(self, path=None):
        def pid():
            text = (path or self.pid_file)
            return text.exists() and text.read_text().strip()
        return int(until(pid))

    @staticmethod
    def workers(master):
        path = "/proc/%d/task/%d/children" % (master, master)
        return [int(pid) for pid in pathlib.Path(path).read_text().split()]

    def replace(self):
        """USR2, WINCH, QUIT, as the manual says."""
        old = self.master()
        os.kill(old, signal.SIGUSR2)
        self.master(self.old_file)
        fresh = until(lambda: (pid := self.master()) != old and pid)
        until(lambda: len(self.workers(fresh)) == self.gateway.worker_count)
        os.kill(old, signal.SIGWINCH)
        until(lambda: self.workers(old) == [fresh])
        os.kill(old, signal.SIGQUIT)
        until(lambda: not is_alive(old))
        until(lambda: not self.old_file.exists())


def test_upgrades_of_nginx_lose_nothing_and_run_nothing_twice(make_gateway,
                                                              app):
    # C40
    gateway = make_gateway(start=False)
    key = new_key()
    with Upgrade(gateway) as upgrade:
        slow = gateway.later(body=b"{}", key=key, headers=tell(delay=0.5))
        app.wait_calls(1)
        with Load(gateway, app) as load:
            for _ in range(3):
                upgrade.replace()
        load.check()
        assert slow.result().status == 201
        assert gateway.post(key).body == slow.result().body
    assert app.count(key) == 1
