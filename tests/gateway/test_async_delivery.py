"""Requests that run later, end to end: gateway, daemon, courier, app."""

import signal
import time

import pytest

from support import stores
from support.app import tell
from support.gateway import params
from support.later import later
from support.life import new_key, until
from support.resp import fields

PREFER = {"Prefer": "respond-async"}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    """A store that keeps jobs; None: the daemon's own."""
    if request.param == "sqlite":
        return None
    return stores.make_postgres(request.getfixturevalue("postgres"))


@pytest.fixture
def make(folder, make_gateway, make_daemon, url):
    """A gateway whose requests the daemon's courier brings back."""
    def build(*lines, settings=(), **options):
        daemon = make_daemon(
            settings=["courier.gateway=unix:%s/g" % folder, *settings],
            url=url)
        return make_gateway(daemon=daemon, **later(folder, *lines, **options))
    return build


@pytest.fixture
def gateway(make):
    return make()


def poll(gateway, accepted, **options):
    return gateway.request("GET", accepted.header("Location"), **options)


def final(gateway, accepted, **options):
    """Asks until it is over."""
    def answer():
        found = poll(gateway, accepted, **options)
        return None if found.status in (202, 503) else found
    return until(answer, pause=0.02)


# ---- the way through --------------------------------------------------------

def test_an_accepted_request_is_run_and_its_answer_found(gateway, app):
    # C31
    key = new_key()
    accepted = gateway.post(key, b'{"amount":10}', path="/pay?x=1", headers={
        **tell(status=201, body="paid",
               headers=[["Content-Type", "text/plain"]]),
        "Host": "api.example", "Content-Type": "application/json"})
    assert accepted.status == 202
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"paid")
    assert answer.header("Content-Type") == "text/plain"
    assert answer.replayed and answer.reference == accepted.reference
    assert answer.header("Idempotency-Expires")
    assert app.count() == 1
    call = app.last
    assert (call.method, call.target) == ("POST", "/pay?x=1")
    assert call.body == b'{"amount":10}'
    assert call.header("Content-Type") == "application/json"
    assert call.key == key
    assert call.header("Latchkey-Tenant") == "acme"
    assert call.header("Latchkey-Scope") == "POST /pay"
    assert call.header("Latchkey-Key") == key
    assert call.header("Latchkey-Attempt") == "1"
    assert call.header("Latchkey-Reference") == accepted.reference


def test_a_retry_gets_202_while_it_runs_and_then_the_answer(gateway, app):
    # C31
    key = new_key()
    told = tell(hold="it", body="done")
    first = gateway.post(key, headers=told)
    app.wait_held("it")
    since = poll(gateway, first).json()["accepted_at"]
    again = gateway.post(key, headers=told)
    assert (again.status, again.body) == (202, first.body)
    assert again.header("Location") == first.header("Location")
    running = poll(gateway, first).json()
    assert running == {"reference": first.reference, "status": "running",
                       "accepted_at": since, "attempts": 1}
    app.release("it")
    final(gateway, first)
    last = gateway.post(key, headers=told)
    assert (last.status, last.body) == (201, b"done") and last.replayed
    assert app.count() == 1


@pytest.mark.parametrize("kind", ["fastcgi", "scgi", "uwsgi"])
def test_the_app_may_be_behind_another_protocol(make, app, kind):
    # C31
    gateway = make(params(kind), to="%s_pass @%s@;" % (kind, kind.upper()))
    accepted = gateway.post(new_key(), b"abc", headers=tell(body="done"))
    answer = final(gateway, accepted)
    assert answer.body == b"done"
    assert (app.last.protocol, app.last.body) == (kind, b"abc")
    assert app.last.header("Latchkey-Reference") == accepted.reference


@pytest.mark.parametrize("size", [0, 1, 200000, 1048576])
def test_a_body_arrives_as_it_was_sent(make, app, size):
    gateway = make("client_max_body_size 2m;")
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    accepted = gateway.post(new_key(), body)
    assert final(gateway, accepted).status == 201
    assert app.last.length == size and app.last.body == body


