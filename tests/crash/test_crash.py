"""C20: the daemon is killed at every step, again and again; nothing that was
acknowledged is lost and nothing runs twice.

Each turn runs a small race whose journal the racer keeps outside the daemon,
kills the daemon in it, at a random moment or at a named point, starts it again
and lets the racer finish and read every key back. Then the journal is checked.
"""

import os
import random
import subprocess

from support import build, history
from support.life import verdict

POINTS = ["random", "before_append", "before_sync", "after_sync",
          "before_reply", "in_checkpoint", "in_checkpoint_sync", "in_reaper"]
# How often a point may be passed in one race before the daemon is killed.
PASSES = {"in_checkpoint_sync": 3, "in_reaper": 6}
KEYS = 120
BLOCK = 104  # turns on one store
SETTINGS = ["store.sweep_interval=20ms", "store.checkpoint_pages=40",
            "store.reap_rows=16"]


def kills_wanted():
    return int(os.environ.get("LATCHKEY_KILLS", 0)) or (
        24 if build.is_sanitized() else 104)


class Turn:
    """One race with one kill in it."""

    def __init__(self, daemon, number, folder, dice):
        self.daemon = daemon
        self.history = folder / ("history-%d" % number)
        self.point = POINTS[number % len(POINTS)]
        self.passes = dice.randint(1, PASSES.get(self.point, 12))
        self.delay = dice.uniform(0.005, 0.4)
        self.racer = subprocess.Popen(
            history.race_command(
                daemon, self.history, reconnect=True, readback=True,
                claims=3000, keys=KEYS, first_key=number * KEYS,
                connections=12, seed=dice.getrandbits(32)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self):
        """Kills the daemon, or sees it killed; false if the race was over."""
        if self.point == "random":
            try:
                self.racer.wait(self.delay)
            except subprocess.TimeoutExpired:
                pass
            self.daemon.kill()
            return True
        self.daemon.expected_exit = True
        self.daemon.set_faults("kill %s %d" % (self.point, self.passes))
        while self.racer.poll() is None:
            try:
                assert self.daemon.process.wait(0.05) == -9
                self.daemon.wait()
                return True
            except subprocess.TimeoutExpired:
                pass
        return self.kill_late()

    def kill_late(self):
        """The point was not passed in the race; it may be in what follows."""
        try:
            self.daemon.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            return False
        self.daemon.wait()
        return True

    def finish(self):
        self.daemon.set_faults()
        self.daemon.start()
        _, errors = self.racer.communicate(timeout=120 * build.patience())
        assert self.racer.returncode == 0, errors + self.daemon.log_text()
        found, printed = history.check(self.history)
        assert not found, "killed at %s, %d: %s" % (self.point, self.passes,
                                                    printed)


def test_killed_at_every_step_nothing_acknowledged_is_lost(faulty, tmp_path):
    # C20, C41
    dice = random.Random(int(os.environ.get("LATCHKEY_SEED", 0)) or None)
    hits = {point: 0 for point in POINTS}
    wanted = kills_wanted()
    for first in range(0, wanted, BLOCK):
        run_block(faulty(settings=SETTINGS), tmp_path, dice, hits,
                  min(BLOCK, wanted - first))
    print("kills by point:", hits)
    # Every point was really met; one that never is proves nothing.
    for point, count in hits.items():
        assert count >= max(1, wanted // len(POINTS) // 2), hits


def run_block(daemon, folder, dice, hits, turns):
    """Turns that share one store; the journals of all of them fit together."""
    for number in range(turns):
        turn = Turn(daemon, number, folder, dice)
        try:
            hits[turn.point] += turn.kill()
            turn.finish()
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
