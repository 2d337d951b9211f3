"""The Redis store: what it asks of the server, and what it survives."""

import contextlib
import pathlib
import re
import socket
import subprocess
import threading

import pytest

from support import build, stores
from support.life import (FINGERPRINT, begin, claim, complete, finish, name,
                          new_key, refusal, until, verdict)
from support.proxy import Proxy
from support.redis_server import RedisServer, Sentinel
from support.resp import Error, fields

LIBRARY = build.BUILD / "gen/lua/latchkey.lua"
# The line that store/redis.c documents.
RIGHTS = re.sub(r"\s*\n \*\s+", " ", re.search(
    r"ACL SETUSER latchkey (on .*?)\n \*\n",
    (build.ROOT / "store/redis.c").read_text(), re.DOTALL).group(1))
QUICK = ["store.timeout=%ds" % build.patience(),
         "store.connect_timeout=%dms" % (500 * build.patience())]
NO_FUNCTIONS = {"rename-command": [("FUNCTION", ""), ("FCALL", "")]}


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendonly=True) as made:
        yield made


@pytest.fixture
def prefix():
    return stores.make_prefix()


@pytest.fixture
def on(make_daemon, prefix):
    """A daemon on that server, with keys of its own."""
    def make(server, *settings, **options):
        url = server if isinstance(server, str) else server.url()
        return make_daemon(url=url, settings=[
            "store.prefix=" + prefix, *settings], **options)
    return make


def info(raw):
    return dict(line.split(":", 1) for line in
                raw("INFO").decode().split("\r\n") if ":" in line)


def is_unavailable(reply):
    return isinstance(reply, Error) and reply.code == "UNAVAILABLE"


def surely(ask, *words):
    """Sent again while Redis is out of reach: its timeouts are short here."""
    replies = []

    def answered():
        replies.append(ask(*words))
        return not is_unavailable(replies[-1])
    until(answered)
    return replies[-1]


def keys_of(server, prefix="*"):
    return sorted(key.decode(errors="surrogateescape")
                  for key in server.admin.keys(prefix))


def records_of(server, prefix):
    return [key for key in keys_of(server) if
            key.startswith("{%s}:r:" % prefix)]


def works(raw):
    """The whole life of a key, and what is seen of it."""
    key = new_key()
    assert verdict(claim(raw, key, "NONEW")) == "REFUSED"
    token = begin(raw, key, "OWNER", "o")
    assert begin(raw, key, "OWNER", "o") == token
    assert verdict(claim(raw, key)) == "INFLIGHT"
    assert fields(raw("LOOKUP", *name(key)))["state"] == b"in_progress"
    assert complete(raw, key, token, body=b"body") == "OK"
    assert claim(raw, key)[:4] == [b"REPLAY", 201, b"", b"body"]
    return key


# ---- settings of the server ----

@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(make_daemon, policy):
    with RedisServer(maxmemory="100mb", maxmemory_policy=policy) as server:
        text = refusal(make_daemon(start=False, url=server.url()))
    assert policy in text and "noeviction" in text


def test_a_server_that_begins_to_evict_is_left_alone(on):
    with RedisServer() as server:
        daemon = on(server)
        raw = daemon.raw()
        works(raw)
        server.set("maxmemory_policy", "allkeys-lru")
        until(lambda: is_unavailable(claim(raw, new_key())), 60, 0.2)
        daemon.wait_for_log("noeviction")
        server.set("maxmemory_policy", "noeviction")
        until(lambda: verdict(claim(raw, new_key())) == "NEW")


@pytest.mark.parametrize("options, words", [
    ({"appendonly": True, "appendfsync": "everysec"}, "the last second"),
    ({"appendonly": True, "appendfsync": "always"}, "on a failover"),
    ({"save": "3600 1"}, "its last snapshot"),
    ({}, "everything when Redis stops"),
])
def test_the_weaker_promise_is_told_at_the_start_and_in_info(
        on, options, words):
    with RedisServer(**options) as server:
        daemon = on(server)
        told = daemon.wait_for_log("event=store-open")
        promise = info(daemon.raw())["store_promise"]
        assert words in told and words in promise
        assert "may then run twice" in promise
        assert (" crash" in promise or " stops" in promise) == (
            options.get("appendfsync") != "always")


def test_no_append_only_file_is_warned_of_unless_it_is_wanted(on):
    with RedisServer() as server:
        on(server).wait_for_log("no append-only file")
        wanted = on(server, "store.accept_loss=yes")
        assert "append-only" not in wanted.log_text()


def test_a_server_without_memory_says_so_and_recovers(on):
    with RedisServer(maxmemory="100mb") as server:
        raw = on(server).raw()
        key = works(raw)
        server.set("maxmemory", "1")
        refused = claim(raw, new_key())
        assert is_unavailable(refused) and "out of memory" in refused
        assert raw("LOOKUP", *name(key))
        server.set("maxmemory", "100mb")
        assert verdict(claim(raw, new_key())) == "NEW"


