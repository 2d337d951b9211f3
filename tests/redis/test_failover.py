"""What a fail-over of Redis costs: operations that were told NEW twice, and
answers that were acknowledged and are gone.

Under a load of claims the primary dies, with whatever was on its way to the
replica, and the replica takes over. The numbers are printed, each with the
setting that it belongs to; only what is promised is asserted. More of them:

    LATCHKEY_FAILOVERS=20 pytest -s tests/redis/test_failover.py
"""

import collections
import contextlib
import itertools
import os
import threading
import time

import pytest

from support.life import FINGERPRINT, new_key, until, verdict
from support.proxy import Proxy
from support.redis_server import RedisServer, Sentinel
from support.resp import Error

TIMES = int(os.environ.get("LATCHKEY_FAILOVERS") or 1)
LAG = 0.002   # seconds to the replica, each way
LOAD = 0.6    # seconds under load before the primary dies
PIPE = 16     # commands at once on a connection
CLIENTS = 6
REST = 0.01   # a client's, between two turns: the network keeps up
NAME = ("acme", "POST /payments")
FOREVER = 3600 * 1000
QUICK = ["store.timeout=1s", "store.connect_timeout=500ms",
         "store.wait_timeout=300ms"]
WAIT = ["store.wait_replicas=1"]
EVERYSEC = {"appendonly": True, "appendfsync": "everysec"}
ALWAYS = {"appendonly": True, "appendfsync": "always"}


# ---- the load ----

class Load(threading.Thread):
    """One client that claims and completes, and notes what was promised."""

    def __init__(self, raw, stopping):
        super().__init__(daemon=True)
        self.raw = raw
        self.stopping = stopping
        self.claimed = {}     # key: token, acknowledged
        self.completed = {}   # key: body, acknowledged
        self.error = None

    def run(self):
        try:
            while not self.stopping.is_set():
                self.turn()
                time.sleep(REST)
        except BaseException as error:  # the test asks for it
            self.error = error

    def pipe(self, commands):
        for words in commands:
            self.raw.send(*words)
        return [self.raw.read() for _ in commands]

    def turn(self):
        keys = [new_key() for _ in range(PIPE)]
        replies = self.pipe([claim_words(key, "first") for key in keys])
        won = {}
        for key, reply in zip(keys, replies):
            assert is_unavailable(reply) or verdict(reply) == "NEW", reply
            if not is_unavailable(reply):
                won[key] = reply[1]
        self.claimed.update(won)
        # Some are left open.
        ready = [key for key in won if not key.endswith("7")]
        replies = self.pipe([
            ("COMPLETE", *NAME, key, won[key], 201, "", body_of(key))
            for key in ready])
        for key, reply in zip(ready, replies):
            # Claimed before, completed after the fail-over: STALE.
            assert is_unavailable(reply) or reply in ("OK", "STALE"), reply
            if reply == "OK":
                self.completed[key] = body_of(key)


def claim_words(key, owner):
    return ("CLAIM", *NAME, key, FINGERPRINT, "OWNER", owner + key, "LOCK",
            FOREVER)


def body_of(key):
    return b"the answer to " + key.encode()


def is_unavailable(reply):
    return isinstance(reply, Error) and reply.code == "UNAVAILABLE"


# ---- servers ----

class Servers:
    """A primary, and what takes over from it."""

    def __init__(self, stack, options):
        self.primary = stack.enter_context(RedisServer(**options))
        self.stack = stack
        self.options = options
        self.proxy = self.replica = self.sentinel = None

    def add_replica(self, lag):
        """Behind a network that takes its time and dies with the primary."""
        self.proxy = self.stack.enter_context(Proxy(self.primary))
        self.replica = RedisServer(
            replicaof=(self.proxy.address, self.proxy.port), **self.options)
        self.primary.replicas.append(self.replica)
        self.replica.start()
        self.replica.wait_linked()
        # A primary sends nothing until the new replica has said a word.
        self.primary.admin.set("something", 1)
        until(lambda: self.primary.admin.wait(1, 1000))
        self.proxy.delay(lag)

    def add_sentinel(self):
        self.sentinel = self.stack.enter_context(Sentinel(self.primary))

    def url(self):
        if self.sentinel:
            return "redis-sentinel://127.0.0.1:%d/main" % self.sentinel.port
        nodes = [self.primary] + ([self.replica] if self.replica else [])
        return "redis://" + ",".join("127.0.0.1:%d" % node.port
                                     for node in nodes)

    def fail(self, machine):
        """The primary is killed; with its machine, what it had sent is."""
        if machine:
            self.proxy.freeze()
        self.primary.kill()
        if machine:
            self.proxy.cut()

    def recover(self):
        if self.sentinel:
            self.sentinel.wait_failover()
        elif self.replica:
            self.replica.promote()
        else:
            self.primary.start()


# ---- counting ----

class Count(collections.Counter):
    """What many fail-overs of one setting have cost."""

    def row(self, setting):
        return "%s | %d | %d | %d | %d | %d" % (
            setting, self["before"] / self["seconds"], self["times"],
            self["claims"], self["double"], self["lost"])

    def measure(self, clients):
        """Lets the load go on for a while; how much of it there is."""
        def claimed():
            return sum(len(client.claimed) for client in clients)

        began, before = time.monotonic(), claimed()
        time.sleep(LOAD)
        self["before"] += claimed() - before
        self["seconds"] += time.monotonic() - began


