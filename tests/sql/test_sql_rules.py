"""The rules in SQL are those of the C functions, for every input."""

import pytest

from support import rules, schema
from support.postgres import Postgres

FLAGS = {"reexecute": schema.REEXECUTE, "no_new": schema.NO_NEW,
         "proof": schema.PROOF, "running": schema.RUNNING, "doubted": 512}


@pytest.fixture(scope="module")
def db():
    with Postgres() as server:
        yield server.connect(schema.fresh_database(server))


def test_operations_are_decided_as_in_c_for_every_input(db):
    """Event, state and each of twelve conditions: 368,640 inputs. An expired
    operation is absent for all but the reaper, and then the booleans are null,
    as they are where there is no row."""
    events, states, conditions = rules.names("operation")
    bit = {name: "(i.mask & %d) <> 0" % (1 << at)
           for at, name in enumerate(conditions)}
    flags = " | ".join("CASE WHEN %s THEN %d ELSE 0 END" % (bit[name], value)
                       for name, value in FLAGS.items())
    row = {name: "CASE WHEN s.was > 0 THEN %s END" % bit[name] for name in (
        "expired", "lapsed", "omitted", "queued", "same_fingerprint",
        "same_owner", "token_current")}
    found = db.execute(
        "SELECT array_agg(CASE WHEN d.code < 256 THEN d.code + 256 *"
        "  (d.was + 1) ELSE d.code END ORDER BY d.event, d.state, d.mask)"
        " FROM (SELECT i.*, s.was, latchkey.decide(i.event, s.was, %s, %s)"
        "  AS code FROM (SELECT e.event, t.state, m.mask"
        "   FROM generate_series(0, %d) AS e(event),"
        "   generate_series(0, %d) AS t(state),"
        "   generate_series(0, %d) AS m(mask)) AS i"
        "  CROSS JOIN LATERAL (SELECT CASE WHEN i.event <> %d AND i.state"
        "   IN (4, 5) AND %s THEN 0 ELSE i.state END AS was) AS s) AS d" % (
            ", ".join(row[name] for name in (
                "expired", "lapsed", "omitted", "queued", "same_fingerprint",
                "same_owner", "token_current")), flags, len(events) - 1,
            len(states) - 1, (1 << len(conditions)) - 1, events.index("reap"),
            bit["expired"])).fetchone()[0]
    rules.compare("operation", found)


def test_jobs_are_decided_as_in_c_for_every_input(db):
    """Event, state and each of eleven conditions: 294,912 inputs."""
    events, states, conditions = rules.names("job")
    found = db.execute(
        "SELECT array_agg(CASE WHEN (d.code & 56) = 0 THEN d.code"
        "  + 8 * (d.state + 1) ELSE d.code END"
        "  ORDER BY d.event, d.state, d.mask)"
        " FROM (SELECT e.event, t.state, m.mask,"
        "  latchkey.decide_job(e.event, t.state, m.mask) AS code"
        "  FROM generate_series(0, %d) AS e(event),"
        "  generate_series(0, %d) AS t(state),"
        "  generate_series(0, %d) AS m(mask)) AS d" % (
            len(events) - 1, len(states) - 1,
            (1 << len(conditions)) - 1)).fetchone()[0]
    rules.compare("job", found)
