"""Damaged and foreign files: found, named and refused, never made worse."""

import sqlite3

import pytest

from support.life import (begin, claim, complete, finish, name, new_key,
                          until, verdict)
from support.resp import Error

BODY = b"answer " * 3000
SCHEMA = 5


def change(path, *statements):
    """Changes a file behind the daemon's back."""
    db = sqlite3.connect(path)
    rows = [db.execute(statement).rowcount for statement in statements]
    db.commit()
    db.close()
    return rows


def expect_finding(daemon, *words):
    result = daemon.cli("verify")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "damaged" in result.stdout
    for word in words:
        assert word in result.stdout, result.stdout
    return result.stdout


def flip(daemon, table):
    """Stops the daemon, spoils the kind of the table's first page."""
    daemon.stop()
    with sqlite3.connect(daemon.store) as db:
        page, = db.execute("SELECT rootpage FROM sqlite_master"
                           " WHERE name = ?", (table,)).fetchone()
        size, = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with open(daemon.store, "r+b") as file:
        file.seek((page - 1) * size)
        kind = file.read(1)[0]
        assert kind in (5, 13), kind
        file.seek((page - 1) * size)
        file.write(bytes([kind ^ 1]))


def word(reply):
    return reply.code if isinstance(reply, Error) else verdict(reply)


