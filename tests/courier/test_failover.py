"""PostgreSQL fails over to a standby that has not heard of the last commits:
what was lost ends nothing else, and nothing counts as delivered that was not
called."""

import pytest

from support import stores
from support.life import until, verdict, claim, new_key
from support.outbox import SCOPE, Box
from support.postgres import Postgres
from support.provider import charge

# More than the numbers that a sequence takes in advance (32).
LOST = 100


class Pair:
    """A primary, and a standby that can be cut off and then promoted."""

    def __init__(self):
        self.primary = Postgres().start()
        self.base = stores.make_database(self.primary)
        self.standby = self.primary.standby(sync=False)

    def url(self):
        return "postgres://%s:%s@%s/%s" % (
            stores.DAEMON_USER, stores.DAEMON_PASSWORD.replace(" ", "%20"),
            ",".join("%s:%d" % (one.address, one.port)
                     for one in (self.primary, self.standby)), self.base)

    def cut_off(self):
        """The standby has all until now, and hears of nothing more."""
        self.standby.wait_replayed()
        self.standby.query("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.query("SELECT pg_reload_conf()")
        until(lambda: not self.primary.query(
            "SELECT 1 FROM pg_stat_replication") and not self.standby.query(
            "SELECT 1 FROM pg_stat_wal_receiver"))

    def fail_over(self):
        self.primary.kill()
        self.standby.promote()

    def finish(self):
        self.primary.finish()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.finish()


@pytest.fixture
def shop(pair, make_daemon, faulty):
    """A box on both servers, whichever of them is the primary."""
    made = Box("postgres", make_daemon, faulty)
    made.url = pair.url()
    made.settings += ["store.strict=yes", "store.timeout=2s",
                      "store.connect_timeout=1s"]
    return made


def lose(shop, pair, provider):
    """Jobs that are called and then lost with the primary, while their calls
    still run; the highest of their ids."""
    provider.control(hang="after")
    shop.leave_many(LOST, charge)
    provider.wait_in_flight(LOST)
    last = max(job["id"] for job in shop.jobs())
    pair.fail_over()
    # Until the daemon has found the other one.
    until(lambda: verdict(claim(shop.raw, new_key())) == "NEW", 60)
    return last


@pytest.mark.parametrize("honours", [True, False])
def test_a_call_of_a_job_that_was_lost_ends_no_other_job(
        shop, pair, make_provider, honours):
    """C20, C27: the ids of jobs leap, or the answers to the lost calls would
    end the jobs that have got their ids since."""
    provider, other = (make_provider(honours=honours) for _ in range(2))
    for name, to in (("pay", provider), ("other", other)):
        shop.target(name, to, concurrency=2 * LOST, timeout="300s")
    shop.start("courier.lease=60s")
    shop.wait_job(shop.leave(charge("before")))
    pair.cut_off()
    last = lose(shop, pair, provider)
    assert len(shop.jobs()) == 1, "nothing was lost: this proves nothing"
    # The new ones are called and not answered; the lost ones are.
    other.control(hang="after")
    keys = shop.leave_many(LOST, charge, target="other")
    other.wait_in_flight(LOST)
    assert min(job["id"] for job in shop.jobs("TARGET", "other")) >= \
        last + 2 ** 31
    provider.control()
    provider.release()
    until(lambda: provider.status()["in_flight"] == 0)
    shop.wait_job(shop.leave(charge("after")))  # and what came before is noted
    assert {job["state"] for job in shop.jobs("TARGET", "other")} == \
        {"leased"}
    other.release()
    shop.wait_settled()
    made = {line["key"]: line["id"] for line in other.charges()}
    for job in shop.jobs("TARGET", "other"):
        assert job["state"] == "delivered" and job["attempts"] == 1, job
        assert job["provider-id"] == made[job["downstream-key"]], job
    assert len(made) == len(other.calls()) == len(keys)
    # What only the provider has are the calls that were lost, each once.
    assert len(provider.charges()) == len(provider.calls()) == 2 + LOST
    assert len(shop.jobs()) == 2 + LOST


def test_an_operation_that_was_lost_makes_its_call_under_the_same_key(
        shop, pair, provider):
    """C20, C28: it was delivered, it is lost, and it runs again: a service
    that honours keys has it once."""
    shop.target("pay", provider).start()
    shop.wait_job(shop.leave(charge("before"), "used"))
    assert shop.operator("EVICT", "acme", SCOPE, "used", "WHO", "t", "WHY",
                         "t") == "OK"
    pair.cut_off()

    def run():
        for key in ("used", "fresh"):
            shop.leave(charge(key), key)
        shop.wait_settled()

    run()
    pair.fail_over()
    until(lambda: verdict(claim(shop.raw, new_key())) == "NEW", 60)
    run()
    assert len(provider.calls()) == 5
    assert len(provider.charges()) == 3


def test_a_lease_that_was_lost_is_taken_again(shop, pair, provider):
    """C20, C27: the job is there, that it was called is not. It is called
    again, with the same key, and is delivered once at one who honours it."""
    shop.target("pay", provider, timeout="300s", concurrency=LOST).start(
        "courier.lease=60s")
    assert shop.operator("TARGET", "PAUSE", "pay", "WHO", "t", "WHY",
                         "t") == "OK"
    keys = shop.leave_many(20, charge)
    pair.cut_off()
    provider.control(hang="after")
    assert shop.operator("TARGET", "RESUME", "pay", "WHO", "t", "WHY",
                         "t") == "OK"
    provider.wait_in_flight(20)
    pair.fail_over()
    until(lambda: verdict(claim(shop.raw, new_key())) == "NEW", 60)
    # The pause is as it was before.
    assert shop.states() == {"waiting": 20}
    provider.control()
    provider.release()
    until(lambda: provider.status()["in_flight"] == 0)
    assert shop.states() == {"waiting": 20}, "delivered without a lease"
    until(lambda: shop.operator("TARGET", "RESUME", "pay", "WHO", "t", "WHY",
                                "t") == "OK")
    shop.wait_settled()
    made = {line["key"]: line["id"] for line in provider.charges()}
    for key in keys:
        job = shop.job_of(key)
        assert job["state"] == "delivered"
        assert job["provider-id"] == made[job["downstream-key"]]
    assert len(provider.charges()) == len(made) == 20
