"""Several hosts: a gateway and a daemon on each of two, PostgreSQL and the app
on others. One is cut off and comes back; nothing runs twice.

LATCHKEY_STRIKES: how often each kind of cut is made in the last test;
LATCHKEY_SEED: which, and when.
"""

import os
import random
import threading
import time

import pytest

from support import build, stores
from support.app import SERVERS, App, tell
from support.crowd import Crowd, locations
from support.daemon import Daemon
from support.gateway import MODULE, Gateway, guard
from support.hosts import Hosts
from support.life import new_key, until
from support.postgres import Postgres

SETTINGS = ["store.sweep_interval=100ms", "store.poll=50ms",
            "store.timeout=1s", "store.connect_timeout=500ms"]
LOCK = "idempotency_lock 1s;"
LONG_LOCK = "idempotency_lock 60s;"
QUICK = ("idempotency_timeout 1s;", "proxy_connect_timeout 1s;")
PORT = 7420
PASSWORD = "daemon-secret"
NOWHERE = "02:00:00:00:00:01"


# ---- who runs where ----

class HostApp(App):
    """The app on a host of its own."""

    def __init__(self, host):
        super().__init__()
        self.host = host

    def listen(self, protocol):
        if protocol not in self.listeners:
            listener = self.host.listen(self.ports.get(protocol, 0))
            self.ports[protocol] = listener.getsockname()[1]
            self.listeners[protocol] = listener
            threading.Thread(target=self._accept, daemon=True,
                             args=(listener, SERVERS[protocol])).start()
        return self.address

    @property
    def address(self):
        return "%s:%d" % (self.host.address, self.ports["http"])


class HostDaemon(Daemon):
    """Others reach it by its host's address, its own gateway by a socket."""

    def __init__(self, host, url):
        super().__init__(url=url, settings=[
            *SETTINGS, "auth.password=" + PASSWORD],
            listen=["%s:%d" % (host.address, PORT)])
        self.host = host
        self.remote = "%s:%d password=%s" % (host.address, PORT, PASSWORD)

    def launch(self):
        with self.host.inside():
            return super().launch()

    def raw(self, *words, **options):
        raw = super().raw(*words, **options)
        assert raw("AUTH", PASSWORD) == "OK"
        return raw


class HostGateway(Gateway):
    """Its clients are on its host, so that a cut does not keep them away."""

    def __init__(self, host, **options):
        super().__init__(**options)
        self.host = host

    def start(self):
        with self.host.inside():
            return super().start()

    def socket(self, *words, **options):
        with self.host.inside():
            return super().socket(*words, **options)


def part(one, other):
    """These two do not reach each other any more; both reach all others."""
    for host, peer in ((one, other), (other, one)):
        host.ip("neigh", "replace", peer.address, "lladdr", NOWHERE, "dev",
                "eth0", "nud", "permanent")


def join(one, other):
    for host, peer in ((one, other), (other, one)):
        host.ip("neigh", "del", peer.address, "dev", "eth0")


@pytest.fixture(scope="module")
def hosts():
    if not (build.BUILD / MODULE).exists():
        if "thread" in build.BUILD.name:
            pytest.skip("nginx has no threads: there is no gateway")
        pytest.fail("%s is not built" % (build.BUILD / MODULE), pytrace=False)
    with Hosts() as hosts:
        for name in ("a", "b", "spare", "database", "app"):
            hosts.add(name)
        yield hosts


@pytest.fixture(scope="module")
def postgres(hosts):
    with Postgres(host=hosts["database"]) as server:
        yield server


@pytest.fixture
def url(hosts, postgres):
    with hosts["database"].inside():
        return stores.make_postgres(postgres)


@pytest.fixture
def app(hosts):
    app = HostApp(hosts["app"]).start()
    yield app
    app.finish()


@pytest.fixture
def run(hosts, url, app):
    """run(DaemonOrGateway, host, ...) starts it; it ends with the test."""
    made = []

    def run(kind, host, **options):
        one = kind(hosts[host], **options)
        made.append(one)
        return one.start()

    yield run
    app.stop()
    errors = []
    for one in reversed(made):
        try:
            one.finish()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


