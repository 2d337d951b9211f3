"""Moving to another store: export, import, and what is true afterwards."""

import itertools
import json
import os
import stat
import subprocess
import threading

import pytest

from support import build
from support.life import until
from support.moving import Place, done, lines, look, records, tool
from support.postgres import Postgres
from support.redis_server import RedisServer
from support.resp import fields

PAIRS = [("sqlite", "sqlite"), ("sqlite", "postgres"), ("sqlite", "redis"),
         ("postgres", "redis"), ("redis", "postgres"), ("postgres", "sqlite"),
         ("redis", "sqlite")]
NAME = (b"acme", b"POST /pay")
BINARY = bytes(range(256)) * 3
HEADERS = b"Content-Type: application/octet-stream\r\nX-Odd: \xff\xfe\r\n"
DAY = 86400 * 1000
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def servers():
    """The servers behind stores, started when they are asked for."""
    made = {}

    def server(kind, **options):
        if kind not in made:
            made[kind] = (Postgres if kind == "postgres" else RedisServer)(
                **options).start()
        return made[kind]

    yield server
    for one in made.values():
        one.finish()


def migrated(server):
    """The URL of a database with the schema, copied from one made once."""
    if not hasattr(server, "model"):
        server.model = server.create_database("model")
        done(tool("migrate", server.model))
    name = "copy_%d" % next(numbers)
    server.query("CREATE DATABASE %s TEMPLATE model" % name)
    # A copy is a store of its own, with secrets of its own.
    server.query("UPDATE latchkey.meta SET value = md5(random()::text)"
                 " WHERE name LIKE '%%secret'", database=name)
    return server.url(name)


@pytest.fixture
def place(make_daemon, tmp_path, servers):
    """An empty store of a kind."""
    count = iter(range(100))

    def url_of(kind):
        number = next(count)
        if kind == "sqlite":
            return "sqlite:%s" % (tmp_path / ("store%d.db" % number))
        if kind == "postgres":
            return migrated(servers(kind))
        server = servers(kind, appendonly=True, appendfsync="always")
        server.client(db=number).flushdb()
        url = server.url(database=number)
        done(tool("migrate", url))
        return url

    def make(kind):
        url = url_of(kind)
        return Place(kind, url, make_daemon, ["store.sweep_interval=20ms"])

    return make


@pytest.fixture(params=PAIRS, ids=lambda pair: "%s-%s" % pair)
def source(request, place):
    """A store with a daemon; `target` is where it moves to."""
    kind, other = request.param
    made = place(kind).start()
    made.target = place(other)
    return made


@pytest.fixture
def target(source):
    return source.target


@pytest.fixture
def embedded(place):
    """The same, for what does not depend on the stores."""
    made = place("sqlite").start()
    made.target = place("sqlite")
    return made


def named(key, tenant=NAME[0], scope=NAME[1]):
    return (tenant, scope, key)


def claim(raw, key, *options, name=None):
    answer = raw("CLAIM", *(name or named(key)), "1:00", "OWNER", b"own\x00er",
                 *options)
    assert answer[0] == b"NEW", answer
    return answer


def complete(raw, key, body=BINARY, *options):
    token = claim(raw, key)[1]
    assert raw("COMPLETE", *named(key), token, 201, HEADERS, body,
               *options) == "OK"
    return token


def fill(place):
    """An operation in every state; their keys."""
    raw, operator = place.raw(), place.operator()
    complete(raw, "completed")
    complete(raw, "empty", b"")
    complete(raw, "text", "grüße\n".encode())
    token = claim(raw, "omitted")[1]
    assert raw("COMPLETE", *named("omitted"), token, 404, "", "", "OMIT",
               b"too \xff large") == "OK"
    claim(raw, "running", "LOCK", DAY)
    token = claim(raw, "doubted")[1]
    assert raw("DOUBT", *named("doubted"), token, b"time\x00out") == "OK"
    claim(raw, "lapsed", "LOCK", 1)
    token = claim(raw, "released")[1]
    assert raw("RELEASE", *named("released"), token) == "OK"
    complete(raw, "evicted")
    assert operator("EVICT", *named("evicted"), "WHO", "o", "WHY", "w") == "OK"
    token = claim(raw, "again")[1]
    assert raw("RELEASE", *named("again"), token) == "OK"
    complete(raw, "again", b"second")
    complete(raw, "kept")
    assert raw("KEEP", *named("kept"), 30 * DAY) == "OK"
    # A lookup tells that it has lapsed; a claim makes it so, if the sweeper has
    # not come yet.
    until(lambda: look(raw, named("lapsed"))["state"] == b"uncertain")
    assert raw("CLAIM", *named("lapsed"), "1:00")[0] == b"UNCERTAIN"
    return ["completed", "empty", "text", "omitted", "running", "doubted",
            "lapsed", "released", "evicted", "again", "kept"]


