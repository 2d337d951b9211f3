"""One contract suite for all stores: here on those that need a server.

The programs are those that check-unit runs on the embedded store.
"""

import contextlib
import functools
import os
import re
import subprocess

import pytest

from support import build, stores
from support.pgbouncer import PgBouncer
from support.postgres import Postgres
from support.redis_server import RedisServer

PROGRAMS = [program for program in ("test_table", "test_contract",
                                   "test_records", "test_import")
            if (build.ROOT / "tests/store" / (program + ".c")).exists()]
JOB_PROGRAMS = sorted(path.stem for path in
                      (build.ROOT / "tests/store").glob("test_jobs*.c"))


class Servers:
    """Each is started when the first test asks for it."""

    def __init__(self, stack):
        self.stack = stack

    @functools.cached_property
    def postgres(self):
        return self.stack.enter_context(Postgres())

    @functools.cached_property
    def bouncer(self):
        return self.stack.enter_context(PgBouncer(
            self.postgres, {stores.DAEMON_USER: stores.DAEMON_PASSWORD}))

    @functools.cached_property
    def redis(self):
        return self.stack.enter_context(RedisServer(
            appendonly=True, appendfsync="always"))


    @functools.cached_property
    def old_redis(self):
        """As before version 7: there are only scripts."""
        return self.stack.enter_context(RedisServer(
            appendonly=True, appendfsync="always",
            rename_command=[("FUNCTION", ""), ("FCALL", "")]))


@pytest.fixture(scope="module")
def servers():
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


def on_postgres(servers):
    return {"STORE": stores.make_postgres(servers.postgres)}


def on_postgres_through_pgbouncer(servers):
    name = stores.make_database(servers.postgres)
    return {"STORE": servers.bouncer.url(name, stores.DAEMON_USER),
            "POOLER": "1"}


def on_postgres_with_a_cache(servers):
    return {**on_postgres(servers), "CACHE": servers.redis.url(),
            "PREFIX": stores.make_prefix()}


def on_postgres_with_a_cache_that_is_down(servers):
    with RedisServer() as gone:
        url = gone.url()
    return {**on_postgres(servers), "CACHE": url}


def on_redis(servers):
    return {"STORE": servers.redis.url(), "PREFIX": stores.make_prefix()}


def on_redis_without_functions(servers):
    return {"STORE": servers.old_redis.url(), "PREFIX": stores.make_prefix()}


# Redis keeps none.
JOB_STORES = [on_postgres, on_postgres_through_pgbouncer]
STORES = [on_postgres, on_postgres_through_pgbouncer, on_postgres_with_a_cache,
          on_postgres_with_a_cache_that_is_down, on_redis,
          on_redis_without_functions]


def environment(settings):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PG", "LATCHKEY_TEST_"))}
    for name, value in settings.items():
        env["LATCHKEY_TEST_" + name] = value
    return env


def cached(servers, settings):
    """How many answers of this store the cache holds."""
    return len(list(servers.redis.admin.scan_iter(
        "{%s}:answer:*" % settings["PREFIX"], count=1000)))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("store", STORES)
def test_the_contract_holds(servers, store, program):
    # C02, C10, C13, C18, C22, C25, C35: see the programs
    run(servers, store, program)


@pytest.mark.parametrize("program", JOB_PROGRAMS)
@pytest.mark.parametrize("store", JOB_STORES)
def test_jobs_are_the_same_in_every_store(servers, store, program):
    # C27, C28, C29, C31: see the programs
    run(servers, store, program)


def run(servers, store, program):
    path = build.BUILD / "tests/store" / program
    assert path.exists(), "%s is not built" % path
    settings = store(servers)
    result = subprocess.run(
        [str(path)], env=environment(settings), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300 * build.patience())
    print(result.stdout)
    if store is on_postgres_with_a_cache and program == "test_contract":
        # Else it would be the same test as without one.
        assert cached(servers, settings) > 100
    passed = re.search(r"\[  PASSED  \] (\d+) test", result.stdout)
    assert result.returncode == 0 and int(passed.group(1)) > 0, result.stdout