@pytest.fixture
def start(run, url, app):
    """The gateways of hosts a and b, each with a daemon beside it."""

    def start(*lines, **options):
        options.setdefault("locations", guard("/", *QUICK, *lines))
        return [run(HostGateway, name, app=app,
                    daemon=run(HostDaemon, name, url=url),
                    server_options="password=" + PASSWORD, **options)
                for name in ("a", "b")]

    return start


def begin(gateway, app, key, **manner):
    """A request that stands in the app; its future."""
    future = gateway.later(body=b"{}", key=key,
                           headers=tell(hold=key, **manner))
    app.wait_held(key)
    return future


def is_unavailable(answer):
    return (answer.status, answer.problem) == (503, "unavailable")


def check_told(future, answer):
    """The answer that counts; or that it is not known yet, if the daemon had
    not found the way back to the database."""
    told = future.result()
    if told.problem:
        assert (told.status, told.problem) == (503, "outcome-unknown")
    else:
        assert (told.status, told.body) == (answer.status, answer.body)


def leave(*gateways):
    """Nobody waits for what they still look after."""
    for gateway in gateways:
        gateway.kill()


# ---- one of two is cut off ----

def test_hosts_share_what_they_know(start, app):
    # C01, C02
    a, b = start()
    key = new_key()
    first = a.post(key)
    assert first.status == 201
    again = b.post(key)
    assert again.replayed and again.body == first.body
    assert app.count() == 1


def test_who_was_cut_off_and_not_overtaken_still_counts(hosts, start, app):
    # C20, C22: claimed, and cut off before there was an answer
    a, b = start(LOCK)
    key, refused = new_key(), new_key()
    first = begin(a, app, key)
    hosts["a"].cut()
    assert is_unavailable(a.post(refused))
    assert b.settled(key).problem == "outcome-unknown"
    app.release(key)
    assert not first.done()
    hosts["a"].heal()
    answer = until(lambda: (got := b.settled(key)).replayed and got)
    assert answer.json()["call"] == 1
    check_told(first, answer)
    # What it was refused ran nowhere, and is free.
    assert app.count() == 1
    assert b.settled(refused).status == 201 and app.count() == 2
    leave(a, b)


def test_who_was_cut_off_and_overtaken_passes_on_what_counts(hosts, start,
                                                             app):
    # C20, C22: its token is old, and its own answer is dropped
    a, b = start(LOCK, "idempotency_uncertain reexecute;")
    key = new_key()
    first = begin(a, app, key)
    hosts["a"].cut()
    second = b.settled(key, headers=tell(bytes=77))
    assert second.status == 201 and not second.replayed
    app.release(key)
    hosts["a"].heal()
    check_told(first, second)
    assert a.settled(key).body == second.body
    tokens = [int(call.header("Latchkey-Token")) for call in app.calls]
    assert len(tokens) == 2 and tokens[0] < tokens[1]


def test_an_answer_behind_a_cut_is_unknown_and_is_stored_after_it(
        hosts, start, app):
    # C20, C42: the app is reached, and the database is not
    a, b = start(LOCK)
    key = new_key()
    first = begin(a, app, key)
    part(hosts["a"], hosts["database"])
    try:
        app.release(key)
        first = first.result()
        assert (first.status, first.problem) == (503, "outcome-unknown")
        assert is_unavailable(a.post(new_key()))
        assert b.settled(key).problem == "outcome-unknown"
    finally:
        join(hosts["a"], hosts["database"])
    answer = until(lambda: (got := b.settled(key)).replayed and got)
    assert answer.json()["call"] == 1
    assert a.settled(key).body == answer.body
    assert app.count() == 1
    leave(a, b)


