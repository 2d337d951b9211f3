"""The comparisons of the gateway: nginx with Latchkey against nginx without.

All nginxes are the same program with the same settings (bench/nginx), before
the same app, `payments --no-ledger`, over 64 kept connections on each side.
Client, nginx, app and store share the machine.
"""
import contextlib
import grp
import http.client
import itertools
import os
import pwd
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import (BUILD, alternate, clear, latchkeyd, redis, running, spread)

HERE = Path(__file__).resolve().parent / "nginx"
NGINX = os.environ.get("LATCHKEY_NGINX") or "/usr/sbin/nginx"
CONNECTIONS = 64
WORKERS = 2
CHARGE = '{"amount":4200,"currency":"eur","customer":"cus_1"}'
HEADERS = {"Content-Type": "application/json", "X-Api-Key": "acme"}
PAD = ("--pad", "64")  # makes responses of about 200 bytes

keys = (f"{os.getpid()}-{number}-" for number in itertools.count())


# ---- servers ---------------------------------------------------------------

def free_port():
    """Below the range of ports that the system hands out by itself."""
    while True:
        port = random.randrange(10240, 32000)
        with contextlib.closing(socket.socket()) as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def app(*extra):
    port = free_port()
    return port, running([BUILD / "payments", "--no-ledger", "--listen",
                          f"127.0.0.1:{port}", *extra], port)


def modules(locations):
    if locations in ("latchkey", "async"):
        return [(BUILD / "ngx_http_latchkey_module.so").resolve()]
    if locations == "lua":
        return [f"/usr/lib/nginx/modules/{name}_module.so"
                for name in ("ndk_http", "ngx_http_lua")]
    return []


def nginx(folder, locations, app_port, store="", body="", workers=WORKERS,
          listen="reuseport", inner=""):
    """The one with bench/nginx/LOCATIONS.conf. `inner`: the socket at which
    the courier brings requests."""
    folder.mkdir()
    port = free_port()
    lines = [f"load_module {path};" for path in modules(locations)]
    if os.getuid() == 0:  # a worker must reach what is in our folder
        lines.append("user %s %s;" % (pwd.getpwuid(0).pw_name,
                                      grp.getgrgid(0).gr_name))
    values = {"MODULES": "\n".join(lines), "LOCATIONS": locations,
              "WORKERS": workers, "APP": app_port, "PORT": port,
              "LISTEN": listen, "STORE": store, "BODY": body, "HERE": HERE,
              "INNER": inner}
    for name in ("nginx", locations):
        text = (HERE / f"{name}.conf").read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        (folder / f"{name}.conf").write_text(text)
    return port, running([NGINX, "-p", folder, "-c", folder / "nginx.conf",
                          "-e", folder / "error.log"], port)


def ask(port, method, path, key=None):
    """Status and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        headers = dict(HEADERS, **({"Idempotency-Key": key} if key else {}))
        connection.request(method, path,
                           CHARGE if method == "POST" else None, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


class Gateway:
    """An app, a daemon, and nginxes before them, until the block ends."""

    def __init__(self, folder, *app_options, **nginx_options):
        self.folder = folder
        self.nginx_options = nginx_options
        self.masters = {}
        self.stack = contextlib.ExitStack()
        self.app_port, server = app(*app_options)
        self.app = self.stack.enter_context(server)
        self.body = ""
        if "--delay" not in app_options:
            self.body = ask(self.app_port, "POST", "/charges")[1].strip()
        self.store, server = latchkeyd(folder)
        self.daemon = self.stack.enter_context(server)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.stack.close()

    def nginx(self, locations, store=None, name=None, **more):
        port, server = nginx(self.folder / (name or locations), locations,
                             self.app_port, store or self.store, self.body,
                             **self.nginx_options, **more)
        self.masters[port] = self.stack.enter_context(server)
        return port

    def redis(self, name, *extra):
        home = self.folder / name
        home.mkdir()
        path, server = redis(home, "--auto-aof-rewrite-percentage", "0",
                             *extra)
        self.stack.enter_context(server)
        return path


# ---- clients ---------------------------------------------------------------

def wrk(port, path, seconds, key=None):
    """Requests a second by wrk, each with a new key unless there is one."""
    out = subprocess.run(
        ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s",
         "--timeout", "10s", "-s", HERE / "wrk.lua",
         f"http://127.0.0.1:{port}{path}", "--", key or next(keys)],
        check=True, capture_output=True, text=True).stdout
    rate, wrong = out.splitlines()[-1].split()
    if int(wrong):
        sys.exit(f"bench: {wrong} requests to {path} went wrong")
    return float(rate)


def seconds_of(args):
    return max(1, 5 // args.divide)


def rates(args, *targets):
    """Alternating rounds of wrk; a target is a port, a path and maybe a key.
    Every one is warmed up first."""
    for target in targets:
        wrk(*target[:2], 1, *target[2:])
    return alternate(args.rounds, *(
        lambda t=target: wrk(*t[:2], seconds_of(args), *t[2:])
        for target in targets))


# ---- the comparisons -------------------------------------------------------

def bench_first(args, folder, results):
    """First requests, a new key each, against plain proxying and a script."""
    with Gateway(folder, *PAD) as gate:
        ours = gate.nginx("latchkey")
        always = gate.nginx("lua", gate.redis("redis-always"), "lua-always")
        everysec = gate.nginx(
            "lua", gate.redis("redis-everysec", "--appendfsync", "everysec"),
            "lua-everysec")
        a, plain, b, c = rates(args, (ours, "/guarded"), (ours, "/proxied"),
                               (always, "/guarded"), (everysec, "/guarded"))
    what = "first requests/s, 64 connections, "
    results.pair(what + "against the same nginx with the module off", "0.85",
                 a, plain)
    results.pair(what + "against a Lua script with Redis, appendfsync always",
                 "4", a, b)
    results.pair(what + "against a Lua script with Redis, appendfsync "
                 "everysec (which may lose a second)", "report", a, c)


def bench_served(args, folder, results):
    """Replays against nginx's return of the same body."""
    with Gateway(folder, *PAD) as gate:
        port, key = gate.nginx("latchkey"), "replayed"
        responses = [ask(port, "POST", "/guarded", key) for _ in range(2)]
        if responses[0] != responses[1] or responses[0][0] != 201:
            sys.exit(f"bench: no replay: {responses}")
        results.pair(
            "replays/s, 64 connections, against nginx's return of the same "
            f"{len(responses[0][1])} bytes", "0.6",
            *rates(args, (port, "/guarded", key), (port, "/returned", key)))


