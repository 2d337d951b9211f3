"""Several gateways, each with a daemon, on one PostgreSQL or on one Redis.

Whatever dies, each key runs once. LATCHKEY_STRIKES: how often each kind of
thing is killed in the last tests; LATCHKEY_SEED: what, and when.
"""

import os
import random
import re
import signal
import time

import pytest

from support import stores
from support.app import tell
from support.crowd import Crowd, locations
from support.gateway import guard
from support.life import new_key, until
from support.postgres import Postgres
from support.proxy import Proxy
from support.service import halt

SETTINGS = ["store.sweep_interval=100ms", "store.poll=50ms",
            "store.timeout=1s", "store.connect_timeout=2s"]
CLIENTS = 200
LOCK = "idempotency_lock 1s;"
QUICK = "idempotency_timeout 1s;"
# Whoever is not answered at once is not answered within a test.
AT_ONCE = "idempotency_timeout 500s;"
SLOW_CLIENTS = "send_timeout 1100s;"


# ---- stores ----

class Store:
    """A new store and the server that it is on."""

    def __init__(self, server, url, settings=()):
        self.server = server
        self.url = url
        self.settings = [*SETTINGS, *settings]

    def stop(self):
        self.server.stop()

    def freeze(self):
        self.server.pause()

    def come_back(self):
        if self.server.is_running():
            self.server.resume()
        else:
            self.server.start()


@pytest.fixture
def on_postgres(postgres):
    made = Store(postgres, stores.make_postgres(postgres))
    yield made
    made.come_back()


@pytest.fixture
def on_redis(redis_server):
    made = Store(redis_server, redis_server.url(),
                 ["store.prefix=" + stores.make_prefix()])
    yield made
    made.come_back()


@pytest.fixture(params=["postgres", "redis"])
def store(request):
    return request.getfixturevalue("on_" + request.param)


# ---- gateways ----

class Pair:
    """Two gateways; each prefers its own of two daemons that share a store."""

    def __init__(self, store, daemons, gateways):
        self.store = store
        self.daemons = daemons
        self.gateways = gateways
        self.here, self.there = gateways

    def leave(self):
        """Nobody waits for what the gateways still look after: a claim whose
        fate they do not know, for five seconds."""
        for gateway in self.gateways:
            gateway.kill()

    def total(self, command):
        return sum(gateway.commands(command) for gateway in self.gateways
                   if gateway.daemon.is_running())


@pytest.fixture
def make_pair(make_daemon, make_gateway):
    """make_pair(store, lines of the location ...)."""

    def make(store, *lines, workers=2, settings=(), **options):
        options.setdefault("locations", guard("/", *lines))
        daemons = [make_daemon(url=store.url,
                               settings=[*store.settings, *settings])
                   for _ in range(2)]
        return Pair(store, daemons, [
            make_gateway(daemon=own, workers=workers,
                         http="idempotency_server %s;" % other.address,
                         **options)
            for own, other in (daemons, daemons[::-1])])

    return make


def begin(gateway, app, key, **manner):
    """A request that stands in the app; its future."""
    future = gateway.later(body=b"{}", key=key,
                           headers=tell(hold=key, **manner))
    app.wait_held(key)
    return future


def is_unavailable(answer):
    return (answer.status, answer.problem) == (503, "unavailable")


# ---- many at once ----

def ask_all(pair, key):
    """Two hundred equal requests at once, half of them at each gateway."""
    return [pair.gateways[number % 2].later(
        body=b"{}", key=key, headers=tell(hold="run", bytes=5000))
        for number in range(CLIENTS)]


