"""The comparisons of the stores on a server: PostgreSQL and Redis.

The servers are private ones, started by the same code as in the tests, with
their usual settings: PostgreSQL with fsync and synchronous_commit on, Redis
with appendfsync everysec. Clients, daemon and server share the machine.
"""
import contextlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gateway
from common import BUILD, alternate, claims, latchkeyd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.postgres import Postgres  # noqa: E402
from support.redis_server import RedisServer  # noqa: E402

CLIENTS = 64
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB",
            "max_connections": "200"}

# One claim as a script would write it: the same columns, the same indexes.
INSERT = """\
\\set a random(1, 1000000000000)
\\set b random(1, 1000000000000)
INSERT INTO peer (number, tenant, scope, key, state, token, attempt,
  generation, fingerprint, owner, claimed_ms, deadline_ms, ttl_ms)
VALUES (nextval('peer_token'), 'tenant', 'POST /v1/payments',
  'key-' || :a || '-' || :b, 2, currval('peer_token'), 1, 1,
  '1:5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f', 'owner',
  1790000000000, 1790000030000, 86400000)
ON CONFLICT DO NOTHING RETURNING token;
"""


def migrated(server, name):
    url = server.create_database(name)
    subprocess.run([BUILD / "latchkey", "migrate", url], check=True,
                   stdout=subprocess.DEVNULL)
    return url


@contextlib.contextmanager
def postgres():
    server = Postgres(settings=SETTINGS)
    try:
        server.start()
        yield server
    finally:
        server.finish()