def check_one(raw, claimed, completed, count):
    """Asks for everything that was acknowledged, as somebody else."""
    tokens = set(claimed.values())
    assert len(tokens) == len(claimed), "a token was handed out twice"
    keys = list(claimed)
    for start in range(0, len(keys), 200):
        part = keys[start:start + 200]
        for key in part:
            raw.send(*claim_words(key, "second"))
        for key, reply in zip(part, [raw.read() for _ in part]):
            word = verdict(reply)
            if word == "REPLAY":
                assert reply[3] == body_of(key)
                continue
            count["lost"] += key in completed
            if word == "NEW":
                count["double"] += 1
                assert reply[1] not in tokens
                tokens.add(reply[1])
                check_overtaken(raw, key, claimed[key], reply[1])
            else:
                assert word == "INFLIGHT", reply
    count["claims"] += len(claimed)


def check_overtaken(raw, key, old, new):
    """Whoever was forgotten cannot do harm to who took over."""
    assert raw("COMPLETE", *NAME, key, old, 500, "", "old") == "STALE"
    assert raw("COMPLETE", *NAME, key, new, 201, "", "new") == "OK"


def fail_over_once(make_daemon, setting, count):
    with contextlib.ExitStack() as stack:
        servers = Servers(stack, setting.options)
        if setting.replica:
            servers.add_replica(setting.lag)
        if setting.sentinel:
            servers.add_sentinel()
        daemons = [make_daemon(url=servers.url(),
                               settings=[*QUICK, *setting.settings])
                   for _ in range(2)]
        stopping = threading.Event()
        clients = [Load(daemon.raw(), stopping) for daemon, _ in zip(
            itertools.cycle(daemons), range(CLIENTS))]
        for client in clients:
            client.start()
        until(lambda: all(client.completed for client in clients))
        count.measure(clients)
        servers.fail(setting.lag)
        servers.recover()
        if setting.settings is WAIT:
            # There is no other replica that could confirm anything.
            daemons.append(make_daemon(url=servers.url(), settings=QUICK))
        else:
            before = [len(client.completed) for client in clients]
            until(lambda: all(len(client.completed) > done for client, done
                              in zip(clients, before)), 60)
        stopping.set()
        for client in clients:
            client.join()
            assert client.error is None, client.error
        claimed, completed = {}, {}
        for client in clients:
            claimed.update(client.claimed)
            completed.update(client.completed)
        check_one(daemons[-1].raw(), claimed, completed, count)
        count["times"] += 1
        for daemon in daemons:
            daemon.stop()


class Setting:
    def __init__(self, text, options, settings=(), replica=True,
                 sentinel=False, lag=LAG):
        self.text = text
        self.options = options
        self.settings = settings
        self.replica = replica
        self.sentinel = sentinel
        self.lag = lag


def count_losses(make_daemon, *words, **options):
    setting = Setting(*words, **options)
    count = Count()
    for _ in range(TIMES):
        fail_over_once(make_daemon, setting, count)
    print("\nsetting | claims/s | fail-overs | claims acknowledged | double"
          " claims | lost completions\n" + count.row(setting.text))
    assert count["claims"] > 100 * TIMES, "there was no load"
    return count


# ---- what may be lost ----

def test_a_fail_over_to_a_replica_that_lags_may_lose_what_it_lacks(
        make_daemon):
    # C20: nothing else is promised; no token comes twice, no holder that was
    # forgotten does harm
    count_losses(make_daemon, "everysec, list of nodes, replica 2 ms behind",
                 EVERYSEC)


def test_a_fail_over_by_sentinel_may_lose_the_same(make_daemon):
    # C20
    count_losses(make_daemon, "everysec, Sentinel, replica 2 ms behind",
                 EVERYSEC, sentinel=True)


def test_a_fail_over_to_a_replica_beside_it_may_lose_little(make_daemon):
    # C20: the process dies, the network does not
    count_losses(make_daemon, "everysec, list of nodes, only the process dies",
                 EVERYSEC, lag=0)


# ---- what may not ----

@pytest.mark.parametrize("sentinel", [False, True])
def test_what_the_replica_has_confirmed_survives_the_fail_over(make_daemon,
                                                               sentinel):
    # C20: the one replica there is has confirmed it, and takes over
    count = count_losses(
        make_daemon, "everysec, wait_replicas = 1, %s, replica 2 ms behind" %
        ("Sentinel" if sentinel else "list of nodes"),
        EVERYSEC, WAIT, sentinel=sentinel)
    assert count["double"] == count["lost"] == 0


@pytest.mark.parametrize("options", [ALWAYS, EVERYSEC],
                         ids=["always", "everysec"])
def test_a_killed_redis_that_comes_back_has_lost_nothing(make_daemon,
                                                         options):
    # C20: no fail-over; the machine did not lose its power
    count = count_losses(
        make_daemon, "%s, kill -9 and restart of the same server" %
        options["appendfsync"], options, replica=False, lag=0)
    assert count["double"] == count["lost"] == 0
