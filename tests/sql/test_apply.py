"""latchkey.apply: every row of the state table, in batches and one by one,
against a transcription of lib/machine.c; rivals, plans, sweeper and reaper."""

import os
import random
import threading

import psycopg
import pytest

from support.life import until
from support.postgres import Postgres
from support.schema import (COMMITTED_BEFORE, DAY, EVENTS, FILES, NO_NEW,
                            OWNER, RUNNING,
                            REEXECUTE, STATES, VERDICTS, Op, apply, apply_one,
                            claim_new, fresh_database, migrate)

SEED = int(os.environ.get("LATCHKEY_SEED") or 1)
HOUR = 3600000
COUNT = 64


@pytest.fixture(scope="module")
def server():
    with Postgres() as server:
        yield server


@pytest.fixture
def database(server):
    yield fresh_database(server)
    while server.clients:
        server.clients.pop().close()


@pytest.fixture
def db(server, database):
    return server.connect(database)


def now_ms(db):
    return db.execute("SELECT latchkey.now_ms()").fetchone()[0]


def await_time(db, ms):
    until(lambda: now_ms(db) >= ms)


def keep(db, holder="me", lease=60000, most=1000):
    return db.execute("SELECT * FROM latchkey.keep(%s, %s, %s)",
                      (holder, lease, most)).fetchone()


def reap(db, most=1000, place=(4, 0), holder="me"):
    """One step of the reaper: how many, whether more, and where to go on."""
    reaped, more, *place = db.execute(
        "SELECT * FROM latchkey.reap(%s, %s, %s, %s)",
        (holder, most, *place)).fetchone()
    return reaped, more, tuple(place)


def reap_all(db, most=1000, place=(4, 0)):
    """A walk through all that is due; how many went at each step."""
    steps = []
    while not steps or place != (4, 0):
        reaped, _, place = reap(db, most, place)
        steps.append(reaped)
    return steps


def rows(db, text, *parameters):
    return db.execute(text, parameters).fetchall()


# ---- the machine, in Python ----

class Record:
    def __init__(self, token):
        self.state, self.token, self.attempt = "in_progress", token, 1
        self.number = self.generation = token
        self.fingerprint = self.owner = self.reason = None
        self.deadline = self.ttl = self.keep = 0
        self.omitted = self.evicted = False
        self.answer = None


