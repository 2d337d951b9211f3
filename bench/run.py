"""The comparisons: each measures Latchkey and something that people know side
by side, alternately, several times, and prints the ratio of the medians.

    ./run bench                      all of them
    ./run bench claims replays       only these
    ./run bench gateway stores       those whose names begin with it
    ./run bench --rounds 3 --quick   faster and rougher
"""
import argparse
import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import gateway
import outbox
import stores
from common import (BUILD, FINGERPRINT, SCOPE, TENANT, Results, alternate,
                    benchmark, claims, clear, latchkeyd, redis, setnx)

BODY = "x" * 256


def cli(path, *words):
    return subprocess.run(["redis-cli", "-s", path, *words], check=True,
                          capture_output=True, text=True).stdout


def info(path):
    lines = cli(path, "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


# ---- the comparisons -------------------------------------------------------

def bench_claims(args, folder, results):
    """Durable claims against SET NX EX with appendfsync always."""
    for pipeline, requests, target in ((1, 200_000, "2"), (16, 1_000_000, "3")):
        requests //= args.divide
        ours_at, ours = latchkeyd(folder)
        theirs_at, theirs = redis(folder)
        with ours, theirs:
            results.pair(
                f"durable claims/s, 64 clients, pipeline {pipeline}, against "
                "Redis SET NX EX, appendfsync always", target,
                *alternate(args.rounds,
                           lambda: claims(ours_at, requests, pipeline),
                           lambda: setnx(theirs_at, requests, pipeline)))
        clear(folder)


def bench_replays(args, folder, results):
    """Replays against GET of a value of the same size."""
    ours_at, ours = latchkeyd(folder)
    theirs_at, theirs = redis(folder)
    with ours, theirs:
        name = (TENANT, SCOPE, "key-replayed")
        token = cli(ours_at, "CLAIM", *name, FINGERPRINT).split()[1]
        cli(ours_at, "COMPLETE", *name, token, "201",
            "Content-Type: application/json\r\n", BODY)
        cli(theirs_at, "SET", ":".join(name), BODY)
        requests = 300_000 // args.divide
        results.pair(
            "replays/s, 64 clients, against Redis GET of the same size", "1",
            *alternate(args.rounds,
                       lambda: benchmark(ours_at, requests, "CLAIM", *name,
                                         FINGERPRINT),
                       lambda: benchmark(theirs_at, requests, "GET",
                                         ":".join(name))))


def bench_pairs(args, folder, results):
    """Claim and completion pairs inside the store against a bare log."""
    def pairs(kind):
        clear(folder)
        out = subprocess.run(
            [BUILD / "bench/pairs", kind, folder, "64",
             str(256_000 // args.divide), "256"],
            check=True, capture_output=True, text=True).stdout
        return float(out)

    results.pair(
        "claim and completion pairs/s inside the store, batches of 64, "
        "against a bare log file with fdatasync for each batch", "0.5",
        *alternate(args.rounds, lambda: pairs("store"), lambda: pairs("log")))


def bench_latency(args, folder, results):
    """p99 of a claim at half of what Redis can do."""
    ours_at, ours = latchkeyd(folder)
    theirs_at, theirs = redis(folder)

    def latency(kind, path, rate):
        out = subprocess.run(
            [BUILD / "bench/latency", kind, path, "64", str(rate),
             str(6 / args.divide)], check=True, capture_output=True, text=True)
        return [float(word) for word in out.stdout.split()]

    with ours, theirs:
        rate = setnx(theirs_at, 100_000) / 2
        a, b = alternate(args.rounds,
                         lambda: latency("claim", ours_at, rate),
                         lambda: latency("setnx", theirs_at, rate))
    for column, name, target in ((0, "p50", "report"), (1, "p99", "1")):
        results.pair(
            f"{name} of a claim at {rate:,.0f}/s, half load, Redis as above "
            "(above 1: shorter)", target, [row[column] for row in a],
            [row[column] for row in b], unit="µs", inverse=True)


def resident(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def bench_size(args, folder, results):
    """Throughput, memory and start with many live keys."""
    few, many = 100_000, 10_000_000 // args.divide
    for keys in (few, many):
        print(f"  filling a store with {keys:,} keys", flush=True)
        subprocess.run([BUILD / "bench/fill", folder / f"{keys}.db",
                        str(keys)], check=True)
    servers = {}
    with contextlib.ExitStack() as stack:
        for keys in (few, many):
            home = folder / str(keys)
            home.mkdir()
            path, server = latchkeyd(home, store=folder / f"{keys}.db")
            began = time.monotonic()
            process = stack.enter_context(server)
            servers[keys] = (path, process, time.monotonic() - began)
        facts = info(servers[many][0])
        memory = resident(servers[many][1]) - resident(servers[few][1])
        requests = 200_000 // args.divide
        results.pair(
            f"claims/s, 64 clients, at {many:,} live keys against {few:,}",
            "0.9",
            *alternate(args.rounds,
                       lambda: claims(servers[many][0], requests),
                       lambda: claims(servers[few][0], requests)))
    per_key = int(facts["index_bytes"]) / int(facts["records"])
    results.add("memory per live key, index", f"{per_key:.1f} bytes", "64",
                f"{memory / (many - few):.1f} bytes of resident memory")
    seconds = servers[many][2]
    results.add(f"start with {many:,} keys", f"{seconds:.1f} s", "report",
                f"{seconds / many * 1e6:.2f} s for each million")


COMPARISONS = {
    "claims": bench_claims, "replays": bench_replays, "pairs": bench_pairs,
    "latency": bench_latency, "size": bench_size, **gateway.COMPARISONS,
    **stores.COMPARISONS, **outbox.COMPARISONS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"of {', '.join(COMPARISONS)}, or how some of "
                        "them begin; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", dest="divide", action="store_const",
                        const=10, default=1, help="a tenth of the work")
    parser.add_argument("--folder", default="build",
                        help="where the stores stand: the disk to measure")
    args = parser.parse_args()
    for name in args.names:
        if not any(known.startswith(name) for known in COMPARISONS):
            parser.error(f"no such comparison: {name}")
    results = Results()
    for name in COMPARISONS:
        if not name.startswith(tuple(args.names) or ""):
            continue
        print(f"{name}: {COMPARISONS[name].__doc__}", flush=True)
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            COMPARISONS[name](args, Path(folder).resolve(), results)
    results.table()


if __name__ == "__main__":
    main()
