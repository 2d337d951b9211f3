"""Who may see and do what (C36): by the user of a unix socket, by AUTH, after
a reload (C40); and what is written down of it (C35)."""

import json
import os
import signal
import subprocess

import pytest

from support import build, stores
from support.life import FINGERPRINT, begin, finish, name, new_key, until
from support.resp import Closed, Error, encode, fields
from support.users import acting_as, as_root

WHO = ("WHO", "ann", "WHY", "ticket 7")
# A password for apps: readers and operators are no more than that.
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
    """A daemon that keeps jobs and delivers none, and needs no password."""
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


# ---- who connects through a unix socket -------------------------------------

# Users and groups that need not exist.
ANN, BOB, SUPPORT = 4001, 4002, 4003


def connect_as(daemon, user, *groups):
    with acting_as(user, *groups):
        return daemon.raw()


def listen_to_all(daemon):
    """A folder and a socket that every user may enter."""
    daemon.folder.chmod(0o755)
    daemon.settings.append("daemon.socket_mode=666")
    return daemon.start()


def write_config(daemon, text):
    if not daemon.config:
        daemon.config = daemon.folder / "latchkeyd.conf"
    daemon.config.write_text(text)
    daemon.config.chmod(0o600)
    return daemon


def reload(daemon, event="event=reloaded"):
    since = len(daemon.log)
    daemon.signal(signal.SIGHUP)
    return daemon.wait_for_log(event, since=since)


def can(client):
    """The roles of a connection, by what it is let do."""
    words = {"use": ("CLAIM", *name(new_key()), FINGERPRINT),
             "read": ("LIST",), "operate": ("EVICT", *name("none"), *WHO)}
    return {role for role, command in words.items()
            if not isinstance(client(*command), Error)}


ALL = {"use", "read", "operate"}


@pytest.mark.parametrize("settings", [[], CLOSED], ids=["open", "closed"])
def test_the_daemon_s_own_user_operates_a_default_install(make_daemon,
                                                          settings):
    daemon = make_daemon(own=True, tcp=True, settings=settings)
    raw = daemon.raw()
    assert can(raw) == ALL
    assert raw("RESET") == "RESET" and can(raw) == ALL
    assert raw("AUTH", "reader", "reader-secret") == "OK" and can(raw) == ALL
    # The kernel says nothing of those who come by TCP.
    over_tcp = daemon.raw(daemon.tcp_address)
    assert can(over_tcp) == ({"use"} if not settings else set())
    assert daemon.cli("list", user=None).returncode == 0


def test_a_line_of_its_own_takes_the_place_of_what_a_user_has(make_daemon):
    daemon = make_daemon(settings=[*CLOSED, "peers.%d=read" % os.geteuid()])
    assert can(daemon.raw()) == {"read"}


@as_root
def test_others_have_the_roles_that_the_section_gives_them(make_daemon):
    daemon = write_config(make_daemon(start=False, own=True), """
[auth]
password = app-secret
[peers]
%d = operate
%d = use, read
@%d = read
""" % (ANN, BOB, SUPPORT))
    listen_to_all(daemon)
    assert can(daemon.raw()) == ALL
    assert can(connect_as(daemon, ANN)) == {"read", "operate"}
    assert can(connect_as(daemon, BOB)) == {"use", "read"}
    assert can(connect_as(daemon, 4009, 4009, 4008, SUPPORT)) == {"read"}
    assert can(connect_as(daemon, ANN, 4009)) == {"read", "operate"}
    assert can(connect_as(daemon, 4009, SUPPORT)) == {"read"}
    assert can(connect_as(daemon, 4009, ANN, BOB)) == set()
    stranger = connect_as(daemon, 4009)
    assert stranger("LIST").code == "NOAUTH"
    # What the kernel calls every user of another namespace.
    assert can(connect_as(daemon, 65534, 65534)) == set()
    assert stranger("AUTH", "app-secret") == "OK" and can(stranger) == {"use"}


@as_root
def test_many_groups_are_all_looked_at(make_daemon):
    daemon = listen_to_all(make_daemon(start=False, settings=[
        *CLOSED, "peers.@%d=read" % SUPPORT]))
    many = list(range(5000, 5100))
    assert can(connect_as(daemon, ANN, *many, SUPPORT)) == {"read"}
    assert can(connect_as(daemon, ANN, *many)) == set()


@as_root
def test_who_has_changed_since_it_connected_is_who_connected(make_daemon):
    daemon = listen_to_all(make_daemon(start=False, own=True, settings=CLOSED))
    client = connect_as(daemon, ANN)
    assert can(client) == set()
    raw = daemon.raw()
    with acting_as(ANN):
        assert can(raw) == ALL


