"""latchkey jobs, dead, target and resolve --job, against a real daemon."""

import json
import pathlib
import re
import socket
import subprocess
import threading

import pytest

from support import build
from support.life import until
from support.outbox import Box


class Service:
    """Answers as the path says, /STATUS, or closes on /drop, having read."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.calls = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(client,),
                             daemon=True).start()

    def answer(self, client):
        with client, client.makefile("rb") as stream:
            path = stream.readline().split()[1].decode()
            length = 0
            while (line := stream.readline().strip()):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.calls.append((path, stream.read(length)))
            if path != "/drop":
                client.sendall(b"HTTP/1.1 %s Odd\r\nContent-Length: 5\r\n"
                               b"Connection: close\r\n\r\nhello" %
                               path[1:4].encode())

    def finish(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def service():
    made = Service()
    yield made
    made.finish()


@pytest.fixture(params=["sqlite", "postgres"])
def box(request, make_daemon, faulty, service):
    server = request.getfixturevalue("postgres") \
        if request.param == "postgres" else None
    made = Box(request.param, make_daemon, faulty, server)
    for name in ("pay", "mail"):
        made.target(name, service.url, idempotency="no", attempts="2")
    made.start("courier.probes=no")
    return made


def leave(box, path, state, **more):
    """A job that is in that state soon."""
    key = box.leave(b'{"a":1}', path=path, **more)
    return box.wait_job(key, state, tenant=more.get("tenant", "acme"))


def ask(box, *words, status=0, user="operator"):
    """A command with --json; the document."""
    result = box.daemon.cli(*words, "--json", user=user)
    assert result.returncode == status, result.stdout + result.stderr
    return json.loads(result.stdout)


def ids(document):
    return [job["id"] for job in document["jobs"]]


def audit(box):
    return ask(box, "audit")["entries"]


# ---- looking ----


def test_an_operation_with_a_dead_job_does_not_look_fine_C29(box):
    dead = leave(box, "/400", "dead")
    first, *lines = box.daemon.cli("find", dead["reference"]
                                   ).stdout.splitlines()
    assert first.startswith(dead["reference"])
    assert "but a job is dead: needs a person" in first
    told = [line for line in lines if "job %d charge -> pay: dead after 1 "
            "attempt: 400" % dead["id"] in line]
    assert len(told) == 1, lines
    assert "latchkey dead retry %d --why TEXT" % dead["id"] in lines
    assert any("and while a job is open" in line for line in lines)
    box.daemon.cli("dead", "drop", dead["id"], "--why", "refunded by hand",
                   check=True)
    shown = ask(box, "find", dead["reference"])
    assert shown["needs_person"] is False
    assert [job["state"] for job in shown["jobs"]] == ["dropped"]
    assert shown["story"][-1]["text"].endswith('"refunded by hand"')
    assert "job %d dropped by " % dead["id"] in shown["story"][-1]["text"]


def test_operations_are_found_by_what_the_provider_calls_them_C35(box):
    codes = []
    for id_ in ("pi_1", "pi_2", "pi_2"):
        doubt = leave(box, "/drop", "uncertain")
        codes.append(doubt["reference"])
        box.daemon.cli("resolve", "--job", doubt["id"], "--delivered",
                       "--provider-id", id_, "--why", "seen", check=True)
    for command in ("find", "get"):
        shown = ask(box, command, "pi_1")
        assert shown["reference"] == codes[0]
        assert shown["jobs"][0]["provider_id"] == "pi_1"
    assert [one["reference"] for one in ask(box, "find", "pi_2")["operations"]
            ] == codes[1:]
    assert [job["reference"] for job in ask(box, "jobs", "--provider-id",
                                            "pi_2")["jobs"]] == codes[1:]
    assert ask(box, "find", "pi_3", status=1) is None
    refused = box.daemon.cli("evict", "pi_2", "--why", "x")
    assert refused.returncode == 1
    assert all(code in refused.stderr for code in codes[1:])
    assert ask(box, "evict", "pi_1", "--why", "x")["reference"] == codes[0]
    assert [ask(box, "find", code)["state"] for code in codes] == [
        "released", "completed", "completed"]


def test_jobs_are_listed_by_state_target_and_tenant_C29(box):
    done = leave(box, "/200", "delivered")
    dead = leave(box, "/400", "dead", target="mail")
    doubt = leave(box, "/drop", "uncertain", tenant="zeta")
    everything = ("jobs", "--state", "all")
    assert ids(ask(box, *everything)) == [done["id"], dead["id"], doubt["id"]]
    assert ids(ask(box, "jobs")) == [dead["id"], doubt["id"]]
    assert ids(ask(box, "jobs", "--state", "dead")) == [dead["id"]]
    assert ids(ask(box, "jobs", "--state", "unfinished")) == [
        dead["id"], doubt["id"]]
    assert ids(ask(box, "jobs", "--target", "mail")) == [dead["id"]]
    assert ids(ask(box, "jobs", "--tenant", "zeta")) == [doubt["id"]]
    assert ids(ask(box, "jobs", "--reference", done["reference"])) == [
        done["id"]]
    assert ids(ask(box, *everything, "--older", "1h")) == []
    assert len(ids(ask(box, *everything, "--since", "1h"))) == 3
    assert ids(ask(box, *everything, "--until", "1h")) == []
    first = ask(box, *everything, "--limit", "2")
    assert ids(first) == [done["id"], dead["id"]]
    assert ids(ask(box, *everything, "--cursor",
                   str(first["next_cursor"]))) == [doubt["id"]]
    job = ask(box, *everything, "--limit", "1")["jobs"][0]
    assert job["state"] == "delivered" and job["downstream_key"]
    lines = box.daemon.cli(*everything).stdout.splitlines()
    assert len(lines) == 4
    assert [line for line in lines if "! " in line] == [
        line for line in lines if " dead " in line or " uncertain " in line]


def test_a_check_is_exit_1_if_there_is_any_C29(box):
    leave(box, "/200", "delivered")
    for words in (("jobs", "--state", "uncertain"), ("dead", "list")):
        result = box.daemon.cli(*words, "--check")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    dead = leave(box, "/400", "dead")
    leave(box, "/drop", "uncertain")
    assert box.daemon.cli("jobs", "--state", "uncertain",
                          "--check").returncode == 1
    result = box.daemon.cli("dead", "list", "--check")
    assert result.returncode == 1 and str(dead["id"]) in result.stdout


def test_a_job_is_shown_with_its_whole_history_C29(box):
    dead = leave(box, "/429", "dead")
    result = box.daemon.cli("jobs", "show", dead["id"])
    assert "latchkey dead retry %s --why TEXT\n" % dead["id"] in result.stderr
    shown = result.stdout
    for text in ("dead", "pay", "/429", "429", "ATTEMPT", "charge",
                 dead["reference"], dead["downstream-key"]):
        assert text in shown, text
    assert re.search("^body +7 bytes$", shown, re.M), shown
    assert re.search("^last answer +5 bytes$", shown, re.M), shown
    document = ask(box, "dead", "show", dead["id"])
    assert document["state"] == "dead" and document["attempts"] == 2
    assert [(row["number"], row["status"]) for row in document["history"]] == \
        [(1, 429), (2, 429)]
    assert document["answer_body_bytes"] == 5 and "body" not in document
    why = ("--why", "ticket 7")
    assert box.daemon.cli("jobs", "show", dead["id"], "--body",
                          *why).stdout == '{"a":1}'
    assert box.daemon.cli("dead", "show", dead["id"], "--answer",
                          *why).stdout == "hello"
    assert box.daemon.cli("jobs", "show", dead["id"], "--body").returncode == 2
    assert box.daemon.cli("jobs", "show", "999999").returncode == 1


# ---- dead letters ----


def test_by_a_filter_nothing_is_done_without_yes_C29(box):
    jobs = [leave(box, "/400", "dead") for _ in range(3)]
    other = leave(box, "/400", "dead", target="mail")
    for verb in ("retry", "drop"):
        result = box.daemon.cli("dead", verb, "--target", "pay")
        assert result.returncode == 0, result.stderr
        assert "would %s 3 dead jobs" % verb in result.stdout
        assert all(str(job["id"]) in result.stdout for job in jobs)
        document = ask(box, "dead", verb, "--all")
        assert (document["would"], document["count"]) == (verb, 4)
        assert ids(document) == [job["id"] for job in jobs + [other]]
    assert box.states() == {"dead": 4}
    assert audit(box) == []


def test_dead_jobs_are_retried_in_bulk_C29(box, service):
    box.leave_many(150, lambda key: b"{}", path="/400")
    assert box.wait_settled() == {"dead": 150}
    jobs = box.jobs()
    calls = len(service.calls)
    document = ask(box, "dead", "retry", "--target", "pay", "--yes", "--why",
                   "fixed")
    assert document == {"action": "retried", "count": 150, "moved_on": 0,
                        "gone": 0}
    until(lambda: len(service.calls) == calls + 150)
    until(lambda: box.states() == {"dead": 150})
    assert box.show(jobs[0]["id"])["attempts"] == 2
    entries = audit(box)
    assert {entry["why"] for entry in entries} == {"fixed"}


def test_dead_jobs_are_dropped_by_what_they_died_of_C29(box):
    missing = leave(box, "/404", "dead")
    refused = leave(box, "/402", "dead")
    assert "404" in missing["reason"], missing
    result = box.daemon.cli("dead", "drop", "--reason", "404", "--yes",
                            "--why", "gone for good", "--who", "oncall")
    assert result.stdout == "dropped 1 dead job\n", result.stderr
    assert box.show(missing["id"])["state"] == "dropped"
    assert box.show(refused["id"])["state"] == "dead"
    entry = audit(box)[-1]
    assert entry["who"] == "operator/oncall"
    assert entry["why"] == "gone for good"


def test_by_id_it_is_done_at_once_C29(box):
    first = leave(box, "/400", "dead")
    second = leave(box, "/400", "dead")
    third = leave(box, "/400", "dead")
    result = box.daemon.cli("dead", "drop", first["id"], second["id"],
                            "--why", "x")
    assert result.returncode == 0, result.stderr
    assert [box.show(job["id"])["state"] for job in (first, second, third)] \
        == ["dropped", "dropped", "dead"]


def test_what_is_not_dead_is_left_alone_C29(box):
    doubt = leave(box, "/drop", "uncertain")
    dead = leave(box, "/400", "dead")
    result = box.daemon.cli("dead", "drop", dead["id"], doubt["id"], "--why",
                            "x")
    assert result.returncode == 1 and "uncertain" in result.stderr
    assert box.states() == {"dead": 1, "uncertain": 1}
    assert box.daemon.cli("dead", "retry", "999999", "--why",
                          "x").returncode == 1


# ---- uncertain jobs ----


def test_an_uncertain_job_is_resolved_by_a_person(box, service):
    jobs = [leave(box, "/drop", "uncertain") for _ in range(3)]
    calls = len(service.calls)
    result = box.daemon.cli("resolve", "--job", jobs[0]["id"], "--delivered",
                            "--provider-id", "ch_1", "--why", "seen there")
    assert result.returncode == 0, result.stderr
    assert "now delivered" in result.stdout
    done = box.show(jobs[0]["id"])
    assert (done["state"], done["provider-id"]) == ("delivered", "ch_1")
    document = ask(box, "resolve", "--job", jobs[1]["id"], "--drop", "--why",
                   "never mind")
    assert document == {"result": "OK", "job": jobs[1]["id"],
                        "action": "dropped", "state": "dropped"}
    assert len(service.calls) == calls
    ask(box, "resolve", "--job", jobs[2]["id"], "--again", "--why", "no trace")
    until(lambda: len(service.calls) == calls + 1)
    until(lambda: box.show(jobs[2]["id"])["state"] == "uncertain")
    assert [entry["why"] for entry in audit(box)] == [
        "seen there", "never mind", "no trace"]


def test_what_a_person_found_out_is_about_one_attempt(box, service):
    job = leave(box, "/drop", "uncertain")
    decide = ("resolve", "--job", job["id"], "--again", "--why", "no trace",
              "--attempt", "1")
    ask(box, *decide)
    until(lambda: box.show(job["id"])["attempts"] == 2 and
          box.show(job["id"])["state"] == "uncertain")
    calls = len(service.calls)
    result = box.daemon.cli(*decide)
    assert result.returncode == 1 and "nothing was changed" in result.stderr
    assert box.show(job["id"])["state"] == "uncertain"
    assert len(service.calls) == calls


def test_what_is_over_cannot_be_resolved(box):
    done = leave(box, "/200", "delivered")
    for option in ("--delivered", "--again", "--drop"):
        result = box.daemon.cli("resolve", "--job", done["id"], option,
                                "--why", "x")
        assert result.returncode == 1, option
        assert "delivered" in result.stderr
    assert ask(box, "resolve", "--job", "999999", "--drop", "--why", "x",
               status=1)["result"] == "NIL"
    assert box.show(done["id"])["state"] == "delivered"
    assert audit(box) == []


# ---- targets ----


def test_a_paused_target_is_not_called_until_it_is_resumed(box, service):
    result = box.daemon.cli("target", "pause", "pay", "--why", "maintenance")
    assert result.stdout == "paused target pay\n", result.stderr
    waiting = leave(box, "/200", "waiting")
    leave(box, "/200", "delivered", target="mail")
    assert box.show(waiting["id"])["state"] == "waiting"
    status = {one["name"]: one for one in
              ask(box, "target", "status")["targets"]}
    assert status["pay"]["paused"] == 1 and status["pay"]["waiting"] == 1
    assert status["pay"]["why"] == "maintenance"
    assert status["mail"]["paused"] == 0
    table = box.daemon.cli("target", "status").stdout.splitlines()
    assert [line for line in table if "paused" in line] == [
        line for line in table if line.startswith("pay")]
    one = box.daemon.cli("target", "status", "pay").stdout
    assert "maintenance" in one and "mail" not in one
    assert "paused-ms" in one and "1970" not in one
    assert "oldest-dead-ms" not in one
    ask(box, "target", "resume", "pay", "--why", "done")
    until(lambda: box.show(waiting["id"])["state"] == "delivered")
    assert [entry["why"] for entry in audit(box)] == ["maintenance", "done"]


def test_what_a_target_was_sent_has_one_name_and_one_number(box):
    for _ in range(2):
        leave(box, "/200", "delivered")

    def sent():
        """By the wire, INFO and the tool."""
        line = re.search(r"target_pay:(\S+)",
                         box.operator("INFO", "outbox").decode())[1]
        head, row = [re.split(r"  +", line.strip()) for line in
                     box.daemon.cli("target", "status", "--wide")
                     .stdout.splitlines() if not line.startswith("mail")]
        status = box.target_status()
        assert not {"delivered", "dropped"} & set(status)
        assert "DELIVERED" not in head
        return (status["sent-ok"],
                int(dict(pair.split("=") for pair in line.split(","))
                    ["sent_ok"]),
                int(row[head.index("SENT OK")]))
    until(lambda: sent() == (2, 2, 2))


def test_an_unknown_target_is_told(box):
    for words in (("status", "nowhere"), ("pause", "nowhere", "--why", "x")):
        result = box.daemon.cli("target", *words)
        assert result.returncode != 0, words
        assert "target" in result.stderr and result.stdout == ""


# ---- roles, and wrong words ----


def test_a_reader_looks_at_jobs_but_does_not_touch_C36(box):
    dead = leave(box, "/400", "dead")
    for words in (("jobs",), ("jobs", "show", dead["id"]), ("dead", "list"),
                  ("dead", "retry", "--all"), ("target", "status")):
        result = box.daemon.cli(*words, user="reader")
        assert result.returncode == 0, (words, result.stderr)
    for words in (("dead", "retry", dead["id"]), ("dead", "drop", dead["id"]),
                  ("dead", "drop", "--all", "--yes"),
                  ("resolve", "--job", dead["id"], "--drop"),
                  ("target", "pause", "pay")):
        result = box.daemon.cli(*words, "--why", "x", user="reader")
        assert result.returncode == 4, (words, result.stderr)
    assert box.states() == {"dead": 1}
    assert audit(box) == []


@pytest.mark.parametrize("line, text", [
    ("jobs --state odd", "unfinished"),
    ("jobs list", "show ID"),
    ("jobs show", "show ID"),
    ("jobs show x", "not a job's id"),
    ("jobs --since soon", "2026-01-31"),
    ("jobs --all --limit 5", "exclude"),
    ("dead", "needs 1"),
    ("dead frobnicate", "retry"),
    ("dead retry", "--all"),
    ("dead retry 1 --all", "not both"),
    ("dead retry 1", "--why"),
    ("dead drop --all --yes", "--why"),
    ("dead retry 0 --why x", "not a job's id"),
    ("target", "needs 1"),
    ("target stop x", '"stop"'),
    ("target pause", "NAME"),
    ("target pause x", "--why"),
    ("resolve --job 1 --why x", "--again"),
    ("resolve --job 1 --drop", "--why"),
    ("resolve --job 1 --drop --again --why x", "exclude"),
    ("resolve --job 1 --again --provider-id x --why x", "--delivered"),
    ("resolve --job x --drop --why x", "not a job's id"),
    ("resolve a b c --job 1 --drop --why x", "one of them"),
    ("resolve a b c --drop --why x", "--job"),
    ("resolve --job 1 --completed 200 --why x", "--job"),
    ("resolve a b --released --why x", "TENANT SCOPE KEY"),
    ("reconcile", "needs 1"),
    ("reconcile pay", "--export"),
])
def test_a_wrong_command_line_is_exit_2_and_says_what_is_wrong(line, text):
    result = subprocess.run(
        [str(build.BUILD / "latchkey"), *line.split()], capture_output=True,
        text=True, timeout=60, env={"LATCHKEY_SERVER": "unix:/nonexistent/s"})
    assert result.returncode == 2, result
    assert text in result.stderr, result.stderr
    assert result.stdout == ""


def test_completions_know_the_words_of_these_commands():
    script = pathlib.Path(__file__).resolve().parents[2] / \
        "packaging/completions/latchkey"

    def complete(*words):
        line = "source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _latchkey; " \
               "echo ${COMPREPLY[*]}" % (
                   script, " ".join("'%s'" % word for word in words),
                   len(words) - 1)
        return subprocess.run(["bash", "-c", line], capture_output=True,
                              text=True, check=True).stdout.split()

    program = str(build.BUILD / "latchkey")
    assert complete(program, "dead", "") == ["list", "show", "retry", "drop"]
    assert complete(program, "target", "p") == ["pause"]
    assert complete(program, "jobs", "--state", "un") == ["uncertain",
                                                          "unfinished"]
    assert complete(program, "list", "--state", "a") == ["accepted"]
    assert "--complete-until" in complete(program, "reconcile", "pay", "--c")
