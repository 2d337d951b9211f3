#!/usr/bin/env python3
"""How fast `latchkey reconcile` reads an export, and with how much memory.

    bench/reconcile.py [--lines 10000000] [--jobs 100000] [--memory 64m]

Jobs are delivered to a local provider; the export has a line for each of them,
spread among lines that only the provider has. Prints lines a second and the
largest resident memory (VmHWM) of the program; for an export in CSV, in JSON
lines, and in CSV with a report that lists every line which is not matched.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import BUILD, FINGERPRINT, SCOPE, TENANT, latchkeyd, running

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.gateway import free_port  # noqa: E402
from support.resp import Raw, fields  # noqa: E402

PER_OPERATION = 100
BODY = '{"amount":4200,"currency":"eur","customer":"cus_1"}'
PASSWORD = "bench-secret"


def leave_jobs(raw, count):
    """Operations that leave this number of jobs in total."""
    for start in range(0, count, PER_OPERATION):
        key = "key-%d" % start
        token = raw("CLAIM", TENANT, SCOPE, key, FINGERPRINT)[1]
        names = range(min(PER_OPERATION, count - start))
        for number in names:
            raw.send("ENQUEUE", TENANT, SCOPE, key, token, "job-%d" % number,
                     "pay", "/v1/charges", "BODY", BODY)
        raw.send("COMPLETE", TENANT, SCOPE, key, token, 201, "", "")
        replies = {str(raw.read()) for _ in range(len(names) + 1)}
        assert replies == {"OK"}, replies


def delivered(raw):
    """(key, id) of every job, once all of them are delivered."""
    while raw("JOBS", "STATE", "unfinished", "LIMIT", 1)[1]:
        time.sleep(0.2)
    found, cursor = [], 0
    while True:
        words = ["JOBS", "STATE", "delivered", "LIMIT", 1000]
        cursor, page = raw(*words, *(["CURSOR", cursor] if cursor else []))
        for one in page:
            job = fields(one)
            found.append((job["downstream-key"].decode(),
                          job["provider-id"].decode()))
        cursor = int(cursor or 0)
        if not cursor:
            return found


def write_export(path, jobs, lines):
    """The jobs spread evenly among lines of others."""
    every = max(1, lines // max(1, len(jobs)))
    as_json = path.suffix == ".jsonl"
    form = ('{"id":"%s","amount":%s,"currency":"eur","customer":"cus_1",'
            '"idempotency_key":"%s"}\n' if as_json else
            "%s,%s,eur,cus_1,%s\n")
    with path.open("w", buffering=1 << 20) as file:
        if not as_json:
            file.write("id,amount,currency,customer,idempotency_key\n")
        rest = iter(jobs)
        for number in range(lines):
            job = next(rest, None) if number % every == 0 else None
            key, name = job or ("%032x" % (number * 0x9E3779B97F4A7C15 %
                                           (1 << 128)), "ch_x%09d" % number)
            file.write(form % (name, "4200", key))


def high_water(process):
    """Its largest resident memory in KiB, asked until it ends."""
    most = 0
    while process.poll() is None:
        try:
            for line in open("/proc/%d/status" % process.pid):
                if line.startswith("VmHWM:"):
                    most = max(most, int(line.split()[1]))
        except OSError:
            break
        time.sleep(0.02)
    return most


def measure(title, socket, export, lines, jobs, args, *options):
    command = [BUILD / "latchkey", "reconcile", "pay", "--export", export,
               "--memory", args.memory, "--compare", "amount=amount",
               "--server", "unix:%s" % socket, *options]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True,
        env={"LATCHKEY_USER": "bench", "LATCHKEY_PASSWORD": PASSWORD,
             "TMPDIR": str(export.parent)})
    memory = high_water(process)
    seconds = time.monotonic() - begun
    text = process.stdout.read()
    assert process.wait() < 2, text
    counts = {label: int(count) for count, label in
              re.findall(r"^ +(\d+)  (\w+(?: \w+)*) {2,}", text, re.M)}
    assert counts["matched"] == jobs, text
    assert counts["only there"] == lines - jobs, text
    print("%-24s %11.0f lines/s %8.1f s %8.1f MiB (file %.0f MiB)" % (
        title, lines / seconds, seconds, memory / 1024,
        export.stat().st_size / (1 << 20)), flush=True)
    return {"title": title, "lines": lines, "jobs": jobs,
            "lines_per_second": round(lines / seconds),
            "seconds": round(seconds, 1), "vm_hwm_kib": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--memory", default="64m")
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="lkr", dir="/var/tmp") as name:
        folder = Path(name)
        port = free_port()
        provider = running([BUILD / "provider", "--listen",
                            "127.0.0.1:%d" % port, "--ledger", "none"], port)
        socket, daemon = latchkeyd(
            folder, "--set", "users.bench=operate " + PASSWORD,
            "--set", "target.pay.url=http://127.0.0.1:%d" % port,
            "--set", "target.pay.idempotency=yes",
            "--set", "target.pay.id=json:/id",
            "--set", "target.pay.concurrency=64")
        with provider, daemon:
            raw = Raw("unix:%s" % socket, 600)
            raw("AUTH", "bench", PASSWORD)
            leave_jobs(raw, args.jobs)
            jobs = delivered(raw)
            for title, suffix, options in (
                    ("CSV", "csv", ()), ("JSON lines", "jsonl", ()),
                    ("CSV, with a report", "csv",
                     ("--report", folder / "report.jsonl"))):
                export = folder / ("export." + suffix)
                if not export.exists():
                    write_export(export, jobs, args.lines)
                results.append(measure(title, socket, export, args.lines,
                                       len(jobs), args, *options))
            raw.close()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
