"""Programs of users make transfers with the functions for apps: many at once,
the same one several times, killed in the middle of it. The books are exact."""

import json
import os
import random
import threading
import time

import pytest

from support.bank import ACCOUNTS, Bank
from support.build import patience
from support.life import until
from support.moving import done, tool
from support.postgres import Postgres

LANGUAGES = ("python", "node", "c")
SEED = int(os.environ.get("LATCHKEY_SEED") or 1)
TRANSFERS = 60
WORKERS = 4


@pytest.fixture(scope="module")
def server():
    with Postgres() as server:
        yield server


@pytest.fixture
def bank(server):
    return Bank(server)


# ---- one after the other ----

@pytest.mark.parametrize("language", LANGUAGES)
def test_a_transfer_is_made_once_and_its_repetition_gets_the_same_answer(
        bank, language):
    # C26
    first = bank.transfer(language, "k1", "alice", "bob", 25)
    status, replayed, body = first
    assert (status, replayed) == (201, False)
    assert {"from": "alice", "to": "bob", "amount": 25}.items() <= body.items()
    assert bank.transfer(language, "k1", "alice", "bob", 25) == (
        201, True, body)
    # Nobody cares which program asks.
    for other in LANGUAGES:
        assert bank.transfer(other, "k1", "alice", "bob", 25) == (
            201, True, body)
    assert bank.ledger("k1") == [("alice", "bob", 25)]
    assert bank.jobs("k1") == 1
    bank.check_books()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_refusal_is_an_answer_too_and_leaves_neither_money_nor_job(
        bank, language):
    # C26
    status, _, body = bank.transfer(language, "k1", "alice", "bob", 5000)
    assert status == 402
    bank.query("UPDATE account SET balance = balance + 9000"
               " WHERE id = 'alice'")
    assert bank.transfer(language, "k1", "alice", "bob", 5000) == (
        402, True, body)
    assert bank.ledger("k1") == [] and bank.jobs("k1") == 0


def test_the_session_of_psql_makes_a_transfer_once(bank):
    # C26
    made = bank.psql("k1", "alice", "bob", 25)
    assert made.startswith("NEW|201|{")
    assert bank.psql("k1", "alice", "bob", 25) == made.replace("NEW",
                                                               "REPLAY")
    assert bank.psql("k1", "alice", "bob", 26).startswith("MISMATCH|")
    assert bank.transfer("python", "k1", "alice", "bob", 25)[1]
    with pytest.raises(AssertionError, match="violates check constraint"):
        bank.psql("k2", "alice", "bob", 5000)
    assert bank.stored("k2") is None
    assert bank.ledger("k1") == [("alice", "bob", 25)]
    assert bank.jobs("k1") == 1
    bank.check_books()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_commit_whose_answer_is_lost_counts_and_the_program_finds_out(
        bank, server, language):
    # C26: the transaction is committed; who waits for that to be said is cut
    # off. (A commit waits for a standby that is not there.)
    server.set("synchronous_standby_names", "nobody")
    try:
        program = bank.start(language, "k1", "alice", "bob", "25")
        until(lambda: server.terminate_backends(
            "usename = 'bank' AND wait_event = 'SyncRep'") == 1)
    finally:
        server.set("synchronous_standby_names", "")
    text, _ = program.communicate(timeout=30)
    assert program.returncode == 0
    assert "(stored)" in text or json.loads(text)["replayed"]
    assert bank.ledger("k1") == [("alice", "bob", 25)]
    assert bank.jobs("k1") == 1
    bank.check_books()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_killed_before_its_commit_leaves_nothing_and_the_next_runs(
        bank, server, language):
    # C26: it has claimed, and waits for a row of somebody else.
    rival = bank.connect(autocommit=False)
    rival.execute("SELECT FROM account WHERE id = 'bob' FOR UPDATE")
    program = bank.start(language, "k1", "alice", "bob", "25")
    until(lambda: server.query(
        "SELECT 1 FROM pg_stat_activity WHERE usename = 'bank'"
        " AND wait_event_type = 'Lock'"))
    program.kill()
    program.communicate()
    rival.rollback()
    until(lambda: not server.query(
        "SELECT 1 FROM pg_stat_activity WHERE usename = 'bank'"))
    assert bank.stored("k1") is None
    assert bank.ledger("k1") == [] and bank.jobs("k1") == 0
    status, replayed, _ = bank.transfer(language, "k1", "alice", "bob", 25)
    assert (status, replayed) == (201, False)
    bank.check_books()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_waits_for_a_rival_without_blocking_and_takes_its_answer(
        bank, language):
    # C26: INFLIGHT while the rival's transaction is open.
    name = ("bank", "transfer", "k1")
    rival = bank.connect(autocommit=False)
    token, = rival.execute(
        "SELECT token FROM latchkey.claim(%s, %s, %s, 'transfer:' || encode("
        "sha256('alice bob 25'), 'hex'))", name).fetchone()
    program = bank.start(language, "k1", "alice", "bob", "25")
    # It was told so, and has ended its transaction.
    until(lambda: bank.query(
        "SELECT 1 FROM pg_stat_activity WHERE usename = 'bank'"
        " AND state = 'idle' AND query IN ('COMMIT', 'ROLLBACK')"))
    rival.execute("SELECT latchkey.complete(%s, %s, %s, %s, 201, '', %s)",
                  (*name, token, b'{"by": "rival"}'))
    assert program.poll() is None
    rival.commit()
    text, _ = program.communicate(timeout=30)
    assert program.returncode == 0 and '"rival"' in text
    assert bank.ledger("k1") == []


