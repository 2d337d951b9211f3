"""The servers and networks that other tests stand on do what they say."""

import socket
import subprocess

import psycopg
import pytest
import redis

from support.build import patience
from support.hosts import Hosts
from support.life import until
from support.pgbouncer import PgBouncer
from support.postgres import Postgres
from support.proxy import REPLIES, Proxy
from support.redis_server import RedisServer, Sentinel


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


@pytest.fixture
def database(postgres):
    """The URL of a database with one empty table."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE rows (x int)")
    return url


@pytest.fixture
def proxy(postgres):
    with Proxy(postgres) as proxy:
        yield proxy


def connect(url, **options):
    return psycopg.connect(url, connect_timeout=20 * patience(), **options)


def rows(url):
    with connect(url) as connection:
        return [x for x, in connection.execute("SELECT x FROM rows ORDER BY x")]


def is_lost(connection):
    """The next answer does not come, as the connection is over."""
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    return connection.closed


# ---- PostgreSQL ----

def test_a_postgres_that_is_killed_keeps_what_was_committed():
    with Postgres() as server:
        server.query("CREATE TABLE rows (x int)")
        server.query("INSERT INTO rows VALUES (1)")
        open_one = server.connect(autocommit=False)
        open_one.execute("INSERT INTO rows VALUES (2)")
        before = set(server.processes())
        assert len(before) > 3
        server.kill()
        assert not server.is_running()
        server.start()
        assert not before & set(server.processes())
        assert server.query("SELECT x FROM rows") == [(1,)]
        assert is_lost(open_one)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_postgres_that_is_stopped_starts_again_with_its_rows(mode):
    with Postgres() as server:
        server.query("CREATE TABLE rows AS SELECT 7 AS x")
        server.restart(mode)
        assert server.psql("SELECT x FROM rows") == "7\n"


def test_a_postgres_is_durable_unless_told_otherwise(postgres):
    assert postgres.value("SHOW fsync") == "on"
    assert postgres.value("SHOW synchronous_commit") == "on"
    assert postgres.value("SHOW server_encoding") == "UTF8"
    with Postgres(settings={"fsync": "off"}) as other:
        assert other.value("SHOW fsync") == "off"


def test_scram_lets_nobody_in_without_the_password():
    with Postgres(auth="scram", password="it's 50%") as server:
        connect(server.url()).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            connect(server.url(password="wrong"))


def test_backends_are_terminated_by_choice(postgres, database):
    ours, other = connect(database, autocommit=True), connect(database)
    ours.execute("SET application_name = 'ours'")
    assert postgres.terminate_backends("application_name = 'ours'") == 1
    assert is_lost(ours)
    assert other.execute("SELECT 1").fetchone() == (1,)
    other.close()


def test_a_setting_counts_from_when_it_is_set(postgres):
    postgres.set("work_mem", "5MB")
    assert postgres.value("SHOW work_mem") == "5MB"


def test_a_synchronous_standby_has_every_commit_and_takes_over():
    with Postgres() as primary:
        primary.query("CREATE TABLE rows (x int)")
        standby = primary.standby(sync=True)
        for x in range(20):
            primary.query("INSERT INTO rows VALUES (%s)", (x,))
        primary.kill()
        standby.promote()
        assert standby.value("SELECT count(*) FROM rows") == 20
        standby.query("INSERT INTO rows VALUES (20)")


def test_no_commit_returns_while_a_synchronous_standby_is_paused():
    with Postgres() as primary:
        primary.query("CREATE TABLE rows (x int)")
        standby = primary.standby(sync=True)
        standby.pause()
        with primary.connect(options="-c statement_timeout=0") as connection:
            connection.pgconn.send_query(b"INSERT INTO rows VALUES (1)")
            until(lambda: primary.query(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            standby.resume()
            assert connection.pgconn.get_result().command_status == (
                b"INSERT 0 1")
            assert connection.pgconn.get_result() is None
        standby.wait_replayed()
        assert standby.query("SELECT x FROM rows") == [(1,)]


def test_a_standby_that_is_not_synchronous_follows():
    with Postgres(auth="scram") as primary:
        standby = primary.standby(sync=False)
        primary.query("CREATE TABLE rows AS SELECT 3 AS x")
        standby.wait_replayed()
        assert standby.query("SELECT x FROM rows") == [(3,)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.query("INSERT INTO rows VALUES (4)")


# ---- PgBouncer ----

def test_pgbouncer_gives_each_transaction_any_connection():
    with Postgres() as server, PgBouncer(
            server, settings={"default_pool_size": 1}) as bouncer:
        clients = [connect(bouncer.url(), prepare_threshold=None)
                   for _ in range(3)]
        backends = set()
        for client in clients * 2:
            backends.add(client.execute(
                "SELECT pg_backend_pid()").fetchone())
            client.commit()
        assert len(backends) == 1
        assert ("postgres", "postgres", "transaction") in [
            (pool[0], pool[1], pool[-1])
            for pool in bouncer.admin("SHOW POOLS")]
        for client in clients:
            client.close()


def test_pgbouncer_asks_for_a_password_where_postgres_does():
    with Postgres(auth="scram") as server, PgBouncer(server) as bouncer:
        connect(bouncer.url()).close()
        with pytest.raises(psycopg.OperationalError, match="password|auth"):
            connect(bouncer.url(password="wrong"))
        bouncer.kill()
        with pytest.raises(psycopg.OperationalError):
            connect(bouncer.url())
        bouncer.start()
        connect(bouncer.url()).close()
        bouncer.stop()


# ---- Redis ----

def test_a_redis_that_is_killed_keeps_what_it_has_logged():
    with RedisServer(appendonly=True, appendfsync="always") as server:
        server.client().set("key", "kept")
        server.kill()
        server.start()
        assert server.client().get("key") == b"kept"
        server.restart()
        assert server.client().get("key") == b"kept"


def test_a_redis_without_a_log_forgets():
    with RedisServer(maxmemory_policy="allkeys-lru") as server:
        server.client().set("key", "lost")
        server.kill()
        server.start()
        assert server.client().get("key") is None
        assert server.client().config_get("maxmemory-policy") == {
            "maxmemory-policy": "allkeys-lru"}


def test_a_paused_redis_answers_once_it_is_resumed():
    with RedisServer() as server:
        client = redis.Redis.from_url(server.url(), socket_timeout=0.2)
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert server.client().ping()


def test_a_redis_knows_its_users():
    with RedisServer(requirepass="p@ss", users=[
            "app on >secret ~lk:* &* +@all -@dangerous"]) as server:
        assert redis.Redis.from_url(server.url()).ping()
        app = redis.Redis.from_url(server.url("app", "secret"))
        assert app.set("lk:1", "x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            app.set("other", "x")
        with pytest.raises(redis.ResponseError, match="WRONGPASS"):
            redis.Redis.from_url(server.url("app", "wrong")).ping()


def test_a_replica_follows_and_can_be_promoted():
    with RedisServer() as server:
        server.client().set("key", 1)
        replica = server.replica()
        server.client().set("key", 2)
        server.wait_replicated()
        assert replica.client().get("key") == b"2"
        with pytest.raises(redis.exceptions.ReadOnlyError):
            replica.client().set("key", 3)
        server.kill()
        assert replica.promote().client().set("key", 3)


def test_a_sentinel_makes_the_replica_lead_when_the_primary_dies():
    with RedisServer(requirepass="secret") as server:
        replica = server.replica()
        with Sentinel(server) as sentinel:
            assert sentinel.leader() == (server.address, server.port)
            server.kill()
            assert sentinel.wait_failover() is replica
            assert replica.client().set("key", 1)


# ---- a proxy before PostgreSQL ----

def commit_simple(connection):
    connection.pgconn.exec_(b"COMMIT")


def commit_prepared(connection):
    connection.pgconn.prepare(b"done", b"COMMIT")
    connection.pgconn.exec_prepared(b"done", None)


def commit_unnamed(connection):
    connection.pgconn.exec_params(b"commit", None)


def commit_together(connection):
    connection.pgconn.exec_(b"INSERT INTO rows VALUES (8); COMMIT;")


COMMITS = [commit_simple, commit_prepared, commit_unnamed, commit_together]


def begin(proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    connection.pgconn.exec_(b"BEGIN")
    connection.pgconn.exec_params(b"INSERT INTO rows VALUES (7)", None)
    return connection


@pytest.mark.parametrize("commit", COMMITS)
def test_an_answer_to_a_commit_is_lost_and_the_row_is_there(
        proxy, database, commit):
    connection = begin(proxy, database)
    strike = proxy.cut_after_commit()
    commit(connection)
    assert is_lost(connection)
    # It had happened before the client was cut.
    assert rows(database)[0] == 7
    assert strike.count == proxy.struck["after_commit"] == 1


@pytest.mark.parametrize("commit", COMMITS)
def test_a_commit_that_never_arrives_leaves_no_row(
        postgres, proxy, database, commit):
    connection = begin(proxy, database)
    backend = connection.info.backend_pid
    proxy.cut_before_commit()
    commit(connection)
    assert is_lost(connection)
    until(lambda: not postgres.query(
        "SELECT 1 FROM pg_stat_activity WHERE pid = %s", (backend,)))
    assert rows(database) == []
    assert proxy.struck["before_commit"] == 1


def test_a_strike_hits_the_commit_that_was_meant(proxy, database):
    strike = proxy.cut_after_commit(n=2, skip=1)
    for x in range(4):
        connection = connect(proxy.through(database))
        connection.execute("INSERT INTO rows VALUES (%s)", (x,))
        if x in (1, 2):
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        else:
            connection.commit()
            connection.close()
    assert rows(database) == [0, 1, 2, 3]
    assert strike.count == 2


def test_of_commits_in_a_pipeline_the_one_that_is_lost_is_the_last(
        proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    proxy.cut_after_commit(skip=2)
    wire = connection.pgconn
    wire.enter_pipeline_mode()
    for x in range(20):
        for text in ("BEGIN", "INSERT INTO rows VALUES (%d)" % x, "COMMIT"):
            wire.send_query_params(text.encode(), None)
        wire.pipeline_sync()
    # Nothing behind it was passed on to the server.
    until(lambda: proxy.struck["after_commit"])
    connection.close()
    assert rows(database) == [0, 1, 2]


def test_a_commit_that_rolls_back_is_answered(proxy, database):
    connection = begin(proxy, database)
    connection.pgconn.exec_(b"SELECT 1 / 0")
    strike = proxy.cut_after_commit()
    assert connection.pgconn.exec_(b"COMMIT").command_status == b"ROLLBACK"
    assert strike.count == 0
    connection.pgconn.exec_(b"BEGIN")
    connection.pgconn.exec_(b"INSERT INTO rows VALUES (9)")
    commit_simple(connection)
    assert is_lost(connection)
    assert strike.count == 1 and rows(database) == [9]


def test_a_statement_that_commits_by_itself_can_be_struck(proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    proxy.cut_after_commit(matching="^INSERT")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO rows VALUES (%s)", (5,))
    assert rows(database) == [5]


def test_connections_that_are_cut_are_gone_and_new_ones_work(
        proxy, database):
    lost = [connect(proxy.through(database), autocommit=True)
            for _ in range(3)]
    assert proxy.cut() == 3
    assert all(map(is_lost, lost))
    assert rows(proxy.through(database)) == []


def test_a_proxy_that_refuses_lets_those_who_are_there_go_on(proxy, database):
    there = connect(proxy.through(database))
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect(proxy.through(database))
    assert proxy.refused == 1
    assert there.execute("SELECT 1").fetchone() == (1,)
    there.close()
    proxy.refuse(False)
    assert rows(proxy.through(database)) == []


def test_frozen_replies_hide_what_the_server_does(proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    proxy.freeze(REPLIES)
    connection.pgconn.send_query(b"INSERT INTO rows VALUES (6)")
    until(lambda: rows(database) == [6] and proxy.waiting == 1)
    connection.pgconn.consume_input()
    assert connection.pgconn.is_busy()
    proxy.thaw()
    assert connection.pgconn.get_result().command_status == b"INSERT 0 1"
    connection.close()


def test_frozen_bytes_arrive_once_it_thaws(proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    proxy.freeze()
    connection.pgconn.send_query(b"INSERT INTO rows VALUES (6)")
    until(lambda: proxy.waiting == 1)
    assert rows(database) == []
    proxy.thaw()
    assert connection.pgconn.get_result().command_status == b"INSERT 0 1"
    assert rows(database) == [6]
    connection.close()


def test_a_delayed_answer_comes_late(proxy, database):
    connection = connect(proxy.through(database), autocommit=True)
    proxy.delay(3600)
    connection.pgconn.send_query(b"INSERT INTO rows VALUES (6)")
    until(lambda: proxy.waiting == 1)
    assert rows(database) == []
    proxy.delay(0.01)
    assert connection.pgconn.get_result().command_status == b"INSERT 0 1"
    assert rows(database) == [6]
    connection.close()


def test_a_proxy_leads_elsewhere_when_told_to(proxy):
    with Postgres() as other:
        other.query("CREATE TABLE here AS SELECT 1 AS x")
        proxy.retarget(other)
        with connect(proxy.through(other.url())) as connection:
            assert connection.execute("TABLE here").fetchall() == [(1,)]


# ---- a proxy before Redis ----

def test_a_reply_of_redis_is_lost_and_its_work_is_done():
    with RedisServer() as server, Proxy(server) as proxy:
        client = redis.Redis.from_url(proxy.through(server.url()))
        client.ping()
        strike = proxy.cut_after_reply_lost(matching=b"INCR")
        client.ping()
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert strike.count == proxy.struck["reply_lost"] == 1
        assert server.client().get("n") == b"1"
        assert client.incr("n") == 2


# ---- hosts ----

def test_hosts_reach_each_other_unless_they_are_cut_off():
    with Hosts() as hosts:
        a, b = hosts.add("a"), hosts.add("b")
        with b.listen(5000) as listener, \
                a.connect(b.address, 5000) as client:
            server, peer = listener.accept()
            assert peer[0] == a.address
            b.cut()
            client.sendall(b"x")
            server.settimeout(0.3)
            with pytest.raises(TimeoutError):
                server.recv(1)
            b.heal()
            server.settimeout(60 * patience())
            assert server.recv(1) == b"x"
            server.close()
            with socket.create_server((hosts.join(), 5001)) as ours:
                a.connect(*ours.getsockname()).close()


def test_a_command_runs_on_the_host_that_it_is_told():
    with Hosts() as hosts:
        host = hosts.add("a")
        process = host.run(["ip", "-4", "-br", "address"],
                           stdout=subprocess.PIPE, text=True)
        assert host.address in process.communicate()[0]
        sleeper = host.run(["sleep", "infinity"])
    assert sleeper.poll() is not None


def test_servers_run_on_hosts():
    with Hosts() as hosts:
        a, b = hosts.add("a"), hosts.add("b")
        with Postgres(host=a) as primary, RedisServer(host=a) as server:
            standby = primary.standby(host=b)
            primary.query("CREATE TABLE rows AS SELECT 1 AS x")
            standby.wait_replayed()
            replica = server.replica(host=b)
            assert replica.client().info("replication")["master_host"] == (
                a.address)
            with b.inside(), connect(primary.url()) as connection:
                assert connection.execute(
                    "SELECT host(inet_client_addr()),"
                    " host(inet_server_addr())").fetchone() == (
                        b.address, a.address)
