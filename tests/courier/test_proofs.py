"""Promises that only show with many jobs, or while nothing else happens."""

import collections
import signal
import socket

import pytest

from support import stores
from support.life import begin, claim, new_key, until, verdict
from support.outbox import check_books
from support.pgbouncer import PgBouncer
from support.provider import charge
from support.resp import fields

STATES = ("waiting", "leased", "uncertain", "dead")
# More than the store looks at in one go, and than it has room for at first.
MANY, TARGETS = 600, 20


@pytest.fixture
def silent():
    """Accepts connections and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


def say(box, word, target="pay"):
    reply = box.operator("TARGET", word, target, "WHO", "t", "WHY", "t")
    assert reply == "OK", reply


# ---- counts ----

def standing(box):
    """What TARGET STATUS tells of each target that has unfinished jobs."""
    told = {}
    for row in box.operator("TARGET", "STATUS"):
        row = fields(row)
        counts = {state: row[state] for state in STATES if row[state]}
        if counts:
            told[row["name"].decode()] = counts
    return told


def listed(box):
    """The same, counted from the list of all jobs."""
    found = collections.defaultdict(collections.Counter)
    for job in box.jobs():
        if job["state"] in STATES:
            found[job["target"]][job["state"]] += 1
    return {target: dict(counts) for target, counts in found.items()}


def test_counts_by_target_are_those_of_the_jobs_however_many(
        box, make_provider, silent):
    """C29, C30: after ends and orders of every kind, a restart and a kill, and
    when the jobs of a courier that was lost with all its calls are settled."""
    pay, no, odd = (make_provider(), make_provider(manner={"fail": 400}),
                    make_provider(honours=False, manner={"drop": "after"}))
    box.target("pay", pay).target("no", no).target("odd", odd)
    slow = {"timeout": "600s", "concurrency": MANY}
    box.target("lost", silent, idempotency="no", **slow)
    for number in range(TARGETS):
        box.target("t%d" % number, pay)
    box.start("courier.batch=1000")
    for number in range(TARGETS):
        say(box, "PAUSE", "t%d" % number)
        box.leave_many(1 + number, charge, target="t%d" % number)
    expected = {"t%d" % number: {"waiting": 1 + number}
                for number in range(TARGETS)}
    for name, state in (("pay", None), ("no", "dead"), ("odd", "uncertain")):
        box.leave_many(MANY, charge, target=name)
        if state:
            expected[name] = {state: MANY}
    box.leave_many(MANY, charge, target="lost")
    expected["lost"] = {"leased": MANY}

    def check():
        until(lambda: standing(box) == expected, 120, pause=0.1)
        assert listed(box) == expected

    check()
    for target, word in (("no", "DROP"), ("odd", "DELIVERED")):
        for job in box.jobs("TARGET", target)[:7]:
            assert box.order(word, job) == "OK"
        expected[target] = {state: count - 7 for state, count
                            in expected[target].items()}
    say(box, "RESUME", "t19")
    del expected["t19"]
    check()
    box.daemon.kill()
    box.daemon.start()
    box.reconnect()
    expected["lost"] = {"uncertain": MANY}
    check()
    box.daemon.stop()
    box.daemon.start()
    box.reconnect()
    check()
    assert len(pay.charges()) == MANY + 20
    assert len(odd.calls()) == MANY


def test_what_is_lost_is_told_of_though_its_target_is_paused(
        box, make_provider):
    # C27: to pause is to call nobody, and hides nothing.
    provider = make_provider(honours=False)
    provider.control(hang="after", next=1)
    box.target("pay", provider).start("courier.lease=500ms")
    key = box.leave(charge())
    provider.wait_in_flight(1)
    say(box, "PAUSE")
    box.leave(charge("other"))
    box.daemon.kill()
    box.daemon.start()
    box.reconnect()
    box.wait_job(key, "uncertain")
    assert standing(box) == {"pay": {"uncertain": 1, "waiting": 1}}
    assert len(provider.calls()) == 1


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.stores("sqlite")
def test_what_a_disk_refused_is_not_counted(box, provider, error):
    # C23
    box.target("pay", provider).start(faults=())
    say(box, "PAUSE")
    box.leave_many(5, charge)
    tokens = {key: begin(box.raw, key) for key in
              (new_key() for _ in range(3))}
    box.daemon.set_faults("fail write %s wal forever" % error)
    for key, token in tokens.items():
        assert box.enqueue(key, token, body=charge()) != "OK"
    box.daemon.set_faults()
    until(lambda: verdict(claim(box.raw, new_key())) == "NEW")
    assert standing(box) == listed(box)
    for key, token in tokens.items():  # it may have been stored, or not
        assert box.enqueue(key, token, body=charge()) in ("OK", "EXISTS")
    assert standing(box) == listed(box) == {"pay": {"waiting": 8}}


# ---- an answer that cannot be stored ----

def table_of(box, *names):
    """The first of these that is a table."""
    found = {name for name, in box.sql(
        "SELECT relname::text FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'latchkey'::regnamespace")}
    return next("latchkey." + name for name in names if name in found)


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("postgres")
def test_an_answer_that_cannot_be_stored_keeps_no_others(box, make_provider,
                                                         honours):
    # C27, C28: the database does not take some value that is in it.
    provider = make_provider(honours=honours)
    box.target("pay", provider, concurrency="40", attempts="1000").start(
        "courier.lease=1s")
    table = table_of(box, "result", "job")
    box.sql("""
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE 'not this one' USING ERRCODE = '22021'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON %s FOR EACH ROW
        WHEN (new.answer_body LIKE '%%unlucky%%')
        EXECUTE FUNCTION public.refuse()""" % table)
    provider.control(hang="after", next=31)
    bad = box.leave(charge("unlucky"))
    keys = box.leave_many(30, charge)
    provider.wait_in_flight(31)
    provider.release()  # so that they end together
    for key in keys:
        box.wait_job(key)
    keys.append(box.leave(charge("later")))
    box.wait_job(keys[-1])
    line = box.daemon.wait_for_log("event=job-end-refused")
    assert "level=error" in line
    if honours:
        assert box.job_of(bad)["state"] in ("leased", "waiting")
        box.sql("DROP TRIGGER refuse ON " + table)
        box.wait_job(bad)
    else:
        box.wait_job(bad, "uncertain")
    check_books(box, provider, keys + [bad])
    assert len(provider.charges("unlucky")) == 1


# ---- the circuit ----

def test_a_half_open_circuit_lets_one_call_through_at_a_time(box, provider):
    # C30: however many there is room for.
    provider.control(fail=503)
    box.target("pay", provider, circuit_failures="4", circuit_open="1s",
               concurrency="8", attempts="1000", timeout="300s").start(
                   "courier.lease=6s")
    keys = box.leave_many(20, charge)
    box.daemon.wait_for_log("event=circuit-open")
    # What had left by then has come back; from now on there are only trials.
    until(lambda: box.target_status()["in-flight"] == 0)
    provider.control(hang="after")
    provider.wait_in_flight(1)

    def due():
        return [job["due-ms"] for job in box.jobs() if
                job["state"] == "leased" and job["called"]]
    first = max(until(due))
    until(lambda: max(due()) >= first + 3000)  # two renewals later
    assert provider.status()["in_flight"] == 1
    assert box.target_status()["in-flight"] == 1
    provider.control()
    provider.release()
    box.wait_settled()
    assert len(provider.charges()) == len(keys)


# ---- time-outs ----

@pytest.fixture
def full():
    """Listens, and lets nobody in: to connect there never ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(listener.getsockname())
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    for one in [listener, *waiting]:
        one.close()