def test_a_user_whom_the_machine_does_not_know_is_named(make_daemon):
    daemon = make_daemon(start=False)
    for line, error in (
            ("ann-of-nowhere = read", "there is no such user"),
            ("@people-of-nowhere = read", "there is no such group"),
            ("65534 = operate", "user namespace"),
            ("root = boss", "list of roles"),
            ("root = none use", "list of roles"), ("root =", "list of roles")):
        write_config(daemon, "[peers]\n%s\n" % line)
        result = subprocess.run(
            [str(daemon.build / "latchkeyd"), "--config", str(daemon.config),
             "--check-config"], capture_output=True, text=True,
            timeout=60 * build.patience())
        assert result.returncode != 0
        assert "latchkeyd.conf:2: peers.%s: " % line.split(" ")[0] \
            in result.stderr and error in result.stderr, result.stderr


# ---- after a reload ---------------------------------------------------------

USERS = """
[users]
ann = operate ann-secret
bob = read bob-secret
cat = use cat-secret
"""


@pytest.fixture
def known(make_daemon):
    """A daemon with users in a file, and a password for apps."""
    return write_config(make_daemon(start=False),
                        "[auth]\npassword = app-secret\n" + USERS).start()


@pytest.mark.parametrize("change", [
    ("ann = operate ann-secret\n", ""),
    ("ann-secret", "another"),
    ("ann = operate", "ann = read")], ids=["gone", "password", "role"])
def test_who_is_changed_in_the_file_loses_its_open_connections(known, change):
    ann, bob = known.raw(user="ann"), known.raw(user="bob")
    client, operator = app(known), known.raw(user="operator")
    key = new_key()
    finish(client, key)
    write_config(known, known.config.read_text().replace(*change))
    reload(known)
    assert ann.at_end()
    known.wait_for_log("event=client-revoked")
    assert can(bob) == {"read"} and can(client) == {"use"}
    assert can(operator) == {"read", "operate"}


def test_a_changed_password_for_apps_closes_those_who_gave_the_old_one(known):
    client, default, ann = app(known), known.raw(), known.raw(user="ann")
    assert default("AUTH", "default", "app-secret") == "OK"
    stranger = known.raw()
    write_config(known, known.config.read_text().replace("app-secret", "new"))
    reload(known)
    assert client.at_end() and default.at_end()
    assert can(ann) == {"read", "operate"}
    assert stranger("AUTH", "new") == "OK" and can(stranger) == {"use"}


def test_a_reload_that_fails_changes_no_rights(known):
    ann = known.raw(user="ann")
    write_config(known, known.config.read_text().replace(
        "ann = operate ann-secret\n", "") + "[peers]\nno-one-at-all = read\n")
    assert "no-one-at-all" in reload(known, "event=reload-failed")
    assert can(ann) == {"read", "operate"}


def test_a_user_of_a_socket_loses_and_gets_roles(make_daemon):
    me = os.geteuid()
    daemon = write_config(make_daemon(start=False, own=True),
                          "[auth]\npassword = app-secret\n").start()
    raw = daemon.raw()
    assert can(raw) == ALL
    write_config(daemon, "[auth]\npassword = app-secret\n"
                         "[peers]\n%d = read\n" % me)
    reload(daemon)
    assert raw.at_end()
    reader = daemon.raw()
    assert can(reader) == {"read"}
    write_config(daemon, "[auth]\npassword = app-secret\n"
                         "[peers]\n%d = read use\n" % me)
    reload(daemon)
    assert can(reader) == {"read", "use"}


def test_nothing_is_run_with_a_right_that_is_lost(make_daemon):
    # A claim that waits is decided later, and what is sent behind it is run
    # later still: neither may count.
    daemon = write_config(make_daemon(start=False), "").start()
    operator = daemon.raw(user="operator")
    key, other = new_key(), new_key()
    token = begin(operator, key)
    raw = daemon.raw()
    raw.send_bytes(encode("CLAIM", *name(key), FINGERPRINT, "WAIT", 60000) +
                   encode("CLAIM", *name(other), FINGERPRINT))
    until(lambda: b"blocked_clients:1\r\n" in operator("INFO"))
    write_config(daemon, "[auth]\npassword = app-secret\n")
    reload(daemon)
    client = app(daemon)
    assert client("RELEASE", *name(key), token) == "OK"
    with pytest.raises(Closed):
        raw.read()
    assert client("LOOKUP", *name(other)) is None
    assert fields(client("LOOKUP", *name(key)))["state"] == b"released"


