"""C27, C20, C22: courier, daemon, provider and database are killed at random
under load, by a provider that loses answers. In the end both ledgers agree.

LATCHKEY_KILLS: how often in each case; LATCHKEY_SEED repeats one.
"""

import os
import random
import signal
import threading
import time

import pytest

from support import build
from support.life import FINGERPRINT, new_key
from support.outbox import JSON_TYPE, SCOPE, check_books
from support.provider import charge
from support.resp import Closed, Error, Raw


def kills_wanted():
    wanted = int(os.environ.get("LATCHKEY_KILLS", 0))
    return max(wanted // 12, 3) if wanted else 6


class Load:
    """Leaves jobs without end; what was acknowledged, and what was tried."""

    def __init__(self, daemons):
        self.daemons = daemons
        self.kept, self.tried = set(), set()
        self.errors = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.over.is_set():
            for daemon in self.daemons:
                try:
                    with Raw(daemon.address, 10 * build.patience()) as raw:
                        self._leave(raw)
                except (Closed, OSError):
                    self.over.wait(0.01)
                except Exception as error:  # the test must fail
                    self.errors.append(error)
                    return

    def _leave(self, raw):
        for _ in range(40):
            if self.over.is_set():
                return
            keys = [new_key() for _ in range(5)]
            self.tried |= set(keys)
            for key in keys:
                raw.send("CLAIM", "acme", SCOPE, key, FINGERPRINT)
            replies = [raw.read() for _ in keys]
            claims = [(key, reply[1]) for key, reply in zip(keys, replies)
                      if not isinstance(reply, Error)]
            for key, token in claims:
                raw.send("ENQUEUE", "acme", SCOPE, key, token, "charge", "pay",
                         "/v1/charges", "HEADERS", JSON_TYPE, "BODY",
                         charge(key))
            for key, _ in claims:
                if raw.read() == "OK":
                    self.kept.add(key)
            for key, token in claims:
                raw.send("COMPLETE", "acme", SCOPE, key, token, 201, "", "")
            for _ in claims:
                raw.read()
            self.over.wait(0.02)

    def finish(self):
        self.over.set()
        self.thread.join(60 * build.patience())
        assert not self.thread.is_alive() and not self.errors, self.errors


def strike_daemon(dice, daemons, provider, server):
    daemon = dice.choice(daemons)
    daemon.kill()
    daemon.start()


def stop_daemon(dice, daemons, provider, server):
    """Past its lease, and on."""
    daemon = dice.choice(daemons)
    daemon.signal(signal.SIGSTOP)
    time.sleep(dice.uniform(0.2, 0.8))
    daemon.signal(signal.SIGCONT)


def strike_provider(dice, daemons, provider, server):
    provider.kill()
    time.sleep(dice.uniform(0, 0.1))
    provider.start()


def strike_server(dice, daemons, provider, server):
    server.kill()
    server.start()


@pytest.mark.parametrize("honours", [True, False])
def test_killed_at_random_both_ledgers_agree_in_the_end(
        box, make_provider, request, honours):
    seed = int(os.environ.get("LATCHKEY_SEED", 0)) or random.getrandbits(32)
    dice = random.Random(seed)
    print("LATCHKEY_SEED=%d" % seed)
    provider = make_provider(honours=honours, seed=seed % 1000 + 1, manner={
        "drop_after": 8, "drop_before": 8, "fail_503": 8, "delay_20": 40})
    box.target("pay", provider, concurrency="8", attempts="100000")
    settings = ("courier.lease=400ms",)
    daemons = [box.start(*settings)]
    strikes = [strike_daemon, strike_daemon, strike_provider]
    server = None
    if box.is_shared:
        daemons.append(box.start(*settings))
        server = request.getfixturevalue("postgres")
        strikes += [stop_daemon, strike_server]
    load = Load(daemons)
    for _ in range(kills_wanted()):
        before = len(provider.calls())
        time.sleep(dice.uniform(0.01, 0.25))
        provider.wait_calls(before + 1)
        dice.choice(strikes)(dice, daemons, provider, server)
    load.finish()
    box.reconnect()
    provider.control(delay_20=10)
    box.wait_settled(timeout=120)
    listed = {job["key"] for job in box.jobs()}
    assert load.kept <= listed <= load.tried
    counts = check_books(box, provider, listed)
    print(counts, len(provider.calls()), "calls")
    assert counts["delivered"] > 0
    if honours:
        assert set(counts) == {"delivered"}
