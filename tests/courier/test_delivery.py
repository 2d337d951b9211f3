"""Jobs reach their target: what is sent, what is kept of the answer."""

import base64
import hashlib
import hmac
import json
import re
import time

import pytest

from support.life import begin, claim, complete, new_key, until, verdict
from support.outbox import SCOPE
from support.provider import charge


# ---- one delivery ----

def test_the_provider_s_id_and_answer_are_kept_with_the_job(box, provider):
    # C28
    box.target("pay", provider).start()
    key = box.leave(charge("cus_7", 1250))
    job = box.bodies(box.wait_job(key))
    made, = provider.charges()
    assert made["customer"] == "cus_7" and made["amount"] == 1250
    assert job["provider-id"] == made["id"]
    assert job["status"] == 201 and job["attempts"] == 1
    assert json.loads(job["answer-body"]) == made
    assert "provider-id: " + made["id"] in job["answer-headers"].lower()
    assert made["key"] == job["downstream-key"]
    assert job["target"] == "pay" and job["path"] == "/v1/charges"
    assert job["reference"] and job["tenant"] == "acme"


def test_the_provider_s_id_may_stand_in_a_header(box, provider):
    # C28
    box.target("pay", provider, id="header:Provider-Id").start()
    job = box.wait_job(box.leave(charge()))
    assert job["provider-id"] == provider.charges()[0]["id"]


def test_an_answer_without_an_id_is_delivered_all_the_same(box, provider):
    box.target("pay", provider, id="json:/no/such/member").start()
    job = box.wait_job(box.leave(charge()))
    assert not job["provider-id"] and job["status"] == 201


def test_the_request_is_what_the_job_said_and_no_more(box, app, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    box.target("hook", "http://%s/base" % app.address,
               header=["Authorization: Bearer ${file:%s}" % secret,
                       "X-Fixed: target"], id="json:/call").start()
    key = box.leave(b"\x00\xffbytes", target="hook", path="/in?x=1&y=%2F",
                    method="PUT",
                    headers="Content-Type: application/octet-stream\r\n"
                            "X-Fixed: job\r\nX-Mine: yes\r\n")
    job = box.wait_job(key)
    call, = app.calls
    assert (call.method, call.target) == ("PUT", "/base/in?x=1&y=%2F")
    assert call.body == b"\x00\xffbytes"
    assert call.headers.all("Content-Type") == ["application/octet-stream"]
    assert call.headers.all("X-Fixed") == ["target"]
    assert call.headers.all("X-Mine") == ["yes"]
    assert call.headers.all("Authorization") == ["Bearer s3cret"]
    assert call.headers.all("Idempotency-Key") == [job["downstream-key"]]
    assert call.header("User-Agent").startswith("latchkey/")
    for name in ("Expect", "Cookie", "Latchkey-Token", "Latchkey-Tenant",
                 "Accept-Encoding"):
        assert call.header(name) is None, name
    assert "s3cret" not in box.daemon.log_text()
    for reply in (box.operator("CONFIG", "GET", "*"),
                  box.operator("TARGET", "STATUS"), box.operator("INFO")):
        assert b"s3cret" not in repr(reply).encode()


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "POST"])
@pytest.mark.stores("sqlite")
def test_every_method_arrives_with_and_without_a_body(box, app, method):
    box.target("hook", "http://" + app.address, id="json:/call").start()
    for body in (b"", b'{"a":1}'):
        box.wait_job(box.leave(body, target="hook", path="/x", method=method))
        assert (app.last.method, app.last.body) == (method, body)