def move(source, target):
    path = source.export()
    report = target.take(path)
    return path, report


def as_told(raw, key):
    """What a retry is told that starts nothing."""
    return raw("CLAIM", *named(key), "1:00", "NONEW")


# ---- what is true afterwards ----


def test_every_state_is_the_same_in_the_other_store_C02(source, target):
    keys = fill(source)
    before = {key: look(source.raw(), named(key)) for key in keys}
    told = {key: as_told(source.raw(), key) for key in keys}
    _, report = move(source, target)
    assert report["operations"] == report["taken"] == len(keys)
    assert report["older"] == report["renumbered"] == 0
    target.start()
    for round in range(2):
        for key in keys:
            after = look(target.raw(), named(key))
            assert after == before[key], key
            assert after["reference"] == before[key]["reference"]
            answer = as_told(target.raw(), key)
            if told[key][0] == b"INFLIGHT":  # has a time to wait
                answer[1] = told[key][1]
            assert answer == told[key], key
        target.daemon.restart()
    assert target.daemon.cli("verify").returncode == 0


def test_names_of_any_bytes_stay_different(source, target):
    names = [(tenant, scope, b"k ~!") for tenant in (
        b"\xff", b"\x00", b"\\000", "ü".encode(), b"a\nb", b'"')
        for scope in (b"POST /\x80", b"POST /", b"\\")]
    raw = source.raw()
    for number, name in enumerate(names):
        claim(raw, None, "LOCK", DAY, name=name)
        token = raw("CLAIM", *name, "1:00", "OWNER", b"own\x00er")[1]
        assert raw("COMPLETE", *name, token, 200, "",
                   b"body %d" % number) == "OK"
    move(source, target)
    raw = target.start().raw()
    for number, name in enumerate(names):
        answer = raw("CLAIM", *name, "1:00")
        assert answer[0] == b"REPLAY" and answer[3] == b"body %d" % number


def test_a_claim_repeated_by_its_owner_gets_its_token_C22(source, target):
    first = claim(source.raw(), "k", "LOCK", DAY)
    move(source, target)
    raw = target.start().raw()
    again = raw("CLAIM", *named("k"), "1:00", "OWNER", b"own\x00er")
    assert again == first
    assert raw("CLAIM", *named("k"), "1:00", "OWNER",
               b"own")[0] == b"INFLIGHT"
    assert raw("CLAIM", *named("k"), "2:00")[0] == b"MISMATCH"


def test_the_holder_completes_in_the_other_store_and_nobody_else_C22(
        source, target):
    tokens = {key: claim(source.raw(), key, "LOCK", DAY)[1]
              for key in ("done", "freed", "doubted", "longer")}
    move(source, target)
    raw = target.start().raw()
    assert raw("COMPLETE", *named("done"), tokens["freed"], 200, "",
               "") == "STALE"
    assert raw("COMPLETE", *named("done"), tokens["done"], 200, HEADERS,
               BINARY) == "OK"
    assert raw("RELEASE", *named("freed"), tokens["freed"]) == "OK"
    assert raw("DOUBT", *named("doubted"), tokens["doubted"], "x") == "OK"
    assert raw("EXTEND", *named("longer"), tokens["longer"], DAY) == "OK"
    assert as_told(raw, "done")[1:4] == [200, HEADERS, BINARY]
    attempt = claim(raw, "freed")[3]
    assert attempt == 2


