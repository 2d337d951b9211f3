"""C24: a clock that jumps opens no claim early and expires no answer early."""

import pytest

from support.life import begin, claim, finish, new_key, until, verdict
from support.resp import Error, fields

HOUR = 3600 * 1000
DAY = 24 * HOUR
JUMPS = {"forward": "wall +%d" % (50 * DAY), "back": "wall -%d" % (50 * DAY)}
WHO = ("WHO", "oncall", "WHY", "checked with the time server")


@pytest.fixture
def daemon(faulty):
    return faulty("boot one", settings=["store.sweep_interval=20ms"])


def sweep(raw):
    """Returns after the sweeper has been by, as a short claim shows."""
    key = new_key()
    begin(raw, key, "LOCK", 30)
    until(lambda: verdict(claim(raw, key)) == "UNCERTAIN")


def stats(daemon):
    return fields(daemon.raw(user="reader")("STATS"))


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_jump_while_running_changes_nothing(daemon, jump):
    # C24
    raw = daemon.raw()
    running, done = new_key(), new_key()
    begin(raw, running)
    finish(raw, done)
    before = claim(raw, done)
    daemon.set_faults("boot one", jump)
    sweep(raw)
    assert verdict(claim(raw, running)) == "INFLIGHT"
    assert claim(raw, done) == before
    # New ones are timed by the same clock.
    later = new_key()
    finish(raw, later)
    assert abs(claim(raw, later)[4] - before[4]) < HOUR


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_jump_across_a_restart_changes_nothing(daemon, jump, end):
    # C24: the machine was not rebooted, so the time that passed is known
    raw = daemon.raw()
    running, done = new_key(), new_key()
    begin(raw, running)
    finish(raw, done)
    before = claim(raw, done)
    getattr(daemon, end)()
    daemon.set_faults("boot one", jump)
    daemon.start()
    raw = daemon.raw()
    sweep(raw)
    assert verdict(claim(raw, running)) == "INFLIGHT"
    assert claim(raw, done) == before


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_jump_across_a_reboot_is_held_until_somebody_vouches(daemon, jump,
                                                               end):
    # C24
    raw = daemon.raw()
    running, done = new_key(), new_key()
    begin(raw, running, "LOCK", HOUR)
    finish(raw, done)
    before = claim(raw, done)
    getattr(daemon, end)()
    daemon.set_faults("boot two", jump)
    since = len(daemon.lines)
    daemon.start()
    daemon.wait_for_log("clock", since=since)
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    assert verdict(claim(raw, running)) == "INFLIGHT"
    assert claim(raw, done) == before
    # Work goes on meanwhile, with a clock that never goes back.
    fresh = new_key()
    finish(raw, fresh)
    assert claim(raw, fresh)[4] >= before[4]
    refused = daemon.raw()("CLOCK", "ACCEPT", *WHO)
    assert isinstance(refused, Error) and refused.code == "NOPERM"
    assert operator("CLOCK", "ACCEPT", *WHO) == "OK"
    entry = fields(operator("AUDIT")[-1])
    assert entry["who"] == b"operator/oncall"
    assert entry["why"] == WHO[3].encode()
    if "+" in jump:
        # Fifty days later the answer is past its TTL and the holder is lost.
        until(lambda: verdict(claim(raw, done, "NONEW")) == "REFUSED")
        until(lambda: verdict(claim(raw, running)) == "UNCERTAIN")
    else:
        assert verdict(claim(raw, running)) == "INFLIGHT"
        assert claim(raw, done) == before


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_ordinary_reboot_needs_nobody(daemon, end):
    # C24
    raw = daemon.raw()
    done = new_key()
    finish(raw, done)
    before = claim(raw, done)
    getattr(daemon, end)()
    daemon.set_faults("boot two", "wall +%d" % (30 * 60 * 1000))
    daemon.start()
    raw = daemon.raw()
    assert claim(raw, done) == before
    later = new_key()
    finish(raw, later)
    assert claim(raw, later)[4] - before[4] >= 29 * 60 * 1000
    assert not any(stats(daemon).get(field) for field in ("clock_held",
                                                          "clock-held"))


def test_what_is_held_stays_held_over_another_restart(daemon):
    # C24: nothing expires early however often it is started
    raw = daemon.raw()
    done = new_key()
    finish(raw, done)
    before = claim(raw, done)
    daemon.stop()
    daemon.set_faults("boot two", JUMPS["forward"])
    daemon.start()
    said = daemon.cli("health")
    assert said.returncode == 1 and "latchkey clock accept" in said.stdout
    for end in ("stop", "kill", "stop"):
        getattr(daemon, end)()
        daemon.start()
        assert claim(daemon.raw(), done) == before
    getattr(daemon, "stop")()
    daemon.set_faults("boot three", JUMPS["forward"])
    daemon.start()
    assert claim(daemon.raw(), done) == before


def test_accepting_a_clock_that_is_not_held_harms_nothing(daemon):
    raw, operator = daemon.raw(), daemon.raw(user="operator")
    done = new_key()
    finish(raw, done)
    before = claim(raw, done)
    reply = operator("CLOCK", "ACCEPT", *WHO)
    assert reply == "OK" or isinstance(reply, Error)
    assert claim(raw, done) == before