# ---- what is stored ----

def test_only_what_is_finished_expires_and_nothing_is_outside_the_prefix(
        on, prefix):
    with RedisServer() as server:
        raw = on(server).raw(user="operator")
        open_key, doubted, done, released = (new_key() for _ in range(4))
        begin(raw, open_key, "TTL", 60000)
        raw("DOUBT", *name(doubted), begin(raw, doubted, "TTL", 60000), "why")
        finish(raw, done, options=("TTL", 60000))
        raw("RELEASE", *name(released), begin(raw, released, "TTL", 60000))
        ttls = {key.rpartition("POST /payments")[2]: server.admin.pttl(key)
                for key in records_of(server, prefix)}
        assert ttls[open_key] == ttls[doubted] == -1
        # Redis waits a second longer, so that it never forgets first.
        assert 50000 < ttls[done] <= 61000
        assert 50000 < ttls[released] <= 61000
        assert all(key.startswith("{%s}:" % prefix)
                   for key in keys_of(server))


def test_one_name_is_one_record_whatever_its_bytes(on, server):
    raw = on(server).raw()
    names = [(b"a", b"bc", b"d"), (b"ab", b"c", b"d"), (b"a", b"b", b"cd"),
             (b"1:1", b":", b"x"), (b"\xff{x}", b"\r\n*", b"d")]
    for tenant, scope, key in names:
        finish(raw, key, body=tenant + scope, tenant=tenant, scope=scope)
    for tenant, scope, key in names:
        assert claim(raw, key, tenant=tenant, scope=scope)[3] == tenant + scope


def test_an_expired_key_is_new_and_leaves_nothing_behind(on, prefix):
    # C10, C25
    with RedisServer() as server:
        raw = on(server, "store.sweep_interval=20ms").raw()
        keys = [new_key() for _ in range(300)]
        for key in keys:
            finish(raw, key, options=("TTL", 1))
        until(lambda: server.admin.zcard("{%s}:index" % prefix) == 0)
        assert server.admin.zcard("{%s}:due" % prefix) == 0
        assert records_of(server, prefix) == []
        for key in keys:
            begin(raw, key)


def test_what_a_crash_took_from_the_sets_is_put_right(on, prefix):
    # C22: the sweeper comes where the lock ends, whatever became of it.
    with RedisServer() as server:
        daemon = on(server, "store.sweep_interval=20ms")
        raw = daemon.raw(user="operator")
        done, held = new_key(), new_key()
        finish(raw, done)
        reply = claim(raw, held)
        admin = server.admin
        due, index = "{%s}:due" % prefix, "{%s}:index" % prefix
        until(lambda: admin.zcard(index) == 2)
        before = dict(admin.zrange(due, 0, -1, withscores=True))
        admin.delete(index)
        admin.zadd(due, {record: 2 * 2 ** 43 for record in before})
        until(lambda: dict(admin.zrange(due, 0, -1, withscores=True)) ==
              before)
        assert admin.zcard(index) == 2
        assert fields(raw("FIND", "acme", reply[4]))["key"] == held.encode()
        assert daemon.cli("verify").returncode == 0


# ---- several daemons ----

def test_daemons_share_keys_references_and_the_audit_log(on, server):
    # C01, C35
    one, two = on(server), on(server)
    raw, other = one.raw(user="operator"), two.raw(user="operator")
    key = new_key()
    reply = claim(raw, key, "OWNER", "o")
    assert claim(other, key, "OWNER", "o") == reply
    assert verdict(claim(other, key)) == "INFLIGHT"
    assert complete(other, key, reply[1], body=b"x") == "OK"
    assert complete(raw, key, reply[1])[0] == b"KEPT"
    assert fields(other("FIND", "acme", reply[4]))["key"] == key.encode()
    assert raw("EVICT", *name(key), "WHO", "me", "WHY", "test") == "OK"
    assert b"test" in b" ".join(
        item for row in other("AUDIT") for item in row
        if isinstance(item, bytes))
    assert verdict(claim(other, key)) == "NEW"


def test_one_daemon_keeps_and_another_takes_over(on, prefix, server):
    # C22
    one, two = (on(server, "store.sweep_interval=20ms") for _ in range(2))
    keeper = "{%s}:keeper" % prefix
    until(lambda: server.admin.get(keeper))
    first = server.admin.get(keeper)
    one.kill()
    raw, key = two.raw(), new_key()
    begin(raw, key, "LOCK", 30)
    until(lambda: fields(raw("LOOKUP", *name(key)))["state"] == b"uncertain")
    until(lambda: b"lapsed" in claim(raw, key)[1])
    # A daemon that is stopped gives it up at once.
    until(lambda: server.admin.get(keeper))
    two.stop()
    assert server.admin.get(keeper) is None or (
        server.admin.get(keeper) == first)


