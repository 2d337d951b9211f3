"""A daemon on PostgreSQL: what it asks of the server, and shares with others.
"""

import shutil
import socket
import struct
import subprocess
import threading

import psycopg
import pytest

from support import build, courier_sql, schema, stores
from support.history import Race
from support.life import (FINGERPRINT, OTHER_FINGERPRINT, begin, claim,
                          complete, finish, name, new_key, refusal, until,
                          verdict)
from support.pgbouncer import PgBouncer
from support.postgres import Postgres
from support.proxy import REPLIES, Proxy
from support.resp import Raw, encode, fields

MINE = "application_name LIKE 'latchkeyd%'"


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


@pytest.fixture
def url(postgres):
    return stores.make_postgres(postgres)


def info(raw):
    return dict(line.split(":", 1) for line in
                raw("INFO").decode().split("\r\n") if ":" in line)


# ---- what it asks of the server ----

def test_without_the_schema_it_says_how_to_make_it(make_daemon, postgres):
    daemon = make_daemon(start=False, url=postgres.create_database())
    assert "latchkey migrate" in refusal(daemon)


def test_it_starts_while_its_server_is_away_and_connects_by_itself(
        make_daemon):
    # C19: what is asked of the server at a start is asked of it then, too.
    with Postgres(settings={"full_page_writes": "off"}) as server:
        url = server.create_database()
        server.kill()
        daemon = make_daemon(url=url, settings=["store.strict=yes"])
        raw, greeted = daemon.raw(), daemon.raw()
        assert raw("PING") == "PONG"
        assert fields(greeted("HELLO"))["store"] == b""
        assert "connection" in claim(raw, new_key())
        assert "connection" in info(raw)["trouble"]
        operator = daemon.raw(user="operator")
        for words in (("LIST",), ("VERIFY",), ("JOBS",), ("TARGET", "STATUS"),
                      ("LOOKUP", *name(new_key()))):
            assert operator(*words).code == "UNAVAILABLE", words
        server.start()
        for missing, mend in (
                ("full_page_writes", lambda: server.set(
                    "full_page_writes", "on")),
                ("latchkey migrate", lambda: stores.migrate(url))):
            until(lambda: missing in claim(raw, new_key()))
            mend()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert info(raw)["trouble"] == ""
        daemon.wait_for_log("event=store-available")
        # Who was greeted without the store's name has to ask for it again.
        assert greeted.at_end()
        daemon.stop()


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_a_server_that_may_lose_commits_is_refused_unless_it_is_wanted(
        make_daemon, setting):
    with Postgres(settings={setting: "off"}) as server:
        url = stores.make_postgres(server)
        daemon = make_daemon(start=False, url=url)
        assert setting in refusal(daemon)
        wanted = make_daemon(url=url, settings=["store.accept_loss=yes"])
        assert verdict(claim(wanted.raw(), new_key())) == "NEW"
        assert "los" in info(wanted.raw())["store_promise"]
        strict = make_daemon(start=False, url=url,
                             settings=["store.strict=yes"])
        refusal(strict)
        wanted.stop()


def test_a_role_that_does_not_wait_for_the_disk_is_refused(
        make_daemon, postgres):
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    postgres.query("ALTER ROLE %s IN DATABASE %s SET synchronous_commit = off"
                   % (stores.DAEMON_USER, base))
    assert "synchronous_commit" in refusal(make_daemon(start=False, url=url))


def test_a_durable_server_is_strict_enough(make_daemon, url):
    daemon = make_daemon(url=url, settings=["store.strict=yes"])
    assert verdict(claim(daemon.raw(), new_key())) == "NEW"


def test_a_promise_that_no_longer_holds_is_not_repeated(make_daemon):
    with Postgres() as server:
        url = stores.make_postgres(server)
        server.standby(sync=True)
        daemon = make_daemon(url=url, settings=["store.sweep_interval=20ms"])

        def promise():
            return info(daemon.raw())["store_promise"]

        assert "loss of the primary" in promise()
        server.set("synchronous_standby_names", "")
        until(lambda: "loss of the primary" not in promise())
        assert "power loss" in promise()
        until(lambda: "promises less" in daemon.log_text())
        assert "does not promise what it did" in daemon.cli("health").stdout
        daemon.stop()


@pytest.mark.parametrize("setting", ["full_page_writes", "fsync"])
def test_a_server_whose_settings_become_too_weak_is_not_used_any_more(
        make_daemon, setting):
    with Postgres() as server:
        daemon = make_daemon(url=stores.make_postgres(server), settings=[
            "store.strict=yes", "store.sweep_interval=20ms"])
        raw = daemon.raw()
        begin(raw, new_key())
        server.set(setting, "off")
        until(lambda: verdict(claim(raw, new_key()))
              .startswith("UNAVAILABLE"))
        until(lambda: setting in daemon.log_text())
        until(lambda: info(raw)["available"] == "0")
        server.set(setting, "on")
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        daemon.stop()


