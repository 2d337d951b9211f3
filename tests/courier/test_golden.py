"""The golden path: claim, order row, call to the provider and answer in one
PostgreSQL transaction of the app. Wherever it is cut, it is all or nothing,
and the provider is called for what counts, and for nothing else."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from support import build, stores
from support.build import patience
from support.life import until
from support.outbox import check_books

GOLDEN = build.ROOT / "examples" / "payments"
SEED = int(os.environ.get("LATCHKEY_SEED") or 1)

pytestmark = pytest.mark.stores("postgres")


class Shop:
    """examples/payments/golden.py on the database of a box."""

    def __init__(self, box):
        self.box = box
        self.base = stores.database_of(box.url)
        box.server.psql((GOLDEN / "orders.sql").read_text(), self.base)
        self.url = box.server.url(self.base, "shop")

    def start(self, *words):
        return subprocess.Popen(
            [sys.executable, str(GOLDEN / "golden.py"), self.url,
             *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)

    def order(self, key, customer="ann", cents=1250):
        """One order by a program of its own: (status, replayed, body)."""
        program = self.start(key, customer, cents)
        text, _ = program.communicate(timeout=60 * patience())
        assert program.returncode == 0, text
        said = json.loads(text)
        return said["status"], said["replayed"], said["body"]

    def orders(self):
        """{key: [(customer, amount), ...]}"""
        found = {}
        for key, *row in self.box.sql(
                "SELECT key, customer, amount FROM orders ORDER BY id"):
            found.setdefault(key, []).append(tuple(row))
        return found

    def jobs(self):
        return self.box.sql("SELECT count(*) FROM latchkey.job")[0][0]

    def stored(self, key):
        rows = self.box.sql("SELECT state, status FROM latchkey.operations"
                            " WHERE key = %s", (key,))
        return rows[0] if rows else None


@pytest.fixture
def shop(box):
    return Shop(box)


def check_all(box, shop, provider, keys):
    """Order rows, jobs and the provider's charges are the same thing."""
    orders = shop.orders()
    assert set(orders) == set(keys)
    assert all(len(rows) == 1 for rows in orders.values()), orders
    assert check_books(box, provider, keys) == {"delivered": len(keys)}
    assert sorted((line["customer"], line["amount"])
                  for line in provider.charges()) == \
        sorted(rows[0] for rows in orders.values())


def test_an_order_is_taken_once_and_paid_once(box, shop, provider):
    # C26, C28
    box.target("provider", provider).start()
    status, replayed, body = shop.order("k1")
    assert (status, replayed) == (201, False)
    assert shop.order("k1") == (201, True, body)
    box.wait_settled()
    check_all(box, shop, provider, ["k1"])


def test_what_is_not_committed_is_not_paid(box, shop, provider):
    # C26: claim, row, job and completion, and then the transaction ends
    # otherwise; at each step of it.
    box.target("provider", provider).start()
    steps = [
        "SELECT * FROM latchkey.claim('shop', 'order', 'k1', 'f')",
        "INSERT INTO orders (key, customer, amount) VALUES ('k1', 'ann', 5)",
        "SELECT latchkey.enqueue('shop', 'order', 'k1', {token}, 'charge',"
        " 'provider', '/v1/charges', 'POST',"
        " E'Content-Type: application/json\\r\\n',"
        " '{{\"amount\":5,\"currency\":\"eur\",\"customer\":\"ann\"}}')",
        "SELECT latchkey.complete('shop', 'order', 'k1', {token}, 201, '',"
        " '')"]
    for count in range(1, len(steps) + 1):
        for how in ("rollback", "terminate", "close"):
            rival = box.server.connect(shop.base, autocommit=False)
            token = 0
            for step in steps[:count]:
                cursor = rival.execute(step.format(token=token))
                if step is steps[0]:
                    names = [one.name for one in cursor.description]
                    row = dict(zip(names, cursor.fetchone()))
                    assert row["verdict"] == "NEW"
                    token = row["token"]
            # Nobody else sees any of it meanwhile.
            assert shop.orders() == {} and shop.jobs() == 0
            if how == "rollback":
                rival.rollback()
            elif how == "terminate":
                pid = rival.info.backend_pid
                box.server.terminate_backends("pid = %d" % pid)
            rival.close()
            until(lambda: not box.sql(
                "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
                " AND database = (SELECT oid FROM pg_database"
                " WHERE datname = current_database())"
                " AND pid <> pg_backend_pid()"))
            assert shop.orders() == {} and shop.jobs() == 0
            assert shop.stored("k1") is None
    shop.order("k1")
    box.wait_settled()
    check_all(box, shop, provider, ["k1"])


def test_a_commit_whose_answer_is_lost_is_paid_once(box, shop, provider):
    # C26: the transaction is committed; who waits for that to be said is cut
    # off. (A commit waits for a standby that is not there.)
    box.target("provider", provider).start()
    server = box.server
    server.set("synchronous_standby_names", "nobody")
    try:
        program = shop.start("k1", "ann", 1250)
        until(lambda: server.terminate_backends(
            "usename = 'shop' AND wait_event = 'SyncRep'") == 1)
    finally:
        server.set("synchronous_standby_names", "")
    text, _ = program.communicate(timeout=60 * patience())
    assert program.returncode == 0 and json.loads(text)["replayed"]
    box.wait_settled()
    check_all(box, shop, provider, ["k1"])


def test_the_database_dies_in_the_middle_of_orders_and_deliveries(
        box, shop, provider):
    # C26, C20, C27
    box.target("provider", provider, attempts="1000").start()
    keys = ["k%d" % number for number in range(150)]
    program = shop.start()
    program.stdin.write("".join("%s c-%s 100\n" % (key, key) for key in keys))
    program.stdin.close()
    for share in (20, 70):
        until(lambda: len(provider.charges()) >= share)
        box.server.kill()
        box.server.start()
    assert program.wait(120 * patience()) == 0
    program.stdout.close()
    box.reconnect()
    box.wait_settled()
    check_all(box, shop, provider, keys)


def test_everything_is_killed_and_the_books_are_exact(box, shop,
                                                      make_provider):
    """C26, C27: programs, courier and provider die at random moments; the
    provider loses answers. Each line is given again until it is answered."""
    dice = random.Random(SEED)
    provider = make_provider(manner={"drop_after": 15, "drop_before": 10,
                                     "fail_503": 10})
    box.target("provider", provider, attempts="100000").start(
        "courier.lease=500ms")
    lines = ["k%d c%d %d" % (number, number, 100 + number)
             for number in range(60)]
    done = set()
    for turn in range(40):
        left = [line for line in lines if line.split()[0] not in done]
        if not left:
            break
        program = shop.start()
        program.stdin.write("\n".join(left) + "\n")
        program.stdin.close()
        if turn < 6:
            time.sleep(dice.uniform(0.1, 0.4))
            program.kill()
            strike = dice.choice(["daemon", "provider"])
            if strike == "daemon":
                box.daemon.kill()
                box.daemon.start()
            else:
                provider.kill()
                provider.start()
        for line in program.stdout:
            if line.endswith("\n"):
                done.add(json.loads(line)["key"])
        program.stdout.close()
        program.wait()
    box.reconnect()
    box.wait_settled(timeout=120)
    check_all(box, shop, provider, [line.split()[0] for line in lines])
