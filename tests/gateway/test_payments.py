"""The payments example: its app charges too often, and Latchkey stops that."""

import http.client
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess

import pytest

from support import build
from support.gateway import nginx_for
from support.life import until
from support.service import release, reserve

DEMO = build.ROOT / "examples" / "payments" / "demo.sh"
CUSTOMERS = 30
CHARGE = {"amount": 4200, "currency": "eur", "customer": "cus_1"}


@pytest.fixture
def folder():
    folder = build.folder("pd")
    folder.chmod(0o755)  # the demo's PostgreSQL may be another user
    yield folder
    shutil.rmtree(folder)


# ---- the demo ----


@pytest.fixture
def alone():
    """Demos take the first ports that are free: one at a time."""
    until(lambda: reserve("demo"), 300)
    yield
    release("demo")


def demo_environment(folder):
    (folder / "tmp").mkdir()
    return dict(os.environ, TMPDIR=str(folder / "tmp"),
                LATCHKEY_BUILD=str(build.BUILD),
                LATCHKEY_NGINX=nginx_for(build.BUILD, folder))


def rows(text):
    """The table at the end: name -> (straight, through Latchkey)."""
    found = re.findall(r"^  (\w[a-z ]+?) {2,}([\d.]+)(?: EUR)? +([\d.]+)"
                       r"(?: EUR)?$", text, re.MULTILINE)
    return {name: (float(left), float(right)) for name, left, right in found}


def test_without_latchkey_retries_charge_twice_and_with_it_none_does(alone,
                                                                     folder):
    """C02, C03, C07, C21: and each step of the demo says what it should."""
    done = subprocess.run(
        [DEMO, str(CUSTOMERS)], env=demo_environment(folder),
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120 * build.patience())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr

    numbers = rows(done.stdout)
    sent, lost, made, twice = (numbers[name] for name in (
        "requests sent", "responses lost", "charges made",
        "charged more than once"))
    assert sent[0] == sent[1] == CUSTOMERS + lost[0] and lost[0] == lost[1] > 0
    assert made == (sent[0], CUSTOMERS)
    assert twice[0] > 0 and twice[1] == 0
    assert numbers["charged too much"] == (12.5 * lost[0], 0)

    statuses = re.findall(r"^    HTTP/1.1 (\d+)", done.stdout, re.MULTILINE)
    assert statuses == ["201", "201", "422", "409", "200", "502", "409",
                        "202", "201"]
    assert done.stdout.count("Idempotent-Replayed: true") == 2
    check_outbox(done.stdout)
    assert "\033" not in done.stdout
    assert list((folder / "tmp").iterdir()) == []


def check_outbox(text):
    """C27, C31, C32: latchkeyd was killed three times, and the books agree."""
    def numbers(name):
        return [int(number) for number in re.findall(
            r"^  %s +(\d+)$" % re.escape(name), text, re.MULTILINE)]

    assert text.count("kill -9 of latchkeyd") == 3
    accepted, = numbers("orders accepted")
    paid, = numbers("response: paid")
    unknown, = numbers("response: unknown")
    assert paid + unknown == accepted == 40
    # At the provider that honours keys, and then at the other one.
    orders = numbers("orders in PostgreSQL")
    assert orders == numbers("charges at the provider")
    assert orders == [CUSTOMERS, CUSTOMERS + 40]
    assert numbers("calls made")[0] > CUSTOMERS
    assert numbers("orders without a charge") == [0, 0]
    assert numbers("charges without an order") == [0, 0]
    assert numbers("charged more than once") == [0, 0, 0]
    uncertain, = numbers("uncertain")
    assert uncertain > 0
    assert text.count("everything is reconciled") == 2


@pytest.mark.skipif(build.is_sanitized(), reason="the script is the same")
def test_on_a_terminal_the_demo_stays_up_until_it_is_interrupted(alone,
                                                                 folder):
    ours, theirs = pty.openpty()
    # A session of its own, on this terminal: Ctrl-C goes to all of it, though
    # whoever runs the tests in the background has them ignore it.
    process = subprocess.Popen(
        ["env", "--default-signal", "setsid", "--ctty", "--wait", DEMO, "3"],
        stdin=theirs,
        stdout=theirs, stderr=theirs, env=demo_environment(folder))
    os.close(theirs)
    shown = b""
    while b"Ctrl-C stops" not in shown:
        shown += os.read(ours, 65536)
    address = re.search(rb"the payments API +http://([\d.]+):(\d+)", shown)
    host, port = address.group(1).decode(), int(address.group(2))
    ledger = json.loads(ask((host, port), "GET", "/ledger")[1])
    assert ledger["charges"] > 3

    os.write(ours, b"\x03")
    assert process.wait(60 * build.patience()) == 0
    os.close(ours)
    assert list((folder / "tmp").iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))


# ---- its app ----


