"""latchkey, the command line tool, against a peer that says what it is told.

The peer stands in for a daemon in trouble, for one that is hostile, and for
answers that a healthy daemon gives only after hours.
"""

import base64
import fcntl
import json
import os
import pty
import pwd
import re
import select
import shutil
import socket
import struct
import subprocess
import termios
import threading
import time
import unicodedata

import pytest

from support import build
from support.resp import Closed, Raw

HOSTILE = "a\x1b[2J\nb\u202ec\\d\x9b\x07"


def bulk(value):
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(bulk, value))
    data = value if isinstance(value, bytes) else value.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def flat(**fields):
    out = []
    for name, value in fields.items():
        out += [name.replace("_", "-"), value]
    return out


def record(**more):
    fields = dict(tenant="acme", scope="POST /pay", key="k1",
                  state="in_progress", token=7, attempt=1,
                  reference="7D3F-92AB-1C4E", fingerprint="1:00",
                  claimed_ms=1700000000000, ttl_ms=86400000)
    fields.update(more)
    return flat(**fields)


class Connection(Raw):
    """The other end of a client's connection: reads commands."""

    def __init__(self, sock):  # pylint: disable=super-init-not-called
        self.sock = sock
        self.buffer = b""


class Peer:
    """Answers each command by name; an answer may be a function of it."""

    def __init__(self, path):
        self.address = "unix:%s" % path
        self.answers = {"AUTH": b"+OK\r\n", "JOBS": bulk([0, []]),
                        "AUDIT": bulk([])}
        self.heard = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Connection(sock),),
                             daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                while True:
                    words = [word.decode() for word in connection.read()]
                    self.heard.append(words)
                    answer = self.answers.get(words[0], b"-ERR what?\r\n")
                    if callable(answer):
                        answer = answer(words)
                    if answer is None:
                        return
                    connection.send_bytes(answer)
            except (Closed, OSError):
                pass

    def environment(self, **more):
        env = dict(os.environ, LATCHKEY_SERVER=self.address,
                   ASAN_OPTIONS="detect_leaks=1:exitcode=99",
                   UBSAN_OPTIONS="halt_on_error=1:exitcode=99", **more)
        for name in ("LATCHKEY_USER", "LATCHKEY_PASSWORD", "NO_COLOR"):
            if name not in more:
                env.pop(name, None)
        return env

    def cli(self, *args, input=b"", **environment):
        return subprocess.run(
            [str(build.BUILD / "latchkey"), *args], input=input,
            capture_output=True, env=self.environment(**environment),
            timeout=60 * build.patience())

    def cli_on_terminal(self, *args, columns=0, **environment):
        """What a terminal is sent, standard output and error together."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([str(build.BUILD / "latchkey"), *args],
                              stdin=theirs, stdout=theirs, stderr=theirs,
                              env=self.environment(
                                  **{"TERM": "xterm", **environment})) as process:
            os.close(theirs)
            seen = b""
            try:
                while select.select([ours], [], [], 60)[0]:
                    data = os.read(ours, 65536)
                    if not data:
                        break
                    seen += data
            except OSError:  # how Linux says that a terminal is gone
                pass
            os.close(ours)
        return process.returncode, seen.decode()


@pytest.fixture
def peer(tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    made = Peer(folder / "s")
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


def latchkey(*args, program=None, **options):
    """Without a peer."""
    return subprocess.run([str(program or build.BUILD / "latchkey"), *args],
                          capture_output=True, text=True,
                          timeout=60 * build.patience(), env={}, **options)


def is_clean(text):
    return all(c == "\n" or c.isprintable() for c in text)


# ---- tables -----------------------------------------------------------------

LONG = "charges-of-the-european-branch/" * 6 + "end"
WIDE_TEXT = "\u652f\u6255\u3044" * 30  # two columns for each character


def columns_of(line):
    """Columns that a terminal needs for what it is sent."""
    line = re.sub("\033\\[[0-9;]*m", "", line)
    return sum(0 if unicodedata.combining(c) else
               2 if unicodedata.east_asian_width(c) in "WF" else 1
               for c in line)


def answer_with_long_text(peer, text):
    names = {"tenant": text, "scope": text, "key": text, "reason": text}
    job = dict(id=123456, state="dead", name=text, target=text, attempts=12,
               reference="7D3F-92AB-1C4E", status=503, created_ms=1700000000000,
               history=[flat(number=1, ended_ms=1700000000000, status=503,
                             called=1, reason=text)], **names)
    peer.answers["LOOKUP"] = bulk(record(fingerprint="1:" + 64 * "a", **names))
    peer.answers["LIST"] = bulk([0, [
        record(**names), record(state="completed", jobs_dead=2, **names)]])
    peer.answers["AUDIT"] = lambda words: bulk(
        1 if "COUNT" in words else
        [flat(id=12345, at_ms=1700000000000, who=text, action="job retry",
              job=123456, target="", why=text, tenant=text, scope=text,
              key=text)])
    peer.answers["STATS"] = bulk(["records", 1, "trouble", text])
    peer.answers["JOBS"] = bulk([0, [flat(**job)]])
    peer.answers["JOB"] = bulk(flat(**dict(job, state="waiting")))
    peer.answers["TARGET"] = bulk([flat(
        name=text, circuit="open", waiting=1, leased=12345, uncertain=1, dead=12,
        sent_ok=1234567, failed=12345, oldest_due_ms=1700000000000,
        last_error=text)])


def test_what_runs_for_hours_needs_a_person_in_its_story_too(peer):
    now_ms = int(time.time() * 1000)
    peer.answers["LOOKUP"] = bulk(record(claimed_ms=now_ms - 10800000,
                                         lock_until_ms=now_ms + 100000))
    first = peer.cli("get", "t", "s", "k").stdout.decode().splitlines()[0]
    assert first == "7D3F-92AB-1C4E  in_progress for 3 h: needs a person"
    peer.answers["LOOKUP"] = bulk(record(claimed_ms=now_ms - 1000,
                                         lock_until_ms=now_ms + 100000))
    first = peer.cli("get", "t", "s", "k").stdout.decode().splitlines()[0]
    assert first == "7D3F-92AB-1C4E  in_progress"


def test_a_sentence_is_folded_between_words(peer):
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
    peer.answers["LOOKUP"] = bulk(record(state="uncertain", since_ms=1,
                                         reason=" ".join(words)))
    _, seen = peer.cli_on_terminal("get", "t", "s", "k", columns=80)
    assert "\r\n  " in seen
    assert set(words) <= set(re.sub("\033\\[[0-9;]*m", " ", seen).split())


def test_what_was_done_fits_the_terminal(peer):
    answer_with_long_text(peer, LONG)
    peer.answers["EVICT"] = b"+OK\r\n"
    code, seen = peer.cli_on_terminal("evict", "t", "s", LONG, "--why", "x",
                                      columns=80)
    assert code == 0 and columns_of(seen.rstrip()) == 80, seen
    assert "now released" in seen
    assert LONG in peer.cli("evict", "t", "s", LONG, "--why",
                            "x").stdout.decode()


TABLES = ("list", "list --attention", "audit", "jobs", "dead list",
          "dead retry --all", "target status", "target status x", "stats",
          "get t s k", "jobs show 123456")


@pytest.mark.parametrize("command", TABLES)
def test_no_table_is_wider_than_the_terminal(peer, command):
    for text in (LONG, WIDE_TEXT, HOSTILE * 20):
        answer_with_long_text(peer, text)
        for columns in (80, 132):
            code, seen = peer.cli_on_terminal(*command.split(),
                                              columns=columns)
            assert code == 0, seen
            lines = seen.replace("\r", "").split("\n")
            assert max(map(columns_of, lines)) <= columns, seen


def test_a_narrow_table_keeps_what_was_done_and_why(peer):
    answer_with_long_text(peer, 40 * "a")
    peer.answers["AUDIT"] = bulk([flat(
        id=1, at_ms=1700000000000, who="ann", action="job retry", job=4711,
        why="provider is up", tenant=34 * "h", scope=34 * "s", key=36 * "k")])
    _, seen = peer.cli_on_terminal("audit", columns=80)
    assert "job retry 4711" in seen and "provider is up" in seen, seen
    assert "hhh" not in seen
    _, seen = peer.cli_on_terminal("audit", columns=200)
    assert 34 * "h" in seen and 36 * "k" in seen, seen
    _, seen = peer.cli_on_terminal("jobs", columns=80)
    assert seen.count(10 * "a") == 3, seen  # target, name, reason


def test_reasons_are_told_once_the_most_urgent_first(peer):
    texts = ["1 operation is uncertain: latchkey list", "1 job is dead"]

    def answer(count):
        peer.answers["HEALTH"] = bulk(flat(
            status="attention", summary=texts[0] + " (and more)",
            reasons=[flat(code="c", text=text) for text in texts[:count]]))
        return peer.cli("health").stdout.decode()

    assert answer(1) == "needs a person: %s (and more)\n" % texts[0]
    assert answer(2) == "needs a person, for 2 reasons:\n  1. %s\n  2. %s\n" % (
        texts[0], texts[1])


def test_a_reference_with_a_slip_may_have_been_one(peer):
    for word in ("7D3F-92AB-1C4", "pi_123"):
        missed = peer.cli("find", word)
        assert missed.returncode == 1
        assert b"the reference or provider's id %s" % word.encode() in \
            missed.stderr


def test_the_findings_of_reconcile_fit_the_terminal(peer, tmp_path):
    export = tmp_path / "e.csv"
    export.write_text("id,idempotency_key\n%s,%s\n" % (LONG, LONG))
    peer.answers["JOBS"] = bulk([0, []])
    peer.answers["TARGET"] = bulk([flat(name="pay", configured=1)])
    words = ("reconcile", "pay", "--export", str(export))
    for wide, widest in (((), 80), (("--wide",), 1000)):
        _, seen = peer.cli_on_terminal(*words, *wide, columns=80)
        finding, = [line for line in seen.splitlines()
                    if line.startswith("  only-there")]
        assert columns_of(finding) <= widest, seen
        assert (LONG in finding) == bool(wide)


def test_a_table_is_cut_where_it_is_long_and_keeps_its_references(peer):
    answer_with_long_text(peer, LONG)
    _, seen = peer.cli_on_terminal("list", columns=80)
    assert "7D3F-92AB-1C4E" in seen and "\u2026" in seen
    assert "2023-11-14T22:13:20Z" in seen
    _, seen = peer.cli_on_terminal("list", "--wide", columns=80)
    assert seen.count(LONG) == 6 and "\u2026" not in seen
    assert peer.cli("list").stdout.decode().count(LONG) == 6


def test_what_matters_most_is_not_cut(peer):
    answer_with_long_text(peer, LONG)
    _, seen = peer.cli_on_terminal("list", "--attention", columns=80)
    assert "2 jobs dead" in seen and "running for" in seen
    _, seen = peer.cli_on_terminal("target", "status", columns=80)
    assert "circuit open" in seen


def test_nothing_is_missing_of_one_operation(peer):
    answer_with_long_text(peer, LONG)
    _, seen = peer.cli_on_terminal("get", "t", "s", "k", columns=80, TERM="dumb")
    assert LONG in re.sub(r"\r\n +", "", seen)


# ---- text from outside ------------------------------------------------------


def test_hostile_text_does_not_reach_the_terminal(peer):
    hostile = {name: HOSTILE for name in
               ("tenant", "scope", "key", "reason", "reference")}
    peer.answers["LOOKUP"] = bulk(record(state="uncertain", **hostile))
    peer.answers["LIST"] = bulk([0, [record(**hostile)]])
    peer.answers["AUDIT"] = bulk([flat(id=1, at_ms=1, who=HOSTILE,
                                       action="evict", why=HOSTILE)])
    peer.answers["STATS"] = bulk([HOSTILE, 1, "trouble", HOSTILE])
    peer.answers["VERIFY"] = bulk(["damaged", HOSTILE])
    for command in ("get t s k", "list", "audit", "stats", "verify"):
        result = peer.cli(*command.split())
        for stream in (result.stdout.decode(), result.stderr.decode()):
            assert is_clean(stream), (command, stream)
        assert rb"\x1b[2J\x0ab" in result.stdout, command


@pytest.mark.parametrize("error, said", [
    ("UNAVAILABLE the store cannot decide now",
     "the store cannot decide now; latchkey health shows why"),
    ("UNAVAILABLE the disk is full",
     "the store cannot decide now: the disk is full"),
    ("UNAVAILABLE RECORD another transaction holds it; send the same again",
     "the operation cannot be decided now: another transaction holds it; "
     "send the same again"),
])
def test_a_store_that_cannot_decide_is_said_once(peer, error, said):
    peer.answers["LOOKUP"] = b"-%s\r\n" % error.encode()
    result = peer.cli("get", "t", "s", "k")
    assert result.returncode == 3
    assert result.stderr.decode() == "latchkey: %s\n" % said


@pytest.mark.parametrize("words", [
    ("release",), ("resolve", "--completed", "200")])
def test_what_was_found_uncertain_is_resolved_under_that_claim_alone(peer,
                                                                     words):
    peer.answers["FIND"] = bulk(record(state="uncertain", token=7))
    peer.answers["LOOKUP"] = bulk(record(state="uncertain", token=9))
    peer.answers["RESOLVE"] = b"+STALE\r\n"
    result = peer.cli(*words, "7D3F-92AB-1C4E", "--why", "x")
    assert result.returncode == 1
    assert b"look again" in result.stderr
    sent = [line for line in peer.heard if line[0] == "RESOLVE"]
    assert len(sent) == 1 and sent[0][sent[0].index("TOKEN") + 1] == "7"


def test_an_operation_does_not_look_fine_if_its_jobs_cannot_be_read(peer):
    peer.answers["LOOKUP"] = bulk(record(state="completed", status=201))
    peer.answers["JOBS"] = b"-UNAVAILABLE the disk is full\r\n"
    result = peer.cli("get", "t", "s", "k")
    assert (result.returncode, result.stdout) == (3, b"")


def test_a_hostile_error_does_not_reach_the_terminal(peer):
    peer.answers["STATS"] = b"-ERR \x1b[2J bad\r\n"
    result = peer.cli("stats")
    assert result.returncode == 5
    assert rb"\x1b[2J bad" in result.stderr
    assert is_clean(result.stderr.decode())


def test_hostile_words_of_the_command_line_are_escaped_in_messages(peer):
    peer.answers["LOOKUP"] = bulk(None)
    result = peer.cli("get", "t", "s", "x\x1b[2J\ny")
    assert result.returncode == 1
    assert rb"x\x1b[2J\x0ay" in result.stderr


def test_json_keeps_hostile_text_as_it_is(peer):
    peer.answers["LOOKUP"] = bulk(record(key=HOSTILE))
    result = peer.cli("get", "t", "s", "k", "--json")
    assert json.loads(result.stdout)["key"] == HOSTILE
    assert not any(c < " " or "\x7f" <= c < "\xa0"
                   for c in result.stdout.decode().rstrip("\n"))


def test_a_binary_body_is_base64_in_json_and_itself_with_body(peer):
    body = bytes(range(256))
    peer.answers["LOOKUP"] = bulk(record(
        state="completed", status=201, headers="A: b\r\n", body=body))
    document = json.loads(peer.cli("get", "t", "s", "k", "--json").stdout)
    assert base64.b64decode(document["body_base64"]) == body
    assert "body" not in document
    why = ("--why", "x")
    assert peer.cli("get", "t", "s", "k", "--body", *why).stdout == body
    both = peer.cli("get", "t", "s", "k", "--headers", "--body", *why)
    assert both.stdout == b"A: b\r\n\r\n" + body


def test_base64_has_the_right_ending_for_every_length(peer):
    for length in range(1, 7):
        body = b"\xff" * length
        peer.answers["LOOKUP"] = bulk(record(body=body))
        text = peer.cli("get", "t", "s", "k", "--json").stdout
        assert json.loads(text)["body_base64"] == \
            base64.b64encode(body).decode()


def test_a_body_on_a_terminal_cannot_drive_it(peer):
    peer.answers["LOOKUP"] = bulk(record(state="completed", status=200,
                                         headers="", body=b"\x1b[2Jx\n"))
    status, seen = peer.cli_on_terminal("get", "t", "s", "k", "--body",
                                        "--why", "x")
    assert status == 0
    assert seen == "\\x1b[2Jx\r\n"


def test_colour_is_for_terminals_only_and_can_be_refused(peer):
    peer.answers["LIST"] = bulk([0, [record(state="uncertain")]])
    assert "\x1b[" in peer.cli_on_terminal("list")[1]
    assert "\x1b[" not in peer.cli_on_terminal("list", NO_COLOR="1")[1]
    assert b"\x1b[" not in peer.cli("list").stdout


# ---- exit status ------------------------------------------------------------


@pytest.mark.parametrize("error, status", [
    ("NOAUTH Authentication required.", 4),
    ("NOPERM STATS needs the read role", 4),
    ("WRONGPASS no such user", 4),
    ("UNAVAILABLE the disk is full", 3),
    ("ERR something else", 5),
    ("UNAVAILABLES are not that code", 5),
])
def test_errors_of_the_daemon_have_their_exit_status(peer, error, status):
    peer.answers["STATS"] = b"-%s\r\n" % error.encode()
    result = peer.cli("stats")
    assert result.returncode == status
    assert error.split(" ", 1)[1].rstrip(".").encode() in result.stderr
    assert b".;" not in result.stderr
    assert result.stdout == b""


def test_a_wrong_password_is_not_allowed_and_is_not_shown(peer):
    peer.answers["AUTH"] = b"-WRONGPASS invalid username-password pair\r\n"
    result = peer.cli("ping", LATCHKEY_USER="u", LATCHKEY_PASSWORD="hush")
    assert result.returncode == 4
    assert b"hush" not in result.stdout + result.stderr


def test_a_damaged_store_is_exit_1_and_every_finding_is_shown(peer):
    peer.answers["VERIFY"] = bulk(["damaged", "row 5: bad", "row 9: bad"])
    result = peer.cli("verify")
    assert result.returncode == 1
    assert result.stdout == b"damaged\nrow 5: bad\nrow 9: bad\n"
    document = json.loads(peer.cli("verify", "--json").stdout)
    assert document == {"result": "damaged",
                        "lines": ["row 5: bad", "row 9: bad"]}


@pytest.mark.parametrize("command", [
    "get t s k", "find t 7D3F-92AB-1C4E", "list", "stats", "audit", "verify",
    "ping", "release t s k --why x", "evict t s k --why x"])
def test_an_answer_of_another_form_is_an_error_not_a_crash(peer, command):
    for answer in (b":5\r\n", b"$4\r\nwhat\r\n", b"*1\r\n:1\r\n", b"!\r\n"):
        for name in ("LOOKUP", "FIND", "LIST", "STATS", "AUDIT", "VERIFY",
                     "PING", "RESOLVE", "EVICT"):
            peer.answers[name] = answer
        result = peer.cli(*command.split())
        assert result.returncode in (0, 1, 5), (command, answer, result)


def test_a_peer_that_is_no_daemon_is_named(peer):
    peer.answers["PING"] = b"+HELO\r\n"
    result = peer.cli("ping")
    assert result.returncode == 5
    assert peer.address.encode() in result.stderr


def test_a_connection_that_breaks_is_exit_3(peer):
    peer.answers["EVICT"] = lambda words: None
    result = peer.cli("evict", "t", "s", "k", "--why", "x")
    assert result.returncode == 3
    assert b"not known" in result.stderr


def test_no_answer_within_the_timeout_is_exit_3(peer):
    over = threading.Event()
    peer.answers["STATS"] = lambda words: over.wait(60) and None
    result = peer.cli("stats", "--timeout", "50ms")
    over.set()
    assert result.returncode == 3
    assert b"in time" in result.stderr


def test_kept_and_stale_are_exit_1_and_name_the_reference(peer):
    peer.answers["RESOLVE"] = bulk(["KEPT", 201, "", "body", 1, 2,
                                    "7D3F-92AB-1C4E"])
    result = peer.cli("release", "t", "s", "k", "--why", "x")
    assert result.returncode == 1
    assert b"7D3F-92AB-1C4E" in result.stderr and b"201" in result.stderr
    peer.answers["RESOLVE"] = b"+STALE\r\n"
    assert peer.cli("release", "t", "s", "k", "--why", "x").returncode == 1


# ---- what is not a daemon, and what cannot be reached -----------------------


@pytest.mark.parametrize("answer, name", [
    (b"-ERR unknown command 'CLAIM', with args beginning with: \r\n",
     b"a Redis"),
    (b"-DENIED Redis is running in protected mode\r\n", b"a Redis"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"an HTTP server"),
    (b"<!DOCTYPE HTML>\n", b"an HTTP server"),
    (b"SSH-2.0-OpenSSH_9.2p1\r\n", b"an SSH server"),
    (b"\x15\x03\x01\x00\x02", b"a server of another protocol"),
])
@pytest.mark.parametrize("password", [None, "secret"])
def test_another_server_in_place_of_the_daemon_is_recognised(peer, answer,
                                                             name, password):
    for word in ("LIST", "AUTH", "CLAIM"):
        peer.answers[word] = answer
    more = {"LATCHKEY_PASSWORD": password} if password else {}
    result = peer.cli("list", **more)
    assert result.returncode == 3, result
    assert name in result.stderr and b"is not latchkeyd" in result.stderr
    assert peer.address.encode() in result.stderr
    assert b"--server" in result.stderr and result.stdout == b""


def test_a_list_of_operations_is_json_whatever_fails_in_it(peer):
    peer.answers["FIND"] = peer.answers["LOOKUP"] = bulk(record())
    for failure in ("JOBS", "AUDIT"):
        peer.answers[failure] = b"-UNAVAILABLE the store is away\r\n"
        result = peer.cli("get", "7D3F-92AB-1C4E", "7D3F-92AB-1C4E", "--json")
        assert result.returncode == 3
        assert json.loads(result.stdout) == {"operations": [
            {"result": "ERR", "reference": "7D3F-92AB-1C4E"}]}
        assert b"store is away" in result.stderr
        peer.answers["JOBS"] = bulk([0, []])


def test_an_error_of_one_word_is_told_as_it_is(peer):
    peer.answers["LIST"] = b"-ERR\r\n"
    result = peer.cli("list")
    assert result.returncode == 5
    assert result.stderr == b"latchkey: latchkeyd refused: ERR\n"


def test_a_daemon_that_does_not_know_a_command_is_older(peer):
    peer.answers["LIST"] = b"-ERR unknown command 'LIST'\r\n"
    result = peer.cli("list")
    assert result.returncode == 5
    assert b"older" in result.stderr and b"version" in result.stderr


@pytest.mark.parametrize("make, cause, cure", [
    (lambda path: None, "No such file", "start it"),
    (lambda path: path.write_text(""), "refused", "not a socket"),
    (lambda path: leave_socket(path), "refused", "start it again"),
])
def test_a_socket_without_a_daemon_names_its_cause(tmp_path, make, cause,
                                                   cure):
    path = tmp_path / "s"
    make(path)
    result = latchkey("ping", "--server", "unix:%s" % path)
    assert result.returncode == 3, result
    assert cause in result.stderr and cure in result.stderr
    assert "--server" in result.stderr and str(path) in result.stderr


def leave_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("mode, barrier", [(0o600, "s"), (0o660, "s"),
                                           (0o700, ".")])
def test_who_may_use_a_socket_is_said_to_who_may_not(tmp_path, mode, barrier):
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    folder = tmp_path / "private"
    folder.mkdir(mode=mode if barrier == "." else 0o755)
    tmp_path.chmod(0o755)
    path = folder / "s"
    leave_socket(path)
    path.chmod(mode)
    program = tmp_path / "latchkey"
    shutil.copy2(build.BUILD / "latchkey", program)
    result = latchkey("ping", "--server", "unix:%s" % path, program=program,
                      user=65534, group=65534, extra_groups=[])
    assert result.returncode == 4, result
    assert "Permission denied" in result.stderr
    assert pwd.getpwuid(65534).pw_name + " may not connect" in result.stderr
    named = path if barrier == "s" else folder
    assert "%s is for user root" % named in result.stderr
    assert ("group root" in result.stderr) == (mode == 0o660)
    assert ("usermod -aG root %s," % pwd.getpwuid(65534).pw_name
            in result.stderr) == (mode == 0o660)
    assert "sudo" in result.stderr and "start" not in result.stderr


@pytest.mark.parametrize("server, cause, cure", [
    ("127.0.0.1:1", "refused", "no program listens there"),
    ("no-such-host.invalid:7379", "no-such-host.invalid", "host's name"),
    ("unix:", "no path", "--server"),
    ("127.0.0.1", "HOST:PORT", "--server"),
])
def test_an_address_that_does_not_work_names_its_cause(server, cause, cure):
    result = latchkey("ping", "--server", server)
    assert result.returncode in (2, 3), result
    assert cause in result.stderr and cure in result.stderr


def test_a_host_that_does_not_answer_is_told_apart(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        while True:  # until nobody more is let in
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        result = latchkey("ping", "--server", "unix:%s" % path, "--timeout",
                          "100ms")
        for client in waiting:
            client.close()
    assert result.returncode == 3, result
    assert "timed out" in result.stderr and "--timeout" in result.stderr


# ---- what is asked of the daemon --------------------------------------------


def test_a_list_goes_on_after_a_page_that_is_short_or_empty(peer):
    pages = {"0": [5, [record(key="a")]], "5": [9, []],
             "9": [0, [record(key="b")]]}

    def answer(words):
        return bulk(pages[words[words.index("CURSOR") + 1]])

    peer.answers["LIST"] = answer
    document = json.loads(peer.cli("list", "--json").stdout)
    assert [r["key"] for r in document["operations"]] == ["a", "b"]
    assert document["next_cursor"] == 0


def test_a_list_stops_at_its_limit_and_says_how_to_go_on(peer):
    peer.answers["LIST"] = bulk([77, [record(), record()]])
    result = peer.cli("list", "--limit", "2", "--state", "uncertain",
                      "--tenant", "acme", "--older", "5m", "--cursor", "3")
    assert peer.heard == [["LIST", "STATE", "uncertain", "TENANT", "acme",
                           "OLDER", "300000", "LIMIT", "2", "CURSOR", "3"]]
    assert b"--cursor 77" in result.stderr


def test_operations_that_need_a_person_stand_out_without_colour(peer):
    now_ms = int(time.time() * 1000)
    peer.answers["LIST"] = bulk([0, [
        record(key="calm", state="completed", jobs_open=1),
        record(key="young", claimed_ms=now_ms),
        record(key="odd", state="uncertain", since_ms=now_ms - 7200000),
        record(key="endless", claimed_ms=now_ms - 10800000),
        record(key="left", state="completed", jobs_dead=2, jobs_uncertain=1)]])
    result = peer.cli("list")
    lines = result.stdout.decode().splitlines()
    assert [line[0] for line in lines] == [" ", " ", " ", "!", "!", "!"]
    for line, why in zip(lines[3:], ("uncertain for 2 h", "running for 3 h",
                                     "2 jobs dead, 1 job uncertain")):
        assert why in line
    assert len({line.index("acme") for line in lines[1:]}) == 1
    assert b"5 operations, 3 marked with !" in result.stderr


def test_a_list_is_drawn_again_until_the_daemon_is_gone(peer):
    rounds = []

    def answer(_words):
        rounds.append(len(rounds))
        return bulk([0, [record(key="round-%d" % len(rounds))]]) \
            if len(rounds) < 3 else None

    peer.answers["LIST"] = answer
    status, seen = peer.cli_on_terminal("list", "--watch=100ms", "--limit=5")
    assert status == 3 and "round-1" in seen and "round-2" in seen
    assert seen.count("\033[2J") == 2 and "every 100 ms" in seen
    assert peer.cli("list", "--watch", "--json").returncode == 2


def test_options_may_stand_anywhere_and_end_at_two_dashes(peer):
    peer.answers["RESOLVE"] = b"+OK\r\n"
    peer.answers["LOOKUP"] = bulk(record())
    want = ["RESOLVE", "t", "s", "-k", "RELEASED", "WHO", "me", "WHY", "so"]
    for line in ("--why so release --who=me -- t s -k",
                 "release t --why=so s --who me -- -k",
                 "--json --who me --why so release t s -- -k"):
        peer.heard.clear()
        assert peer.cli(*line.split()).returncode == 0
        assert peer.heard[0] == want


def test_headers_from_a_file_have_the_form_of_the_wire(peer, tmp_path):
    peer.answers["RESOLVE"] = b"+OK\r\n"
    headers = tmp_path / "headers"
    headers.write_text("Content-Type: text/plain\n\nX-A:b\r\n")
    result = peer.cli("resolve", "t", "s", "k", "--completed", "201",
                      "--headers-file", str(headers), "--body-file", "-",
                      "--why", "seen", "--who", "me", input=b"done\n")
    assert result.returncode == 0
    assert peer.heard[0] == [
        "RESOLVE", "t", "s", "k", "COMPLETED", "201",
        "Content-Type: text/plain\r\nX-A:b\r\n", "done\n",
        "WHO", "me", "WHY", "seen"]


def test_a_backup_is_asked_for_by_its_whole_path(peer):
    peer.answers["BACKUP"] = b"+OK\r\n"
    result = peer.cli("backup", "copy.db")
    assert peer.heard[0][1] == os.path.join(os.getcwd(), "copy.db")
    assert result.returncode == 0 and b"copy.db" in result.stdout


def test_a_long_job_has_a_progress_bar_on_a_terminal(peer):
    asked_twice = threading.Event()
    count = []

    def info(words):
        count.append(words)
        if len(count) > 1:
            asked_twice.set()
        return bulk("# Chores\r\nverify_running:1\r\nchore_done:5\r\n"
                    "chore_total:10\r\n")

    def verify(words):
        assert asked_twice.wait(60)
        return bulk(["ok", "10 records"])

    peer.answers.update(INFO=info, VERIFY=verify)
    status, seen = peer.cli_on_terminal("verify")
    assert status == 0
    assert count[0] == ["INFO", "chores"]
    assert "verify [" in seen and "50%" in seen
    assert seen.endswith("ok\r\n10 records\r\n")


def test_there_is_no_progress_bar_in_a_file(peer):
    peer.answers["VERIFY"] = bulk(["ok"])
    result = peer.cli("verify")
    assert (result.stdout, result.stderr) == (b"ok\n", b"")
    assert [words[0] for words in peer.heard] == ["VERIFY"]


def test_a_password_file_ends_at_its_line(peer, tmp_path):
    peer.answers["PING"] = b"+PONG\r\n"
    peer.answers["HEALTH"] = bulk(flat(status="ok"))
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    result = peer.cli("ping", "--user", "oncall",
                      "--password-file", str(secret))
    assert result.returncode == 0
    assert peer.heard[0] == ["AUTH", "oncall", "open sesame"]
