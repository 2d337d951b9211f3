"""The golden path: the gateway claims, the app completes the operation in the
transaction that does its work. Wherever it is cut, the work is done once."""

import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from support.bank import Bank
from support.build import patience
from support.gateway import free_port, guard
from support.life import new_key, until
from support.postgres import Postgres

FOLDER = pathlib.Path(__file__).resolve().parent / "golden"
WAIT_LOCK = 4711  # of behind_app.py
ORDER = b'{"from": "alice", "to": "bob", "amount": 25}'
SCOPE = "POST /transfers"
ROW = ("alice", "bob", 25)
ENDED = (502, 504)


class Behind:
    """An app of the examples behind the gateway: a process on a port."""

    def __init__(self, bank, language):
        self.bank = bank
        self.language = language
        self.port = free_port()
        self.address = "127.0.0.1:%d" % self.port
        self.log = tempfile.TemporaryFile("w+")
        self.process = None

    def command(self):
        if self.language == "python":
            return [sys.executable, FOLDER / "behind_app.py",
                    self.bank.app_url, self.port], None
        command, env = self.bank.command("node", self.port, program="behind")
        return [command[0], "-r", FOLDER / "die_after_commit.js",
                *command[1:]], env

    def start(self):
        command, env = self.command()
        self.process = subprocess.Popen(
            list(map(str, command)), env=env, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log)
        until(lambda: self.process.poll() is not None or self.listens())
        assert self.process.poll() is None, self.text()
        return self

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        """After it was killed, by itself or by us."""
        self.process.wait(20)
        return self.start()

    def finish(self):
        if self.process:
            self.kill()
        print(self.text()[-3000:])  # shown if the test fails
        self.log.close()


@pytest.fixture(scope="module")
def server():
    with Postgres() as server:
        yield server


@pytest.fixture
def bank(server):
    return Bank(server)


@pytest.fixture(params=["python", "node"])
def behind(request, bank):
    made = Behind(bank, request.param)
    made.start()
    yield made
    made.finish()


@pytest.fixture
def python_behind(bank):
    made = Behind(bank, "python").start()
    yield made
    made.finish()


@pytest.fixture
def make_golden(bank, make_daemon, make_gateway):
    """A gateway before that app, on the same database."""
    def make(app, *lines, **options):
        daemon = make_daemon(url=bank.url, settings=[
            "store.sweep_interval=100ms", "store.connections=2"])
        return make_gateway(daemon=daemon, app=app,
                            locations=guard("/", *lines), **options)
    return make


JSON = {"Content-Type": "application/json"}


def transfer(gateway, key, word=None, body=ORDER, **options):
    headers = dict(JSON, **{"X-App": word} if word else {})
    return gateway.post(key, body, path="/transfers", headers=headers,
                        **options)


def transfer_later(gateway, key):
    return gateway.later("POST", "/transfers", ORDER, dict(JSON), key=key)


def is_made(answer):
    return answer.status == 201 and answer.json()["amount"] == 25


def wait_backend(server, condition):
    """Until an app's backend is so; see pg_stat_activity."""
    until(lambda: server.query(
        "SELECT 1 FROM pg_stat_activity WHERE usename = 'bank' AND " +
        condition))


# ---- nothing is cut ----

def test_the_app_completes_the_operation_and_a_retry_gets_what_it_stored(
        bank, behind, make_golden):
    # C26
    gateway = make_golden(behind)
    key = new_key()
    first = transfer(gateway, key)
    assert is_made(first) and not first.replayed
    assert bank.stored(key) == ("completed", 201, first.body.decode())
    behind.kill()  # a retry does not need it
    again = transfer(gateway, key)
    assert again.replayed and again.body == first.body
    assert again.header("Content-Type") == "application/json"
    assert again.reference == first.reference
    other = transfer(gateway, key, body=ORDER.replace(b"25", b"26"))
    assert other.problem == "key-reused"
    assert bank.ledger(key) == [ROW]
    bank.check_books()


def test_a_key_in_quotes_is_the_operation_of_the_bare_key(bank, behind,
                                                          make_golden):
    # C26, C05: the app is told the key itself.
    gateway = make_golden(behind)
    for sent, key in (('"k 1"', "k 1"), (r'"a\"b\\c"', r'a"b\c'),
                      ("bare", "bare")):
        first = transfer(gateway, sent)
        assert is_made(first)
        assert bank.ledger(key) == [ROW]
        assert gateway.state(key, scope=SCOPE) == "completed"
        assert transfer(gateway, sent).replayed
    assert transfer(gateway, '"bare"').replayed
    bank.check_books()