class Program:
    """One of the example's programs, on a port of its own choice."""

    def __init__(self, name, *arguments):
        self.process = subprocess.Popen(
            [build.BUILD / name, "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline()
        host, port = re.fullmatch(r"listening on (.*):(\d+)\n", said).groups()
        self.address = host, int(port)

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start():
    started = []

    def start(name, *arguments):
        started.append(Program(name, *arguments))
        return started[-1]

    yield start
    for program in started:
        program.end()


@pytest.fixture
def start_app(start, folder):
    def start_app(*arguments):
        return start("payments", "--ledger", str(folder / "ledger"),
                     *arguments)
    return start_app


def ask(address, method, path, body=None, **headers):
    """Status and body. A body that is a list goes out in chunks."""
    connection = http.client.HTTPConnection(
        *address, timeout=30 * build.patience())
    try:
        connection.request(method, path, body, headers,
                           encode_chunked=isinstance(body, list))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def charge(address, path="/charges", **headers):
    return ask(address, "POST", path, json.dumps(CHARGE), **headers)


def ledger(app):
    return json.loads(ask(app.address, "GET", "/ledger")[1])


def test_the_app_charges_again_for_the_same_key(start_app):
    app = start_app()
    answers = [charge(app.address, **{"Idempotency-Key": "k"})
               for _ in range(2)]
    assert [status for status, _ in answers] == [201, 201]
    ids = [json.loads(body)["id"] for _, body in answers]
    assert ids == ["ch_000001", "ch_000002"]
    assert ledger(app) == {
        "charges": 2, "customers": 1, "charged_more_than_once": 1,
        "total": {"eur": 8400, "gbp": 0, "usd": 0}}
    listed = json.loads(ask(app.address, "GET", "/charges")[1])
    assert [entry["id"] for entry in listed] == ids
    one = json.loads(ask(app.address, "GET", "/charges/ch_000002")[1])
    assert one == listed[1] and one["key"] == "k"


def test_the_app_keeps_answered_charges_across_a_kill(start_app, folder):
    app = start_app()
    assert charge(app.address)[0] == 201
    app.end(signal.SIGKILL)
    with open(folder / "ledger", "a") as file:
        file.write('{"id":"ch_000002","amou')  # the write that was cut short
    app = start_app()
    assert ledger(app)["charges"] == 1
    assert json.loads(charge(app.address)[1])["id"] == "ch_000002"
    assert len((folder / "ledger").read_text().splitlines()) == 2


def test_the_app_charges_before_it_drops_an_answer(start_app):
    app = start_app("--drop", "2")
    assert charge(app.address)[0] == 201
    with pytest.raises(http.client.RemoteDisconnected):
        charge(app.address)
    assert charge(app.address)[0] == 201
    with pytest.raises(http.client.RemoteDisconnected):
        charge(app.address, "/charges?drop=1")
    assert ledger(app)["charges"] == 4


def test_the_app_does_not_charge_when_it_fails(start_app):
    app = start_app("--fail", "2")
    assert [charge(app.address)[0] for _ in range(4)] == [201, 503, 201, 503]
    assert charge(app.address, "/charges?fail=500")[0] == 500
    assert ledger(app)["charges"] == 2


def test_the_app_answers_delayed_charges_when_they_are_due(start_app):
    """Requests behind a delayed one on its connection wait for it."""
    app = start_app()
    body = json.dumps(CHARGE)
    with socket.create_connection(app.address) as sock:
        sock.settimeout(30 * build.patience())
        for delay in (300, 100, 0):
            sock.sendall(("POST /charges?delay=%d HTTP/1.1\r\n"
                          "Content-Length: %d\r\n\r\n%s"
                          % (delay, len(body), body)).encode())
        # Another client is served meanwhile, and the charge is already made.
        until(lambda: ledger(app)["charges"] >= 1)
        received = b""
        while received.count(b'"id"') < 3:
            received += sock.recv(65536)
    ids = re.findall(rb'"id":"(\w+)"', received)
    assert ids == [b"ch_000001", b"ch_000002", b"ch_000003"]


def test_the_app_reads_chunked_bodies(start_app):
    app = start_app()
    whole = json.dumps(CHARGE).encode()
    status, _ = ask(app.address, "POST", "/charges",
                    [whole[:7], whole[7:8], whole[8:]],
                    **{"Transfer-Encoding": "chunked"})
    assert status == 201
    assert ledger(app)["total"]["eur"] == CHARGE["amount"]


@pytest.mark.parametrize("change, word", [
    ({"amount": "42"}, "amount"), ({"amount": 4.5}, "amount"),
    ({"amount": 0}, "amount"), ({"amount": -1}, "amount"),
    ({"currency": "xyz"}, "currency"), ({"currency": 1}, "currency"),
    ({"customer": ""}, "customer"), ({"customer": 'a"b'}, "customer")])
def test_the_app_names_what_is_wrong_with_a_charge(start_app, change, word):
    app = start_app()
    status, body = ask(app.address, "POST", "/charges",
                       json.dumps(dict(CHARGE, **change)))
    assert status == 422 and word in json.loads(body)["error"]
    assert ledger(app)["charges"] == 0


# ---- its network ----


def test_the_network_loses_answers_after_the_app_has_run(start, start_app):
    """The same seed loses the same ones: two runs can be compared."""
    app = start_app()

    def run(*arguments):
        lossy = start("lossy", "--to", "%s:%d" % app.address, *arguments)
        lost = []
        for number in range(40):
            try:
                charge(lossy.address)
            except http.client.RemoteDisconnected:
                lost.append(number)
        return lost

    first, again, other = run(), run(), run("--seed", "2")
    assert 0 < len(first) < 40 and first == again and first != other
    assert run("--lose", "0") == []
    assert ledger(app)["charges"] == 160
