"""More of nginx's own ways to an app, and slow steps of an answer."""

import pytest

from support.app import pattern, tell
from support.gateway import guard, params
from support.h2 import Http2
from support.life import new_key, until

TENANT = "idempotency_tenant $http_x_api_key;"


def runs_once(gateway, app, path="/", **options):
    """A request and its retry; the first answer."""
    key = new_key()
    before = app.count()
    first = gateway.post(key, path=path, **options)
    again = gateway.post(key, path=path, **options)
    assert first.status == 201 and not first.replayed
    assert again.replayed and again.body == first.body
    assert app.count() == before + 1
    return first


# ---- ways to the app ----

def test_an_error_code_may_lead_to_a_guarded_location(make_gateway, app):
    # C02
    gateway = make_gateway(locations="""
        location / { error_page 418 = @app; return 418; }
    """ + guard("@app"))
    runs_once(gateway, app, "/x")
    key = new_key()
    assert gateway.post(key, headers=tell(reset=True)).status == 502
    assert gateway.post(key).problem == "outcome-unknown"


@pytest.mark.parametrize("inside", [
    "if ($http_x_api_key) { set $found 1; } proxy_pass http://@APP@;",
    "if ($http_x_api_key) { proxy_pass http://@APP@; }",
    "limit_except GET { allow all; } proxy_pass http://@APP@;",
    "location ~ ^/ { proxy_pass http://@APP@; }",
    "set $to @APP@; proxy_pass http://$to;",
    "proxy_method POST; proxy_pass http://@APP@/v1/;",
    "proxy_pass_request_headers on; proxy_set_header X-A b; "
    "proxy_pass http://@APP@;",
])
def test_a_guard_holds_on_every_way_to_the_app(make_gateway, app, inside):
    # C01
    gateway = make_gateway(locations=guard("/", to=inside))
    first = runs_once(gateway, app)
    assert app.last.header("Latchkey-Reference") == first.reference
    assert gateway.post().problem == "key-missing"


def test_an_app_whose_name_is_not_found_releases_the_key(make_gateway, app):
    # C21
    gateway = make_gateway(locations=guard(
        "/", "resolver 127.0.0.1:9 valid=1s; resolver_timeout 1s;",
        "set $to nowhere.invalid;", to="proxy_pass http://$to;"))
    key = new_key()
    assert gateway.post(key).status == 502
    assert gateway.state(key) == "released"


def test_servers_may_have_daemons_of_their_own(make_gateway, make_daemon,
                                               app):
    # C13
    one, two = make_daemon(), make_daemon()
    gateway = make_gateway(daemon=one, locations=guard("/one") + guard(
        "/two", "idempotency_server %s;" % two.address))
    key = new_key()
    for path in ("/one", "/two"):
        runs_once(gateway, app, path)
        gateway.post(key, path=path)
    assert gateway.state(key, scope="POST /one") == "completed"
    assert gateway.state(key, scope="POST /two") is None
    two.stop()
    assert gateway.post(new_key(), path="/two").problem == "unavailable"
    assert gateway.post(new_key(), path="/one").status == 201


# ---- requests on their way ----

@pytest.mark.parametrize("line", [
    "", "proxy_request_buffering off; proxy_http_version 1.1;"])
def test_large_and_chunked_requests_of_http_1_and_2(make_gateway, app, line):
    # C02, C03
    gateway = make_gateway(h2=True, http="client_max_body_size 20m;",
                           locations=guard("/", line))
    body = pattern(3000000)
    for options in ({}, {"chunked": True}):
        runs_once(gateway, app, body=body, **options)
        assert app.last.length == len(body)
    key = new_key()
    first = gateway.curl(
        "-H", "X-API-Key: acme", "-H", "Idempotency-Key: " + key,
        "-H", "Content-Type:", "--data-binary", "@-", h2=True, input=body)
    assert b" 201 " in first.stdout.splitlines()[0], first
    assert app.last.length == len(body)
    assert gateway.post(key, body).replayed
    assert gateway.post(key, body[1:]).problem == "key-reused"


def test_small_bodies_of_many_streams_are_not_mixed_up(make_gateway, app):
    # C13
    gateway = make_gateway(h2=True, workers=1)
    keys = [new_key() for _ in range(60)]
    with Http2(gateway.h2_port) as client:
        streams = [client.post(gateway.headers(None, key), key.encode())
                   for key in keys]
        for key, stream in zip(keys, streams):
            assert b'"%s"' % key.encode() in client.body(stream)
    assert {call.key: call.body.decode() for call in app.calls} == {
        key: key for key in keys}


# ---- answers on their way ----

