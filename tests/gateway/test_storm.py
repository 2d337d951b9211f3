"""Everything at once, at random: each key runs once, whatever happens.

LATCHKEY_STORM sets the seconds of each storm, LATCHKEY_SEED repeats one.
"""

import collections
import os
import random
import threading
import time

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key, rounds, until
from support.wire import Cut

SECONDS = float(os.environ.get("LATCHKEY_STORM") or 2)
LOCATIONS = (
    guard("/", "idempotency_timeout 1s;", "idempotency_lock 2s;")
    + guard("/wait", "idempotency_timeout 1s;", "idempotency_lock 2s;",
            "idempotency_wait 2s;", "idempotency_scope POST;")
    + guard("/raw", "proxy_buffering off;", "idempotency_timeout 1s;",
            "idempotency_lock 2s;", "idempotency_response_max 8k;"))
PATHS = ("/", "/wait", "/raw")

# How the app treats a key, always in the same way; and how often it may run.
KINDS = {
    "ok": ({}, 1), "large": ({"bytes": 30000}, 1),
    "chunked": ({"bytes": 9000, "chunked": True}, 1),
    "empty": ({"status": 204}, 1), "refused": ({"status": 402}, 1),
    "slow": ({"delay": 0.05}, 1), "reset": ({"reset": True}, 1),
    "cut": ({"bytes": 3000, "truncate": 100}, 1),
    "lost": ({"status": 504}, 1), "failed": ({"status": 503}, None),
}


class Storm:
    def __init__(self, gateway, app, seed):
        self.gateway = gateway
        self.app = app
        self.seed = seed
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.keys = collections.deque(maxlen=12)
        self.kinds = {}
        self.answers = collections.defaultdict(set)
        self.errors = []

    def choose(self, dice):
        """A key: a new one, or one that is in use."""
        with self.lock:
            if not self.keys or dice.random() < 0.25:
                key = new_key()
                self.keys.append(key)
                self.kinds[key] = (dice.choice(list(KINDS)),
                                   dice.choice(PATHS))
            else:
                key = dice.choice(self.keys)
            return (key, *self.kinds[key])

    def work(self, number):
        dice = random.Random(self.seed * 100 + number)
        while not self.ended.is_set():
            key, kind, path = self.choose(dice)
            headers = tell(**KINDS[kind][0])
            try:
                if dice.random() < 0.2:
                    connection = self.gateway.leave(path, headers=headers,
                                                    key=key)
                    time.sleep(dice.random() * 0.02)
                    dice.choice((connection.reset, connection.close))()
                    continue
                body = b"other" if dice.random() < 0.05 else b"{}"
                answer = self.gateway.post(key, body, path, headers=headers)
            except (Cut, ConnectionError):
                continue  # a gateway that is just being restarted
            except Exception as error:
                self.errors.append(error)
                return
            self.note(key, body, answer)

    def note(self, key, body, answer):
        """Of two bodies with one key only one may get an answer."""
        if answer.problem is None and answer.status < 500:
            with self.lock:
                self.answers[key].add((body, answer.status, answer.body))

    def run(self, disturb):
        threads = [threading.Thread(target=self.work, args=(number,))
                   for number in range(8)]
        for thread in threads:
            thread.start()
        dice = random.Random(self.seed)
        for _ in rounds(SECONDS, lambda: self.errors or len(self.kinds) > 20):
            disturb(dice)
        self.ended.set()
        for thread in threads:
            thread.join()

    def check(self):
        assert not self.errors, self.errors[0]
        assert len(self.kinds) > 20
        for key, (kind, path) in self.kinds.items():
            limit = KINDS[kind][1]
            assert limit is None or self.app.count(key) <= limit, (key, kind)
            assert len(self.answers[key]) <= 1, (key, kind,
                                                 self.answers[key])
        for key, (kind, path) in self.kinds.items():
            scope = "POST" if path == "/wait" else "POST " + path
            until(lambda: self.gateway.state(key, scope=scope)
                  != "in_progress")
            if self.answers[key] and kind in ("ok", "empty", "refused"):
                ((body, *first),) = self.answers[key]
                again = self.gateway.settled(key, body, path)
                assert [again.status, again.body] == first, (key, kind)


@pytest.fixture
def storm(make_gateway, make_daemon, app):
    def make():
        seed = int(os.environ.get("LATCHKEY_SEED") or random.randrange(10**6))
        print("LATCHKEY_SEED=%d" % seed)
        daemon = make_daemon(settings=["store.sweep_interval=100ms"])
        gateway = make_gateway(daemon=daemon, locations=LOCATIONS)
        return Storm(gateway, app, seed)
    return make


def test_each_key_runs_once_whatever_clients_do(storm):
    # C01, C11
    one = storm()
    one.run(lambda dice: time.sleep(0.1))
    one.check()


def test_each_key_runs_once_though_the_daemon_is_restarted(storm):
    # C19, C40, C41, C42
    one = storm()
    daemon = one.gateway.daemon

    def disturb(dice):
        time.sleep(dice.random() * 0.5)
        dice.choice((daemon.stop, daemon.kill))()
        time.sleep(dice.random() * 0.3)
        daemon.start()

    one.run(disturb)
    one.check()


def test_each_key_runs_once_though_the_gateway_is_reloaded(storm):
    # C40
    one = storm()

    def disturb(dice):
        time.sleep(dice.random() * 0.3)
        one.gateway.reload()

    one.run(disturb)
    one.check()


def test_each_key_runs_once_though_workers_are_killed(storm):
    # C20
    one = storm()
    gateway = one.gateway

    def disturb(dice):
        time.sleep(dice.random() * 0.5)
        gateway.kill_worker(dice.choice(gateway.workers()))
        until(lambda: len(gateway.workers()) == gateway.worker_count)

    one.run(disturb)
    one.check()
