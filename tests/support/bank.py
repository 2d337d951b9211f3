"""The bank of examples/transactions: its database, and its programs."""

import json
import os
import subprocess
import sys

from . import build
from .build import patience
from .node import need_node, node_modules

EXAMPLES = build.ROOT / "examples" / "transactions"
OPENING = 1000  # what schema.sql puts into each account
ACCOUNTS = ("alice", "bob", "carol")


def run(*command, **options):
    """A program that must end well; what it printed."""
    result = subprocess.run(list(map(str, command)), capture_output=True,
                            text=True, timeout=60 * patience(), **options)
    assert result.returncode == 0, result.stderr + result.stdout
    return result.stdout


class Book:
    """What the database has of one key."""

    def __init__(self):
        self.ledger = []
        self.jobs = 0
        self.stored = None


class Bank:
    """A database of a server with Latchkey and the bank in it."""

    def __init__(self, server, balance=OPENING):
        self.server = server
        self.url = server.create_database()
        self.database = self.url.rsplit("/", 1)[1]
        run(build.BUILD / "latchkey", "migrate", self.url)
        server.psql((EXAMPLES / "schema.sql").read_text(), self.database)
        self.opening = balance
        self.query("UPDATE account SET balance = %s", (balance,))
        self.app_url = server.url(self.database, "bank")

    def query(self, text, parameters=None):
        return self.server.query(text, parameters, self.database)

    def value(self, text, parameters=None):
        return self.server.value(text, parameters, self.database)

    def connect(self, **options):
        return self.server.connect(self.database, **options)

    def cut(self, where):
        """Ends connections that pg_stat_activity chooses; how many it met."""
        rows = self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            " AND (%s)" % where)
        return sum(ended for ended, in rows)

    # ---- programs ----

    def command(self, language, *words, program="transfer"):
        """A program of the examples, and the environment that it needs."""
        env = dict(os.environ, PYTHONUNBUFFERED="1")
        if language == "python":
            return [sys.executable, EXAMPLES / (program + ".py"),
                    self.app_url, *words], env
        if language == "node":
            need_node()
            folder = node_modules(EXAMPLES, "transactions")
            env["NODE_PATH"] = str(folder / "node_modules")
            return ["node", EXAMPLES / (program + ".js"), self.app_url,
                    *words], env
        return [compiled(), self.app_url, *words], env

    def start(self, language, *words, **options):
        """A program of the examples in the background, with pipes."""
        program = options.pop("program", "transfer")
        command, env = self.command(language, *words, program=program)
        options.setdefault("stdin", subprocess.PIPE)
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.Popen(list(map(str, command)), env=env, text=True,
                                **options)

    def transfer(self, language, key, source, target, amount):
        """One transfer by a program of its own: (status, replayed, body)."""
        words = (key, source, target, str(amount))
        command, env = self.command(language, *words)
        return said(language, run(*command, env=env))

    def psql(self, key, source, target, amount):
        """The session of transfer.sql; the line that it ends with."""
        values = {"key": key, "source": source, "target": target,
                  "amount": amount}
        options = ["%s=%s" % pair for pair in values.items()]
        return self.server.run(
            self.server.bin / "psql", "-X", "-A", "-t", "-h",
            self.server.folder, "-p", self.server.port, "-U", "bank", "-d",
            self.database, *[word for option in options
                             for word in ("-v", option)],
            "-f", self.place_of("transfer.sql")).strip()

    def place_of(self, name):
        """A copy that whoever runs the server can read."""
        path = self.server.folder / name
        if not path.exists():
            self.server.write(name, (EXAMPLES / name).read_text())
        return path

    # ---- books ----

    def books(self):
        """All that there is of each key: Book."""
        found = {}
        for key, *row in self.query("SELECT key, source, target, amount"
                                    " FROM ledger"):
            found.setdefault(key, Book()).ledger.append(tuple(row))
        for key, in self.query("SELECT o.key FROM latchkey.job"
                               " JOIN latchkey.operation o USING (number)"):
            found.setdefault(key, Book()).jobs += 1
        for key, *stored in self.query(
                "SELECT o.key, o.state, o.status, convert_from(a.body, 'UTF8')"
                " FROM latchkey.operations o LEFT JOIN latchkey.answer a"
                " USING (token)"):
            book = found.setdefault(key, Book())
            assert book.stored is None, key
            book.stored = tuple(stored)
        return found

    def book(self, key):
        return self.books().get(key, Book())

    def ledger(self, key):
        return self.book(key).ledger

    def jobs(self, key):
        return self.book(key).jobs

    def stored(self, key):
        """(state, status, body) of the operation, or None."""
        return self.book(key).stored

    def check_books(self):
        """Every account has what the ledger says, no more and no less."""
        expected = {name: self.opening for name in ACCOUNTS}
        for source, target, amount in self.query(
                "SELECT source, target, amount FROM ledger"):
            expected[source] -= amount
            expected[target] += amount
        assert dict(self.query("SELECT id, balance FROM account")) == expected


def said(language, text):
    """What a program says about one transfer: (status, replayed, body)."""
    if language == "c":
        status, kind, body = text.strip().split(" ", 2)
        return int(status), kind == "(stored)", json.loads(body)
    line = json.loads(text)
    assert "error" not in line, line
    return line["status"], line["replayed"], line["body"]


def compiled():
    """transfer.c, built with libpq once for each build folder."""
    program = build.BUILD / "tests" / "transactions-transfer"
    source = EXAMPLES / "transfer.c"
    if (program.exists() and
            program.stat().st_mtime >= source.stat().st_mtime):
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    flags = run("pkg-config", "--cflags", "--libs", "libpq").split()
    fresh = program.with_name("%s.%d" % (program.name, os.getpid()))
    run("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", fresh, source,
        *flags)
    os.replace(fresh, program)
    return program