@pytest.mark.parametrize("path", [
    "/a%20b/c%2Fd?x=%00&y=a+b", "/a/../b/./c", "//double//slash", "/\xe4\xf6",
    "/semi;colon=1?a&b#c", "/a/%2e%2e/x", "/" + "p" * 4000])
def test_a_path_arrives_as_it_was_sent(gateway, app, path):
    # C31: as the client wrote it, and nowhere else.
    accepted = gateway.post(new_key(), path=path)
    assert accepted.status == 202, accepted
    assert final(gateway, accepted).status == 201
    assert app.last.target == path.split("#")[0] or app.last.target == path


@pytest.mark.parametrize("key", [
    '" spaces at both ends  "', '"a \\"quoted\\" key, with \\\\ in it"',
    "k" * 255])
def test_a_key_of_any_form_comes_back(gateway, app, key):
    # C31: whatever a header makes of it.
    accepted = gateway.post(key)
    assert final(gateway, accepted).status == 201
    assert app.last.key == key and app.count() == 1
    assert gateway.post(key).replayed


def test_tenants_with_the_same_key_do_not_meet(gateway, app):
    # C13
    key = new_key()
    accepted = {tenant: gateway.post(key, tenant=tenant,
                                     headers=tell(body=tenant))
                for tenant in ("acme", "globex")}
    for tenant, answer in accepted.items():
        assert final(gateway, answer, tenant=tenant).body == tenant.encode()
    assert poll(gateway, accepted["acme"], tenant="globex").status == 404
    assert app.count() == 2


@pytest.mark.parametrize("scope", [
    '" x y "', '"$request_method $http_x_account"', "$arg_x"])
def test_a_scope_of_any_form_comes_back(make, app, scope):
    gateway = make("idempotency_scope %s;" % scope)
    accepted = gateway.post(new_key(), path="/?x=\xe4%s" % ("y" * 2000),
                            headers={"X-Account": "\xe4;:,\t\"'"})
    assert final(gateway, accepted).status == 201 and app.count() == 1


def test_a_burst_runs_once_each(gateway, app):
    # C31
    keys = [new_key() for _ in range(100)]
    accepted = [gateway.later("POST", "/", b"{}", key=key)
                for key in keys for _ in range(2)]
    answers = [each.result() for each in accepted]
    assert {answer.status for answer in answers} <= {202, 201}
    for key in keys:
        gateway.wait_state(key, "completed")
    assert app.count() == 100 and set(app.by_key.values()) == {1}


# ---- what goes wrong --------------------------------------------------------

def test_an_app_that_fails_at_first_is_tried_again(gateway, app):
    # C31
    app.manner = {"status": 500}
    accepted = gateway.post(new_key())
    app.wait_calls(1)
    app.manner = {"status": 201, "body": "at last"}
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"at last")
    assert app.last.header("Latchkey-Attempt") == str(app.count())
    assert app.count() >= 2


def test_an_app_that_is_down_at_first_is_tried_again(gateway, app):
    # C31
    app.stop()
    accepted = gateway.post(new_key())
    gateway.logged(outcome="released")
    assert poll(gateway, accepted).status == 202
    app.start()
    assert final(gateway, accepted).status == 201
    assert app.count() == 1


@pytest.mark.parametrize("manner", [
    {"close": True}, {"reset": True}, {"status": 502},
    {"bytes": 10000, "truncate": 10}], ids=str)
def test_an_app_that_may_have_run_is_not_asked_twice(gateway, app, manner):
    # C27, C31
    key = new_key()
    accepted = gateway.post(key, headers=tell(**manner))
    answer = final(gateway, accepted)
    assert (answer.status, answer.problem) == (409, "outcome-unknown")
    again = gateway.post(key, headers=tell(**manner))
    assert again.problem == "outcome-unknown"
    assert app.count() == 1