def test_a_tenant_and_a_scope_beyond_ascii_reach_the_functions(bank, behind,
                                                               make_golden):
    # C26
    gateway = make_golden(behind, "idempotency_scope 'Überweisung \\ neu';")
    key = new_key()
    tenant = "Zoë".encode().decode("latin-1")  # as bytes on the wire
    assert is_made(transfer(gateway, key, tenant=tenant))
    assert transfer(gateway, key, tenant=tenant).replayed
    assert bank.ledger(key) == [ROW]


# ---- the app dies ----

def test_an_app_that_dies_after_its_commit_has_answered_all_the_same(
        bank, behind, make_golden):
    # C26, C20
    gateway = make_golden(behind)
    key = new_key()
    first = transfer(gateway, key, "die-after-commit")
    assert is_made(first) and not first.replayed
    gateway.logged(key=key, verdict="new", outcome="kept")
    behind.restart()
    again = transfer(gateway, key)
    assert again.replayed and again.body == first.body
    assert bank.ledger(key) == [ROW]
    bank.check_books()


def test_an_app_that_dies_before_its_commit_has_done_nothing_and_it_is_open(
        bank, python_behind, make_golden):
    # C26, C21: the gateway cannot know, so it does not guess.
    gateway = make_golden(python_behind)
    key = new_key()
    first = transfer(gateway, key, "die-before-commit")
    assert first.status in ENDED and first.problem == "outcome-unknown"
    python_behind.restart()
    assert transfer(gateway, key).problem == "outcome-unknown"
    assert bank.ledger(key) == []
    # Whoever knows that everything is in the transaction may say so.
    name = ("acme", SCOPE, key)
    assert gateway.daemon.cli("release", *name, "--who", "ada", "--why",
                              "rolled back").returncode == 0
    assert is_made(transfer(gateway, key))
    assert bank.ledger(key) == [ROW]
    bank.check_books()


def test_where_all_work_is_in_the_transaction_a_retry_may_simply_run_again(
        bank, python_behind, make_golden):
    # C26
    gateway = make_golden(python_behind, "idempotency_uncertain reexecute;")
    key = new_key()
    for _ in range(3):
        first = transfer(gateway, key, "die-before-commit")
        assert first.problem == "outcome-unknown"
        assert bank.ledger(key) == []
        python_behind.restart()
    made = transfer(gateway, key)
    assert is_made(made) and not made.replayed
    assert transfer(gateway, key).body == made.body
    assert bank.ledger(key) == [ROW]
    bank.check_books()


@pytest.fixture
def slow_commit(bank):
    """COMMITs of transfers wait for what this returns to be rolled back."""
    bank.query("""
        CREATE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(4712); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger
            DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait_in_commit()""")
    holder = bank.connect(autocommit=False)
    holder.execute("SELECT pg_advisory_xact_lock(4712)")
    return holder


IN_COMMIT = "query = 'COMMIT' AND wait_event = 'advisory'"


def test_an_app_killed_in_its_commit_has_done_it_if_the_database_says_so(
        bank, server, behind, make_golden, slow_commit):
    # C26, C20: nobody is told anything before the database has decided.
    gateway = make_golden(behind)
    key = new_key()
    first = transfer_later(gateway, key)
    wait_backend(server, IN_COMMIT)
    assert transfer(gateway, key).problem == "in-progress"
    behind.kill()
    assert not first.done()
    slow_commit.rollback()
    first = first.result(30)
    assert is_made(first) and not first.replayed
    behind.restart()
    assert transfer(gateway, key).body == first.body
    assert bank.ledger(key) == [ROW]
    bank.check_books()


def test_an_app_killed_in_its_commit_has_done_nothing_if_that_is_undone(
        bank, server, behind, make_golden, slow_commit):
    # C26, C20
    gateway = make_golden(behind, "idempotency_uncertain reexecute;")
    key = new_key()
    first = transfer_later(gateway, key)
    wait_backend(server, IN_COMMIT)
    behind.kill()
    assert server.terminate_backends("usename = 'bank' AND " + IN_COMMIT) == 1
    assert first.result(30).problem == "outcome-unknown"
    slow_commit.rollback()
    assert bank.ledger(key) == []
    behind.restart()
    made = transfer(gateway, key)
    assert is_made(made) and bank.ledger(key) == [ROW]
    bank.check_books()