def pgbench(server, database, script, transactions):
    out = subprocess.run(
        [server.bin / "pgbench", "-h", server.folder, "-p", str(server.port),
         "-U", "postgres", "-n", "-M", "prepared", "-c", str(CLIENTS), "-j",
         "2", "-t", str(max(1, transactions // CLIENTS)), "-f", script,
         database], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"tps = ([0-9.]+)", out).group(1))


def bench_claims(args, folder, results):
    """Claims on PostgreSQL against INSERT ... ON CONFLICT by pgbench."""
    requests = 200_000 // args.divide
    script = folder / "insert.sql"
    script.write_text(INSERT)
    with postgres() as server:
        url = migrated(server, "bench")
        for line in ("CREATE TABLE peer (LIKE latchkey.operation INCLUDING ALL)",
                     "CREATE SEQUENCE peer_token"):
            server.query(line, database="bench")
        path, daemon = latchkeyd(folder, store=url)
        with daemon:
            results.pair(
                "claims/s through latchkeyd on PostgreSQL, 64 clients, "
                "synchronous_commit on, against pgbench with INSERT ... ON "
                "CONFLICT DO NOTHING RETURNING, 64 clients", "3",
                *alternate(args.rounds, lambda: claims(path, requests),
                           lambda: pgbench(server, "bench", script,
                                           requests // 2)))


def bench_daemons(args, folder, results):
    """Two daemons on one PostgreSQL against one."""
    requests = 200_000 // args.divide
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    with postgres() as server:
        url = migrated(server, "bench")
        first, daemon = latchkeyd(folder / "one", store=url)
        second, other = latchkeyd(folder / "two", store=url)

        def both():
            with ThreadPoolExecutor() as pool:
                return sum(pool.map(lambda at: claims(at, requests // 2),
                                    (first, second)))

        with daemon, other:
            results.pair(
                "claims/s of two daemons on one PostgreSQL, 64 clients each, "
                "against one daemon", "report",
                *alternate(args.rounds, both,
                           lambda: claims(first, requests)))


FILL = """
INSERT INTO latchkey.operation (number, tenant, scope, key, state, token,
  attempt, generation, fingerprint, owner, claimed_ms, deadline_ms, ttl_ms,
  status, completed_ms, omitted)
SELECT n, 'tenant', 'POST /v1/payments', 'old-' || md5(n::text), 4, n, 1, n,
  '1:' || repeat('5f', 32), 'owner', t, t + 400::bigint * 86400000,
  400::bigint * 86400000, 201, t, true
FROM generate_series(1, %d) n,
  (SELECT (extract(epoch FROM now()) * 1000)::bigint AS t) clock
"""


def bench_size(args, folder, results):
    """Claims at ten million rows against a hundred thousand."""
    few, many = 100_000, 10_000_000 // args.divide
    requests = 200_000 // args.divide
    paths = {}
    with postgres() as server, contextlib.ExitStack() as stack:
        for rows in (few, many):
            print(f"  filling a table with {rows:,} rows", flush=True)
            url = migrated(server, f"rows{rows}")
            for line in (FILL % rows, "SELECT setval('latchkey.token', %d)" %
                         rows, "VACUUM ANALYZE latchkey.operation",
                         "CHECKPOINT"):
                server.query(line, database=f"rows{rows}")
            (folder / str(rows)).mkdir()
            paths[rows], daemon = latchkeyd(folder / str(rows), store=url)
            stack.enter_context(daemon)
        results.pair(
            f"claims/s on PostgreSQL, 64 clients, at {many:,} rows against "
            f"{few:,}", "0.8",
            *alternate(args.rounds, lambda: claims(paths[many], requests),
                       lambda: claims(paths[few], requests)))


def wire_pairs(path, pairs):
    out = subprocess.run([BUILD / "bench/wire_pairs", path, str(CLIENTS),
                          str(pairs), "256"], check=True, capture_output=True,
                         text=True).stdout
    return float(out)


def plain_pairs(port, requests):
    """Two plain commands, one after the other: pairs a second."""
    rates = []
    for words in (("SET", "key-__rand_int__", "x" * 64, "NX"),
                  ("SET", "key-__rand_int__", "x" * 320)):
        out = subprocess.run(
            ["redis-benchmark", "--csv", "-p", str(port), "-c", str(CLIENTS),
             "-n", str(requests), "-r", "1000000000", *words], check=True,
            capture_output=True, text=True).stdout
        rates.append(float(out.splitlines()[-1].split(",")[1].strip('"')))
    return 1 / sum(1 / rate for rate in rates)


def bench_redis(args, folder, results):
    """Pairs on a Redis store against two plain commands."""
    pairs = 100_000 // args.divide
    theirs = RedisServer(appendonly=True, appendfsync="everysec")
    ours = RedisServer(appendonly=True, appendfsync="everysec")
    try:
        theirs.start()
        ours.start()
        path, daemon = latchkeyd(folder, store=ours.url())
        with daemon:
            results.pair(
                "claim and completion pairs/s on Redis (everysec) through "
                "latchkeyd, 64 clients, against redis-benchmark with two "
                "plain commands", "0.7",
                *alternate(args.rounds, lambda: wire_pairs(path, pairs),
                           lambda: plain_pairs(theirs.port, pairs)))
    finally:
        theirs.finish()
        ours.finish()


def bench_gateway(args, folder, results):
    """First requests through the gateway, PostgreSQL against embedded."""
    (folder / "postgres").mkdir()
    with postgres() as server, gateway.Gateway(folder,
                                               *gateway.PAD) as gate:
        path, daemon = latchkeyd(folder / "postgres",
                                 store=migrated(server, "bench"))
        with daemon:
            ours = gate.nginx("latchkey", path, "on-postgres")
            theirs = gate.nginx("latchkey")
            results.pair(
                "gateway, first requests/s, 64 connections, on PostgreSQL "
                "against the embedded store", "report",
                *gateway.rates(args, (ours, "/guarded"),
                               (theirs, "/guarded")))


COMPARISONS = {
    "stores-postgres": bench_claims, "stores-daemons": bench_daemons,
    "stores-size": bench_size, "stores-redis": bench_redis,
    "stores-gateway": bench_gateway,
}