def test_who_cannot_be_reached_in_time_was_not_called(box, full):
    # C27, C30: the time for the whole call is not waited for.
    box.target("pay", full, timeout="3600s", connect_timeout="100ms",
               idempotency="no", attempts="2").start()
    job = box.wait_job(box.leave(charge()), "dead")
    assert job["attempts"] == 2 and not job["sent"]


# ---- what the store is told, and hears ----

@pytest.mark.stores("postgres")
def test_what_ends_while_the_store_is_busy_is_written_in_few_steps(
        box, provider):
    count = 60
    box.target("pay", provider, concurrency=count).start()
    provider.control(hang="after", next=count)
    keys = box.leave_many(count, charge)
    provider.wait_in_flight(count)
    with box.server.connect(stores.database_of(box.url),
                            autocommit=False) as db:
        db.execute("LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE" % table_of(
            box, "unfinished", "job"))
        provider.release()
        until(lambda: box.target_status()["in-flight"] == 0)
        db.rollback()
    for key in keys:
        box.wait_job(key)
    steps, = box.sql("SELECT count(DISTINCT xmin::text) FROM " +
                     table_of(box, "result", "job"))[0]
    assert steps <= count // 6, steps


@pytest.mark.stores("postgres")
def test_no_more_is_leased_at_once_than_is_configured(box, silent):
    # C30: however much room there is, and each target has its share.
    more = {"concurrency": 60, "timeout": "600s"}
    box.target("one", silent, **more).target("two", silent, **more)
    box.start("courier.batch=10", "courier.lease=600s")
    for name in ("one", "two"):
        say(box, "PAUSE", name)
        box.leave_many(60, charge, target=name)
    for name in ("one", "two"):
        say(box, "RESUME", name)
    until(lambda: box.states() == {"leased": 120})
    steps = [count for count, in box.sql(
        "SELECT count(*) FROM %s GROUP BY xmin::text" % table_of(
            box, "unfinished", "job"))]
    assert sum(steps) == 120 and max(steps) <= 10, steps
    box.daemon.kill()


