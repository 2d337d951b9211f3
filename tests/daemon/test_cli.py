"""latchkey, the command line tool, against a real daemon."""

import hmac
import json
import re
import subprocess
import threading

import pytest

from support import build
from support.resp import fields

NAME = ("acme", "POST /pay", "k1")
REFERENCE = re.compile(r"[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}")


def claim(raw, name=NAME, *options):
    answer = raw("CLAIM", *name, "1:00", *options)
    assert answer[0] == b"NEW", answer
    return answer[1]


def complete(raw, name=NAME, body=b'{"ok":true}'):
    token = claim(raw, name)
    answer = raw("COMPLETE", *name, token, 201,
                 "Content-Type: application/json\r\n", body)
    assert answer == "OK", answer
    return token


def doubt(raw, name=NAME):
    token = claim(raw, name)
    assert raw("DOUBT", *name, token, "the app timed out") == "OK"
    return token


def state(raw, name=NAME):
    return fields(raw("LOOKUP", *name))["state"].decode()


def reference(raw, name=NAME):
    return fields(raw("LOOKUP", *name))["reference"].decode()


def audit(daemon):
    result = daemon.cli("audit", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["entries"]


def run(*args, input=""):
    """Without a daemon."""
    return subprocess.run([str(build.BUILD / "latchkey"), *args], input=input,
                          capture_output=True, text=True, timeout=60,
                          env={"LATCHKEY_SERVER": "unix:/nonexistent/s"})


# ---- looking ----


def test_get_shows_an_operation_and_its_answer(daemon, raw):
    complete(raw)
    result = daemon.cli("get", *NAME)
    assert result.returncode == 0, result.stderr
    for text in ("completed 201", "claimed (attempt 1)", "headers 32 bytes",
                 "body 11 bytes", "(in 2", reference(raw)):
        assert text in result.stdout, result.stdout
    for time in re.findall(r"\d{4}-\d\d-\d\d\S*", result.stdout):
        assert re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", time), result.stdout
    assert daemon.cli("get", *NAME, "--body", "--why",
                      "ticket 7").stdout == '{"ok":true}'


def test_get_has_stable_names_in_json(daemon, raw):
    complete(raw)
    document = json.loads(daemon.cli("get", *NAME, "--json").stdout)
    assert document["state"] == "completed"
    assert document["status"] == 201
    assert document["body"] == '{"ok":true}'
    assert document["tenant"] == "acme"
    assert {"completed_ms", "expires_ms", "ttl_ms", "claimed_ms", "token",
            "attempt", "reference", "fingerprint"} <= set(document)


def test_get_of_a_stored_answer_is_exit_1_where_there_is_none(daemon, raw):
    claim(raw)
    result = daemon.cli("get", *NAME, "--body", "--why", "ticket 7")
    assert result.returncode == 1
    assert "in_progress" in result.stderr and result.stdout == ""


def test_what_is_not_there_is_exit_1(daemon, raw):
    for words in (("get", *NAME), ("find", "acme", "0000-0000-0000"),
                  ("release", *NAME, "--why", "x"),
                  ("evict", *NAME, "--why", "x")):
        result = daemon.cli(*words)
        assert result.returncode == 1, (words, result.stderr)
        assert result.stderr.startswith("latchkey: ")
    assert json.loads(daemon.cli("get", *NAME, "--json").stdout) is None


def test_find_knows_a_reference_of_this_tenant_only_C35_C18(daemon, raw):
    claim(raw)
    code = reference(raw)
    found = daemon.cli("find", "acme", code.lower().replace("-", ""), "--json")
    assert json.loads(found.stdout)["key"] == "k1"
    other = daemon.cli("find", "other", code)
    assert other.returncode == 1 and other.stdout == ""


def test_find_takes_a_reference_alone_as_it_was_pasted(daemon, raw):
    claim(raw)
    code = reference(raw)
    for word in (code, code.lower(), code.replace("-", ""), "(%s)." % code,
                 "Reference: " + code):
        for command in ("find", "get"):
            result = daemon.cli(command, word, "--json")
            assert result.returncode == 0, (word, result.stderr)
            assert json.loads(result.stdout)["key"] == "k1"
    result = daemon.cli("find", "0000-0000-0000")
    assert result.returncode == 1 and "0000-0000-0000" in result.stderr
    assert json.loads(daemon.cli("find", "0000-0000-0000",
                                 "--json").stdout) is None
    assert daemon.cli("find", code, user="reader").returncode == 0
    refused = daemon.cli("find", code, user=None)
    assert refused.returncode == 4 and "tenant" in refused.stderr


def test_several_references_are_all_shown(daemon, raw):
    codes = []
    for key in ("k1", "k2"):
        claim(raw, ("acme", "POST /pay", key))
        codes.append(reference(raw, ("acme", "POST /pay", key)))
    result = daemon.cli("find", *codes, "0000-0000-0000", "--json")
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)["operations"]
    assert [one["reference"] for one in found] == codes + ["0000-0000-0000"]
    assert found[2]["result"] == "NIL"
    text = daemon.cli("find", *codes).stdout
    assert text.index(codes[0]) < text.index(codes[1])