def test_a_standby_is_refused(make_daemon):
    with Postgres() as primary:
        base = stores.make_database(primary)
        standby = primary.standby()
        standby.wait_replayed()
        refusal(make_daemon(start=False, url=standby.url(
            base, stores.DAEMON_USER)))


# ---- logging in ----

def test_a_password_is_needed_and_never_told(make_daemon):
    with Postgres(auth="scram") as server:
        base = stores.make_database(server)
        daemon = make_daemon(url=server.url(base, stores.DAEMON_USER,
                                            stores.DAEMON_PASSWORD))
        finish(daemon.raw(), new_key())
        wrong = make_daemon(start=False, url=server.url(
            base, stores.DAEMON_USER, "quite wrong"))
        assert "password" in refusal(wrong)
        for one, secret in ((daemon, "s%20secret"), (daemon, "s secret"),
                            (wrong, "quite")):
            assert secret not in one.log_text()
        with open("/proc/%d/cmdline" % daemon.pid, "rb") as file:
            assert b"s%20secret" not in file.read()
        daemon.stop()


def make_certificate(server, which):
    """A certificate that vouches for itself; where it and its key are."""
    cert, key = (server.write("%s.%s" % (which, end), "")
                 for end in ("crt", "key"))
    server.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
               "-subj", "/CN=" + which, "-addext",
               "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
    return cert, key


def test_it_speaks_tls_and_checks_the_certificate(make_daemon):
    server = Postgres()
    cert, key = make_certificate(server, "right")
    other, _ = make_certificate(server, "other")
    server.settings.update(ssl="on", ssl_cert_file=cert, ssl_key_file=key)
    with server:
        url = stores.make_postgres(server) + "?sslmode=verify-ca&sslrootcert="
        daemon = make_daemon(url="%s%s" % (url, cert))
        finish(daemon.raw(), new_key())
        ways = server.query(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity"
            " USING (pid) WHERE " + MINE)
        assert ways == [(True,)]
        refusal(make_daemon(start=False, url="%s%s" % (url, other)))
        daemon.stop()


# ---- PgBouncer ----

def test_through_pgbouncer_several_daemons_have_one_history(
        make_daemon, postgres, tmp_path):
    # C01, C19, C20: fewer connections to the server than the daemons have
    users = {stores.DAEMON_USER: stores.DAEMON_PASSWORD}
    with PgBouncer(postgres, users,
                   settings={"default_pool_size": 3}) as bouncer:
        url = bouncer.url(stores.make_database(postgres), stores.DAEMON_USER)
        daemons = [make_daemon(url=url, settings=[
            "store.pooler=yes", "store.connections=3", "store.poll=50ms"])
            for _ in range(3)]
        with Race(daemons, tmp_path / "h") as race:
            race.go_on(2)
            assert all("event=store " not in line
                       for one in daemons for line in one.log)
            postgres.terminate_backends("usename = '%s'" % stores.DAEMON_USER)
            race.go_on(0.5)
            bouncer.kill()
            until(lambda: verdict(claim(daemons[0].raw(), new_key()))
                  .startswith("UNAVAILABLE"))
            bouncer.start()
            seen = race.finish()
        assert min(seen[word] for word in (
            "NEW", "REPLAY", "OK", "STALE", "UNAVAILABLE")) > 0, seen
        for daemon in daemons:
            daemon.stop()


@pytest.mark.parametrize("value", ["off", "local"])
def test_what_others_set_in_a_session_of_the_pooler_does_not_count(
        make_daemon, postgres, value):
    users = {stores.DAEMON_USER: stores.DAEMON_PASSWORD}
    with PgBouncer(postgres, users,
                   settings={"default_pool_size": 1}) as bouncer:
        url = bouncer.url(stores.make_database(postgres), stores.DAEMON_USER)
        with psycopg.connect(url, autocommit=True,
                             prepare_threshold=None) as other:
            other.execute("SET synchronous_commit = " + value)
            base = stores.database_of(url)
            postgres.query("""
                CREATE TABLE public.seen (value text);
                GRANT INSERT ON public.seen TO PUBLIC;
                CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN
                    INSERT INTO public.seen
                    VALUES (current_setting('synchronous_commit'));
                    RETURN NULL;
                END $$;
                CREATE TRIGGER look AFTER INSERT ON latchkey.operation
                FOR EACH ROW EXECUTE FUNCTION public.look()""", database=base)
            daemon = make_daemon(url=url, settings=["store.pooler=yes"])
            begin(daemon.raw(), new_key())
            assert postgres.query("SELECT DISTINCT value FROM public.seen",
                                  database=base) == [("on",)]
            daemon.stop()


def test_a_serializable_default_does_not_disturb_the_daemon(
        make_daemon, postgres):
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    postgres.query("""
        ALTER DATABASE %s SET default_transaction_isolation = serializable;
        CREATE TABLE public.seen (value text);
        GRANT INSERT ON public.seen TO PUBLIC;
        CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN
            INSERT INTO public.seen
            VALUES (current_setting('transaction_isolation'));
            RETURN NULL;
        END $$;
        CREATE TRIGGER look AFTER INSERT OR UPDATE ON latchkey.keeper
        FOR EACH ROW EXECUTE FUNCTION public.look()""" % base, database=base)
    make_daemon(url=url, settings=["store.sweep_interval=20ms"])
    assert until(lambda: postgres.query(
        "SELECT DISTINCT value FROM public.seen", database=base)) == [
            ("read committed",)]


