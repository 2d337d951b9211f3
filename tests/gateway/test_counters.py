"""What was guarded and what was not is counted by location."""

import collections
import re

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key, until

COUNTERS = "location = /counters { idempotency_counters; }\n"
OPEN = "location /open { proxy_pass http://@APP@; }\n"


@pytest.fixture
def counted(make_gateway):
    return make_gateway(locations=COUNTERS + OPEN + guard("/")
                        + guard("/maybe", mode="optional")
                        + guard("/seen", mode="observe"))


def counters(gateway):
    """By location."""
    answer = gateway.request("GET", "/counters", None, tenant=None)
    assert answer.status == 200
    assert answer.header("Content-Type") == "application/json"
    return {entry["location"]: entry for entry in answer.json()["locations"]}


def wait_counted(gateway, location, **numbers):
    """Requests are counted when they are logged, a little after their end."""
    def match():
        entry = counters(gateway)[location]
        found = dict(entry, **entry["verdicts"])
        return all(found[name] == number for name, number in numbers.items())
    until(match)


def test_requests_without_a_guard_are_counted_where_they_went(counted, app):
    # C37
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert counted.request(method, "/open/x", key="k").status == 201
    counted.request("GET", "/open/x", None)
    wait_counted(counted, "/open", unguarded=4, guarded=0)
    # A method that the guard does not cover is not covered.
    counted.request("PUT", "/x")
    counted.request("GET", "/x", None)
    wait_counted(counted, "/", unguarded=1, guarded=0)
    assert counters(counted)["/open"]["mode"] == "off"


def test_a_key_that_was_not_sent_is_visible(counted):
    # C06, C37
    counted.post(path="/maybe")
    counted.post(path="/maybe")
    counted.post(new_key(), path="/maybe")
    wait_counted(counted, "/maybe", passed=2, new=1)


def test_every_verdict_and_outcome_is_counted(counted, app):
    # C37, C43
    def one_of_each(path):
        for status, times in ((201, 2), (500, 2), (502, 2)):
            key = new_key()
            for _ in range(times):
                counted.post(key, path=path, headers=tell(status=status))
                if path == "/seen":
                    until(lambda: counted.state(key, scope="POST /seen")
                          not in (None, "in_progress"))
        key = new_key()
        counted.post(key, b"1", path)
        counted.post(key, b"2", path)
        counted.post("a b", path=path)
        counted.post(new_key(), path=path, tenant=None)

    one_of_each("/")
    wait_counted(counted, "/", new=5, replay=1, uncertain=1, mismatch=1,
                 key_invalid=1, tenant_missing=1, guarded=10, unguarded=0)
    outcomes = counters(counted)["/"]["outcomes"]
    assert {name: n for name, n in outcomes.items() if n} == {
        "kept": 2, "released": 2, "doubted": 1}
    one_of_each("/seen")
    wait_counted(counted, "/seen", new=5, replay=1, uncertain=1, mismatch=1,
                 key_invalid=1, tenant_missing=1, observed=10, guarded=0)


def test_all_workers_count_together_and_a_reload_keeps_the_counts(
        make_gateway):
    # C37
    gateway = make_gateway(workers=3, reuseport=True,
                           locations=COUNTERS + guard("/"))
    for _ in range(60):
        gateway.post(new_key())
    wait_counted(gateway, "/", new=60)
    assert len({entry["pid"] for entry in gateway.access()}) > 1
    gateway.reload(locations=COUNTERS + guard("/a") + OPEN + guard("/"))
    gateway.post(new_key())
    gateway.post(new_key(), path="/a")
    wait_counted(gateway, "/", new=61)
    wait_counted(gateway, "/a", new=1)


SAMPLE = re.compile(
    r'^([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})?'
    r' (\d+)$')


def test_the_counters_have_a_form_for_prometheus(make_gateway):
    # C34, C37
    gateway = make_gateway(locations=COUNTERS + guard("/") + guard(
        '~ "^/q\\"[a-z]{2}"'))
    gateway.post(new_key())
    wait_counted(gateway, "/", new=1)
    answer = gateway.request("GET", "/counters?format=prometheus", None)
    assert answer.header("Content-Type").startswith("text/plain")
    samples = collections.defaultdict(list)
    types = {}
    for line in answer.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif not line.startswith("#"):
            found = SAMPLE.match(line)
            assert found, line
            samples[found.group(1)].append((found.group(2),
                                            int(found.group(3))))
    assert set(samples) <= set(types)
    new = [number for labels, number
           in samples["latchkey_gateway_requests_total"]
           if 'verdict="new"' in labels and 'location="/"' in labels]
    assert new == [1]
