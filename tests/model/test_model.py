"""The model of the protocol: every property holds in every world that can be
reached within the bounds, and a bug that is planted is found."""

import re
import subprocess

import pytest

from support import build

MODEL = build.BUILD / "tests/model/model"

ONE_RUN = "at most one run, unless something licensed another"
REPLAY = "a replay is the answer of the run that completed"
STALE = "a stale holder changes nothing"
RELEASE = "nothing is let go without proof"
NEVER_RAN = "what is said to have never run has never run"
UNCERTAIN = "what was never called does not stay uncertain"

SCENARIOS = ["claims", "claims-again", "accepted", "accepted-again", "both",
             "people", "sql"]

# Each bug, and the property that a shortest trace shows to be violated.
PLANTS = {
    "token-ignored": STALE,
    "late-completion": STALE,
    "return-unfenced": STALE,
    "proof-unfenced": STALE,
    "running-is-resolved": RELEASE,
    "extend-ignored": RELEASE,
    "sweeper-releases": RELEASE,
    "sweeper-takes-accepted": UNCERTAIN,
    "lapsed-is-new": RELEASE,
    "owner-gets-another-token": RELEASE,
    "completion-overwrites": REPLAY,
    "reaper-takes-uncertain": RELEASE,
    "leased-twice": RELEASE,
    "lease-unfenced": RELEASE,
    "lost-runs-again": RELEASE,
    "uncalled-is-doubted": UNCERTAIN,
    "given-up-never-ran": NEVER_RAN,
    "timeout-releases": RELEASE,
    "answer-before-store": REPLAY,
    "unchecked-delivery": RELEASE,
    "lost-claim-forgotten": UNCERTAIN,
    "lost-claim-left-to-others": UNCERTAIN,
    "app-asked-twice": ONE_RUN,
    "return-not-sent": UNCERTAIN,
    "late-settlement-dropped": UNCERTAIN,
    "stale-is-ok": REPLAY,
}


def run(*words):
    done = subprocess.run([MODEL, *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_every_scenario_and_every_plant_has_a_test():
    status, listed = run("--list")
    names = {kind: re.findall(rf"^{kind} +(\S+)", listed, re.M)
             for kind in ("scenario", "plant")}
    assert status == 0
    assert names == {"scenario": SCENARIOS, "plant": list(PLANTS)}


# C01, C02, C21, C22
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_property_holds(scenario):
    bounds = ["--small"] if build.is_sanitized() else []
    status, said = run("--scenario", scenario, *bounds)
    states = re.search(r": (\d+) states, .*: every property holds$", said)
    assert status == 0 and states, said
    assert int(states[1]) > 10000, "the bounds leave nothing to look at"


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found_and_told_step_by_step(plant):
    status, said = run("--small", "--plant", plant)
    steps = re.findall(r"^ +(\d+)  (.*)$", said, re.M)
    assert status == 1, said
    assert f"violated: {PLANTS[plant]}\n" in said
    assert [int(number) for number, _ in steps] == \
        list(range(1, len(steps) + 1))
    assert 3 <= len(steps) <= 30 and "?" not in steps[-1][1][:2], said
    assert "=> " in said


def test_an_unknown_scenario_or_plant_is_refused():
    assert run("--plant", "weeds")[0] == 2
    assert run("--scenario", "elsewhere")[0] == 2
