"""linear finds bugs that are planted in copies of the sources.

LATCHKEY_PLANTED=all plants each of support/plants.py, as `make planted` does.
"""

import os
import re

import pytest

from support import build, linear, plants, stores

pytestmark = pytest.mark.skipif(
    build.is_sanitized(), reason="the same as in a plain build")

SECONDS = 60  # in which it must be found
# What is published and then lost may be seen in two ways: no order explains a
# reply, or the number of the lost operation is given to another one.
FOUND = re.compile("VIOLATION: (no order of events explains "
                   "|.* have the same (token|reference)$)", re.M)
NAMES = (plants.PLANTS if os.environ.get("LATCHKEY_PLANTED") == "all"
         else plants.USUAL)


def plant_sqlite(storms, name, path, changes):
    folder = plants.build_daemon(name, path, changes)
    return storms("sqlite", build=folder)


def plant_redis(storms, name, path, changes):
    daemons = storms("redis")
    storms.redis.client().execute_command(
        "FUNCTION", "LOAD", "REPLACE", plants.change(path, changes))
    return daemons


def plant_postgres(storms, name, path, changes):
    daemons = storms("postgres")
    storms.postgres.psql(plants.change(path, changes),
                               stores.database_of(daemons[0].url))
    return daemons


PLANT = {"sqlite": plant_sqlite, "redis": plant_redis,
         "postgres": plant_postgres}


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_found(name, storms):
    store, path, changes = plants.PLANTS[name]
    daemons = PLANT[store](storms, name, path, changes)
    try:
        violated, printed = linear.Storm(daemons, linear.seed(), SECONDS).run()
    except linear.DoesNotStart:
        return  # after a power loss: found, too
    assert violated, printed
    assert FOUND.search(printed), printed