def test_references_are_found_again_C35(source, target):
    raw = source.raw()
    complete(raw, "first")
    token = claim(raw, "later")[1]
    raw("RELEASE", *named("later"), token)
    complete(raw, "later")
    codes = {key: look(raw, named(key))["reference"]
             for key in ("first", "later")}
    move(source, target)
    raw = target.start().raw()
    for key, code in codes.items():
        assert fields(raw("FIND", "acme", code))["key"] == key.encode()
        assert raw("FIND", "other", code) is None


def test_what_was_to_be_kept_longer_is(source, target):
    raw = source.raw()
    token = claim(raw, "open", "LOCK", DAY)[1]
    assert raw("KEEP", *named("open"), 30 * DAY) == "OK"
    path, _ = move(source, target)
    assert records(path)["open"]["keep_ms"] == 30 * DAY
    raw = target.start().raw()
    assert raw("COMPLETE", *named("open"), token, 200, "", "") == "OK"
    found = look(raw, named("open"))
    assert found["expires-ms"] - found["completed-ms"] == 30 * DAY


def test_a_generation_ends_with_an_eviction_and_not_with_a_release(
        source, target):
    fill(source)
    path, _ = move(source, target)
    before = records(path)
    assert before["evicted"]["evicted"] == 1
    assert "evicted" not in before["released"]
    raw = target.start().raw()
    for key in ("evicted", "released"):
        claim(raw, key)
    after = records(target.export())
    assert after["released"]["generation"] == before["released"]["generation"]
    assert after["evicted"]["generation"] == after["evicted"]["token"]
    assert after["evicted"]["token"] > before["evicted"]["token"]


def test_new_tokens_are_above_all_that_the_other_store_has_given(
        source, target):
    raw = source.raw()
    claim(raw, "still there", "LOCK", DAY)
    token = claim(raw, "gone")[1]
    assert raw("COMPLETE", *named("gone"), token, 200, "", "", "TTL",
               1) == "OK"
    until(lambda: look(raw, named("gone")) is None)
    move(source, target)
    raw = target.start().raw()
    assert claim(raw, "gone")[1] > token


# ---- the audit log ----


def audit(place):
    return [fields(entry) for entry in place.operator()("AUDIT")]


def test_the_audit_log_comes_along_once_C35(source, target):
    fill(source)
    for _ in range(3):
        move_again = source.export("pass-%d" % len(os.listdir(source.folder)))
        target.take(move_again, "--why", "we move", "--who", "ops")
    old, new = audit(source), audit(target.start())
    for entry in old:
        entry.pop("id")
    carried = [entry for entry in new if
               not entry["action"].startswith(b"import")]
    for entry in carried:
        entry.pop("id")
    assert carried == old
    assert [entry["action"] for entry in old] == [b"evict"] + 3 * [
        b"export"]
    imports = [entry for entry in new
               if entry["action"] == b"import from %s" % source.kind.encode()]
    assert len(imports) == 3
    assert imports[0]["who"] == b"ops" and imports[0]["why"] == b"we move"


# ---- more than one pass ----


def test_a_second_pass_carries_what_is_newer_and_nothing_else(source, target):
    raw, operator = source.raw(), source.operator()
    keys = fill(source)
    move(source, target)
    token = look(raw, named("running"))["token"]
    assert raw("COMPLETE", *named("running"), token, 200, "", b"late") == "OK"
    claim(raw, "released", "LOCK", DAY)
    assert operator("EVICT", *named("text"), "WHO", "o", "WHY", "w") == "OK"
    assert raw("KEEP", *named("completed"), 60 * DAY) == "OK"
    complete(raw, "fresh")
    path = source.export("second")
    report = target.take(path)
    assert report["taken"] == 5
    assert report["older"] == len(keys) + 1 - 5
    assert target.take(path)["taken"] == 0
    target.start()
    for key in keys + ["fresh"]:
        assert look(target.raw(), named(key)) == look(raw, named(key)), key