def test_a_sweep_that_met_another_transaction_is_done_again(
        make_daemon, postgres):
    # Through a pooler the isolation is not the daemon's.
    users = {stores.DAEMON_USER: stores.DAEMON_PASSWORD}
    with PgBouncer(postgres, users) as bouncer:
        url = bouncer.url(stores.make_database(postgres), stores.DAEMON_USER)
        base = stores.database_of(url)
        postgres.query("""
            CREATE SEQUENCE public.turns;
            GRANT ALL ON public.turns TO PUBLIC;
            CREATE FUNCTION public.stumble() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN
                IF nextval('public.turns') % 3 < 2 THEN
                    RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
                END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER stumble AFTER INSERT OR UPDATE ON latchkey.keeper
            FOR EACH ROW EXECUTE FUNCTION public.stumble()""", database=base)
        daemon = make_daemon(url=url, settings=[
            "store.pooler=yes", "store.sweep_interval=20ms"])
        begin(daemon.raw(), new_key(), "LOCK", 1)
        until(lambda: postgres.value(
            "SELECT count(*) FROM latchkey.operation WHERE state = 3",
            database=base))
        assert "sweeper" not in daemon.log_text()
        daemon.stop()


# ---- a standby takes over ----

def hosts(base, *servers):
    return "postgres://%s:%s@%s/%s" % (
        stores.DAEMON_USER, stores.DAEMON_PASSWORD.replace(" ", "%20"),
        ",".join("%s:%d" % (one.address, one.port) for one in servers), base)


def test_what_is_acknowledged_survives_the_loss_of_the_primary(
        make_daemon, tmp_path):
    # C19, C20: with a synchronous standby that is promoted
    with Postgres() as primary:
        base = stores.make_database(primary)
        standby = primary.standby(sync=True)
        daemons = [make_daemon(url=hosts(base, primary, standby), settings=[
            "store.strict=yes", "store.timeout=2s",
            "store.connect_timeout=1s"]) for _ in range(2)]
        raw = daemons[0].raw()
        keys = [new_key() for _ in range(50)]
        tokens = [finish(raw, key, body=key.encode()) for key in keys]
        with Race(daemons, tmp_path / "h") as race:
            race.go_on(1)
            primary.kill()
            until(lambda: verdict(claim(raw, new_key()))
                  .startswith("UNAVAILABLE"))
            standby.promote()
            until(lambda: verdict(claim(raw, new_key())) == "NEW", 60)
            race.go_on(1)
            seen = race.finish()
        assert min(seen[word] for word in (
            "NEW", "REPLAY", "OK", "UNAVAILABLE")) > 0, seen
        for daemon in daemons:
            replies = [claim(daemon.raw(), key) for key in keys]
            assert [reply[3].decode() for reply in replies] == keys
        # A token that the old primary may have given is never given again.
        assert begin(raw, new_key()) > max(tokens) + 2 ** 31
        for daemon in daemons:
            daemon.stop()


WAITS = ("SELECT count(*) FROM pg_stat_activity"
         " WHERE wait_event = 'SyncRep' AND ")
CUT_SHORT = ("SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
             " WHERE wait_event = 'SyncRep'")


def cut_off(standby):
    """It has all until now, and hears of nothing more."""
    standby.wait_replayed()
    standby.query("ALTER SYSTEM SET primary_conninfo = ''")
    standby.query("SELECT pg_reload_conf()")
    until(lambda: not standby.query("SELECT 1 FROM pg_stat_wal_receiver"))


@pytest.mark.parametrize("how", ["cancelled", "crash"])
def test_a_claim_that_only_the_primary_has_is_not_acknowledged(
        make_daemon, how):
    # C20, C41: its commit was cut short while the standby was away. It is sent
    # again, and then the primary is lost: there is no second winner.
    with Postgres() as primary:
        base = stores.make_database(primary)
        standby = primary.standby(sync=True)
        raw, other = (make_daemon(url=hosts(base, primary, standby), settings=[
            "store.timeout=1s", "store.connect_timeout=1s"]).raw()
            for _ in range(2))
        key = new_key()
        cut_off(standby)
        raw.send("CLAIM", *name(key), FINGERPRINT, "OWNER", "first")
        until(lambda: primary.value(WAITS + MINE))
        if how == "crash":
            primary.kill()
            primary.start()
        else:
            until(lambda: primary.query(CUT_SHORT))
        replies = [raw.read()]
        until(lambda: primary.value("SELECT count(*) FROM latchkey.operation",
                                    database=base) == 1)
        # As soon as a daemon is connected, it waits for the standby again.
        until(lambda: replies.append(claim(other, key, "OWNER", "first")) or
              isinstance(replies[-1], list) or "not known" in replies[-1])
        primary.kill()
        standby.promote()
        until(lambda: replies.append(claim(raw, key, "OWNER", "second")) or
              isinstance(replies[-1], list), 60)
        assert [verdict(one) for one in replies
                if isinstance(one, list)] == ["NEW"]


