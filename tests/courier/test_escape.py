"""A job can never reach a host that is not a configured target."""

import sqlite3

import psycopg
import pytest

from support import stores
from support.life import begin, complete, new_key, until
from support.outbox import JSON_TYPE, SCOPE

# TRAP is an address where nobody may come.
PATHS = ["", "x", "//TRAP/x", "///TRAP/x", "http://TRAP/x", "HTTPS://TRAP/",
         "@TRAP/x", ":80@TRAP/", ".TRAP/x", "TRAP/x", "/../x", "/a/../../x",
         "/a/..", "/%2e%2e/x", "/.%2E/x", "/%2E./x", "/a/%2e%2e%2fx",
         "/a/..%2fx", "/a/..;/b", "/a/..%5cb", "/./x", "/a/%2e/b",
         "\\\\TRAP\\x", "/\\TRAP/x", "/a\\..\\b", "/a b", "/a\tb", "/a\nb",
         "/a\r\nHost: TRAP\r\n\r\n", "/a\x01", "/a\x7f", "/ü", "/a#TRAP",
         "/" + "a" * 8192]
# These stay where they belong, and arrive as they are.
HARMLESS = ["/@TRAP/x", "/x@TRAP:1/", "/:80@TRAP/", "/a//TRAP/x",
            "/?u=http://TRAP/../x", "/..a/b", "/a..b", "/...", "/a;b=c/d",
            "/%2f", "/a?x=..", "/~u/%40TRAP"]
HEADERS = ["Host: TRAP\r\n", "host : TRAP\r\n", "X: a\r\nHOST: TRAP\r\n",
           "X: a\nHost: TRAP\r\n", "X: a\rHost: TRAP\r\n", "X: a\r\n b\r\n",
           "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n",
           "Connection: close\r\n", "Upgrade: h2c\r\n",
           "Idempotency-Key: mine\r\n", "Latchkey-Token: 1\r\n",
           "webhook-signature: v1,x\r\n", "Bad Name: x\r\n", ": x\r\n",
           "no colon\r\n", "X: y", "\r\n", "X: a\x00b\r\n"]
METHODS = ["CONNECT", "get", "TRACE", "HEAD", "GET /x HTTP/1.1\r\nX: y", "",
           "PRI"]


@pytest.fixture
def trapped(box, app):
    """(box, app, the trap's address): the trap is an app as well."""
    from support.app import App
    trap = App().start()
    box.target("hook", "http://%s/base" % app.address, id="json:/call",
               attempts="1").start()
    yield box, app, trap.address
    box.wait_settled()
    assert trap.count() == 0, [call.target for call in trap.calls]
    trap.finish()


def test_paths_that_lead_elsewhere_are_refused_on_the_wire(trapped):
    box, app, trap = trapped
    key = new_key()
    token = begin(box.raw, key)
    for path in PATHS:
        reply = box.enqueue(key, token, "n", "hook",
                            path.replace("TRAP", trap))
        assert reply.startswith("ERR"), (path, reply)
        assert "\r" not in reply and "\x01" not in reply
    complete(box.raw, key, token)
    assert box.jobs() == [] and app.count() == 0


def test_paths_that_only_look_so_arrive_as_they_are(trapped):
    box, app, trap = trapped
    for path in HARMLESS:
        path = path.replace("TRAP", trap)
        box.wait_job(box.leave(b"{}", target="hook", path=path))
        assert app.last.target == "/base" + path
        assert app.last.headers.all("Host") == [app.address]


def test_methods_and_headers_that_break_out_are_refused_on_the_wire(trapped):
    box, app, trap = trapped
    key = new_key()
    token = begin(box.raw, key)
    for headers in HEADERS:
        reply = box.enqueue(key, token, "n", "hook", "/x",
                            headers=headers.replace("TRAP", trap))
        assert reply.startswith("ERR"), (headers, reply)
    for method in METHODS:
        reply = box.raw("ENQUEUE", "acme", SCOPE, key, token, "n", "hook",
                        "/x", "METHOD", method)
        assert reply.startswith("ERR"), (method, reply)
    complete(box.raw, key, token)
    assert box.jobs() == [] and app.count() == 0


@pytest.mark.parametrize("name", ["@gateway", "Hook", "", "a/b", "a b",
                                  "x" * 65, "http://TRAP", "127.0.0.1:80"])
def test_a_target_is_a_name_of_the_configuration_and_nothing_else(trapped,
                                                                  name):
    box, app, trap = trapped
    key = new_key()
    token = begin(box.raw, key)
    reply = box.enqueue(key, token, "n", name.replace("TRAP", trap), "/x")
    assert reply.startswith("ERR"), reply
    complete(box.raw, key, token)
    assert box.jobs() == []


