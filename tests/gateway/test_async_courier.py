"""The internal listener: what the courier brings, and what it is told."""

import signal

import pytest

from support.app import tell
from support.gateway import guard, params
from support.later import PlayedCourier, later, outcome
from support.life import new_key, until
from support.users import acting_as, as_root
from support.wire import encode_request


@pytest.fixture
def make(folder, make_gateway):
    """A gateway and somebody who plays the courier."""
    def build(*lines, start=True, daemon=None, **options):
        more = {"daemon": daemon} if daemon else {}
        gateway = make_gateway(start=start, **later(folder, *lines,
                                                    **options), **more)
        return gateway, PlayedCourier(gateway, folder)
    return build


@pytest.fixture
def both(make):
    return make()


def request_bytes(operation, body=b"{}"):
    return encode_request("POST", "/", operation, body)


# ---- the app runs -----------------------------------------------------------

def test_what_the_courier_brings_is_run_and_completed(both, app):
    # C31
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    answer = courier.bring(operation, body=b'{"amount":10}',
                           headers=tell(body="done"))
    assert (answer.status, outcome(answer)) == (201, "completed")
    assert answer.body == b"" and app.count() == 1
    assert app.last.body == b'{"amount":10}'
    for name, value in operation.items():
        assert app.last.header(name) == str(value)
    record = gateway.record(key)
    assert record["state"] == b"completed" and record["body"] == b"done"
    entry, = gateway.logged(verdict="new", outcome="kept")
    assert entry["reference"] == operation["Latchkey-Reference"]
    assert entry["tenant"] == "acme"


def test_the_answer_comes_only_when_it_is_stored(both, app):
    # C31: as for any answer, but what goes out says no more than this.
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    answer = courier.bring(operation, headers=tell(
        status=303, headers=[["Location", "/x"], ["Set-Cookie", "a=b"]]))
    assert outcome(answer) == "completed"
    assert "Set-Cookie" not in answer.headers
    assert "Location" not in answer.headers
    record = gateway.record(key)
    assert record["status"] == 303
    assert record["headers"] == b"Location: /x\r\n"


@pytest.mark.parametrize("kind", ["fastcgi", "scgi", "uwsgi"])
def test_the_app_may_be_behind_another_protocol(make, app, kind):
    # C31
    gateway, courier = make(params(kind), to="%s_pass @%s@;" % (
        kind, kind.upper()))
    key = new_key()
    answer = courier.bring(courier.begin(key), body=b"abc")
    assert outcome(answer) == "completed"
    assert (app.last.protocol, app.last.body) == (kind, b"abc")
    assert gateway.state(key) == "completed"


def test_signs_of_life_are_given_while_the_app_works(make, app):
    gateway, courier = make("idempotency_lock 1s;")
    key = new_key()
    operation = courier.begin(key, "LOCK", 1000)
    app.manner = {"hold": "it"}
    with courier.connection() as connection:
        connection.send(request_bytes(operation))
        app.wait_held("it")
        first = gateway.record(key)["lock-until-ms"]
        until(lambda: gateway.record(key)["lock-until-ms"] > first + 1000)
        app.release("it")
        assert outcome(connection.response()) == "completed"


def test_a_courier_that_leaves_does_not_stop_the_app(both, app):
    # C31
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    app.manner = {"hold": "it", "body": "kept"}
    with courier.connection() as connection:
        connection.send(request_bytes(operation))
        app.wait_held("it")
    app.release("it")
    gateway.wait_state(key, "completed")
    assert gateway.record(key)["body"] == b"kept" and app.count() == 1


def test_redirects_inside_nginx_stay_within_the_operation(make, app):
    gateway, courier = make(back="""
        location / { idempotency required;
                     try_files /nothing @app; }
        location @app { proxy_pass http://@APP@; }
    """)
    key = new_key()
    assert outcome(courier.bring(courier.begin(key))) == "completed"
    assert app.last.header("Latchkey-Key") == key
    assert gateway.state(key) == "completed"


@pytest.mark.parametrize("size", [5000, 2000000])
def test_an_answer_too_large_to_keep_is_omitted(make, app, size):
    gateway, courier = make("idempotency_response_max 1k;")
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(bytes=size))
    assert outcome(answer) == "completed" and answer.body == b""
    record = gateway.record(key)
    assert record["state"] == b"completed" and record["omitted-reason"]


