"""Requests that say when they were made: old ones start nothing."""

import email.utils
import time
import uuid

import pytest

from support.gateway import guard
from support.life import new_key

AGED = guard("/", "idempotency_max_age $http_x_sent 5m;")


def rfc3339(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


FORMS = {
    "seconds": lambda at: str(int(at)),
    "decimal": lambda at: "%.6f" % at,
    "milliseconds": lambda at: str(int(at * 1000)),
    "rfc3339": rfc3339,
    "http": lambda at: email.utils.formatdate(at, usegmt=True),
}


@pytest.fixture
def aged(make_gateway):
    return make_gateway(locations=AGED)


def sent(at, form="seconds"):
    return {"X-Sent": FORMS[form](at)}


@pytest.mark.parametrize("form", FORMS)
def test_an_old_request_starts_nothing(aged, app, form):
    # C39
    now = time.time()
    key = new_key()
    old = aged.post(key, headers=sent(now - 400, form))
    assert (old.status, old.problem) == (400, "too-old")
    assert old.json()["detail"] and app.count() == 0
    assert aged.record(key) is None
    fresh = aged.post(key, headers=sent(now - 200, form))
    assert fresh.status == 201 and app.count() == 1
    aged.logged(key=key, verdict="too_old", status=400)


def test_an_old_retry_gets_the_stored_answer(aged, app):
    # C39
    now = time.time()
    key = new_key()
    first = aged.post(key, headers=sent(now))
    again = aged.post(key, headers=sent(now - 4000))
    assert again.replayed and again.body == first.body
    # And is told of a reused key or an open outcome as any other.
    assert aged.post(key, b"other", headers=sent(now - 4000)).problem == \
        "key-reused"
    assert app.count() == 1


@pytest.mark.parametrize("value", [None, "", "yesterday", "-5", "12",
                                   "99999999999999999999"])
def test_a_request_without_a_time_that_can_be_read_starts_nothing(aged, app,
                                                                  value):
    # C39
    headers = {} if value is None else {"X-Sent": value}
    answer = aged.post(new_key(), headers=headers)
    assert (answer.status, answer.problem) == (400, "too-old")
    assert answer.json()["detail"] and app.count() == 0


def test_a_request_of_the_future_starts_nothing_beyond_the_skew(make_gateway,
                                                                app):
    # C39
    gateway = make_gateway(locations=guard(
        "/", "idempotency_max_age $http_x_sent 5m skew=60s;"))
    now = time.time()
    assert gateway.post("a", headers=sent(now + 300)).problem == "too-old"
    assert gateway.post("a", headers=sent(now + 30)).status == 201
    assert app.count() == 1


def uuid7(at):
    """A UUID of version 7 with this time in it."""
    number = int(at * 1000) << 80 | uuid.uuid4().int & (1 << 80) - 1
    number = number & ~(0xf << 76) | 7 << 76
    number = number & ~(3 << 62) | 2 << 62
    return str(uuid.UUID(int=number))


def test_the_time_may_be_in_the_key(make_gateway, app):
    # C39
    gateway = make_gateway(locations=guard(
        "/", "idempotency_max_age uuidv7 5m;"))
    now = time.time()
    assert gateway.post(uuid7(now - 4000)).problem == "too-old"
    assert gateway.post(str(uuid.uuid4())).problem == "too-old"
    assert gateway.post("abc").problem == "too-old"
    assert app.count() == 0
    key = uuid7(now - 100)
    assert gateway.post(key).status == 201
    assert gateway.post('"%s"' % key.upper()).status == 201
    assert gateway.post(key).replayed


def test_the_age_is_inherited_and_can_be_switched_off(make_gateway, app):
    # C39
    gateway = make_gateway(
        server="idempotency_max_age $http_x_sent 5m;",
        locations=guard("/") + guard("/any", "idempotency_max_age off;"))
    assert gateway.post(new_key()).problem == "too-old"
    assert gateway.post(new_key(), path="/any").status == 201
    assert app.count() == 1


def test_the_limits_are_told_and_the_value_is_not(aged):
    # C39
    now = time.time()
    old = aged.post(new_key(), headers=sent(now - 4000)).json()["detail"]
    assert "300 seconds" in old
    ahead = aged.post(new_key(), headers=sent(now + 4000)).json()["detail"]
    assert "ahead" in ahead and "30 seconds" in ahead
    strange = aged.post(new_key(), headers={"X-Sent": "<script>"})
    assert b"script" not in strange.body