def test_the_story_of_an_operation_says_who_put_the_answer_there_C35(
        daemon, raw):
    doubt(raw)
    shown = daemon.cli("get", *NAME).stdout
    assert "uncertain: needs a person" in shown.splitlines()[0]
    assert "uncertain: the app timed out" in shown
    assert "for ever, until a person decides, then for 24 h" in shown
    assert "latchkey release " + reference(raw) in shown
    daemon.cli("resolve", *NAME, "--completed", "200", "--why",
               "seen at the provider", "--who", "alice", check=True)
    shown = daemon.cli("find", reference(raw)).stdout
    assert "completed 200 by an operator" in shown.splitlines()[0]
    assert ('resolved as completed by operator/alice: "seen at the provider"'
            in shown)
    assert "latchkey release" not in shown
    daemon.cli("get", *NAME, "--body", "--why", "ticket 7", check=True)
    shown = daemon.cli("get", *NAME).stdout
    assert 'response read by operator/' in shown and '"ticket 7"' in shown
    document = json.loads(daemon.cli("get", *NAME, "--json").stdout)
    assert document["needs_person"] is False
    assert [event["event"] for event in document["story"]] == [
        "claimed", "completed", "operator", "operator"]
    times = [event["at_ms"] for event in document["story"]]
    assert times == sorted(times) and times[0] == document["claimed_ms"]
    assert [entry["action"] for entry in document["audit"]] == [
        "resolve completed", "look"]


def test_an_app_sees_an_operation_but_not_its_whole_story_C36(daemon, raw):
    complete(raw)
    result = daemon.cli("get", *NAME, user=None)
    assert result.returncode == 0, result.stderr
    assert "completed 201" in result.stdout
    assert "history is not complete" in result.stderr
    document = json.loads(daemon.cli("get", *NAME, "--json", user=None).stdout)
    assert document["partial"] is True


def test_list_filters_and_pages(daemon, raw):
    for i in range(7):
        claim(raw, ("acme", "POST /pay", "k%d" % i))
    doubt(raw, ("zeta", "POST /pay", "odd"))

    def keys(*options):
        result = daemon.cli("list", "--json", *options)
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        return [r["key"] for r in document["operations"]], document["next_cursor"]

    assert keys("--state", "uncertain") == (["odd"], 0)
    assert keys("--tenant", "zeta")[0] == ["odd"]
    assert keys("--older", "1h")[0] == []
    assert sorted(keys("--all")[0]) == sorted(
        ["k%d" % i for i in range(7)] + ["odd"])
    first, cursor = keys("--limit", "3")
    assert len(first) == 3 and cursor != 0
    rest, _ = keys("--cursor", str(cursor))
    assert sorted(first + rest) == sorted(keys("--all")[0])