def test_an_old_file_takes_nothing_back(source, target):
    fill(source)
    path, _ = move(source, target)
    raw, operator = target.start().raw(), target.operator()
    token = look(raw, named("running"))["token"]
    assert raw("COMPLETE", *named("running"), token, 200, "", b"here") == "OK"
    complete(raw, "released", b"anew")
    assert operator("EVICT", *named("text"), "WHO", "o", "WHY", "w") == "OK"
    names = [named(key) for key in ("running", "released", "text")]
    before = [look(raw, name) for name in names]
    target.stop()
    assert target.take(path)["taken"] == 0
    raw = target.start().raw()
    assert [look(raw, name) for name in names] == before


def test_what_was_finished_before_the_export_is_there_while_claims_go_on_C02(
        source, target):
    finished, over = [], threading.Event()

    def work(number):
        with source.daemon.raw() as raw:
            for i in range(100000):
                key = "w%d-%d" % (number, i)
                body = (key.encode() + b"\x00\xff") * (1 + i % 50)
                complete(raw, key, body)
                finished.append((key, body))
                if over.is_set():
                    return

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    try:
        until(lambda: len(finished) > 300)
        before = list(finished)
        first = source.export("first")
        during = len(finished) - len(before)
        target.take(first)
    finally:
        over.set()
        for worker in workers:
            worker.join()
    assert during > 0
    raw = target.start().raw()
    for key, body in before:
        assert as_told(raw, key)[1:4] == [201, HEADERS, body], key
    target.stop()
    target.take(source.export("last"))
    raw = target.start().raw()
    for key, body in finished:
        assert as_told(raw, key)[1:4] == [201, HEADERS, body], key


def test_a_store_without_a_daemon_is_exported_directly(source, target):
    keys = fill(source)
    online = source.export("online")
    source.stop()
    direct = source.export("direct")
    assert records(direct) == records(online)
    assert target.take(direct)["taken"] == len(keys)


def test_a_store_that_is_in_use_takes_over_records_beside_its_own(
        source, target):
    raw = target.start().raw()
    for i in range(20):
        complete(raw, "own-%d" % i, b"own")
    references = [look(raw, named("own-%d" % i))["reference"]
                  for i in range(20)]
    target.stop()
    keys = fill(source)
    path = source.export()
    result = done(tool("import", "--store", target.url, path))
    assert "references" in result.stderr
    raw = target.start().raw()
    for i in range(20):
        assert as_told(raw, "own-%d" % i)[3] == b"own"
        found = raw("FIND", "acme", references[i])
        assert fields(found)["key"] == b"own-%d" % i
    old = source.raw()
    for key in keys:
        told, answer = as_told(old, key), as_told(raw, key)
        if told[0] == b"REFUSED":  # a retry runs in both
            assert answer == told
        else:
            assert answer[:1] + answer[2:-1] == told[:1] + told[2:-1], key
            assert fields(raw("FIND", "acme", answer[-1]))["key"].decode() == \
                key
    assert target.daemon.cli("verify").returncode == 0


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_shared_store_takes_over_records_while_a_daemon_uses_it(
        place, kind):
    source, target = place("sqlite").start(), place(kind).start()
    keys = fill(source)
    complete(target.raw(), "own", b"own")
    done(tool("import", "--store", target.url, source.export()))
    raw, old = target.raw(), source.raw()
    assert as_told(raw, "own")[3] == b"own"
    for key in keys:
        told, answer = as_told(old, key), as_told(raw, key)
        assert answer[0] == told[0] and answer[2:-1] == told[2:-1], key
    assert target.daemon.cli("export", "--output",
                             target.folder / "back").returncode == 0
    assert set(records(target.folder / "back")) == {"own", *keys}


# ---- the file ----


def test_the_file_is_closed_to_others_and_never_written_over(embedded):
    complete(embedded.raw(), "k")
    path = embedded.export()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    again = embedded.daemon.cli("export", "--output", path)
    assert again.returncode == 2 and "exists" in again.stderr


def test_the_file_says_what_it_is_and_how_much_it_holds(embedded):
    keys = fill(embedded)
    found = lines(embedded.export())
    assert found[0]["type"] == "latchkey-export"
    assert found[0]["version"] == 1 and found[0]["store"] == embedded.kind
    assert found[-1] == {"type": "end", "records": len(keys), "audit": 2}
    by_key = {line["key"]: line for line in found if line["type"] == "record"}
    assert by_key["text"]["body"] == "grüße\n"
    assert "body_base64" in by_key["completed"]
    assert by_key["running"]["owner"] == "own\0er"