def test_an_answer_that_comes_slowly_is_not_given_up(make_gateway, app):
    # C22: more than send_timeout between its two halves.
    gateway = make_gateway(
        server="send_timeout 2s;",
        locations=guard("/", "idempotency_timeout 900ms;"))
    key = new_key()
    future = gateway.later(body=b"{}", key=key, headers=tell(
        bytes=50000, hold_body="half"))
    app.wait_held("half")
    until(lambda: gateway.post(new_key(), headers=tell(delay=2.5)))
    app.release("half")
    first = future.result()
    assert first.status == 201 and first.body == pattern(50000)
    assert gateway.post(key).body == first.body


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("to,inside", [
    ("@app", "proxy_pass http://@APP@;"),
    ("/app", "internal; proxy_pass http://@APP@;"),
    ("/app", "proxy_pass http://@APP@;"),
    ("/app", "internal; fastcgi_pass @FASTCGI@;" + params("fastcgi")),
    ("@app", "uwsgi_pass @UWSGI@;" + params("uwsgi")),
])
def test_a_client_may_leave_a_request_that_went_on_by_try_files(
        make_gateway, app, to, inside, end):
    # C11
    gateway = make_gateway(workers=1, locations=guard(
        "/", to="try_files /none %s;" % to) +
        "location %s { %s }" % (to, inside))
    key = new_key()
    connection = gateway.leave("/x", key=key, headers=tell(hold="work"))
    app.wait_held("work")
    getattr(connection, end)()
    # The one worker has seen it go when it answers others.
    for _ in range(2):
        assert gateway.post(key, path="/x").problem == "in-progress"
        assert gateway.post(new_key(), path="/x").status == 201
    app.release("work")
    answer = gateway.settled(key, path="/x")
    assert answer.replayed and answer.json()["call"] == 1
    assert app.count() == 3


def test_a_client_that_leaves_a_large_answer_disturbs_nothing(make_gateway,
                                                              app):
    # C11, C12
    gateway = make_gateway(locations=guard(
        "/", "idempotency_response_max 64k;"))
    key = new_key()
    connection = gateway.leave(key=key, headers=tell(bytes=5000000))
    assert connection.head()[1] == 201
    connection.reset()
    assert gateway.settled(key).problem == "answer-not-kept"
    assert app.count() == 1


@pytest.mark.parametrize("line", [
    "", "proxy_buffering off;", "proxy_max_temp_file_size 0;"])
@pytest.mark.parametrize("manner", [
    {"bytes": 3000}, {"bytes": 2000000}, {"bytes": 2000000, "chunked": True},
    {"bytes": 100000, "hold_body": "half"}, {"status": 500, "bytes": 2000000},
    {"bytes": 3000, "truncate": 100}], ids=str)
def test_a_client_that_leaves_while_its_answer_is_stored_wedges_nothing(
        make_gateway, faulty, app, line, manner):
    # C11, C12: also when the rest of the answer still waits in the upstream.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, locations=guard(
        "/", "idempotency_timeout 20s;", "idempotency_response_max 16k;",
        "proxy_http_version 1.1;", line))
    key = new_key()
    connection = gateway.leave(key=key, headers=tell(hold="run", **manner))
    app.wait_held("run")
    daemon.set_faults("hold before_reply")
    app.release("run")
    until(lambda: sum(map(gateway.commands, ("complete", "doubt",
                                             "release"))) == 1)
    connection.reset()
    daemon.set_faults()
    app.release("half")
    answer = gateway.settled(key)
    assert answer.replayed == (manner == {"bytes": 3000})
    assert app.count() == (2 if "status" in manner else 1)


@pytest.mark.parametrize("line", ["", "proxy_buffering off;"])
@pytest.mark.parametrize("end", ["stream", "connection"])
def test_a_stream_that_ends_while_its_answer_is_stored_wedges_nothing(
        make_gateway, faulty, app, line, end):
    # C11, C12: too large to keep, and the app is still sending.
    daemon = faulty()
    gateway = make_gateway(daemon=daemon, workers=1, h2=True, locations=guard(
        "/", "idempotency_timeout 20s;", "idempotency_response_max 1k;", line))
    workers = gateway.workers()
    for number in range(1, 4):
        key = new_key()
        with Http2(gateway.h2_port) as client:
            stream = client.post(gateway.headers(tell(
                hold="run" + key, bytes=300000, hold_body="half" + key),
                key), b"{}")
            app.wait_held("run" + key)
            daemon.set_faults("hold before_reply")
            app.release("run" + key)
            until(lambda: gateway.commands("complete") == number)
            if end == "stream":
                client.reset(stream)
        gateway.daemon.set_faults()
        app.release("half" + key)
        assert gateway.settled(key).problem == "answer-not-kept"
        assert app.count(key) == 1
    assert gateway.workers() == workers


@pytest.mark.parametrize("manner", [
    {}, {"status": 500}, {"status": 504}, {"bytes": 2000000}], ids=str)
@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_the_app_may_answer_under_our_names_and_is_not_believed(
        gateway, app, manner, spell):
    # C17: a first run must not look like a replay.
    key = new_key()
    forged = [[spell("Idempotency-Reference"), "0000-0000-0000"],
              [spell("Idempotent-Replayed"), "true"],
              [spell("Idempotency-Expires"), "never"]]
    first = gateway.post(key, headers=tell(headers=forged, **manner))
    assert first.status == manner.get("status", 201)
    assert "Idempotent-Replayed" not in first.headers
    assert first.headers.all("Idempotency-Reference") == [
        app.last.header("Latchkey-Reference")]
    assert "never" not in first.headers.all("Idempotency-Expires")
    assert len(first.headers.all("Idempotency-Expires")) == (
        0 if "status" in manner else 1)
    if not manner:
        again = gateway.post(key)
        assert again.headers.all("Idempotent-Replayed") == ["true"]
        assert again.headers.all("Idempotency-Reference") == [first.reference]
