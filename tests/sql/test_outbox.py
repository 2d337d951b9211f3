"""The outbox in PostgreSQL: leases and their fences, rivals, what is lost,
requests and their operations, orders, rights and plans."""

import codecs
import re
import threading

import psycopg
import pytest

from support import build
from support.courier_sql import (AGAIN, DEAD, DELIVERED, DONE, DROPPED,
                                 END_DEAD, END_DELIVERED, END_RETRY,
                                 END_RETURN, END_UNCERTAIN, GATEWAY, LEASED,
                                 ORDER_AGAIN, ORDER_DELIVERED, ORDER_DROP,
                                 ORDER_PAUSE, ORDER_RESUME, ORDER_RETRY, STALE,
                                 UNCERTAIN, WAITING, Courier, accept, job_row,
                                 leave_jobs)
from support.life import until
from support.postgres import Postgres
from support.schema import (STATES, Op, apply, apply_one, claim_new,
                            fresh_database)

OK, NONE, INVALID, BUSY = range(4)  # outcomes of orders
LOST = "the courier was lost after it had called"


@pytest.fixture(scope="module")
def server():
    with Postgres() as server:
        fresh_database(server)  # makes the roles
        server.create_user("lk", more="IN ROLE latchkey_daemon")
        server.create_user("shop", more="IN ROLE latchkey_app")
        yield server


@pytest.fixture(scope="module")
def made(server):
    return fresh_database(server)


@pytest.fixture
def database(server, made):
    """Empty for each test, and without clients after it."""
    server.query("TRUNCATE latchkey.operation, latchkey.answer, latchkey.job,"
                 " latchkey.attempt, latchkey.target, latchkey.audit,"
                 " latchkey.keeper, latchkey.used_name,"
                 " latchkey.extension", database=made)
    yield made
    while server.clients:
        server.clients.pop().close()


@pytest.fixture
def untouched(server):
    """Where nothing was planned yet."""
    yield fresh_database(server)
    while server.clients:
        server.clients.pop().close()


@pytest.fixture
def db(server, database):
    """A daemon's rights, and no more."""
    return server.connect(database, user="lk")


@pytest.fixture
def courier(db):
    return Courier(db)


@pytest.fixture
def other(server, database):
    return Courier(server.connect(database, user="lk"))


def rows(db, text, *parameters):
    return db.execute(text, parameters).fetchall()


def await_lost(db, job):
    until(lambda: rows(db, "SELECT due_ms < latchkey.now_ms() FROM"
                       " latchkey.job WHERE id = %s", job.id) == [(True,)])


def standing(db, key="k"):
    """(state of the operation, is it queued, state of its request)."""
    (state, queued, job), = rows(
        db, "SELECT o.state, o.queued, j.state FROM latchkey.operation o"
        " LEFT JOIN latchkey.job j ON j.number = o.number AND j.name = ''"
        " WHERE o.key = %s", key)
    return STATES[state], queued, job


def history(db, job):
    return rows(db, "SELECT number, status, called, reason FROM"
                " latchkey.attempt WHERE job = %s ORDER BY number", job.id)


# ---- queueing ----

def test_a_batch_accepts_enqueues_and_decides_side_by_side(db):
    token = claim_new(db, "old")
    ops = apply(
        db, Op("accept", "a", path="/a", body=b"1"), Op("claim", "b"),
        Op("enqueue", "old", token=token, job="j", target="t"),
        Op("accept", "c", path="/c", repeatable=True),
        Op("enqueue", "none", token=7, job="j", target="t"))
    assert [op.word for op in ops] == ["ACCEPTED", "NEW", "OK", "ACCEPTED",
                                       "STALE"]
    assert rows(db, "SELECT o.key, o.state, o.queued, o.attempt, j.name,"
                " j.target, j.path, j.body, j.repeatable, j.state"
                " FROM latchkey.operation o LEFT JOIN latchkey.job j"
                " USING (number) ORDER BY o.key") == [
        ("a", 1, True, 0, "", GATEWAY, "/a", b"1", False, WAITING),
        ("b", 2, False, 1, *[None] * 6),
        ("c", 1, True, 0, "", GATEWAY, "/c", b"", True, WAITING),
        ("old", 2, False, 1, "j", "t", "/", b"", False, WAITING)]


def test_what_was_accepted_is_accepted_once_in_a_batch_or_over_time(db):
    # C31
    ops = apply(db, *(Op("accept", "k", path="/%d" % i) for i in range(3)))
    ops += apply(db, Op("accept", "k"))
    ops += apply(db, Op("claim", "k"))
    assert {op.word for op in ops} == {"ACCEPTED"}
    assert len({op.shown["number"] for op in ops}) == 1
    assert len({op.shown["changed_ms"] for op in ops}) == 1
    assert rows(db, "SELECT path FROM latchkey.job") == [("/0",)]
    assert apply_one(db, "accept", "k", fingerprint="g")[0] == "MISMATCH"


