"""What the comparisons share: servers, clients, alternating rounds, and the
table."""
import contextlib
import csv
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(os.environ.get("LATCHKEY_BUILD", "build"))
TENANT, SCOPE = "tenant", "POST /v1/payments"
FINGERPRINT = "1:" + "5f" * 32


# ---- servers ---------------------------------------------------------------

def wait_for(address, process):
    """Waits until a server accepts connections on the unix socket or the port."""
    family = socket.AF_INET if isinstance(address, int) else socket.AF_UNIX
    where = (("127.0.0.1", address) if isinstance(address, int)
             else str(address))
    for _ in range(60000):
        if process.poll() is not None:
            sys.exit(f"bench: {process.args[0]} ended: {process.returncode}")
        with contextlib.closing(socket.socket(family)) as sock:
            try:
                sock.connect(where)
                return
            except OSError:
                time.sleep(0.01)
    sys.exit(f"bench: {process.args[0]} does not listen")


@contextlib.contextmanager
def running(arguments, address):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        wait_for(address, process)
        yield process
    finally:
        process.terminate()
        process.wait()


def latchkeyd(folder, *extra, store=None):
    """`store`: its URL, or the file of an embedded one."""
    path = folder / "latchkeyd.sock"
    url = str(store or folder / "latchkey.db")
    if ":" not in url:
        url = f"sqlite:{url}"
    return path, running([BUILD / "latchkeyd", "--store", url, "--listen",
                          f"unix:{path}", *extra], path)


def redis(folder, *extra):
    path = folder / "redis.sock"
    return path, running(
        ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder,
         "--save", "", "--appendonly", "yes", "--appendfsync", "always",
         *extra], path)


def clear(folder):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---- clients ---------------------------------------------------------------

def benchmark(path, requests, *words, pipeline=1):
    """Requests a second, by the stock redis-benchmark with 64 clients."""
    out = subprocess.run(
        ["redis-benchmark", "--csv", "-s", path, "-c", "64", "-n",
         str(requests), "-P", str(pipeline), "-r", "1000000000", *words],
        check=True, capture_output=True, text=True).stdout
    return float(list(csv.reader(out.splitlines()))[-1][1])


numbers = itertools.count()


def fresh():
    """A prefix of keys that no earlier run can have used, whatever its seed."""
    return f"key-{next(numbers)}-__rand_int__"


def claims(path, requests, pipeline=1):
    return benchmark(path, requests, "CLAIM", TENANT, SCOPE, fresh(),
                     FINGERPRINT, pipeline=pipeline)


def setnx(path, requests, pipeline=1):
    return benchmark(path, requests, "SET", f"{TENANT}:{SCOPE}:{fresh()}",
                     FINGERPRINT, "NX", "EX", "86400", pipeline=pipeline)


# ---- the form of every comparison --------------------------------------------

class Results:
    def __init__(self):
        self.rows = []

    def pair(self, name, target, ours, theirs, unit="/s", inverse=False):
        """ours and theirs: the values of the alternating rounds. `inverse`:
        smaller is better."""
        a, b = statistics.median(ours), statistics.median(theirs)
        ratio = b / a if inverse else a / b
        self.add(name, f"{ratio:.2f}", target,
                 f"{spread(ours)} against {spread(theirs)} {unit}")

    def add(self, name, value, target, detail):
        self.rows.append((name, value, target, detail))
        print(f"  {name}: {value} (target {target}); {detail}", flush=True)

    def table(self):
        print("\n| measure | reached | target | median (lowest to highest) |")
        print("|---|---|---|---|")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")


def spread(values):
    return (f"{statistics.median(values):,.0f} "
            f"({min(values):,.0f} to {max(values):,.0f})")


def alternate(rounds, *measures):
    """The measurements in turn, every second round backwards; the values of
    each."""
    values = [[] for _ in measures]
    for number in range(rounds):
        turn = list(zip(measures, values))
        for measure, into in turn if number % 2 == 0 else reversed(turn):
            into.append(measure())
    return values