# ---- all at once, while they are being killed ----

class Worker(threading.Thread):
    """Has a list of transfers made, by as many programs as it takes."""

    def __init__(self, bank, language, orders, seed):
        super().__init__(daemon=True)
        self.bank = bank
        self.language = language
        self.orders = orders
        self.dice = random.Random(seed)
        self.answers = []
        self.kills = 0
        self.program = None
        self.over = False
        self.error = None

    def run(self):
        try:
            while len(self.answers) < len(self.orders) and not self.over:
                self.live()
        except Exception as error:  # the test asks for it
            self.error = error

    def live(self):
        """One program: it dies after some transfers, or when all are made."""
        self.program = program = self.bank.start(self.language)
        reader = threading.Thread(target=self.feed, args=(program,))
        reader.start()
        lives = self.dice.randrange(4, 25) if self.kills < 4 else -1
        for line in program.stdout:
            answer = json.loads(line)
            if "error" in answer:  # it gave up on a slow machine: once more
                program.kill()
                break
            self.answers.append(answer)
            lives -= 1
            if lives == 0:
                time.sleep(self.dice.uniform(0, 0.006))  # wherever it is then
                program.kill()
                self.kills += 1
        program.wait()
        reader.join()
        program.stdout.close()
        assert program.returncode in (0, -9), program.returncode

    def give_up(self):
        """It takes too long: what it has is what counts."""
        self.over = True
        self.program.kill()

    def feed(self, program):
        lines = ["%s %s %s %d\n" % order
                 for order in self.orders[len(self.answers):]]
        try:
            program.stdin.write("".join(lines))
            program.stdin.close()
        except BrokenPipeError:
            pass  # it was killed


def make_orders(dice):
    """(key, source, target, amount), some for more than anybody has."""
    return [("k%d" % number, *dice.sample(ACCOUNTS, 2),
             10 ** 6 if number % 10 == 0 else dice.randrange(1, 9))
            for number in range(TRANSFERS)]


def cut_connections(bank, dice, workers):
    """Ends connections of programs while there are programs; whatever is cut,
    some transfer is made in between."""
    cut = seen = 0
    deadline = time.monotonic() + 150 * patience()
    while any(worker.is_alive() for worker in workers):
        if time.monotonic() > deadline:
            for worker in workers:
                worker.give_up()
        time.sleep(dice.uniform(0.02, 0.15))
        made = sum(len(worker.answers) for worker in workers)
        if made == seen:
            continue
        seen = made
        cut += bank.cut("pid = (SELECT pid FROM pg_stat_activity"
                        " WHERE usename = 'bank' ORDER BY random() LIMIT 1)")
    return cut