def test_jobs_of_before_uses_were_counted_are_of_the_use_that_left_them(db):
    # C28: after an eviction the same call is another one.
    token = claim_new(db, "k")
    job = dict(job="charge", target="t", body=b"x")
    assert apply_one(db, "enqueue", "k", token=token, **job)[0] == "OK"
    apply(db, Op("complete", "k", token=token, status=200), Op("evict", "k"))
    # As an earlier version has left it, at the first of all tokens.
    db.execute("UPDATE latchkey.job SET generation = 1")
    db.execute("DELETE FROM latchkey.used_name")
    token = claim_new(db, "k")
    assert apply_one(db, "enqueue", "k", token=token, **job)[0] == "OK"
    assert apply_one(db, "enqueue", "k", token=token, **job)[0] == "EXISTS"


def test_a_name_is_used_once_also_within_a_batch(db):
    token = claim_new(db, "k")
    job = dict(token=token, target="t")
    assert apply_one(db, "enqueue", "k", job="a", **job)[0] == "OK"
    assert apply_one(db, "enqueue", "k", job="a", **job)[0] == "EXISTS"
    assert [op.word for op in apply(
        db, Op("enqueue", "k", job="b", **job),
        Op("enqueue", "k", job="b", **job),
        Op("enqueue", "k", job="c", **job),
        Op("complete", "k", token=token, status=200),
        Op("enqueue", "k", job="d", **job))] == [
            "OK", "EXISTS", "OK", "OK", "KEPT"]
    assert rows(db, "SELECT name FROM latchkey.job ORDER BY id") == [
        ("a",), ("b",), ("c",)]


def examples():
    for line in (build.ROOT / "tests/store/calls.txt").read_text().split("\n"):
        if line and not line.startswith("#"):
            kind, value, fault = line.split("\t")
            value = codecs.decode(value.encode(), "unicode_escape")
            yield kind, value.encode("latin-1"), fault


def test_sql_judges_a_call_as_the_daemon_does(server, database):
    # The same table as tests/store/test_call.c.
    db = server.connect(database)
    judged = []
    calls = [one for one in examples() if one[0] != "answer"]
    for kind, value, fault in calls:
        given = value if kind == "headers" else value.decode()
        (found,), = rows(db, "SELECT latchkey.%s_fault(%%s)" % kind, given)
        judged.append((kind, value, found or "-"))
    assert judged == calls and len(judged) > 50
    for size, fault in ((8192, None), (8193, "is longer than 8192 bytes")):
        assert rows(db, "SELECT latchkey.path_fault(%s)",
                    "/" + "a" * (size - 1)) == [(fault,)]


@pytest.mark.parametrize("value, fault", [
    one[1:] for one in examples() if one[0] == "answer" and b"\0" not in one[1]])
def test_sql_keeps_no_header_in_which_another_hides(server, database, value,
                                                    fault):
    """What the daemon refuses is refused, or its line ends are put right. A
    text holds no NUL."""
    app = server.connect(database, user="shop")
    (token,), = rows(app, "SELECT token FROM latchkey.claim('t', 's', 'k',"
                     " 'f')")
    end = ("SELECT latchkey.complete('t', 's', 'k', %s, 200, %s, '')",
           (token, value.decode()))
    if fault != "-":
        try:
            app.execute(*end)
        except psycopg.errors.InvalidParameterValue:
            return
        value = value.rstrip(b"\r\n").replace(b"\r\n", b"\n").replace(
            b"\n", b"\r\n") + b"\r\n" if value.strip() else b""
        assert not re.search(rb"\r(?!\n)", value), value
    else:
        app.execute(*end)
    assert rows(app, "SELECT headers FROM latchkey.lookup('t', 's', 'k')") == \
        [(value,)]


@pytest.mark.parametrize("bad, what", (
    (("n", "t", "//evil/"), "path"), (("n", "t", "/a/../b"), "path"),
    (("n", GATEWAY, "/"), "target"), (("n", "t", "/", "CONNECT"), "method"),
    (("n", "t", "/", "POST", "Host: evil"), "headers"),
    (("n", "t", "/", "POST", "", b"", "-1 second"), "delay")))
