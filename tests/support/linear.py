"""Storms for linear: daemons that are killed, halted, and have a disk that
fails; see linear/README.md."""

import os
import random
import re
import signal
import struct
import subprocess
import time

from . import build
from .daemon import Daemon

PROGRAM = "tests/linear/linear"
SHIM = "tests/linear/shim.so"
PAGE = 4096

# enum fault of shim.c, and how many calls may go well before one fails.
FAULTS = {"write fails": (1, 12), "disk is full": (2, 12),
          "short write": (3, 12), "sync fails": (4, 4), "sync is full": (5, 4)}


class FailingDisk:
    """What shim.c keeps and obeys, for the store of one daemon."""

    def __init__(self, daemon):
        self.store = daemon.store
        self.folder = daemon.folder / "disk"
        self.folder.mkdir()
        self.control = daemon.folder / "control"
        self.control.write_bytes(bytes(PAGE))

    def environment(self):
        return {"LD_PRELOAD": str(build.BUILD / SHIM),
                "LATCHKEY_SHIM_CONTROL": str(self.control),
                "LATCHKEY_SHIM_STORE": str(self.store),
                "LATCHKEY_SHIM_DISK": str(self.folder)}

    def order(self, fault=0, skip=0, times=0):
        """The fault comes last: until then nothing strikes."""
        with open(self.control, "r+b", buffering=0) as file:
            file.write(bytes(4))
            file.seek(4)
            file.write(struct.pack("=II", skip, times))
            file.seek(0)
            file.write(struct.pack("=I", fault))

    def struck(self):
        return struct.unpack_from("=I", self.control.read_bytes(), 12)[0]

    def lose_power(self, dice):
        """All that was not synced is gone, or half of it: the files are as the
        disk has them."""
        some = dice.random() < 0.5
        for kept in self.folder.glob("*.dirty"):
            name = kept.name.removesuffix(".dirty")
            real = self.store.parent / name
            dirty = kept.read_bytes()
            if real.exists():
                self.restore(real, self.folder / name, [
                    page for page in find_all(dirty, 1)
                    if some and dice.random() < 0.5])
            kept.write_bytes(bytes(len(dirty)))
        self.store.with_name(self.store.name + "-shm").unlink(missing_ok=True)

    def restore(self, real, disk, lucky):
        with open(real, "r+b") as now, open(disk, "r+b") as durable:
            for page in lucky:
                now.seek(page * PAGE)
                durable.seek(page * PAGE)
                durable.write(now.read(PAGE))
            durable.seek(0)
            data = durable.read()
            now.seek(0)
            now.write(data)
            now.truncate(len(data))


def find_all(data, byte):
    at = data.find(byte)
    while at >= 0:
        yield at
        at = data.find(byte, at + 1)


class StormDaemon(Daemon):
    """A daemon that may have a disk that fails."""

    def __init__(self, shim=False, **options):
        super().__init__(**options)
        self.disk = FailingDisk(self) if shim else None

    def environment(self):
        env = super().environment()
        if self.disk:
            env.update(self.disk.environment())
        return env


class DoesNotStart(AssertionError):
    """The store that a daemon left is one that none can open."""


class Storm:
    """linear against daemons, which it does not leave in peace."""

    def __init__(self, daemons, seed, seconds, groups=6):
        self.daemons = daemons
        self.dice = random.Random(seed)
        self.seconds = seconds
        self.strikes = {}
        url = daemons[0].url
        command = [str(build.BUILD / PROGRAM), "--seed", str(seed),
                   "--seconds", str(seconds), "--groups", str(groups)]
        for daemon in daemons:
            command += ["--server", daemon.address]
        if not url.startswith("sqlite"):
            command.append("--wall")
        if url.startswith("postgres"):
            command.append("--busy")
        self.command = command

    def actions(self, daemon):
        actions = [self.kill, self.stop, self.halt, self.halt]
        if daemon.disk:
            actions += [self.lose_power, self.lose_power]
            actions += [self.fault] * 5
        return actions

    def count(self, name):
        self.strikes[name] = self.strikes.get(name, 0) + 1

    # ---- what happens to a daemon ----

    def calm(self, daemon):
        if daemon.disk:
            daemon.disk.order()

    def start(self, daemon):
        try:
            daemon.start()
        except AssertionError as error:
            daemon.expected_exit = True
            raise DoesNotStart(str(error)) from None

    def kill(self, daemon):
        daemon.kill()
        self.calm(daemon)
        self.start(daemon)
        self.count("kill")

    def stop(self, daemon):
        self.calm(daemon)
        daemon.stop()
        self.start(daemon)
        self.count("stop")

    def halt(self, daemon):
        daemon.signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.005, 0.08))
        daemon.signal(signal.SIGCONT)
        self.count("halt")

    def lose_power(self, daemon):
        daemon.kill()
        self.calm(daemon)
        daemon.disk.lose_power(self.dice)
        self.start(daemon)
        self.count("power loss")

    def fault(self, daemon):
        name = self.dice.choice(list(FAULTS))
        fault, skip = FAULTS[name]
        daemon.disk.order(fault, self.dice.randrange(skip),
                          self.dice.choice([1, 1, 2, 5, 20]))
        self.count(name)

    # ---- the run ----

    def run(self):
        """(whether something was violated, what linear printed)."""
        # To a file: a pipe would fill up before anybody reads it.
        path = self.daemons[0].folder / "story"
        with open(path, "w") as out:
            process = subprocess.Popen(self.command, stdout=out,
                                       stderr=subprocess.STDOUT)
            try:
                self.strike(process)
                status = process.wait(60 * build.patience())
            finally:
                process.kill()
                process.wait()
        printed = path.read_text()
        assert status in (0, 1), printed
        return status == 1, printed

    def strike(self, process):
        end = time.monotonic() + self.seconds
        while process.poll() is None and time.monotonic() < end:
            time.sleep(self.dice.uniform(0.02, 0.25))
            daemon = self.dice.choice(self.daemons)
            self.dice.choice(self.actions(daemon))(daemon)
        for daemon in self.daemons:
            self.calm(daemon)


def count_words(printed):
    """The numbers of the last line by their names."""
    line = printed.splitlines()[-1]
    found = re.findall(r"([A-Za-z][A-Za-z ]*?) (\d+)[,;\n]?", line)
    counts = {name: int(number) for name, number in found}
    counts.update((name, int(number)) for number, name in re.findall(
        r"(\d+) (commands|operations|violations|undecided)", line))
    return counts


def seed():
    return int(os.environ.get("LATCHKEY_SEED", 0)) or random.getrandbits(31)


def seconds(usual):
    return float(os.environ.get("LATCHKEY_LINEAR_SECONDS", 0)) or usual
