"""Observe: everything is as without it, and what would have been is logged."""

import signal

import pytest

from support.app import pattern, tell
from support.gateway import guard
from support.life import new_key, until

OBSERVE = guard(mode="observe")
OPEN = "location / { proxy_pass http://@APP@; }"
ASKED = [
    {}, {"bytes": 200000}, {"bytes": 3000000}, {"status": 204},
    {"status": 500}, {"status": 502}, {"bytes": 300, "chunked": True},
    {"status": 404, "headers": [["Set-Cookie", "a=b"], ["X-Thing", "7"]],
     "body": "x"},
]


@pytest.fixture
def observed(make_gateway):
    return make_gateway(locations=OBSERVE)


def shown(answer):
    headers = [pair for pair in answer.headers if pair[0] != "Date"]
    return answer.status, answer.reason, headers, answer.complete


def told(app):
    """What the app got, without the connection's own."""
    call = app.last
    return (call.method, call.target, call.version, call.body,
            [pair for pair in call.headers if pair[0] != "Host"])


def test_answers_and_requests_are_those_of_a_gateway_without_a_guard(
        observed, make_gateway, app):
    # C43
    plain = make_gateway(locations=OPEN)
    headers = {"X-Tenant": "mine", "Content-Type": "text/plain"}
    for number, manner in enumerate(ASKED):
        for key in (new_key(), None, "a b"):
            asked = dict(headers, **tell(**manner))
            answers = [gateway.post(key, b"body", "/?x=%d" % number,
                                    headers=asked)
                       for gateway in (plain, observed)]
            calls = [app.calls[-2], app.calls[-1]]
            assert shown(answers[0]) == shown(answers[1]), manner
            assert "body" in manner or "bytes" not in manner or \
                answers[0].body == answers[1].body
            assert calls[0].body == calls[1].body == b"body"
            assert calls[0].headers == calls[1].headers
            assert calls[0].target == calls[1].target


def test_what_is_not_http_passes_as_it_is(make_gateway, app):
    # C43
    gateway = make_gateway(locations=guard("/seen", mode="observe") +
                           "location /open { proxy_pass http://@APP@; }")
    sent = b"\0garbage\r\n\r\n"
    for path in ("/open", "/seen"):
        key = new_key()
        connection = gateway.leave(path, key=key, headers=tell(garbage=True))
        assert connection.stream.exactly(len(sent)) == sent
    gateway.wait_state(key, "uncertain", scope="POST /seen")


def test_each_retry_reaches_the_app_and_the_log_says_replay(observed, app):
    # C43
    key = new_key()
    for number in (1, 2, 3):
        answer = observed.post(key)
        assert answer.status == 201 and answer.json()["call"] == number
        assert "Idempotent-Replayed" not in answer.headers
        if number == 1:
            observed.wait_state(key, "completed")
    assert app.count() == 3
    observed.logged(1, key=key, verdict="new")
    observed.logged(2, key=key, verdict="replay", status=201)


@pytest.mark.parametrize("verdict,first,second", [
    ("mismatch", {"body": b"1"}, {"body": b"2"}),
    ("uncertain", {"headers": tell(status=502)}, {}),
    ("omitted", {"headers": tell(bytes=1100000)}, {}),
    ("new", {"headers": tell(status=500)}, {}),
])
def test_what_would_have_been_answered_is_in_the_log(observed, app, verdict,
                                                     first, second):
    # C43
    key = new_key()
    observed.post(key, **first)
    until(lambda: observed.state(key) not in (None, "in_progress"))
    assert observed.post(key, **second).status == 201
    assert app.count() == 2
    observed.logged(2 if verdict == "new" else 1, key=key, verdict=verdict)


def test_a_running_request_does_not_stop_another(observed, app):
    # C43
    key = new_key()
    first = observed.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    second = observed.post(key)
    assert second.status == 201 and second.json()["call"] == 2
    app.release("run")
    assert first.result().json()["call"] == 1
    observed.logged(key=key, verdict="inflight", status=201)


def test_bad_and_missing_keys_and_tenants_pass_and_are_logged(observed, app):
    # C43
    assert observed.post().status == 201
    assert observed.post("a b").status == 201
    assert observed.post("key", tenant=None).status == 201
    assert observed.post(headers=[("Idempotency-Key", "a"),
                                  ("Idempotency-Key", "b")]).status == 201
    assert app.count() == 4
    observed.logged(verdict="passed")
    observed.logged(2, verdict="key_invalid")
    observed.logged(verdict="tenant_missing")


