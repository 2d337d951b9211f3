"""Clients that run in Node, with packages from npm."""

import fcntl
import os
import shutil
import subprocess

import pytest

from . import build


def need_node():
    """Where the tests are meant to be whole, what is missing is a failure."""
    if shutil.which("node") and shutil.which("npm"):
        return
    if os.environ.get("CI") or os.environ.get("LATCHKEY_NEED_NODE") == "1":
        pytest.fail("there is no Node here", pytrace=False)
    pytest.skip("there is no Node here")


def node_modules(clients, name):
    """What clients/package.json names, installed once for each build folder.

    Tests may run beside each other: one installs, the others wait for it.
    """
    folder = build.BUILD / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        lock = (clients / "package-lock.json").read_bytes()
        done = folder / "node_modules" / ".installed"
        if done.exists() and done.read_bytes() == lock:
            return folder
        for file in ("package.json", "package-lock.json"):
            shutil.copy(clients / file, folder / file)
        result = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--omit=dev"],
            cwd=folder, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        done.write_bytes(lock)
    return folder
