"""Waiting on one daemon for what another one decides."""

import contextlib

import pytest

from support import stores
from support.life import (FINGERPRINT, begin, claim, complete, name, new_key,
                          until, verdict)
from support.pgbouncer import PgBouncer
from support.outbox import target_settings
from support.redis_server import RedisServer
from support.witness import Witness

MINUTE = 60000
# Nobody asks again of himself within a test.
NEVER = "store.poll=1h"
OFTEN = "store.poll=20ms"


@contextlib.contextmanager
def told(postgres):
    """Only NOTIFY wakes who waits."""
    yield stores.make_postgres(postgres), [NEVER]


@contextlib.contextmanager
def polling(postgres):
    """Nobody is told of anything."""
    yield stores.make_postgres(postgres), ["store.notify=no", OFTEN]


@contextlib.contextmanager
def pooled(postgres):
    with PgBouncer(postgres, {
            stores.DAEMON_USER: stores.DAEMON_PASSWORD}) as bouncer:
        yield (bouncer.url(stores.make_database(postgres),
                           stores.DAEMON_USER),
               ["store.pooler=yes", OFTEN])


@contextlib.contextmanager
def on_redis(postgres):
    with RedisServer(appendonly=True, appendfsync="always") as server:
        yield server.url(), [OFTEN]


WAYS = [told, polling, pooled, on_redis]


@pytest.fixture(params=WAYS)
def pair(request, postgres, make_daemon):
    """Two daemons on one store."""
    with request.param(postgres) as (url, settings):
        daemons = [make_daemon(url=url, settings=settings) for _ in range(2)]
        yield daemons
        for daemon in daemons:
            if daemon.is_running():
                daemon.stop()


def park(daemon, key, *options):
    """A claim on that daemon that waits."""
    client, other = daemon.raw(), daemon.raw()
    client.send("CLAIM", *name(key), FINGERPRINT, "WAIT", MINUTE, *options)
    until(lambda: b"blocked_clients:1\r\n" in other("INFO"))
    return client


def test_who_waits_elsewhere_gets_the_answer(pair):
    # C07
    ours, other = pair
    raw, key = ours.raw(), new_key()
    token = begin(raw, key)
    waiting = park(other, key)
    assert complete(raw, key, token, 200, b"A: b\r\n", b"answer") == "OK"
    assert waiting.read()[:4] == [b"REPLAY", 200, b"A: b\r\n", b"answer"]


def test_who_waits_elsewhere_takes_over_after_a_release(pair):
    # C07
    ours, other = pair
    raw, key = ours.raw(), new_key()
    token = begin(raw, key)
    waiting = park(other, key)
    assert raw("RELEASE", *name(key), token) == "OK"
    reply = waiting.read()
    assert reply[0] == b"NEW" and reply[1] > token


def test_who_waits_elsewhere_is_told_of_a_doubt(pair):
    ours, other = pair
    raw, key = ours.raw(), new_key()
    token = begin(raw, key)
    waiting = park(other, key)
    assert raw("DOUBT", *name(key), token, "time-out") == "OK"
    assert waiting.read()[:2] == [b"UNCERTAIN", b"time-out"]


def test_a_push_comes_from_another_daemon(pair):
    # C07: as the gateway waits
    ours, other = pair
    raw, key = ours.raw(), new_key()
    token = begin(raw, key)
    waiting = other.raw(protocol=3)
    assert verdict(claim(waiting, key)) == "INFLIGHT"
    assert waiting("AWAIT", "ticket", *name(key), MINUTE) == "QUEUED"
    assert complete(raw, key, token, 200, b"", b"x") == "OK"
    assert waiting.read() == [b"settled", b"ticket"]
    assert claim(waiting, key)[0] == b"REPLAY"


def test_who_waits_outlives_the_daemon_that_holds_the_claim(
        postgres, make_daemon):
    # C20: another daemon finishes what was begun there
    url = stores.make_postgres(postgres)
    ours, other = (make_daemon(url=url, settings=[OFTEN]) for _ in range(2))
    key = new_key()
    token = begin(ours.raw(), key)
    waiting = park(other, key)
    ours.kill()
    assert complete(other.raw(), key, token, 200, b"", b"x") == "OK"
    assert waiting.read()[3] == b"x"


def test_who_waits_finds_out_after_the_server_was_away(
        postgres, make_daemon):
    # A hint that was lost with the connection is made up for.
    url = stores.make_postgres(postgres)
    ours, other = (make_daemon(url=url, settings=[NEVER]) for _ in range(2))
    raw, key = ours.raw(), new_key()
    token = begin(raw, key)
    waiting = park(other, key)
    postgres.restart("immediate")
    until(lambda: verdict(complete(raw, key, token, 200, b"", b"x")) in (
        "OK", "KEPT"))
    reply = waiting.read()
    while verdict(reply).startswith("UNAVAILABLE"):
        reply = other.raw()("CLAIM", *name(key), FINGERPRINT, "WAIT", MINUTE)
    assert reply[3] == b"x"


# ---- jobs ----

@pytest.fixture
def witness():
    """A service that takes everything."""
    made = Witness()
    made.takes = lambda path: 200
    yield made
    made.finish()


@pytest.mark.parametrize("way", (told, polling, pooled))
def test_a_job_that_others_leave_reaches_the_courier(postgres, make_daemon,
                                                     witness, way):
    # C26, C31: by ENQUEUE at a daemon without a courier, and by an app. With
    # `told` nobody asks of himself: only NOTIFY wakes the courier.
    with way(postgres) as (url, settings):
        ours = make_daemon(url=url, settings=settings + target_settings(
            "pay", witness.url))
        other = make_daemon(url=url, settings=settings + target_settings(
            "pay", witness.url) + ["courier.enabled=no"])
        raw, key = other.raw(), new_key()
        token = begin(raw, key)
        assert raw("ENQUEUE", *name(key), token, "one", "pay", "/one") == "OK"
        until(lambda: [post[0] for post in witness.posts] == ["/one"])
        postgres.query("SELECT latchkey.enqueue(%s, %s, %s, %s, 'two', 'pay',"
                       " '/two')", (*name(key), token),
                       stores.database_of(url))
        until(lambda: [post[0] for post in witness.posts] == ["/one", "/two"])
        for daemon in (ours, other):
            daemon.stop()


def test_a_courier_without_work_asks_seldom(postgres, make_daemon, witness):
    # While the keeper takes a hundred turns.
    def calls(function):
        return postgres.query(
            "SELECT coalesce(sum(calls), 0)::integer FROM"
            " pg_stat_user_functions WHERE funcname = %s", (function,),
            database=base)[0][0]

    postgres.set("track_functions", "pl")
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    daemon = make_daemon(url=url, settings=[
        NEVER, "store.sweep_interval=10ms", *target_settings(
            "pay", witness.url)])
    raw, key = daemon.raw(), new_key()
    token = begin(raw, key)
    assert raw("ENQUEUE", *name(key), token, "one", "pay", "/one") == "OK"
    until(lambda: witness.posts and calls("keep") > 20)
    asked, kept = calls("lease_jobs"), calls("keep")
    until(lambda: calls("keep") > kept + 100, 60)
    assert calls("lease_jobs") - asked < 20
    daemon.stop()
