"""Databases with the schema of store/sql, and latchkey.apply from Python."""

import itertools

from . import build

SQL = build.BUILD / "gen" / "sql"  # store/sql with the rules filled in
FILES = [SQL / path.name for path in
         sorted((build.ROOT / "store" / "sql").glob("[0-9]*.sql"))]
EVENTS = ("claim", "accept", "lease", "complete", "release", "doubt", "extend",
          "keep", "resolve-completed", "resolve-released", "evict", "sweep",
          "reap", "enqueue", "return")
VERDICTS = ("NEW", "REPLAY", "OMITTED", "INFLIGHT", "ACCEPTED", "UNCERTAIN",
            "MISMATCH", "LIMITED", "REFUSED", "OK", "KEPT", "STALE", "NIL",
            "EXISTS")
STATES = ("absent", "accepted", "in_progress", "uncertain", "completed",
          "released")
AGAIN, UNKNOWN_EVENT = -1, -2
DAY = 86400000
REEXECUTE, NO_NEW, OWNER, REPEATABLE, PROOF = 1, 2, 4, 8, 16
RUNNING, COMMITTED_BEFORE = 128, 256
_numbers = itertools.count(1)


def migrate(connection, files=FILES):
    """As `latchkey migrate` does: all files in one transaction."""
    with connection.transaction():
        for file in (SQL / "owner.sql", *files):
            connection.execute(file.read_text())


def fresh_database(server):
    """The name of a database with the schema, copied from one made once."""
    if not server.query("SELECT 1 FROM pg_database WHERE datname = 'lk_model'"):
        server.query("CREATE DATABASE lk_model")
        connection = server.connect("lk_model")
        migrate(connection)
        connection.close()
    name = "lk_%d" % next(_numbers)
    server.query("CREATE DATABASE %s TEMPLATE lk_model" % name)
    return name


class Op:
    """One operation of a batch, and what was decided about it."""

    def __init__(self, event, key, fingerprint="f", owner="", ttl=0, lock=0,
                 reexecute=False, no_new=False, token=0, status=0, headers=b"",
                 body=b"", reason="", who="", why="", tenant="t", scope="s",
                 job="", target="", method="POST", path="/", delay=0,
                 repeatable=False, proof=False, running=False):
        self.event = EVENTS.index(event)
        self.name = (tenant, scope, key)
        self.fingerprint, self.owner = fingerprint, owner
        self.ttl, self.lock = ttl, lock
        self.flags = (reexecute * REEXECUTE + no_new * NO_NEW +
                      bool(owner) * OWNER + repeatable * REPEATABLE +
                      proof * PROOF + running * RUNNING)
        self.token, self.status = token, status
        self.headers, self.body = headers, body
        self.reason, self.who, self.why = reason, who, why
        if event == "accept":
            target = "@gateway"
        self.call = (job, target, method, path, delay)

    def columns(self):
        return (self.event, *self.name, self.fingerprint, self.owner, self.ttl,
                self.lock, self.flags, self.token, self.status, self.headers,
                self.body, self.reason, self.who, self.why, *self.call)

    @property
    def word(self):
        """The verdict in words, as the wire has it."""
        return (VERDICTS[self.verdict] if self.verdict >= 0 else
                {AGAIN: "again", UNKNOWN_EVENT: "unknown"}[self.verdict])


TYPES = ("smallint", "text", "text", "text", "text", "text", "bigint",
         "bigint", "integer", "bigint", "integer", "bytea", "bytea", "text",
         "text", "text", "text", "text", "text", "text", "bigint")
APPLY = "SELECT * FROM latchkey.apply(%s, %%s)" % ", ".join(
    "%%s::%s[]" % name for name in TYPES)


def apply(connection, *ops, default_ttl=DAY):
    """Decides them in one call; each gets the columns of its decision."""
    cursor = connection.execute(
        APPLY, [list(column) for column in zip(*(o.columns() for o in ops))]
        + [default_ttl])
    names = [column.name for column in cursor.description]
    places = []
    for row in cursor:
        decision = dict(zip(names, row))
        places.append(decision["at"])
        # `token` and `reason` are also what was sent.
        ops[decision["at"] - 1].shown = decision
        ops[decision["at"] - 1].verdict = decision["verdict"]
    assert sorted(places) == list(range(1, len(ops) + 1)), places
    return ops


def apply_one(connection, event, key, **more):
    """One operation: (verdict, decision)."""
    op, = apply(connection, Op(event, key, **more))
    return op.word, op.shown


def claim_new(connection, key, **more):
    """A claim that must be NEW; its token."""
    verdict, shown = apply_one(connection, "claim", key, **more)
    assert verdict == "NEW", shown
    return shown["token"]