def test_an_answer_behind_a_cut_that_was_overtaken_is_dropped(hosts, start,
                                                              app):
    # C20, C22, C42
    a, b = start(LOCK, "idempotency_uncertain reexecute;")
    key = new_key()
    first = begin(a, app, key)
    part(hosts["a"], hosts["database"])
    try:
        app.release(key)
        assert first.result().problem == "outcome-unknown"
        second = b.settled(key)
        assert second.status == 201 and not second.replayed
        assert second.json()["call"] == 2
    finally:
        join(hosts["a"], hosts["database"])
    # Its late answer is told that it is stale; whoever asks gets the other.
    answer = until(lambda: (got := a.settled(key)).replayed and got)
    assert answer.body == second.body
    until(lambda: a.commands("complete") >= 1)
    assert b.settled(key).body == second.body
    assert app.count() == 2
    leave(a, b)


# ---- the others are cut off ----

def test_without_the_database_nothing_runs_and_all_recover(hosts, start, app):
    # C19, C42
    a, b = start(LONG_LOCK)
    keys = [new_key(), new_key()]
    first = [begin(gateway, app, key) for gateway, key in zip((a, b), keys)]
    hosts["database"].cut()
    for gateway in (a, b):
        assert is_unavailable(gateway.post(new_key()))
    for key, future in zip(keys, first):
        app.release(key)
        assert future.result().problem == "outcome-unknown"
    hosts["database"].heal()
    for key in keys:
        answers = [gateway.settled(key) for gateway in (b, a)]
        assert all(answer.replayed for answer in answers)
        assert answers[0].body == answers[1].body
    assert app.count() == 2
    leave(a, b)


def test_a_gateway_goes_on_when_the_host_of_its_daemon_is_cut_off(
        hosts, run, url, app):
    # C19, C20: the other daemon knows of the claim, and stores the answer
    far = run(HostDaemon, "spare", url=url)
    other = run(HostDaemon, "b", url=url)
    a = run(HostGateway, "a", app=app, daemon=far, workers=1,
            daemon_address=far.remote.split()[0],
            server_options="password=" + PASSWORD,
            http="idempotency_server %s;" % other.remote,
            locations=guard("/", *QUICK, LONG_LOCK))
    key, during = new_key(), new_key()
    first = begin(a, app, key)
    hosts["spare"].cut()
    app.release(key)
    told = first.result()
    assert told.status == 201 or told.problem == "outcome-unknown"
    answer = a.settled(key)
    assert answer.replayed and answer.json()["call"] == 1
    assert a.settled(during).status == 201
    hosts["spare"].heal()
    until(lambda: far.cli("get", "acme", "POST /", during).returncode == 0)
    assert app.count() == 2
    leave(a)


# ---- any of them, at any time ----

class Cuts:
    """Cuts and heals, under the hands of all clients."""

    def __init__(self, hosts, dice):
        self.hosts = hosts
        self.dice = dice

    def site(self):
        return self.hosts[self.dice.choice("ab")]

    def cut(self, host):
        host.cut()
        self.rest(0.2, 2)
        host.heal()

    def cut_site(self):
        self.cut(self.site())

    def cut_database(self):
        self.cut(self.hosts["database"])

    def cut_app(self):
        self.cut(self.hosts["app"])

    def part_from(self, name):
        site = self.site()
        part(site, self.hosts[name])
        self.rest(0.2, 2)
        join(site, self.hosts[name])

    def part_from_database(self):
        self.part_from("database")

    def part_from_app(self):
        self.part_from("app")

    def rest(self, least, most):
        time.sleep(self.dice.uniform(least, most))

    def strike(self, times):
        kinds = [self.cut_site, self.cut_database, self.cut_app,
                 self.part_from_database, self.part_from_app] * times
        self.dice.shuffle(kinds)
        for kind in kinds:
            self.rest(0.1, 0.6)
            print(kind.__name__)
            kind()
        self.rest(0.1, 0.6)


def test_each_key_runs_once_whatever_is_cut_off(hosts, start, app):
    # C01, C20, C22, C41, C42
    seed = int(os.environ.get("LATCHKEY_SEED") or random.randrange(10**6))
    print("LATCHKEY_SEED=%d" % seed)
    gateways = start(locations=locations(LOCK, *QUICK))
    crowd = Crowd(gateways, seed).start()
    Cuts(hosts, random.Random(seed)).strike(
        int(os.environ.get("LATCHKEY_STRIKES") or 1))
    crowd.finish()
    crowd.check(app)
    leave(*gateways)
