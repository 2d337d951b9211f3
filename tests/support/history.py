"""Writes histories by hand and runs race and check; see history/README.md."""

import os
import signal
import struct
import subprocess

from . import build

KINDS = ("", "CLAIM", "COMPLETE", "RELEASE", "DOUBT", "EXTEND", "EVICT")
VERDICTS = ("", "NEW", "REPLAY", "OMITTED", "INFLIGHT", "ACCEPTED",
            "UNCERTAIN", "MISMATCH", "LIMITED", "REFUSED", "OK", "KEPT",
            "STALE", "NIL", "UNAVAILABLE")
FLAGS = {"REEXECUTE": 1, "OTHER": 2, "NONEW": 4}
MS = 1000 * 1000


def record(call, back, kind, verdict="", *flags, key=1, owner=0, token=0,
           answer=0, lock=30000, ttl=0, connection=0):
    """One record; `call` and `back` in ms, `back` None if there is no reply."""
    return struct.pack(
        "=qqQQQQIIIBBBB", call * MS, -1 if back is None else back * MS, key,
        owner, token, answer, lock, ttl, connection, KINDS.index(kind),
        VERDICTS.index(verdict), sum(FLAGS[flag] for flag in flags), 0)


def check(*files, busy=False):
    """(violations found, what check printed)."""
    result = subprocess.run(
        [str(build.BUILD / "tests/history/check"),
         *(["--busy"] if busy else []), *map(str, files)],
        capture_output=True, text=True, timeout=600)
    assert result.returncode in (0, 1), result.stderr
    return result.returncode == 1, result.stdout


def as_list(daemon):
    return list(daemon) if isinstance(daemon, (list, tuple)) else [daemon]


def log_texts(daemons):
    return "\n\n".join(one.log_text() for one in daemons)


def race_command(daemon, history, **options):
    """daemon: one, or several that share a store."""
    command = [str(build.BUILD / "tests/history/race"),
               "--history", str(history)]
    for one in as_list(daemon):
        command += ["--server", one.address]
    for option, value in options.items():
        command.append("--" + option.replace("_", "-"))
        if value is not True:
            command.append(str(value))
    return command


def race(daemon, history, timeout=300, **options):
    """Runs a race to its end; what it printed."""
    result = subprocess.run(
        race_command(daemon, history, **options), capture_output=True,
        text=True, timeout=timeout * build.patience())
    assert result.returncode == 0, result.stderr + log_texts(as_list(daemon))
    return result.stdout


def counts(report):
    """The numbers of race's report by their names."""
    words = report.split(": ", 1)[1].split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2])}


class Race:
    """A race that goes on, whatever happens, until finish()."""

    def __init__(self, daemons, path, **options):
        self.daemons = list(daemons)
        self.path = path
        self.busy = self.daemons[0].url.startswith("postgres")
        # More than any race here gets to.
        options = {"claims": 4000000, "keys": 40000, "connections": 24,
                   "seed": os.getpid(), "reconnect": True, "readback": True,
                   **options}
        self.process = subprocess.Popen(
            race_command(self.daemons, path, **options),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def go_on(self, seconds):
        """Lets it run for a while."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError("the race ended: " + self.process.stderr.read())

    def finish(self):
        """Ends it, checks its history; what was told how often."""
        self.process.send_signal(signal.SIGTERM)
        try:
            printed, errors = self.process.communicate(
                timeout=60 * build.patience())
        except subprocess.TimeoutExpired:
            raise AssertionError("the race does not end:\n" +
                                 log_texts(self.daemons)) from None
        assert self.process.returncode == 0, errors + log_texts(self.daemons)
        found, result = check(self.path, busy=self.busy)
        print(printed, result)
        assert not found, "%s\n%s" % (result, printed)
        return counts(printed)