def test_without_a_daemon_everything_passes(make_gateway, make_daemon, app):
    # C43
    gateway = make_gateway(daemon=make_daemon(start=False), locations=OBSERVE)
    for _ in range(3):
        assert gateway.post("same").status == 201
    assert app.count() == 3
    gateway.logged(3, verdict="unavailable", status=201)


@pytest.mark.parametrize("connected", [True, False])
def test_a_daemon_that_hangs_delays_nothing_for_long(make_gateway, app,
                                                     connected):
    # C43: the time-outs are longer than the test's patience.
    gateway = make_gateway(
        workers=1, http="idempotency_connect_timeout 500s;",
        server="send_timeout 1100s;", locations=guard(
            "/", "idempotency_timeout 500s;", mode="observe"))
    if connected:
        assert gateway.post("before").status == 201
    gateway.daemon.signal(signal.SIGSTOP)
    try:
        assert gateway.post(new_key(), headers=tell(bytes=9)).body == \
            pattern(9)
    finally:
        gateway.daemon.signal(signal.SIGCONT)
    assert app.count() == (2 if connected else 1)


def test_the_answer_is_not_held_until_it_is_stored(observed, app):
    # C43
    key = new_key()
    connection = observed.leave(key=key, headers=tell(
        hold="run", bytes=100000, hold_body="half"))
    app.wait_held("run")
    app.release("run")
    app.wait_held("half")
    head = connection.head()
    assert head[1] == 201
    app.release("half")
    assert len(connection.body("POST", 201, head[3])) == 100000


def test_a_client_that_leaves_ends_its_request_as_without_a_guard(observed,
                                                                  app):
    # C43
    key = new_key()
    connection = observed.leave(key=key, headers=tell(hold="run"))
    app.wait_held("run")
    connection.reset()
    observed.logged(key=key, status=499)
    app.release("run")


# ---- on the way to another guard ----

@pytest.mark.parametrize("first", ["observe", "optional"])
@pytest.mark.parametrize("place", ["@app", "/app"])
def test_a_weaker_guard_does_not_stand_in_for_a_stronger_one(
        make_gateway, app, first, place):
    # C01, C06
    gateway = make_gateway(locations=guard(
        "/", mode=first, to="try_files /none %s;" % place) + guard(place))
    answer = gateway.post()
    assert (answer.status, answer.problem) == (400, "key-missing")
    assert app.count() == 0
    key = new_key()
    running = gateway.later(body=b"{}", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    assert gateway.post(key).problem == "in-progress"
    app.release("run")
    assert running.result().status == 201
    for _ in range(2):
        again = gateway.post(key)
        assert again.replayed and again.body == running.result().body
    assert gateway.post(key, b"other").problem == "key-reused"
    assert app.count() == 1
    assert app.last.header("Latchkey-Reference") == again.reference


@pytest.mark.parametrize("first", ["off", "observe", "optional"])
def test_a_guard_counts_though_an_app_before_it_was_out_of_reach(
        make_gateway, app, first):
    # C01, C06
    gateway = make_gateway(locations=guard(
        "/", "error_page 502 = @app;", mode=first,
        to="proxy_pass http://@DEAD@;") + guard("@app"))
    key = new_key()
    answers = []

    def post():
        """Until there is a verdict. An observed claim that a slow machine
        decides late may still be there when the guard behind it claims."""
        answer = gateway.post(key)
        if first == "observe" and answer.problem == "in-progress":
            return False
        answers.append(answer)
        return len(answers) == 3

    until(post)
    assert [answer.status for answer in answers] == [201] * 3
    assert [answer.replayed for answer in answers] == [False, True, True]
    assert gateway.post().problem == "key-missing"
    assert app.count() == 1


def test_what_is_observed_first_may_be_guarded_if_it_has_a_key(make_gateway,
                                                               app):
    # C06
    gateway = make_gateway(locations=guard(
        "/", mode="observe", to="try_files /none @app;") + guard(
        "@app", mode="optional"))
    assert gateway.post().status == 201
    key = new_key()
    assert gateway.post(key).status == 201
    assert gateway.post(key).replayed
    assert app.count() == 2


def test_a_guard_behind_a_stronger_one_asks_for_nothing_more(make_gateway,
                                                             app):
    # C01
    gateway = make_gateway(locations=guard(
        "/", to="try_files /none @app;") + guard("@app", mode="observe"))
    key = new_key()
    first = gateway.post(key)
    assert first.status == 201 and first.reference
    assert gateway.post(key).replayed
    assert gateway.post().problem == "key-missing"
    assert app.count() == 1 and gateway.commands("claim") == 2
