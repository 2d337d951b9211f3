"""The functions for apps: claim, work, enqueue and complete in a transaction
of the app's own; rivals, cuts, isolation levels and rights."""

import contextlib
import datetime
import threading

import psycopg
import pytest

from support.life import until
from support.postgres import Postgres
from support.schema import (Op, apply, apply_one, claim_new, fresh_database)

STALE, KEPT = "LK001", "LK002"
NAME = ("acme", "POST /payments", "k")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
OLD = LEVELS[1:]
FIELDS = ("verdict", "token", "attempt", "status", "headers", "body",
          "retry_after", "since", "expires", "reason")


@pytest.fixture(scope="module")
def server():
    with Postgres(settings={"max_prepared_transactions": "4"}) as server:
        yield server


@pytest.fixture(scope="module")
def made(server):
    name = fresh_database(server)
    for statement in (
            "CREATE TABLE payment (id int PRIMARY KEY, amount int)",
            "DO $$ BEGIN CREATE ROLE shop LOGIN IN ROLE latchkey_app;"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            "GRANT ALL ON payment TO shop"):
        server.query(statement, database=name)
    return name


@pytest.fixture
def database(server, made):
    """Empty for each test, and without clients after it."""
    server.query("TRUNCATE payment, latchkey.operation, latchkey.answer,"
                 " latchkey.job, latchkey.attempt, latchkey.audit,"
                 " latchkey.keeper, latchkey.used_name,"
                 " latchkey.extension",
                 database=made)
    yield made
    while server.clients:
        server.clients.pop().close()


@pytest.fixture
def db(server, database):
    """The daemon's side, and whoever looks into the tables."""
    return server.connect(database)


@pytest.fixture
def connect(server, database):
    """Connections of the app; each statement for itself, or not."""
    return lambda **options: server.connect(database, user="shop", **options)


@pytest.fixture
def app(connect):
    return connect()


def call(db, function, *values, **named):
    text = "SELECT * FROM latchkey.%s(%s)" % (function, ", ".join(
        ["%s"] * len(values) + ["%s => %%s" % name for name in named]))
    return db.execute(text, (*values, *named.values())).fetchone()


def claim(db, *name, fingerprint="f", **more):
    return dict(zip(FIELDS, call(db, "claim", *(name or NAME), fingerprint,
                                 **more)))


def begin(db, *name, **more):
    verdict = claim(db, *name, **more)
    assert verdict["verdict"] == "NEW", verdict
    return verdict["token"]


def complete(db, token, body=b"done", status=201, name=NAME, headers="A: b",
             **more):
    return call(db, "complete", *name, token, status, headers, body, **more)


def refused(code, function, *values, **more):
    """The error of a call that must be refused with that SQLSTATE."""
    with pytest.raises(psycopg.Error) as caught:
        function(*values, **more)
    assert caught.value.sqlstate == code, caught.value
    return caught.value


def lookup(db, *name):
    row = call(db, "lookup", *(name or NAME))
    return row and dict(zip(("state", "token", "attempt", "claimed", "locked",
                             "since", "completed", "expires", "status",
                             "headers", "body", "omitted", "reason"), row))


def count(db, table):
    return db.execute("SELECT count(*) FROM " + table).fetchone()[0]


# ---- one transaction ----

@pytest.mark.parametrize("level", LEVELS)
def test_claim_work_job_and_completion_are_one_transaction(db, connect, level):
    # C26, C02
    app = connect(autocommit=False)
    app.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL "
                + level)
    app.commit()
    assert claim(app)["verdict"] == "NEW"
    app.rollback()
    assert lookup(db) is None
    token = begin(app)
    app.execute("INSERT INTO payment VALUES (1, 100)")
    job = (*NAME, token, "receipt", "mailer", "/send")
    assert call(app, "enqueue", *job, body=b"hello") == (True,)
    assert call(app, "enqueue", *job, body=b"hello") == (False,)
    assert complete(app, token, b"\x00\xff\\") == ("OK",)
    assert lookup(db) is None and count(db, "latchkey.job") == 0
    app.commit()
    again = claim(app)
    assert (again["verdict"], again["status"], bytes(again["headers"]),
            bytes(again["body"])) == ("REPLAY", 201, b"A: b\r\n", b"\x00\xff\\")
    assert again["expires"] - again["since"] == datetime.timedelta(1)
    assert claim(app, fingerprint="g")["verdict"] == "MISMATCH"
    app.commit()
    assert count(db, "payment") == count(db, "latchkey.job") == 1
    # The daemon says the same.
    assert apply_one(db, "claim", "k", tenant=NAME[0],
                     scope=NAME[1])[0] == "REPLAY"


STEPS = (
    lambda app, note: note.update(token=begin(app)),
    lambda app, note: app.execute("INSERT INTO payment VALUES (1, 100)"),
    lambda app, note: call(app, "enqueue", *NAME, note["token"], "receipt",
                           "mailer", "/send"),
    lambda app, note: complete(app, note["token"]),
)


