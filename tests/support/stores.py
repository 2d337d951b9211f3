"""Stores on servers, made ready for daemons."""

import itertools
import os
import subprocess

from . import build

DAEMON_USER, DAEMON_PASSWORD = "worker", "worker's secret"
TEMPLATE = "store_template"
_numbers = itertools.count(1)


def run_latchkey(*words, timeout=60):
    """The command-line program; its result, with what it printed."""
    return subprocess.run(
        [str(build.BUILD / "latchkey"), *map(str, words)],
        capture_output=True, text=True, timeout=timeout * build.patience())


def migrate(url):
    result = run_latchkey("migrate", url)
    assert result.returncode == 0, result.stdout + result.stderr


def make_template(server):
    """A database with the schema in it, made once in a server: copying it takes
    a fifth of the time of making another one."""
    if not server.query("SELECT 1 FROM pg_database WHERE datname = %s",
                        (TEMPLATE,)):
        server.create_database(TEMPLATE)
        migrate(server.url(TEMPLATE))
        server.create_user(DAEMON_USER, DAEMON_PASSWORD,
                           "IN ROLE latchkey_daemon")


def drop_old(server, test):
    """What other tests have left in a server that they share: all of it is in
    memory."""
    for name, its in list(server.stores.items()):
        if its != test:
            server.query("DROP DATABASE IF EXISTS %s WITH (FORCE)" % name)
            del server.stores[name]


def make_database(server):
    """The name of a new database of a Postgres, with the schema in it.

    It is there until the end of the test. DAEMON_USER may do there what a
    daemon may, and no more.
    """
    name = "store_%d" % next(_numbers)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    drop_old(server, test)
    make_template(server)
    server.query("CREATE DATABASE %s TEMPLATE %s STRATEGY FILE_COPY" % (
        name, TEMPLATE))
    server.stores[name] = test
    # A copy has the secrets of the original; two stores have none in common.
    server.query("UPDATE latchkey.meta SET value = "
                 "md5(gen_random_uuid()::text) "
                 "WHERE name IN ('secret', 'reference_secret')", database=name)
    return name


def make_postgres(server, port=None):
    """The URL of a new store, for a daemon."""
    return server.url(make_database(server), DAEMON_USER, DAEMON_PASSWORD,
                      port)


def database_of(url):
    return url.rpartition("/")[2].partition("?")[0]


def make_prefix():
    """For keys in a Redis that has several stores."""
    return "store-%d" % next(_numbers)