def test_a_time_out_of_the_app_is_uncertain(make, app):
    # C27
    gateway = make("proxy_read_timeout 200ms;")
    accepted = gateway.post(new_key(), headers=tell(hold="it"))
    assert final(gateway, accepted).problem == "outcome-unknown"
    assert app.count() == 1


def test_where_running_twice_does_no_harm_it_is_tried_again(make, app):
    # C27
    gateway = make("idempotency_uncertain reexecute;")
    app.manner = {"close": True}
    accepted = gateway.post(new_key())
    app.wait_calls(1)
    app.manner = {"body": "again"}
    assert final(gateway, accepted).body == b"again"
    assert app.count() >= 2


def lease_of(gateway, accepted):
    """When the lease of its request ends."""
    with gateway.daemon.raw(user="operator") as raw:
        job = fields(raw("JOBS", "REFERENCE", accepted.reference)[1][0])
    return job["due-ms"] if job["state"] == b"leased" else 0


@pytest.mark.parametrize("after", ["hold", "reexecute"])
def test_an_app_slower_than_the_courier_waits_is_run_once(make, app, after):
    # C22: the gateway lives, and so does its lock.
    gateway = make("idempotency_uncertain %s;" % after, "idempotency_lock 1s;",
                   settings=["courier.gateway_timeout=500ms",
                             "courier.lease=600ms"])
    accepted = gateway.post(new_key(), headers=tell(hold="it", body="done"))
    app.wait_held("it")
    gateway.daemon.wait_for_log("event=request-slow")
    first = lease_of(gateway, accepted)
    # Beyond every lock that there was when the courier gave up.
    until(lambda: lease_of(gateway, accepted) > first + 2000)
    assert app.count() == 1
    app.release("it")
    assert final(gateway, accepted).body == b"done"
    assert app.count() == 1


def test_an_answer_too_large_to_keep_is_told(make, app):
    gateway = make("idempotency_response_max 1k;")
    accepted = gateway.post(new_key(), headers=tell(bytes=5000))
    answer = final(gateway, accepted)
    assert (answer.status, answer.problem) == (409, "answer-not-kept")
    assert answer.json()["original-status"] == 201 and app.count() == 1


def test_an_operator_ends_what_is_uncertain(gateway, app):
    # C32
    key = new_key()
    accepted = gateway.post(key, headers=tell(close=True))
    final(gateway, accepted)
    done = gateway.daemon.cli("resolve", accepted.reference, "--completed",
                              "201", "--why", "seen")
    assert done.returncode == 0, done.stderr
    assert final(gateway, accepted).status == 201
    assert app.count() == 1


# ---- crashes ----------------------------------------------------------------

def test_a_daemon_killed_between_acceptance_and_delivery(
        folder, make_gateway, make_daemon, app, url):
    # C31
    daemon = make_daemon(url=url, settings=[
        "courier.gateway=unix:%s/g" % folder, "courier.enabled=no"])
    gateway = make_gateway(daemon=daemon, **later(folder))
    key = new_key()
    accepted = gateway.post(key, headers=tell(body="done"))
    assert accepted.status == 202
    daemon.kill()
    assert app.count() == 0
    daemon.settings.remove("courier.enabled=no")
    daemon.start()
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


@pytest.mark.parametrize("point", [
    "after_lease", "courier_leased", "courier_before_call",
    "courier_after_call", "after_end"])
def test_a_daemon_killed_at_any_step_of_the_delivery(
        folder, make_gateway, faulty, app, url, point):
    # C27, C31: what the gateway has not asked for was not run.
    daemon = faulty("kill %s 1" % point, url=url, settings=[
        "courier.gateway=unix:%s/g" % folder, "courier.lease=1s"])
    gateway = make_gateway(daemon=daemon, **later(
        folder, "idempotency_lock 1s;", "idempotency_timeout 30s;"))
    waiting = gateway.later("POST", "/", b"{}", key="k",
                            headers=tell(body="done"))
    daemon.wait()
    daemon.set_faults()
    daemon.start()
    # It may have died before it could say that the request was accepted.
    assert waiting.result().status in (201, 202)
    reference = gateway.record("k")["reference"].decode()

    def over():
        found = gateway.request("GET", "/operations/" + reference)
        return None if found.status in (202, 503) else found
    answer = until(over, pause=0.02)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