# ---- the functions ----

def library(revision):
    return re.sub(r"(local REVISION = )\d+", r"\g<1>%d" % revision,
                  LIBRARY.read_text())


def revision(server):
    return server.admin.execute_command("FCALL", "latchkey_revision", 0)


def test_functions_are_loaded_where_they_are_missing_or_older(on):
    with RedisServer() as server:
        own = int(re.search(r"local REVISION = (\d+)",
                            LIBRARY.read_text()).group(1))
        works(on(server).raw())
        assert revision(server) == own
        server.admin.function_load(library(0), replace=True)
        works(on(server).raw())
        assert revision(server) == own
        # A later daemon's are good for us too, and stay.
        server.admin.function_load(library(own + 1), replace=True)
        works(on(server).raw())
        assert revision(server) == own + 1


def test_functions_that_vanish_are_loaded_again(on):
    with RedisServer() as server:
        raw = on(server).raw()
        key = works(raw)
        server.admin.execute_command("FUNCTION", "FLUSH")
        assert verdict(claim(raw, key)) == "REPLAY"
        works(raw)


@pytest.mark.parametrize("forbidden", [
    [("FUNCTION", ""), ("FCALL", "")], [("FUNCTION", "")]],
    ids=["none", "not-loadable"])
def test_a_server_without_functions_gets_a_script(on, forbidden):
    with RedisServer(**{"rename-command": forbidden}) as server:
        raw = on(server).raw()
        key = works(raw)
        server.admin.script_flush()
        assert verdict(claim(raw, key)) == "REPLAY"
        works(raw)


@pytest.mark.skipif("thread" in build.BUILD.name,
                    reason="these have one thread: not built to look for races")
def test_the_contract_holds_with_a_script(prefix):
    with RedisServer(**NO_FUNCTIONS) as server:
        for program in ("test_table", "test_contract", "test_records"):
            result = subprocess.run(
                [str(build.BUILD / "tests/store" / program)],
                env={"LATCHKEY_TEST_STORE": server.url(),
                     "LATCHKEY_TEST_PREFIX": prefix, "PATH": "/usr/bin:/bin"},
                capture_output=True, text=True,
                timeout=300 * build.patience())
            assert result.returncode == 0, result.stdout + result.stderr


# ---- users ----

def user(name_, rights, password="its-password"):
    return "%s %s" % (name_, rights.replace("PASSWORD", password))


def test_a_user_with_no_more_than_the_documented_rights(make_daemon):
    with RedisServer(users=["default on nopass ~* &* +@all",
                            user("latchkey", RIGHTS)]) as server:
        url = server.url("latchkey", "its-password")
        without = make_daemon(start=False, url=url)
        assert "latchkey migrate" in refusal(without)
        stores.migrate(server.url())
        daemon = make_daemon(url=url)
        works(daemon.raw())
        daemon.wait_for_log("maxmemory-policy")
        raw = daemon.raw(user="operator")
        key = works(raw)
        assert raw("EVICT", *name(key), "WHO", "me", "WHY", "test") == "OK"
        assert raw("LIST") and raw("AUDIT")
        assert daemon.cli("verify").returncode == 0
        reference = claim(raw, new_key())[4].decode()
        assert daemon.cli("find", "acme", reference).returncode == 0
        assert reference in daemon.cli("find", reference).stdout
        # What it does not say, it does not know; what it must, it does.
        assert "its-password" not in daemon.log_text()


def test_a_user_who_lacks_a_right_is_found_out_at_the_start(make_daemon):
    with RedisServer(users=["default on nopass ~* &* +@all",
                            user("latchkey", RIGHTS + " -zrem")]) as server:
        stores.migrate(server.url())
        text = refusal(make_daemon(
            start=False, url=server.url("latchkey", "its-password")))
        assert "ZREM" in text and records_of(server, "latchkey") == []


def test_another_stores_keys_are_out_of_reach(make_daemon):
    with RedisServer(users=["default on nopass ~* &* +@all",
                            user("latchkey", RIGHTS)]) as server:
        stores.migrate(server.url())
        text = refusal(make_daemon(
            start=False, url=server.url("latchkey", "its-password"),
            settings=["store.prefix=other"]))
        assert "NOPERM" in text


@pytest.mark.parametrize("login", [("latchkey", "wrong"), (None, None)])
def test_a_wrong_password_is_told_and_not_shown(make_daemon, login):
    with RedisServer(requirepass="the-secret",
                     users=[user("latchkey", RIGHTS)]) as server:
        url = "redis://%s127.0.0.1:%d" % (
            "%s:%s@" % login if login[0] else "", server.port)
        text = refusal(make_daemon(start=False, url=url))
        assert "password" in text
        assert "wrong" not in text and "the-secret" not in text