@pytest.mark.stores("postgres")
def test_the_same_is_refused_by_sql(trapped):
    box, app, trap = trapped
    # Line ends are put right there.
    bad = ([("/x", "POST", one) for one in HEADERS
            if "\x00" not in one and one not in ("X: y", "\r\n")] +
           [("/x", one, JSON_TYPE) for one in METHODS] +
           [(one, "POST", JSON_TYPE) for one in PATHS])
    connection = box.server.connect(stores.database_of(box.url))
    for path, method, headers in bad:
        with pytest.raises(psycopg.Error) as error:
            print(repr((path, method, headers)))  # the last one was taken
            connection.execute(
                "SELECT latchkey.enqueue('acme', 's', c.key, c.token, 'n',"
                " 'hook', %s, %s, %s, '') FROM (SELECT 'k' AS key, token FROM"
                " latchkey.claim('acme', 's', 'k', 'f')) c",
                (path.replace("TRAP", trap), method,
                 headers.replace("TRAP", trap)))
        assert error.value.sqlstate == "22023", (path, method, headers,
                                                 error.value)
    assert box.jobs() == []


TAMPERED = [("path", path) for path in PATHS] + [
    ("method", method) for method in METHODS] + [
    ("headers", headers) for headers in HEADERS]


def tamper_postgres(box, changes):
    for number, column, value in changes:
        # Text is kept with backslashes doubled.
        value = value.encode("latin-1") if column == "headers" else \
            value.replace("\\", "\\\\")
        try:
            box.sql("UPDATE latchkey.job SET %s = %%s WHERE id = %%s" % column,
                    (value, number))
        except psycopg.Error:
            pass  # the table does not even take it
        else:
            yield number


def tamper_sqlite(box, changes):
    connection = sqlite3.connect(box.daemon.store)
    for number, column, value in changes:
        connection.execute("UPDATE call SET %s = ? WHERE id = ?" % column,
                           (value.encode("latin-1"), number))
        yield number
    connection.commit()
    connection.close()


def test_the_courier_looks_again_at_what_it_finds_in_the_store(box, app):
    """Whoever writes to the tables behind Latchkey's back gets no further."""
    from support.app import App
    trap = App().start()
    box.target("hook", "http://" + app.address, id="json:/call")
    box.start("courier.enabled=no")
    box.leave_many(len(TAMPERED), lambda key: b"{}", target="hook", path="/ok")
    numbers = [job["id"] for job in box.jobs()]
    changes = [(number, column, value.replace("TRAP", trap.address))
               for number, (column, value) in zip(numbers, TAMPERED)]
    box.daemon.stop()
    tamper = tamper_postgres if box.is_shared else tamper_sqlite
    changed = set(tamper(box, changes))
    box.daemon.settings.remove("courier.enabled=no")
    box.daemon.start()
    box.reconnect()
    box.wait_settled()
    for job, change in zip(box.jobs(), changes):
        expected = "dead" if job["id"] in changed else "delivered"
        assert job["state"] == expected, (job["path"], change)
    assert {call.target for call in app.calls} <= {"/ok"}
    assert trap.count() == 0
    trap.finish()


def set_counts(box, number, attempts, forgiven):
    values = (attempts, forgiven, number)
    if box.is_shared:
        box.sql("UPDATE latchkey.job SET attempts = %s, forgiven = %s"
                " WHERE id = %s", values)
        return
    connection = sqlite3.connect(box.daemon.store)
    connection.execute("UPDATE job SET attempts = ?, forgiven = ?"
                       " WHERE id = ?", values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("attempts, forgiven", [(0, 9), (-1, 0)])
def test_counts_that_cannot_be_do_not_end_the_daemon(box, app, attempts,
                                                     forgiven):
    box.target("hook", "http://" + app.address)
    box.start("courier.enabled=no")
    box.leave_many(2, lambda key: b"{}", target="hook", path="/ok")
    hurt, good = [job["id"] for job in box.jobs()]
    box.daemon.stop()
    set_counts(box, hurt, attempts, forgiven)
    box.daemon.settings.remove("courier.enabled=no")
    box.daemon.start()
    box.reconnect()
    until(lambda: box.show(good)["state"] == "delivered")
    if attempts < 0:
        until(lambda: any("event=job-damaged" in line
                          for line in box.daemon.log))
    else:
        until(lambda: box.show(hurt)["state"] == "dead")
    assert box.raw("PING") == "PONG"
    assert app.count() == 1
