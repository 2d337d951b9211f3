"""Fixtures: a real nginx with the module, a real daemon, an app of ours."""

import pytest

from support import build
from support.app import App
from support.gateway import MODULE, Gateway
from support.later import HELD, place


@pytest.fixture(autouse=True)
def module_is_built():
    """Without the module nothing here would prove anything."""
    if not (build.BUILD / MODULE).exists():
        pytest.fail("%s is not built" % (build.BUILD / MODULE), pytrace=False)


@pytest.fixture
def app():
    """An app that counts and records; see support/app.py."""
    app = App().start()
    yield app
    app.finish()


@pytest.fixture
def folder():
    """For the listener of what runs later."""
    with place() as made:
        yield made


@pytest.fixture
def make_gateway(app, make_daemon):
    """Starts any number of gateways: make_gateway(locations=..., http=...).

    Without a daemon of its own each gets the same one.
    """
    made = []
    shared = []

    def make(start=True, **options):
        if "daemon" not in options and "daemon_address" not in options:
            if not shared:
                # Requests that it accepts wait: see test_async.py.
                shared.append(make_daemon(settings=HELD))
            options["daemon"] = shared[0]
        options.setdefault("app", app)
        gateway = Gateway(**options)
        made.append(gateway)
        return gateway.start() if start else gateway

    yield make
    app.stop()  # a request that it still holds would hold up the end
    errors = []
    for gateway in made:
        try:
            gateway.finish()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


@pytest.fixture
def gateway(make_gateway):
    """A gateway whose one location demands keys."""
    return make_gateway()