def test_what_was_begun_is_answered_before_the_end(faulty):
    # The claim is with the store when the rights change; what follows waits
    # for it, and is not run any more.
    daemon = write_config(faulty(start=False), "").start()
    raw, operator, key = daemon.raw(), daemon.raw(user="operator"), new_key()
    daemon.set_faults("hold before_sync")
    raw.send_bytes(encode("CLAIM", *name(key), FINGERPRINT) +
                   encode("LOOKUP", *name(key)))
    until(lambda: "1" in [row["waiting"] for row in clients(operator)])
    write_config(daemon, "[auth]\npassword = app-secret\n")
    reload(daemon)
    daemon.set_faults()
    assert raw.read()[0] == b"NEW"
    with pytest.raises(Closed):
        raw.read()


def test_who_lost_its_rights_needs_no_place_for_its_last_answer(faulty):
    limits = "[limits]\nunauthenticated = 1\nauth_timeout = 100ms\n"
    daemon = write_config(faulty(start=False), limits).start()
    operator = daemon.raw(user="operator")
    raws = [daemon.raw() for _ in range(3)]
    daemon.set_faults("hold before_sync")
    for raw in raws:
        raw.send("CLAIM", *name(new_key()), FINGERPRINT)
    until(lambda: [row["waiting"] for row in clients(operator)].count("1") == 3)
    write_config(daemon, limits + "[auth]\npassword = app-secret\n")
    reload(daemon)
    assert daemon.raw().at_end()  # a stranger that came later
    daemon.set_faults()
    assert all(raw.read()[0] == b"NEW" and raw.at_end() for raw in raws)


# ---- CLIENT -----------------------------------------------------------------

def clients(raw):
    """CLIENT LIST, as it is read by tools for Redis."""
    return [dict(pair.split("=", 1) for pair in line.split(" "))
            for line in raw("CLIENT", "LIST").decode().splitlines()]


def test_connections_are_listed_for_readers_and_apps_see_themselves(known):
    client, reader = app(known), known.raw(user="reader")
    client("CLIENT", "SETNAME", "web")
    begin(client, new_key())
    rows = {row["id"]: row for row in clients(reader)}
    assert len(rows) == 2
    mine = rows[str(client("CLIENT", "ID"))]
    assert (mine["name"], mine["user"], mine["role"], mine["waiting"]) == (
        "web", "default", "use", "0")
    assert mine["addr"] == "unix"
    assert mine["peer"] == "%d/%d" % (os.geteuid(), os.getpid())
    assert int(mine["tot-net-in"]) > 100 and int(mine["tot-net-out"]) > 10
    assert int(mine["tot-cmds"]) == 3
    theirs = rows[str(reader("CLIENT", "ID"))]
    assert theirs["user"] == '"reader"' and theirs["role"] == "read"
    assert [row["id"] for row in clients(client)] == [mine["id"]]


def test_an_operator_ends_connections_by_id_user_and_address(make_daemon):
    daemon = make_daemon(tcp=True)
    operator = daemon.raw(user="operator")
    one, two, reader, other = (
        daemon.raw(), daemon.raw(daemon.tcp_address),
        daemon.raw(user="reader"), daemon.raw(user="operator"))
    assert reader("CLIENT", "KILL", "ID", 1).code == "NOPERM"
    assert one("CLIENT", "KILL", "ID", 1).code == "NOPERM"
    for words in ((), ("WHO", "ann"), ("ID", "x"), ("NAME", "x")):
        assert isinstance(operator("CLIENT", "KILL", *words), Error), words
    number = one("CLIENT", "ID")
    assert operator("CLIENT", "KILL", "ID", number, "USER", "reader") == 0
    assert operator("CLIENT", "KILL", "ID", number, *WHO) == 1
    assert one.at_end()
    address = "%s:%d" % two.sock.getsockname()
    assert operator("CLIENT", "KILL", "ADDR", address) == 1 and two.at_end()
    assert operator("CLIENT", "KILL", "USER", "reader") == 1
    assert reader.at_end()
    # All but the one that asks.
    assert operator("CLIENT", "KILL", "USER", "operator") == 1
    assert other.at_end() and operator("PING") == "PONG"
    line = daemon.wait_for_log('action="client kill"')
    assert "client=%d " % number in line and 'who="operator/ann"' in line
    assert 'why="ticket 7"' in line


# ---- the log of what operators do -------------------------------------------

def acts(daemon):
    return [line.split("event=operator ", 1)[1] for line in daemon.log
            if "event=operator " in line]


def expected(action, about, who="operator/ann"):
    """A line of the log, from the action on."""
    peer = "%d/%d" % (os.geteuid(), os.getpid())
    return 'action="%s" who="%s" peer=%s %swhy="ticket 7"' % (
        action, who, peer, about and about + " ")