def test_list_asks_for_scope_and_time_and_goes_either_way(daemon, raw):
    for i in range(5):
        claim(raw, ("acme", "POST /pay", "k%d" % i), "LOCK", 3600000)
    claim(raw, ("acme", "POST /refund", "r"), "LOCK", 3600000)
    doubt(raw, ("acme", "POST /pay", "odd"))
    ms = fields(raw("LOOKUP", "acme", "POST /refund", "r"))["claimed-ms"]

    def keys(*options):
        result = daemon.cli("list", "--json", *options)
        assert result.returncode == 0, result.stderr
        return " ".join(r["key"] for r in
                        json.loads(result.stdout)["operations"])

    assert keys() == "k0 k1 k2 k3 k4 r odd"
    assert keys("--newest") == "odd r k4 k3 k2 k1 k0"
    assert keys("--newest", "--limit", "2") == "odd r"
    assert keys("--scope", "POST /refund") == "r"
    assert keys("--attention") == "odd"
    assert keys("--since", "1h") == keys()
    assert keys("--until", "1h") == ""
    assert "r" in keys("--since", str(ms), "--until", str(ms + 1)).split()
    assert keys("--since", "2020-01-31T08:00Z") == keys()
    assert keys("--until", "2020-01-31T08:00Z") == ""
    page = json.loads(daemon.cli("list", "--json", "--newest", "--limit",
                                 "3").stdout)
    assert keys("--newest", "--cursor", page["next_cursor"]) == "k3 k2 k1 k0"
    assert daemon.cli("list", "--since", "soon").returncode == 2


def test_list_for_people_marks_what_is_uncertain(daemon, raw):
    claim(raw)
    doubt(raw, ("zeta", "POST /pay", "odd"))
    lines = daemon.cli("list").stdout.splitlines()
    assert len(lines) == 3
    assert [line for line in lines if line.startswith("!")] == [
        line for line in lines if "odd" in line]


def test_stats_parse_and_count(daemon, raw):
    claim(raw)
    document = json.loads(daemon.cli("stats", "--json").stdout)
    assert document["records"] == 1
    assert daemon.cli("stats").returncode == 0


def test_a_hostile_scope_and_body_are_escaped(daemon, raw):
    name = ("a\x1b[2Jb", "POST /\n\x9b", "k")
    complete(raw, name, body=b"\xff\xfe")
    for result in (daemon.cli("get", *name), daemon.cli("list")):
        assert result.returncode == 0, result.stderr
        assert r"a\x1b[2Jb" in result.stdout
        assert "\x1b" not in result.stdout and "\x9b" not in result.stdout
    document = json.loads(daemon.cli("get", *name, "--json").stdout)
    assert document["body_base64"] == "//4="
    assert document["tenant"] == name[0]


def test_ping_and_the_ways_to_name_the_daemon(daemon):
    assert daemon.cli("ping").stdout.startswith("PONG")
    assert daemon.cli("--server", daemon.tcp_address, "ping").returncode == 0
    assert json.loads(daemon.cli("ping", "--json").stdout)["result"] == "PONG"


# ---- operating ----


def test_release_lets_a_retry_run_and_is_audited_C35(daemon, raw):
    doubt(raw)
    code = reference(raw)
    result = daemon.cli("release", *NAME, "--why", "provider says no",
                        "--who", "oncall")
    assert result.returncode == 0, result.stderr
    assert code in result.stdout
    claim(raw)
    entry = audit(daemon)[-1]
    # The user that logged in cannot be hidden behind --who.
    assert entry["who"] == "operator/oncall"
    assert entry["why"] == "provider says no"
    assert (entry["tenant"], entry["scope"], entry["key"]) == NAME
    assert entry["at_ms"] > 0 and entry["id"] > 0


def test_what_still_runs_is_not_released_without_running_C35(daemon, raw):
    claim(raw)
    for command in (("release", *NAME), ("resolve", *NAME, "--released"),
                    ("resolve", *NAME, "--completed", "200")):
        result = daemon.cli(*command, "--why", "x")
        assert result.returncode == 1, result
        assert reference(raw) in result.stderr
        assert "it was claimed" in result.stderr
        assert "--running" in result.stderr
        assert json.loads(daemon.cli(*command, "--why", "x", "--json").stdout
                          ) == {"result": "INFLIGHT",
                                "reference": reference(raw)}
    assert state(raw) == "in_progress"
    assert audit(daemon) == []
    result = daemon.cli("release", *NAME, "--why", "the app is gone",
                        "--running")
    assert result.returncode == 0, result.stderr
    assert audit(daemon)[-1]["action"] == "resolve released (running)"
    assert state(raw) == "released"


