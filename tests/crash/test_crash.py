"""C20: the daemon is killed at every step, again and again; nothing that was
acknowledged is lost and nothing runs twice.

Each turn runs a small race whose journal the racer keeps outside the daemon,
kills the daemon in it, at a random moment or at a named point, starts it again
and lets the racer finish and read every key back. Then the journal is checked.

Only a kill at the point that was meant, in the middle of a race, counts. The
test goes on until there are enough of them.
"""

import os
import random
import struct
import subprocess
import time

from support import build, history
from support.life import FINGERPRINT, name, new_key, verdict
from support.resp import Closed, Raw, encode

POINTS = ["random", "before_append", "before_sync", "after_sync",
          "before_reply", "in_checkpoint", "in_checkpoint_sync", "in_reaper"]
# How often a point may be passed in one race before the daemon is killed.
PASSES = {"in_checkpoint_sync": 3, "in_reaper": 6}
# The longest that a daemon lives in a race that is killed at random.
RANDOM_DELAY = 0.1
KEYS = 120
BLOCK = 104  # turns on one store
SETTINGS = ["store.sweep_interval=20ms", "store.checkpoint_pages=40",
            "store.reap_rows=16"]


def kills_wanted():
    return int(os.environ.get("LATCHKEY_KILLS", 0)) or (
        24 if build.is_sanitized() else 104)


def was_under_load(path, dead_ns):
    """Were there commands without a reply when the daemon died, and did the
    race go on when it was back?"""
    cut_off = went_on = 0
    for call, back in struct.iter_unpack("=qq48x", path.read_bytes()):
        cut_off += back == -1 and call < dead_ns
        went_on += call > dead_ns
    return cut_off > 0 and went_on > 0


def expire_some(daemon):
    """Operations that expire at once, so that the reaper has work to do."""
    keys = [name(new_key(), tenant="chaff") for _ in range(200)]
    try:
        with Raw(daemon.address) as raw:
            raw.send_bytes(b"".join(encode("CLAIM", *key, FINGERPRINT)
                                    for key in keys))
            tokens = [raw.read()[1] for _ in keys]
            raw.send_bytes(b"".join(
                encode("COMPLETE", *key, token, 200, "", "", "TTL", 1)
                for key, token in zip(keys, tokens)))
            for _ in keys:
                raw.read()
    except (Closed, OSError):
        pass  # killed


class Turn:
    """One race with one kill in it."""

    def __init__(self, daemon, number, point, folder, dice):
        self.daemon = daemon
        self.history = folder / ("history-%d" % number)
        self.point = point
        self.passes = dice.randint(1, PASSES.get(self.point, 12))
        self.delay = dice.uniform(0.002, RANDOM_DELAY)
        self.racer = subprocess.Popen(
            history.race_command(
                daemon, self.history, reconnect=True, readback=True,
                claims=3000, keys=KEYS, first_key=number * KEYS,
                connections=12, seed=dice.getrandbits(32)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self):
        """Kills the daemon, or sees it killed; true if as it was meant."""
        self.daemon.expected_exit = True
        if self.point == "random":
            meant = not self.wait_for_racer(self.delay)
        else:
            self.daemon.set_faults("kill %s %d" % (self.point, self.passes))
            while self.daemon.is_running() and not self.wait_for_racer(0.01):
                if self.point == "in_reaper":
                    expire_some(self.daemon)
            meant = not self.daemon.is_running()
        self.daemon.kill()
        self.dead_ns = time.monotonic_ns()
        assert self.daemon.process.returncode == -9, self.daemon.log_text()
        return meant

    def wait_for_racer(self, seconds):
        """True once the race is over."""
        try:
            self.racer.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self):
        """True if the kill was in the middle of the race."""
        self.daemon.set_faults()
        self.daemon.start()
        _, errors = self.racer.communicate(timeout=120 * build.patience())
        assert self.racer.returncode == 0, errors + self.daemon.log_text()
        found, printed = history.check(self.history)
        assert not found, "killed at %s, %d: %s" % (self.point, self.passes,
                                                    printed)
        return was_under_load(self.history, self.dead_ns)


class Tally:
    """How often the daemon was killed under load, by point."""

    def __init__(self, wanted, dice):
        self.wanted = wanted
        self.dice = dice
        self.hits = dict.fromkeys(POINTS, 0)
        self.turns = 0

    def is_enough(self):
        return sum(self.hits.values()) >= self.wanted

    def next_point(self):
        """One of those that were met least often."""
        self.turns += 1
        # A point that is not met again and again proves nothing.
        assert self.turns <= 4 * self.wanted + 20, self.hits
        least = min(self.hits.values())
        return self.dice.choice([point for point in POINTS
                                 if self.hits[point] == least])


def test_killed_at_every_step_nothing_acknowledged_is_lost(faulty, tmp_path):
    # C20, C41
    dice = random.Random(int(os.environ.get("LATCHKEY_SEED", 0)) or None)
    tally = Tally(kills_wanted(), dice)
    while not tally.is_enough():
        run_block(faulty(settings=SETTINGS), tmp_path, dice, tally)
    print("%d turns, kills by point:" % tally.turns, tally.hits)
    assert min(tally.hits.values()) >= tally.wanted // len(POINTS), tally.hits


def run_block(daemon, folder, dice, tally):
    """Turns that share one store; the journals of all of them fit together."""
    turns = 0
    while turns < BLOCK and not tally.is_enough():
        turn = Turn(daemon, turns, tally.next_point(), folder, dice)
        turns += 1
        try:
            meant = turn.kill()
            tally.hits[turn.point] += turn.finish() and meant
        finally:
            turn.racer.kill()
            turn.racer.communicate()
    check_everything(daemon, folder, turns)
    daemon.stop()


def check_everything(daemon, folder, turns):
    """No token twice in the whole block, and all of it is still there."""
    for end in (daemon.kill, daemon.stop):
        end()
        daemon.start()
    last = folder / "last"
    history.race(daemon, last, claims=0, keys=turns * KEYS, readback=True,
                 connections=8)
    files = [folder / ("history-%d" % number) for number in range(turns)]
    found, printed = history.check(*files, last)
    print(printed)
    assert not found, printed
    assert verdict(daemon.raw(user="reader")("VERIFY")) == "ok"