def test_a_killed_daemon_makes_nothing_uncertain_that_was_not_run(
        folder, make_gateway, faulty, app, url):
    # C31: many are on their way, and the gateway has asked for none of them.
    daemon = faulty("kill courier_before_call 20", url=url, settings=[
        "courier.gateway=unix:%s/g" % folder, "courier.lease=1s",
        "courier.enabled=no"])
    gateway = make_gateway(daemon=daemon, **later(
        folder, "idempotency_lock 1s;", "idempotency_timeout 30s;"))
    keys = [new_key() for _ in range(40)]
    for key in keys:
        assert gateway.post(key, headers=tell(body=key)).status == 202
    daemon.stop()
    daemon.settings.remove("courier.enabled=no")
    daemon.launch()  # it may be killed before it says that it is ready
    daemon.wait()
    ran = app.count()
    daemon.set_faults()
    daemon.start()
    states = [gateway.wait_state(key, "completed") for key in keys]
    assert len(states) == 40 and ran < 20 and app.count() == 40


def test_a_daemon_killed_while_the_app_works(make, app):
    # C31: the gateway holds the answer until somebody keeps it.
    gateway = make()
    key = new_key()
    accepted = gateway.post(key, headers=tell(hold="it", body="done"))
    app.wait_held("it")
    gateway.daemon.kill()
    app.release("it")
    gateway.daemon.start()
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


def test_a_daemon_that_stops_does_not_wait_for_the_app(make, app):
    # C31: the gateway could not tell it what came of the request.
    gateway = make(settings=["courier.grace=1h"])
    accepted = gateway.post(new_key(), headers=tell(hold="it", body="done"))
    app.wait_held("it")
    gateway.daemon.stop()
    app.release("it")
    gateway.daemon.start()
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_did_not_happen_while_the_daemon_was_away_is_run_again(
        make, app, how):
    # C27, C31: the courier that asked is gone; the gateway knows.
    gateway = make("idempotency_lock 1s;", settings=["courier.lease=1s"])
    key = new_key()
    app.manner = {"hold": "it", "status": 503}
    accepted = gateway.post(key)
    app.wait_held("it")
    getattr(gateway.daemon, how)()
    app.manner = {"body": "done"}
    app.release("it")
    gateway.daemon.start()
    gateway.wait_state(key, "completed")  # perhaps uncertain for a moment
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 2


def test_what_the_gateway_did_not_run_is_brought_again(
        folder, make_gateway, faulty, app, url):
    # C27, C31: the store has it that the app may have heard of the request;
    # the daemon is killed before it has said so.
    daemon = faulty(url=url, settings=[
        "courier.gateway=unix:%s/g" % folder, "courier.lease=1s",
        "courier.enabled=no"])
    gateway = make_gateway(daemon=daemon, **later(
        folder, "idempotency_lock 1s;", "idempotency_timeout 30s;"))
    key = new_key()
    assert gateway.post(key, headers=tell(body="done")).status == 202
    daemon.stop()
    daemon.settings.remove("courier.enabled=no")
    daemon.set_faults("kill before_reply 1")
    daemon.start()
    daemon.wait()
    daemon.set_faults()
    daemon.start()
    gateway.wait_state(key, "completed")  # perhaps uncertain for a moment
    assert app.count() == 1