def test_an_export_goes_to_standard_output_and_comes_from_input(embedded):
    complete(embedded.raw(), "k")
    exported = done(embedded.daemon.cli("export", input=b""))
    result = done(tool("import", "--store", embedded.target.url,
                       input=exported.stdout))
    assert b"1 operations: 1 taken" in result.stdout
    assert as_told(embedded.target.start().raw(), "k")[3] == BINARY


def test_a_file_that_was_cut_is_noticed_and_what_was_taken_stays(embedded):
    raw = embedded.raw()
    for i in range(1500):
        complete(raw, "k%d" % i, b"body %d" % i)
    whole = embedded.export().read_bytes()
    every = whole.splitlines(keepends=True)
    cuts = [b"".join(every[:-1]), whole[:-20], b"".join(every[:1300]),
            b"".join(every[:1300])[:-30], b"".join(every[:1300])[:-1]]
    for cut in cuts:
        path = embedded.folder / "cut"
        path.write_bytes(cut)
        result = tool("import", "--store", embedded.target.url, path)
        assert result.returncode == 1, result
        assert "cut" in result.stderr and "stay" in result.stderr or \
            "taken" not in result.stderr
        assert str(len(cut.splitlines())) in result.stderr
    path.write_bytes(whole)
    report = embedded.target.take(path)
    assert report["operations"] == 1500 and report["older"] > 0
    raw = embedded.target.start().raw()
    for i in range(1500):
        assert as_told(raw, "k%d" % i)[3] == b"body %d" % i


def damaged(name, change):
    return pytest.param(change, id=name)


@pytest.mark.parametrize("change", [
    damaged("no JSON", lambda line: b"what" + line),
    damaged("unknown member", lambda line: line.replace(b'"key"', b'"kez"')),
    damaged("unknown state", lambda line: line.replace(b"completed\"",
                                                       b"finished\"", 1)),
    damaged("no token", lambda line: line.replace(b'"token"', b'"attempt"',
                                                  1)),
    damaged("bad base64", lambda line: line.replace(b'"body_base64":"',
                                                    b'"body_base64":"*')),
    damaged("negative", lambda line: line.replace(b'"token":', b'"token":-')),
    damaged("huge", lambda line: line.replace(b'"token":', b'"token":9' +
                                              b"0" * 17)),
    damaged("twice", lambda line: line),
])
def test_a_damaged_line_is_refused_with_its_number(embedded, change):
    complete(embedded.raw(), "k")
    every = embedded.export().read_bytes().splitlines(keepends=True)
    bad = change(every[1])
    every[1:2] = [bad, bad] if bad == every[1] else [bad]
    path = embedded.folder / "bad"
    path.write_bytes(b"".join(every))
    result = tool("import", "--store", embedded.target.url, path)
    assert result.returncode == 1, result
    assert "line " in result.stderr


def test_a_file_of_another_version_and_what_is_no_export_are_refused(embedded):
    complete(embedded.raw(), "k")
    every = embedded.export().read_text().splitlines(keepends=True)
    path = embedded.folder / "other"
    for first, word in ((every[0].replace('"version":1', '"version":2'),
                         "version 2"),
                        (every[1], "not an export"), ("", "not an export")):
        path.write_text(first + "".join(every[1:]) if first else "")
        result = tool("import", "--store", embedded.target.url, path)
        assert result.returncode == 1 and word in result.stderr, result
    missing = tool("import", "--store", embedded.target.url,
                   embedded.folder / "missing")
    assert missing.returncode == 2


# ---- who may ----


