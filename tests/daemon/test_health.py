"""Is it healthy, what its numbers are called, and what systemd makes of it."""

import configparser
import json
import re
import shutil
import socket
import subprocess
import threading

import pytest

from support import build
from support.life import begin, claim, finish, new_key, until, verdict
from support.resp import fields

NO_DISK = ["limits.disk_free=0"]  # however full that of the tests is


def health(raw):
    """HEALTH: its map, with the reasons by their codes."""
    found = fields(raw("HEALTH"))
    found["reasons"] = {reason["code"].decode(): reason for reason in
                        map(fields, found["reasons"])}
    return found


# ---- HEALTH ----

def test_what_needs_no_person_is_healthy(make_daemon):
    daemon = make_daemon(settings=NO_DISK)
    finish(daemon.raw(), new_key())
    found = health(daemon.raw())
    assert found["status"] == b"ok" and not found["reasons"]
    said = daemon.cli("health", user=None)
    assert said.returncode == 0
    assert said.stdout == ("healthy: 1 operation is stored, and nothing needs "
                           "a person\n")
    shown = json.loads(daemon.cli("health", "--json").stdout)
    assert shown["status"] == "ok" and shown["reasons"] == []


def test_what_is_uncertain_needs_a_person_and_says_for_how_long(make_daemon):
    # C35
    daemon = make_daemon(settings=NO_DISK + ["store.sweep_interval=20ms"])
    raw, key = daemon.raw(), new_key()
    token = begin(raw, key)
    assert raw("DOUBT", "acme", "POST /payments", key, token, "lost") == "OK"
    until(lambda: health(raw)["status"] == b"attention")
    reason = health(raw)["reasons"]["operations-uncertain"]
    assert reason["count"] == 1 and reason["since-ms"] > 0
    assert b"list --state uncertain" in reason["text"]
    said = daemon.cli("health")
    assert said.returncode == 1, said
    assert said.stdout.startswith("needs a person: 1 operation is uncertain")


def test_a_disk_that_is_nearly_full_is_told_with_its_numbers(make_daemon):
    daemon = make_daemon(settings=["limits.disk_free=1024g"])
    reason = health(daemon.raw())["reasons"]["disk-low"]
    assert b"limits.disk_free (1048576 MiB)" in reason["text"]
    free = fields(daemon.raw(user="reader")("STATS"))["disk-free-bytes"]
    assert b"%d MiB are free" % (free >> 20) in reason["text"]


def test_a_full_disk_cannot_decide_and_says_so(faulty):
    # C19
    daemon = faulty(settings=NO_DISK + ["store.sweep_interval=20ms"])
    raw = daemon.raw()
    daemon.set_faults("fail write ENOSPC any forever")
    assert claim(raw, new_key()).code == "UNAVAILABLE"
    found = health(raw)
    assert found["status"] == b"unavailable"
    assert b"disk is full" in found["summary"]
    said = daemon.cli("health")
    assert said.returncode == 3 and "disk is full" in said.stdout
    ping = daemon.cli("ping")
    assert ping.returncode == 0 and "disk is full" in ping.stderr
    waited = daemon.cli("ping", "--wait", "1ms")
    assert waited.returncode == 3 and "disk is full" in waited.stderr
    daemon.set_faults()
    until(lambda: verdict(claim(raw, new_key())) == "NEW")
    assert health(raw)["status"] == b"ok"


def test_it_answers_while_the_store_hangs(faulty):
    daemon = faulty()
    raw, other = daemon.raw(), daemon.raw()
    daemon.set_faults("hold before_append")
    raw.send("CLAIM", "acme", "s", new_key(), "f")
    until(lambda: b"queued_ops:1\r\n" in other("INFO", "stats"))
    assert "status" in health(other)
    daemon.set_faults()
    assert raw.read()[0] == b"NEW"