def test_what_a_standby_may_not_have_is_acknowledged_once_it_has_it(
        make_daemon):
    # C20: whatever the answer rests on. (The standby is not there at first.)
    with Postgres() as server:
        base = stores.make_database(server)
        made = {"url": server.url(base, stores.DAEMON_USER), "settings": [
            "store.timeout=60s", "store.sweep_interval=1h",
            "target.t.url=http://127.0.0.1:1/", "courier.enabled=no",
            "courier.gateway=unix:/nowhere/gateway"]}
        raw = make_daemon(**made).raw()
        run, done, doubted = new_key(), new_key(), new_key()
        accept = ("ACCEPT", *name(new_key()), FINGERPRINT, "POST", "/", "", "")
        token = begin(raw, run, "OWNER", "mine")
        job = ("ENQUEUE", *name(run), token, "j", "t", "/", "DELAY", 3600000)
        answered = finish(raw, done, body=b"kept")
        doubt = ("DOUBT", *name(doubted), begin(raw, doubted), "lost")
        for command in (job, accept, doubt):
            raw(*command)
        for command, word in (
                (("CLAIM", *name(run), FINGERPRINT, "OWNER", "mine"), "NEW"),
                (("CLAIM", *name(done), FINGERPRINT), "REPLAY"),
                (("COMPLETE", *name(done), answered, 201, "", "kept"), "KEPT"),
                (accept, "ACCEPTED"), (doubt, "OK"), (job, "EXISTS"),
                (("LOOKUP", *name(done)), "tenant")):
            server.set("synchronous_standby_names", "nobody")
            if command[0] == "LOOKUP":  # what it says when it starts counts
                raw = make_daemon(**made).raw()
            raw.send(*command)
            until(lambda: server.value(WAITS + MINE))
            server.set("synchronous_standby_names", "")
            assert verdict(raw.read()) == word
        # What is not acknowledged does not wait.
        server.set("synchronous_standby_names", "nobody")
        assert verdict(claim(raw, run)) == "INFLIGHT"
        assert verdict(claim(raw, doubted)) == "UNCERTAIN"
        assert complete(raw, run, token + 1000) == "STALE"
        server.set("synchronous_standby_names", "")


# ---- what its holder has doubted ----

def test_a_doubt_of_its_holder_stands_for_its_owner_too(make_daemon, url):
    # C22
    raw, key = make_daemon(url=url).raw(), new_key()
    again = ("CLAIM", *name(key), FINGERPRINT, "OWNER", "mine")
    token = raw(*again)[1]
    assert raw("DOUBT", *name(key), token, "no answer") == "OK"
    for _ in range(2):
        assert raw(*again)[:2] == [b"UNCERTAIN", b"no answer"]
    # Also where several of one name are decided in one batch.
    raw.send_bytes(2 * encode(*again))
    assert [raw.read()[1] for _ in range(2)] == 2 * [b"no answer"]


# ---- a record that another transaction holds ----

def await_batches(raw, count):
    """Until so many more have been tried."""
    before = int(info(raw)["batches"])
    until(lambda: int(info(raw)["batches"]) >= before + count)


@pytest.mark.parametrize("apart", [False, True])
def test_commands_of_one_connection_keep_their_order_behind_a_lock(
        make_daemon, postgres, url, apart):
    daemon = make_daemon(url=url, settings=["store.sweep_interval=1h"])
    raw, other = daemon.raw(), daemon.raw()
    for number in range(5):
        key = new_key()
        done = encode("COMPLETE", *name(key), begin(raw, key), 201, "", "body")
        look = encode("CLAIM", *name(key), FINGERPRINT)
        with postgres.connect(stores.database_of(url),
                              autocommit=False) as holder:
            holder.execute("SELECT pg_advisory_xact_lock("
                           "latchkey.lock_id(%s, %s, %s))", name(key))
            raw.send_bytes(done if apart else done + look)
            await_batches(other, 1)
            if apart:
                raw.send_bytes(look)
            await_batches(other, 3)
        assert raw.read() == "OK"
        told = raw.read()
        # Busy, and nothing else known; but never as it was before.
        assert (verdict(told), told[-1]) == ("INFLIGHT", b"") or \
            told[3] == b"body", number


def test_a_command_that_cannot_wait_for_a_lock_is_told_which_record_it_is(
        make_daemon, postgres, url):
    # C19: so that a gateway does not take the daemon for cut off.
    daemon = make_daemon(url=url, settings=["store.sweep_interval=1h"])
    raw, key = daemon.raw(), new_key()
    done = encode("COMPLETE", *name(key), begin(raw, key), 201, "", "body")
    with postgres.connect(stores.database_of(url), autocommit=False) as holder:
        holder.execute("SELECT pg_advisory_xact_lock("
                       "latchkey.lock_id(%s, %s, %s))", name(key))
        raw.send_bytes(done)
        assert str(raw.read()).startswith("UNAVAILABLE RECORD another")