# What is done to the second of three records, what verify says of it, and
# what a claim of it is told once its lock would have run out.
DAMAGE = {
    "another key": (
        "UPDATE claim SET key = 'other' WHERE token = %d",
        ["claim %d:", "name and hash"], "REPLAY"),
    "another hash": (
        "UPDATE claim SET hash = zeroblob(16) WHERE token = %d",
        ["claim %d:", "name and hash"], "REFUSED"),
    "an answer cut short": (
        "UPDATE answer SET record = substr(record, 1, length(record) - 9)"
        " WHERE token = %d",
        ["claim %d:", "damaged response"], "UNAVAILABLE"),
    "an answer gone": (
        "DELETE FROM answer WHERE token = %d",
        ["1 completed operations without a response"], "UNAVAILABLE"),
    "an outcome gone": (
        "DELETE FROM outcome WHERE token = %d",
        ["1 stored responses of operations that are not completed"],
        "UNAVAILABLE"),
    "an outcome of no kind": (
        "UPDATE outcome SET kind = 77 WHERE token = %d",
        ["1 outcomes of an unknown kind"], "UNAVAILABLE"),
    "an outcome without a time": (
        "UPDATE outcome SET until = -1 WHERE token = %d",
        ["1 outcomes with a damaged time"], "UNAVAILABLE"),
    "a lock without an end": (
        "UPDATE claim SET lock = 1 << 60 WHERE token = %d",
        ["1 claims with a damaged lock"], "REPLAY"),
    "a number of a later claim": (
        "UPDATE claim SET number = 1 << 40 WHERE token = %d",
        ["1 claims with a damaged number"], "REPLAY"),
    "a number without a reference": (
        "UPDATE claim SET number = -1 WHERE token = %d",
        ["1 claims with a damaged number"], "REPLAY"),
    "a claim gone": (
        "DELETE FROM claim WHERE token = %d",
        ["1 outcomes without a claim"], "REFUSED"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named_and_nothing_hangs(daemon, what):
    statement, findings, told = DAMAGE[what]
    raw = daemon.raw()
    before, hurt, after = keys = [new_key() for _ in range(3)]
    tokens = {}
    for key in keys:
        tokens[key] = begin(raw, key, "LOCK", 20)
        assert complete(raw, key, tokens[key], 200, b"", BODY) == "OK"
    assert daemon.cli("verify").returncode == 0
    daemon.stop()
    assert change(daemon.store, statement % tokens[hurt]) == [1]
    daemon.start()
    expect_finding(daemon, *(finding.replace("%d", str(tokens[hurt]))
                             for finding in findings))
    raw = daemon.raw()
    until(lambda: word(claim(raw, hurt, "NONEW")) != "INFLIGHT")
    for _ in range(3):
        assert word(claim(raw, hurt, "NONEW")) == told
    for key in (before, after):
        assert claim(raw, key)[3] == BODY
    assert raw("PING") == "PONG"


@pytest.mark.parametrize("number", [1 << 40, 1 << 48, -1])
def test_a_damaged_number_does_not_stop_the_next_claim(daemon, number):
    raw = daemon.raw()
    key, other = new_key(), new_key()
    token = begin(raw, key)
    assert raw("RELEASE", *name(key), token) == "OK"
    daemon.stop()
    assert change(daemon.store, "UPDATE claim SET number = %d"
                  " WHERE token = %d" % (number, token)) == [1]
    daemon.start()
    raw = daemon.raw()
    again = begin(raw, key)
    assert again > token
    assert complete(raw, key, again, 200, b"", BODY) == "OK"
    assert claim(raw, key)[3] == BODY
    finish(raw, other)
    assert raw("PING") == "PONG"


@pytest.mark.parametrize("table", ["answer", "audit"])
def test_a_spoiled_page_is_found(daemon, table):
    raw = daemon.raw()
    done = new_key()
    finish(raw, done, 200, b"", BODY)
    flip(daemon, table)
    daemon.start()
    expect_finding(daemon, *(["Page "] if table == "audit" else []))
    reply = claim(daemon.raw(), done)
    assert word(reply) == ("UNAVAILABLE" if table == "answer" else "REPLAY")


@pytest.mark.parametrize("table", ["claim", "outcome"])
def test_a_page_that_the_start_needs_is_told_at_the_start(daemon, table):
    finish(daemon.raw(), new_key())
    flip(daemon, table)
    expect_refusal(daemon, "malformed")


# ---- files that are not ours ------------------------------------------------

def expect_refusal(daemon, *words):
    """It does not start, and a line of its log has all of the words."""
    since = len(daemon.lines)
    daemon.launch()
    assert daemon.wait() == 1
    lines = daemon.log[since:]
    assert any(all(word in line for word in words) for line in lines), lines
    assert not any("event=ready" in line for line in lines)


def header(path):
    db = sqlite3.connect(path)
    numbers = [db.execute("PRAGMA " + name).fetchone()[0]
               for name in ("application_id", "user_version")]
    db.close()
    return numbers


def test_the_file_says_whose_it_is_and_of_which_version(daemon):
    finish(daemon.raw(), new_key())
    daemon.stop()
    assert header(daemon.store) == [int.from_bytes(b"LTKY", "big"), SCHEMA]
    daemon.start()


def test_a_file_of_a_later_version_is_refused_and_left_alone(daemon):
    raw = daemon.raw()
    done = new_key()
    finish(raw, done)
    daemon.stop()
    change(daemon.store, "PRAGMA user_version = %d" % (SCHEMA + 6))
    before = daemon.store.read_bytes()
    expect_refusal(daemon, str(daemon.store), "later version",
                   "schema %d," % (SCHEMA + 6), "knows %d" % SCHEMA)
    assert daemon.store.read_bytes() == before
    change(daemon.store, "PRAGMA user_version = %d" % SCHEMA)
    daemon.start()
    assert verdict(claim(daemon.raw(), done)) == "REPLAY"


@pytest.mark.parametrize("version", [0, 1, 9])
def test_a_database_of_somebody_else_is_refused_and_left_alone(make_daemon,
                                                               version):
    daemon = make_daemon(start=False)
    change(daemon.store, "CREATE TABLE precious (thing)",
           "INSERT INTO precious VALUES ('mine')",
           "PRAGMA user_version = %d" % version)
    expect_refusal(daemon, str(daemon.store), "not one of Latchkey's")
    db = sqlite3.connect(daemon.store)
    assert db.execute("SELECT * FROM precious").fetchall() == [("mine",)]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    assert tables == (1,)
    db.close()
    assert header(daemon.store) == [0, version]


def test_a_file_that_is_no_database_is_refused_and_left_alone(make_daemon):
    daemon = make_daemon(start=False)
    daemon.store.write_bytes(b"minutes of the meeting\n" * 1000)
    expect_refusal(daemon, str(daemon.store), "not a database")
    assert daemon.store.read_bytes() == b"minutes of the meeting\n" * 1000
