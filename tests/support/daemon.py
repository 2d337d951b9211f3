"""Starts, watches and stops a real latchkeyd."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

import redis

from . import build as build_
from .resp import Raw
from .service import halt

REPORT = re.compile(
    r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:"
    r"|UndefinedBehaviorSanitizer")
USERS = {"operator": "operate", "reader": "read"}


def secret_of(user):
    return user + "-secret"


class Daemon:
    """One daemon with a unix socket, and a store unless `url` names another,
    in a folder of its own. Whoever runs the tests would operate it: only with
    `own` is that so, else connections have the roles that AUTH gives them."""

    def __init__(self, build=None, tcp=False, settings=(), listen=(),
                 arguments=(), faults=None, config=None, url=None, own=False):
        self.build = pathlib.Path(build or build_.BUILD)
        self.folder = build_.folder("lk")
        self.store = self.folder / "store.db"
        self.url = url or "sqlite:%s" % self.store
        self.socket = self.folder / "s"
        self.address = "unix:%s" % self.socket
        self.tcp = tcp
        self.tcp_address = None
        self.settings = list(settings)
        self.listen = list(listen)
        self.arguments = list(arguments)
        self.config = config
        self.own = own
        self.fault_file = self.folder / "faults"
        if faults is not None:
            self.set_faults(faults)
        self.process = None
        self.reader = None
        self.lines = []
        self.changed = threading.Condition()
        self.expected_exit = False
        self.clients = []

    # ---- life ----

    def command(self):
        command = [str(self.build / "latchkeyd"),
                   "--store", self.url]
        if self.config:
            command += ["--config", str(self.config)]
        command += ["--listen", self.address]
        if self.tcp:
            command += ["--listen", "127.0.0.1:0"]
        for address in self.listen:
            command += ["--listen", address]
        for user in () if self.own else {0, os.geteuid()}:
            command += ["--set", "peers.%d=none" % user]
        for user, role in USERS.items():
            command += ["--set", "users.%s=%s %s" % (user, role,
                                                      secret_of(user))]
        for setting in self.settings:
            command += ["--set", setting]
        return command + self.arguments

    def environment(self):
        env = dict(os.environ)
        env.pop("LATCHKEY_FAULT_FILE", None)
        if self.fault_file.exists():
            env["LATCHKEY_FAULT_FILE"] = str(self.fault_file)
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
        env.setdefault("UBSAN_OPTIONS",
                       "print_stacktrace=1:halt_on_error=1:exitcode=99")
        env.setdefault("TSAN_OPTIONS", "halt_on_error=0:exitcode=99")
        return env

    def launch(self):
        """Starts it and does not wait."""
        self.expected_exit = False
        with self.changed:
            self.started_at = len(self.lines)
            self.log_closed = False
        self.process = subprocess.Popen(
            self.command(), env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.reader = threading.Thread(
            target=self._read_log, args=(self.process.stderr,), daemon=True)
        self.reader.start()
        return self

    def start(self):
        self.launch()
        self.wait_for_log("event=ready", since=self.started_at)
        if self.tcp:
            self.tcp_address = self._find_tcp_address()
        return self

    def _read_log(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.log_closed = True
            self.changed.notify_all()

    def _find_tcp_address(self):
        for line in self.lines[self.started_at:]:
            found = re.search(r"127\.0\.0\.1:([1-9]\d*)", line)
            if found:
                return "127.0.0.1:" + found.group(1)
        raise AssertionError("no TCP address in the log:\n" + self.log_text())

    def wait_for_log(self, text, since=0, timeout=60):
        """The first line from `since` on that contains the text."""
        timeout *= build_.patience()

        def found():
            return next((line for line in self.lines[since:] if text in line),
                        None)

        def over():
            return found() or self.log_closed

        with self.changed:
            self.changed.wait_for(over, timeout)
            line = found()
        assert line, "no %r in the log:\n%s" % (text, self.log_text())
        return line

    @property
    def log(self):
        with self.changed:
            return list(self.lines)

    def log_text(self):
        return "\n".join(self.log[-60:])

    @property
    def pid(self):
        return self.process.pid

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, timeout=60):
        """Its exit status, with the whole log read."""
        self.expected_exit = True
        status = self.process.wait(timeout * build_.patience())
        self.reader.join(10)
        return status

    def kill(self):
        """kill -9."""
        if self.is_running():
            self.expected_exit = True
            self.process.kill()
        self.wait()

    def signal(self, number):
        if number == signal.SIGSTOP:
            halt(self.pid)
        else:
            self.process.send_signal(number)

    def stop(self):
        """SIGTERM; it must end well."""
        self.expected_exit = True
        self.signal(signal.SIGTERM)
        status = self.wait()
        self.check_reports()
        assert status == 0, "exit %d\n%s" % (status, self.log_text())

    def restart(self):
        self.stop()
        return self.start()

    # ---- clients ----

    def raw(self, address=None, protocol=2, user=None, timeout=None):
        client = Raw(address or self.address,
                     timeout or 20 * build_.patience())
        self.clients.append(client)
        if protocol == 3:
            client("HELLO", "3")
        if user:
            client.login(user)
        return client

    def redis(self, user=None):
        options = {"unix_socket_path": str(self.socket)}
        if user:
            options.update(username=user, password=secret_of(user))
        client = redis.Redis(**options)
        self.clients.append(client)
        return client

    def cli_environment(self, user="operator"):
        env = self.environment()
        env.pop("LATCHKEY_FAULT_FILE", None)
        env["LATCHKEY_SERVER"] = self.address
        for name in ("LATCHKEY_USER", "LATCHKEY_PASSWORD"):
            env.pop(name, None)
        if user:
            env["LATCHKEY_USER"] = user
            env["LATCHKEY_PASSWORD"] = secret_of(user)
        return env

    def cli(self, *args, input=None, check=False, user="operator"):
        return subprocess.run(
            [str(self.build / "latchkey"), *map(str, args)],
            env=self.cli_environment(user),
            input=input, check=check, capture_output=True,
            text=not isinstance(input, bytes),
            timeout=60 * build_.patience())

    # ---- faults ----

    def set_faults(self, *lines):
        """Replaces the fault file at once; the daemon reads it each time."""
        fresh = self.folder / "faults.new"
        fresh.write_text("".join(line + "\n" for line in lines))
        os.replace(fresh, self.fault_file)

    # ---- the end ----

    def check_reports(self):
        lines = self.log
        for number, line in enumerate(lines):
            assert not REPORT.search(line), "\n".join(
                lines[number:number + 80])

    def finish(self):
        """Ends it, and fails if it had died or complained on the way."""
        died = (self.process is not None and not self.expected_exit and
                self.process.poll() is not None)
        for client in self.clients:
            client.close()
        if self.fault_file.exists():
            self.set_faults()
        try:
            assert not died, "the daemon died, status %d:\n%s" % (
                self.process.returncode, self.log_text())
            if self.is_running():
                self.stop()
            self.check_reports()
        finally:
            if self.is_running():
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
