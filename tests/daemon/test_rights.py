"""Who may see and do what: bodies, and the records of who looked (C36)."""

import pytest

from support import stores
from support.life import begin, finish, name, new_key
from support.resp import Error, fields

WHO = ("WHO", "ann", "WHY", "ticket 7")
# A password for apps: whoever is a reader or an operator is no more than that.
CLOSED = ["auth.password=app-secret"]


def open_store(request, which):
    """The settings and the URL of a store of that kind."""
    if which == "postgres":
        return [], stores.make_postgres(request.getfixturevalue("postgres"))
    if which == "redis":
        return (["store.prefix=" + stores.make_prefix()],
                request.getfixturevalue("redis_server").url())
    return [], None


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def guarded(request, make_daemon):
    settings, url = open_store(request, request.param)
    return make_daemon(settings=[*CLOSED, *settings], url=url)


def app(daemon):
    client = daemon.raw()
    assert client("AUTH", "app-secret") == "OK"
    return client


def looks(operator):
    return [entry for entry in map(fields, operator("AUDIT"))
            if b"look" in entry["action"]]


# ---- bodies -----------------------------------------------------------------

def test_a_stored_answer_is_shown_to_apps_and_to_operators_who_say_why(
        guarded):
    key = new_key()
    client, operator = app(guarded), guarded.raw(user="operator")
    finish(client, key, headers=b"X-Secret: s\r\n", body=b"a card number")
    record = fields(client("LOOKUP", *name(key)))
    assert record["body"] == b"a card number"
    find = ("FIND", "acme", record["reference"])
    alone = ("FIND", record["reference"])
    for user in ("reader", "operator"):
        seen = guarded.raw(user=user)
        for words in (("LOOKUP", *name(key)), find, alone):
            shown = fields(seen(*words))
            assert not {"headers", "body"} & set(shown), shown
            assert (shown["headers-bytes"], shown["body-bytes"]) == (13, 13)
            assert shown["status"] == 201 and shown["state"] == b"completed"
    assert looks(operator) == []
    for words in (("LOOKUP", *name(key)), find, alone):
        shown = fields(operator(*words, "BODY", *WHO))
        assert (shown["headers"], shown["body"]) == (b"X-Secret: s\r\n",
                                                     b"a card number")
    entries = looks(operator)
    assert len(entries) == 3
    for entry in entries:
        assert entry["who"] == b"operator/ann" and entry["why"] == b"ticket 7"
        assert (entry["tenant"], entry["scope"], entry["key"]) == tuple(
            part.encode() for part in name(key))


def test_a_body_is_not_for_readers_and_not_without_a_reason(make_daemon):
    daemon = make_daemon(settings=CLOSED)
    key = new_key()
    finish(app(daemon), key)
    for user in ("reader", None):
        client = daemon.raw(user=user) if user else app(daemon)
        reply = client("LOOKUP", *name(key), "BODY", *WHO)
        assert isinstance(reply, Error) and reply.code == "NOPERM", reply
        assert "operate" in reply
    operator = daemon.raw(user="operator")
    for words in (["BODY"], ["BODY", *WHO[:2]], ["BODY", *WHO[2:]], WHO):
        assert isinstance(operator("LOOKUP", *name(key), *words), Error), words
    assert looks(operator) == []


def test_what_has_no_body_leaves_no_entry(make_daemon):
    daemon = make_daemon(settings=CLOSED)
    operator, key = daemon.raw(user="operator"), new_key()
    begin(app(daemon), key)
    assert fields(operator("LOOKUP", *name(key), "BODY",
                           *WHO))["state"] == b"in_progress"
    assert operator("LOOKUP", *name("none"), "BODY", *WHO) is None
    assert looks(operator) == []


def test_a_look_that_cannot_be_noted_shows_nothing(faulty):
    daemon = faulty(settings=CLOSED)
    operator, key = daemon.raw(user="operator"), new_key()
    finish(app(daemon), key, body=b"a card number")
    daemon.set_faults("fail sync EIO wal forever")
    reply = operator("LOOKUP", *name(key), "BODY", *WHO)
    assert isinstance(reply, Error) and reply.code == "UNAVAILABLE", reply
    assert "audit log" in reply


@pytest.fixture(params=["sqlite", "postgres"])
def holding(request, make_daemon):
    """A daemon that keeps jobs and delivers none, whoever may use it."""
    settings, url = open_store(request, request.param)
    return make_daemon(url=url, settings=[
        *settings, "courier.enabled=no", "target.pay.url=http://127.0.0.1:1"])


def test_jobs_are_shown_with_bodies_to_operators_who_say_why(holding):
    raw, operator = holding.raw(), holding.raw(user="operator")
    key = new_key()
    token = begin(raw, key)
    for job in ("one", "two"):
        assert raw("ENQUEUE", *name(key), token, job, "pay", "/x", "HEADERS",
                   "X-A: b\r\n", "BODY", "a card number") == "OK"
    sizes = (8, 13, 0, 0)
    names = ("headers", "body", "answer-headers", "answer-body")
    for user in ("reader", "operator"):
        seen = holding.raw(user=user)
        rows = [fields(row) for row in seen("JOBS", "WHOLE")[1]]
        rows.append(fields(seen("JOB", "SHOW", rows[0]["id"])))
        for row in rows:
            assert not set(names) & set(row), row
            assert tuple(row[part + "-bytes"] for part in names) == sizes
    first, second = rows[0]["id"], rows[1]["id"]
    reader = holding.raw(user="reader")
    for words in (("JOBS", "WHOLE", *WHO), ("JOB", "SHOW", first, "BODY",
                                            *WHO)):
        assert reader(*words).code == "NOPERM"
    assert looks(operator) == []
    assert [fields(row)["body"] for row in
            operator("JOBS", "WHOLE", *WHO)[1]] == [b"a card number"] * 2
    assert fields(operator("JOB", "SHOW", first, "BODY",
                           *WHO))["body"] == b"a card number"
    page, one = looks(operator)
    assert page["action"] == b"look jobs %d to %d" % (first, second)
    assert (one["action"], one["token"], one["key"]) == (
        b"job look", first, key.encode())
    assert isinstance(operator("JOBS", *WHO), Error)