def check_answers(bank, orders, workers):
    """Exactly one transfer, one job and one answer for each key."""
    books = bank.books()
    assert len(books) == len(orders)
    for key, *order in orders:
        book = books[key]
        state, status, _ = book.stored
        assert state == "completed"
        made = status == 201
        assert made == (order[2] < 10 ** 6), (key, order, status)
        assert book.ledger == ([tuple(order)] if made else []), key
        assert book.jobs == made, key
    for answer in (answer for worker in workers for answer in worker.answers):
        _, status, body = books[answer["key"]].stored
        assert answer["status"] == status, answer
        assert answer["body"] == json.loads(body), answer


@pytest.mark.parametrize("languages", [("python",), ("node",),
                                       ("python", "node")], ids="+".join)
def test_the_ledger_is_exact_whatever_is_killed_and_cut_off(bank, languages):
    # C26, C20
    bank.opening = 10 ** 5
    bank.query("UPDATE account SET balance = %s", (bank.opening,))
    dice = random.Random(SEED)
    orders = make_orders(dice)
    workers = []
    for number in range(WORKERS):
        # Nearly the same order, so that they meet.
        mine = sorted(orders, key=lambda order: int(order[0][1:]) +
                      dice.uniform(0, 6))
        workers.append(Worker(bank, languages[number % len(languages)], mine,
                              dice.random()))
    for worker in workers:
        worker.start()
    cut = cut_connections(bank, dice, workers)
    for worker in workers:
        assert worker.error is None, worker.error
        assert len(worker.answers) == len(orders)
    check_answers(bank, orders, workers)
    bank.check_books()
    # It proves something only if it was rough.
    answers = [answer for worker in workers for answer in worker.answers]
    assert sum(worker.kills for worker in workers) >= 2 * WORKERS and cut
    assert any(answer["replayed"] for answer in answers)
    assert not any("error" in answer for answer in answers)


# ---- whose schema it is ----

# Whoever reads meta makes mallory a superuser, if the reader may.
TRAP = """
CREATE SCHEMA latchkey;
CREATE FUNCTION latchkey.trap() RETURNS text LANGUAGE plpgsql AS
    $$BEGIN ALTER ROLE mallory SUPERUSER; RETURN '1'; END$$;
CREATE VIEW latchkey.meta AS
    SELECT 'version'::text AS name, latchkey.trap() AS value;
"""


@pytest.fixture
def shared(server):
    """A database in which several roles may make schemas; its name."""
    for role in ("mallory", "keeper"):
        if not server.query("SELECT 1 FROM pg_roles WHERE rolname = %s",
                            (role,)):
            server.create_user(role)
    for role in ("latchkey_daemon", "latchkey_app"):
        if not server.query("SELECT 1 FROM pg_roles WHERE rolname = %s",
                            (role,)):
            server.query("CREATE ROLE %s NOLOGIN" % role)
    name = server.create_database().rsplit("/", 1)[1]
    server.query("GRANT CREATE ON DATABASE %s TO mallory, keeper" % name)
    return name


def assert_refused(server, shared, user, *words):
    result = tool("migrate", server.url(shared, user=user))
    assert result.returncode == 4, (result.stdout, result.stderr)
    for word in words:
        assert word in result.stderr, result.stderr
    assert server.value("SELECT count(*) FROM pg_roles WHERE rolsuper"
                        " AND rolname = 'mallory'") == 0


def test_a_schema_of_another_role_is_not_even_read(server, shared):
    server.connect(shared, user="mallory").execute(TRAP)
    assert_refused(server, shared, "postgres", "belongs to the role mallory",
                   "run this as that role")
    assert_refused(server, shared, "keeper", "belongs to the role mallory")
    # The same is true for who runs the printed SQL.
    printed = done(tool("migrate", "--print")).stdout
    with pytest.raises(AssertionError, match="belongs to the role mallory"):
        server.psql(printed, database=shared)


