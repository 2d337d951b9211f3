"""The rules of operations and of jobs, as the C functions read them."""

import functools
import subprocess

from . import build

GENERATOR = build.BUILD / "gen" / "rules_gen"
GENERATED_SQL = build.BUILD / "gen" / "sql"
GENERATED_LUA = build.BUILD / "gen" / "lua" / "latchkey.lua"


def run(*words, text=None):
    return subprocess.run([GENERATOR, *words], input=text, check=True,
                          capture_output=True, text=True).stdout


@functools.lru_cache
def names(machine):
    """Events, states and conditions of a machine: "operation" or "job"."""
    return [line.split("|") for line in run("names", machine).splitlines()]


def steps(machine):
    """The code of every input, in the order of event, state and conditions.

    An operation's code is verdict + 16 * effect + 256 * (next state + 1). A
    job's is outcome + 8 * (next state + 1) + 64 * (event of the operation + 1)
    + 2048 * effects."""
    return [int(line) for line in run("steps", machine).splitlines()]


def describe(machine, place):
    """The input at that place, for a person."""
    events, states, conditions = names(machine)
    place, mask = divmod(place, 1 << len(conditions))
    event, state = divmod(place, len(states))
    return "%s of %s with %s" % (events[event], states[state], [
        name for bit, name in enumerate(conditions) if mask >> bit & 1])


def compare(machine, found):
    """`found` is what another implementation says of every input."""
    expected = steps(machine)
    assert len(found) == len(expected) > 100000
    wrong = [place for place, code in enumerate(expected)
             if code != found[place]]
    assert not wrong, "%d differ, the first: %s is %d, not %d" % (
        len(wrong), describe(machine, wrong[0]), found[wrong[0]],
        expected[wrong[0]])
