"""Requests that run later: their gateway, its internal listener, a courier.

@COURIER@ in a configuration is the place of the internal listener; see
later() for the whole of one.
"""

import contextlib
import shutil
import socket

from . import build as build_
from .gateway import guard
from .life import claim, until
from .wire import Connection, Cut

RATE = "rate=100000r/s burst=10000"
OPERATIONS = """
location /operations/ {
    idempotency_tenant $http_x_api_key;
    idempotency_operation %s;
}
"""
# Of a daemon: what it accepts waits.
HELD = ["courier.enabled=no", "courier.gateway=unix:/nowhere/gateway"]
# The app is told by X-App how to behave, also later.
HEADERS = "idempotency_async_headers X-App X-Account;"


@contextlib.contextmanager
def place():
    """A folder that nobody else may enter, for the internal listener."""
    folder = build_.folder("lc")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def later(folder, *lines, mode="always", route=(), locations="", http="",
          operations=RATE, to="proxy_pass http://@APP@;", back=None,
          guarded="required"):
    """Options of a Gateway whose requests run later.

    `lines` stand in both locations, `route` in the public one alone, `back`
    replaces the location of the courier's server.
    """
    public = guard("/", "idempotency_async %s;" % mode,
                   "idempotency_async_location /operations/;", HEADERS,
                   *lines, *route, mode=guarded, to=to)
    inside = back if back is not None else guard("/", *lines, tenant=None,
                                                 to=to)
    address = "unix:%s/g" % folder
    return {
        "locations": public + OPERATIONS % operations + locations,
        "http": "idempotency_courier %s;\n%s\nserver { listen %s;\n%s }\n" % (
            address, http, address, inside),
    }


class PlayedCourier:
    """Asks as the courier does, with a token of a claim of its own."""

    def __init__(self, gateway, folder):
        self.gateway = gateway
        self.path = str(folder / "g")

    def begin(self, key, *options, tenant="acme", scope="POST /"):
        """A claim; the headers that say whose it is."""
        with self.gateway.daemon.raw() as raw:
            word, token, _, attempt, reference = claim(
                raw, key, *options, tenant=tenant, scope=scope)
        assert word == b"NEW"
        return {
            "Latchkey-Tenant": tenant, "Latchkey-Scope": scope,
            "Latchkey-Key": key, "Latchkey-Token": token,
            "Latchkey-Attempt": attempt,
            "Latchkey-Reference": reference.decode(),
        }

    def connection(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30 * build_.patience())
        until(lambda: sock.connect_ex(self.path) == 0)
        return Connection(sock)

    def bring(self, operation, method="POST", path="/", body=b"{}",
              headers=()):
        """The gateway's answer; None: it hung up."""
        pairs = list(dict(headers).items())
        pairs += list(operation.items() if isinstance(operation, dict)
                      else operation)
        with self.connection() as connection:
            try:
                return connection.ask(method, path, pairs, body)
            except Cut:
                return None


def outcome(answer):
    """The word that the courier is told."""
    return answer.header("Latchkey-Outcome")