@pytest.mark.parametrize("cut", range(len(STEPS) + 1))
@pytest.mark.parametrize("how", ("terminate", "rollback", "error"))
def test_a_transaction_that_is_cut_anywhere_leaves_nothing(
        server, db, connect, cut, how):
    # C26: after each step, and before COMMIT.
    app = connect(autocommit=False)
    note = {}
    app.execute("SELECT 1")
    for step in STEPS[:cut]:
        step(app, note)
    if how == "rollback":
        app.rollback()
    elif how == "error":
        with pytest.raises(psycopg.errors.DivisionByZero):
            app.execute("SELECT 1 / 0")
        app.rollback()
    else:
        assert db.execute("SELECT pg_terminate_backend(%s, 20000)",
                          (app.info.backend_pid,)).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            app.commit()
    for table in ("latchkey.operation", "latchkey.answer", "latchkey.job",
                  "payment"):
        assert count(db, table) == 0
    app = connect(autocommit=False)
    for step in STEPS:
        step(app, note)
    app.commit()
    assert [count(db, table) for table in (
        "latchkey.operation", "latchkey.answer", "latchkey.job", "payment")
    ] == [1] * 4
    assert lookup(db)["attempt"] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_rival_is_told_inflight_at_once(db, connect, level):
    # C26, C01
    app, rival = connect(autocommit=False), connect(autocommit=False)
    token = begin(app)
    rival.execute("SET TRANSACTION ISOLATION LEVEL " + level)
    rival.execute("SET LOCAL statement_timeout = '5s'")
    told = claim(rival)
    assert told["verdict"] == "INFLIGHT" and told["token"] is None
    assert datetime.timedelta() < told["retry_after"] <= datetime.timedelta(
        seconds=1)
    assert claim(rival, fingerprint="g")["verdict"] == "INFLIGHT"
    rival.rollback()
    complete(app, token)
    assert claim(rival)["verdict"] == "INFLIGHT"
    rival.rollback()
    app.commit()
    assert claim(rival)["verdict"] == "REPLAY"


def test_what_is_committed_is_told_while_somebody_has_the_operation(connect):
    # C03: also while the first is still running.
    app, rival = connect(autocommit=False), connect()
    begin(app)
    app.commit()
    call(app, "extend", *NAME, lookup(app)["token"])
    assert claim(rival, fingerprint="g")["verdict"] == "MISMATCH"
    assert claim(rival)["verdict"] == "INFLIGHT"
    complete(app, lookup(app)["token"])
    app.commit()
    assert claim(app)["verdict"] == "REPLAY"
    assert claim(rival)["verdict"] == "REPLAY"
    assert claim(rival, fingerprint="g")["verdict"] == "MISMATCH"
    app.rollback()


# ---- a gateway's claim, completed by the app ----

def test_the_app_completes_the_claim_of_a_gateway_in_its_own_transaction(
        db, connect):
    # C26: a crash after the app's COMMIT finds the answer stored.
    app = connect(autocommit=False)
    name = {"tenant": "a\\\\c\\377", "scope": "POST /p\\\\q ü"}
    token = claim_new(db, "k\\\\y", owner="gateway", **name)
    plain = ("a\\c\\377".replace("\\377", ""), "POST /p\\q ü", "k\\y")
    # A tenant that text cannot hold is out of reach for the app.
    refused(STALE, complete, app, token, name=plain)
    app.rollback()
    name["tenant"] = "a\\\\c"
    token = claim_new(db, "k\\\\y", owner="gateway", **name)
    call(app, "fence", *plain, token)
    app.execute("INSERT INTO payment VALUES (1, 100)")
    # Meanwhile a sign of life of the gateway has to wait, a claim does not.
    assert [op.word for op in apply(
        db, Op("extend", "k\\\\y", token=token, lock=60000, **name),
        Op("claim", "k\\\\y", **name))] == ["again", "INFLIGHT"]
    assert complete(app, token, name=plain) == ("OK",)
    app.commit()
    # The gateway was killed, or completes too: the first completion stands.
    assert apply_one(db, "complete", "k\\\\y", token=token, status=500,
                     **name)[0] == "KEPT"
    assert bytes(lookup(db, *plain)["body"]) == b"done"
    assert db.execute("SELECT count(*), sum(octet_length(body))"
                      " FROM latchkey.answer").fetchone() == (1, 4)


def test_an_overtaken_app_is_stale_and_changes_nothing(db, connect):
    # C22, C26
    name = dict(zip(("tenant", "scope"), NAME))
    app = connect(autocommit=False)
    old = claim_new(db, "k", lock=1, **name)
    until(lambda: apply_one(db, "claim", "k", **name)[0] == "UNCERTAIN")
    new = claim_new(db, "k", reexecute=True, **name)
    for function, more in (("complete", (200, "", b"")), ("release", ()),
                           ("doubt", ("why",)), ("extend", ()), ("fence", ()),
                           ("enqueue", ("j", "t", "/"))):
        app.execute("INSERT INTO payment VALUES (1, 100)")
        error = refused(STALE, call, app, function, *NAME, old, *more)
        assert "STALE" in str(error) and "Roll back" in error.diag.message_hint
        app.rollback()
        refused(STALE, call, app, function, "acme", "other", "k", new, *more)
        app.rollback()
    assert count(db, "payment") == 0
    assert (lookup(db)["state"], lookup(db)["token"]) == ("in_progress", new)