def test_what_operators_do_is_in_the_log_once_it_counts(guarded):
    client, operator = app(guarded), guarded.raw(user="operator")
    done, held = new_key(), new_key()
    finish(client, done)
    token = begin(client, held)
    assert client("DOUBT", *name(held), token, "lost") == "OK"
    references = [fields(client("LOOKUP", *name(key)))["reference"].decode()
                  for key in (done, held)]
    # None of these does anything.
    operator("EVICT", *name("none"), *WHO)
    operator("RESOLVE", *name(done), "RELEASED", *WHO)
    guarded.raw(user="reader")("EVICT", *name(done), *WHO)
    operator("LOOKUP", *name(done), "BODY", *WHO)
    assert operator("EVICT", *name(done), *WHO) == "OK"
    assert operator("RESOLVE", *name(held), "RELEASED", *WHO) == "OK"
    operator("EXPORT", "BEGIN", *WHO)
    guarded.wait_for_log('action="export"')
    assert acts(guarded) == [
        expected("look", "reference=" + references[0]),
        expected("evict", "reference=" + references[0]),
        expected("resolve released", "reference=" + references[1]),
        expected("export", "")]


def test_what_operators_do_to_a_store_and_its_clock_is_in_the_log(make_daemon):
    daemon = make_daemon()
    operator = daemon.raw(user="operator")
    copy = daemon.folder / "copy.db"
    assert operator("BACKUP", str(copy), *WHO) == "OK"
    assert operator("CLOCK", "ACCEPT", *WHO) == "OK"
    assert isinstance(operator("BACKUP", str(copy), *WHO), Error)
    daemon.wait_for_log('action="accept clock"')
    assert acts(daemon) == [expected("backup", 'path="%s"' % copy),
                            expected("accept clock", "")]


def test_what_operators_do_to_jobs_is_in_the_log(holding):
    raw, operator = holding.raw(), holding.raw(user="operator")
    key = new_key()
    assert raw("ENQUEUE", *name(key), begin(raw, key), "one", "pay",
               "/x") == "OK"
    number = fields(operator("JOBS")[1][0])["id"]
    assert isinstance(operator("JOB", "AGAIN", number, *WHO), Error)
    operator("JOB", "SHOW", number, "BODY", *WHO)
    assert operator("JOB", "DROP", number, *WHO) == "OK"
    assert operator("TARGET", "PAUSE", "pay", *WHO) == "OK"
    holding.wait_for_log('action="target pause"')
    assert acts(holding) == [expected("job look", "job=%d" % number),
                             expected("job drop", "job=%d" % number),
                             expected("target pause", "target=pay")]


@as_root
def test_the_kernel_vouches_for_who_acts_without_auth(make_daemon):
    daemon = listen_to_all(make_daemon(start=False, own=True, settings=[
        "peers.@%d=operate" % SUPPORT]))
    by_name, by_group = daemon.raw(), connect_as(daemon, ANN, SUPPORT)
    for client in (by_name, by_group):
        assert client("CLOCK", "ACCEPT", *WHO) == "OK"
    assert by_name("CLOCK", "ACCEPT", "WHO", "root", "WHY", "x") == "OK"
    assert [fields(entry)["who"] for entry in by_name("AUDIT")] == [
        b"root/ann", b"%d/ann" % ANN, b"root"]
    line = daemon.wait_for_log('who="root/ann"')
    assert " peer=root/%d " % os.getpid() in line
    assert by_name("CLIENT", "KILL", "USER", str(ANN)) == 1
    assert by_group.at_end()


def test_the_tool_lists_connections_and_ends_them(make_daemon):
    daemon = make_daemon(tcp=True)
    one, two = daemon.raw(), daemon.raw(daemon.tcp_address)
    two("CLIENT", "SETNAME", "web")
    lines = daemon.cli("clients").stdout.splitlines()
    assert lines[0].split() == ["ID", "FROM", "USER", "ROLE", "NAME", "AGE",
                                "IDLE", "LAST", "WAITING"]
    shown = "\n".join(lines)
    assert "%d/%d" % (os.geteuid(), os.getpid()) in shown
    assert "%s:%d" % two.sock.getsockname() in shown and " web " in shown
    assert max(map(len, lines)) < 80
    number = str(one("CLIENT", "ID"))
    rows = json.loads(daemon.cli("clients", "--json").stdout)["clients"]
    mine, = [row for row in rows if row["id"] == number]
    assert (mine["role"], mine["user"]) == ("use", "default")
    assert "operator" in [row["user"] for row in rows]
    assert daemon.cli("clients", "kill", number).returncode == 2
    result = daemon.cli("clients", "kill", number, "--why", "it hangs")
    assert result.returncode == 0 and number in result.stdout, result
    assert one.at_end()
    assert daemon.cli("clients", "kill", number, "--why", "x").returncode == 1
    assert daemon.cli("clients", "kill", number, "--why", "x",
                      user="reader").returncode == 4