def check_workers(pair, key):
    """What one worker decides alone proves nothing."""
    for gateway in pair.gateways:
        entries = gateway.logged(CLIENTS // 2, key=key)
        assert len({entry["pid"] for entry in entries}) == (
            gateway.worker_count)


def test_of_two_hundred_requests_at_two_gateways_one_runs(store, make_pair,
                                                          app):
    # C01
    pair = make_pair(store, workers=3, reuseport=True)
    key = new_key()
    futures = ask_all(pair, key)
    until(lambda: sum(future.done() for future in futures) == CLIENTS - 1)
    assert app.count() == 1
    app.release("run")
    answers = [future.result() for future in futures]
    (first,) = [answer for answer in answers if answer.status == 201]
    assert not first.replayed and len(first.body) == 5000
    assert all(answer.problem == "in-progress" for answer in answers
               if answer is not first)
    for gateway in pair.gateways:
        again = gateway.settled(key)
        assert again.replayed and again.body == first.body
    assert app.count() == 1
    check_workers(pair, key)


def test_of_two_hundred_that_wait_at_two_gateways_all_get_the_same_bytes(
        store, make_pair, app):
    # C01, C07
    pair = make_pair(store, "idempotency_wait 25s;", workers=3,
                     reuseport=True)
    key = new_key()
    futures = ask_all(pair, key)
    until(lambda: pair.total("await") >= CLIENTS - 1)
    app.release("run")
    answers = [future.result() for future in futures]
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert sum(answer.replayed for answer in answers) == CLIENTS - 1
    assert app.count() == 1
    check_workers(pair, key)


# ---- waiting ----

def waiters(daemon):
    with daemon.raw() as raw:
        found = re.search(rb"blocked_clients:(\d+)", raw("INFO"))
    return int(found.group(1))


def test_who_waits_at_one_gateway_is_told_by_the_other_ones_daemon(
        on_postgres, make_pair, app):
    # C07: nobody asks again of himself within this test
    pair = make_pair(on_postgres, "idempotency_wait 25s;",
                     settings=["store.poll=1h"])
    key = new_key()
    first = begin(pair.here, app, key)
    waiting = [pair.there.later(body=b"{}", key=key) for _ in range(5)]
    until(lambda: waiters(pair.daemons[1]) == 5)
    app.release(key)
    for future in waiting:
        assert future.result().replayed
        assert future.result().body == first.result().body
    assert app.count() == 1


@pytest.mark.parametrize("whose", ["first", "second"])
def test_who_waits_outlives_a_daemon(store, make_pair, app, whose):
    # C07, C20: that of the first request, and that of who waits for it
    pair = make_pair(store, "idempotency_wait 25s;")
    key = new_key()
    first = begin(pair.here, app, key)
    waiting = pair.there.later(body=b"{}", key=key)
    until(lambda: waiters(pair.daemons[1]) == 1)
    pair.daemons[whose == "second"].kill()
    app.release(key)
    assert first.result().status == 201
    answer = waiting.result()
    # Whoever waited at a dead daemon may be sent away; never to run it.
    if answer.problem:
        assert answer.problem == "in-progress" and whose == "second"
        answer = pair.there.settled(key)
    assert answer.replayed and answer.body == first.result().body
    assert app.count() == 1


# ---- a daemon goes ----

def test_a_gateway_goes_on_with_the_daemon_that_is_left(store, make_pair,
                                                        app):
    # C19, C20
    pair = make_pair(store)
    answers = {}

    def ask(gateway, key):
        answer = gateway.post(key)
        assert answer.status == 201, answer
        assert answers.setdefault(key, answer.body) == answer.body
        assert answer.replayed == (gateway is not pair.here)

    def ask_some():
        for key in [new_key() for _ in range(10)]:
            for gateway in pair.gateways:
                ask(gateway, key)

    ask_some()
    for daemon in pair.daemons:
        daemon.kill()
        ask_some()
        daemon.start()
    for daemon in pair.daemons:
        daemon.kill()
    assert all(is_unavailable(gateway.post(new_key()))
               for gateway in pair.gateways)
    assert app.count() == len(answers)
    for daemon in pair.daemons:
        daemon.start()
    for gateway in pair.gateways:
        for key, body in answers.items():
            assert gateway.settled(key).body == body
    assert app.count() == len(answers)


def test_an_answer_is_stored_by_another_daemon_than_claimed(store, make_pair,
                                                            app):
    # C20, C42
    pair = make_pair(store)
    key = new_key()
    first = begin(pair.here, app, key)
    pair.daemons[0].kill()
    assert pair.there.post(key).problem == "in-progress"
    app.release(key)
    assert first.result().status == 201
    assert pair.there.post(key).body == first.result().body
    assert app.count() == 1


def test_a_daemon_that_hangs_is_left_for_the_other_one(on_postgres, make_pair,
                                                       app):
    # C19, C22
    pair = make_pair(on_postgres, QUICK, workers=1)
    assert pair.here.post(new_key()).status == 201
    key = new_key()
    first = begin(pair.here, app, key)
    pair.daemons[0].signal(signal.SIGSTOP)
    try:
        # What it had been told when it stopped may cost a time-out each.
        fresh = new_key()
        until(lambda: pair.here.post(fresh).status == 201)
        app.release(key)
        first = first.result()
        answer = pair.there.settled(key)
    finally:
        pair.daemons[0].signal(signal.SIGCONT)
    assert answer.replayed and app.count(key) == app.count(fresh) == 1
    assert first.status == 201 and first.body == answer.body or (
        first.problem == "outcome-unknown")
    assert pair.here.settled(key).body == answer.body
    pair.leave()


def test_a_daemon_that_lost_its_way_to_the_store_is_left_for_the_other_one(
        on_postgres, make_daemon, make_gateway, app):
    # C19, C42: also what was claimed through it is stored by the other.
    with Proxy(on_postgres.server) as proxy:
        cut_off = make_daemon(url=proxy.through(on_postgres.url),
                              settings=on_postgres.settings)
        well = make_daemon(url=on_postgres.url, settings=on_postgres.settings)
        gateway = make_gateway(daemon=cut_off, workers=1,
                               http="idempotency_server %s;" % well.address)
        assert gateway.post("before").status == 201
        key = new_key()
        first = begin(gateway, app, key)
        proxy.refuse()
        proxy.cut()
        app.release(key)
        assert first.result().status == 201
        keys = [new_key() for _ in range(10)]
        assert {gateway.post(each).status for each in keys} == {201}
        assert gateway.post("before").replayed and gateway.post(key).replayed
        assert gateway.log_text().count("cannot decide now") == 1
        # It is gone back to when the other one is lost.
        proxy.refuse(False)
        well.stop()
        until(lambda: gateway.post(keys[0]).replayed)
        gateway.wait_for_log("decides again")
        assert gateway.log_text().count("cannot decide now") == 1
        assert app.count() == 12
        gateway.kill()  # it may look after a claim, and nobody is left


def test_a_daemon_that_started_before_its_store_is_left_and_gone_back_to(
        on_postgres, make_daemon, make_gateway, app):
    # C19, C01: greeted without the store's name, it is greeted again.
    with Proxy(on_postgres.server) as proxy:
        proxy.refuse()
        early = make_daemon(url=proxy.through(on_postgres.url),
                            settings=on_postgres.settings)
        well = make_daemon(url=on_postgres.url, settings=on_postgres.settings)
        gateway = make_gateway(daemon=early, workers=1,
                               http="idempotency_server %s;" % well.address)
        keys = [new_key() for _ in range(5)]
        for key in keys:
            until(lambda: gateway.post(key).status == 201)
        proxy.refuse(False)
        early.wait_for_log("event=store-available")
        well.stop()
        until(lambda: gateway.post(keys[0]).replayed)
        assert gateway.post(new_key()).status == 201
        assert app.count() == 6
        gateway.kill()  # it may look after a claim, and nobody is left


# ---- the store goes ----

@pytest.mark.parametrize("go", [Store.stop, Store.freeze])
def test_without_the_store_all_say_503_at_once_and_nothing_runs(
        store, make_pair, app, go):
    # C19
    pair = make_pair(store, AT_ONCE, server=SLOW_CLIENTS)
    known, fresh = new_key(), new_key()
    first = pair.here.post(known)
    assert first.status == 201
    go(store)
    for gateway in pair.gateways:
        assert is_unavailable(gateway.post(known))
        assert is_unavailable(gateway.post(fresh))
    assert app.count() == 1
    store.come_back()
    for gateway in pair.gateways:
        again = gateway.settled(known)
        assert again.replayed and again.body == first.body
    # Nobody is told "in progress" for good: what was claimed is released.
    assert pair.here.settled(fresh).status == 201
    assert pair.there.settled(fresh).replayed
    assert app.count() == 2
    pair.leave()


def test_an_answer_without_a_store_is_stored_later_and_found_everywhere(
        store, make_pair, app):
    # C20, C42
    pair = make_pair(store, QUICK)
    key = new_key()
    first = begin(pair.here, app, key)
    store.server.kill()
    app.release(key)
    first = first.result()
    assert (first.status, first.problem) == (503, "outcome-unknown")
    assert is_unavailable(pair.there.post(key))
    store.come_back()
    answer = pair.there.settled(key)
    assert answer.replayed and answer.json()["call"] == 1
    assert pair.here.settled(key).body == answer.body
    assert app.count() == 1


# ---- locks ----

def test_a_slow_app_keeps_its_lock_though_its_daemon_dies(on_postgres,
                                                          make_pair, app):
    # C22: as long as its gateway lives, and however often it was extended
    pair = make_pair(on_postgres, "idempotency_lock 2s;")
    key = new_key()
    first = begin(pair.here, app, key)

    def wait_extended(gateway, times):
        def is_extended():
            assert pair.there.post(key).problem == "in-progress"
            return gateway.commands("extend") >= times
        until(is_extended, pause=0.05)

    wait_extended(pair.here, 1)
    pair.daemons[0].kill()
    wait_extended(pair.there, 4)  # more than one lock has room for
    app.release(key)
    assert first.result().status == 201
    assert pair.there.post(key).body == first.result().body
    assert app.count() == 1


@pytest.mark.parametrize("also_its_daemon", [False, True])
def test_what_a_killed_gateway_held_is_uncertain_everywhere(
        on_postgres, make_pair, app, also_its_daemon):
    # C20, C22
    pair = make_pair(on_postgres, LOCK)
    key, untouched = new_key(), new_key()
    begin(pair.here, app, key)
    begin(pair.here, app, untouched)
    pair.here.kill()
    if also_its_daemon:
        pair.daemons[0].kill()
    else:
        # Nobody asks for this one: the sweeper finds it.
        pair.there.wait_state(untouched, "uncertain")
    assert pair.there.settled(key).problem == "outcome-unknown"
    app.release(key)  # to nobody
    if also_its_daemon:
        pair.daemons[0].start()
    pair.here.start()
    for one in (key, untouched):
        for gateway in pair.gateways:
            assert gateway.settled(one).problem == "outcome-unknown"
        assert app.count(one) == 1


def sleep_through(pair, app, key):
    """A gateway that is stopped, its app's answer before its door."""
    future = begin(pair.here, app, key)
    (pid,) = pair.here.workers()
    halt(pid)
    return future, pid


def test_a_gateway_that_slept_past_its_lock_still_counts(on_postgres,
                                                         make_pair, app):
    # C20, C22: nobody has overtaken it
    pair = make_pair(on_postgres, LOCK, workers=1)
    key = new_key()
    first, pid = sleep_through(pair, app, key)
    try:
        assert pair.there.settled(key).problem == "outcome-unknown"
        app.release(key)
        app.wait_answered(1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert first.result().status == 201
    assert pair.there.settled(key).body == first.result().body
    assert app.count() == 1


def test_a_gateway_that_was_overtaken_passes_on_what_counts(on_postgres,
                                                            make_pair, app):
    # C20, C22: its token is old, and its own answer is dropped
    pair = make_pair(on_postgres, LOCK, "idempotency_uncertain reexecute;",
                     workers=1)
    key = new_key()
    first, pid = sleep_through(pair, app, key)
    try:
        second = pair.there.settled(key, headers=tell(bytes=77))
        assert second.status == 201 and not second.replayed
        app.release(key)
        app.wait_answered(2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert first.result().status == 201
    assert first.result().body == second.body
    assert pair.here.post(key).body == second.body
    tokens = [int(call.header("Latchkey-Token")) for call in app.calls]
    assert len(tokens) == 2 and tokens[0] < tokens[1]


def test_a_daemon_that_slept_past_the_lock_still_counts(on_postgres,
                                                        make_pair, app):
    # C20, C22: it was told of the answer when it had stopped
    pair = make_pair(on_postgres, LOCK, AT_ONCE, workers=1,
                     server=SLOW_CLIENTS)
    key = new_key()
    first = begin(pair.here, app, key)
    pair.daemons[0].signal(signal.SIGSTOP)
    try:
        assert pair.there.settled(key).problem == "outcome-unknown"
        app.release(key)
        app.wait_answered(1)
    finally:
        pair.daemons[0].signal(signal.SIGCONT)
    assert first.result().status == 201
    assert pair.there.settled(key).body == first.result().body
    assert app.count() == 1


# ---- anything at any time ----

class Chaos:
    """Kills one thing after the other and has it come back."""

    def __init__(self, pair, dice):
        self.pair = pair
        self.dice = dice

    def kill_daemon(self):
        daemon = self.dice.choice(self.pair.daemons)
        daemon.kill()
        self.rest(0.3)
        daemon.start()

    def kill_worker(self):
        gateway = self.dice.choice(self.pair.gateways)
        gateway.kill_worker(self.dice.choice(gateway.workers()))
        until(lambda: len(gateway.workers()) == gateway.worker_count)

    def kill_nginx(self):
        gateway = self.dice.choice(self.pair.gateways)
        gateway.kill()
        gateway.start()

    def kill_machine(self):
        number = self.dice.randrange(2)
        daemon, gateway = self.pair.daemons[number], self.pair.gateways[number]
        daemon.kill()
        gateway.kill()
        self.rest(0.3)
        daemon.start()
        gateway.start()

    def kill_server(self):
        self.pair.store.server.kill()
        self.rest(0.3)
        self.pair.store.server.start()

    def stop_server(self):
        self.pair.store.server.stop("immediate")
        self.pair.store.server.start()

    def rest(self, most):
        time.sleep(self.dice.uniform(0, most))

    def strike(self, times):
        kinds = [self.kill_daemon, self.kill_worker, self.kill_nginx,
                 self.kill_machine, self.kill_server]
        if isinstance(self.pair.store.server, Postgres):
            kinds.append(self.stop_server)
        kinds *= times
        self.dice.shuffle(kinds)
        for kind in kinds:
            self.rest(0.6)
            print(kind.__name__)
            kind()
        self.rest(0.6)


def test_each_key_runs_once_though_everything_is_killed(store, make_pair,
                                                        app):
    # C01, C20, C41, C42
    seed = int(os.environ.get("LATCHKEY_SEED") or random.randrange(10**6))
    print("LATCHKEY_SEED=%d" % seed)
    pair = make_pair(store, locations=locations(LOCK, QUICK))
    for gateway in pair.gateways:
        gateway.allow(r"bind\(\) to .* failed .*in use")
    crowd = Crowd(pair.gateways, seed).start()
    Chaos(pair, random.Random(seed)).strike(
        int(os.environ.get("LATCHKEY_STRIKES") or 1))
    crowd.finish()
    crowd.check(app)
    pair.leave()