def test_a_webhook_is_signed_so_that_its_receiver_can_check_it(box, app):
    key = base64.b64encode(b"thirty-two bytes of a secret key").decode()
    box.target("hook", "http://" + app.address, sign="whsec_" + key).start()
    box.wait_job(box.leave(b'{"paid":true}', target="hook", path="/hook"))
    call, = app.calls
    number, at = call.header("webhook-id"), call.header("webhook-timestamp")
    assert number and abs(int(at) - time.time()) < 3600
    signed = b"%s.%s.%s" % (number.encode(), at.encode(), call.body)
    expected = base64.b64encode(hmac.new(base64.b64decode(key), signed,
                                         hashlib.sha256).digest()).decode()
    assert "v1," + expected in call.header("webhook-signature").split(" ")


def test_a_target_may_be_a_unix_socket(box, app, tmp_path):
    place = app.listen_at("http", box.make_daemon(start=False).folder / "app")
    box.target("hook", place, id="json:/call").start()
    box.wait_job(box.leave(b"{}", target="hook", path="/x"))
    assert app.last.target == "/x"


# ---- keys ----

def test_every_attempt_brings_the_same_key_and_the_provider_acts_once(
        box, provider):
    # C28
    box.target("pay", provider).start()
    key = box.leave(charge("c", 1, drop="after", times=2))
    job = box.wait_job(key)
    assert [call["key"] for call in provider.calls()] == \
        [job["downstream-key"]] * 3
    assert [call["did"] for call in provider.calls()] == \
        ["charged", "replayed", "replayed"]
    assert job["attempts"] == 3 and len(provider.charges()) == 1
    assert [one["number"] for one in job["history"]] == [1, 2, 3]
    assert [one["status"] for one in job["history"]] == [0, 0, 201]
    assert all(one["called"] for one in job["history"])


def test_keys_differ_between_tenants_scopes_operations_and_names(box,
                                                                 provider):
    # C28, C13
    box.target("pay", provider).start()
    places = [("a", "s", "k", "n"), ("b", "s", "k", "n"), ("a", "t", "k", "n"),
              ("a", "s", "l", "n"), ("a", "s", "k", "m"),
              ("a", "s", "kn", ""), ("as", "", "k", "n")]
    for tenant, scope, key, name in places:
        place = {"tenant": tenant, "scope": scope or "x"}
        reply = claim(box.raw, key, **place)
        if verdict(reply) == "REPLAY":
            continue
        token = reply[1]
        for one in {row[3] or "n" for row in places if row[:3] == (
                tenant, scope, key)}:
            assert box.enqueue(key, token, one, body=charge(), **place) == "OK"
        complete(box.raw, key, token, **place)
    jobs = box.wait_settled() and box.jobs()
    assert len(jobs) == len(places)
    assert len({job["downstream-key"] for job in jobs}) == len(places)
    assert {line["key"] for line in provider.charges()} == \
        {job["downstream-key"] for job in jobs}
    for job in jobs:
        assert re.fullmatch("[0-9a-f]{32}", job["downstream-key"])


def test_a_key_that_is_used_anew_after_its_end_is_another_one_downstream(
        box, provider):
    # C28: another generation
    box.target("pay", provider).start()
    key = box.leave(charge(), options=("TTL", 1))
    provider.wait_calls(1)

    def again():
        reply = claim(box.raw, key)
        return reply[1] if verdict(reply) == "NEW" else None
    token = until(again)
    assert box.enqueue(key, token, body=charge()) == "OK"
    complete(box.raw, key, token)
    provider.wait_calls(2)
    first, second = (line["key"] for line in provider.charges())
    assert first != second


def test_after_an_eviction_the_same_name_is_another_job(box, provider):
    # C28
    box.target("pay", provider).start()
    key = box.leave(charge())
    box.wait_job(key)
    reply = box.operator("EVICT", "acme", SCOPE, key, "WHO", "op", "WHY", "t")
    assert reply == "OK", reply
    token = begin(box.raw, key)
    assert box.enqueue(key, token, body=charge()) == "OK"
    complete(box.raw, key, token)
    provider.wait_calls(2)
    first, second = (line["key"] for line in provider.charges())
    assert first != second


