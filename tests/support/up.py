"""Runs a real `latchkey up` and watches what it prints."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading

from . import build as build_
from .daemon import REPORT
from .gateway import is_alive, nginx_for
from .service import free_port, release_port
from .wire import Connection

READY = "Ctrl-C stops it"


class Up:
    """One `latchkey up` in a folder of its own, on a port of its own."""

    def __init__(self, upstream, *arguments, folder=None, port=None,
                 listen=None, dir=True, env=None, build=None, user=None,
                 terminal=None, stdout=None):
        self.build = pathlib.Path(build or build_.BUILD)
        self.own = folder is None
        self.folder = pathlib.Path(folder or build_.folder("up"))
        self.dir = self.folder / "d"
        self.taken = None if port else free_port()
        self.port = port or self.taken
        self.listen = listen or str(self.port)
        self.arguments = [*(["--upstream", upstream] if upstream else []),
                          "--listen", self.listen,
                          *(["--dir", str(self.dir)] if dir else []),
                          *arguments]
        self.env = env or {}
        self.user = user
        self.terminal = terminal
        self.stdout = stdout
        self.process = None
        self.out = []
        self.err = []
        self.open = 0
        self.readers = []
        self.changed = threading.Condition()

    # ---- life ----

    def environment(self):
        env = {name: value for name, value in os.environ.items()
               if name not in ("NO_COLOR", "XDG_STATE_HOME",
                               "XDG_CONFIG_HOME", "LATCHKEY_SERVER",
                               "LATCHKEY_PROFILE")}
        env.update(HOME=str(self.folder), TERM="xterm",
                   LATCHKEY_NGINX=nginx_for(self.build, self.folder))
        env.update(self.env)
        return env

    def command(self):
        return [str(self.build / "latchkey"), "up", *self.arguments]

    def launch(self):
        """Starts it and does not wait."""
        out = self.terminal if self.terminal is not None else \
            self.stdout or subprocess.PIPE
        self.process = subprocess.Popen(
            self.command(), env=self.environment(), user=self.user,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
        self.open = 0
        for stream, lines in ((self.process.stdout, self.out),
                              (self.process.stderr, self.err)):
            if stream:
                self.open += 1
                reader = threading.Thread(target=self._read, daemon=True,
                                          args=(stream, lines))
                self.readers.append(reader)
                reader.start()
        return self

    def start(self):
        self.launch()
        self.wait_for(READY)
        return self

    def _read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def wait(self, timeout=60):
        """Its exit status, with everything read."""
        status = self.process.wait(timeout * build_.patience())
        for reader in self.readers:
            reader.join(10)
        return status

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        status = self.wait()
        assert status == 0, "exit %d\n%s" % (status, self.text())

    def run(self):
        """For one that ends by itself: its exit status."""
        self.launch()
        return self.wait()

    def children(self):
        """{"nginx": pid, "latchkeyd": pid}"""
        path = "/proc/%d/task/%d/children" % (self.process.pid,
                                              self.process.pid)
        found = {}
        for pid in pathlib.Path(path).read_text().split():
            name = pathlib.Path("/proc/%s/comm" % pid).read_text().strip()
            found[name] = int(pid)
        return found

    def descendants(self):
        """The children, and nginx's workers."""
        pids = list(self.children().values())
        for pid in list(pids):
            path = pathlib.Path("/proc/%d/task/%d/children" % (pid, pid))
            pids += [int(other) for other in path.read_text().split()]
        return pids

    def finish(self):
        """Ends what is left of it; nothing may have complained on the way."""
        try:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.wait()
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    raise
            for line in self.err:
                assert not REPORT.search(line), self.text()
        finally:
            release_port(self.taken)
            if self.own:
                shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what it prints ----

    def text(self):
        return "\n".join(["stdout:", *self.out[-60:], "stderr:",
                          *self.err[-60:]])

    def wait_for(self, pattern, count=1):
        """The lines that match, once there are so many."""
        def found():
            return [line for line in self.out + self.err
                    if re.search(pattern, line)]

        with self.changed:
            self.changed.wait_for(
                lambda: len(found()) >= count or self.open == 0,
                30 * build_.patience())
            lines = found()
        assert len(lines) >= count, "no %r\n%s" % (pattern, self.text())
        return lines

    def requests(self, path, count=1):
        """What it says of requests with this path, as lists of words."""
        lines = self.wait_for(r"^\d\d:\d\d:\d\d .* %s$" % re.escape(path),
                              count)
        return [line.split() for line in lines]

    def curl_line(self):
        first = next(number for number, line in enumerate(self.out)
                     if "curl -i" in line)
        last = first
        while self.out[last].endswith("\\"):
            last += 1
        return shlex.split("\n".join(self.out[first:last + 1]))

    def look_line(self, command="list"):
        """What it prints for operators, as printed."""
        line = next(line for line in self.out if " inspect " in line)
        words = shlex.split(line)[1:]
        assert words[1] == "list", line
        return [words[0], command, *words[2:]]

    def look(self, *words):
        """Runs that line, from another terminal of the same user."""
        return subprocess.run(
            [*self.look_line(words[0] if words else "list"), *words[1:]],
            capture_output=True, text=True, env=self.environment(),
            timeout=60 * build_.patience())

    # ---- clients ----

    def ask(self, method, target, headers=(), body=None):
        if self.listen.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.listen[5:])
        else:
            sock = socket.create_connection(("127.0.0.1", self.port))
        sock.settimeout(60 * build_.patience())
        with Connection(sock) as connection:
            return connection.ask(method, target, headers, body)

    def post(self, target, key=None, body=b"{}", caller="Bearer me", **more):
        headers = {"Content-Type": "application/json", **more}
        if caller:
            headers["Authorization"] = caller
        if key:
            headers["Idempotency-Key"] = key
        return self.ask("POST", target, headers, body)


def is_gone(pids):
    return not any(is_alive(pid) for pid in pids)
