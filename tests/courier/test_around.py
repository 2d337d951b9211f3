"""What goes on around the courier: reloads, disks that fail, a pooler between
it and the database."""

import signal

import pytest

from support import stores
from support.life import until
from support.outbox import check_books, target_settings
from support.pgbouncer import PgBouncer
from support.provider import charge

DISKS = {"full": "fail write ENOSPC wal forever",
         "write": "fail write EIO wal forever",
         "sync": "fail sync EIO wal forever"}


# ---- reload ----

def write_config(path, *targets):
    """Targets as a file names them."""
    sections = []
    for name, url, more in targets:
        lines = [line.split(".", 2)[2].replace("=", " = ", 1)
                 for line in target_settings(name, url, **more)]
        sections.append("[target %s]\n%s\n" % (name, "\n".join(lines)))
    path.write_text("\n".join(sections))


def reload(box):
    since = len(box.daemon.lines)
    box.daemon.signal(signal.SIGHUP)
    box.daemon.wait_for_log("reload", since=since)


def test_a_reload_moves_a_target_and_what_is_in_flight_is_finished(
        box, make_provider, tmp_path):
    # C40
    one, two = make_provider(), make_provider()
    config = tmp_path / "latchkeyd.conf"
    write_config(config, ("pay", one.url, {}))
    one.control(hang="after", next=1)
    box.start(config=config)
    held = box.leave(charge("held"))
    one.wait_in_flight(1)
    write_config(config, ("pay", two.url, {}))
    reload(box)
    box.wait_job(box.leave(charge("moved")))
    assert [line["customer"] for line in two.charges()] == ["moved"]
    one.release()
    job = box.wait_job(held)
    assert job["attempts"] == 1 and len(one.calls()) == 1
    # A file with a mistake changes nothing.
    config.write_text("[target pay]\nurl = ftp://nowhere\n")
    reload(box)
    box.wait_job(box.leave(charge("still")))
    assert [line["customer"] for line in two.charges()] == ["moved", "still"]


def test_a_reload_reads_credentials_again(box, make_provider, tmp_path):
    provider = make_provider(token="new")
    secret = tmp_path / "token"
    secret.write_text("old")
    config = tmp_path / "latchkeyd.conf"
    header = {"header": "Authorization: Bearer ${file:%s}" % secret}
    write_config(config, ("pay", provider.url, header))
    box.start(config=config)
    job = box.wait_job(box.leave(charge()), "dead")
    assert job["status"] == 401
    secret.write_text("new\n")
    reload(box)
    assert box.order("RETRY", job) == "OK"
    box.wait_job(job["key"])
    assert len(provider.charges()) == 1


def test_a_target_that_goes_with_a_reload_keeps_its_jobs_for_its_return(
        box, make_provider, tmp_path):
    one, two = make_provider(), make_provider()
    config = tmp_path / "latchkeyd.conf"
    both = ("pay", one.url, {}), ("mail", two.url, {})
    write_config(config, *both)
    box.start(config=config)
    one.control(fail=503)
    key = box.leave(charge())
    one.wait_calls(1)
    write_config(config, both[1])
    reload(box)
    one.control()
    box.wait_job(box.leave(charge("other"), target="mail"))
    assert box.job_of(key)["state"] in ("waiting", "leased")
    write_config(config, *both)
    reload(box)
    box.wait_job(key)
    assert len(one.charges()) == 1


@pytest.mark.parametrize("before,after", [("yes", "no"), ("no", "yes")])
def test_a_call_in_flight_counts_by_both_what_its_key_was_and_is(
        box, make_provider, tmp_path, before, after):
    # C27: honoured all the time, or it is not called again.
    provider = make_provider(honours=False)
    config = tmp_path / "latchkeyd.conf"
    write_config(config, ("pay", provider.url, {"idempotency": before}))
    provider.control(hang="after", next=1)
    box.start(config=config)
    key = box.leave(charge())
    provider.wait_in_flight(1)
    write_config(config, ("pay", provider.url, {"idempotency": after}))
    reload(box)
    box.wait_job(box.leave(charge("other")))  # by the new rules
    provider.kill()
    provider.start()
    job = box.wait_job(key, "uncertain")
    assert job["attempts"] == 1
    assert len(provider.calls(job["downstream-key"])) == 1


# ---- the disk ----

@pytest.mark.parametrize("disk", DISKS.values(), ids=DISKS)
@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("sqlite")
def test_an_answer_waits_for_a_disk_that_fails(box, make_provider, disk,
                                               honours):
    # C23, C27: the call was made; what came of it is stored when it can be.
    provider = make_provider(honours=honours)
    provider.control(hang="after", next=3)
    box.target("pay", provider).start(faults=())
    keys = box.leave_many(3, lambda key: charge(key))
    provider.wait_in_flight(3)
    box.daemon.set_faults(disk)
    provider.release()
    until(lambda: provider.status()["in_flight"] == 0)
    box.daemon.wait_for_log("level=error")
    box.daemon.set_faults()
    box.wait_settled()
    counts = check_books(box, provider, keys)
    assert counts == {"delivered": 3}
    assert len(provider.calls()) == 3


@pytest.mark.parametrize("disk", DISKS.values(), ids=DISKS)
@pytest.mark.stores("sqlite")
def test_nothing_is_called_that_cannot_be_recorded(box, make_provider, disk):
    # C23, C27: at most once needs "called" on the disk first.
    provider = make_provider(honours=False)
    box.target("pay", provider).start(faults=())
    box.operator("TARGET", "PAUSE", "pay", "WHO", "t", "WHY", "t")
    keys = box.leave_many(10, lambda key: charge(key))
    box.daemon.set_faults("hold after_lease")
    box.operator("TARGET", "RESUME", "pay", "WHO", "t", "WHY", "t")
    until(lambda: box.states()["leased"] > 0)
    box.daemon.set_faults(disk)
    box.daemon.wait_for_log("level=error")
    assert not provider.calls()
    box.daemon.set_faults()
    box.wait_settled()
    assert check_books(box, provider, keys) == {"delivered": 10}
    assert len(provider.calls()) == 10


# ---- a pooler ----

@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("postgres")
def test_through_pgbouncer_jobs_are_delivered_as_ever(box, make_provider,
                                                      honours):
    # C27
    provider = make_provider(honours=honours)
    users = {stores.DAEMON_USER: stores.DAEMON_PASSWORD}
    with PgBouncer(box.server, users) as bouncer:
        box.url = box.server.url(
            stores.database_of(box.url), stores.DAEMON_USER,
            stores.DAEMON_PASSWORD, bouncer.port)
        box.target("pay", provider)
        first = box.start("store.pooler=yes", "courier.lease=500ms")
        second = box.start("store.pooler=yes", "courier.lease=500ms")
        provider.control(delay_20=50)
        keys = box.leave_many(200, lambda key: charge(key))
        provider.wait_charges(50)
        second.kill()
        box.wait_settled()
        counts = check_books(box, provider, keys)
        if honours:
            assert counts == {"delivered": 200}
        first.stop()
