#!/usr/bin/env python3
"""golden.py - orders that are taken once and paid once, with psycopg 3.

    golden.py CONNINFO KEY CUSTOMER CENTS    one order
    golden.py CONNINFO <LINES                KEY CUSTOMER CENTS on each line

Claim, order row, the call to the payment provider and the stored response are
one transaction: all of it or nothing, wherever it is cut. The call itself is a
job: Latchkey's courier makes it once the transaction counts, and goes on until
the provider has said yes. Nothing here calls the provider.

A client that does not know the outcome of an order runs the same again.
"""

import hashlib
import json
import random
import sys
import time

import psycopg

TENANT, SCOPE = "shop", "order"
TARGET = "provider"  # [target provider] in latchkeyd.conf
JSON_TYPE = "Content-Type: application/json\r\n"
# Another transaction was in the way, nothing happened: run this one again.
RETRY = ("40001", "40P01", "55P03")
PATIENCE = 60


class NotDone(Exception):
    """It was not taken, and the reason is not one that passes in a moment."""


def fingerprint(customer, cents):
    """What the request means: the same key with another one is refused."""
    meaning = "%s %d" % (customer, cents)
    return "order:" + hashlib.sha256(meaning.encode()).hexdigest()


def take_order(connection, key, customer, cents):
    """The business itself; returns what the caller gets."""
    number, = connection.execute(
        "INSERT INTO orders (key, customer, amount) VALUES (%s, %s, %s)"
        " RETURNING id", (key, customer, cents)).fetchone()
    return {"order": number, "customer": customer, "amount": cents}


def leave_payment(connection, key, token, customer, cents):
    """A job, named "charge": were this run again for the same order, the name
    would be there already and nothing would be added."""
    body = json.dumps({"amount": cents, "currency": "eur",
                       "customer": customer}).encode()
    connection.execute(
        "SELECT latchkey.enqueue(%s, %s, %s, %s, 'charge', %s, '/v1/charges',"
        " 'POST', %s, %s)", (TENANT, SCOPE, key, token, TARGET, JSON_TYPE,
                             body))


def run(connection, key, customer, cents):
    """One transaction. (status, body, whether it is a stored response), or None:
    another client is running it."""
    with connection.transaction():
        verdict, token, status, body, reason = connection.execute(
            "SELECT verdict, token, status, body, reason"
            " FROM latchkey.claim(%s, %s, %s, %s)",
            (TENANT, SCOPE, key, fingerprint(customer, cents))).fetchone()
        if verdict == "REPLAY":
            return status, bytes(body), True
        if verdict == "INFLIGHT":
            return None
        if verdict == "MISMATCH":
            raise NotDone("the key was used for another order")
        if verdict != "NEW":
            raise NotDone("%s: %s" % (verdict, reason))

        body = json.dumps(take_order(connection, key, customer,
                                     cents)).encode()
        leave_payment(connection, key, token, customer, cents)
        connection.execute(
            "SELECT latchkey.complete(%s, %s, %s, %s, 201, %s, %s)",
            (TENANT, SCOPE, key, token, JSON_TYPE, body))
        return 201, body, False


class Shop:
    """A connection that is made again when it is lost."""

    def __init__(self, conninfo):
        self.conninfo = conninfo
        self.connection = None

    def connect(self):
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.conninfo, autocommit=True)
        return self.connection

    def order(self, key, customer, cents):
        """run() until there is a response.

        A connection that was lost at COMMIT leaves open whether it counts. The
        same transaction again finds out: REPLAY if it did, NEW if not.
        """
        deadline = time.monotonic() + PATIENCE
        pause = 0.01
        while True:
            try:
                response = run(self.connect(), key, customer, cents)
                trouble = "still being taken by another client"
            except psycopg.Error as error:
                lost = (isinstance(error, psycopg.OperationalError) and
                        (self.connection is None or self.connection.closed))
                if not lost and error.sqlstate not in RETRY:
                    raise
                response, trouble = None, str(error)
            if response:
                return response
            if time.monotonic() > deadline:
                raise NotDone(trouble)
            time.sleep(random.uniform(0, pause))
            pause = min(pause * 2, 0.5)


def main(conninfo, *words):
    shop = Shop(conninfo)
    lines = [words] if words else map(str.split, sys.stdin)
    for key, customer, cents in lines:
        try:
            status, body, replayed = shop.order(key, customer, int(cents))
            said = {"key": key, "status": status, "replayed": replayed,
                    "body": json.loads(body)}
        except NotDone as error:
            said = {"key": key, "error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 5):
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