def test_user_and_password_may_have_any_bytes(make_daemon):
    with RedisServer(requirepass="a@b/c:d%e f") as server:
        works(make_daemon(url=server.url()).raw())


def test_a_unix_socket_and_another_database(make_daemon, server, prefix):
    settings = ["store.prefix=" + prefix]
    daemon = make_daemon(url="redis:unix:%s" % server.socket,
                         settings=settings)
    works(daemon.raw())
    assert records_of(server, prefix)
    other = make_daemon(url=server.url(database=3), settings=settings)
    key = works(other.raw())
    assert verdict(claim(daemon.raw(), key)) == "NEW"


def test_stores_in_two_databases_have_tokens_of_their_own(on):
    # C20: they rise after a restart as well.
    with RedisServer(appendonly=True, appendfsync="always") as server:
        raws = [on(server.url(database=number)).raw() for number in (0, 1)]
        key = new_key()
        tokens = []
        for _ in range(3):
            for raw in raws:
                begin(raw, new_key())
            tokens.append(begin(raws[1], key))
            assert raws[1]("RELEASE", *name(key), tokens[-1]) == "OK"
        last = begin(raws[1], new_key())
        server.kill()
        server.start()
        for raw in raws:
            until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert tokens == sorted(tokens)
        # Neither takes the other for a primary that was lost.
        assert tokens[-1] < tokens[0] + 2 ** 25
        assert begin(raws[1], new_key()) > last


@pytest.mark.parametrize("url, words", [
    ("redis://", "names no host"),
    ("redis://127.0.0.1:1/x", "not a number"),
    ("redis-sentinel://127.0.0.1:1", "NAME"),
    ("redis://127.0.0.1:1?x=y", "question"),
    ("redis://user:sec%zzret@127.0.0.1:1", "%XX"),
])
def test_a_url_that_is_wrong_is_told_without_its_password(
        make_daemon, url, words):
    daemon = make_daemon(start=False, url=url)
    daemon.launch()
    assert daemon.wait() != 0, daemon.log_text()
    text = daemon.log_text()
    assert words in text and "sec%zzret" not in text


# ---- trouble ----

def test_a_killed_server_is_unavailable_at_once_and_comes_back(on):
    # C19, C20
    with RedisServer(appendonly=True, appendfsync="always") as server:
        raw = on(server, *QUICK).raw()
        key, open_key = new_key(), new_key()
        finish(raw, key, body=b"kept")
        token = begin(raw, open_key, "OWNER", "o")
        server.kill()
        for _ in range(20):
            assert is_unavailable(claim(raw, new_key()))
        assert is_unavailable(raw("LOOKUP", *name(key)))
        server.start()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert claim(raw, key)[3] == b"kept"
        assert begin(raw, open_key, "OWNER", "o") == token
        # What was handed out before is never handed out again.
        assert begin(raw, new_key()) > token + 2 ** 25