def test_the_rules_of_the_route_say_what_is_kept(make, app):
    gateway, courier = make("idempotency_keep 5xx;")
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(status=500))
    assert outcome(answer) == "completed"
    assert gateway.record(key)["status"] == 500


def test_an_answer_without_a_body_is_completed(both):
    gateway, courier = both
    key = new_key()
    assert outcome(courier.bring(courier.begin(key),
                                 headers=tell(status=204))) == "completed"
    assert gateway.record(key)["status"] == 204


# ---- it does not happen -----------------------------------------------------

@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_what_a_client_could_retry_is_given_back_to_the_courier(
        both, app, status):
    # C31: never RELEASE: that would take it from the courier.
    gateway, courier = both
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(
        status=status, headers=[["Retry-After", "17"]]))
    assert (answer.status, outcome(answer)) == (status, "released")
    assert answer.header("Retry-After") == "17" and answer.body == b""
    assert "Latchkey-Sent" not in answer.headers
    assert gateway.state(key) == "in_progress"
    assert gateway.commands("release") == 0


def test_an_app_out_of_reach_is_given_back(make):
    gateway, courier = make(to="proxy_pass http://@DEAD@;")
    key = new_key()
    answer = courier.bring(courier.begin(key))
    assert outcome(answer) == "released"
    assert answer.header("Latchkey-Sent") == "no"
    assert gateway.state(key) == "in_progress"
    assert gateway.commands("release") == 0


@pytest.mark.parametrize("manner", [
    {"close": True}, {"reset": True}, {"garbage": True},
    {"bytes": 50000, "truncate": 100}, {"status": 502}, {"status": 504}],
    ids=str)
def test_an_app_that_may_have_run_leaves_it_uncertain(both, app, manner):
    # C27, C31
    gateway, courier = both
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(**manner))
    assert outcome(answer) == "uncertain"
    assert gateway.state(key) == "uncertain" and app.count() == 1


def test_a_time_out_leaves_it_uncertain(make, app):
    # C27
    gateway, courier = make("proxy_read_timeout 200ms;")
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(hold="it"))
    assert outcome(answer) == "uncertain"
    assert gateway.state(key) == "uncertain"


def test_a_time_out_with_an_error_page_is_told_as_well(make, app):
    gateway, courier = make(back=guard(
        "/", "proxy_read_timeout 200ms;", "error_page 504 /sorry;",
        tenant=None) + "location /sorry { return 200 'sorry'; }")
    key = new_key()
    answer = courier.bring(courier.begin(key), headers=tell(hold="it"))
    assert outcome(answer) == "uncertain" and answer.body == b""
    assert gateway.state(key) == "uncertain"


# ---- the token --------------------------------------------------------------

def test_a_stale_token_calls_nobody(both, app):
    # C28, C31
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    with gateway.daemon.raw() as raw:
        assert raw("RELEASE", "acme", "POST /", key,
                   operation["Latchkey-Token"]) == "OK"
    courier.begin(key)
    answer = courier.bring(operation)
    assert (answer.status, outcome(answer)) == (200, "stale")
    assert app.count() == 0 and gateway.state(key) == "in_progress"
    gateway.logged(verdict="inflight", outcome="stale")


def test_an_operation_that_nobody_knows_calls_nobody(both, app):
    gateway, courier = both
    operation = courier.begin(new_key())
    answer = courier.bring(dict(operation, **{"Latchkey-Key": new_key()}))
    assert outcome(answer) == "stale" and app.count() == 0


def test_what_is_completed_already_calls_nobody(both, app):
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    assert outcome(courier.bring(operation)) == "completed"
    assert outcome(courier.bring(operation)) == "completed"
    assert app.count() == 1


def test_an_answer_after_the_token_was_lost_is_not_kept(both, app):
    # C28
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    app.manner = {"hold": "it"}
    with courier.connection() as connection:
        connection.send(request_bytes(operation))
        app.wait_held("it")
        with gateway.daemon.raw() as raw:
            raw("RELEASE", "acme", "POST /", key, operation["Latchkey-Token"])
        app.release("it")
        assert outcome(connection.response()) == "stale"
    assert gateway.state(key) == "released"


@pytest.mark.parametrize("status", [201, 500])
def test_an_app_that_completed_it_itself_is_believed(both, app, status):
    # C31
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    app.manner = {"hold": "it", "status": status}
    with courier.connection() as connection:
        connection.send(request_bytes(operation))
        app.wait_held("it")
        with gateway.daemon.raw() as raw:
            assert raw("COMPLETE", "acme", "POST /", key,
                       operation["Latchkey-Token"], 200, "", "own") == "OK"
        app.release("it")
        assert outcome(connection.response()) == "completed"
    assert gateway.record(key)["body"] == b"own"


