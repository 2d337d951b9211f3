"""Starts, watches and stops a real nginx with Latchkey's module.

Configurations may name places in @...@: @APP@, @FASTCGI@, @SCGI@ and @UWSGI@
are the app's addresses, @DAEMON@ the daemon's, @FOLDER@ the gateway's folder,
@PORT@ its port, @DEAD@ an address where nobody listens.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading

from . import build as build_
from .daemon import REPORT
from .life import until
from .resp import fields
from .service import free_port, release_port
from .wire import Connection, encode_request

MODULE = "ngx_http_latchkey_module.so"
TENANT = "acme"
DEAD = "127.0.0.1:9"

# What the log says of each request; the names are those of log().
FIELDS = {
    "pid": "$pid", "method": "$request_method", "uri": "$request_uri",
    "status": "$status", "bytes": "$body_bytes_sent",
    "key": "$http_idempotency_key", "upstream": "$upstream_addr",
}
GUARD_FIELDS = {name: "$idempotency_" + name for name in (
    "verdict", "outcome", "reference", "attempt", "wait_time", "tenant")}

# A daemon's socket that is gone is a critical error to nginx's connect().
BENIGN = (r"\[crit\].* connect\(\) to unix:\S+ failed \(2: No such file",)
LOG_LINE = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[")
SERIOUS = re.compile(r"\[(alert|emerg|crit)\]")


def nginx_of(build):
    """A build with sanitizers has an nginx of its own."""
    own = build / "nginx"
    return os.environ.get("LATCHKEY_NGINX") or str(
        own if own.is_file() else "/usr/sbin/nginx")


def guard(path="/", *lines, mode="required", tenant="$http_x_api_key",
          to="proxy_pass http://@APP@;"):
    """A guarded location, as text."""
    inside = ["idempotency %s;" % mode]
    if tenant:
        inside.append("idempotency_tenant %s;" % tenant)
    return "location %s {\n%s\n}\n" % (
        path, "\n".join([*inside, *lines, to]))


def params(kind):
    """What FastCGI, SCGI and uwsgi locations pass on, as text."""
    names = ("request_method", "request_uri", "content_length",
             "content_type", "server_protocol")
    return "\n".join("%s_param %s $%s;" % (kind, name.upper(), name)
                     for name in names)


def sanitizer_libraries(module):
    """What must be loaded before nginx if the module has sanitizers in it."""
    listed = subprocess.run(["ldd", str(module)], capture_output=True,
                            text=True).stdout
    return [found for name in ("asan", "tsan", "ubsan") for found in
            re.findall(r"=> (\S*lib%s\.so\S*)" % name, listed)]


def nginx_for(build, folder):
    """An nginx for programs that start one: a wrapper, if it needs one."""
    libraries = sanitizer_libraries(build / MODULE)
    if not libraries:
        return nginx_of(build)
    wrapper = folder / "nginx"
    wrapper.write_text(
        "#!/bin/sh\nexport LD_PRELOAD=%s "
        "ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:exitcode=99\n"
        "exec %s \"$@\"\n" % (":".join(libraries), nginx_of(build)))
    wrapper.chmod(0o755)
    return str(wrapper)


class Gateway:
    """One nginx, its folder and its ports."""

    def __init__(self, daemon=None, app=None, workers=2, build=None, main="",
                 http="", server="", locations=None, listen=(), tls=False,
                 h2=False, reuseport=False, module=True, server_options="",
                 log_level="info", daemon_address=None):
        self.build = pathlib.Path(build or build_.BUILD)
        self.folder = build_.folder("ng")
        self.folder.chmod(0o755)
        self.daemon = daemon
        self.daemon_address = daemon_address
        self.app = app
        self.worker_count = workers
        self.main = main
        self.http = http
        self.server = server
        self.locations = guard() if locations is None else locations
        self.listen = list(listen)
        self.reuseport = reuseport
        self.module = module
        self.server_options = server_options
        self.log_level = log_level
        self.port = free_port()
        self.tls_port = free_port() if tls else None
        self.h2_port = free_port() if h2 else None
        self.error_log = self.folder / "error.log"
        self.access_log = self.folder / "access.log"
        self.stderr = self.folder / "stderr"
        self.process = None
        self.expected_exit = False
        self.killed = set()
        self.allowed = list(BENIGN)
        self.connections = []

    # ---- configuration ----

    def places(self):
        places = {"FOLDER": self.folder, "PORT": self.port,
                  "DEAD": DEAD, "APP": DEAD}
        address = self.daemon_address or (self.daemon and self.daemon.address)
        if address:
            places["DAEMON"] = address
        if self.app:
            places["APP"] = self.app.address
        return places

    def fill(self, text):
        """Puts addresses in; other listeners of the app start when named."""
        places = self.places()

        def value(found):
            name = found.group(1)
            if name in ("FASTCGI", "SCGI", "UWSGI"):
                return self.app.listen(name.lower()) if self.app else DEAD
            return str(places[name])

        return re.sub(r"@([A-Z]+)@", value, text)

    def listens(self):
        lines = ["listen 127.0.0.1:%d backlog=1024%s;" % (
            self.port, " reuseport" if self.reuseport else "")]
        if self.tls_port:
            make_certificate(self.folder)
            lines += ["listen 127.0.0.1:%d ssl http2;" % self.tls_port,
                      "ssl_certificate @FOLDER@/cert.pem;",
                      "ssl_certificate_key @FOLDER@/key.pem;"]
        if self.h2_port:
            lines.append("listen 127.0.0.1:%d http2;" % self.h2_port)
        return lines + ["listen %s;" % extra for extra in self.listen]

    def log_format(self):
        fields = dict(FIELDS, **(GUARD_FIELDS if self.module else {}))
        return "log_format lk escape=json '{%s}';" % ",".join(
            '"%s":"%s"' % pair for pair in fields.items())

    def config(self):
        lines = ["user root;"] if os.geteuid() == 0 else []
        if self.module:
            lines.append("load_module %s;" % (self.build / MODULE).resolve())
        lines += [
            "daemon off;", "master_process on;",
            "worker_processes %d;" % self.worker_count,
            "pid @FOLDER@/pid;",
            "error_log @FOLDER@/error.log %s;" % self.log_level,
            self.main,
            "events { worker_connections 2048; }",
            "http {",
            self.log_format(), "access_log @FOLDER@/access.log lk;",
        ]
        lines += ["%s_temp_path @FOLDER@/%s;" % (kind, kind) for kind in (
            "client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
        if self.module and (self.daemon or self.daemon_address):
            lines.append("idempotency_server @DAEMON@ %s;"
                         % self.server_options)
        lines += [self.http, "server {", *self.listens(), self.server,
                  self.locations, "}", "}"]
        return self.fill("\n".join(lines) + "\n")

    @property
    def config_file(self):
        return self.folder / "nginx.conf"

    def command(self, *more):
        return [nginx_of(self.build), "-p", str(self.folder), "-e", str(self.error_log),
                "-c", str(self.config_file), *more]

    def environment(self):
        env = dict(os.environ)
        libraries = self.module and sanitizer_libraries(self.build / MODULE)
        if libraries:
            env["LD_PRELOAD"] = ":".join(libraries)
            # nginx itself leaves memory to the end of the process.
            env["ASAN_OPTIONS"] = ("detect_leaks=0:detect_odr_violation=0:"
                                   "exitcode=99")
            env["UBSAN_OPTIONS"] = ("print_stacktrace=1:halt_on_error=1:"
                                    "exitcode=99")
        return env

    # ---- life ----

    def start(self):
        self.config_file.write_text(self.config())
        self.expected_exit = False
        pid_file = self.folder / "pid"
        pid_file.unlink(missing_ok=True)
        with open(self.stderr, "ab") as stderr:
            self.process = subprocess.Popen(
                self.command(), env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
        until(lambda: not self.is_running() or (
            pid_file.exists() and len(self.workers()) == self.worker_count))
        assert self.is_running(), "nginx did not start:\n" + self.log_text()
        if "idempotency observe;" in self.config_file.read_text():
            self.hurry()
        return self

    def hurry(self):
        """An observer waits for a tenth of a second, and no longer: where that
        is allowed, it and its daemon go before others."""
        pids = [self.process.pid, *self.children()]
        if self.daemon and self.daemon.is_running():
            pids += map(int, os.listdir("/proc/%d/task" % self.daemon.pid))
        for pid in pids:
            try:
                os.setpriority(os.PRIO_PROCESS, pid, -10)
            except OSError:  # gone, or not allowed
                pass

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, timeout=60):
        self.expected_exit = True
        return self.process.wait(timeout * build_.patience())

    def stop(self):
        """Graceful: open requests are finished."""
        self.expected_exit = True
        self.process.send_signal(signal.SIGQUIT)
        status = self.wait()
        assert status == 0, "nginx left with %d\n%s" % (status,
                                                        self.log_text())

    def terminate(self):
        """At once: open requests are cut off."""
        self.expected_exit = True
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def kill(self):
        """kill -9 of the master and of all workers."""
        self.expected_exit = True
        workers = self.children()
        self.process.kill()
        for pid in workers:
            self.kill_worker(pid)
        self.wait()
        until(lambda: not any(is_alive(pid) for pid in workers))

    def kill_worker(self, pid, number=signal.SIGKILL):
        self.killed.add(pid)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def reload(self, **changes):
        """A new configuration; returns once only new workers take requests.

        Those before them, which may still finish some, are what it returns.
        """
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.config_file.write_text(self.config())
        old = set(self.children())
        self.process.send_signal(signal.SIGHUP)
        until(lambda: len(self.workers()) == self.worker_count and
              not old & set(self.workers()))
        return old

    def children(self):
        path = "/proc/%d/task/%d/children" % (self.process.pid,
                                              self.process.pid)
        try:
            return [int(pid) for pid in pathlib.Path(path).read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def workers(self):
        """The ones that take requests, not those that finish and leave."""
        def takes(pid):
            try:
                title = pathlib.Path("/proc/%d/cmdline" % pid).read_text()
            except (FileNotFoundError, ProcessLookupError):
                return False
            return "worker process" in title and "shutting" not in title
        return [pid for pid in self.children() if takes(pid)]

    # ---- logs ----

    def log(self):
        if not self.error_log.exists():
            return []
        return self.error_log.read_text("utf-8", "replace").splitlines()

    def log_text(self):
        said = self.stderr.read_text("utf-8", "replace") \
            if self.stderr.exists() else ""
        return "\n".join([*self.log()[-80:], said])

    def wait_for_log(self, pattern, since=0):
        return until(lambda: next(
            (line for line in self.log()[since:] if re.search(pattern, line)),
            None))

    def access(self):
        """One dict for each finished request."""
        if not self.access_log.exists():
            return []
        lines = self.access_log.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]  # may be half a line

    def logged(self, count=1, **fields):
        """The requests that match, once there are `count` of them."""
        def found():
            entries = [entry for entry in self.access() if all(
                entry.get(name) == str(value)
                for name, value in fields.items())]
            return entries if len(entries) >= count else None
        return until(found)

    def allow(self, pattern):
        """A serious line in the log that this test brings about."""
        self.allowed.append(pattern)

    # ---- clients ----

    def socket(self, tls=False, timeout=None):
        port = self.tls_port if tls else self.port
        sock = socket.create_connection(("127.0.0.1", port))
        sock.settimeout((timeout or 30) * build_.patience())
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.create_default_context(
                cafile=str(self.folder / "cert.pem"))
            sock = context.wrap_socket(sock, server_hostname="localhost")
        return sock

    def raw(self, tls=False, timeout=None):
        """A connection of HTTP/1, closed at the end of the test."""
        connection = Connection(self.socket(tls, timeout))
        self.connections.append(connection)
        return connection

    def request(self, method="POST", path="/", body=b"", headers=None,
                key=None, tenant=TENANT, tls=False, **options):
        """One request on a connection of its own; its Response."""
        with Connection(self.socket(tls)) as connection:
            return connection.ask(method, path,
                                  self.headers(headers, key, tenant), body,
                                  **options)

    def post(self, key=None, body=b"{}", path="/", **options):
        return self.request("POST", path, body, key=key, **options)

    def later(self, *args, **options):
        """A request in the background; what comes back has result()."""
        future = concurrent.futures.Future()

        def run():
            try:
                future.set_result(self.request(*args, **options))
            except BaseException as error:  # to be raised by result()
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def leave(self, path="/", body=b"{}", headers=None, key=None,
              tenant=TENANT):
        """A client that asks and does not wait; its connection."""
        connection = self.raw()
        connection.send(encode_request(
            "POST", path, self.headers(headers, key, tenant), body))
        return connection

    def settled(self, key, body=b"{}", path="/", **options):
        """Asks until the operation is no longer under way.

        A worker may still miss a daemon that is back; another one does not.
        """
        def answer():
            response = self.post(key, body, path, **options)
            again = response.problem in ("in-progress", "unavailable")
            return None if again else response
        return until(answer, pause=0.05)

    def curl(self, *args, tls=False, h2=False, input=None):
        """curl as the client; what it printed, with the headers."""
        port = self.tls_port if tls else self.h2_port if h2 else self.port
        options = ["--http2-prior-knowledge"] if h2 else []
        if tls:
            options += ["--cacert", str(self.folder / "cert.pem")]
        return subprocess.run(
            ["curl", "-sS", "-i", "-m", str(30 * build_.patience()), *options,
             *map(str, args), "--resolve", "localhost:%d:127.0.0.1" % port,
             "%s://localhost:%d/" % ("https" if tls else "http", port)],
            input=input, capture_output=True)

    def record(self, key, tenant=TENANT, scope="POST /"):
        """What the store has of an operation; None: nothing."""
        with self.daemon.raw() as raw:
            found = raw("LOOKUP", tenant, scope, key)
        return fields(found) if found is not None else None

    def state(self, key, tenant=TENANT, scope="POST /"):
        record = self.record(key, tenant, scope)
        return record and record["state"].decode()

    def wait_state(self, key, state, **name):
        until(lambda: self.state(key, **name) == state)

    def commands(self, name):
        """How many of these commands the daemon has got since its start."""
        with self.daemon.raw() as raw:
            text = raw("INFO").decode()
        found = re.search(r"cmdstat_%s:calls=(\d+)" % name, text)
        return int(found.group(1)) if found else 0

    def headers(self, headers=None, key=None, tenant=TENANT):
        pairs = list((headers or {}).items() if not isinstance(headers, list)
                     else headers)
        if key is not None:
            pairs.append(("Idempotency-Key", key))
        if tenant is not None:
            pairs.append(("X-API-Key", tenant))
        return pairs

    # ---- the end ----

    def complaints(self):
        """Serious lines that no test asked for."""
        excuses = list(self.allowed)
        excuses += [r"worker process %d exited on signal" % pid
                    for pid in self.killed]
        return [line for line in self.log() if SERIOUS.search(line) and
                not any(re.search(excuse, line) for excuse in excuses)]

    def check(self):
        # nginx sends what is meant for stderr to its log.
        for file in (self.stderr, self.error_log):
            said = file.read_text("utf-8", "replace") if file.exists() else ""
            lines = [line for line in said.splitlines()
                     if not LOG_LINE.match(line)]
            report = "\n".join(lines)
            assert not REPORT.search(report), report[:8000]
        lines = self.complaints()
        assert not lines, "nginx complained:\n" + "\n".join(lines[:20])

    def finish(self):
        """Ends it, and fails if it complained or a worker died."""
        for connection in self.connections:
            connection.close()
        died = (self.process is not None and not self.expected_exit and
                self.process.poll() is not None)
        try:
            assert not died, "nginx died: %d\n%s" % (
                self.process.returncode, self.log_text())
            if self.is_running():
                self.stop()
            self.check()
        finally:
            if self.is_running():
                self.kill()
            self.leave_nothing()

    def leave_nothing(self):
        for port in (self.port, self.tls_port, self.h2_port):
            release_port(port)
        if not os.environ.get("LATCHKEY_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)


def is_alive(pid):
    try:
        stat = pathlib.Path("/proc/%d/stat" % pid).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def make_certificate(folder):
    if (folder / "cert.pem").exists():
        return
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(folder / "key.pem"), "-out",
         str(folder / "cert.pem")], check=True, capture_output=True)


class Checked:
    """What nginx -t says of a configuration."""

    def __init__(self, status, text, config):
        self.status = status
        self.text = text
        self.config = config

    @property
    def ok(self):
        return self.status == 0

    def line_of(self, text):
        """The number of the one line of the configuration with the text."""
        numbers = [number for number, line in
                   enumerate(self.config.splitlines(), 1) if text in line]
        assert len(numbers) == 1, (text, numbers)
        return numbers[0]


def check_config(locations="", **options):
    """nginx -t of a gateway that is not started."""
    options.setdefault("daemon_address", "unix:/tmp/nobody-listens-here")
    gateway = Gateway(locations=locations, workers=1, **options)
    try:
        gateway.config_file.write_text(gateway.config())
        result = subprocess.run(
            gateway.command("-t"), env=gateway.environment(),
            capture_output=True, text=True, timeout=60)
        return Checked(result.returncode, result.stderr,
                       gateway.config_file.read_text())
    finally:
        gateway.leave_nothing()