# ---- a server that is silent for a while ----

def test_a_lane_works_again_once_its_late_commit_turns_out_to_have_failed(
        make_daemon, postgres):
    base = stores.make_database(postgres)
    with Proxy(postgres) as proxy:
        daemon = make_daemon(
            url=postgres.url(base, stores.DAEMON_USER,
                             stores.DAEMON_PASSWORD, proxy.port),
            settings=["store.connections=1", "store.timeout=1s"])
        raw = daemon.raw()
        begin(raw, new_key())
        with postgres.connect(base, autocommit=False) as other:
            other.execute("LOCK TABLE latchkey.operation IN EXCLUSIVE MODE")
            proxy.freeze(REPLIES)
            assert not isinstance(claim(raw, new_key(), "OWNER", "a"), list)
            until(lambda: postgres.value(
                "SELECT count(*) FROM pg_stat_activity WHERE " + MINE +
                " AND state = 'idle in transaction (aborted)'"))
            other.rollback()
        proxy.thaw()
        # Well before the time after which a silent connection is given up.
        until(lambda: verdict(claim(raw, new_key())) == "NEW", 4)
        daemon.stop()


class Middleman:
    """Passes on, until it loses the server behind a commit and says so: as an
    error, not as the end of the session."""

    def __init__(self, server):
        self.target = (server.address, server.port)
        self.armed = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.target)
            for way in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=way,
                                 daemon=True).start()

    def pump(self, source, sink, asks):
        try:
            while data := source.recv(65536):
                if asks and self.armed and b"lk_commit" in data:
                    self.armed = False
                    self.lose(source, sink, data)
                    return
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()

    @staticmethod
    def lose(client, server, data):
        # What the server answers goes nowhere.
        body = b"SERROR\0VERROR\0C08006\0Mlost the server\0\0"
        client.sendall(b"E" + struct.pack("!I", len(body) + 4) + body)
        client.shutdown(socket.SHUT_RDWR)
        server.sendall(data)


def test_an_error_of_one_in_between_says_nothing_about_the_commit(
        make_daemon, postgres):
    base = stores.make_database(postgres)
    middle = Middleman(postgres)
    daemon = make_daemon(url=postgres.url(
        base, stores.DAEMON_USER, stores.DAEMON_PASSWORD, middle.port),
        settings=["store.connections=1"])
    raw = daemon.raw()
    begin(raw, new_key())
    middle.armed = True
    # It is committed, or will be: so it is asked for again, by its owner.
    begin(raw, new_key(), "OWNER", "me")
    assert not middle.armed
    middle.armed = True
    assert "not known" in verdict(claim(raw, new_key()))
    daemon.stop()


def test_it_is_available_again_though_nobody_asks(make_daemon, postgres):
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    daemon = make_daemon(url=url, settings=["store.sweep_interval=20ms"])
    raw = daemon.raw()

    def available():
        return info(raw)["available"] == "1"

    postgres.query("REVOKE INSERT ON latchkey.operation FROM latchkey_daemon",
                   database=base)
    assert not isinstance(claim(raw, new_key()), list)
    assert not available()
    postgres.query("GRANT INSERT ON latchkey.operation TO latchkey_daemon",
                   database=base)
    until(available)
    assert postgres.query("SELECT 1 FROM latchkey.operation",
                          database=base) == []


# ---- a Redis in front of it ----

class Cache:
    """What a daemon has put into a Redis, and what it says about that."""

    def __init__(self, make_daemon, redis_server, url, *settings):
        self.redis, prefix = redis_server.admin, new_key()
        self.begins = b"{%s}:answer:" % prefix.encode()
        self.daemon = make_daemon(url=url, settings=[
            "store.cache=" + redis_server.url(), "store.cache_timeout=10s",
            "store.prefix=" + prefix, "limits.cache_bytes=0", *settings])
        self.raw = self.daemon.raw()

    def tokens(self):
        found = self.redis.keys(self.begins + b"*")
        return {int(key.removeprefix(self.begins)) for key in found}

    def count(self, what):
        return int(info(self.raw)["shared_cache_" + what])


def test_the_first_retry_finds_its_answer_in_the_shared_cache(
        make_daemon, url, redis_server):
    # C02
    cache = Cache(make_daemon, redis_server, url)
    key = new_key()
    token = finish(cache.raw, key, 200, b"A: b\r\n", b"x")
    until(lambda: cache.tokens() == {token})
    told = claim(cache.raw, key)
    assert verdict(told) == "REPLAY" and told[1:4] == [200, b"A: b\r\n", b"x"]
    assert (cache.count("hits"), cache.count("misses")) == (1, 0)
    # Another request is still another request.
    assert verdict(claim(cache.raw, key, fingerprint=OTHER_FINGERPRINT)) == \
        "MISMATCH"
    cache.daemon.stop()