def test_an_export_needs_the_right_to_operate_and_is_on_record(source):
    complete(source.raw(), "k")
    path = source.folder / "mine"
    for user in ("reader", None):
        result = source.daemon.cli("export", "--output", path, user=user)
        assert result.returncode == 4, result
        assert not path.exists()
    raw = source.operator()
    refused = raw("EXPORT", "0", "10")
    assert refused.code == "ERR" and "BEGIN" in refused
    assert raw("EXPORT", "BEGIN", "WHO", "me").code == "ERR"
    assert fields(raw("EXPORT", "BEGIN", "WHO", "me", "WHY", "x"))["version"]
    assert raw("EXPORT", "0", "0").code == "ERR"
    assert raw("EXPORT", "0", "1001").code == "ERR"
    cursor, found = raw("EXPORT", "0", "10")
    assert fields(found[0])["body"] == BINARY
    assert audit(source)[-1]["who"] == b"operator/me"
    raw.login("operator")  # somebody else, as far as anybody knows
    assert raw("EXPORT", "0", "10").code == "ERR"


def test_large_answers_come_in_pages_that_end_in_time(source, target):
    raw = source.raw()
    bodies = {"k%d" % i: os.urandom(1 << 20) for i in range(24)}
    for key, body in bodies.items():
        complete(raw, key, body)
    operator = source.operator()
    operator("EXPORT", "BEGIN", "WHO", "me", "WHY", "x")
    _, page = operator("EXPORT", "0", "1000")
    assert 0 < len(page) < len(bodies)
    move(source, target)
    raw = target.start().raw()
    for key, body in bodies.items():
        assert as_told(raw, key)[3] == body


# ---- the embedded store alone ----


def test_a_store_that_has_a_daemon_is_not_opened_a_second_time(place):
    one = place("sqlite").start()
    complete(one.raw(), "k")
    path = one.export()
    for words in (("import", "--store", one.url, path),
                  ("export", "--store", one.url)):
        result = tool(*words)
        assert result.returncode == 1, result
        assert "owned" in result.stderr and result.stdout == ""


def test_an_export_makes_no_store_where_there_is_none(tmp_path):
    result = tool("export", "--store", "sqlite:%s/none.db" % tmp_path)
    assert result.returncode == 2 and not os.listdir(tmp_path)


def test_a_clock_that_was_ahead_is_not_taken_over_C24(place):
    source, target = place("sqlite").start(), place("sqlite")
    claim(source.raw(), "k", "LOCK", DAY)
    now = fields(source.operator()("STATS"))["now-ms"]
    every = lines(source.export())
    every[1]["claimed_ms"] = now + 1000 * DAY
    every[1]["lock_until_ms"] = now + 1001 * DAY
    path = source.folder / "ahead"
    path.write_text("".join(json.dumps(line) + "\n" for line in every))
    target.take(path)
    target.start()
    assert fields(target.operator()("STATS"))["now-ms"] < now + DAY
    assert as_told(target.raw(), "k")[0] == b"INFLIGHT"


# ---- check-store, migrate ----


def test_check_store_says_what_the_embedded_store_promises(place, tmp_path):
    one = place("sqlite")
    for state in ("absent", "owned", "idle"):
        result = done(tool("check-store", one.url, "--strict"))
        assert "survives power loss" in result.stdout, state
        assert result.stdout.splitlines()[-1] == "strict: yes"
        if state == "absent":
            assert not (tmp_path / "store0.db").exists()
            one.start()
        elif state == "owned":
            assert "latchkeyd owns" in result.stderr
            one.stop()
    document = json.loads(done(tool("check-store", "--json",
                                    one.url)).stdout)
    assert document["strict"] == "yes" and document["promises"]


def test_check_store_reads_a_configuration(place, tmp_path):
    one = place("sqlite")
    config = tmp_path / "latchkeyd.conf"
    config.write_text("# a comment\n[daemon]\nstore = %s\n[store]\n"
                      "accept_loss = no\nsweep_interval = 1s\n" % one.url)
    assert "strict: yes" in done(tool("check-store", "--config",
                                      config)).stdout
    config.write_text("[store]\naccept_loss = perhaps\n")
    assert tool("check-store", one.url, "--config", config).returncode == 2
    assert tool("check-store", one.url, "--set", "no=1").returncode == 2
    assert tool("check-store").returncode == 2
    done(tool("check-store", env={"LATCHKEY_STORE": one.url}))