@pytest.mark.stores("postgres")
def test_a_job_of_an_app_is_found_though_nobody_tells_of_it(box, provider):
    # C26: through a pooler no notification comes.
    users = {stores.DAEMON_USER: stores.DAEMON_PASSWORD}
    with PgBouncer(box.server, users) as bouncer:
        base = stores.database_of(box.url)
        box.url = box.server.url(base, stores.DAEMON_USER,
                                 stores.DAEMON_PASSWORD, bouncer.port)
        box.target("pay", provider).start("store.pooler=yes")
        # It has asked by then, and there was nothing.
        until(lambda: box.sql(
            "SELECT 1 FROM pg_stat_user_tables WHERE schemaname = 'latchkey'"
            " AND relname IN ('job', 'unfinished') AND idx_scan > 0"))
        for number in range(3):
            name = "acme", "s", "app-%d" % number
            (token,), = box.sql("SELECT token FROM latchkey.claim(%s, %s, %s,"
                                " 'f')", name)
            box.sql("SELECT latchkey.enqueue(%s, %s, %s, %s, 'charge', 'pay',"
                    " '/v1/charges', headers => 'Content-Type: "
                    "application/json', body => %s)",
                    (*name, token, charge("app")))
            box.wait_job(name[2])
        box.daemon.stop()
    assert len(provider.charges("app")) == 3


# ---- others die while the courier stands at a point ----

POINTS = ["after_lease", "courier_leased", "after_called",
          "courier_before_call", "courier_after_call", "after_end",
          "courier_recorded"]
# Where the key is honoured a call needs no mark before it.
CASES = [(point, honours) for honours in (True, False) for point in POINTS
         if not (honours and point == "after_called")]
JOBS, AT_ONCE = 12, 3


def is_stopped(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


def strike(box, provider, point, kill):
    """`kill` happens while the daemon stands at a point; then it goes on."""
    box.target("pay", provider, concurrency=AT_ONCE, attempts="1000").start(
        faults=())
    say(box, "PAUSE")
    keys = box.leave_many(JOBS, charge)
    box.daemon.set_faults("stop %s 2" % point)
    # It may be stopped before it can say that it has done so.
    box.operator.send("TARGET", "RESUME", "pay", "WHO", "t", "WHY", "t")
    until(lambda: is_stopped(box.daemon.pid))
    box.daemon.set_faults()
    kill()
    box.daemon.signal(signal.SIGCONT)
    box.reconnect()
    box.wait_settled()
    counts = check_books(box, provider, keys)
    if provider.honours:
        assert counts == {"delivered": JOBS}
    assert counts["uncertain"] <= 2 * AT_ONCE
    for job in box.jobs("STATE", "uncertain"):
        assert len(provider.calls(job["downstream-key"])) <= 1


@pytest.mark.parametrize("point,honours", CASES)
@pytest.mark.stores("postgres")
def test_a_database_killed_while_the_courier_stands_at_any_point(
        box, make_provider, postgres, point, honours):
    # C20, C27
    def kill():
        postgres.kill()
        postgres.start()
    strike(box, make_provider(honours=honours), point, kill)


@pytest.mark.parametrize("point,honours", CASES)
@pytest.mark.stores("sqlite")
def test_a_provider_killed_while_the_courier_stands_at_any_point(
        box, make_provider, point, honours):
    # C20, C27
    provider = make_provider(honours=honours)

    def kill():
        provider.kill()
        provider.start()
    strike(box, provider, point, kill)