def test_replays_from_the_shared_cache_have_counters_of_their_own(
        make_daemon, url, redis_server):
    cache = Cache(make_daemon, redis_server, url)
    raw, operator = cache.raw, cache.daemon.raw(user="operator")
    key = new_key()
    token = finish(raw, key, 200, b"", b"x")
    until(lambda: cache.tokens() == {token})
    assert (cache.count("hits"), cache.count("misses")) == (0, 0)
    cache.redis.flushdb()

    def was_hit():
        assert claim(raw, key)[3] == b"x"
        return cache.count("hits")

    # The first one finds nothing there, and fills it.
    until(was_hit)
    assert cache.count("misses") >= 1 and cache.count("failed") == 0
    stats = operator("STATS")
    assert dict(zip(stats[::2], stats[1::2]))[b"shared-cache-hits"] >= 1
    assert operator("PING") == "PONG"


def test_what_is_not_known_to_be_completed_is_not_in_the_shared_cache(
        make_daemon, postgres, redis_server):
    base = stores.make_database(postgres)
    middle = Middleman(postgres)
    cache = Cache(make_daemon, redis_server, postgres.url(
        base, stores.DAEMON_USER, stores.DAEMON_PASSWORD, middle.port),
        "store.connections=1")
    raw = cache.raw

    doubtful = new_key()
    token = begin(raw, doubtful)
    middle.armed = True
    assert "not known" in verdict(complete(raw, doubtful, token, body=b"x"))
    assert not middle.armed

    def refused(key, token):
        return verdict(complete(raw, key, token, body=b"x")) != "OK"

    failed = new_key()
    until(lambda: verdict(claim(raw, failed, "OWNER", "me")) == "NEW")
    token = claim(raw, failed, "OWNER", "me")[1]
    postgres.query("REVOKE INSERT ON latchkey.answer FROM latchkey_daemon",
                   database=base)
    assert refused(failed, token)
    postgres.query("GRANT INSERT ON latchkey.answer TO latchkey_daemon",
                   database=base)
    assert refused(failed, token + 1000)

    # Answers go there in their order: the last one is the only one.
    key = new_key()
    until(lambda: verdict(claim(raw, key, "OWNER", "me")) == "NEW")
    token = claim(raw, key, "OWNER", "me")[1]
    assert complete(raw, key, token) == "OK"
    assert refused(key, token)
    until(cache.tokens)
    assert cache.tokens() == {token}
    cache.daemon.stop()


def test_a_completion_does_not_wait_for_the_shared_cache(
        make_daemon, url, redis_server):
    cache = Cache(make_daemon, redis_server, url)
    first = finish(cache.raw, new_key())
    until(lambda: cache.tokens() == {first})
    redis_server.pause()
    try:
        tokens = {finish(cache.raw, new_key()) for _ in range(3)}
        # To wait for it would end in a failure.
        assert cache.count("failed") == 0
    finally:
        redis_server.resume()
    until(lambda: cache.tokens() == {first, *tokens})
    cache.daemon.stop()


def test_an_evicted_answer_leaves_the_shared_cache_at_once(
        make_daemon, url, redis_server):
    # C35: even if it was still on its way there
    cache = Cache(make_daemon, redis_server, url)
    operator = cache.daemon.raw(user="operator")
    for _ in range(20):
        key = new_key()
        finish(cache.raw, key)
        assert operator("EVICT", *name(key), "WHO", "me", "WHY", "law") == "OK"
    last = finish(cache.raw, new_key())
    until(lambda: cache.redis.strlen(cache.begins + b"%d" % last))
    assert [token for token in cache.tokens() if cache.redis.strlen(
        cache.begins + b"%d" % token)] == [last]
    cache.daemon.stop()


def test_other_daemons_that_cannot_be_told_cost_little(make_daemon, postgres):
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    daemon = make_daemon(url=url)
    raw = daemon.raw()
    postgres.query("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text)"
                   " FROM PUBLIC", database=base)
    finish(raw, new_key())
    until(lambda: "pg_notify" in daemon.log_text())
    for _ in range(100):
        finish(raw, new_key())
    assert info(raw)["reopened"] == "0"
    assert daemon.log_text().count("pg_notify") == 1
    daemon.stop()


SILENT_NAMES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>
int getaddrinfo(const char *name, const char *service,
                const struct addrinfo *hints, struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *,
                struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    int asks = !hints || !(hints->ai_flags & AI_NUMERICHOST);
    while (asks && !access(getenv("SILENT_NAMES"), F_OK)) {
        usleep(10000);
    }
    return real(name, service, hints, found);
}
"""


@pytest.mark.skipif(build.is_sanitized() or not shutil.which("cc"),
                    reason="needs a compiler, and a program without checks")
def test_a_name_server_that_is_silent_holds_nothing_up(
        make_daemon, postgres, tmp_path, monkeypatch):
    base = stores.make_database(postgres)
    source, library = tmp_path / "names.c", tmp_path / "names.so"
    source.write_text(SILENT_NAMES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source],
                   check=True)
    silent = tmp_path / "silent"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SILENT_NAMES", str(silent))
    daemon = make_daemon(url=postgres.url(base, stores.DAEMON_USER).replace(
        "127.0.0.1", "localhost"), settings=["store.connections=1"])
    monkeypatch.delenv("LD_PRELOAD")
    raw = daemon.raw()
    begin(raw, new_key())
    silent.touch()
    postgres.terminate_backends(MINE)
    # Where the server was, it still is.
    until(lambda: verdict(claim(raw, new_key())) == "NEW")
    postgres.restart()
    until(lambda: verdict(claim(raw, new_key())) == "NEW")
    silent.unlink()
    daemon.stop()


# ---- sweeper and reaper ----

COUNT_REAPED = """
CREATE TABLE public.reaped (backend int, rows int);
CREATE FUNCTION public.count_reaped() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.reaped
    SELECT pg_backend_pid(), count(*) FROM gone HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER count_reaped AFTER DELETE ON latchkey.operation
REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION public.count_reaped();
"""


def expire(daemon, count):
    """So many operations that are over as soon as they are done."""
    names = [name(new_key(), tenant="chaff") for _ in range(count)]
    with Raw(daemon.address, 20 * build.patience()) as raw:
        raw.send_bytes(b"".join(encode("CLAIM", *one, FINGERPRINT)
                                for one in names))
        tokens = [raw.read()[1] for _ in names]
        raw.send_bytes(b"".join(
            encode("COMPLETE", *one, token, 200, "", "x", "TTL", 1)
            for one, token in zip(names, tokens)))
        assert {raw.read() for _ in names} == {"OK"}


class Claimant(threading.Thread):
    """Claims new keys, one after the other, as long as it is let."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.raw = daemon.raw()
        self.enough = threading.Event()
        self.seen = []

    def run(self):
        while not self.enough.is_set():
            self.seen.append(verdict(claim(self.raw, new_key())))

    def finish(self):
        self.enough.set()
        self.join()
        return self.seen


def test_one_daemon_reaps_in_steps_while_claims_go_on(make_daemon, postgres):
    # C25: and when it dies, another one does
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    postgres.query(COUNT_REAPED, database=base)
    daemons = [make_daemon(url=url, settings=[
        "store.sweep_interval=20ms", "store.reap_rows=16"]) for _ in range(3)]

    def reaped(number):
        return int(info(daemons[number].raw())["reaped"])

    def value(text):
        return postgres.value(text, database=base)

    def dead():
        return value("SELECT count(*) FROM latchkey.operation"
                     " WHERE tenant = 'chaff'")

    claimants = [Claimant(daemon) for daemon in daemons]
    for claimant in claimants:
        claimant.start()
    for daemon in daemons:
        expire(daemon, 200)
    until(lambda: dead() == 0, 60)
    assert value("SELECT count(*) FROM latchkey.answer") == 0
    counts = [reaped(number) for number in range(3)]
    assert sorted(counts) == [0, 0, 600], counts
    assert value("SELECT count(DISTINCT backend) FROM public.reaped") == 1
    assert value("SELECT max(rows) FROM public.reaped") <= 16
    assert value("SELECT sum(rows) FROM public.reaped") == 600
    for claimant in claimants:
        seen = claimant.finish()
        assert len(seen) > 20 and set(seen) == {"NEW"}
    keeper = counts.index(600)
    daemons[keeper].kill()
    others = [number for number in range(3) if number != keeper]
    expire(daemons[others[0]], 100)
    until(lambda: dead() == 0, 60)
    counts = [reaped(number) for number in others]
    assert sorted(counts) == [0, 100], counts


def test_what_a_dead_daemon_held_is_swept_by_another(make_daemon, url):
    # C22
    ours, other = (make_daemon(url=url, settings=[
        "store.sweep_interval=20ms"]) for _ in range(2))
    key = new_key()
    begin(ours.raw(), key, "LOCK", 100)
    ours.kill()
    reply = other.raw()("CLAIM", *name(key), FINGERPRINT, "WAIT", 60000)
    assert verdict(reply) == "UNCERTAIN"


def test_a_reaper_that_fails_does_not_stop_the_sweeper(make_daemon, postgres):
    # C22
    url = stores.make_postgres(postgres)
    base = stores.database_of(url)
    postgres.query("""
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
        CREATE TRIGGER refuse BEFORE DELETE ON latchkey.operation
        FOR EACH ROW EXECUTE FUNCTION public.refuse()""", database=base)
    daemon = make_daemon(url=url, settings=["store.sweep_interval=20ms"])
    expire(daemon, 1)
    until(lambda: "not today" in daemon.log_text())
    begin(daemon.raw(), new_key(), "LOCK", 1)
    until(lambda: postgres.value("SELECT count(*) FROM latchkey.operation"
                                 " WHERE state = 3", database=base))
    # It is tried once a turn, however much there is to do, and told once.
    assert daemon.log_text().count("not today") == 1


