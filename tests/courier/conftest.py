"""Fixtures: providers, and daemons on either store that deliver to them."""

import re
import socket
import threading

import pytest

from support import build
from support.app import App
from support.outbox import Box
from support.provider import Provider


@pytest.fixture
def make_provider():
    """Starts any number of providers: make_provider(honours=False)."""
    made = []

    def make(start=True, **options):
        if not (build.BUILD / "provider").exists():
            pytest.fail("the provider is not built", pytrace=False)
        provider = Provider(**options)
        made.append(provider)
        return provider.start() if start else provider

    yield make
    for provider in made:
        provider.finish()


@pytest.fixture
def provider(make_provider):
    """One that honours keys."""
    return make_provider()


@pytest.fixture
def box(request, make_daemon, faulty):
    """Both stores, unless the test says otherwise: see `stores`."""
    kind = getattr(request, "param", "sqlite")
    server = request.getfixturevalue("postgres") if kind == "postgres" \
        else None
    return Box(kind, make_daemon, faulty, server)


def each_store():
    """Sanitizers look at the program, which is the same on each: the one with
    more threads where threads are looked at, else the quicker one."""
    if not build.is_sanitized():
        return "sqlite", "postgres"
    return ("postgres" if "thread" in build.BUILD.name else "sqlite",)


def pytest_generate_tests(metafunc):
    """A test that takes `box` runs on each store, or on its `stores`."""
    if "box" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        kinds = mark.args if mark else each_store()
        metafunc.parametrize("box", kinds, indirect=True)


def pytest_configure(config):
    config.addinivalue_line("markers", "stores(*kinds): which stores")


@pytest.fixture
def app():
    """Another service: it records requests as they came."""
    made = App().start()
    yield made
    made.finish()


class LostGateway:
    """The courier's listener of a gateway that is lost with each request: it
    reads it, does `take(token)`, and closes without an answer."""

    def __init__(self, path):
        self.path = path
        self.tokens = []
        self.take = lambda token: None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                sock = self.listener.accept()[0]
            except OSError:
                return
            with sock:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += sock.recv(65536)
                token = int(re.search(rb"Latchkey-Token: (\d+)", head)[1])
                self.tokens.append(token)
                self.take(token)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def lost_gateway(tmp_path):
    made = LostGateway(tmp_path / "gateway")
    yield made
    made.close()