class Model:
    """What lib/machine.c and the stores say, for operations in order."""

    def __init__(self):
        self.records = {}
        self.tokens = set()
        self.audited = []

    def begin(self, op, record, fresh, shown, now):
        assert shown["token"] not in self.tokens
        assert not record or shown["token"] > record.token
        self.tokens.add(shown["token"])
        before, record = record, Record(shown["token"])
        if before and not fresh:
            record.number = before.number
            record.attempt = before.attempt + 1
            if not before.evicted:
                record.generation = before.generation
                record.keep = before.keep
        record.fingerprint, record.owner = op.fingerprint, op.owner
        record.deadline = now + (op.lock or 30000)
        record.ttl = op.ttl or DAY
        self.records[op.name] = record

    def ttl(self, op, record):
        return max(op.ttl or record.ttl, record.keep)

    def finish(self, op, record, now):
        record.state, record.deadline = "completed", now + self.ttl(op, record)
        record.omitted = op.reason != ""
        record.reason = op.reason or None
        record.answer = (op.status, None if record.omitted else
                         (op.headers, op.body))

    def free(self, op, record, now):
        record.state, record.deadline = "released", now + self.ttl(op, record)
        record.evicted = EVENTS[op.event] == "evict"
        record.omitted = False
        record.reason = record.answer = None

    def claim(self, op, record, state, shown, now):
        owner = bool(op.flags & OWNER) and record and op.owner == record.owner
        if state in ("absent", "released"):
            verdict = "begin"
        elif op.fingerprint != record.fingerprint:
            return "MISMATCH"
        elif state == "completed":
            return "OMITTED" if record.omitted else "REPLAY"
        elif owner and (state == "in_progress" or op.flags & NO_NEW or
                        record.reason is None):
            if not op.flags & NO_NEW and (state == "uncertain" or
                                          record.deadline <= now):
                record.state = "in_progress"
                record.deadline = now + (op.lock or 30000)
            return "NEW"
        elif state == "in_progress" and record.deadline > now:
            return "INFLIGHT"
        elif op.flags & REEXECUTE:
            verdict = "begin"
        else:
            record.state = "uncertain"
            return "UNCERTAIN"
        if op.flags & NO_NEW:
            return "REFUSED"
        self.begin(op, record, state == "absent", shown, now)
        return "NEW"

    def by_token(self, op, record, state, now):
        if (state not in ("in_progress", "uncertain", "completed") or
                op.token != record.token):
            return "STALE"
        if state == "completed":
            return "KEPT"
        event = EVENTS[op.event]
        if (event == "extend" and state == "uncertain" and
                record.reason is not None):
            return "STALE"
        if event == "complete":
            self.finish(op, record, now)
        elif event == "release":
            self.free(op, record, now)
        elif event == "doubt" and state == "in_progress":
            record.state, record.deadline = "uncertain", now
            record.reason = op.reason
        elif event == "extend":
            until = now + op.lock
            record.deadline = (max(until, record.deadline)
                               if state == "in_progress" else until)
            record.state, record.reason = "in_progress", None
        return "OK"

    def operator(self, op, record, state, now):
        event = EVENTS[op.event]
        if event == "keep":
            if state in ("absent", "released"):
                return "NIL"
            if state == "completed":
                record.deadline = max(record.deadline, now + op.ttl)
            else:
                record.keep = max(record.keep, op.ttl)
        elif event == "evict":
            if state != "completed":
                return "NIL"
            self.free(op, record, now)
        elif state == "completed":
            return "KEPT"
        elif state not in ("in_progress", "uncertain"):
            return "NIL"
        elif (state == "in_progress" and record.deadline > now and
              not op.flags & RUNNING):
            return "INFLIGHT"
        elif event == "resolve-completed":
            self.finish(op, record, now)
        else:
            self.free(op, record, now)
        if op.who:  # an app may keep, too
            self.audited.append((event.replace("-", " ") + (
                " (running)" if op.flags & RUNNING else ""), record.token))
        return "OK"

    def expect(self, op):
        """Follows one operation and compares."""
        shown = op.shown
        now = shown["now_ms"]
        record = self.records.get(op.name)
        state = record.state if record else "absent"
        if state in ("completed", "released") and record.deadline <= now:
            state = "absent"
        event = EVENTS[op.event]
        if event == "claim":
            verdict = self.claim(op, record, state, shown, now)
        elif event in ("complete", "release", "doubt", "extend"):
            verdict = self.by_token(op, record, state, now)
        else:
            verdict = self.operator(op, record, state, now)
        told = "%s on %s %s: %s" % (event, state, op.name, shown)
        assert VERDICTS[shown["verdict"]] == verdict, told
        after = self.records.get(op.name)
        if state == "absent" and after is record:
            assert (shown["state"], shown["token"]) == (0, 0), told
            assert not shown["settles"], told
            return
        assert STATES[shown["state"]] == after.state, told
        assert ([shown[name] for name in ("token", "attempt", "number",
                                          "deadline_ms", "reason")] ==
                [after.token, after.attempt, after.number, after.deadline,
                 after.reason]), told
        assert shown["settles"] == (state == "in_progress" and
                                    after.state != "in_progress"), told

    def sweep(self, db):
        """The keeper's turn: what is surely due must go."""
        before = now_ms(db)
        _, swept, more = keep(db)
        reap_all(db)
        assert not more
        states = {row[:3]: row[3] for row in rows(
            db, "SELECT tenant, scope, key, state FROM latchkey.operation")}
        after = now_ms(db)
        lapsed = 0
        for name, record in list(self.records.items()):
            if record.state == "in_progress" and record.deadline <= after:
                if STATES[states[name]] == "uncertain":
                    record.state = "uncertain"
                    lapsed += 1
                else:
                    assert record.deadline > before
            elif (record.state in ("completed", "released") and
                  record.deadline <= after):
                if name not in states:
                    del self.records[name]
                else:
                    assert record.deadline > before
            else:
                assert STATES[states[name]] == record.state
        assert len(swept) == lapsed

    def check(self, db):
        """The tables hold what the model holds, and nothing else."""
        found = {row[:3]: row[3:] for row in rows(
            db, "SELECT tenant, scope, key, state, token, number, generation,"
            " attempt, CASE state WHEN 2 THEN latchkey.lock_end(token,"
            " deadline_ms) ELSE deadline_ms END, ttl_ms,"
            " coalesce(keep_ms, 0), omitted,"
            " evicted, reason, status FROM latchkey.operation")}
        assert found == {
            name: (STATES.index(r.state), r.token, r.number, r.generation,
                   r.attempt, r.deadline, r.ttl, r.keep, r.omitted, r.evicted,
                   r.reason, r.answer and r.answer[0])
            for name, r in self.records.items()}
        assert dict((token, (bytes(headers), bytes(body)))
                    for token, headers, body in rows(
                        db, "SELECT * FROM latchkey.answer")) == {
            r.token: r.answer[1] for r in self.records.values()
            if r.answer and r.answer[1]}
        assert self.audited == rows(
            db, "SELECT action, token FROM latchkey.audit ORDER BY id")


