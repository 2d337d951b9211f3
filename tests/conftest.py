"""Fixtures: real daemons, each with a store of its own, and servers for stores.
"""

import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from support import build  # noqa: E402
from support.daemon import Daemon  # noqa: E402


def pytest_report_header(config):
    return ["latchkey: %s" % build.BUILD,
            "latchkey with faults: %s" % build.FAULTS_BUILD]


def need(program):
    """A program that is not built fails the test: it would prove nothing."""
    if not program.exists():
        pytest.fail("%s is not built" % program, pytrace=False)


@pytest.fixture
def tmp_path():
    """As pytest's own, where all files of tests are, and gone afterwards."""
    folder = build.folder("lkt")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_daemon():
    """Starts any number of daemons: make_daemon(tcp=True, settings=[...])."""
    made = []

    def make(start=True, **options):
        folder = options.get("build") or build.BUILD
        need(pathlib.Path(folder) / "latchkeyd")
        daemon = Daemon(**options)
        made.append(daemon)
        return daemon.start() if start else daemon

    yield make
    errors = []
    for daemon in made:
        try:
            daemon.finish()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


@pytest.fixture
def daemon(make_daemon):
    """A daemon with default settings, on a unix socket and on TCP."""
    return make_daemon(tcp=True)


@pytest.fixture
def faulty(make_daemon):
    """As make_daemon, with fault points: faulty("kill before_reply 3")."""

    def make(*lines, **options):
        need(build.FAULTS_BUILD / "latchkeyd")
        start = options.pop("start", True)
        daemon = make_daemon(start=False, build=build.FAULTS_BUILD, **options)
        daemon.set_faults(*lines)
        return daemon.start() if start else daemon

    return make


@pytest.fixture
def raw(daemon):
    """A connection to the daemon that speaks RESP2 and hides nothing."""
    return daemon.raw()


@pytest.fixture
def operator(daemon):
    """The same, with the right to operate."""
    return daemon.raw(user="operator")


@pytest.fixture(scope="session")
def postgres():
    """One server for all: each test has a database of its own, and who kills it
    starts it again. Who needs none needs no driver."""
    from support.postgres import Postgres
    # After a crash it need not look at each of its files.
    with Postgres(settings={
            "recovery_init_sync_method": "syncfs"}) as server:
        yield server


@pytest.fixture(scope="module")
def redis_server():
    from support.redis_server import RedisServer
    with RedisServer(appendonly=True, appendfsync="always") as server:
        yield server
