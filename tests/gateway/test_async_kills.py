"""C31, C27, C20: requests that run later, while daemon, gateway, app and
database are killed at random. In the end the app's own ledger is compared with
what was accepted: each at most once, none forgotten, and what says that it ran
has run.

LATCHKEY_KILLS: how often in each case; LATCHKEY_SEED repeats one.
"""

import collections
import json
import os
import random
import subprocess
import threading
import time

import pytest

from support import build, stores
from support.later import later
from support.life import new_key, until
from support.provider import read_lines
from support.resp import fields
from support.service import free_port


def kills_wanted():
    wanted = int(os.environ.get("LATCHKEY_KILLS", 0))
    return max(wanted // 12, 3) if wanted else 8


class Payments:
    """build/payments: it charges as often as it is asked, durably."""

    def __init__(self, folder):
        self.port = free_port()
        self.address = "127.0.0.1:%d" % self.port
        self.ledger = folder / "ledger"
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [build.BUILD / "payments", "--listen", self.address, "--ledger",
             self.ledger, "--delay", "15"], stdout=subprocess.PIPE)
        assert self.process.stdout.readline().startswith(b"listening")
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def charges(self):
        """{customer: how often}"""
        return collections.Counter(line["customer"] for line in
                                   read_lines(self.ledger))


class Clients:
    """They send requests without end; which of them were accepted."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.accepted = set()
        self.others = collections.Counter()
        self.over = threading.Event()
        self.errors = []
        self.threads = [threading.Thread(target=self._run, daemon=True)
                        for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        while not self.over.is_set():
            key = new_key()
            body = json.dumps({"amount": 1, "currency": "eur",
                               "customer": key}).encode()
            try:
                answer = self.gateway.post(key, body, path="/charges")
            except Exception as error:  # it is being killed, or the test is bad
                self.others[type(error).__name__] += 1
                self.over.wait(0.01)
                continue
            if answer.status == 202:
                self.accepted.add(key)
            else:
                self.others[answer.status] += 1
            self.over.wait(0.01)

    def finish(self):
        self.over.set()
        for thread in self.threads:
            thread.join(60 * build.patience())
            assert not thread.is_alive()


@pytest.fixture
def payments(tmp_path):
    made = Payments(tmp_path).start()
    yield made
    made.kill()


def states_of(daemon):
    """{key: state} of all operations."""
    found, cursor = {}, None
    with daemon.raw(user="operator") as raw:
        while True:
            words = ["LIST", "LIMIT", 500]
            if cursor:
                words += ["CURSOR", cursor]
            cursor, page = raw(*words)
            for one in page:
                row = fields(one)
                found[row["key"].decode()] = row["state"].decode()
            if cursor in (None, 0, b"", b"0"):
                return found


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_killed_at_random_each_accepted_request_runs_at_most_once(
        request, folder, payments, make_daemon, make_gateway, store):
    seed = int(os.environ.get("LATCHKEY_SEED", 0)) or random.getrandbits(32)
    dice = random.Random(seed)
    print("LATCHKEY_SEED=%d" % seed)
    server = url = None
    if store == "postgres":
        server = request.getfixturevalue("postgres")
        url = stores.make_postgres(server)
    daemon = make_daemon(url=url, settings=[
        "courier.gateway=unix:%s/g" % folder, "courier.lease=1s",
        "courier.gateway_attempts=100000", "store.sweep_interval=100ms",
        "store.lock=2s"])
    gateway = make_gateway(daemon=daemon, app=payments,
                           **later(folder, "idempotency_lock 2s;"))

    def kill_daemon():
        daemon.kill()
        daemon.start()

    def kill_gateway():
        gateway.kill()
        (folder / "g").unlink(missing_ok=True)
        gateway.start()

    def kill_app():
        payments.kill()
        payments.start()

    def kill_server():
        server.kill()
        server.start()

    strikes = [kill_daemon, kill_daemon, kill_gateway, kill_app]
    strikes += [kill_server] if server else []
    clients = Clients(gateway)
    for _ in range(kills_wanted()):
        made = sum(payments.charges().values())
        time.sleep(dice.uniform(0.01, 0.3))
        until(lambda: sum(payments.charges().values()) > made, 60)
        dice.choice(strikes)()
    clients.finish()

    def is_over():
        states = states_of(daemon)
        return states if not {"accepted", "in_progress"} & set(
            states.values()) else None
    states = until(is_over, 120, pause=0.2)
    charges = payments.charges()
    counts = collections.Counter(states[key] for key in clients.accepted)
    print(counts, dict(clients.others), len(charges), "charges")
    assert clients.accepted <= set(states), "forgotten"
    assert max(charges.values()) == 1, charges.most_common(3)
    assert set(charges) <= set(states)
    for key in clients.accepted:
        assert states[key] in ("completed", "uncertain"), (key, states[key])
        if states[key] == "completed":
            assert charges[key] == 1, key
    assert counts["completed"] > 0
