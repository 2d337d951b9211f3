"""Starts, watches and kills a real payment provider (examples/payments)."""

import http.client
import json
import shutil
import signal
import subprocess

from . import build
from .life import until
from .service import free_port, halt, release_port


def charge(customer="cus_1", amount=4200, **manner):
    """The body of a charge, as bytes; with how it is to be treated."""
    order = {"amount": amount, "currency": "eur", "customer": customer}
    if manner:
        order["manner"] = manner
    return json.dumps(order).encode()


class Provider:
    """One provider; its ledger and its list of calls outlive kill -9."""

    def __init__(self, honours=True, token=None, manner=None, seed=1):
        self.folder = build.folder("lkpv")
        self.honours = honours
        self.token = token
        self.manner = manner
        self.seed = seed
        self.port = free_port()
        self.ledger_file = self.folder / "ledger.jsonl"
        self.calls_file = self.folder / "calls.jsonl"
        self.process = None

    # ---- life ----

    def command(self):
        command = [str(build.BUILD / "provider"),
                   "--listen", "127.0.0.1:%d" % self.port,
                   "--ledger", str(self.ledger_file),
                   "--calls", str(self.calls_file),
                   "--honour-keys", "yes" if self.honours else "no",
                   "--seed", str(self.seed)]
        if self.token:
            command += ["--token", self.token]
        if self.manner:
            command += ["--manner", json.dumps(self.manner)]
        return command

    def start(self):
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        assert line.startswith(b"listening"), line
        return self

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """kill -9."""
        if self.is_running():
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def wait_dead(self):
        """Until it has killed itself, as its manner says."""
        self.process.wait(30 * build.patience())
        self.process.stdout.close()

    def pause(self):
        halt(self.process.pid)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def finish(self):
        if self.is_running():
            self.kill()
        release_port(self.port)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what callers see ----

    @property
    def address(self):
        return "127.0.0.1:%d" % self.port

    @property
    def url(self):
        return "http://%s" % self.address

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body); the body parsed if it is JSON."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read()
            if answer.getheader("Content-Type") == "application/json":
                text = json.loads(text)
            return answer.status, answer.headers, text
        finally:
            connection.close()

    # ---- what the test asks for ----

    def control(self, **manner):
        """From now on, for calls that bring no manner of their own."""
        status, _, answer = self.ask("POST", "/control", json.dumps(manner))
        assert status == 200, answer

    def release(self):
        """What hangs goes on."""
        self.ask("POST", "/control", '{"release":1}')

    def status(self):
        return self.ask("GET", "/control")[2]

    def wait_in_flight(self, count):
        until(lambda: self.status()["in_flight"] >= count)

    # ---- its books ----

    def charges(self, customer=None):
        """The ledger, from its file: it need not run."""
        found = read_lines(self.ledger_file)
        return [line for line in found
                if customer is None or line["customer"] == customer]

    def calls(self, key=None):
        """Every call in the order in which they came: {key, did, ms}."""
        return [call for call in read_lines(self.calls_file)
                if key is None or call["key"] == key]

    def wait_calls(self, count, key=None):
        until(lambda: len(self.calls(key)) >= count)

    def wait_charges(self, count):
        until(lambda: len(self.charges()) >= count)


def read_lines(path):
    """A last line that is being written is left out."""
    if not path.exists():
        return []
    text = path.read_bytes()
    return [json.loads(line) for line in
            text[:text.rfind(b"\n") + 1].splitlines()]