def test_work_that_was_done_before_is_not_done_twice(db, connect):
    # C26: COMMIT was not heard of, so the app runs again with its token.
    app = connect(autocommit=False)
    token = begin(app)
    complete(app, token, b"first")
    app.commit()
    for function, more in (("complete", (200, "", b"2")), ("release", ()),
                           ("doubt", ("why",)), ("extend", ()), ("fence", ()),
                           ("enqueue", ("j", "t", "/"))):
        app.execute("INSERT INTO payment VALUES (1, 100)")
        error = refused(KEPT, call, app, function, *NAME, token, *more)
        assert "KEPT" in str(error) and "lookup" in error.diag.message_hint
        app.rollback()
    assert count(db, "payment") == 0
    assert bytes(lookup(db)["body"]) == b"first"


def test_the_holder_waits_for_a_daemon_that_is_at_it_but_not_for_long(
        server, database, connect):
    app = connect(autocommit=False)
    token = begin(app)
    app.commit()
    daemon = server.connect(database, autocommit=False)
    name = dict(zip(("tenant", "scope"), NAME))
    apply(daemon, Op("extend", "k", token=token, lock=60000, **name))
    error = refused("55P03", complete, app, token)
    assert "run the whole transaction again" in error.diag.message_hint
    app.rollback()
    waiting = threading.Thread(target=complete, args=(app, token))
    waiting.start()
    until(lambda: server.query(
        "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        " AND wait_event = 'advisory'", (app.info.backend_pid,)))
    daemon.commit()
    waiting.join()
    app.commit()
    assert lookup(app)["state"] == "completed"


def test_an_operation_is_kept_longer_if_the_transaction_commits(app):
    assert call(app, "keep", *NAME, "90 days") == (False,)
    token = claim(app)["token"]
    complete(app, token, ttl="1 hour")
    before = lookup(app)["expires"]
    assert call(app, "keep", *NAME, "1 minute") == (True,)
    assert lookup(app)["expires"] == before  # never shorter
    with contextlib.suppress(ZeroDivisionError), app.transaction():
        assert call(app, "keep", *NAME, "90 days") == (True,)
        raise ZeroDivisionError
    assert lookup(app)["expires"] == before
    with app.transaction():
        assert call(app, "keep", *NAME, "90 days") == (True,)
    assert lookup(app)["expires"] > before + datetime.timedelta(days=89)
    refused("22023", call, app, "keep", *NAME, "0 seconds")


def test_what_an_open_operation_is_promised_counts_from_its_completion(app):
    token = claim(app)["token"]
    assert call(app, "keep", *NAME, "90 days") == (True,)
    complete(app, token, ttl="1 hour")
    stored = lookup(app)
    assert stored["expires"] > stored["completed"] + datetime.timedelta(
        days=89)


# ---- a claim that is committed before the work ----

def test_the_life_of_a_claim_over_several_transactions(app):
    # C22
    first = claim(app, lock="1 hour", owner="me")
    assert claim(app)["verdict"] == "INFLIGHT"
    assert claim(app, owner="me")["token"] == first["token"]  # C41
    assert call(app, "extend", *NAME, first["token"], "2 hours") == ("OK",)
    assert lookup(app)["locked"] > first["expires"]
    assert call(app, "doubt", *NAME, first["token"], "no \\ answer") == ("OK",)
    told = claim(app)
    assert (told["verdict"], told["reason"]) == ("UNCERTAIN", "no \\ answer")
    assert lookup(app)["reason"] == "no \\ answer"
    assert call(app, "release", *NAME, first["token"]) == ("OK",)
    assert lookup(app)["state"] == "released"
    second = claim(app)
    assert (second["verdict"], second["attempt"]) == ("NEW", 2)
    assert complete(app, second["token"], omit="too large",
                    ttl="1 minute") == ("OK",)
    told = claim(app)  # C12
    assert (told["verdict"], told["status"], told["reason"], told["body"]) == (
        "OMITTED", 201, "too large", None)
    assert told["expires"] - told["since"] == datetime.timedelta(minutes=1)


def test_a_lapsed_claim_is_uncertain_and_runs_again_only_if_asked(app):
    # C22
    token = begin(app, lock="1 millisecond")
    until(lambda: claim(app)["verdict"] == "UNCERTAIN")
    assert claim(app)["reason"] == lookup(app)["reason"] == "lock lapsed"
    again = claim(app, reexecute=True)
    assert again["verdict"] == "NEW" and again["token"] > token
    assert again["attempt"] == 2


def test_after_its_ttl_a_key_is_new(app):
    # C10
    complete(app, begin(app), ttl="20 milliseconds")
    until(lambda: lookup(app) is None)
    assert claim(app)["attempt"] == 1


def test_a_job_is_added_once_for_each_life_of_an_operation(db, app):
    job = ("j", "mailer", "/send")
    token = begin(app)
    assert call(app, "enqueue", *NAME, token, *job) == (True,)
    call(app, "release", *NAME, token)
    token = begin(app)  # the same operation, run again
    assert call(app, "enqueue", *NAME, token, *job) == (False,)
    complete(app, token)
    name = dict(zip(("tenant", "scope"), NAME))
    assert apply_one(db, "evict", "k", **name)[0] == "OK"
    token = begin(app)  # the same key, but another operation
    assert call(app, "enqueue", *NAME, token, *job) == (True,)
    assert db.execute(
        "SELECT count(DISTINCT generation), count(DISTINCT number), min(method)"
        " FROM latchkey.job").fetchone() == (2, 1, "POST")


@pytest.mark.parametrize("other", [
    {"target": "mailer2"}, {"path": "/sent"}, {"method": "PUT"},
    {"headers": "A: c"}, {"body": b"999"}])
def test_a_job_of_the_same_name_that_makes_another_call_is_refused(
        db, app, connect, other):
    # C28: an earlier run of the operation has left one
    job = {"target": "mailer", "path": "/send", "method": "POST",
           "headers": "A: b", "body": b"10"}
    token = begin(app)
    assert call(app, "enqueue", *NAME, token, "j", **job) == (True,)
    call(app, "release", *NAME, token)
    later = connect(autocommit=False)
    token = begin(later)
    later.commit()
    later.execute("INSERT INTO payment VALUES (1, 999)")
    assert call(later, "enqueue", *NAME, token, "j", delay="1 day",
                **job) == (False,)
    error = refused("LK003", call, later, "enqueue", *NAME, token, "j",
                    **{**job, **other})
    number, = db.execute("SELECT id FROM latchkey.job").fetchone()
    assert "--job %d --drop" % number in error.diag.message_hint
    later.rollback()
    assert count(db, "payment") == 0
    # In a batch, too, and in one with an operation that comes twice.
    mine = {"tenant": NAME[0], "scope": NAME[1], "token": token, "job": "j",
            "target": "mailer", "path": "/send", "headers": b"A: b\r\n"}
    ops = [Op("enqueue", "k", body=body, **mine) for body in (b"10", b"999")]
    for batch in ([ops[0]], [ops[1]], ops):
        apply(db, *batch)
        assert [op.verdict for op in batch] == [
            13 if op is ops[0] else -3 for op in batch]
    assert call(app, "enqueue", *NAME, token, "k", **{**job, **other}) == (
        True,)


def test_jobs_are_announced_unless_that_is_switched_off(
        server, connect, database):
    # For the database, a role, a session or a transaction.
    def heard_of(setting):
        app = connect()
        if setting:
            app.execute("SET latchkey.notify = " + setting)
        token = begin(app)
        call(app, "enqueue", *NAME, token, "j", "mailer", "/")
        complete(app, token, ttl="1 millisecond")
        app.execute("NOTIFY latchkey_job, 'end'")
        seen = []
        for one in ears.notifies():
            seen.append(one.payload)
            if one.payload == "end":
                return seen

    ears = connect()
    ears.execute("LISTEN latchkey_job")
    server.query("UPDATE latchkey.operation SET deadline_ms = 1",
                 database=database)
    for setting in (None, "on", "off", "FALSE", "no", "0"):
        server.query("TRUNCATE latchkey.operation, latchkey.job",
                     database=database)
        assert heard_of(setting) == (
            ["", "end"] if setting in (None, "on") else ["end"]), setting
    server.query("TRUNCATE latchkey.operation, latchkey.job",
                 database=database)
    server.query("ALTER DATABASE %s SET latchkey.notify = off" % database)
    try:
        assert heard_of(None) == ["end"]
    finally:
        server.query("ALTER DATABASE %s RESET latchkey.notify" % database)


def test_a_prepared_transaction_can_leave_a_job_that_is_not_announced(
        db, connect):
    # C26: PostgreSQL cannot prepare a transaction that notifies.
    app, rival = connect(autocommit=False), connect()
    for quiet in (False, True):
        if quiet:
            app.execute("SET LOCAL latchkey.notify = off")
        token = begin(app)
        call(app, "enqueue", *NAME, token, "j", "mailer", "/")
        complete(app, token)
        if not quiet:
            refused("0A000", app.execute, "PREPARE TRANSACTION 'tx'")
            app.rollback()
    app.execute("PREPARE TRANSACTION 'tx'")
    app.commit()
    assert claim(rival)["verdict"] == "INFLIGHT"
    rival.execute("COMMIT PREPARED 'tx'")
    assert claim(rival)["verdict"] == "REPLAY"
    assert count(db, "latchkey.job") == 1


def generations(db):
    return [row for row, in db.execute(
        "SELECT generation FROM latchkey.job ORDER BY id")]


def expire(db):
    db.execute("UPDATE latchkey.job SET state = 4")
    db.execute("UPDATE latchkey.operation SET deadline_ms = 1")


def reap(db):
    db.execute("SELECT latchkey.keep('me', 60000, 100)")
    for state in (4, 5):
        db.execute("SELECT latchkey.reap('me', 100, %s, 0)", (state,))


def test_the_uses_of_a_name_that_left_jobs_are_counted(db, app):
    # C28: what the key of a call is made of can be repeated after a loss
    def use(end="complete"):
        token = begin(app)
        call(app, "enqueue", *NAME, token, "j", "mailer", "/")
        call(app, "enqueue", *NAME, token, "j2", "mailer", "/")
        if end == "complete":
            complete(app, token)
        else:
            call(app, "release", *NAME, token)
        return generations(db)

    assert use("release") == [1, 1]
    assert use() == [1, 1]
    expire(db)
    assert use() == [2, 2]  # past its TTL
    apply_one(db, "evict", "k", tenant=NAME[0], scope=NAME[1])
    assert use() == [2, 2, 3, 3]
    expire(db)
    reap(db)
    assert count(db, "latchkey.operation") == count(db, "latchkey.job") == 0
    assert use() == [4, 4]  # past its end
    # An operation without jobs leaves nothing behind.
    complete(app, begin(app, "t", "s", "none"), name=("t", "s", "none"))
    assert count(db, "latchkey.used_name") == 1


def test_how_often_a_name_was_used_is_forgotten_long_after_its_operation(
        db, app):
    # C25
    name = ("t", "s", "other")
    for one in (NAME, name):
        token = begin(app, *one)
        call(app, "enqueue", *one, token, "j", "mailer", "/")
        complete(app, token, name=one)
    db.execute("UPDATE latchkey.used_name SET until_ms = 1")
    reap(db)  # the operations are there
    kept = db.execute("SELECT count(*), min(until_ms) - latchkey.now_ms() > %s"
                      " FROM latchkey.used_name",
                      (89 * 86400000,)).fetchone()
    assert kept == (2, True)
    db.execute("UPDATE latchkey.used_name SET until_ms = 1")
    expire(db)
    reap(db)  # now they are not: from now on
    assert count(db, "latchkey.operation") == 0
    assert db.execute("SELECT count(*), min(until_ms) - latchkey.now_ms() > %s"
                      " FROM latchkey.used_name",
                      (89 * 86400000,)).fetchone() == (2, True)
    db.execute("UPDATE latchkey.used_name SET until_ms = 1 WHERE name ="
               " latchkey.name_hash('t', 's', 'other')")
    reap(db)
    assert count(db, "latchkey.used_name") == 1


def test_jobs_of_before_uses_were_counted_keep_their_keys(db, app):
    # C28: an upgrade while the operation runs
    token = begin(app)
    call(app, "enqueue", *NAME, token, "j", "mailer", "/")
    db.execute("UPDATE latchkey.job SET generation = %s", (token,))
    db.execute("TRUNCATE latchkey.used_name")
    assert call(app, "enqueue", *NAME, token, "j", "mailer", "/") == (False,)
    call(app, "enqueue", *NAME, token, "j2", "mailer", "/")
    assert generations(db) == [token, token]


# ---- old snapshots ----

@pytest.mark.parametrize("level", OLD)
def test_an_old_snapshot_decides_nothing_from_what_it_cannot_see(
        connect, level):
    rival = connect()

    def later():
        """A transaction whose snapshot was taken a moment ago."""
        app = connect(autocommit=False)
        app.execute("SET TRANSACTION ISOLATION LEVEL " + level)
        app.execute("SELECT 1 FROM pg_class LIMIT 1")
        return app

    # There was none, and now there is one: in progress, then completed.
    app = later()
    token = begin(rival)
    refused("40001", claim, app)
    app = later()
    complete(rival, token)
    refused("40001", claim, app)
    # It has come, and the app is shown its token.
    name = ("acme", "POST /payments", "k2")
    for function, more in (("complete", (200, "", b"")), ("fence", ()),
                           ("release", ())):
        app = later()
        token = begin(rival, *name)
        refused("40001", call, app, function, *name, token, *more)
        call(rival, "release", *name, token)
    # It has changed.
    app = later()
    token = begin(rival, *name)
    refused("40001", call, app, "fence", *name, token)
    app = later()
    assert call(app, "fence", *name, token)
    app.commit()
    # Nothing has come: what is absent is absent, and no trace is left.
    app = later()
    refused(STALE, call, app, "fence", "acme", "s", "nobody", 1)
    app = later()
    assert begin(app, "acme", "s", "nobody")
    app.commit()
    assert lookup(rival, "acme", "s", "nobody")["attempt"] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_of_many_equal_transactions_at_once_one_does_the_work(
        db, connect, level):
    # C01, C26
    errors = []

    def run():
        app = connect(autocommit=False)
        app.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION"
                    " LEVEL " + level)
        app.commit()
        try:
            for turn in range(20):
                work(app, ("acme", "s", "turn-%d" % turn))
        except psycopg.Error as error:
            errors.append(error)

    def work(app, name):
        while True:
            try:
                verdict = claim(app, *name)
                if verdict["verdict"] == "NEW":
                    app.execute("INSERT INTO payment VALUES (%s, 1)",
                                (int(name[2][5:]),))
                    complete(app, verdict["token"], name=name)
                app.commit()
            except (psycopg.errors.SerializationFailure,
                    psycopg.errors.DeadlockDetected):
                app.rollback()
                continue
            if verdict["verdict"] in ("NEW", "REPLAY"):
                return

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert count(db, "payment") == count(db, "latchkey.answer") == 20


# ---- arguments ----

def test_odd_names_work_and_are_apart(db, app):
    # C13
    odd = ("\\", "\\\\", "\\001", "%", "'", "ü", "u\u0308", "a b", "😀",
           "NULL")
    for tenant in odd:
        for scope in odd:
            name = (tenant, scope, "k'\\\"")
            complete(app, begin(app, *name), name=name, body=(
                tenant + "/" + scope).encode())
    for tenant in odd:
        for scope in odd:
            found = lookup(app, tenant, scope, "k'\\\"")
            assert bytes(found["body"]) == (tenant + "/" + scope).encode()
    # As the daemon spells them.
    assert apply_one(db, "claim", "k'\\\\\"", tenant="\\\\",
                     scope="\\\\001")[0] == "REPLAY"


@pytest.mark.parametrize("what, bad", (
    ("tenant", (None, "s", "k", "f")), ("tenant", ("", "s", "k", "f")),
    ("tenant", ("ü" * 128, "s", "k", "f")), ("scope", ("t", None, "k", "f")),
    ("scope", ("t", "s" * 1025, "k", "f")), ("key", ("t", "s", None, "f")),
    ("key", ("t", "s", "k" * 256, "f")), ("key", ("t", "s", "kü", "f")),
    ("key", ("t", "s", "k\n", "f")), ("fingerprint", ("t", "s", "k", None)),
    ("fingerprint", ("t", "s", "k", "f" * 129)),
    ("TTL", ("t", "s", "k", "f", "0")), ("TTL", ("t", "s", "k", "f", None)),
    ("TTL", ("t", "s", "k", "f", "1000 years")),
    ("lock", ("t", "s", "k", "f", "1 h", "-1 s")),
    ("owner", ("t", "s", "k", "f", "1 h", "1 s", "o" * 65))))
def test_a_bad_claim_is_refused_and_named(app, what, bad):
    assert what in refused("22023", call, app, "claim",
                           *bad).diag.message_primary


@pytest.mark.parametrize("what, bad", (
    ("token", (None, 200, "", b"")), ("token", (0, 200, "", b"")),
    ("status", (1, 99, "", b"")), ("status", (1, 600, "", b"")),
    ("status", (1, None, "", b"")), ("header", (1, 200, "no colon", b"")),
    ("header", (1, 200, "A: b\r\n\r\nC: d", b"")),
    ("header", (1, 200, "A: \x01", b"")),
    ("header", (1, 200, "A: b\rC: d", b"")),
    ("TTL", (1, 200, "", b"", "0")), ("omit", (1, 200, "", b"", None, "")),
    ("omit", (1, 200, "", b"", None, "x" * 256))))
def test_a_bad_completion_is_refused_and_named(app, what, bad):
    assert what in refused("22023", call, app, "complete", *NAME,
                           *bad).diag.message_primary


@pytest.mark.parametrize("what, bad", (
    ("name", (None, "t", "/")), ("name", ("", "t", "/")),
    ("target", ("n", "", "/")), ("path", ("n", "t", "http://evil/")),
    ("path", ("n", "t", None)), ("path", ("n", "t", "/a b")),
    ("method", ("n", "t", "/", "post it")), ("method", ("n", "t", "/", None)),
    ("header", ("n", "t", "/", "POST", "broken"))))
def test_a_bad_job_is_refused_and_named(app, what, bad):
    token = begin(app)
    assert what in refused("22023", call, app, "enqueue", *NAME, token,
                           *bad).diag.message_primary


def test_header_lines_are_put_right(app):
    for given, kept in (("A: b\nC: d", b"A: b\r\nC: d\r\n"), ("", b""),
                        (None, b""), ("A: b\r\n", b"A: b\r\n"),
                        ("X: a\tb \\ ü", "X: a\tb \\ ü\r\n".encode())):
        name = ("t", "s", ascii(given))
        complete(app, begin(app, *name), name=name, headers=given)
        assert bytes(lookup(app, *name)["headers"]) == kept


def test_an_answer_that_no_daemon_could_send_is_refused(app):
    token = begin(app)
    most = 16 * 1024 * 1024 - 64 * 1024
    body = b"x" * (most - 4 + 1)
    error = refused("22023", call, app, "complete", *NAME, token, 200, "A: b",
                    body)
    assert "omit" in error.diag.message_hint
    assert complete(app, token, body[1:]) == ("OK",)
    token = begin(app, "t", "s", "other")
    assert call(app, "complete", "t", "s", "other", token, 200, "A: b", body,
                None, "too large") == ("OK",)


# ---- sessions with settings of their own ----

def test_a_session_that_reads_strings_in_the_old_way_can_use_it(connect):
    app = connect()
    app.execute("SET standard_conforming_strings = off")
    app.execute("SET backslash_quote = off")
    name = ("t\\", "s\\\\", "k\\n")
    token = begin(app, *name)
    assert complete(app, token, name=name, headers="A: \\u0001 b") == ("OK",)
    assert bytes(lookup(app, *name)["headers"]) == b"A: \\u0001 b\r\n"
    refused("22023", complete, app, token, name=name, headers="A: \x01")
    assert call(app, "doubt", *name[:2], "x",
                begin(app, *name[:2], "x"), "a\\b") == ("OK",)
    assert lookup(app, *name[:2], "x")["reason"] == "a\\b"
    assert lookup(connect(), *name)["state"] == "completed"


def test_a_session_that_does_not_wait_for_the_disk_waits_for_these(connect):
    app = connect(autocommit=False)
    app.execute("SET synchronous_commit = off")
    app.commit()
    token = None

    def waits():
        return app.execute("SHOW synchronous_commit").fetchone()[0]

    for step in ("claim", "fence", "enqueue", "complete"):
        assert waits() == "off"
        if step == "claim":
            token = begin(app)
        else:
            more = {"fence": (), "enqueue": ("j", "t", "/"),
                    "complete": (200, "", b"")}[step]
            call(app, step, *NAME, token, *more)
        assert waits() == "on", step
        app.commit()
    app.execute("SET synchronous_commit = remote_apply")
    call(app, "lookup", *NAME)
    begin(app, "t", "s", "another")
    assert waits() == "remote_apply"
    app.rollback()


def test_an_app_hears_of_what_others_committed_once_the_standby_has_it(
        server, connect):
    # C20, C26: its commit waits although it has written nothing
    app = connect(autocommit=False)
    token = begin(app, owner="mine")
    call(app, "enqueue", *NAME, token, "j", "t", "/")
    done, doubted = ("t", "s", "done"), ("t", "s", "doubted")
    complete(app, begin(app, *done), name=done)
    lost = begin(app, *doubted)
    call(app, "doubt", *doubted, lost, "lost")
    app.commit()
    server.set("synchronous_standby_names", "nobody")
    try:
        for step in (lambda: claim(app, owner="mine"),
                     lambda: claim(app, *done), lambda: lookup(app, *done),
                     lambda: call(app, "enqueue", *NAME, token, "j", "t", "/"),
                     lambda: call(app, "doubt", *doubted, lost, "lost")):
            step()
            ends = threading.Thread(target=app.commit)
            ends.start()
            until(lambda: server.query(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                " WHERE wait_event = 'SyncRep' AND pid = %s",
                (app.info.backend_pid,)))
            ends.join()
        app.execute("SET TRANSACTION READ ONLY")
        assert lookup(app, *done)["state"] == "completed"
        app.commit()
    finally:
        server.set("synchronous_standby_names", "")


@pytest.mark.parametrize("level", OLD)
def test_signs_of_life_do_not_keep_an_old_snapshot_from_completing(
        db, connect, level):
    # C26, C22: the gateway extends the lock while the app works
    mine = {"tenant": NAME[0], "scope": NAME[1]}
    for end in ("complete", "release", "doubt"):
        name = (*NAME[:2], end)
        token = claim_new(db, end, lock=1, **mine)
        app = connect(autocommit=False)
        app.execute("SET TRANSACTION ISOLATION LEVEL " + level)
        app.execute("SELECT 1 FROM latchkey.lookup(%s, %s, %s)", name)
        for _ in range(2):
            assert apply_one(db, "extend", end, token=token, lock=60000,
                             **mine)[0] == "OK"
        app.execute("INSERT INTO payment VALUES (%s, 1)", (token,))
        if end == "complete":
            call(app, "enqueue", *name, token, "j", "mailer", "/")
            complete(app, token, name=name)
        else:
            call(app, end, *name, token, *(["why"] if end == "doubt" else []))
        app.commit()
    assert count(db, "payment") == 3
    assert lookup(db, *NAME[:2], "complete")["state"] == "completed"


@pytest.mark.parametrize("level", OLD)
def test_an_old_snapshot_does_not_take_a_living_holder_for_lost(
        db, connect, level):
    # C22
    mine = {"tenant": NAME[0], "scope": NAME[1]}
    token = claim_new(db, "k", lock=1, **mine)
    until(lambda: lookup(db)["state"] == "uncertain")  # nobody swept it
    for _ in range(2):  # the first sign of life, and another one
        app = connect(autocommit=False)
        app.execute("SET TRANSACTION ISOLATION LEVEL " + level)
        app.execute("SELECT 1 FROM pg_class LIMIT 1")
        assert apply_one(db, "extend", "k", token=token, lock=1,
                         **mine)[0] == "OK"
        until(lambda: db.execute(
            "SELECT max(until_ms) < latchkey.now_ms()"
            " FROM latchkey.extension").fetchone()[0])
        refused("40001", claim, app)
    app = connect()
    assert apply_one(db, "extend", "k", token=token, lock=60000,
                     **mine)[0] == "OK"
    assert claim(app)["verdict"] == "INFLIGHT"


def test_a_lock_ends_with_the_last_sign_of_life(db, app):
    # C22, C25: for claims, whoever looks, and the sweeper
    mine = {"tenant": NAME[0], "scope": NAME[1]}
    token = claim_new(db, "k", lock=1, **mine)
    assert apply_one(db, "extend", "k", token=token, lock=60000,
                     **mine)[0] == "OK"
    until(lambda: db.execute("SELECT deadline_ms < latchkey.now_ms()"
                             " FROM latchkey.operation").fetchone()[0])
    db.execute("SELECT latchkey.keep('me', 60000, 100)")
    assert apply_one(db, "claim", "k", **mine)[0] == "INFLIGHT"
    assert claim(app)["verdict"] == "INFLIGHT"
    found = lookup(app)
    assert found["state"] == "in_progress"
    assert found["locked"] - found["claimed"] > datetime.timedelta(seconds=50)
    shown, = db.execute("SELECT locked FROM latchkey.operations").fetchone()
    assert shown == found["locked"]
    # It is over, long enough for the row to go.
    db.execute("UPDATE latchkey.operation SET deadline_ms = 1")
    db.execute("UPDATE latchkey.extension SET until_ms = 12345")
    db.execute("SELECT latchkey.keep('me', 60000, 100)")
    found = lookup(app)
    assert (found["state"], found["reason"]) == ("uncertain", "lock lapsed")
    assert found["since"].timestamp() == 12.345
    assert count(db, "latchkey.extension") == 0


def test_apps_alone_notice_a_fail_over_and_keep_nobody_waiting(db, connect):
    first, other = connect(autocommit=False), connect()
    token = begin(other, "t", "s", "before")
    db.execute("SELECT setval('latchkey.timeline', 99)")
    assert begin(first, "t", "s", "a") > token + 2 ** 32
    # That transaction is still open.
    assert begin(other, "t", "s", "b") > token + 2 ** 32
    first.rollback()
    assert begin(other, "t", "s", "a") < token + 2 ** 33


# ---- rights ----

APP = {"claim", "complete", "release", "doubt", "extend", "keep", "fence",
       "enqueue", "lookup"}


def test_an_app_may_call_its_functions_and_nothing_else(db, app):
    may = {name for name, in db.execute(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'latchkey'::regnamespace"
        " AND has_function_privilege('shop', oid, 'EXECUTE')")}
    assert may == APP
    for table in ("operation", "answer", "audit", "job", "attempt", "target",
                  "keeper", "meta", "operations"):
        for text in ("SELECT * FROM latchkey.%s", "DELETE FROM latchkey.%s"):
            refused("42501", app.execute, text % table)
    refused("42501", app.execute, "SELECT nextval('latchkey.token')")
    refused("42501", app.execute, "CREATE TABLE latchkey.mine ()")


def test_the_public_may_do_nothing_and_the_daemon_no_more_than_it_needs(
        server, database, db):
    for name, role in (("nobody_special", ""), ("lk", "latchkey_daemon")):
        server.query("DROP ROLE IF EXISTS " + name)
        server.create_user(name, more="IN ROLE " + role if role else "")
    assert db.execute(
        "SELECT count(*) FROM pg_proc"
        " WHERE pronamespace = 'latchkey'::regnamespace"
        " AND has_function_privilege('nobody_special', oid, 'EXECUTE')"
    ).fetchone() == (0,)
    public = server.connect(database, user="nobody_special")
    refused("42501", claim, public)
    refused("42501", public.execute, "SELECT * FROM latchkey.operation")
    daemon = server.connect(database, user="lk")
    token = claim_new(daemon, "k")
    assert [op.word for op in apply(
        daemon, Op("complete", "k", token=token, status=200),
        Op("evict", "k", who="me", why="so"))] == ["OK", "OK"]
    assert daemon.execute(
        "SELECT reaped FROM latchkey.reap('me', 10, 4, 0)").fetchone() == (0,)
    assert daemon.execute("SELECT keeper FROM latchkey.keep('me', 1000, 10)"
                          ).fetchone() == (True,)
    daemon.execute("SELECT latchkey.check_timeline(0)")
    daemon.execute("SELECT * FROM latchkey.operations")
    refused("42501", daemon.execute, "DELETE FROM latchkey.audit")  # C35
    refused("42501", daemon.execute, "UPDATE latchkey.audit SET why = ''")
    refused("42501", claim, daemon)


def test_functions_with_rights_of_their_owner_trust_no_path_of_the_caller(
        db, connect):
    assert db.execute(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'latchkey'::regnamespace AND prosecdef"
        " AND NOT coalesce(proconfig, '{}') @>"
        " ARRAY['search_path=pg_catalog, pg_temp']").fetchall() == []
    app = connect()
    app.execute("CREATE TEMP TABLE operation (tenant text)")
    app.execute("CREATE FUNCTION pg_temp.replace(text, text, text) RETURNS text"
                " LANGUAGE sql AS $$ SELECT 'taken over' $$")
    app.execute("SET search_path = pg_temp, latchkey, pg_catalog")
    begin(app, "a\\b", "s", "k")
    assert db.execute("SELECT tenant FROM latchkey.operation"
                      ).fetchall() == [("a\\\\b",)]


def test_every_function_for_apps_says_what_it_is_for(db):
    assert {name for name, in db.execute(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'latchkey'::regnamespace"
        " AND length(obj_description(oid, 'pg_proc')) > 50")} == APP
