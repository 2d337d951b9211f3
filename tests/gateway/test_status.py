"""Callers look up their own operations, and nobody else's."""

import re
import urllib.parse

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key

STATUS = """
location = /operations {
    idempotency_tenant $http_x_api_key;
    idempotency_status%s;
}
"""


def with_status(make_gateway, options="", **more):
    return make_gateway(locations=guard() + STATUS % options, **more)


@pytest.fixture
def asked(make_gateway):
    return with_status(make_gateway)


def look(gateway, tenant="acme", method="GET", **query):
    return gateway.request(
        method, "/operations?" + urllib.parse.urlencode(query), None,
        tenant=tenant)


def test_an_operation_is_found_by_reference_and_by_key(asked, app):
    # C18
    key = new_key()
    first = asked.post(key, headers=tell(status=402))
    for query in ({"reference": first.reference},
                  {"reference": first.reference.lower().replace("-", "")},
                  {"key": key, "scope": "POST /"},
                  {"key": '"%s"' % key, "scope": "POST /"}):
        answer = look(asked, **query)
        assert answer.status == 200, query
        assert answer.header("Content-Type") == "application/json"
        shown = answer.json()
        assert shown["state"] == "completed" and shown["status"] == 402
        assert shown["reference"] == first.reference
        assert shown["attempt"] == 1
        for name in ("claimed", "completed", "expires"):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*Z",
                                shown[name])
    assert app.count() == 1


def test_nothing_of_the_request_or_the_answer_is_shown(asked):
    # C18
    key = new_key()
    first = asked.post(key, b"hush-request", headers=tell(
        body="hush-answer", headers=[["Location", "/hush"]]))
    answer = look(asked, reference=first.reference)
    assert answer.status == 200
    assert b"hush" not in answer.body
    assert "token" not in answer.json() and "fingerprint" not in answer.json()


def test_running_and_open_operations_are_told_apart(asked, app):
    # C18
    key, lost = new_key(), new_key()
    future = asked.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    assert look(asked, key=key, scope="POST /").json()["state"] == \
        "in_progress"
    app.release("run")
    assert future.result().status == 201
    asked.post(lost, headers=tell(reset=True))
    shown = look(asked, key=lost, scope="POST /").json()
    assert shown["state"] == "uncertain"


def test_what_belongs_to_another_tenant_looks_like_what_is_not_there(asked):
    # C13, C18
    key = new_key()
    first = asked.post(key)
    nobodys = "".join("0" if c.isalnum() else c for c in first.reference)
    answers = [
        look(asked, "globex", reference=first.reference),
        look(asked, "globex", key=key, scope="POST /"),
        look(asked, "acme", key="no-such-key", scope="POST /"),
        look(asked, "acme", key=key, scope="POST /other"),
        look(asked, "acme", reference=nobodys),
    ]
    shown = {(a.status, a.body, tuple(name for name, _ in a.headers))
             for a in answers}
    assert len(shown) == 1, shown
    assert answers[0].status == 404
    assert first.reference.encode() not in answers[0].body


@pytest.mark.parametrize("query", [
    {}, {"reference": ""}, {"reference": "nonsense!"}, {"key": "a"},
    {"scope": "POST /"}, {"key": "a b", "scope": "POST /"},
    {"key": "", "scope": "POST /"}])
def test_a_question_that_cannot_be_understood_is_400(asked, query):
    # C18
    answer = look(asked, **query)
    assert answer.status in (400, 404), query
    assert answer.header("Content-Type") == "application/problem+json"
    if query != {"reference": "nonsense!"}:
        assert answer.status == 400 and answer.json()["detail"]


def test_who_has_no_name_gets_no_answer(asked):
    # C15
    key = new_key()
    first = asked.post(key)
    for tenant in (None, ""):
        answer = look(asked, tenant, reference=first.reference)
        assert (answer.status, answer.problem) == (400, "tenant-missing")


def test_only_reading_is_allowed(asked):
    # C18
    assert look(asked, method="HEAD", reference="0000-0000-0000").status == \
        404
    for method in ("POST", "PUT", "DELETE"):
        answer = look(asked, method=method, reference="0000-0000-0000")
        assert answer.status == 405


def test_a_caller_who_guesses_is_slowed_down_and_others_are_not(make_gateway):
    # C18
    gateway = with_status(make_gateway, " rate=1r/s burst=3")
    answers = [look(gateway, "guesser", reference="0000-0000-0000")
               for _ in range(30)]
    statuses = [answer.status for answer in answers]
    assert statuses[0] == 404
    assert statuses.count(429) >= 20
    limited = answers[statuses.index(429)]
    assert limited.problem == "limited"
    assert int(limited.header("Retry-After")) >= 1
    assert look(gateway, "other", reference="0000-0000-0000").status == 404


def test_without_a_daemon_the_answer_is_503(make_gateway, make_daemon):
    # C19
    gateway = with_status(make_gateway, daemon=make_daemon(start=False))
    answer = look(gateway, reference="0000-0000-0000")
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert int(answer.header("Retry-After")) >= 1


def test_a_hashed_tenant_finds_its_own(make_gateway):
    # C18
    gateway = make_gateway(
        start=False, http="idempotency_secret @FOLDER@/secret;",
        server="idempotency_tenant $http_x_api_key hashed;",
        locations=guard(tenant=None)
        + "location = /operations { idempotency_status; }")
    (gateway.folder / "secret").write_text("0123456789abcdef")
    gateway.start()
    first = gateway.post(new_key())
    assert look(gateway, reference=first.reference).status == 200
    assert look(gateway, "globex", reference=first.reference).status == 404