def test_it_starts_while_its_server_is_away_and_connects_by_itself(
        make_daemon):
    # C19: what is asked of the server at a start is asked of it then, too.
    evicting = {"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(**evicting) as server:
        server.kill()
        daemon = make_daemon(url=server.url())
        raw = daemon.raw()
        assert raw("PING") == "PONG"
        reply = claim(raw, new_key())
        assert is_unavailable(reply) and "127.0.0.1" in reply
        assert "127.0.0.1" in info(raw)["trouble"]
        server.start()
        until(lambda: "maxmemory-policy" in claim(raw, new_key()))
        server.set("maxmemory-policy", "noeviction")
        key = until(lambda: verdict(claim(raw, "key")) == "NEW" and "key")
        assert verdict(claim(raw, key)) == "INFLIGHT"
        assert info(raw)["trouble"] == ""
        daemon.stop()


def test_a_redis_is_not_taken_for_the_daemon(server):
    for command in ("ping", "health"):
        result = stores.run_latchkey(command, "--server",
                                     "127.0.0.1:%d" % server.port)
        assert result.returncode == 3, result
        assert "PONG" not in result.stdout and "Redis" in result.stderr


def test_it_does_not_start_where_no_redis_promises_enough(make_daemon):
    daemon = make_daemon(start=False, url="redis://127.0.0.1:1",
                         settings=["store.strict=yes"]).launch()
    assert daemon.wait() != 0 and "store.strict" in daemon.log_text()


def test_another_store_in_its_place_is_not_used(on, prefix):
    # References and hashes of names would mean something else.
    with RedisServer(appendonly=True, appendfsync="always") as server:
        daemon = on(server, *QUICK)
        raw = daemon.raw()
        key = works(raw)
        meta = "{%s}:meta" % prefix
        secret = server.admin.hget(meta, "secret")
        server.admin.hset(meta, "secret", "ab" * 16)
        server.kill()
        server.start()
        daemon.wait_for_log("another store")
        assert is_unavailable(claim(raw, key))
        assert "another store" in info(raw)["trouble"]
        server.admin.hset(meta, "secret", secret)
        until(lambda: verdict(claim(raw, key)) == "REPLAY")


def test_with_a_full_memory_what_was_begun_is_finished(on):
    # C19: only what would be NEW is refused.
    with RedisServer() as server:
        daemon = on(server, "store.sweep_interval=50ms")
        raw = daemon.raw()
        operator = daemon.raw(user="operator")
        done, lapsing = works(raw), new_key()
        keys = [new_key() for _ in range(4)]
        tokens = {key: begin(raw, key) for key in keys}
        begin(raw, lapsing, "LOCK", 300)
        server.set("maxmemory", 1)
        assert is_unavailable(claim(raw, new_key()))
        assert verdict(claim(raw, done)) == "REPLAY"
        assert verdict(claim(raw, keys[0])) == "INFLIGHT"
        assert complete(raw, keys[0], tokens[keys[0]]) == "OK"
        assert raw("RELEASE", *name(keys[1]), tokens[keys[1]]) == "OK"
        assert raw("DOUBT", *name(keys[2]), tokens[keys[2]], "why") == "OK"
        assert raw("EXTEND", *name(keys[3]), tokens[keys[3]], 60000) == "OK"
        assert is_unavailable(claim(raw, keys[1]))
        assert verdict(claim(raw, keys[2])) == "UNCERTAIN"
        assert operator("EVICT", *name(done), "WHO", "me", "WHY",
                        "space") == "OK"
        until(lambda: int(info(raw)["swept"]) > 0)
        assert "out of memory" in info(raw)["trouble"]
        daemon.wait_for_log("out of memory")
        server.set("maxmemory", 0)
        assert verdict(claim(raw, new_key())) == "NEW"
        assert "out of memory" not in info(raw).get("trouble", "")


def test_a_frozen_server_holds_up_nobody_for_long(on):
    # C19
    with RedisServer(appendonly=True) as server:
        raw = on(server, *QUICK).raw(timeout=30)
        key = works(raw)
        server.pause()
        # The first one was sent; from then on nobody is kept waiting.
        until(lambda: is_unavailable(claim(raw, new_key())))
        for _ in range(50):
            assert is_unavailable(claim(raw, new_key()))
        server.resume()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert verdict(claim(raw, key)) == "REPLAY"


def test_a_claim_whose_reply_was_lost_gets_the_same_token(on, server):
    # C41
    with Proxy(server) as proxy:
        daemon = on(proxy.through(server.url()), "store.connections=1",
                    "store.sweep_interval=1h")
        raw = daemon.raw()
        works(raw)
        strike = proxy.cut_after_reply_lost(matching=b"latchkey_decide")
        key = new_key()
        first = claim(raw, key, "OWNER", "o")
        strike.wait()
        assert verdict(first) == "NEW" and first[3] == 1
        assert claim(raw, key, "OWNER", "o") == first
        assert verdict(claim(raw, key)) == "INFLIGHT"


def test_what_is_no_claim_is_told_to_be_unknown(on, server):
    # C20
    with Proxy(server) as proxy:
        raw = on(proxy.through(server.url()), "store.connections=1",
                 "store.sweep_interval=1h").raw()
        key = new_key()
        token = begin(raw, key)
        strike = proxy.cut_after_reply_lost(matching=b"latchkey_decide")
        reply = complete(raw, key, token, body=b"once")
        strike.wait()
        assert is_unavailable(reply) and "not known" in reply
        # It is safe to send it again, and it had happened.
        until(lambda: not is_unavailable(claim(raw, new_key())))
        assert complete(raw, key, token, body=b"twice")[:4] == [
            b"KEPT", 201, b"", b"once"]


def test_a_lost_reply_in_the_middle_of_a_pipeline(on, server):
    # C41: every claim of a batch that was cut gets its own token, once.
    with Proxy(server) as proxy:
        raw = on(proxy.through(server.url()), "store.connections=1",
                 "store.sweep_interval=1h").raw()
        works(raw)
        keys = [new_key() for _ in range(200)]
        strike = proxy.cut_after_reply_lost(matching=b"latchkey_decide")
        for key in keys:
            raw.send("CLAIM", *name(key), FINGERPRINT, "OWNER", "o" + key)
        replies = [raw.read() for _ in keys]
        strike.wait()
        assert [verdict(reply) for reply in replies] == ["NEW"] * 200
        assert len({reply[1] for reply in replies}) == 200
        for key, reply in zip(keys, replies):
            assert reply[3] == 1
            assert claim(raw, key, "OWNER", "o" + key) == reply


# ---- replicas ----

def test_wait_counts_the_replicas_that_have_it(on):
    with RedisServer() as server:
        replica = server.replica()
        server.wait_replicated()
        raw = on(server, "store.wait_replicas=1",
                 "store.wait_timeout=2s").raw()
        key, held = works(raw), new_key()
        begin(raw, held)
        replica.wait_linked()
        assert replica.admin.exists(next(
            name_ for name_ in keys_of(server) if name_.endswith(key)))
        replica.pause()
        refused = claim(raw, new_key(), "OWNER", "o")
        assert is_unavailable(refused) and "too few replicas" in refused
        # An answer that a fail-over may take back is none; to wait is.
        assert is_unavailable(claim(raw, key))
        assert verdict(claim(raw, held)) == "INFLIGHT"
        replica.resume()
        until(lambda: verdict(claim(raw, key)) == "REPLAY")
        other = new_key()
        until(lambda: verdict(claim(raw, other, "OWNER", "o")) == "NEW")
        assert "confirmed" in info(raw)["store_promise"]


def test_wait_without_replicas_acknowledges_nothing(on, server):
    raw = on(server, "store.wait_replicas=1", "store.wait_timeout=50ms").raw()
    key = new_key()
    refused = claim(raw, key, "OWNER", "o")
    assert is_unavailable(refused) and "too few replicas" in refused
    # Repeated, it rests on the same write, which is still on one server.
    assert is_unavailable(claim(raw, key, "OWNER", "o"))
    assert verdict(claim(raw, key)) == "INFLIGHT"


def test_with_wait_nothing_is_told_that_a_fail_over_takes_back(on):
    with RedisServer() as server:
        replica = server.replica()
        raw = on("redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port), "store.wait_replicas=1",
            "store.wait_timeout=500ms").raw()
        keys = [new_key() for _ in range(3)]
        done, doubted, omitted = keys
        for key in keys:
            until(lambda: verdict(claim(raw, key, "OWNER", "o")) == "NEW")
        tokens = {key: begin(raw, key, "OWNER", "o") for key in keys}
        replica.pause()
        assert is_unavailable(complete(raw, done, tokens[done]))
        assert is_unavailable(raw("COMPLETE", *name(omitted), tokens[omitted],
                                  200, "", "", "OMIT", "large"))
        assert is_unavailable(raw("DOUBT", *name(doubted), tokens[doubted],
                                  "why"))
        # Each is on the primary alone, and another asks.
        for key in keys:
            assert is_unavailable(claim(raw, key))
        assert is_unavailable(complete(raw, done, tokens[done]))
        assert is_unavailable(complete(raw, done, 1))
        replica.resume()
        until(lambda: verdict(claim(raw, done)) == "REPLAY")


def test_with_wait_a_fail_over_loses_nothing_that_was_acknowledged(on):
    with RedisServer() as server:
        replica = server.replica()
        server.wait_replicated()
        nodes = "redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port)
        raw = on(nodes, "store.wait_replicas=1",
                 "store.wait_timeout=30s").raw()
        keys = {key: finish(raw, key, body=key.encode())
                for key in (new_key() for _ in range(50))}
        open_key = new_key()
        token = begin(raw, open_key, "OWNER", "o")
        server.kill()
        replica.promote()
        until(lambda: verdict(claim(raw, open_key)) == "INFLIGHT")
        # There is no other replica that could confirm anything.
        raw = on(nodes, *QUICK).raw()
        for key in keys:
            assert claim(raw, key)[3] == key.encode()
        assert verdict(claim(raw, open_key)) == "INFLIGHT"


def test_a_list_of_nodes_follows_the_primary(on):
    # C19
    with RedisServer() as server:
        replica = server.replica()
        daemon = on("redis://127.0.0.1:%d,127.0.0.1:%d" % (
            replica.port, server.port), *QUICK)
        raw = daemon.raw()
        key = works(raw)
        last = begin(raw, new_key())
        server.wait_replicated()
        # As an operator moves it: both live on, the old one as a replica.
        replica.promote()
        server.admin.replicaof(replica.address, replica.port)
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert verdict(claim(raw, key)) == "REPLAY"
        assert begin(raw, new_key()) > last + 2 ** 25
        server.kill()
        assert verdict(claim(raw, key)) == "REPLAY"


def test_of_two_primaries_the_one_that_went_on_is_used(on):
    with RedisServer() as server:
        replica = server.replica()
        nodes = "redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port)
        raw = on(nodes, *QUICK).raw()
        works(raw)
        server.wait_replicated()
        server.kill()
        replica.promote()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        key = works(raw)
        server.start()  # and believes that it still leads
        fresh = on(nodes, *QUICK)
        fresh.wait_for_log("say that they are the primary")
        assert verdict(claim(fresh.raw(), key)) == "REPLAY"


@pytest.mark.parametrize("options", [{}, NO_FUNCTIONS],
                         ids=["functions", "script"])
def test_two_primaries_never_hand_out_the_same_token(on, options):
    # C20: the holder whom the surviving one does not know is STALE.
    with RedisServer(appendonly=True, appendfsync="always",
                     **options) as server:
        replica = server.replica()
        nodes = "redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port)
        raw = on(nodes, *QUICK).raw()
        works(raw)
        server.wait_replicated()
        server.kill()
        replica.promote()
        until(lambda: not is_unavailable(raw("LOOKUP", *name(new_key()))))
        keys = [new_key() for _ in range(100)]
        tokens = [begin(raw, key) for key in keys]
        server.start()  # and believes that it still leads
        alone = on(server, *QUICK)
        others = [begin(alone.raw(), key) for key in keys]
        assert not set(tokens) & set(others)
        alone.stop()
        server.admin.replicaof(replica.address, replica.port)
        server.wait_linked()
        for key, token, other in zip(keys, tokens, others):
            assert surely(complete, raw, key, other) == "STALE"
            assert verdict(surely(complete, raw, key, token)) in ("OK", "KEPT")


def test_a_server_that_leads_again_goes_on_above_what_is_lost(on):
    # C20
    with RedisServer() as server:
        replica = server.replica()
        raw = on("redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port), *QUICK).raw()
        works(raw)
        server.wait_replicated()
        replica.promote()
        with Proxy(replica) as proxy:
            server.admin.replicaof(proxy.address, proxy.port)
            server.wait_linked()
            until(lambda: verdict(claim(raw, new_key())) == "NEW")
            replica.admin.wait(1, 1000)
            proxy.freeze()
            lost = [begin(raw, new_key()) for _ in range(5)]
            replica.kill()
            proxy.cut()
        server.promote()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert begin(raw, new_key()) > max(lost)


def test_functions_and_scripts_beside_each_other_share_the_tokens(
        make_daemon, prefix):
    rights = RIGHTS.replace("+fcall", "+eval +evalsha")
    with RedisServer(users=["default on nopass ~* &* +@all", user(
            "latchkey", rights.replace("{latchkey}", "{%s}" % prefix))]
            ) as server:
        settings = ["store.prefix=" + prefix]
        one = make_daemon(url=server.url(), settings=settings).raw()
        two = make_daemon(url=server.url("latchkey", "its-password"),
                          settings=settings).raw()
        begin(one, new_key())
        first = begin(two, new_key())
        tokens = [begin(raw, new_key()) for _ in range(50)
                  for raw in (one, two)]
        assert len(set(tokens)) == 100
        # Neither takes the other for a primary that was lost.
        assert max(tokens) < first + 2 ** 25


def test_an_idle_daemon_does_not_go_back_to_a_restarted_primary(on):
    # C01: two daemons on two primaries would both tell NEW.
    with RedisServer(appendonly=True, appendfsync="always") as server:
        replica = server.replica()
        nodes = "redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port)
        # Most of its connections have not been opened yet.
        idle = on(nodes, "store.sweep_interval=1h",
                  "store.connections=8").raw()
        busy = on(nodes, *QUICK).raw()
        works(idle)
        works(busy)
        server.wait_replicated()
        server.kill()
        replica.promote()
        until(lambda: verdict(claim(busy, new_key())) == "NEW")
        server.start()  # and believes that it still leads
        for _ in range(20):
            key = new_key()
            assert verdict(claim(busy, key)) == "NEW"
            reply = claim(idle, key)
            assert is_unavailable(reply) or verdict(reply) == "INFLIGHT"
        until(lambda: verdict(claim(idle, key)) == "INFLIGHT")


class Guide:
    """Says who the primary is, as a Sentinel does."""

    def __init__(self, server):
        self.server = server
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, daemon=True,
                                 args=(self.socket.accept()[0],)).start()

    def _answer(self, link):
        with link, contextlib.suppress(OSError):
            while link.recv(1000):
                port = b"%d" % self.server.port
                link.sendall(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (
                    len(port), port))


def test_sentinels_are_asked_again_while_the_old_primary_answers(on):
    # C01: it is cut off from the Sentinels, and not from the daemon.
    with RedisServer() as server:
        replica = server.replica()
        guide = Guide(server)
        with guide.socket:
            raw = on("redis-sentinel://127.0.0.1:%d/main" % guide.port).raw()
            works(raw)
            server.wait_replicated()
            replica.promote()
            guide.server = replica
            other = on(replica).raw()
            key = new_key()
            assert verdict(claim(other, key)) == "NEW"
            until(lambda: not isinstance(
                raw("LOOKUP", *name(key)), (Error, type(None))))
            assert verdict(claim(raw, key)) == "INFLIGHT"


def test_a_new_primary_that_promises_less_is_told(on):
    with RedisServer(appendonly=True, appendfsync="always") as server:
        replica = server.replica(appendonly=False)
        daemon = on("redis://127.0.0.1:%d,127.0.0.1:%d" % (
            server.port, replica.port), *QUICK)
        raw = daemon.raw()
        assert "stops" not in info(raw)["store_promise"]
        assert "append-only" not in daemon.log_text()
        server.kill()
        replica.promote()
        until(lambda: verdict(claim(raw, new_key())) == "NEW")
        assert "stops" in info(raw)["store_promise"]
        daemon.wait_for_log("append-only")


def test_sentinels_lead_to_the_new_primary(on):
    # C19, C22
    with RedisServer() as server:
        server.replica()
        with Sentinel(server) as sentinel:
            daemon = on("redis-sentinel://127.0.0.1:1,127.0.0.1:%d/main" %
                        sentinel.port, *QUICK)
            raw = daemon.raw()
            key = works(raw)
            held = new_key()
            token = begin(raw, held)
            server.wait_replicated()
            server.kill()
            until(lambda: is_unavailable(claim(raw, new_key())))
            sentinel.wait_failover()
            until(lambda: verdict(claim(raw, new_key())) == "NEW", 60)
            assert verdict(claim(raw, key)) == "REPLAY"
            assert complete(raw, held, token) == "OK"
            # A holder of the old primary is not taken for a new one.
            assert begin(raw, new_key()) > token + 2 ** 25


def test_a_replica_alone_is_refused(make_daemon):
    with RedisServer() as server:
        replica = server.replica()
        assert "replica" in refusal(make_daemon(
            start=False, url="redis://127.0.0.1:%d" % replica.port))


# ---- more than one at a time ----

def test_two_hundred_identical_claims_over_two_daemons(on, server):
    # C01
    daemons = [on(server), on(server)]
    clients = [daemons[i % 2].raw() for i in range(40)]
    key = new_key()
    for turn in range(5):
        for i, client in enumerate(clients):
            client.send("CLAIM", *name(key), FINGERPRINT, "OWNER",
                        "%d-%d" % (turn, i))
    replies = [client.read() for client in clients for _ in range(5)]
    words = [verdict(reply) for reply in replies]
    assert words.count("NEW") == 1 and words.count("INFLIGHT") == 199


def test_large_answers_in_one_batch(on, server):
    # C02
    raw = on(server).raw(timeout=60)
    body = bytes(range(256)) * 12000
    keys = [new_key() for _ in range(8)]
    tokens = [begin(raw, key) for key in keys]
    for key, token in zip(keys, tokens):
        raw.send("COMPLETE", *name(key), token, 200, "", body)
    assert [raw.read() for _ in keys] == ["OK"] * 8
    for key in keys:
        raw.send("CLAIM", *name(key), FINGERPRINT)
    assert all(raw.read()[3] == body for _ in keys)


def peak_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(
        "/proc/%d/status" % pid).read_text()).group(1)) // 1024