def test_a_schema_that_another_role_makes_meanwhile_is_not_taken(
        server, shared):
    mallory = server.connect(shared, user="mallory", autocommit=False)
    mallory.execute(TRAP)
    results = []
    thread = threading.Thread(target=lambda: results.append(
        tool("migrate", server.url(shared))))
    thread.start()
    # It has found no schema, and waits to make one.
    until(lambda: server.query(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = %s AND query LIKE '%%whose schema%%'", (shared,)))
    mallory.commit()
    thread.join()
    assert results[0].returncode == 4, results[0]
    assert "belongs to the role mallory" in results[0].stderr
    assert_refused(server, shared, "postgres")


def test_what_others_own_or_may_make_in_the_schema_stops_a_migration(
        server, shared):
    # A database administrator makes the schema for the role that migrates.
    server.query("CREATE SCHEMA latchkey AUTHORIZATION keeper",
                 database=shared)
    server.query("GRANT CREATE, USAGE ON SCHEMA latchkey TO mallory",
                 database=shared)
    assert_refused(server, shared, "keeper", "role mallory may create objects",
                   "REVOKE CREATE ON SCHEMA latchkey FROM mallory")
    server.connect(shared, user="mallory").execute(
        "CREATE FUNCTION latchkey.claim() RETURNS int LANGUAGE sql"
        " AS 'SELECT 1'; CREATE TYPE latchkey.verdict AS (x int)")
    server.query("REVOKE CREATE ON SCHEMA latchkey FROM mallory",
                 database=shared)
    for what in ("type latchkey.verdict", "function latchkey.claim()"):
        assert_refused(server, shared, "keeper",
                       "%s belongs to the role mallory" % what)
        server.query("DROP " + what, database=shared)
    server.query("GRANT CREATE ON SCHEMA latchkey TO PUBLIC", database=shared)
    assert_refused(server, shared, "keeper", "PUBLIC may create")
    server.query("REVOKE CREATE ON SCHEMA latchkey FROM PUBLIC",
                 database=shared)
    made = done(tool("migrate", server.url(shared, user="keeper")))
    assert "warning" not in made.stderr
    done(tool("migrate", server.url(shared, user="keeper")))
    # A function that was replaced since is found by the next migration.
    server.query("ALTER FUNCTION latchkey.fence OWNER TO mallory",
                 database=shared)
    assert_refused(server, shared, "keeper", "function latchkey.fence(",
                   "belongs to the role mallory")


def test_a_schema_of_that_name_that_is_not_latchkeys_is_left_alone(
        server, shared):
    server.query("CREATE SCHEMA latchkey; CREATE TABLE latchkey.door (x int)",
                 database=shared)
    result = tool("migrate", server.url(shared))
    assert result.returncode == 5
    assert "is not Latchkey's: the table latchkey.door is in it" in (
        result.stderr)


def test_a_superuser_is_warned_and_functions_for_apps_pin_their_search_path(
        server, shared):
    made = done(tool("migrate", server.url(shared)))
    assert made.stderr.count("warning: ") == 1
    assert "CREATE SCHEMA latchkey AUTHORIZATION latchkey_owner" in made.stderr
    functions = server.query(
        "SELECT proname, proconfig FROM pg_proc WHERE prosecdef"
        " AND pronamespace = 'latchkey'::regnamespace", database=shared)
    assert len(functions) >= 8
    for name, settings in functions:
        assert "search_path=pg_catalog, pg_temp" in settings, name


def test_the_schema_of_a_newer_version_is_not_nothing_to_do(server, shared):
    done(tool("migrate", server.url(shared)))
    server.query("UPDATE latchkey.meta SET value = '999'"
                 " WHERE name = 'version'", database=shared)
    result = tool("migrate", server.url(shared))
    assert result.returncode == 1
    assert "version 999, made by a newer Latchkey" in result.stderr
    assert "upgrade" in result.stderr and result.stdout == ""
