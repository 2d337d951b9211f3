"""Is it healthy, and what systemd makes of it when it is not."""

import configparser
import re
import shutil
import socket
import subprocess

import pytest

from support import build


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
