"""Several daemons on one PostgreSQL, or on one Redis, have one history.

Many connections, spread over the daemons, fight for the same keys while
daemons, servers and networks fail. What everybody was told is checked.
LATCHKEY_STRIKES: how often each test strikes.
"""

import contextlib
import os
import random
import signal

import pytest

from support import build, history, stores
from support.history import Race
from support.life import (FINGERPRINT, begin, claim, complete, name, new_key,
                          until, verdict)
from support.proxy import REPLIES, Proxy
from support.resp import fields

DAEMONS = 3
SETTINGS = ["store.sweep_interval=50ms", "store.poll=50ms",
            "store.timeout=2s", "store.connect_timeout=1s"]
# No COMMIT but those that the test asks for.
QUIET = ["store.sweep_interval=1h"]
END_ALL = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name LIKE 'latchkeyd%'"""
LINKS = 200


def strikes(usual):
    return int(os.environ.get("LATCHKEY_STRIKES", 0)) or (
        min(usual, 2) if build.is_sanitized() else usual)


# ---- stores ----

class Store:
    """A new store, the server that it is on, and how daemons get there."""

    def __init__(self, server, url, settings=()):
        self.server = server
        self.url = url
        self.settings = [*SETTINGS, *settings]

    def behind(self, proxy):
        return proxy.through(self.url)


@pytest.fixture
def on_postgres(postgres):
    return Store(postgres, stores.make_postgres(postgres))


@pytest.fixture
def on_redis(redis_server):
    return Store(redis_server, redis_server.url(),
                 ["store.prefix=" + stores.make_prefix()])


@pytest.fixture(params=["postgres", "redis"])
def store(request):
    return request.getfixturevalue("on_" + request.param)


@pytest.fixture
def start(make_daemon):
    """start(store) is so many daemons; start(store, proxy, ...) has one
    behind each proxy, and one that is behind none."""

    def start(store, *proxies, count=DAEMONS, settings=()):
        urls = [store.behind(proxy) for proxy in proxies]
        urls += [store.url] * (1 if proxies else count)
        return [make_daemon(url=url, settings=[*store.settings, *settings])
                for url in urls]

    return start


@pytest.fixture
def proxies():
    """Makes proxies to a server: proxies(server, 2)."""
    with contextlib.ExitStack() as stack:
        yield lambda server, count: [stack.enter_context(Proxy(server))
                                     for _ in range(count)]


def expect(seen, *words):
    """A race in which nothing happens proves nothing. A short one, of programs
    that are slow, need not meet what is rare."""
    rare = ("UNCERTAIN", "KEPT", "STALE")
    for word in ("NEW", "REPLAY", "INFLIGHT", "OK", *words,
                 *(rare if seen["NEW"] > 1000 else ())):
        assert seen[word] > 0, seen


# ---- in peace ----

def test_of_two_hundred_claims_on_three_daemons_one_wins(store, start):
    # C01: whoever gets an answer gets the same bytes
    daemons = start(store)
    key = new_key()
    clients = [daemons[i % DAEMONS].raw() for i in range(LINKS)]
    for number, client in enumerate(clients):
        client.send("CLAIM", *name(key), FINGERPRINT, "OWNER", number,
                    "WAIT", 60000)
    winner = until(lambda: fields_of(daemons[0], key))
    answer = bytes(range(256))
    assert complete(daemons[1].raw(), key, winner["token"], 200,
                    b"A: b\r\n", answer) == "OK"
    replies = [client.read() for client in clients]
    others = [reply for reply in replies if reply[0] != b"NEW"]
    assert len(others) == LINKS - 1
    assert {tuple(reply[:4]) for reply in others} == {
        (b"REPLAY", 200, b"A: b\r\n", answer)}


def fields_of(daemon, key):
    reply = daemon.raw()("LOOKUP", *name(key))
    return reply and fields(reply)


def test_overlapping_batches_of_many_lanes_never_fail(store, start, tmp_path):
    # C01: no error, and no deadlock, reaches a client
    daemons = start(store, settings=["store.connections=4"])
    claims = 20000 if build.is_sanitized() else 60000
    report = history.race(daemons, tmp_path / "h", claims=claims, keys=2000,
                          hot=400, connections=48, readback=True,
                          seed=os.getpid())
    print(report)
    found, printed = history.check(tmp_path / "h",
                                   busy=store.url.startswith("postgres"))
    assert not found, printed
    seen = history.counts(report)
    expect(seen)
    # What may have to be sent again without a failure: a replay in a pipeline
    # whose answer expires before it is read; and, on a slow machine, what a
    # holder says, if it meets the batches of others for seconds.
    for daemon in daemons:
        assert not [line for line in daemon.log if "event=store " in line]


# ---- daemons die, and stand still ----

def test_daemons_are_killed_and_nothing_acknowledged_is_lost(
        store, start, tmp_path):
    # C20, C41
    daemons = start(store)
    dice = random.Random()
    with Race(daemons, tmp_path / "h") as race:
        for number in range(strikes(6)):
            race.go_on(dice.uniform(0.05, 0.5))
            daemon = daemons[number % DAEMONS]
            daemon.kill()
            race.go_on(dice.uniform(0, 0.2))
            daemon.start()
        expect(race.finish(), "lost")


def test_a_daemon_that_stood_still_tells_its_holders_that_they_are_stale(
        store, start):
    # C22
    ours, other = start(store, count=2)
    raw, rival = ours.raw(), other.raw()
    key, untouched = new_key(), new_key()
    token = begin(raw, key, "LOCK", 200)
    same = begin(raw, untouched, "LOCK", 200)
    ours.signal(signal.SIGSTOP)
    raw.send("COMPLETE", *name(key), token, 200, "", "too late")
    raw.send("COMPLETE", *name(untouched), same, 200, "", "late")
    for one in (key, untouched):
        until(lambda: verdict(claim(rival, one)) == "UNCERTAIN")
    fresh = begin(rival, key, "REEXECUTE")
    assert fresh > token
    ours.signal(signal.SIGCONT)
    assert raw.read() == "STALE"
    # Nobody overtook this one: what is late still counts.
    assert raw.read() == "OK"
    assert claim(rival, untouched)[3] == b"late"
    assert complete(rival, key, fresh, 200, b"", b"in time") == "OK"
    assert claim(raw, key)[3] == b"in time"


def test_daemons_stand_still_past_the_lock_and_go_on(store, start, tmp_path):
    # C20, C22
    daemons = start(store)
    with Race(daemons, tmp_path / "h") as race:
        for number in range(strikes(3)):
            race.go_on(0.3)
            daemon = daemons[number % DAEMONS]
            daemon.signal(signal.SIGSTOP)
            race.go_on(0.8)  # locks are 150 ms
            daemon.signal(signal.SIGCONT)
        expect(race.finish(), "STALE")


# ---- the server dies ----

def test_postgres_dies_and_comes_back(on_postgres, start, tmp_path):
    # C19, C20, C41: UNAVAILABLE meanwhile; no daemon has to be restarted
    server = on_postgres.server
    daemons = start(on_postgres)
    with Race(daemons, tmp_path / "h") as race:
        for number in range(strikes(2)):
            race.go_on(0.5)
            if number % 2:
                server.stop("immediate")
            else:
                server.kill()
            expect_refusal(daemons)
            server.start()
            expect_recovery(daemons)
        expect(race.finish(), "UNAVAILABLE")


def test_redis_dies_and_comes_back(on_redis, start, tmp_path):
    # C19, C20, C41: what appendfsync always promises on one server
    daemons = start(on_redis)
    with Race(daemons, tmp_path / "h") as race:
        for _ in range(strikes(3)):
            race.go_on(0.5)
            on_redis.server.kill()
            expect_refusal(daemons)
            on_redis.server.start()
            expect_recovery(daemons)
        expect(race.finish(), "UNAVAILABLE")


def expect_refusal(daemons):
    for daemon in daemons:
        raw = daemon.raw()
        until(lambda: verdict(claim(raw, new_key())).startswith("UNAVAILABLE"))


def expect_recovery(daemons):
    for daemon in daemons:
        raw = daemon.raw()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")


def test_backends_are_terminated_again_and_again(on_postgres, start,
                                                 tmp_path):
    # C20, C41
    daemons = start(on_postgres)
    ended = 0
    with Race(daemons, tmp_path / "h") as race:
        for _ in range(strikes(10)):
            race.go_on(0.15)
            ended += on_postgres.server.value(END_ALL)
        expect(race.finish())
    assert ended >= strikes(10) * DAEMONS


# ---- the network ----

def delay(proxy, race):
    proxy.delay(0.03)
    race.go_on(0.4)
    proxy.delay(0)


def freeze(proxy, race, *ways, seconds=0.4):
    proxy.freeze(*ways)
    race.go_on(seconds)
    proxy.thaw()


def cut(proxy, race):
    until(proxy.cut)


def be_away(proxy, race):
    proxy.refuse()
    proxy.cut()
    race.go_on(0.4)
    proxy.refuse(False)


def lose_commits(proxy, race):
    """COMMITs happen, and nobody is told."""
    proxy.cut_after_commit(n=3).wait(3)


def stop_commits(proxy, race):
    proxy.cut_before_commit(n=3).wait(3)


def lose_replies(proxy, race):
    """The server does what it is told, and nobody hears of it."""
    proxy.cut_after_reply_lost(n=3, matching=b"latchkey").wait(3)


def hide_replies(proxy, race):
    """Longer than a daemon waits; then they are lost for good."""
    proxy.freeze(REPLIES)
    race.go_on(2.5)
    proxy.cut()
    proxy.thaw()


def arrive_late(proxy, race):
    """What a daemon has given up reaches the server after all."""
    freeze(proxy, race, seconds=2.5)


COMMON = [cut, delay, freeze, be_away, hide_replies, arrive_late]


def strike_the_network(race, proxies, ways):
    dice = random.Random()
    for _ in range(strikes(1)):
        for way in dice.sample(ways, len(ways)):
            proxy = dice.choice(proxies)
            print(way.__name__)
            way(proxy, race)
            race.go_on(0.15)


def test_the_network_before_postgres_fails_in_every_way(
        on_postgres, start, proxies, tmp_path):
    # C19, C20, C41: also after COMMIT was sent
    between = proxies(on_postgres.server, 2)
    daemons = start(on_postgres, *between)
    with Race(daemons, tmp_path / "h") as race:
        race.go_on(0.3)
        strike_the_network(race, between,
                           [*COMMON, lose_commits, stop_commits])
        expect(race.finish(), "UNAVAILABLE")
    assert sum(one.struck["after_commit"] for one in between) >= 3
    assert sum(one.struck["before_commit"] for one in between) >= 3


def test_the_network_before_redis_fails_in_every_way(
        on_redis, start, proxies, tmp_path):
    # C19, C20, C41
    between = proxies(on_redis.server, 2)
    daemons = start(on_redis, *between)
    with Race(daemons, tmp_path / "h") as race:
        race.go_on(0.3)
        strike_the_network(race, between, [*COMMON, lose_replies])
        expect(race.finish(), "UNAVAILABLE")
    assert sum(one.struck["reply_lost"] for one in between) >= 3


def test_a_claim_whose_commit_was_lost_gets_its_own_token(
        on_postgres, start, proxies):
    # C41: with its OWNER it is repeated by the daemon, or by the client
    proxy, = proxies(on_postgres.server, 1)
    daemon, other = start(on_postgres, proxy, settings=QUIET)
    raw, key = daemon.raw(), new_key()
    expect_recovery([daemon])
    for lose in (proxy.cut_after_commit, proxy.cut_before_commit):
        strike = lose()
        reply = claim(raw, key, "OWNER", "me")
        strike.wait()
        until(lambda: verdict(claim(raw, key, "OWNER", "me")) == "NEW")
        again = claim(raw, key, "OWNER", "me")
        if verdict(reply) == "NEW":
            assert reply[:2] == again[:2]
        assert verdict(claim(other.raw(), key, "OWNER", "you")) == "INFLIGHT"
        assert complete(other.raw(), key, again[1], 200, b"", b"x") == "OK"
        key = new_key()


def test_a_completion_whose_commit_was_lost_is_kept_once(
        on_postgres, start, proxies):
    # C20, C42 (the daemon's part)
    proxy, = proxies(on_postgres.server, 1)
    daemon, other = start(on_postgres, proxy, settings=QUIET)
    raw, key = daemon.raw(), new_key()
    token = begin(raw, key)
    strike = proxy.cut_after_commit()
    first = complete(raw, key, token, 200, b"", b"first")
    strike.wait()
    assert verdict(first).startswith("UNAVAILABLE"), first
    until(lambda: verdict(complete(raw, key, token, 200, b"", b"second")) ==
          "KEPT")
    assert claim(other.raw(), key)[3] == b"first"
