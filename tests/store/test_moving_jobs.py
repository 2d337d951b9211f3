"""Moving to another store while jobs are unfinished: an export carries records
alone, and says so."""

import pytest

from support import stores
from support.life import FINGERPRINT, begin, complete, finish, name, new_key
from support.moving import Place, done, look, records, tool
from support.resp import fields

# Nobody delivers, so that jobs wait.
HELD = ["courier.enabled=no", "courier.gateway=unix:/nowhere/gateway",
        "target.pay.url=http://127.0.0.1:1"]


@pytest.fixture(params=["sqlite", "postgres"])
def source(request, make_daemon, tmp_path):
    """A store that keeps jobs, with a daemon that delivers none."""
    url = "sqlite:%s" % (tmp_path / "from.db")
    if request.param == "postgres":
        url = stores.make_postgres(request.getfixturevalue("postgres"))
    return Place(request.param, url, make_daemon, HELD).start()


@pytest.fixture
def target(make_daemon, tmp_path):
    return Place("sqlite", "sqlite:%s" % (tmp_path / "to.db"), make_daemon,
                 HELD)


def accept(raw, key):
    answer = raw("ACCEPT", *name(key), FINGERPRINT, "POST", "/payments", "",
                 "")
    assert answer[0] == b"ACCEPTED", answer


def finish_with_a_job(raw, key):
    """A completed operation, one of whose jobs waits."""
    token = begin(raw, key)
    assert raw("ENQUEUE", *name(key), token, "charge", "pay",
               "/charges") == "OK"
    assert complete(raw, key, token) == "OK"


def export(place, *options):
    """What export does, with a daemon and directly: the same."""
    path = place.folder / "file"
    results = [place.daemon.cli("export", "--output", path, *options)]
    found = path.exists() and records(path)
    path.unlink(missing_ok=True)
    place.stop()
    results.append(tool("export", "--store", place.url, "--output", path,
                        *options))
    assert (path.exists() and records(path)) == found
    assert results[0].returncode == results[1].returncode, results
    assert results[0].stderr == results[1].stderr
    place.start()
    return results[0], path


def test_an_export_is_refused_while_jobs_are_unfinished(source):
    raw = source.raw()
    finish_with_a_job(raw, new_key())
    accept(raw, new_key())
    result, path = export(source)
    assert result.returncode == 1 and not path.exists()
    assert "2 of this store are not finished" in result.stderr
    assert "--without-jobs" in result.stderr
    assert "let the courier finish" in result.stderr


def test_an_export_goes_through_once_nothing_is_unfinished(source):
    key = new_key()
    finish_with_a_job(source.raw(), key)
    operator = source.operator()
    job = fields(operator("JOBS")[1][0])
    assert operator("JOB", "DROP", job["id"], "WHO", "o", "WHY", "w") == "OK"
    result, path = export(source)
    assert result.returncode == 0 and "behind" not in result.stderr
    assert list(records(path)) == [key]


def test_what_was_accepted_is_uncertain_where_its_request_is_not_C31(
        source, target):
    keys = [new_key() for _ in range(3)]
    for key in keys[:2]:
        accept(source.raw(), key)
    finish_with_a_job(source.raw(), keys[2])
    result, path = export(source, "--without-jobs")
    assert result.returncode == 0
    assert "3 unfinished jobs stay behind" in result.stderr
    assert "2 operations were accepted and have not run" in result.stderr
    assert [records(path)[key]["state"] for key in keys] == [
        "uncertain", "uncertain", "completed"]
    assert target.take(path)["taken"] == 3
    raw = target.start().raw()
    assert b"accepted" in look(raw, name(keys[0]))["reason"]
    # Somebody was told that it would run: it neither runs twice nor is lost.
    for key in keys[:2]:
        assert raw("CLAIM", *name(key), FINGERPRINT)[0] == b"UNCERTAIN"
    assert raw("CLAIM", *name(keys[2]), FINGERPRINT)[0] == b"REPLAY"
    assert target.operator()("JOBS")[1] == []


def test_a_second_pass_brings_what_became_of_what_was_accepted(
        source, target):
    keys = [new_key() for _ in range(2)]
    for key in keys:
        accept(source.raw(), key)
    _, first = export(source, "--without-jobs")
    target.take(first)
    operator = source.operator()
    assert operator("RESOLVE", *name(keys[0]), "COMPLETED", 201, "", "done",
                    "WHO", "o", "WHY", "w") == "OK"
    assert operator("RESOLVE", *name(keys[1]), "RELEASED", "WHO", "o",
                    "WHY", "w") == "OK"
    first.unlink()
    result, second = export(source)
    assert result.returncode == 0, result
    assert target.take(second)["taken"] == 2
    raw = target.start().raw()
    answer = raw("CLAIM", *name(keys[0]), FINGERPRINT)
    assert answer[0] == b"REPLAY" and answer[3] == b"done"
    assert raw("CLAIM", *name(keys[1]), FINGERPRINT)[0] == b"NEW"


def test_a_file_that_has_something_accepted_is_refused(source, target):
    accept(source.raw(), new_key())
    _, path = export(source, "--without-jobs")
    path.write_text(path.read_text().replace('"state":"uncertain"',
                                             '"state":"accepted"'))
    result = tool("import", "--store", target.url, path)
    assert result.returncode == 1 and "line 2" in result.stderr, result
    assert done(tool("export", "--store", target.url)).stdout.count(
        '"record"') == 0


def test_a_store_that_keeps_no_jobs_is_exported_as_ever(
        redis_server, make_daemon):
    place = Place("redis", redis_server.url(), make_daemon)
    done(tool("migrate", place.url))
    key = new_key()
    finish(place.start().raw(), key)
    result, path = export(place)
    assert result.returncode == 0 and list(records(path)) == [key]