def random_op(dice, model, keys):
    event = dice.choice(("claim",) * 6 + ("complete",) * 4 + EVENTS[4:11])
    key = dice.choice(keys)
    times = (1, 5, 40, HOUR, HOUR, HOUR)
    op = Op(event, key, fingerprint=dice.choice("ffffffg"),
            owner=dice.choice(("", "first", "second")), status=200,
            ttl=dice.choice(times) if event == "keep" else
            dice.choice((0, *times)),
            lock=dice.choice(times) if event == "extend" else
            dice.choice((0, *times)),
            reexecute=dice.random() < .25, no_new=dice.random() < .1,
            headers=b"A: b\r\n", body=b"%d" % dice.randrange(10 ** 9),
            who="" if event == "keep" and dice.random() < .5 else "w",
            why="y")
    if event.startswith("resolve") and dice.random() < .5:
        op.flags |= RUNNING
    if event == "doubt" or (event in ("complete", "resolve-completed") and
                            dice.random() < .2):
        op.reason = "because %d" % dice.randrange(100)
    record = model.records.get(op.name)
    if record and dice.random() < .9:
        op.token = record.token
    return op


@pytest.mark.parametrize("keys, batch", ((8, 1), (8, 6), (400, 64)))
def test_thousands_of_random_operations_do_what_the_machine_says(
        db, keys, batch):
    # C22, C35, and the whole of the table; a token may be from an operation
    # of the same batch, or older.
    dice = random.Random("%s %s %s" % (SEED, keys, batch))
    model = Model()
    names = ["key-%d" % i for i in range(keys)]
    for turn in range(max(6000 // batch, 60) if batch > 1 else 2500):
        ops = [random_op(dice, model, names)
               for _ in range(dice.randrange(1, batch + 1))]
        for op in apply(db, *ops):
            model.expect(op)
        if turn % 40 == 0:
            model.sweep(db)
            model.check(db)
    model.check(db)


# ---- batches ----

def test_operations_on_one_name_see_each_other_in_order(db):
    token = claim_new(db, "k", owner="a")
    ops = apply(
        db, Op("claim", "k", owner="b"), Op("extend", "k", token=token, lock=5),
        Op("claim", "other"), Op("doubt", "k", token=token, reason="why"),
        Op("claim", "k", owner="b"),
        Op("complete", "k", token=token, status=200), Op("claim", "k"),
        Op("release", "k", token=token), Op("evict", "k"),
        Op("claim", "k", owner="b"), Op("claim", "k", owner="b"),
        Op("claim", "k", owner="c"), Op("complete", "k", token=token))
    assert [op.word for op in ops] == [
        "INFLIGHT", "OK", "NEW", "OK", "UNCERTAIN", "OK", "REPLAY", "KEPT",
        "OK", "NEW", "NEW", "INFLIGHT", "STALE"]
    assert ops[4].shown["reason"] == "why"
    assert ops[9].shown["token"] == ops[10].shown["token"] > token


def test_a_thousand_claims_and_completions_in_a_batch(db):
    ops = apply(db, *(Op("claim", "k%d" % i) for i in range(1000)))
    assert {op.word for op in ops} == {"NEW"}
    assert len({op.shown["token"] for op in ops}) == 1000
    done = apply(db, *(Op("complete", op.name[2], token=op.shown["token"],
                          status=201, body=op.name[2].encode())
                       for op in ops))
    assert {op.word for op in done} == {"OK"}
    mixed = apply(db, *(Op("claim", "k%d" % i) for i in range(500, 1500)))
    assert [op.word for op in mixed] == ["REPLAY"] * 500 + ["NEW"] * 500
    assert rows(db, "SELECT count(*) FROM latchkey.answer a"
                " JOIN latchkey.operation o USING (token)"
                " WHERE convert_from(a.body, 'UTF8') = o.key") == [(1000,)]


def test_an_empty_batch_decides_nothing_and_keepers_events_are_unknown_here(db):
    assert rows(db, "SELECT * FROM latchkey.apply(%s 1)" % ("'{}', " * 21)
                ) == []
    assert [apply_one(db, event, "k")[0] for event in ("sweep", "reap")] == [
        "unknown"] * 2


def test_a_batch_is_refused_by_a_transaction_with_an_old_snapshot(
        server, database):
    db = server.connect(database, autocommit=False)
    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg.errors.InvalidTransactionState):
        apply(db, Op("claim", "k"))


def test_names_are_bytes_and_do_not_run_into_each_other(db):
    # C13, C14
    odd = ["a\\\\b", "\\001", "%s", "'; DROP", "ä", "a\u0308", "ß", "{}",
           "\"", "NULL", " ", "x" * 255, "𝄞", "a,b", "A"]
    names = [(tenant, scope, "k") for tenant in odd for scope in odd]
    ops = apply(db, *(Op("claim", key, tenant=tenant, scope=scope)
                      for tenant, scope, key in names))
    assert {op.word for op in ops} == {"NEW"}
    assert {op.word for op in apply(db, Op("claim", "k", tenant="a"),
                                    Op("claim", "k", tenant="ax"[:1],
                                       scope="s2"))} == {"NEW"}
    assert len(set(rows(db, "SELECT tenant, scope, key"
                        " FROM latchkey.operation"))) == len(names) + 2


# ---- rivals ----

def test_a_claim_never_waits_and_others_are_asked_to_come_again(
        server, database, db):
    # C01
    kept = claim_new(db, "kept")
    apply(db, Op("complete", "kept", token=kept, status=200, body=b"x"))
    running = claim_new(db, "running", lock=HOUR)
    rival = server.connect(database, autocommit=False)
    claim_new(rival, "new")
    apply(rival, Op("claim", "kept"), Op("extend", "running", token=running,
                                         lock=2 * HOUR))
    ops = apply(db, Op("claim", "new"), Op("claim", "new", fingerprint="g"),
                Op("claim", "kept"), Op("claim", "kept", fingerprint="g"),
                Op("claim", "running"), Op("claim", "free"),
                Op("claim", "running", fingerprint="g"),
                Op("complete", "running", token=running),
                Op("keep", "running", ttl=1), Op("evict", "kept"))
    assert [op.word for op in ops] == [
        "again", "again", "REPLAY", "MISMATCH", "INFLIGHT", "NEW",
        "MISMATCH", "again", "again", "again"]
    assert ops[4].shown["number"] == running
    rival.rollback()
    assert [op.word for op in apply(
        db, Op("claim", "new"), Op("complete", "running", token=running),
        Op("evict", "kept"))] == ["NEW", "OK", "OK"]


def test_a_claim_that_may_be_committed_waits_for_the_lock(server, database, db):
    """C41: the transaction that holds the lock may be its own earlier one, cut
    off at COMMIT, and may be about to make it NEW: what is committed now says
    nothing about it."""
    token = claim_new(db, "k", fingerprint="first")
    lost = server.connect(database)
    with lost.transaction():
        # Released and claimed in one batch, whose COMMIT is on its way.
        apply(lost, Op("release", "k", token=token),
              Op("claim", "k", fingerprint="second", owner="me"))
        again = Op("claim", "k", fingerprint="second", owner="me")
        assert apply(db, again)[0].word == "MISMATCH"
        again.flags |= COMMITTED_BEFORE
        assert apply(db, again)[0].word == "again"
    assert apply(db, again)[0].word == "NEW"


def test_operations_on_one_name_have_its_lock_together_or_not_at_all(
        server, database, db):
    """C01: a rival that ends while a batch takes its locks must not let a later
    operation of the batch through where an earlier one comes again."""
    rival = server.connect(database, autocommit=False)
    watch = server.connect(database)
    for turn in range(3):
        key = "k%d" % turn
        claim_new(rival, key)
        first, last = Op("claim", key), Op("claim", key)
        # Long names, which take time.
        batch = [first] + [Op("evict", "x" * 100000)] * 60 + [last]
        applies = threading.Thread(target=apply, args=(db, *batch))
        applies.start()
        # It has the second lock, so it was refused the first.
        until(lambda: not applies.is_alive() or rows(
            watch, "SELECT FROM pg_locks WHERE locktype = 'advisory'"
            " AND granted AND pid = %s", db.info.backend_pid), pause=0)
        rival.rollback()
        applies.join()
        assert (first.word, last.word) in (("again", "again"),
                                           ("NEW", "INFLIGHT"))


def test_shuffled_overlapping_batches_of_rivals_never_deadlock(
        server, database):
    # C01: two transactions interleaved; every name is NEW for one of them.
    dice = random.Random(SEED)
    one, two = (server.connect(database, autocommit=False) for _ in range(2))
    for turn in range(30):
        names = ["%d-%d" % (turn, i) for i in range(40)]
        won = {name: 0 for name in names}
        for _ in range(6):
            for db in (one, two):
                db.execute("SET LOCAL lock_timeout = 1")
                part = dice.sample(names, 12)
                for op in apply(db, *(Op("claim", name) for name in part)):
                    won[op.name[2]] += op.word == "NEW"
        one.commit()
        two.commit()
        for op in apply(one, *(Op("claim", name) for name in names)):
            won[op.name[2]] += op.word == "NEW"
        one.commit()
        assert set(won.values()) == {1}


def test_tokens_run_out_with_an_error_and_never_start_over(db):
    db.execute("SELECT setval('latchkey.token', 281474976710654)")
    assert claim_new(db, "last") == 2 ** 48 - 1
    with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
        claim_new(db, "one more")


# ---- plans ----

def test_no_plan_reads_a_whole_table_however_it_has_grown(server, database):
    # Planned on empty tables and never analysed: a batch touches as many
    # pages at the end as at the beginning.
    db = server.connect(database)
    db.execute("ALTER TABLE latchkey.operation SET (autovacuum_enabled = off)")
    db.execute("ALTER TABLE latchkey.answer SET (autovacuum_enabled = off)")

    def batch(first):
        tokens = [op.shown["token"] for op in apply(db, *(
            Op("claim", "k%d" % i) for i in range(first, first + COUNT)))]
        apply(db, *(Op("complete", "k%d" % (first + i), token=token, status=200)
                    for i, token in enumerate(tokens) if i % 4),
              *(Op("release", "k%d" % (first + i), token=token)
                for i, token in enumerate(tokens) if i % 4 == 0))
        apply(db, *(Op("claim", "k%d" % i)
                    for i in range(first, first + COUNT)))

    for i in range(8):
        batch(i * COUNT)  # by now every plan is the one that is kept
    db.execute(
        "INSERT INTO latchkey.operation (number, tenant, scope, key, state,"
        " attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,"
        " fingerprint, owner) SELECT n, 't', 's', 'more' || n, 2 + n % 3, 1, n,"
        " n, 0, 4e12, 1, '', '' FROM generate_series(1000000, 1060000) n")
    apply(db, *(Op("claim", "due%d" % i, lock=1) for i in range(500)))
    await_time(db, now_ms(db) + 2)
    with db.transaction():
        before = read_rows(db)
        batch(100000)
        assert len(keep(db, most=20)[1]) == 20
        reap(db, most=20)
        after = read_rows(db)
    assert after[0] == before[0]
    assert after[1] - before[1] < 4 * COUNT + 3 * 20


def read_rows(db):
    """Rows read so far, by this connection: by scans, by way of indexes."""
    return db.execute(
        "SELECT sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint"
        " FROM pg_stat_xact_user_tables WHERE schemaname = 'latchkey'"
        " AND relname IN ('operation', 'answer', 'job')").fetchone()


# ---- the keeper ----

def test_a_lapsed_claim_becomes_uncertain_and_waiters_can_be_told(db):
    # C22
    _, shown = apply_one(db, "claim", "k", lock=1)
    claim_new(db, "lives", lock=HOUR)
    await_time(db, shown["deadline_ms"])
    assert keep(db) == (True, [shown["lock_id"]], False)
    assert sum(reap_all(db)) == 0
    verdict, now = apply_one(db, "claim", "k")
    assert (verdict, now["reason"]) == ("UNCERTAIN", None)
    assert now["deadline_ms"] == shown["deadline_ms"]
    # A late completion with the current token still counts.
    assert apply_one(db, "complete", "k", token=shown["token"])[0] == "OK"


def test_a_sweep_with_an_old_snapshot_overlooks_no_sign_of_life(
        server, database, db):
    # C22: through a pooler it may run in REPEATABLE READ.
    holder = Op("claim", "k", lock=1)
    apply(db, holder)
    await_time(db, holder.shown["deadline_ms"])
    sweeper = server.connect(database, autocommit=False)
    sweeper.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    sweeper.execute("SELECT FROM latchkey.operation")
    assert apply_one(db, "extend", "k", token=holder.shown["token"],
                     lock=HOUR)[0] == "OK"
    with pytest.raises(psycopg.errors.SerializationFailure):
        keep(sweeper)
    sweeper.rollback()
    assert keep(sweeper)[1] == []
    sweeper.commit()
    assert apply_one(db, "claim", "k")[0] == "INFLIGHT"


def test_one_keeper_at_a_time_and_another_when_its_lease_runs_out(
        server, database, db):
    assert keep(db, "one", 60000)[0] and not keep(db, "two", 60000)[0]
    db.execute("UPDATE latchkey.keeper SET until_ms = 0")
    assert keep(db, "two", 60000)[0] and not keep(db, "one", 60000)[0]
    # A transaction that is at it keeps nobody waiting.
    other = server.connect(database, autocommit=False)
    assert keep(other, "two", 60000)[0]
    db.execute("SET lock_timeout = 1")
    assert not keep(db, "two", 60000)[0]
    other.rollback()
    assert keep(db, "two", 60000)[0]


def test_a_lease_that_ends_in_a_time_to_come_is_of_a_clock_set_back(db):
    assert keep(db, "dead", 10 ** 9)[0]
    until_ms, = rows(db, "SELECT until_ms FROM latchkey.keeper")[0]
    assert until_ms <= now_ms(db) + 60000  # no lease is longer than that
    assert not keep(db, "me", 3000)[0]
    db.execute("UPDATE latchkey.keeper SET until_ms = until_ms + 86400000")
    assert keep(db, "me", 3000)[0]
    assert not keep(db, "dead", 60000)[0]
    # Nor does whoever holds it go by it.
    db.execute("UPDATE latchkey.keeper SET until_ms = until_ms + 86400000")
    assert keep(db, "me", 3000)[0] and not keep(db, "dead", 60000)[0]


def test_the_reaper_takes_bounded_steps_and_leaves_what_others_hold(
        server, database, db):
    # C25
    tokens = [op.shown["token"] for op in apply(
        db, *(Op("claim", "k%d" % i) for i in range(100)))]
    ops = apply(db, *(Op("complete", "k%d" % i, token=token, ttl=1, status=200)
                      for i, token in enumerate(tokens)))
    claim_new(db, "lives")
    await_time(db, ops[0].shown["deadline_ms"])
    other = server.connect(database, autocommit=False)
    # A new life begins in an open transaction.
    assert apply_one(other, "claim", "k7")[1]["attempt"] == 1
    assert reap(db) == (0, False, (4, 0))  # not without the lease
    keep(db)
    steps = reap_all(db, 40)
    assert max(steps) <= 40 and sum(steps) == 99
    other.commit()
    assert [key for key, in rows(db, "SELECT key FROM latchkey.operation"
                                 " ORDER BY key")] == ["k7", "lives"]
    assert rows(db, "SELECT count(*) FROM latchkey.answer") == [(0,)]


def test_an_unfinished_job_keeps_its_operation(db):
    # C25: an operation with unfinished jobs is not forgotten.
    token = claim_new(db, "k")
    db.execute("SELECT latchkey.enqueue('t', 's', 'k', %s, 'j', 'x', '/')",
               (token,))
    _, shown = apply_one(db, "complete", "k", token=token, ttl=1, status=200)
    await_time(db, shown["deadline_ms"])
    assert apply_one(db, "claim", "k")[0] == "REPLAY"
    keep(db)
    assert sum(reap_all(db)) == 0
    assert apply_one(db, "claim", "k")[0] == "REPLAY"
    db.execute("UPDATE latchkey.job SET state = 4")
    assert sum(reap_all(db)) == 1
    assert rows(db, "SELECT 1 FROM latchkey.job") == []
    assert apply_one(db, "claim", "k")[0] == "NEW"


def test_the_reaper_looks_at_few_records_however_many_are_kept_by_jobs(
        server, database):
    # C25
    db = server.connect(database)
    db.execute(
        "INSERT INTO latchkey.operation (number, tenant, scope, key, state,"
        " attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,"
        " fingerprint, owner) SELECT n, 't', 's', 'k' || n, 4, 1, n, n, 1,"
        " CASE WHEN n < 10000 THEN 5000 + n / 4 ELSE 10000 END, 1, 'f', ''"
        " FROM generate_series(1, 20001) n")
    db.execute(
        "INSERT INTO latchkey.job (number, generation, token, name, target,"
        " method, path, headers, body, created_ms, due_ms) SELECT n, n, n, 'j',"
        " 't', 'POST', '/', '', '', 1, 1 FROM generate_series(1, 20000) n")
    db.execute("UPDATE latchkey.operation SET deadline_ms = 10001"
               " WHERE number = 20001")
    keep(db)
    place, steps = (4, 0), []
    while not steps or place != (4, 0):
        with db.transaction():
            before = read_rows(db)
            reaped, _, place = reap(db, 20, place)
            after = read_rows(db)
        steps.append(reaped)
        assert after[0] == before[0]
        assert after[1] - before[1] < 20000
    assert sum(steps) == 1 and len(steps) < 12, steps
    assert rows(db, "SELECT 1 FROM latchkey.operation"
                " WHERE number = 20001") == []


def test_after_a_fail_over_no_token_is_handed_out_twice(db):
    check = "SELECT latchkey.check_timeline(0)"
    assert rows(db, check) == rows(db, check) == [(False,)]
    last = claim_new(db, "a")
    db.execute("SELECT setval('latchkey.timeline', 99)")
    # It has leapt, and is not to leap again, even if the transaction fails.
    with db.transaction(force_rollback=True):
        assert rows(db, check) == [(True,)]
    assert rows(db, check) == [(False,)]
    assert last + 2 ** 32 < claim_new(db, "b") < last + 2 ** 33
    assert rows(db, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []


def test_a_server_that_went_back_hands_out_no_token_twice(db):
    # A daemon tells the highest token that it has heard of.
    rows(db, "SELECT latchkey.check_timeline(0)")
    heard = claim_new(db, "a") + 1000
    check = "SELECT latchkey.check_timeline(%d)" % heard
    assert rows(db, check) == [(True,)]
    assert rows(db, check) == [(False,)]
    assert claim_new(db, "b") > heard + 2 ** 32


# ---- migrations ----

def test_functions_may_be_made_again_beside_claims(server, database, db):
    token = claim_new(db, "k")
    migrate(server.connect(database), FILES[1:])
    assert apply_one(db, "complete", "k", token=token, status=200)[0] == "OK"
    secrets = rows(db, "SELECT value FROM latchkey.meta"
                   " WHERE name LIKE '%%secret'")
    assert len(set(secrets)) == 2
    assert all(len(bytes.fromhex(value)) == 16 for value, in secrets)


def test_an_owner_without_special_rights_can_migrate_or_is_told_what_to_do(
        server, database):  # which has made the roles
    server.query("CREATE DATABASE plain")
    server.create_user("plain")
    db = server.connect("plain", user="plain")
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
        migrate(db)
    assert ("CREATE SCHEMA latchkey AUTHORIZATION plain"
            in caught.value.diag.message_hint)
    server.query("GRANT CREATE ON DATABASE plain TO plain")
    server.query("ALTER ROLE latchkey_app RENAME TO another")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            migrate(db)
        assert ("CREATE ROLE latchkey_app NOLOGIN"
                in caught.value.diag.message_hint)
    finally:
        server.query("ALTER ROLE another RENAME TO latchkey_app")
    migrate(db)
    claim_new(db, "k")
    assert keep(db)[0]