def test_resolve_as_completed_is_what_retries_get_C35(daemon, raw, tmp_path):
    doubt(raw)
    body = tmp_path / "body"
    body.write_bytes(b"paid\x00")
    result = daemon.cli("resolve", *NAME, "--completed", "200", "--body-file",
                        body, "--why", "seen at the provider", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["result"] == "OK" and document["state"] == "completed"
    assert document["reference"] == reference(raw)
    again = raw("CLAIM", *NAME, "1:00")
    assert again[:4] == [b"REPLAY", 200, b"", b"paid\x00"]
    assert audit(daemon)[-1]["why"] == "seen at the provider"


def test_a_resolution_may_have_any_status_of_the_wire(daemon, raw):
    for status in (100, 599):
        name = ("acme", "s", "k%d" % status)
        doubt(raw, name)
        result = daemon.cli("resolve", *name, "--completed", str(status),
                            "--why", "x")
        assert result.returncode == 0, result.stderr
        assert raw("CLAIM", *name, "1:00")[:2] == [b"REPLAY", status]


def test_resolve_as_released_is_release(daemon, raw):
    doubt(raw)
    result = daemon.cli("resolve", *NAME, "--released", "--why", "x")
    assert result.returncode == 0, result.stderr
    assert state(raw) == "released"


def test_evict_forgets_the_answer_and_is_audited_C35(daemon, raw):
    complete(raw)
    before = len(audit(daemon))
    result = daemon.cli("evict", *NAME, "--why", "wrong amount")
    assert result.returncode == 0, result.stderr
    assert REFERENCE.search(result.stdout)
    claim(raw)
    entries = audit(daemon)
    assert len(entries) == before + 1
    assert entries[-1]["why"] == "wrong amount" and entries[-1]["who"]


def test_what_was_evicted_is_said_to_have_no_answer_any_more(daemon, raw):
    complete(raw)
    daemon.cli("evict", *NAME, "--why", "wrong amount", check=True)
    for words in (("evict", *NAME), ("release", reference(raw)),
                  ("resolve", *NAME, "--completed", "200")):
        result = daemon.cli(*words, "--why", "x")
        assert result.returncode == 1, result
        assert reference(raw) + " is released already" in result.stderr
        assert "no operation" not in result.stderr
    assert len(audit(daemon)) == 1


def test_several_references_are_acted_on_each_with_its_outcome_C35(daemon,
                                                                   raw):
    names = [("acme", "POST /pay", key) for key in ("k1", "k2", "k3")]
    doubt(raw, names[0])
    complete(raw, names[1])
    doubt(raw, names[2])
    codes = [reference(raw, name) for name in names]
    result = daemon.cli("release", codes[0], codes[1], "0000-0000-0000",
                        codes[2], "--why", "the provider has none of them")
    assert result.returncode == 1
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == [
        "released " + codes[0], "released " + codes[2]]
    assert codes[1] in result.stderr and "0000-0000-0000" in result.stderr
    assert [state(raw, name) for name in names] == ["released", "completed",
                                                    "released"]
    assert {entry["why"] for entry in audit(daemon)} == {
        "the provider has none of them"}
    result = daemon.cli("evict", codes[0], codes[1], "--why", "x", "--json")
    assert result.returncode == 1, result.stderr
    assert [(one["result"], one["reference"]) for one in
            json.loads(result.stdout)["operations"]] == [
        ("NIL", codes[0]), ("OK", codes[1])]


def test_one_answer_resolves_several_references(daemon, raw):
    names = [("acme", "POST /pay", key) for key in ("k1", "k2")]
    for name in names:
        doubt(raw, name)
    result = daemon.cli("resolve", *(reference(raw, name) for name in names),
                        "--completed", "202", "--body-file", "-", "--why",
                        "queued at the provider", input="later")
    assert result.returncode == 0, result.stderr
    for name in names:
        assert raw("CLAIM", *name, "1:00")[:4] == [b"REPLAY", 202, b"",
                                                   b"later"]


def test_a_completed_operation_is_not_released(daemon, raw):
    complete(raw)
    result = daemon.cli("release", *NAME, "--why", "x")
    assert result.returncode == 1
    assert reference(raw) in result.stderr
    assert state(raw) == "completed"


def test_an_operation_whose_answer_was_not_kept_is_not_released(daemon, raw):
    token = claim(raw)
    assert raw("COMPLETE", *NAME, token, 200, "", "", "OMIT",
               "too large") == "OK"
    assert "too large" in daemon.cli("get", *NAME).stdout
    result = daemon.cli("release", *NAME, "--why", "x")
    assert result.returncode == 1
    assert reference(raw) in result.stderr


def test_an_unfinished_operation_is_not_evicted(daemon, raw):
    claim(raw)
    result = daemon.cli("evict", *NAME, "--why", "x")
    assert result.returncode == 1
    assert "in_progress" in result.stderr
    document = json.loads(
        daemon.cli("evict", *NAME, "--why", "x", "--json").stdout)
    assert document == {"result": "ERR", "state": "in_progress"}
    assert state(raw) == "in_progress"
    assert audit(daemon) == []


def test_keep_remembers_an_operation_longer_and_is_audited(daemon, raw):
    complete(raw)
    before = fields(raw("LOOKUP", *NAME))["expires-ms"]
    result = daemon.cli("keep", *NAME, "--for", "90d", "--why", "dispute")
    assert result.returncode == 0, result.stderr
    assert reference(raw) in result.stdout and "completed" in result.stdout
    after = fields(raw("LOOKUP", *NAME))["expires-ms"]
    assert after - before > 88 * 86400000
    entry = audit(daemon)[-1]
    assert (entry["action"], entry["key"], entry["why"]) == (
        "keep", NAME[2], "dispute")
    document = json.loads(daemon.cli("keep", reference(raw), "--for", "1h",
                                     "--why", "x", "--json").stdout)
    assert document["result"] == "OK" and document["state"] == "completed"
    assert fields(raw("LOOKUP", *NAME))["expires-ms"] == after
    assert daemon.cli("keep", *NAME, "--why", "x").returncode == 2
    assert daemon.cli("keep", "acme", "s", "none", "--for", "1h", "--why",
                      "x").returncode == 1
    assert daemon.cli("keep", *NAME, "--for", "1h", "--why", "x",
                      user="reader").returncode == 4


def test_an_app_keeps_without_a_reason_and_an_operator_with_one(daemon, raw):
    complete(raw)
    operator = daemon.raw(user="operator")
    signed = ("WHO", "me", "WHY", "so")
    assert raw("KEEP", *NAME, 1000) == "OK"
    assert raw("KEEP", *NAME, 1000, *signed).startswith("NOPERM")
    assert operator("KEEP", *NAME, 1000, *signed) == "OK"
    assert operator("KEEP", *NAME, 1000, "WHO", "me") == \
        "ERR KEEP: WHY is missing"


def test_audit_goes_on_after_an_entry(daemon, raw):
    for i in range(3):
        name = ("acme", "s", "k%d" % i)
        doubt(raw, name)
        daemon.cli("release", *name, "--why", "reason %d" % i, check=True)
    entries = audit(daemon)
    assert [e["why"] for e in entries] == ["reason 0", "reason 1", "reason 2"]
    result = daemon.cli("audit", "--json", "--limit", "1", "--after",
                        str(entries[0]["id"]))
    assert [e["why"] for e in json.loads(result.stdout)["entries"]] == \
        ["reason 1"]
    assert "reason 1" in daemon.cli("audit").stdout


def test_audit_shows_the_newest_and_how_many_there_are(daemon, raw):
    for i in range(5):
        name = ("acme", "s", "k%d" % i)
        doubt(raw, name)
        daemon.cli("release", *name, "--why", "reason %d" % i, "--who",
                   "anna" if i % 2 else "bert", check=True)
    complete(raw)
    daemon.cli("evict", *NAME, "--why", "wrong answer", check=True)
    ids = [entry["id"] for entry in audit(daemon)]

    def whys(*options):
        result = daemon.cli("audit", "--json", *options)
        assert result.returncode == 0, result.stderr
        return [e["why"] for e in json.loads(result.stdout)["entries"]]

    result = daemon.cli("audit", "--limit", "2")
    lines = result.stdout.splitlines()
    assert "reason 4" in lines[-2] and "wrong answer" in lines[-1]
    assert len(lines) == 3
    assert "the newest 2; 4 earlier: --all, or --before %d" % ids[4] \
        in result.stderr
    assert whys("--limit", "2", "--before", ids[4]) == ["reason 2", "reason 3"]
    assert whys("--all") == ["reason %d" % i for i in range(5)] + [
        "wrong answer"]
    assert whys("--who", "anna") == ["reason 1", "reason 3"]
    assert whys("--who", "operator") == whys()
    assert whys("--action", "resolve released") == whys()[:5]
    assert whys("--action", "evict") == ["wrong answer"]
    assert whys("--reference", reference(raw)) == ["wrong answer"]
    assert whys("--tenant", "zeta") == whys("--job", "1") == []
    assert whys("--since", "1h") == whys() and whys("--until", "1h") == []
    assert daemon.cli("audit", "--reference", "0000-0000-0000").returncode == 1
    assert daemon.cli("audit", "--json", "--follow").returncode == 2


def test_audit_follows_what_is_done(daemon, raw):
    doubt(raw)
    with subprocess.Popen([str(daemon.build / "latchkey"), "audit",
                           "--follow"], env=daemon.cli_environment(),
                          stdout=subprocess.PIPE, text=True) as following:
        late = threading.Timer(60 * build.patience(), following.kill)
        late.start()
        daemon.cli("release", *NAME, "--why", "first", check=True)
        assert any("first" in line for line in following.stdout)
        doubt(raw, ("acme", "s", "k2"))
        daemon.cli("release", "acme", "s", "k2", "--why", "then", check=True)
        assert any("then" in line for line in following.stdout)
        late.cancel()
        following.kill()


def test_the_clock_can_be_accepted(daemon):
    result = daemon.cli("clock", "accept", "--why", "NTP was repaired")
    assert result.returncode == 0, result.stderr
    assert audit(daemon)[-1]["why"] == "NTP was repaired"
    assert daemon.cli("clock", "set", "--why", "x").returncode == 2


def test_verify_finds_a_healthy_store_healthy(daemon, raw):
    complete(raw)
    assert daemon.cli("verify").returncode == 0
    document = json.loads(daemon.cli("verify", "--json").stdout)
    assert document["result"] == "ok"


def test_backup_writes_a_file_once(daemon, raw):
    complete(raw)
    copy = daemon.folder / "copy.db"
    result = daemon.cli("backup", copy)
    assert result.returncode == 0, result.stderr
    assert copy.stat().st_size > 0
    size = copy.stat().st_size
    assert daemon.cli("backup", copy).returncode == 5
    assert copy.stat().st_size == size


# ---- roles ----


def test_a_reader_looks_but_does_not_touch_C36(daemon, raw):
    complete(raw)
    for words in (("list",), ("stats",), ("audit",), ("verify",)):
        result = daemon.cli(*words, user="reader")
        assert result.returncode == 0, (words, result.stderr)
    for words in (("evict", *NAME, "--why", "x"),
                  ("release", *NAME, "--why", "x"),
                  ("resolve", *NAME, "--completed", "200", "--why", "x"),
                  ("backup", daemon.folder / "no.db"),
                  ("clock", "accept", "--why", "x")):
        result = daemon.cli(*words, user="reader")
        assert result.returncode == 4, (words, result.stderr)
        assert "not allowed" in result.stderr
        assert "needs the operate role" in result.stderr
        assert '"reader"' in result.stderr
        assert "password" not in result.stderr
    assert state(raw) == "completed"
    assert not (daemon.folder / "no.db").exists()
    assert audit(daemon) == []


def test_whoever_has_no_role_neither_looks_nor_touches_C36(daemon, raw):
    complete(raw)
    for words in (("list",), ("stats",), ("audit",), ("verify",),
                  ("evict", *NAME, "--why", "x")):
        result = daemon.cli(*words, user=None)
        assert result.returncode == 4, (words, result.stderr)
    assert state(raw) == "completed"


def test_a_wrong_password_is_exit_4(daemon, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    result = daemon.cli("stats", "--password-file", secret)
    assert result.returncode == 4
    assert "wrong" not in result.stderr.replace("WRONGPASS", "")
    assert ".;" not in result.stderr


# ---- without a daemon ----


def test_a_daemon_out_of_reach_is_exit_3_with_the_remedy(daemon):
    daemon.stop()
    result = daemon.cli("stats")
    assert result.returncode == 3
    assert daemon.address in result.stderr and "--server" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("line, text", [
    ("", "--help"),
    ("lst", '"list"'),
    ("frobnicate", "--help"),
    ("get", "needs 1"),
    ("get a b", '"a" is not a reference'),
    ("get a b c d", "TENANT SCOPE KEY"),
    ("get 7D3F-92AB-1C4E b", '"b" is not a reference'),
    ("release 7D3F-92AB-1C4E", "--why"),
    ("resolve --completed 200 --why x", "reference"),
    ("list --stat x", "--state"),
    ("list --state odd", "uncertain"),
    ("list --older soon", "not a duration"),
    ("list --older 30", "no unit; add ms, s, m, h or d, as in 30s"),
    ("list --limit 0", "--limit"),
    ("list --all --limit 5", "exclude"),
    ("list --state", "--state STATE"),
    ("list --all=5", "no value"),
    ("release a b c", "--why"),
    ("resolve a b c --why x", "--completed"),
    ("resolve a b c --why x --completed 99", "100"),
    ("resolve a b c --why x --completed 600", "599"),
    ("find a nonsense", "7D3F-92AB-1C4E"),
    ("find a 7D3F-92AB1C4E", "7D3F-92AB-1C4E"),
    ("stats --password-file /nonexistent/f", "cannot read"),
    ("resolve a b c --why x --completed 200 --released", "either"),
    ("resolve a b c --why x --released --body-file f", "no body"),
    ("resolve a b c --why x --completed 200 --body-file /nonexistent/f",
     "cannot read"),
    ("stats --user oncall", "password"),
    ("stats --timeout x", "--timeout"),
    ("--server nowhere ping", "nowhere"),
    ("fingerprint --header nonsense", "Name: value"),
    ("fingerprint --ignore nonsense", "JSON Pointer"),
    ("help frobnicate", "frobnicate"),
])
def test_a_wrong_command_line_is_exit_2_and_says_what_is_wrong(line, text):
    result = run(*line.split())
    assert result.returncode == 2, result
    assert text in result.stderr
    assert result.stdout == ""


def test_every_command_has_help():
    overview = run("--help")
    commands = re.findall(r"^  ([a-z]+) {3,}", overview.stdout, re.M)
    assert {"get", "list", "release", "fingerprint"} <= set(commands)
    assert "Exit status" in overview.stdout
    for command in commands:
        for line in ((command, "--help"), ("help", command)):
            result = run(*line)
            assert result.returncode == 0
            assert result.stdout.startswith("usage: latchkey " + command)
            assert max(map(len, result.stdout.splitlines())) <= 80
            assert len(result.stdout.splitlines()) <= 40
            assert "latchkey --help" in result.stdout
    for command in ("find", "get", "audit", "health", "release", "up"):
        assert len(run(command, "--help").stdout.splitlines()) < 27
    assert run("--version").stdout.startswith("latchkey ")
    assert run("version").stdout == run("--version").stdout


def test_both_spellings_of_a_key_are_one_C05():
    for value in ("abc-1", '"abc-1"', '  "abc-1"\t'):
        result = run("key", value)
        assert (result.returncode, result.stdout) == (0, "abc-1\n")
    assert run("key", r'"a\"b\\c"').stdout == 'a"b\\c\n'
    assert json.loads(run("--json", "key", "abc").stdout) == {"key": "abc"}


@pytest.mark.parametrize("value, fault, at", [
    ("", "empty", 0),
    ('""', "empty", 1),
    ("a b", "bad-character", 1),
    ("a\x1b", "bad-character", 1),
    ('"abc', "unterminated", 4),
    ('"a\\b"', "bad-escape", None),
    ('"a" b', "trailing", 4),
    ("x" * 256, "too-long", 255),
])
def test_a_refused_key_is_exit_1_with_reason_and_place_C05(value, fault, at):
    result = run("key", value)
    assert result.returncode == 1
    assert result.stdout.startswith("refused: ")
    assert "\x1b" not in result.stdout
    answer = run("key", "--json", value)
    assert answer.returncode == 1
    document = json.loads(answer.stdout)
    assert document["fault"] == fault and document["key"] is None
    if at is not None:
        assert document["at"] == at
        assert "offset %d\n" % at in result.stdout


def test_a_hashed_tenant_is_computed_as_the_gateway_does(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123\n")
    code = hmac.new(b"0123456789abcdef0123", b"customer-7", "sha256")
    expected = "h:%s\n" % code.hexdigest()[:32]
    words = ("tenant", "--secret-file", str(secret))
    assert run(*words, "customer-7").stdout == expected
    assert run(*words, "-", input="customer-7\n").stdout == expected
    assert json.loads(run(*words, "customer-7", "--json").stdout) == {
        "tenant": expected.strip()}
    assert "--secret-file" in run("tenant", "customer-7").stderr
    secret.write_text("short")
    refused = run(*words, "customer-7")
    assert refused.returncode == 2 and "16 bytes" in refused.stderr
    assert "short\n" not in refused.stderr


def test_json_that_means_the_same_has_one_fingerprint_C04():
    def digest(body, *options):
        result = run("fingerprint", "--method", "POST", "--path", "/pay",
                     "--content-type", "application/json", *options,
                     input=body)
        assert result.returncode == 0, result.stderr
        assert re.fullmatch(r"[0-9a-f]{64}\n", result.stdout)
        return result.stdout

    base = digest('{"a":1,"b":[true,"x"]}')
    assert digest('{ "b":[true, "\\u0078"],\n "a":10e-1 }') == base
    assert digest('{"a":2,"b":[true,"x"]}') != base
    assert digest('{"a":1,"b":["x",true]}') != base
    assert digest('{"a":1,"b":[true,"x"]}', "--path", "/other") != base
    assert digest('{"a":1,"b":[true,"x"]}', "--bind", "session") != base
    assert digest('{"a":1,"b":[true,"x"]}', "--header", "X-A: b") != base
    assert digest('{"a":1,"t":5,"b":[true,"x"]}', "--ignore", "/t") == base


def test_a_fingerprint_can_be_explained():
    command = ("fingerprint", "--content-type", "application/json")
    plain = run(*command, input='{"b":1,"a":2}').stdout
    shown = run(*command, "--explain", input='{"b":1,"a":2}').stdout
    assert shown.startswith(plain)
    assert shown.splitlines()[1] == "wire 1:" + plain.strip()
    assert '{"a":2,"b":1}' in shown
    document = json.loads(run(*command, "--json", input='{"b":1}').stdout)
    assert document["fingerprint"] == "1:" + document["digest"]
    assert document["body_form"] == "json"
    encoded = json.loads(run(*command, "--content-encoding", "GZIP", "--json",
                             input="{}").stdout)
    assert "\ncontent-encoding gzip\n" in encoded["explain"]
    assert encoded["body_form"] == "raw"
    raw_form = json.loads(run("fingerprint", "--json", input="\x1b").stdout)
    assert raw_form["body_form"] == "raw"