def test_an_app_whose_connection_is_lost_in_its_commit_may_answer_500(
        bank, server, behind, make_golden):
    # C26: the commit counts (it waits for a standby that is not there when it
    # is cut off), the release finds that out.
    gateway = make_golden(behind)
    key = new_key()
    # The daemon's own commits must not wait.
    bank.query("ALTER ROLE postgres SET synchronous_commit = local")
    gateway.daemon.restart()
    server.set("synchronous_standby_names", "nobody")
    try:
        first = transfer_later(gateway, key)
        wait_backend(server, "wait_event = 'SyncRep'")
        assert server.terminate_backends(
            "usename = 'bank' AND wait_event = 'SyncRep'") == 1
        first = first.result(30)
    finally:
        server.set("synchronous_standby_names", "")
        bank.query("ALTER ROLE postgres RESET synchronous_commit")
    assert is_made(first) and not first.replayed
    assert transfer(gateway, key).body == first.body
    assert bank.ledger(key) == [ROW]
    bank.check_books()


# ---- the app says something else ----

@pytest.mark.parametrize("word", ["other-answer", "failure"])
def test_what_was_stored_is_sent_whatever_the_app_says(bank, python_behind,
                                                       make_golden, word):
    # C26
    gateway = make_golden(python_behind)
    key = new_key()
    first = transfer(gateway, key, word)
    assert is_made(first) and not first.replayed
    gateway.logged(key=key, verdict="new", outcome="kept")
    assert transfer(gateway, key).body == first.body
    assert bank.ledger(key) == [ROW]
    bank.check_books()


def test_an_app_that_was_overtaken_does_nothing(bank, server, python_behind,
                                                make_golden):
    # C26, C22
    gateway = make_golden(python_behind, "idempotency_uncertain reexecute;",
                          "proxy_read_timeout 1s;")
    key = new_key()
    holder = bank.connect(autocommit=False)
    holder.execute("SELECT pg_advisory_xact_lock(%s)", (WAIT_LOCK,))
    assert transfer(gateway, key, "wait").problem == "outcome-unknown"
    made = transfer(gateway, key)
    assert is_made(made) and not made.replayed
    holder.rollback()  # the first one goes on now, with an old token
    until(lambda: '" 409 ' in python_behind.text())
    assert bank.ledger(key) == [ROW]
    assert transfer(gateway, key).body == made.body
    bank.check_books()


# ---- all at once ----

class Storm:
    """What all clients ask for, one after the other, until it is over."""

    def __init__(self):
        self.lock = threading.Lock()
        self.keys = []
        self.over = False

    def key(self, number):
        """The key of that number; None: there is no more."""
        with self.lock:
            if number == len(self.keys) and not self.over:
                self.keys.append(new_key())
            return self.keys[number] if number < len(self.keys) else None


class Client(threading.Thread):
    """Asks until there is an answer, as a patient client does."""

    def __init__(self, gateway, storm):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.storm = storm
        self.answers = []
        self.error = None

    def run(self):
        try:
            while key := self.storm.key(len(self.answers)):
                self.answers.append(until(lambda: self.ask(key), 30))
        except BaseException as error:  # the test asks for it
            self.error = error

    def ask(self, key):
        answer = transfer(self.gateway, key, body=ORDER.replace(b"25", b"1"))
        assert answer.status in (201, 409, 500, 502, 503, 504), answer
        return answer.body if answer.status == 201 else None


def strike(number, gateway, bank, behind):
    if number == 3:
        gateway.daemon.kill()
        gateway.daemon.start()
    elif number % 2:
        bank.cut("true")
    else:
        behind.kill()
        behind.restart()


def test_every_transfer_is_made_once_while_app_daemon_and_connections_die(
        bank, behind, make_golden):
    # C26, C20, C01
    bank.opening = 10 ** 6
    bank.query("UPDATE account SET balance = %s", (bank.opening,))
    gateway = make_golden(behind, "idempotency_uncertain reexecute;",
                          "idempotency_lock 1s;", "idempotency_wait 1s;")
    dice = random.Random(1)
    storm = Storm()
    clients = [Client(gateway, storm) for _ in range(6)]
    for client in clients:
        client.start()
    for number in range(7):
        time.sleep(dice.uniform(0.05, 0.3))
        strike(number, gateway, bank, behind)
    storm.over = True
    for client in clients:
        client.join(60 * patience())
        assert client.error is None, client.error
        assert len(client.answers) == len(storm.keys)
    assert storm.keys
    books = bank.books()
    assert books.keys() == set(storm.keys)
    for number, key in enumerate(storm.keys):
        state, status, body = books[key].stored
        assert (state, status) == ("completed", 201)
        assert books[key].ledger == [("alice", "bob", 1)]
        assert {client.answers[number] for client in clients} == {
            body.encode()}
    bank.check_books()