def bench_off(args, folder, results):
    """The module loaded and off against nginx without it."""
    with Gateway(folder, *PAD) as gate:
        ours, theirs = gate.nginx("latchkey"), gate.nginx("plain")
        for path, name in (("/proxied", "proxied requests/s"),
                           ("/returned", "requests/s by return")):
            results.pair(f"{name}, module loaded and off, against nginx "
                         "without it", "1",
                         *rates(args, (ours, path), (theirs, path)))


def sync_times(folder, count=100):
    """Microseconds of fdatasync after 4 KiB: p50 and p99."""
    path = folder / "sync"
    times = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file)
            times.append((time.perf_counter() - began) * 1e6)
    path.unlink()
    times.sort()
    return times[count // 2], times[count * 99 // 100]


def bench_added_latency(args, folder, results):
    """Latency that Latchkey adds to a first request, at a quarter of load."""
    def load(port, path):
        out = subprocess.run(
            [BUILD / "bench/http_load", "rate", str(port), path, next(keys),
             str(CONNECTIONS), str(rate), str(6 / args.divide)],
            check=True, capture_output=True, text=True).stdout
        return [float(word) for word in out.split()]

    with Gateway(folder, *PAD) as gate:
        port = gate.nginx("latchkey")
        wrk(port, "/guarded", 1)
        rate = int(wrk(port, "/guarded", seconds_of(args)) / 4)
        ours, plain, syncs = alternate(
            args.rounds, lambda: load(port, "/guarded"),
            lambda: load(port, "/proxied"), lambda: sync_times(folder))
    for column, name in ((0, "p50"), (1, "p99")):
        a, b, sync = ([row[column] for row in rows]
                      for rows in (ours, plain, syncs))
        added = statistics.median(a) - statistics.median(b)
        results.add(
            f"latency added to a first request, {name}, at {rate:,}/s, a "
            "quarter of full load", f"{added:,.0f} µs",
            f"{2 * statistics.median(sync) + 200:,.0f} µs, two syncs and "
            "0.2 ms", f"{spread(a)} against {spread(b)}, fdatasync "
            f"{spread(sync)} µs")


def private_memory(master):
    """Bytes that the only worker of an nginx has for itself."""
    children = Path(f"/proc/{master.pid}/task/{master.pid}/children")
    worker, = children.read_text().split()
    total = 0
    for line in Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_"):
            total += int(line.split()[1]) * 1024
    return total


def wait_until(condition, what):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    sys.exit(f"bench: {what} did not happen")


def charges_of(gate):
    text = ask(gate.app_port, "GET", "/ledger")[1]
    return int(text.split('"charges":')[1].split(",")[0].rstrip("}\n"))


def held_memory(folder, path, count, pad=None):
    """Bytes of a worker for each of `count` requests that wait for the app;
    with `pad`, whose responses of that size wait to be stored or, if nothing is
    stored, for a client that does not read."""
    delay = 600000 if pad is None else 3000
    clear(folder)
    with Gateway(folder, "--delay", str(delay), "--pad", str(pad or 0),
                 workers=1, listen="sndbuf=4k") as gate:
        port = gate.nginx("latchkey")
        master = gate.masters[port]
        ask(port, "GET", "/returned")
        before = private_memory(master)
        client = subprocess.Popen(
            [BUILD / "bench/http_load", "hold", str(port), path, next(keys),
             str(count)])
        try:
            wait_until(lambda: charges_of(gate) == count, "the last charge")
            if pad is not None:
                os.kill(gate.daemon.pid, signal.SIGSTOP)
                time.sleep(delay / 1000 + 1)
            return (private_memory(master) - before) / count
        finally:
            client.terminate()
            client.wait()
            os.kill(gate.daemon.pid, signal.SIGCONT)


def bench_memory(args, folder, results):
    """Memory of a request in flight against plain proxying."""
    count, rounds = 1000, min(args.rounds, 3)
    for pad, name in ((None, "while the app works"),
                      (32768, "while a response of 32 KiB waits to be stored; "
                       "plain: for a client that does not read")):
        ours, plain = alternate(
            rounds, lambda: held_memory(folder, "/guarded", count, pad),
            lambda: held_memory(folder, "/proxied", count, pad))
        added = statistics.median(ours) - statistics.median(plain)
        results.add(
            f"memory added to a request in flight, {name}",
            f"{added:,.0f} bytes", f"{(pad or 0) + 8192:,}",
            f"{spread(ours)} against {spread(plain)} bytes, {count:,} requests "
            "in one worker")


COMPARISONS = {
    "gateway-first": bench_first, "gateway-replays": bench_served,
    "gateway-off": bench_off, "gateway-latency": bench_added_latency,
    "gateway-memory": bench_memory,
}
