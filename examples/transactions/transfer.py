#!/usr/bin/env python3
"""transfer.py - a money transfer that is made once, with psycopg 3.

    transfer.py CONNINFO KEY FROM TO AMOUNT     one transfer
    transfer.py CONNINFO <LINES                 KEY FROM TO AMOUNT on each line

Claim, account rows, ledger line, a job for later and the stored response are one
transaction: all of it or nothing, wherever it is interrupted. A client that does
not know the outcome of a transfer runs the same again.
"""

import hashlib
import json
import random
import sys
import time

import psycopg

TENANT, SCOPE = "bank", "transfer"
# Another transaction was in the way, nothing happened: run this one again.
RETRY = ("40001", "40P01", "55P03")
PATIENCE = 30


class NotDone(Exception):
    """It was not made, and the reason is not one that passes in a moment."""


def fingerprint(source, target, amount):
    """What the request means: the same key with another one is refused."""
    meaning = "%s %s %d" % (source, target, amount)
    return "transfer:" + hashlib.sha256(meaning.encode()).hexdigest()


def move(connection, key, source, target, amount):
    """The business itself; returns what the caller gets."""
    # In order of their names, so that two transfers do not lock crosswise.
    balances = dict(connection.execute(
        "SELECT id, balance FROM account WHERE id IN (%s, %s)"
        " ORDER BY id FOR UPDATE", (source, target)).fetchall())
    if source == target or len(balances) != 2:
        return 404, {"error": "no such pair of accounts"}
    if balances[source] < amount:
        return 402, {"error": "not enough money", "balance": balances[source]}
    connection.execute("UPDATE account SET balance = balance - %s"
                       " WHERE id = %s", (amount, source))
    connection.execute("UPDATE account SET balance = balance + %s"
                       " WHERE id = %s", (amount, target))
    line, = connection.execute(
        "INSERT INTO ledger (key, source, target, amount)"
        " VALUES (%s, %s, %s, %s) RETURNING id",
        (key, source, target, amount)).fetchone()
    return 201, {"transfer": line, "from": source, "to": target,
                 "amount": amount}


def run(connection, key, source, target, amount):
    """One transaction. (status, body, whether it is a stored response), or None:
    another client is running it."""
    with connection.transaction():
        verdict, token, status, body, reason = connection.execute(
            "SELECT verdict, token, status, body, reason"
            " FROM latchkey.claim(%s, %s, %s, %s)",
            (TENANT, SCOPE, key,
             fingerprint(source, target, amount))).fetchone()
        if verdict == "REPLAY":
            return status, bytes(body), True
        if verdict == "INFLIGHT":
            return None
        if verdict == "MISMATCH":
            raise NotDone("the key was used for another transfer")
        if verdict != "NEW":
            raise NotDone("%s: %s" % (verdict, reason))

        status, response = move(connection, key, source, target, amount)
        body = json.dumps(response).encode()
        if status == 201:
            # Delivered later, by the courier, once this has been committed.
            connection.execute(
                "SELECT latchkey.enqueue(%s, %s, %s, %s, 'receipt', 'mail',"
                " '/receipts', 'POST', %s, %s)",
                (TENANT, SCOPE, key, token,
                 "Content-Type: application/json\r\n", body))
        connection.execute(
            "SELECT latchkey.complete(%s, %s, %s, %s, %s, %s, %s)",
            (TENANT, SCOPE, key, token, status,
             "Content-Type: application/json\r\n", body))
        return status, body, False


class Bank:
    """A connection that is made again when it is lost."""

    def __init__(self, conninfo):
        self.conninfo = conninfo
        self.connection = None

    def connect(self):
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.conninfo, autocommit=True)
        return self.connection

    def transfer(self, key, source, target, amount):
        """run() until there is a response.

        A connection that was lost at COMMIT leaves open whether it counts. The
        same transaction again finds out: REPLAY if it did, NEW if not.
        """
        deadline = time.monotonic() + PATIENCE
        pause = 0.01
        while True:
            try:
                response = run(self.connect(), key, source, target, amount)
                trouble = "still being made by another client"
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
    bank = Bank(conninfo)
    lines = [words] if words else map(str.split, sys.stdin)
    for key, source, target, amount in lines:
        try:
            status, body, replayed = bank.transfer(key, source, target,
                                                   int(amount))
            said = {"key": key, "status": status, "replayed": replayed,
                    "body": json.loads(body)}
        except NotDone as error:
            said = {"key": key, "error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 6):
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