def test_ping_waits_until_commands_will_work(make_daemon):
    daemon = make_daemon(start=False)
    early = daemon.cli("ping", "--wait", "1ms")
    assert early.returncode == 3 and "cannot reach" in early.stderr
    said = []
    waiting = threading.Thread(
        target=lambda: said.append(daemon.cli("ping", "--wait", "10m")))
    waiting.start()
    daemon.start()
    waiting.join()
    assert said[0].returncode == 0 and "PONG" in said[0].stdout, said[0]


def test_ping_does_not_wait_for_what_time_does_not_mend(daemon):
    wrong = daemon.cli("ping", "--wait", "10m", "--server", "nonsense")
    assert wrong.returncode == 2
    (daemon.folder / "wrong").write_text("wrong")
    denied = daemon.cli("ping", "--wait", "10m", "--user", "operator",
                        "--password-file", daemon.folder / "wrong")
    assert denied.returncode == 4, denied


# ---- numbers ----

def numbers(raw):
    """INFO's, by name; what is a word, or about one target, is left out."""
    lines = raw("INFO").decode().splitlines()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {name: int(value) for name, value in pairs if value.isdigit()}


def test_a_number_has_one_name_and_a_name_one_number(daemon):
    reader = daemon.raw(user="reader")
    finish(daemon.raw(), new_key())
    moving = {"now_ms", "disk_free_bytes", "file_bytes"}

    def stats():
        found = fields(reader("STATS"))
        assert list(found)[:3] == ["trouble", "available", "clock-held"]
        del found["trouble"]
        return {name.replace("-", "_"): value
                for name, value in found.items()}

    def are_the_same():
        """At a moment at which nothing else happens."""
        info, found = numbers(reader), stats()
        return all(info[name] == found[name] for name in found
                   if name not in moving)
    assert set(stats()) <= set(numbers(reader))
    until(are_the_same)


def test_every_number_is_explained_here_and_in_the_documentation(daemon):
    reader = daemon.raw(user="reader")
    explained = {name.replace("-", "_") for name in
                 fields(reader("STATS", "EXPLAIN"))}
    assert explained == set(numbers(reader))
    text = (build.ROOT / "docs/operations.md").read_text()
    table = text[text.index("\n## INFO"):text.index("### What to watch")]
    documented = set(re.findall(r"`([a-z0-9_]+)`", table))
    assert explained <= documented, sorted(explained - documented)
    assert "counter: " in daemon.cli("stats", "--explain").stdout


# ---- systemd ----

def unit(folder, prefix):
    """The service unit as `make install PREFIX=...` puts it there."""
    made = folder / "latchkeyd.service"
    subprocess.run(["make", "-s", "BUILD=%s" % folder, "PREFIX=%s" % prefix,
                    str(made)], cwd=build.ROOT, check=True)
    return made


def test_the_unit_names_the_daemon_of_its_prefix_and_never_gives_up(tmp_path):
    text = unit(tmp_path, "/opt/x").read_text()
    commands = re.findall(r"^Exec\w+=(\S+)", text, re.MULTILINE)
    assert commands == ["/opt/x/sbin/latchkeyd", "/opt/x/sbin/latchkeyd",
                        "/bin/kill"]
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read_string(text)
    assert parsed["Unit"]["StartLimitIntervalSec"] == "0"
    assert parsed["Service"]["Restart"] == "always"
    assert parsed["Service"]["LimitCORE"] == "0"
    assert parsed["Service"]["MemoryMax"]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin/latchkeyd").symlink_to(build.BUILD / "latchkeyd")
    made = unit(tmp_path, tmp_path)
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", made],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "latchkeyd.service:" not in result.stderr, result.stderr


def test_systemd_is_told_that_it_is_ready_and_that_its_store_is_away(
        make_daemon, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "n"))
        heard.settimeout(60 * build.patience())
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        make_daemon(url="redis://127.0.0.1:1")
        assert b"STATUS=the store is unavailable" in heard.recv(4096)
        assert b"READY=1" in heard.recv(4096)