def test_check_store_reads_a_configuration_as_latchkeyd_does(tmp_path):
    config = tmp_path / "latchkeyd.conf"
    config.write_text("[daemon]\nstore = sqlite:%s/x.db\n[store]\n"
                      "timeout = 30\ncache = redis://db/first\n"
                      "[users]\nops = read\n[target pay]\nrate = 5\n"
                      % tmp_path)

    def complaints(result):
        assert result.returncode == 2, result.stdout + result.stderr
        return [line.split(": ", 1)[1] for line in result.stderr.splitlines()]

    def daemon():
        return subprocess.run(
            [build.BUILD / "latchkeyd", "--config", config, "--check-config"],
            capture_output=True, text=True, timeout=120 * build.patience())

    told = complaints(daemon())
    assert len(told) == 3
    assert '"30" has no unit; add ms, s, m, h or d, as in 30s' in told[0]
    assert complaints(tool("check-store", "--config", config)) == told
    config.write_text("[target pay]\nrate = 5\n")
    told = complaints(daemon())
    assert "%s:2: target.pay.url: is missing" % config in told
    assert complaints(tool("check-store", "--config", config)) == told


def test_check_store_finds_what_is_no_store(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("Dear all,\n" * 2000)
    assert tool("check-store", "sqlite:%s" % path).returncode == 1
    assert path.read_text().startswith("Dear all")
    assert os.listdir(tmp_path) == ["letter.txt"]  # no side file is left
    assert tool("check-store", "mysql://x").returncode == 2
    absent = tool("check-store", "sqlite:%s/absent/x.db" % tmp_path)
    assert absent.returncode == 1
    assert "its folder must be there" in absent.stderr
    os.symlink(tmp_path / "unmounted", tmp_path / "link.db")
    link = tool("check-store", "sqlite:%s/link.db" % tmp_path)
    assert link.returncode == 1 and "symbolic link" in link.stderr


def test_migrate_has_nothing_to_do_for_an_embedded_store(tmp_path):
    url = "sqlite:%s/x.db" % tmp_path
    assert "nothing" in done(tool("migrate", url)).stdout
    assert not os.listdir(tmp_path)
    assert tool("migrate", "mysql://x").returncode == 2
    assert tool("migrate").returncode == 2
    assert tool("migrate", url, "--print").returncode == 2


def test_migrate_may_be_run_again_and_prints_what_it_would_do(servers):
    server = servers("postgres")
    url = server.create_database()
    assert "schema" in done(tool("migrate", url)).stdout
    assert "nothing" in done(tool("migrate", url)).stdout
    printed = done(tool("migrate", "--print")).stdout
    other = server.create_database("printed")
    server.psql(printed, database="printed")
    assert "nothing" in done(tool("migrate", other)).stdout
    report = done(tool("migrate", "--json", env={"LATCHKEY_STORE": other}))
    assert json.loads(report.stdout)["result"] == "OK"
    assert tool("migrate", "postgres://postgres@127.0.0.1:1/x").returncode == 3


def test_migrate_loads_the_functions_of_redis(servers):
    server = servers("redis", appendonly=True, appendfsync="always")
    for _ in range(2):
        done(tool("migrate", server.url()))
    assert b"latchkey" in server.admin.function_list()[0]
    assert "latchkey" in done(tool("migrate", "--print",
                                   server.url())).stdout
    assert tool("migrate", "redis://127.0.0.1:1").returncode == 3


def test_check_store_refuses_to_call_strict_what_may_lose(place, servers):
    url = place("postgres").url
    server = servers("postgres")
    assert "strict: yes" in done(tool("check-store", url, "--strict")).stdout
    server.set("synchronous_commit", "off")
    try:
        refused = tool("check-store", url)
        assert refused.returncode == 1
        assert "synchronous_commit" in refused.stderr
        weak = tool("check-store", url, "--strict", "--set",
                    "accept_loss=yes")
        assert weak.returncode == 1 and "strict: no" in weak.stdout
    finally:
        server.set("synchronous_commit", "on")
    url = place("redis").url
    assert "strict: no" in done(tool("check-store", url)).stdout
    assert tool("check-store", url, "--strict").returncode == 1