def test_the_lease_is_short_so_that_another_daemon_keeps_soon(
        make_daemon, postgres):
    # C22, C25: three turns, but at least three seconds
    left = "SELECT until_ms - latchkey.now_ms() FROM latchkey.keeper"
    for interval, least, most in (("20ms", -1, 3000), ("1500ms", 3000, 60000)):
        url = stores.make_postgres(postgres)
        base = stores.database_of(url)
        daemon = make_daemon(url=url,
                             settings=["store.sweep_interval=" + interval])
        until(lambda: postgres.query(left, database=base))
        until(lambda: postgres.value(left, database=base) > least)
        assert postgres.value(left, database=base) <= most
        daemon.stop()


# ---- the schema ----

def test_migrating_twice_and_by_two_at_once_is_safe(make_daemon, postgres):
    url = postgres.create_database()
    program = str(build.BUILD / "latchkey")
    both = [subprocess.Popen([program, "migrate", url],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True) for _ in range(2)]
    for one in both:
        printed, _ = one.communicate(timeout=60 * build.patience())
        assert one.returncode == 0, printed
    daemon = make_daemon(url=url)
    raw, key = daemon.raw(), new_key()
    token = begin(raw, key)
    stores.migrate(url)
    assert complete(raw, key, token, 200, b"", b"x") == "OK"


FUNCTIONS = ("SELECT p.oid::regprocedure::text, md5(p.prosrc), p.proacl::text"
             " FROM pg_proc p WHERE pronamespace = 'latchkey'::regnamespace"
             " ORDER BY 1")


def test_the_printed_schema_is_the_one_that_migrate_makes(postgres):
    url = postgres.create_database()
    stores.migrate(url)
    printed = stores.run_latchkey("migrate", "--print").stdout
    other_base = stores.database_of(postgres.create_database())
    postgres.query(printed, database=other_base)
    base = stores.database_of(url)
    functions = postgres.query(FUNCTIONS, database=base)
    assert len(functions) > 40
    for name in (base, other_base):
        assert postgres.query(FUNCTIONS, database=name) == functions
        version, = postgres.query("SELECT value FROM latchkey.meta"
                                  " WHERE name = 'version'", database=name)
        assert version == ("1",)
        with postgres.connect(name) as connection:
            token = schema.claim_new(connection, "k")
            connection.execute(
                "SELECT latchkey.enqueue('t', 's', 'k', %s, 'mail', 'mailer',"
                " '/', body => 'old')", (token,))
            courier = courier_sql.Courier(connection)
            job = courier.take("mailer")
            assert (job.name, job.key, job.body) == ("mail", "k", b"old")
            assert courier.finish(job) == courier_sql.DONE
    later = stores.run_latchkey("migrate", "--print", "--from", "1").stdout
    assert "CREATE TABLE" in printed and "CREATE TABLE" not in later


# Parts of the functions for apps: no one but the owner calls them.
INTERNAL = {"take_text", "take_key", "take_ms", "take_token", "take_headers",
            "path_fault", "method_fault", "headers_fault", "target_fault",
            "refuse", "as_time", "be_durable", "hold", "raise_stale",
            "by_token", "own"}


def callers(postgres, base):
    """(name, with the rights of its owner, who else may call it) of each."""
    return postgres.query(
        "SELECT p.proname, p.prosecdef, array(SELECT CASE a.grantee WHEN 0"
        " THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END"
        " FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE a.grantee <> p.proowner)"
        " FROM pg_proc p WHERE p.pronamespace = 'latchkey'::regnamespace",
        database=base)


def test_functions_are_for_the_daemon_or_for_apps_and_never_for_the_public(
        postgres):
    base = stores.database_of(stores.make_postgres(postgres))
    granted = callers(postgres, base)
    apps = {name for name, for_apps, _ in granted if for_apps}
    assert apps == {"claim", "complete", "release", "doubt", "extend", "keep",
                    "fence", "enqueue", "lookup"}
    assert INTERNAL <= {name for name, _, _ in granted}
    for name, for_apps, roles in granted:
        assert roles == ([] if name in INTERNAL else ["latchkey_app"]
                         if for_apps else ["latchkey_daemon"]), name


def test_a_function_that_comes_later_is_callable_by_no_one_by_default(postgres):
    base = stores.database_of(stores.make_postgres(postgres))
    before = callers(postgres, base)
    made = """
        CREATE FUNCTION latchkey.later_mighty() RETURNS void LANGUAGE sql
        SECURITY DEFINER AS 'DELETE FROM latchkey.audit';
        CREATE FUNCTION latchkey.later_plain() RETURNS void LANGUAGE sql AS '';
        CREATE PROCEDURE latchkey.later_procedure() LANGUAGE sql
        SECURITY DEFINER AS 'DELETE FROM latchkey.audit';
        GRANT EXECUTE ON FUNCTION latchkey.later_plain() TO latchkey_app;"""
    grants = schema.SQL / "07_grants.sql"
    postgres.query("BEGIN; %s %s COMMIT" % (made, grants.read_text()),
                   database=base)
    assert sorted(callers(postgres, base)) == sorted(before + [
        ("later_mighty", True, []),
        ("later_plain", False, ["latchkey_daemon"]),
        ("later_procedure", True, [])])
