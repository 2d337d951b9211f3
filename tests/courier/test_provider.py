"""The provider of examples/payments does what the other tests believe of it.
"""

import http.client
import json
import socket

import pytest

from support.provider import charge


def pay(provider, key="k1", **manner):
    """(status, body) of one charge; None: there was no answer."""
    try:
        status, _, body = provider.ask(
            "POST", "/v1/charges", charge("cus_1", 4200, **manner),
            {"Idempotency-Key": key})
    except (http.client.HTTPException, OSError):
        return None
    return status, body


def test_a_key_that_is_honoured_is_one_charge(provider):
    first = pay(provider)
    assert first[0] == 201 and pay(provider) == first
    assert pay(provider, "k2")[1]["id"] != first[1]["id"]
    assert len(provider.charges()) == 2
    status, _, body = provider.ask("POST", "/v1/charges", charge("cus_2"),
                                   {"Idempotency-Key": "k1"})
    assert status == 409 and "another" in body["error"]


def test_a_key_that_is_not_honoured_is_a_charge_each_time(make_provider):
    provider = make_provider(honours=False)
    assert pay(provider)[1]["id"] != pay(provider)[1]["id"]
    found = provider.ask("GET", "/v1/charges?idempotency_key=k1")[2]["data"]
    assert [line["id"] for line in found] == ["ch_000001", "ch_000002"]


@pytest.mark.parametrize("honours", [True, False])
def test_what_was_answered_outlives_kill_9(make_provider, honours):
    provider = make_provider(honours=honours)
    made = [pay(provider, "k%d" % number)[1] for number in range(5)]
    provider.kill()
    provider.start()
    assert provider.ask("GET", "/v1/charges")[2]["data"] == made
    assert (pay(provider, "k3")[1] == made[3]) == honours
    assert len(provider.charges()) == (5 if honours else 6)


@pytest.mark.parametrize("manner,acts", [
    ({"drop": "after"}, True), ({"drop": "before"}, False),
    ({"die": "after"}, True), ({"die": "before"}, False),
    ({"cut": 1}, True), ({"garbage": 1}, True)])
def test_an_answer_is_lost_before_or_after_the_act(provider, manner, acts):
    assert pay(provider, **manner) is None
    if "die" in manner:
        provider.wait_dead()
        provider.start()
    assert len(provider.charges()) == acts
    assert pay(provider)[0] == 201
    assert len(provider.charges()) == 1


def test_what_hangs_is_answered_when_it_is_released(provider):
    with socket.create_connection(("127.0.0.1", provider.port)) as sock:
        body = charge(hang="after")
        sock.sendall(b"POST /v1/charges HTTP/1.1\r\nIdempotency-Key: k\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        provider.wait_in_flight(1)
        assert len(provider.charges()) == 1
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        sock.settimeout(20)
        provider.release()
        assert sock.recv(65536).startswith(b"HTTP/1.1 201")
    assert provider.status()["most_in_flight"] == 1


def test_a_manner_holds_for_the_next_calls_or_the_first_of_a_key(provider):
    provider.control(fail=503, next=2, retry_after="7")
    assert [pay(provider, "a")[0] for _ in range(3)] == [503, 503, 201]
    provider.control(fail=500, times=1)
    assert [pay(provider, key)[0] for key in "bbcc"] == [500, 201, 500, 201]
    assert [call["did"] for call in provider.calls()] == [
        "failed", "failed", "charged", "failed", "charged", "failed",
        "charged"]


def test_chance_comes_from_the_seed(make_provider):
    def story(seed):
        provider = make_provider(seed=seed, manner={
            "drop_before": 20, "drop_after": 20, "fail_503": 20})
        answers = [pay(provider, "k%d" % number) for number in range(40)]
        return [answer and answer[0] for answer in answers]

    first = story(1)
    assert first == story(1) and first != story(2)
    assert {None, 201, 503} <= set(first)


def test_the_export_is_the_ledger(provider):
    for number in range(3):
        pay(provider, "k%d" % number)
    _, headers, text = provider.ask("GET", "/v1/charges.jsonl")
    assert [json.loads(line) for line in text.splitlines()] == \
        provider.charges()
    _, headers, text = provider.ask("GET", "/v1/charges.csv")
    lines = text.decode().splitlines()
    assert headers["Content-Type"] == "text/csv" and len(lines) == 4
    assert lines[0] == "id,amount,currency,customer,idempotency_key,created"
    assert [line.split(",")[4] for line in lines[1:]] == ["k0", "k1", "k2"]


def test_a_key_is_found_or_it_is_not(provider):
    made = pay(provider)[1]
    assert provider.ask("GET", "/v1/keys/k1")[::2] == (200, made)
    assert provider.ask("GET", "/v1/keys/other")[0] == 404
    assert provider.ask("GET", "/v1/charges/" + made["id"])[::2] == (200, made)
    pay(provider, "k9", drop="before")
    assert provider.ask("GET", "/v1/keys/k9")[0] == 404


def test_whoever_has_no_token_is_refused(make_provider):
    provider = make_provider(token="t0p")
    assert pay(provider)[0] == 401 and not provider.charges()
    status, _, _ = provider.ask("POST", "/v1/charges", charge(), {
        "Idempotency-Key": "k", "Authorization": "Bearer t0p"})
    assert status == 201