def test_a_gateway_killed_while_the_app_works_leaves_it_uncertain(
        make, folder, app):
    # C27, C31
    gateway = make("idempotency_lock 1s;", settings=["courier.lease=1s"])
    accepted = gateway.post(new_key(), headers=tell(hold="it"))
    app.wait_held("it")
    gateway.kill()
    (folder / "g").unlink()
    gateway.start()
    assert final(gateway, accepted).problem == "outcome-unknown"
    app.release("it")
    assert app.count() == 1


def test_a_gateway_that_is_away_is_waited_for(make, folder, app):
    # C31
    gateway = make()
    with gateway.daemon.raw() as raw:
        raw("ACCEPT", "acme", "POST /", "k", "1:" + "ab" * 32, "POST", "/",
            "Host: localhost\r\nIdempotency-Key: k\r\n", "{}")
    gateway.wait_state("k", "completed")
    gateway.stop()
    with gateway.daemon.raw() as raw:
        raw("ACCEPT", "acme", "POST /", "l", "1:" + "ab" * 32, "POST", "/",
            "Host: localhost\r\nIdempotency-Key: l\r\n", "{}")
    gateway.start()
    gateway.wait_state("l", "completed")
    assert app.count() == 2


def test_a_reload_does_not_lose_what_runs(gateway, app):
    # C31, C40
    accepted = gateway.post(new_key(), headers=tell(hold="it", body="done"))
    app.wait_held("it")
    gateway.reload()
    app.release("it")
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


def test_a_daemon_that_stands_still_past_the_lease(make, app):
    # C28, C31: whoever wakes up late changes nothing that was decided.
    gateway = make("idempotency_lock 1s;", "idempotency_timeout 300ms;",
                   settings=["courier.lease=1s"])
    key = new_key()
    accepted = gateway.post(key, headers=tell(hold="it", body="done"))
    app.wait_held("it")
    gateway.daemon.signal(signal.SIGSTOP)
    app.release("it")
    gateway.logged(outcome="late")
    gateway.daemon.signal(signal.SIGCONT)
    gateway.wait_state(key, "completed")  # perhaps uncertain for a moment
    answer = final(gateway, accepted)
    assert (answer.status, answer.body) == (201, b"done")
    assert app.count() == 1


def test_an_app_that_is_never_there_is_given_up(make):
    # C31: the client gets an end.
    gateway = make(settings=["courier.gateway_attempts=1"],
                   to="proxy_pass http://@DEAD@;")
    key = new_key()
    accepted = gateway.post(key)
    gateway.wait_state(key, "completed")
    answer = poll(gateway, accepted)
    assert (answer.status, answer.problem) == (503, "unavailable"), answer
    assert answer.replayed and gateway.post(key).replayed


def test_an_app_that_always_fails_is_given_up_and_open(make, app):
    # C31: it was asked, so nobody can say that nothing came of it.
    gateway = make(settings=["courier.gateway_attempts=1"])
    accepted = gateway.post(new_key(), headers=tell(status=500))
    assert final(gateway, accepted).problem == "outcome-unknown"
    assert app.count() == 1


# ---- how long it is known ---------------------------------------------------

def test_what_is_over_is_known_for_its_ttl_and_then_it_is_new(make, app):
    # C10, C31: the TTL runs from the end, not from the acceptance.
    gateway = make("idempotency_ttl 5s;",
                   settings=["store.sweep_interval=100ms"])
    key = new_key()
    accepted = gateway.post(key, b"1", headers=tell(hold="long"))
    app.wait_held("long")
    reference = accepted.header("Idempotency-Reference")
    claimed = gateway.record(key)["claimed-ms"]
    until(lambda: time.time() * 1000 > claimed + 5500)
    assert poll(gateway, accepted).status == 202
    app.release("long")
    assert final(gateway, accepted).status == 201
    assert app.count() == 1
    until(lambda: poll(gateway, accepted).status == 404)
    again = gateway.post(key, b"2")  # another request: the key is free
    assert again.status == 202
    assert again.header("Idempotency-Reference") != reference
    assert final(gateway, again).status == 201 and app.count() == 2
    assert poll(gateway, accepted).status == 404