def test_a_run_again_after_a_release_leaves_the_same_job_once(box, provider):
    # C28
    provider.control(hang="before")
    box.target("pay", provider).start()
    key = new_key()
    token = begin(box.raw, key)
    assert box.enqueue(key, token, body=charge()) == "OK"
    assert box.enqueue(key, token, body=charge()) == "EXISTS"
    assert box.raw("RELEASE", "acme", SCOPE, key, token) == "OK"
    token = begin(box.raw, key)
    assert box.enqueue(key, token, body=charge()) == "EXISTS"
    complete(box.raw, key, token)
    provider.wait_in_flight(1)
    provider.control()
    provider.release()
    box.wait_job(key)
    assert len(provider.charges()) == 1 and len(box.jobs()) == 1


# ---- several, later, not at all ----

def test_an_operation_may_leave_several_jobs_for_several_targets(
        box, make_provider):
    one, two = make_provider(), make_provider()
    box.target("pay", one).target("mail", two).start()
    key = new_key()
    token = begin(box.raw, key)
    for number in range(5):
        for target in ("pay", "mail"):
            assert box.enqueue(key, token, "%s-%d" % (target, number), target,
                               body=charge("n%d" % number)) == "OK"
    complete(box.raw, key, token)
    box.wait_settled()
    for provider in (one, two):
        assert sorted(line["customer"] for line in provider.charges()) == \
            ["n%d" % number for number in range(5)]
    assert box.states() == {"delivered": 10}


def test_a_stale_token_leaves_nothing(box, provider):
    box.target("pay", provider).start()
    key = new_key()
    token = begin(box.raw, key)
    assert box.enqueue(key, token + 1, body=charge()) == "STALE"
    complete(box.raw, key, token)
    assert verdict(box.enqueue(key, token, body=charge())) == "KEPT"
    box.wait_job(box.leave(charge("last")))
    assert [line["customer"] for line in provider.charges()] == ["last"]


def test_an_unknown_target_is_refused_and_the_known_ones_are_named(
        box, provider):
    box.target("pay", provider).start()
    key = new_key()
    token = begin(box.raw, key)
    reply = box.enqueue(key, token, target="nowhere", body=charge())
    assert reply.startswith("ERR") and "pay" in reply, reply
    assert box.jobs() == []


def test_a_delayed_job_goes_behind_one_that_came_after_it(box, provider):
    box.target("pay", provider).start()
    later = box.leave(charge("later"), delay=700)
    sooner = box.leave(charge("sooner"))
    box.wait_job(sooner)
    assert box.job_of(later)["state"] == "waiting"
    box.wait_job(later)
    assert [line["customer"] for line in provider.charges()] == \
        ["sooner", "later"]


def test_jobs_that_wait_outlive_a_restart_and_a_kill(box, provider):
    # C20
    box.target("pay", provider).start("courier.enabled=no")
    keys = box.leave_many(50, lambda key: charge(key))
    assert box.states() == {"waiting": 50}
    box.daemon.kill()
    box.daemon.settings.remove("courier.enabled=no")
    box.daemon.start()
    box.reconnect()
    box.wait_settled()
    assert sorted(line["customer"] for line in provider.charges()) == \
        sorted(keys)


def test_an_operation_with_an_unfinished_job_is_not_forgotten(box, provider):
    # C29: its reference and its answer are there as long as its jobs are.
    provider.control(fail=400)
    box.target("pay", provider).start()
    key = box.leave(charge(), options=("TTL", 1))
    job = box.wait_job(key, "dead")
    other = box.leave(b"", target="pay", path="/v1/ledger", method="GET",
                      options=("TTL", 1), name="look")
    until(lambda: box.raw("LOOKUP", "acme", SCOPE, other) is None)
    assert box.raw("LOOKUP", "acme", SCOPE, key) is not None
    assert verdict(claim(box.raw, key)) == "REPLAY"
    assert box.order("DROP", job) == "OK"
    until(lambda: box.raw("LOOKUP", "acme", SCOPE, key) is None)