def test_a_batch_of_retries_of_a_long_answer_takes_little_memory(on):
    # Redis does not hold as many copies as there are retries.
    with RedisServer() as server:
        raw = on(server).raw(timeout=60)
        key, body = new_key(), b"x" * 2 ** 20
        token = finish(raw, key, body=body)
        assert claim(raw, key)[3] == body
        before = peak_mb(server.process.pid)
        for _ in range(50):
            raw.send("CLAIM", *name(key), FINGERPRINT)
        for _ in range(50):
            assert raw.read()[3] == body
        assert complete(raw, key, token)[3] == body
        assert peak_mb(server.process.pid) - before < 25


@pytest.mark.parametrize("size", [16100, 16384, 17000])
def test_answers_about_as_long_as_come_with_the_decision(on, server, size):
    # C02
    raw = on(server).raw()
    key, body = new_key(), bytes(range(256)) * 70
    token = finish(raw, key, body=body[:size])
    assert claim(raw, key)[3] == body[:size]
    assert complete(raw, key, token, body=b"other")[3] == body[:size]
    operator_evicts_it = on(server).raw(user="operator")
    assert operator_evicts_it("EVICT", *name(key), "WHO", "me", "WHY",
                              "test") == "OK"
    assert verdict(claim(raw, key)) == "NEW"


def test_an_export_leaves_nothing_out_without_a_word(on):
    # A record of a later version, or a damaged one
    with RedisServer() as server:
        daemon = on(server)
        key = works(daemon.raw())
        works(daemon.raw())
        assert daemon.cli("export").returncode == 0
        record = next(made for made in keys_of(server) if made.endswith(key))
        server.admin.setrange(record, 0, b"\x09")
        assert daemon.cli("export").returncode != 0
        assert daemon.cli("verify").returncode != 0
