"""Stops, kills, reloads, backups: what was acknowledged is still there."""

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading

import pytest

from support import build, history
from support.life import (FINGERPRINT, begin, claim, complete, finish, name,
                          new_key, until, verdict)
from support.resp import Closed, Error, Raw, encode, fields


def one_of_each(raw):
    """A record in every state, by state; and what to ask for it with."""
    keys = {state: new_key() for state in (
        "in_progress", "uncertain", "completed", "omitted", "released")}
    for state, key in keys.items():
        token = begin(raw, key, "OWNER", "me")
        if state == "uncertain":
            assert raw("DOUBT", *name(key), token, "time-out") == "OK"
        elif state == "completed":
            assert complete(raw, key, token, 402, b"A: b\r\n",
                            b"\x00body") == "OK"
        elif state == "omitted":
            assert complete(raw, key, token, 200, b"", b"", "OMIT",
                            "too large") == "OK"
        elif state == "released":
            assert raw("RELEASE", *name(key), token) == "OK"
    return keys


def picture(raw, keys):
    """All that can be seen of them without changing anything."""
    return {state: (fields(raw("LOOKUP", *name(key))),
                    claim(raw, key, "OWNER", "me", "NONEW"))
            for state, key in keys.items()}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_every_kind_of_record_survives(daemon, end):
    # C20
    raw = daemon.raw()
    keys = one_of_each(raw)
    before = picture(raw, keys)
    getattr(daemon, end)()
    daemon.start()
    raw = daemon.raw()
    assert picture(raw, keys) == before
    # Holders go on where they were.
    token = before["in_progress"][1][1]
    assert complete(raw, keys["in_progress"], token, 200, b"", b"x") == "OK"
    again = claim(raw, keys["released"])
    assert again[0] == b"NEW" and again[3] == 2
    assert again[4] == before["released"][0]["reference"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_tokens_rise_across_a_restart(daemon, end):
    raw = daemon.raw()
    highest = 0
    for _ in range(4):
        for _ in range(20):
            key = new_key()
            token = begin(raw, key)
            assert token > highest
            highest = token
            # Even if nothing of the newest records is left.
            assert raw("RELEASE", *name(key), token) == "OK"
        getattr(daemon, end)()
        daemon.start()
        raw = daemon.raw()


def test_a_released_token_stays_stale_after_its_rows_are_gone(make_daemon):
    daemon = make_daemon(settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()
    key = new_key()
    old = finish(raw, key, options=("TTL", 50))
    until(lambda: raw("LOOKUP", *name(key)) is None)
    until(lambda: fields(daemon.raw(user="reader")("STATS"))
          .get("records", 0) == 0)
    daemon.restart()
    raw = daemon.raw()
    token = begin(raw, key)
    assert token > old
    assert complete(raw, key, old) == "STALE"


def test_the_log_survives_kill_nine_again_and_again(daemon):
    # C20
    done = {}
    for turn in range(8):
        raw = daemon.raw()
        for _ in range(10):
            key = new_key()
            finish(raw, key, 200, b"", key.encode() * 50)
            done[key] = key.encode() * 50
        daemon.kill()
        daemon.start()
    raw = daemon.raw()
    for key, body in done.items():
        assert claim(raw, key)[3] == body
    assert verdict(daemon.raw(user="reader")("VERIFY")) == "ok"


# ---- the graceful stop ------------------------------------------------------

def test_a_stop_answers_everything_it_was_sent(daemon):
    # C40, the daemon's part
    clients = [daemon.raw() for _ in range(20)]
    keys = [[new_key() for _ in range(100)] for _ in clients]
    for client, some in zip(clients, keys):
        client.send_bytes(b"".join(
            encode("CLAIM", *name(key), FINGERPRINT, "OWNER", "me")
            for key in some))
    # The first reply shows that the rest has been received or soon will be.
    first = [client.read() for client in clients]
    daemon.signal(signal.SIGTERM)
    told = {}
    for client, some, reply in zip(clients, keys, first):
        told[some[0]] = reply
        for key in some[1:]:
            try:
                told[key] = client.read()
            except Closed:
                break
    assert daemon.wait() == 0
    assert all(reply[0] == b"NEW" for reply in told.values())
    daemon.start()
    raw = daemon.raw()
    for some in keys:
        for key in some:
            again = claim(raw, key, "OWNER", "me")
            assert again[0] == b"NEW"
            assert key not in told or again == told[key]


def test_a_stop_releases_who_waits(daemon):
    raw = daemon.raw()
    key = new_key()
    begin(raw, key)
    waiting = daemon.raw()
    waiting.send("CLAIM", *name(key), FINGERPRINT, "WAIT", 600000)
    assert raw("PING") == "PONG"
    daemon.stop()
    assert verdict(waiting.read()) == "INFLIGHT"
    assert waiting.at_end()


def test_after_a_stop_the_store_is_one_file(daemon):
    finish(daemon.raw(), new_key())
    daemon.stop()
    left = {path.name for path in daemon.folder.glob("store.db*")}
    assert "store.db-wal" not in left or os.path.getsize(
        daemon.folder / "store.db-wal") == 0
    assert not daemon.socket.exists()


def test_restarts_under_load_lose_nothing_and_run_nothing_twice(make_daemon,
                                                                tmp_path):
    # C40, the daemon's part; SIGTERM and kill -9 in turn
    daemon = make_daemon(settings=["store.sweep_interval=50ms"])
    racer = subprocess.Popen(
        history.race_command(daemon, tmp_path / "h", reconnect=True,
                             readback=True, keys=3000, connections=32,
                             claims=50000 if build.is_sanitized() else 800000),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    turn = 0
    try:
        while True:
            try:
                racer.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                if turn < 8:
                    daemon.stop() if turn % 2 == 0 else daemon.kill()
                    daemon.start()
                    turn += 1
    finally:
        racer.kill()
    out, err = racer.communicate()
    assert racer.returncode == 0, err
    assert turn > 0
    found, printed = history.check(tmp_path / "h")
    assert not found, printed
    assert history.counts(out)["NEW"] > 0


# ---- reload -----------------------------------------------------------------

def test_sighup_takes_what_may_change_and_says_what_may_not(make_daemon,
                                                            tmp_path):
    config = tmp_path / "latchkeyd.conf"
    config.write_text("[store]\nlock = 20s\n")
    daemon = make_daemon(config=config)
    raw = daemon.raw()

    def lock_of_a_new_claim():
        key = new_key()
        begin(raw, key)
        record = fields(raw("LOOKUP", *name(key)))
        return record["lock-until-ms"] - record["claimed-ms"]

    assert lock_of_a_new_claim() == 20000
    config.write_text("[store]\nlock = 10s\ncheckpoint_pages = 77\n")
    since = len(daemon.lines)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("reload", since=since)
    daemon.wait_for_log("checkpoint_pages", since=since)
    until(lambda: lock_of_a_new_claim() == 10000)
    # A file with a mistake changes nothing.
    config.write_text("[store]\nlock = banana\n")
    since = len(daemon.lines)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("store.lock", since=since)
    assert lock_of_a_new_claim() == 10000
    # The connection was not disturbed by any of this.
    assert raw("PING") == "PONG"


# ---- backup and restore -----------------------------------------------------

WHO = ("WHO", "oncall", "WHY", "nightly")


def restore(daemon, copy):
    daemon.stop()
    for path in daemon.folder.glob("store.db*"):
        path.unlink()
    shutil.copy(copy, daemon.store)
    daemon.start()


def test_a_backup_is_made_while_claims_go_on(daemon, operator):
    raw = daemon.raw()
    body = b"x" * 2000
    done = [new_key() for _ in range(300)]
    for key in done:
        finish(raw, key, 200, b"", body)
    copy = daemon.folder / "copy.db"
    stop, during = threading.Event(), []

    def load():
        with Raw(daemon.address) as client:
            while not stop.is_set():
                key = new_key()
                finish(client, key)
                during.append(key)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert operator("BACKUP", str(copy), *WHO) == "OK"
    finally:
        stop.set()
        thread.join()
    assert during
    with sqlite3.connect("file:%s?mode=ro" % copy, uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    restore(daemon, copy)
    raw = daemon.raw()
    assert all(claim(raw, key)[3] == body for key in done)


def test_a_backup_is_audited_and_never_overwrites(daemon, operator):
    # C35
    copy = daemon.folder / "copy.db"
    copy.write_text("precious")
    reply = operator("BACKUP", str(copy), *WHO)
    assert isinstance(reply, Error) and str(copy) in reply
    assert copy.read_text() == "precious"
    relative = operator("BACKUP", "copy.db", *WHO)
    assert isinstance(relative, Error) and "absolute" in relative
    nowhere = operator("BACKUP", "/nowhere/at/all/copy.db", *WHO)
    line = daemon.wait_for_log('path="/nowhere/at/all/copy.db"')
    why = nowhere.removeprefix("ERR BACKUP: ")
    assert "level=error" in line and 'error="%s"' % why in line, line
    assert isinstance(nowhere, Error)
    good = daemon.folder / "good.db"
    assert operator("BACKUP", str(good), *WHO) == "OK"
    entries = [fields(entry) for entry in operator("AUDIT")]
    assert [(entry["who"], entry["why"]) for entry in entries
            if b"backup" in entry["action"].lower()] == [
                (b"operator/oncall", b"nightly")]
    assert os.stat(good).st_mode & 0o007 == 0


def copy_by_backup(daemon):
    copy = daemon.folder / "copy.db"
    assert daemon.raw(user="operator")("BACKUP", str(copy), *WHO) == "OK"
    return lambda: restore(daemon, copy)


def copy_by_hand(daemon):
    """Of the database alone; the file beside it knows how often it was
    opened."""
    copy = daemon.folder / "copy.db"
    daemon.stop()
    shutil.copy(daemon.store, copy)
    daemon.start()

    def put_back():
        daemon.stop()
        shutil.copy(copy, daemon.store)
        daemon.start()

    return put_back


COPIES = {"backup": copy_by_backup, "copied file": copy_by_hand}


def is_unavailable(reply):
    return isinstance(reply, Error) and reply.code == "UNAVAILABLE"


def held_until(daemon):
    """As STATS says it; INFO and HEALTH say the same."""
    stats = fields(daemon.raw(user="reader")("STATS"))["hold-until-ms"]
    text = daemon.raw()("INFO", "store").decode()
    assert "hold_until_ms:%d\r\n" % stats in text, text
    assert ("was restored" in daemon.cli("health").stdout) == (stats > 0)
    return stats


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_restored_store_does_not_run_what_it_may_have_forgotten(faulty,
                                                                  copy):
    """What was claimed after the copy is unknown to it: nothing new starts
    until whoever claimed it must have given up."""
    daemon = faulty("boot one", settings=["store.lock=20m"])
    raw = daemon.raw()
    known, running = new_key(), new_key()
    finish(raw, known, 200, b"", b"known")
    token = begin(raw, running)
    put_back = copy(daemon)
    assert held_until(daemon) == 0
    forgotten = new_key()
    highest = finish(daemon.raw(), forgotten)
    for _ in range(50):
        highest = begin(daemon.raw(), new_key())
    since = len(daemon.lines)
    put_back()
    line = daemon.wait_for_log("older copy", since=since)
    assert "level=warn" in line and "1200 s" in line, line
    for _ in range(2):
        raw = daemon.raw()
        until_ms = held_until(daemon)
        assert until_ms > 0
        assert claim(raw, known)[3] == b"known"
        for key in (forgotten, new_key()):
            assert is_unavailable(claim(raw, key)), key
        # A restart is no way around it.
        daemon.stop()
        daemon.start()
    assert held_until(daemon) == until_ms
    raw = daemon.raw()
    assert complete(raw, running, token, 200, b"", b"late") == "OK"
    # Half an hour later all locks that it does not know of have run out.
    daemon.stop()
    daemon.set_faults("boot two", "wall +%d" % (30 * 60 * 1000))
    daemon.start()
    assert held_until(daemon) == 0
    assert begin(daemon.raw(), forgotten) > highest


def test_a_restored_store_works_again_when_the_hold_is_over(make_daemon):
    daemon = make_daemon(settings=["store.lock=300ms",
                                   "store.sweep_interval=50ms"])
    raw = daemon.raw()
    finish(raw, new_key())
    put_back = copy_by_backup(daemon)
    highest = begin(raw, new_key())
    put_back()
    raw = daemon.raw()
    replies = []

    def is_new():
        replies.append(claim(raw, "after"))
        return not is_unavailable(replies[-1])

    until(is_new)
    assert replies[-1][0] == b"NEW" and replies[-1][1] > highest
    assert held_until(daemon) == 0


# ---- readiness --------------------------------------------------------------

@pytest.fixture
def notices(tmp_path, monkeypatch):
    """What a daemon tells its supervisor, one datagram at a time."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(20 * build.patience())
        monkeypatch.setenv("NOTIFY_SOCKET", path)

        def following():
            """The next that is more than a remark."""
            while True:
                lines = sock.recv(4096).decode().splitlines()
                lines = [line for line in lines
                         if not line.startswith("STATUS=")]
                if lines:
                    return lines

        yield following


def test_the_supervisor_is_told_of_start_reload_and_stop(notices, make_daemon,
                                                         tmp_path):
    # C40, the daemon's part
    config = tmp_path / "latchkeyd.conf"
    config.write_text("[store]\nlock = 20s\n")
    daemon = make_daemon(config=config)
    assert notices() == ["READY=1"]
    # By then it can be reached.
    assert daemon.raw()("PING") == "PONG"
    daemon.signal(signal.SIGHUP)
    reloading = notices()
    assert reloading[0] == "RELOADING=1"
    # systemd wants to know when, to tell one reload from the next.
    assert re.fullmatch(r"MONOTONIC_USEC=\d+", reloading[1])
    assert notices() == ["READY=1"]
    # A reload that changes nothing is over as well.
    config.write_text("[store]\nlock = banana\n")
    daemon.signal(signal.SIGHUP)
    assert notices()[0] == "RELOADING=1"
    assert notices() == ["READY=1"]
    daemon.expected_exit = True
    daemon.signal(signal.SIGTERM)
    assert notices() == ["STOPPING=1"]
    assert daemon.wait() == 0
