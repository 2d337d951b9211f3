"""Stores of every kind to move between, and the tool that moves."""

import json
import os
import shutil
import subprocess
import weakref

from . import build
from .resp import fields


def tool(*words, input=None, env=None):
    """latchkey, without a daemon."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith("LATCHKEY_") or
             name == "LATCHKEY_BUILD"}
    clean.setdefault("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
    clean.update(env or {})
    return subprocess.run(
        [str(build.BUILD / "latchkey"), *map(str, words)], input=input,
        capture_output=True, text=not isinstance(input, bytes), env=clean,
        timeout=120 * build.patience())


def done(result):
    assert result.returncode == 0, (result.returncode, result.stderr)
    return result


class Place:
    """A store, and a daemon on it when there is one."""

    def __init__(self, kind, url, make_daemon, settings=()):
        self.kind = kind
        self.url = url
        self.settings = list(settings)
        self.make_daemon = make_daemon
        self.daemon = None
        self.folder = build.folder("lkm")
        weakref.finalize(self, shutil.rmtree, self.folder, True)

    # ---- its daemon ----

    def start(self):
        self.daemon = self.make_daemon(url=self.url, settings=self.settings)
        return self

    def stop(self):
        self.daemon.stop()

    def raw(self):
        return self.daemon.raw()

    def operator(self):
        return self.daemon.raw(user="operator")

    # ---- moving ----

    def export(self, name="export"):
        """Online if there is a daemon; the file."""
        path = self.folder / name
        if self.daemon and self.daemon.is_running():
            done(self.daemon.cli("export", "--output", path))
        else:
            done(tool("export", "--store", self.url, "--output", path))
        return path

    def take(self, path, *options):
        """What import says, as JSON."""
        result = done(tool("import", "--json", "--store", self.url, path,
                           *options))
        return json.loads(result.stdout)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def records(path):
    """The records of an export by their keys, all of them text."""
    return {line["key"]: line for line in lines(path)
            if line["type"] == "record"}


def look(raw, name):
    found = raw("LOOKUP", *name)
    return found and fields(found)