# ---- without a daemon -------------------------------------------------------

def test_without_a_daemon_nobody_is_called(make, app):
    gateway, courier = make("idempotency_connect_timeout 100ms;")
    operation = courier.begin(new_key())
    gateway.daemon.kill()
    answer = courier.bring(operation)
    assert (answer.status, outcome(answer)) == (503, "released")
    assert answer.header("Retry-After") and app.count() == 0
    gateway.logged(verdict="unavailable")


def test_an_answer_that_cannot_be_stored_yet_is_not_told(make, app):
    # C31: the courier must not take it for anything; it is stored later.
    gateway, courier = make("idempotency_timeout 300ms;")
    key = new_key()
    operation = courier.begin(key)
    app.manner = {"hold": "it", "body": "late"}
    with courier.connection() as connection:
        connection.send(request_bytes(operation))
        app.wait_held("it")
        gateway.daemon.signal(signal.SIGSTOP)
        app.release("it")
        assert connection.at_end()
    gateway.logged(outcome="late")
    gateway.daemon.signal(signal.SIGCONT)
    gateway.wait_state(key, "completed")
    assert gateway.record(key)["body"] == b"late" and app.count() == 1


# ---- who may ask, and how ---------------------------------------------------

@pytest.mark.parametrize("change", [
    {"Latchkey-Tenant": None}, {"Latchkey-Scope": None},
    {"Latchkey-Key": None}, {"Latchkey-Token": None},
    {"Latchkey-Attempt": None}, {"Latchkey-Reference": None},
    {"Latchkey-Tenant": ""}, {"Latchkey-Tenant": "t" * 256},
    {"Latchkey-Scope": "s" * 1025}, {"Latchkey-Key": "k" * 256},
    {"Latchkey-Token": "0"}, {"Latchkey-Token": "-1"},
    {"Latchkey-Token": "1x"}, {"Latchkey-Token": "9007199254740993"},
    {"Latchkey-Token": "99999999999999999999"}, {"Latchkey-Attempt": "0"},
    {"Latchkey-Attempt": "one"}, {"Latchkey-Reference": "nonsense"},
    {"Latchkey-Reference": "7D3F92AB1C4E"},
], ids=lambda change: "%s=%.20s" % next(iter(change.items())))
def test_a_request_that_is_not_the_couriers_calls_nobody(both, app, change):
    # C18, C31
    gateway, courier = both
    operation = {name: value for name, value in
                 dict(courier.begin(new_key()), **change).items()
                 if value is not None}
    answer = courier.bring(operation)
    assert (answer.status, outcome(answer)) == (400, "released")
    assert app.count() == 0
    gateway.wait_for_log(r"\[error\].*idempotency_courier: ")


def test_a_header_that_is_there_twice_calls_nobody(both, app):
    _, courier = both
    operation = list(courier.begin(new_key()).items())
    answer = courier.bring(operation + [("latchkey-key", "other")])
    assert answer.status == 400 and app.count() == 0


def test_a_method_that_is_not_guarded_calls_nobody(both, app):
    gateway, courier = both
    operation = courier.begin(new_key())
    for method in ("GET", "PUT", "DELETE"):
        answer = courier.bring(operation, method)
        assert (answer.status, outcome(answer)) == (404, "released")
    assert app.count() == 0
    gateway.wait_for_log(r"where GET is not guarded: it does not run")


def test_a_location_that_is_not_guarded_calls_nobody(make, app):
    gateway, courier = make(back="location / { proxy_pass http://@APP@; }")
    answer = courier.bring(courier.begin(new_key()))
    assert outcome(answer) == "released" and app.count() == 0
    gateway.wait_for_log("not guarded")


def test_access_rules_of_the_server_hold_for_the_courier(make, app):
    # It is told that nothing has happened, and the log says what to do.
    gateway, courier = make(back=guard(
        "/", 'auth_basic "x";', "auth_basic_user_file @FOLDER@/none;",
        tenant=None))
    (gateway.folder / "none").write_text("somebody:x\n")
    key = new_key()
    answer = courier.bring(courier.begin(key))
    assert (answer.status, outcome(answer)) == (401, "released")
    assert app.count() == 0 and gateway.state(key) == "in_progress"
    line = gateway.wait_for_log("idempotency_courier: a request got")
    assert "401" in line and "credentials" in line


