"""What store/sql/06_jobs.sql offers to a courier, from Python."""

from . import schema

WAITING, LEASED, UNCERTAIN, DEAD, DELIVERED, DROPPED = range(6)
(END_DELIVERED, END_RETRY, END_RETURN, END_UNCERTAIN,
 END_DEAD) = range(5)
(ORDER_RETRY, ORDER_DROP, ORDER_DELIVERED, ORDER_AGAIN, ORDER_PAUSE,
 ORDER_RESUME) = range(6)
DONE, STALE, AGAIN = range(3)
GATEWAY = "@gateway"
LONG = 3600000


class Job:
    """A lease."""

    def __init__(self, names, row):
        self.__dict__.update(zip(names, row))

    @property
    def fence(self):
        return self.id, self.attempts


class Courier:
    """One connection of one courier."""

    def __init__(self, db, settings=True):
        self.db = db
        if settings:
            db.execute("SELECT latchkey.courier_settings(false)")
        self.wait = self.lapsed = None

    def lease(self, *targets, most=1000, honours=False, lease=LONG,
              size=1 << 30):
        cursor = self.db.execute(
            "SELECT * FROM latchkey.lease_jobs(%s::text[], %s::integer[],"
            " %s::integer[], %s, %s)",
            (list(targets), [most] * len(targets),
             [int(honours)] * len(targets), lease, size))
        names = [column.name for column in cursor.description]
        rows = [Job(names, row) for row in cursor]
        assert rows[-1].kind == 2
        self.wait, self.lapsed = rows[-1].due_ms, rows[-1].attempts
        self.settled = [row.number for row in rows if row.kind == 1]
        return [row for row in rows if row.kind == 0]

    def take(self, target="t", **more):
        job, = self.lease(target, most=1, **more)
        return job

    def _outcomes(self, cursor, count):
        outcomes = [DONE] * count
        self.settled = []
        for at, outcome, settled in cursor:
            outcomes[at - 1] = outcome
            if settled is not None:
                self.settled.append(settled)
        return outcomes

    def end(self, *ends):
        """(job, how, {more}) each; the outcomes."""
        rows = []
        for job, how, *more in ends:
            more = more[0] if more else {}
            rows.append((*job.fence, how, more.get("delay", 0),
                         more.get("status", 0), more.get("provider", ""),
                         more.get("reason", ""), more.get("headers", b""),
                         more.get("body", b""),
                         int(more.get("left", how != END_RETURN)) +
                         2 * more.get("answer", 0)))
        types = ("bigint", "integer", "integer", "bigint", "integer", "text",
                 "text", "bytea", "bytea", "integer")
        return self._outcomes(self.db.execute(
            "SELECT * FROM latchkey.end_jobs(%s)" % ", ".join(
                "%%s::%s[]" % name for name in types),
            [list(column) for column in zip(*rows)]), len(rows))

    def finish(self, job, how=END_DELIVERED, **more):
        return self.end((job, how, more))[0]

    def mark(self, *jobs, called=False, lease=LONG):
        return self._outcomes(self.db.execute(
            "SELECT * FROM latchkey.mark_jobs(%s::bigint[], %s::integer[],"
            " %s::bigint[], %s::integer[])",
            ([job.id for job in jobs], [job.attempts for job in jobs],
             [lease] * len(jobs), [int(called)] * len(jobs))), len(jobs))

    def order(self, order, job=0, attempt=0, target="", provider="", status=0,
              who="me", why="so", lives=None):
        """(outcome, state after it). lives: of keys, by target."""
        lives = lives or {}
        (at, *rest), = self.db.execute(
            "SELECT * FROM latchkey.order_jobs(%s::integer[], %s::bigint[],"
            " %s::integer[], %s::text[], %s::text[], %s::integer[],"
            " %s::text[], %s::text[], %s::text[], %s::bigint[])",
            [[value] for value in (order, job, attempt, target, provider,
                                   status, who, why)] +
            [list(lives), list(lives.values())])
        assert at == 1
        return tuple(rest)


def job_row(db, job):
    """The row of a job, by name of column."""
    cursor = db.execute("SELECT * FROM latchkey.job WHERE id = %s", (job,))
    row = cursor.fetchone()
    return row and dict(zip((c.name for c in cursor.description), row))


def leave_jobs(db, count, target="t", prefix="k"):
    """Operations with one job each; their tokens."""
    keys = ["%s%d" % (prefix, i) for i in range(count)]
    tokens = [op.shown["token"] for op in schema.apply(
        db, *(schema.Op("claim", key) for key in keys))]
    for op in schema.apply(db, *(
            schema.Op("enqueue", key, token=token, job="j", target=target,
                      path="/p", headers=b"A: b\r\n", body=b"body")
            for key, token in zip(keys, tokens))):
        assert op.word == "OK"
    return tokens


def accept(db, key, repeatable=False, **more):
    """A request that must be accepted: its number."""
    verdict, shown = schema.apply_one(
        db, "accept", key, path="/pay", headers=b"A: b\r\n", body=b"request",
        repeatable=repeatable, **more)
    assert verdict == "ACCEPTED", shown
    return shown["number"]
