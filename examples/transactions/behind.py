#!/usr/bin/env python3
"""behind.py - the bank behind the gateway, with http.server and psycopg 3.

    behind.py CONNINFO PORT

The gateway has claimed the operation before a request comes here. This app
completes it itself, in the transaction that moves the money: once that is
committed, the response is stored, whatever happens to the app, to the response on
its way, or to the gateway.

It must be reachable through the gateway alone: it believes the headers
Latchkey-Tenant, Latchkey-Scope, Latchkey-Key and Latchkey-Token.
"""

import contextlib
import http.server
import json
import queue
import sys
import time

import psycopg

from transfer import RETRY, move

# LK001: another client has the operation by now. LK002: it is completed, perhaps
# by a COMMIT of our own whose success we did not hear of.
SETTLED = ("LK001", "LK002")
JSON_TYPE = "application/json"


def operation(headers):
    """Tenant, scope, key and token of the gateway's claim."""
    def text(name):
        # Bytes of UTF-8, which http.server reads as Latin-1.
        return headers[name].encode("latin-1").decode()

    return (text("Latchkey-Tenant"), text("Latchkey-Scope"),
            text("Latchkey-Key"), int(headers["Latchkey-Token"]))


def perform(connection, name, order):
    """Business and completion in one transaction; the response."""
    with connection.transaction():
        status, response = move(connection, name[2], order["from"], order["to"],
                              order["amount"])
        body = json.dumps(response).encode()
        # The last step. If the operation is not ours any more it raises an
        # error, and then nothing of the above has happened.
        connection.execute(
            "SELECT latchkey.complete(%s, %s, %s, %s, %s, %s, %s)",
            (*name, status, "Content-Type: %s\r\n" % JSON_TYPE, body))
    return status, body


class Bank(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    conninfo = None
    idle = queue.SimpleQueue()  # connections to the database

    @contextlib.contextmanager
    def database(self):
        """A connection for this thread alone; dropped after an error."""
        try:
            connection = self.idle.get_nowait()
        except queue.Empty:
            connection = psycopg.connect(self.conninfo, autocommit=True)
        yield connection
        self.idle.put(connection)

    def serve(self, name, order):
        for pause in (0.01, 0.05, 0.2, None):
            try:
                with self.database() as connection:
                    return perform(connection, name, order)
            except psycopg.Error as error:
                if error.sqlstate in SETTLED:
                    # What is said here is not used: the gateway sends what the
                    # operation has become.
                    return 409, b'{"error": "settled elsewhere"}'
                if error.sqlstate not in RETRY or pause is None:
                    raise
            time.sleep(pause)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, body = self.serve(operation(self.headers),
                                      json.loads(body))
        except psycopg.Error as error:
            # The gateway now releases the operation, and the retry runs; if
            # the transaction was committed after all, the release finds that
            # out and the stored response is sent instead of this one.
            self.log_error("%s", error)
            status, body = 500, b'{"error": "try again"}'
        self.response(status, body)

    def response(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", JSON_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(conninfo, port, handler=Bank):
    handler.conninfo = conninfo
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), handler)
    server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