def test_a_body_that_is_not_let_in_is_given_back(make, app):
    gateway, courier = make(back=guard("/", "client_max_body_size 10;",
                                       tenant=None))
    answer = courier.bring(courier.begin(new_key()), body=b"x" * 11)
    assert (answer.status, outcome(answer)) == (413, "released")
    assert app.count() == 0


def test_an_unguarded_page_in_place_of_an_error_is_no_way_in(make, app):
    gateway, courier = make(back=guard(
        "/", "error_page 403 = /open;", "deny all;", tenant=None)
        + "location /open { allow all; proxy_pass http://@APP@; }")
    answer = courier.bring(courier.begin(new_key()))
    assert outcome(answer) == "released" and app.count() == 0


def test_nobody_else_is_taken_for_the_courier(both, app):
    # C13, C18: on every other listener the headers are a client's forgery.
    gateway, courier = both
    key = new_key()
    operation = courier.begin(key)
    for tenant in ("acme", None):
        answer = gateway.request("POST", "/", b"{}", headers=operation,
                                 tenant=tenant, key=new_key())
        assert answer.status in (202, 400)
        assert "Latchkey-Outcome" not in answer.headers
    assert app.count() == 0 and gateway.state(key) == "in_progress"


def test_another_unix_socket_is_not_the_couriers(make, folder, app):
    # C18
    gateway, courier = make(start=False, mode="prefer")
    gateway.listen = ["unix:%s/gg" % folder, "unix:%s/h" % folder]
    gateway.start()
    operation = courier.begin(new_key())
    for name in ("gg", "h"):
        key = new_key()
        courier.path = str(folder / name)
        answer = courier.bring(operation, headers={
            "X-API-Key": "globex", "Idempotency-Key": key})
        assert answer.status == 201 and outcome(answer) is None
        assert app.last.header("Latchkey-Tenant") == "globex"
        assert app.last.header("Latchkey-Key") == key
    assert app.count() == 2


def test_a_server_may_serve_clients_and_the_courier(folder, make_gateway,
                                                    app):
    # One server with two listeners: a client has to say who it is.
    gateway = make_gateway(
        http="idempotency_courier unix:%s/g;" % folder,
        listen=["unix:%s/g" % folder])
    courier = PlayedCourier(gateway, folder)
    key = new_key()
    assert outcome(courier.bring(courier.begin(key))) == "completed"
    assert gateway.post(new_key()).status == 201
    assert gateway.post(new_key(), tenant=None).problem == "tenant-missing"
    assert app.count() == 2


def test_the_next_request_on_its_connection_is_heard(both, app):
    gateway, courier = both
    with courier.connection() as connection:
        for body in (b"1", b"22"):
            operation = courier.begin(new_key())
            answer = connection.ask("POST", "/", operation, body)
            assert outcome(answer) == "completed"
            assert app.last.body == body


# ---- who it is --------------------------------------------------------------

def with_user(folder, *users, back=None):
    options = later(folder, back=back)
    options["http"] = options["http"].replace(
        "/g;", "/g %s;" % " ".join("user=" + user for user in users), 1)
    return options


@as_root
@pytest.mark.parametrize("user, status", [
    ("root", 201), ("games", 201), ("daemon", 403)])
def test_only_the_users_that_are_named_pass_for_the_courier(
        folder, make_gateway, app, user, status):
    # C31: root and nginx itself are let in too.
    gateway = make_gateway(**with_user(folder, "games", "man"))
    courier = PlayedCourier(gateway, folder)
    key = new_key()
    operation = courier.begin(key)
    folder.chmod(0o711)
    with acting_as(user):
        connection = courier.connection()
    with connection:
        answer = connection.ask("POST", "/", list(operation.items()), b"{}")
    assert answer.status == status
    assert app.count() == (status == 201)
    if status == 403:
        gateway.wait_for_log("is not the courier")


@as_root
def test_a_stranger_is_let_into_no_location(folder, make_gateway, app):
    # What is not guarded there, either.
    gateway = make_gateway(**with_user(
        folder, "games", back="location / { proxy_pass http://@APP@; }"))
    courier = PlayedCourier(gateway, folder)
    folder.chmod(0o711)
    with acting_as("daemon"):
        connection = courier.connection()
    with connection:
        assert connection.ask("GET", "/", [], b"").status == 403
    assert app.count() == 0
    gateway.wait_for_log("is not the courier")
