"""Requests as clients should not send them, run later as they would be now."""

import sqlite3

import pytest

from support.later import later
from support.life import new_key, until

BACK = """
location / { idempotency required; proxy_pass http://@APP@;
             proxy_set_header X-Server %s; proxy_set_header Host $host; }
"""


@pytest.fixture
def make(folder, make_gateway, make_daemon):
    """A gateway and its courier; what comes in for admin.example, a server
    of its own, is told apart."""
    def build(server=""):
        address = "unix:%s/g" % folder
        daemon = make_daemon(settings=["courier.gateway=" + address])
        options = later(folder, back=BACK % "api")
        options["http"] += "server { listen %s; server_name %s; %s }" % (
            address, "admin.example", BACK % "admin")
        return make_gateway(daemon=daemon, server=server, **options)
    return build


def send(gateway, target="/", version="1.1", **headers):
    """The answer to a request whose bytes are all given."""
    lines = ["POST %s HTTP/%s" % (target, version), "X-API-Key: acme",
             "Content-Length: 2"]
    headers.setdefault("Idempotency_Key", new_key())
    lines += ["%s: %s" % (name.replace("_", "-"), value)
              for name, value in headers.items()]
    with gateway.raw() as connection:
        connection.send("\r\n".join([*lines, "", "{}"]).encode("latin-1"))
        return connection.response()


def final(gateway, accepted):
    assert accepted.status == 202, accepted

    def answer():
        found = gateway.request("GET", accepted.header("Location"))
        return None if found.status in (202, 503) else found
    return until(answer, pause=0.02)


@pytest.mark.parametrize("target, version, headers, host", [
    ("http://api.example/x", "1.1", {"Host": "admin.example"}, "api.example"),
    ("http://api.example/x", "1.0", {"Host": "admin.example"}, "api.example"),
    ("http://api.example/x", "1.0", {}, "api.example"),
    ("http://api.example:81/x", "1.1", {"Host": "x"}, "api.example"),
    ("/x", "1.1", {"Host": "API.example:81"}, "api.example"),
], ids=range(5))
def test_it_comes_back_to_the_server_that_let_it_in(make, app, target,
                                                    version, headers, host):
    # C13: a host in the request line counts, and no header beside it.
    gateway = make()
    accepted = send(gateway, target, version, **headers)
    assert final(gateway, accepted).status == 201
    assert app.last.header("X-Server") == "api"
    assert (app.last.header("Host"), app.last.target) == (host, "/x")


def test_a_server_without_a_name_in_the_request_is_the_same_one(make, app):
    gateway = make()
    assert final(gateway, send(gateway, version="1.0")).status == 201
    assert app.last.header("X-Server") == "api"


@pytest.mark.parametrize("target, arrives", [
    ("http://api.example?x=1", "/?x=1"), ("http://api.example", "/")])
def test_a_path_that_is_empty_is_the_root(make, app, target, arrives):
    gateway = make()
    accepted = send(gateway, target, Host="api.example")
    assert final(gateway, accepted).status == 201
    assert app.last.target == arrives


@pytest.mark.parametrize("count", [2, 100, 2000])
def test_any_number_of_wishes_is_passed_on(make, app, count):
    gateway = make()
    accepted = send(gateway, Host="x", Prefer=",".join(["a"] * count))
    assert final(gateway, accepted).status == 201
    assert app.last.header("Prefer") == ", ".join(["a"] * count)


def test_a_key_of_spaces_comes_back(make, app):
    gateway = make()
    accepted = send(gateway, Host="x", Idempotency_Key='"  "')
    assert final(gateway, accepted).status == 201
    assert app.last.key == '"  "' and app.count() == 1


@pytest.mark.parametrize("target, value, status", [
    ("/", "a\x01b", 400), ("/", "\x7f", 400), ("/" + "x" * 9000, "x", 414)],
    ids=["control", "delete", "long"])
def test_what_cannot_be_stored_is_refused_for_what_it_is(make, app, target,
                                                         value, status):
    gateway = make(server="large_client_header_buffers 4 16k;")
    answer = send(gateway, target, Host="x", User_Agent=value)
    assert answer.status == status and app.count() == 0
    assert final(gateway, send(gateway, Host="x")).status == 201


def spoil(daemon):
    """~ becomes LF and ^ CR in what is stored."""
    daemon.stop()
    with sqlite3.connect(daemon.store) as db:
        for token, record in db.execute("SELECT token, record FROM answer"):
            db.execute("UPDATE answer SET record = ? WHERE token = ?",
                       (record.replace(b"~", b"\n").replace(b"^", b"\r"),
                        token))
    db.close()
    daemon.start()


def test_no_header_hides_in_another(make, app):
    """C17: an app may complete the operation by itself. The daemon takes no
    such headers, but a store may have been written by another one."""
    gateway = make()
    app.manner = {"hold": "it"}
    key = new_key()
    accepted = gateway.post(key)
    app.wait_held("it")
    headers = ("Location: /a~Set-Cookie: a=b\r\nETag: \"x\"\r\n"
               "Link: <a>^Set-Cookie: c=d\r\n")
    with gateway.daemon.raw() as raw:
        end = ("COMPLETE", "acme", "POST /", key,
               app.last.header("Latchkey-Token"), "200")
        assert raw(*end, headers.replace("~", "\n"), "body").startswith("ERR")
        assert raw(*end, headers.replace("^", "\r"), "body").startswith("ERR")
        assert raw(*end, headers, "body") == "OK"
    app.release("it")
    final(gateway, accepted)
    spoil(gateway.daemon)
    for answer in (final(gateway, accepted), gateway.post(key)):
        assert (answer.status, answer.body) == (200, b"body")
        assert answer.header("ETag") == '"x"'
        for name in ("Location", "Link", "Set-Cookie"):
            assert name not in answer.headers