def test_an_app_cannot_queue_what_leads_elsewhere(server, database, bad, what):
    app = server.connect(database, user="shop")
    (token,), = rows(app, "SELECT token FROM latchkey.claim('t', 's', 'k',"
                     " 'f')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=what):
        app.execute("SELECT latchkey.enqueue('t', 's', 'k', %%s%s)" % (
            ", %s" * len(bad)), (token, *bad))


def test_an_app_leaves_a_job_that_is_due_later(server, database, courier):
    # C26
    app = server.connect(database, user="shop", autocommit=False)
    (token,), = rows(app, "SELECT token FROM latchkey.claim('t', 's', 'k',"
                     " 'f')")
    assert rows(app, "SELECT latchkey.enqueue('t', 's', 'k', %s, 'now', 't',"
                " '/x?y=1', 'PUT', 'A: b', 'body')", token) == [(True,)]
    assert rows(app, "SELECT latchkey.enqueue('t', 's', 'k', %s, 'later', 't',"
                " '/', delay => '1 hour')", token) == [(True,)]
    assert courier.lease("t") == [] and courier.wait is None
    app.commit()
    job = courier.take()
    assert (job.name, job.method, job.path, job.headers, job.body) == (
        "now", "PUT", "/x?y=1", b"A: b\r\n", b"body")
    assert (job.tenant, job.scope, job.key) == ("t", "s", "k")
    assert courier.finish(job) == DONE
    assert courier.lease("t") == []
    assert 3500000 < courier.wait <= 3600000


def test_couriers_hear_of_a_job_when_the_app_commits(server, database):
    listener = server.connect(database)
    listener.execute("LISTEN latchkey_job")
    app = server.connect(database, user="shop", autocommit=False)
    (token,), = rows(app, "SELECT token FROM latchkey.claim('t', 's', 'k',"
                     " 'f')")
    app.execute("SELECT latchkey.enqueue('t', 's', 'k', %s, 'a', 't', '/'),"
                " latchkey.enqueue('t', 's', 'k', %s, 'b', 't', '/')",
                (token, token))
    listener.execute("SELECT 1")
    app.commit()
    heard = next(listener.notifies())
    assert (heard.channel, heard.payload) == ("latchkey_job", "")


# ---- leases ----

def test_two_couriers_at_once_never_get_one_job(server, database, db):
    # SKIP LOCKED: nobody gets one twice, and none is forgotten.
    leave_jobs(db, 600)
    got, faults = [], []

    def run():
        with server.connect(database, user="lk") as connection:
            courier = Courier(connection)
            try:
                mine = []
                while True:
                    if mine:
                        assert courier.end(*((job, END_DELIVERED)
                                             for job in mine)) == (
                            [DONE] * len(mine))
                    mine = courier.lease("t", most=7)
                    got.extend(mine)
                    if not mine and not rows(
                            connection, "SELECT FROM latchkey.job"
                            " WHERE state < 2 LIMIT 1"):
                        return
            except Exception as fault:
                faults.append(fault)
                raise

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(got) == 600 == len({job.id for job in got})
    assert rows(db, "SELECT state, attempts, count(*) FROM latchkey.job"
                " GROUP BY 1, 2") == [(DELIVERED, 1, 600)]


def test_what_another_transaction_leases_is_left_to_it(server, database, db,
                                                       courier):
    leave_jobs(db, 4)
    rival = Courier(server.connect(database, user="lk", autocommit=False))
    first = rival.lease("t", most=2)
    second = courier.lease("t", most=9)
    assert {job.id for job in first}.isdisjoint(job.id for job in second)
    assert len(first) == len(second) == 2
    rival.db.rollback()
    assert len(courier.lease("t")) == 2  # given back, as if never leased
    assert {job_row(db, job.id)["attempts"] for job in first} == {1}


def test_the_longest_due_come_first_and_each_want_has_its_limit(db, courier):
    leave_jobs(db, 3, "a", "x")
    leave_jobs(db, 3, "b", "y")
    db.execute("UPDATE latchkey.job SET due_ms = 1000 - id")
    found = courier.lease("a", "nothing", "b", most=2)
    assert {(job.target, job.key) for job in found} == {
        ("b", "y2"), ("b", "y1"), ("a", "x2"), ("a", "x1")}
    assert courier.wait is not None
    assert len(courier.lease("a", "b")) == 2


def test_bodies_are_leased_up_to_a_bound_and_one_at_least(db, courier):
    leave_jobs(db, 4)  # ten bytes each, with headers
    assert len(courier.lease("t", size=15)) == 2
    assert len(courier.lease("t", size=1)) == 1


def test_requests_are_leased_up_to_a_bound_and_one_at_least(db, courier):
    for key in "abcde":
        accept(db, key)  # 13 bytes each
    assert [len(courier.lease(GATEWAY, size=size)) for size in (1, 14, 26)] \
        == [1, 2, 2]


def test_only_the_present_lease_counts(db, courier, other):
    # C27
    leave_jobs(db, 1)
    first = courier.take(lease=1)
    await_lost(db, first)
    second = other.take()
    assert second.fence == (first.id, first.attempts + 1)
    for how in range(5):
        assert courier.finish(first, how) == STALE
    assert courier.mark(first, called=True) == [STALE]
    assert job_row(db, first.id)["state"] == LEASED
    assert other.mark(second, called=True) == [DONE]
    assert other.finish(second) == DONE
    assert other.finish(second) == STALE  # once more does no harm
    assert job_row(db, first.id)["state"] == DELIVERED


def test_a_lease_that_ran_out_counts_until_somebody_takes_it(db, courier):
    leave_jobs(db, 1)
    job = courier.take(lease=1)
    await_lost(db, job)
    assert courier.mark(job) == [DONE]
    assert courier.lease("t") == []
    assert courier.finish(job) == DONE


def test_good_and_stale_ends_of_one_step_are_told_apart(db, courier):
    leave_jobs(db, 5)
    jobs = courier.lease("t")
    assert courier.finish(jobs[1]) == DONE
    jobs[3].attempts += 1
    assert courier.end(*((job, END_DELIVERED) for job in jobs)) == [
        DONE, STALE, DONE, STALE, DONE]


@pytest.mark.parametrize("how, state, ended, kept", (
    (END_DELIVERED, DELIVERED, True, True), (END_RETRY, WAITING, False, True),
    (END_RETURN, WAITING, False, False), (END_UNCERTAIN, UNCERTAIN, True, True),
    (END_DEAD, DEAD, True, True)))
def test_an_end_is_written_down_with_what_came_back(db, courier, how, state,
                                                    ended, kept):
    # C28, C29
    leave_jobs(db, 1)
    job = courier.take()
    assert courier.finish(job, how, status=500, provider="p-1", reason="why",
                          headers=b"H: h\r\n", body=b"x" * 5000,
                          delay=3600000) == DONE
    row = job_row(db, job.id)
    assert row["state"] == state and (row["ended_ms"] > 0) == ended
    assert (row["status"], row["provider_id"], row["reason"],
            row["answer_headers"], row["answer_body"]) == (
        (500, "p-1", "why", b"H: h\r\n", b"x" * 5000) if kept else
        (0, "", "", b"", b""))
    assert row["forgiven"] == (how == END_RETURN)
    assert row["sent"] == (how != END_RETURN)
    assert history(db, job) == (
        [(1, 500, True, "why")] if how == END_RETRY else [])
    assert courier.lease("t") == []
    if state == WAITING:
        assert 3500000 < courier.wait <= 3600000
    assert all(len(body) == 1024 for body, in rows(
        db, "SELECT body FROM latchkey.attempt"))


# ---- lost ----

@pytest.mark.parametrize("called, honours, again", (
    (False, False, True), (False, True, True), (True, True, True),
    (True, False, False)))
def test_a_courier_is_lost(db, courier, other, called, honours, again):
    # C27: never called, or may be called again: leased anew; else uncertain.
    leave_jobs(db, 1)
    job = courier.take(lease=1)
    if called:
        assert courier.mark(job, called=True, lease=1) == [DONE]
    await_lost(db, job)
    found = other.lease("t", honours=honours)
    row = job_row(db, job.id)
    assert row["sent"] == (called or honours)
    if again:
        assert [each.attempts for each in found] == [2] and other.lapsed == 0
        assert history(db, job) == (
            [(1, 0, True, "the courier was lost")] if row["sent"] else [])
    else:
        assert found == [] and other.lapsed == 1
        assert (row["state"], row["reason"]) == (UNCERTAIN, LOST)
        assert courier.finish(job) == STALE


def test_what_is_lost_of_one_target_waits_for_nobody_elses_want(db, courier):
    leave_jobs(db, 1)
    job = courier.take(lease=1)
    await_lost(db, job)
    assert courier.lease("other") == []
    assert job_row(db, job.id)["state"] == LEASED
    assert courier.take().attempts == 2


# ---- targets and orders ----

def test_nothing_of_a_paused_target_is_leased_but_its_ends_count(db, courier):
    leave_jobs(db, 2)
    job = courier.take()
    assert courier.order(ORDER_PAUSE, target="t") == (OK, -1)
    assert courier.lease("t") == []
    assert courier.wait > 1000  # the lease that is under way
    assert courier.finish(job, END_RETRY) == DONE
    assert courier.lease("t") == [] and courier.wait is None
    assert rows(db, "SELECT name, who, why FROM latchkey.target") == [
        ("t", "me", "so")]
    assert courier.order(ORDER_RESUME, target="t") == (OK, -1)
    assert len(courier.lease("t")) == 2
    assert rows(db, "SELECT action, who, why FROM latchkey.audit ORDER BY id"
                ) == [("target pause t", "me", "so"),
                      ("target resume t", "me", "so")]


ENDS = {WAITING: END_RETRY, UNCERTAIN: END_UNCERTAIN, DEAD: END_DEAD,
        DELIVERED: END_DELIVERED, LEASED: None}


@pytest.mark.parametrize("order, word, allowed, becomes", (
    (ORDER_RETRY, "job retry", (WAITING, DEAD), WAITING),
    (ORDER_DROP, "job drop", (WAITING, UNCERTAIN, DEAD), DROPPED),
    (ORDER_DELIVERED, "job delivered", (WAITING, UNCERTAIN, DEAD), DELIVERED),
    (ORDER_AGAIN, "job again", (UNCERTAIN, DEAD), WAITING)))
@pytest.mark.parametrize("state", ENDS)
def test_an_order_counts_where_it_may_and_is_audited(
        db, courier, order, word, allowed, becomes, state):
    # C29, C35
    leave_jobs(db, 1)
    job = courier.take()
    if ENDS[state] is not None:
        courier.finish(job, ENDS[state], delay=3600000, reason="why")
    assert courier.order(order, job.id, attempt=9) == (INVALID, state)
    assert courier.order(order, job.id + 1) == (NONE, -1)
    outcome = courier.order(order, job.id, attempt=1, provider="p", status=201)
    if state not in allowed:
        assert outcome == (INVALID, state)
        assert rows(db, "SELECT FROM latchkey.audit") == []
        return
    assert outcome == (OK, becomes)
    assert rows(db, "SELECT action, tenant, scope, key, token, who, why FROM"
                " latchkey.audit") == [(word, "t", "s", "k0", job.id, "me",
                                        "so")]
    row = job_row(db, job.id)
    assert row["state"] == becomes and (row["ended_ms"] == 0) == (
        becomes == WAITING)
    assert row["forgiven"] == (order in (ORDER_RETRY, ORDER_AGAIN))
    if becomes == DELIVERED:
        assert (row["provider_id"], row["status"]) == ("p", 201)
    if becomes == WAITING:
        assert courier.take().attempts == 2  # due at once
        assert [each[0] for each in history(db, job)] == [1]


# ---- requests ----

def take_request(db, courier, key="k", **more):
    accept(db, key, **more)
    return courier.take(GATEWAY)


def test_a_request_runs_under_the_token_of_its_lease(db, courier):
    # C31
    number = accept(db, "k")
    assert standing(db) == ("accepted", True, WAITING)
    job = courier.take(GATEWAY)
    assert (job.number, job.name, job.run, job.body) == (number, "", 1,
                                                         b"request")
    assert job.token > number
    assert standing(db) == ("in_progress", True, LEASED)
    verdict, shown = apply_one(db, "claim", "k", owner="sync", reexecute=True)
    assert (verdict, shown["state"]) == ("ACCEPTED", 2)
    assert apply_one(db, "complete", "k", token=number)[0] == "STALE"
    assert apply_one(db, "complete", "k", token=job.token, status=200,
                     body=b"answer")[0] == "OK"
    assert standing(db) == ("completed", False, DELIVERED)
    assert courier.finish(job) == STALE
    assert apply_one(db, "claim", "k")[0] == "REPLAY"
    assert job_row(db, job.id)["status"] == 200


@pytest.mark.parametrize("event, more, after", (
    ("complete", dict(status=201), ("completed", False, DELIVERED)),
    ("release", {}, ("released", False, DROPPED)),
    ("doubt", dict(reason="r"), ("uncertain", True, UNCERTAIN)),
    ("extend", dict(lock=5000), ("in_progress", True, LEASED)),
    ("resolve-completed", dict(token=0, status=200, who="w", why="y",
                               running=True),
     ("completed", False, DROPPED)),
    ("resolve-released", dict(token=0, who="w", why="y", running=True),
     ("released", False, DROPPED))))
@pytest.mark.parametrize("beside", (False, True))
def test_what_becomes_of_an_operation_becomes_of_its_request(
        db, courier, event, more, after, beside):
    # In one step, alone in a batch or among others of its name.
    job = take_request(db, courier)
    ops = [Op(event, "k", **{"token": job.token, **more})]
    if beside:
        ops.append(Op("keep", "k", ttl=1))
    assert apply(db, *ops)[0].word == "OK"
    assert standing(db) == after


@pytest.mark.parametrize("how, left, taken, after", (
    (END_RETRY, True, True, ("accepted", True, WAITING)),
    (END_RETURN, False, False, ("accepted", True, WAITING)),
    (END_UNCERTAIN, True, True, ("uncertain", True, UNCERTAIN)),
    (END_UNCERTAIN, True, False, ("accepted", True, WAITING)),
    (END_DELIVERED, True, True, ("uncertain", True, UNCERTAIN)),
    (END_DEAD, True, True, ("uncertain", True, UNCERTAIN)),
    (END_DEAD, True, False, ("completed", False, DROPPED)),
    (END_DEAD, False, False, ("completed", False, DROPPED))))
def test_what_becomes_of_a_request_becomes_of_its_operation(
        db, courier, how, left, taken, after):
    # C31. taken: the gateway has said that it lets the app hear of it.
    job = take_request(db, courier)
    if taken:
        assert apply_one(db, "extend", "k", token=job.token,
                         lock=5000)[0] == "OK"
    assert courier.finish(job, how, left=left, reason="r", answer=503,
                          headers=b"A: b\r\n", body=b"problem") == DONE
    assert standing(db) == after
    assert bool(courier.settled) == (after[0] != "accepted")
    verdict, shown = apply_one(db, "claim", "k")
    if after[0] == "accepted":
        assert verdict == "ACCEPTED"
        again = courier.take(GATEWAY)
        assert again.token > job.token and again.run == 2
        assert courier.finish(job, how) == STALE
    elif after[0] == "completed":
        assert verdict == "REPLAY"
        assert rows(db, "SELECT o.status, a.body FROM latchkey.operation o JOIN"
                    " latchkey.answer a USING (token)") == [(503, b"problem")]
    else:
        assert verdict == "UNCERTAIN" and shown["reason"]


@pytest.mark.parametrize("called, repeatable, after", (
    (False, False, ("in_progress", True, LEASED)),
    (True, True, ("in_progress", True, LEASED)),
    (True, False, ("uncertain", True, UNCERTAIN))))
def test_a_courier_is_lost_with_a_request(db, courier, other, called,
                                          repeatable, after):
    # C27, C31
    job = take_request(db, courier, repeatable=repeatable)
    assert courier.mark(job, called=called, lease=1) == [DONE]
    db.execute("UPDATE latchkey.operation SET deadline_ms = 1")
    db.execute("UPDATE latchkey.extension SET until_ms = 1")
    await_lost(db, job)
    assert rows(db, "SELECT * FROM latchkey.keep('me', 60000, 10)"
                ) == [(True, [], False)]  # the sweeper leaves it alone
    assert standing(db) == ("in_progress", True, LEASED)
    found = other.lease(GATEWAY)
    assert standing(db) == after
    assert [each.attempts for each in found] == (
        [2] if after[2] == LEASED else [])
    assert other.lapsed == (after[2] == UNCERTAIN) == len(other.settled)


def test_a_gateway_that_lives_keeps_its_request_without_a_courier(
        db, courier, other):
    job = take_request(db, courier)
    assert courier.mark(job, called=True, lease=1) == [DONE]
    assert apply_one(db, "extend", "k", token=job.token, lock=3600000
                     )[0] == "OK"
    await_lost(db, job)
    assert other.lease(GATEWAY) == [] and other.lapsed == 0
    assert standing(db) == ("in_progress", True, LEASED)
    assert other.wait > 1000
    assert apply_one(db, "complete", "k", token=job.token, status=200
                     )[0] == "OK"
    assert standing(db) == ("completed", False, DELIVERED)


def test_a_mark_extends_the_operation_too(db, courier):
    job = take_request(db, courier)
    assert courier.mark(job, lease=7200000) == [DONE]
    assert rows(db, "SELECT latchkey.lock_end(token, deadline_ms)"
                " - latchkey.now_ms() > 7000000"
                " FROM latchkey.operation") == [(True,)]


def test_a_gateway_that_extends_and_the_courier_do_not_wait_for_each_other(
        server, database, db, courier):
    job = take_request(db, courier)
    assert courier.mark(job, called=True) == [DONE]
    row = "SELECT FROM latchkey.job WHERE id = %d FOR NO KEY UPDATE" % job.id
    extend = dict(token=job.token, lock=3600000)
    holder = server.connect(database, user="lk", autocommit=False)
    holder.execute(row)
    db.execute("SET lock_timeout = '5s'")
    assert apply_one(db, "extend", "k", **extend)[0] == "OK"
    holder.rollback()
    assert apply_one(holder, "extend", "k", **extend)[0] == "OK"
    db.execute(row + " NOWAIT")
    holder.commit()


def test_an_app_completes_its_request_in_its_own_transaction(
        server, database, db, courier, other):
    # C26, C31: all or nothing, and nobody waits for the app meanwhile.
    job = take_request(db, courier)
    app = server.connect(database, user="shop", autocommit=False)
    for ends in (app.rollback, app.commit):
        app.execute("SELECT latchkey.enqueue('t', 's', 'k', %s, 'mail', 't',"
                    " '/')", (job.token,))
        app.execute("SELECT latchkey.complete('t', 's', 'k', %s, 200, '',"
                    " 'done')", (job.token,))
        assert standing(db) == ("in_progress", True, LEASED)
        assert courier.finish(job, END_RETRY) == AGAIN
        assert courier.mark(job) == [AGAIN]
        assert other.lease(GATEWAY, "t") == []
        assert apply_one(db, "claim", "k")[0] == "ACCEPTED"
        ends()
    assert standing(db) == ("completed", False, DELIVERED)
    assert courier.finish(job, END_RETRY) == STALE
    assert other.take().name == "mail"


def test_an_operation_in_somebodys_hands_is_not_leased_but_later(
        server, database, db, courier):
    accept(db, "k")
    app = server.connect(database, user="shop", autocommit=False)
    assert rows(app, "SELECT verdict FROM latchkey.claim('t', 's', 'k', 'f')"
                ) == [("ACCEPTED",)]
    assert courier.lease(GATEWAY) == [] and courier.wait == 0
    app.rollback()
    assert courier.take(GATEWAY).run == 1


def test_what_an_app_has_for_long_does_not_keep_other_requests(
        server, database, db, courier):
    # A claim that is told ACCEPTED has the lock until its transaction ends.
    for key in ("first", "second", "third"):
        accept(db, key)
    app = server.connect(database, user="shop", autocommit=False)
    app.execute("SELECT latchkey.claim('t', 's', 'first', 'f')")
    job, = courier.lease(GATEWAY, most=1, lease=1)
    assert job.key == "second"
    await_lost(db, job)
    app.execute("SELECT latchkey.claim('t', 's', 'second', 'f')")
    last, = courier.lease(GATEWAY, most=1, lease=1)
    assert last.key == "third"
    await_lost(db, last)  # behind one that is lost, and the app's
    again, = courier.lease(GATEWAY, most=1)
    assert (again.id, again.attempts) == (last.id, 2)
    app.rollback()
    assert {job.key for job in courier.lease(GATEWAY)} == {"first", "second"}


def test_after_a_fail_over_no_job_has_the_id_of_one_that_was_lost(db, courier):
    """A call of a lost job, still under way, must not end another one."""
    rows(db, "SELECT latchkey.check_timeline(0)")
    leave_jobs(db, 1)
    lost = courier.take()
    db.execute("SELECT setval('latchkey.timeline', 99)")
    assert rows(db, "SELECT latchkey.check_timeline(0)") == [(True,)]
    leave_jobs(db, 1, prefix="later")
    assert lost.id + 2 ** 32 <= courier.take().id < lost.id + 2 ** 33


def test_a_request_that_was_dropped_can_be_accepted_anew(db, courier):
    job = take_request(db, courier)
    assert courier.finish(job, END_RETRY) == DONE
    assert apply_one(db, "resolve-released", "k", who="w", why="y")[0] == "OK"
    assert standing(db) == ("released", False, DROPPED)
    assert accept(db, "k") == job.number
    assert standing(db) == ("accepted", True, WAITING)
    assert rows(db, "SELECT FROM latchkey.attempt") == []
    again = courier.take(GATEWAY)
    assert again.id != job.id and (again.attempts, again.run) == (1, 2)


def test_a_claim_takes_an_uncertain_request_over(db, courier):
    job = take_request(db, courier)
    apply_one(db, "extend", "k", token=job.token, lock=5000)
    courier.finish(job, END_UNCERTAIN, reason="r")
    verdict, shown = apply_one(db, "claim", "k", reexecute=True, owner="o")
    assert verdict == "NEW"
    assert standing(db) == ("in_progress", False, DROPPED)
    assert apply_one(db, "complete", "k", token=shown["token"])[0] == "OK"


def test_a_doubt_that_may_run_again_is_the_couriers(db, courier):
    job = take_request(db, courier, repeatable=True)
    assert apply_one(db, "doubt", "k", token=job.token, reason="r")[0] == "OK"
    assert standing(db) == ("uncertain", True, LEASED)
    assert courier.finish(job, END_RETRY) == DONE
    assert standing(db) == ("accepted", True, WAITING)


def test_a_holder_that_was_doubted_and_lives_takes_its_request_along(
        db, courier):
    job = take_request(db, courier)
    apply_one(db, "doubt", "k", token=job.token, reason="r")
    assert standing(db) == ("uncertain", True, UNCERTAIN)
    assert apply_one(db, "extend", "k", token=job.token, lock=5000)[0] == "OK"
    assert standing(db) == ("in_progress", True, LEASED)
    assert courier.mark(job) == [DONE]


def test_proof_counts_for_the_uncertain_claim_of_its_token_alone(db, courier):
    # C32
    job = take_request(db, courier)
    proof = dict(who="probe", why="seen", status=200, proof=True)

    def resolve(token):
        return apply_one(db, "resolve-completed", "k", token=token, **proof)[0]

    assert resolve(job.token) == "STALE"  # it still runs
    apply_one(db, "extend", "k", token=job.token, lock=5000)
    courier.finish(job, END_UNCERTAIN, reason="r")
    assert resolve(job.token + 1) == "STALE"
    assert resolve(job.token) == "OK"
    assert standing(db) == ("completed", False, DELIVERED)
    assert resolve(job.token) == "STALE"
    assert apply_one(db, "resolve-released", "none", token=1, **proof
                     )[0] == "STALE"


def test_orders_to_a_request_are_for_its_operation(db, courier):
    job = take_request(db, courier)
    courier.finish(job, END_RETRY, delay=3600000)
    assert courier.order(ORDER_DROP, job.id) == (BUSY, WAITING)
    assert courier.order(ORDER_DELIVERED, job.id) == (BUSY, WAITING)
    assert courier.order(ORDER_RETRY, job.id) == (OK, WAITING)
    assert courier.take(GATEWAY).attempts == 2


# ---- keeping ----

def test_an_operation_goes_with_its_jobs_and_not_before_they_are_finished(
        db, courier):
    # C25
    token = claim_new(db, "k")
    apply_one(db, "enqueue", "k", token=token, job="j", target="t")
    courier.finish(courier.take(), END_RETRY, reason="r")
    apply_one(db, "complete", "k", token=token, status=200, ttl=1)
    until(lambda: rows(db, "SELECT deadline_ms < latchkey.now_ms() FROM"
                       " latchkey.operation") == [(True,)])

    def reap():
        db.execute("SELECT latchkey.keep('me', 60000, 10)")
        return rows(db, "SELECT reaped FROM latchkey.reap('me', 10, 4, 0)")

    assert reap() == [(0,)]
    assert apply_one(db, "claim", "k")[0] == "REPLAY"
    courier.finish(courier.take())
    assert reap() == [(1,)]
    for table in ("operation", "answer", "job", "attempt"):
        assert rows(db, "SELECT FROM latchkey." + table) == []


# ---- rights and plans ----

def test_an_app_may_enqueue_and_do_nothing_else_to_jobs(server, database):
    app = server.connect(database, user="shop")
    for text in ("SELECT * FROM latchkey.jobs", *(
            text % table for table in ("job", "attempt", "target") for text in
            ("SELECT * FROM latchkey.%s", "DELETE FROM latchkey.%s"))):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(text)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        Courier(app, settings=False).lease("t")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        Courier(app, settings=False).order(ORDER_PAUSE, target="t")


def test_people_see_words_and_times(db, courier):
    leave_jobs(db, 1)
    accept(db, "r")
    courier.finish(courier.take(), END_DEAD, reason="gone", status=410)
    assert rows(db, "SELECT key, name, state, status, reason, ended IS NULL"
                " FROM latchkey.jobs ORDER BY id") == [
        ("k0", "j", "dead", 410, "gone", False),
        ("r", "(request)", "waiting", 0, None, True)]


def test_no_plan_reads_more_than_the_jobs_it_is_about(server, untouched):
    # Planned on empty tables and never analysed; then there is much that is
    # finished, much that waits elsewhere, and much that is not due.
    db = server.connect(untouched)
    for table in ("operation", "job", "attempt", "target"):
        db.execute("ALTER TABLE latchkey.%s SET (autovacuum_enabled = off)"
                   % table)
    courier = Courier(db)

    def turn(prefix):
        leave_jobs(db, 20, prefix=prefix)
        for i in range(4):
            accept(db, "%s-r%d" % (prefix, i))
        jobs = courier.lease("t", GATEWAY, "none")
        assert len(jobs) == 24
        courier.mark(*jobs, called=True)
        courier.end(*((job, (END_DELIVERED, END_RETRY, END_DEAD)[i % 3],
                       {"delay": 3600000}) for i, job in enumerate(jobs)))
        courier.order(ORDER_RETRY, jobs[10].id)
        lost = courier.lease("t", lease=0)
        assert [job.id for job in lost] == [jobs[10].id]
        again = courier.lease("t", honours=True)
        assert [job.id for job in again] == [jobs[10].id]

    for i in range(8):
        turn("a%d" % i)  # by now every plan is the one that is kept
    db.execute(
        "INSERT INTO latchkey.job (number, generation, token, name, target,"
        " method, path, headers, body, state, attempts, created_ms, due_ms,"
        " ended_ms) SELECT n, n, n, 'j', (ARRAY['t', 'u'])[1 + n % 2], 'POST',"
        " '/', '', '', (ARRAY[0, 1, 2, 3, 4, 5])[1 + n %% 6], 1, 0, 4e12, 0"
        " FROM generate_series(1000000, 1060000) n".replace("%%", "%"))
    with db.transaction():
        before = read_rows(db)
        turn("b")
        after = read_rows(db)
    assert after[0] == before[0]
    # 24 jobs with their operations, each of them some ten times.
    assert after[1] - before[1] < 1000


def read_rows(db):
    """Rows read so far, by this connection: by scans, by way of indexes."""
    return db.execute(
        "SELECT sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint"
        " FROM pg_stat_xact_user_tables WHERE schemaname = 'latchkey'"
        " AND relname IN ('operation', 'answer', 'job', 'attempt', 'target')"
    ).fetchone()
