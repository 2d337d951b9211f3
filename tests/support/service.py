"""What real servers of the tests have in common: they start, die and vanish.

Each has a folder and a port of its own, runs without privileges even if the
tests are run by root, and does not outlive the tests.
"""

import atexit
import ctypes
import os
import pathlib
import pwd
import queue
import random
import select
import shutil
import signal
import socket
import subprocess
import threading

from .build import folder, patience
from .life import until

LOOPBACK = "127.0.0.1"
_libc = ctypes.CDLL(None, use_errno=True)
_reserved = {}
_starters = {}
_alive = []


# ---- ports ----

def reserve(name):
    """True if nobody else in the tests has this name; ours until release().

    Names in the abstract namespace vanish with whoever holds them.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind("\0latchkey-tests-" + name)
    except OSError:
        holder.close()
        return False
    _reserved[name] = holder
    return True


def release(name):
    """Others may have it again."""
    holder = _reserved.pop(name, None)
    if holder:
        holder.close()


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port():
    """A port for one server alone, also while it does not listen there, until
    release_port().

    It is below those that the kernel gives to clients: a server that was
    killed finds its port free again.
    """
    for _ in range(1000):
        port = random.randrange(15000, 32000)
        if is_free(port) and reserve("port-%d" % port):
            return port
    raise AssertionError("there is no free port")


def release_port(port):
    release("port-%s" % port)


# ---- processes ----

def unprivileged():
    """Who runs the servers if the tests are run by root, else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise AssertionError("there is no user without privileges")


def prefix(host=None, death=signal.SIGKILL, user=None):
    """What stands before a command: where, as whom, and how it ends with us."""
    command = list(host.prefix) if host else []
    command += ["setpriv", "--pdeathsig", signal.Signals(death).name[3:]]
    if user:
        command += ["--reuid=%d" % user.pw_uid, "--regid=%d" % user.pw_gid,
                    "--clear-groups"]
    return command + ["--"]


def _serve_starts(jobs):
    while True:
        command, options, answer = jobs.get()
        try:
            answer.put((subprocess.Popen(command, **options), None))
        except Exception as error:  # to whoever waits for it
            answer.put((None, error))


def launch(command, **options):
    """Popen on a thread that lives as long as this process.

    The death of a parent, as the kernel sees it, is that of the thread.
    """
    jobs = _starters.get(os.getpid())
    if jobs is None:
        jobs = _starters[os.getpid()] = queue.SimpleQueue()
        threading.Thread(target=_serve_starts, args=(jobs,),
                         daemon=True).start()
    answer = queue.SimpleQueue()
    jobs.put((command, options, answer))
    process, error = answer.get()
    if error:
        raise error
    return process


def parents():
    """{pid: pid of its parent} of whatever runs."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            found[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(pid):
    known, found = parents(), [pid]
    for parent in found:
        found += [child for child, its in known.items() if its == parent]
    return found


def kill_all(pids):
    """kill -9, and all of them are gone when it returns."""
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            pass
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        gone = poll.poll(20000 * patience())
        os.close(handle)
        assert gone, "a killed process does not end"


def _task_states(pid):
    """Of each thread; none: it is gone."""
    found = []
    for path in pathlib.Path("/proc/%d/task" % pid).glob("*/stat"):
        try:
            found.append(path.read_text().rpartition(")")[2].split()[0])
        except OSError:
            pass
    return found


def halt(pid):
    """SIGSTOP. When it returns, no thread of it does anything any more."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: set(_task_states(pid)) <= {"T", "t", "Z"})


def die_with(finish):
    """Calls it at exit, in this process only."""
    _alive.append((os.getpid(), finish))


def forget(finish):
    _alive[:] = [entry for entry in _alive if entry[1] != finish]


@atexit.register
def _finish_all():
    while _alive:
        pid, finish = _alive.pop()
        if pid == os.getpid():
            finish()


def drop_shared_memory(identifier):
    """Removes a segment of System V; it may be gone already."""
    _libc.shmctl(identifier, 0, None)  # 0 is IPC_RMID


class Service:
    """One server. `with` starts it and, whatever happens, ends it."""

    name = "service"
    death = signal.SIGKILL  # what it gets when the tests die
    ending = signal.SIGTERM

    def __init__(self, host=None):
        self.host = host
        self.address = host.address if host else LOOPBACK
        self.port = free_port()
        self.user = unprivileged()
        self.folder = folder("lk" + self.name[:2])
        self.give(self.folder)
        self.log = self.folder / "log"
        self.process = None
        self.clients = []
        die_with(self.finish)

    def __enter__(self):
        return self if self.is_running() else self.start()

    def __exit__(self, *_):
        self.finish()

    # ---- what each kind says of itself ----

    def command(self):
        raise NotImplementedError

    def is_ready(self):
        raise NotImplementedError

    def processes(self):
        return [self.process.pid]

    # ---- files and programs ----

    def give(self, path):
        """To whoever runs the server."""
        if self.user:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        self.give(path)
        return path

    def environment(self):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("PG", "LC_", "REDIS"))}
        return {**kept, "HOME": str(self.folder), "LC_ALL": "C"}

    def run(self, *command):
        """A program beside the server, as the same user; it must end well."""
        result = subprocess.run(
            prefix(self.host, self.death, self.user) + list(map(str, command)),
            env=self.environment(), cwd=self.folder, capture_output=True,
            text=True, timeout=120 * patience())
        assert result.returncode == 0, "%s: %s" % (command[0], result.stderr)
        return result.stdout

    def log_text(self):
        if not self.log.exists():
            return ""
        return "\n".join(
            self.log.read_text(errors="replace").splitlines()[-60:])

    # ---- life ----

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self):
        return self.process.pid

    def launch(self):
        """Starts it and does not wait."""
        assert not self.is_running()
        with open(self.log, "ab") as log:
            self.process = launch(
                prefix(self.host, self.death, self.user) + self.command(),
                env=self.environment(), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def start(self):
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self, timeout=60):
        try:
            until(lambda: not self.is_running() or self.is_ready(), timeout)
        except AssertionError:
            raise AssertionError("%s is not ready:\n%s" % (
                self.name, self.log_text())) from None
        assert self.is_running(), "%s ended:\n%s" % (
            self.name, self.log_text())

    def wait(self, timeout=60):
        """Its exit status."""
        return self.process.wait(timeout * patience())

    def stop(self):
        self.signal(self.ending)
        status = self.wait()
        assert status == 0, "%s: exit %d\n%s" % (
            self.name, status, self.log_text())

    def kill(self):
        """kill -9 of all its processes; start() works again."""
        if self.is_running():
            # Stopped first, so that it starts no more of them.
            halt(self.pid)
            kill_all(self.processes())
        if self.process:
            self.wait()

    def restart(self):
        self.stop()
        return self.start()

    def signal(self, number):
        self.process.send_signal(number)

    def pause(self):
        """Its sockets stay open and nothing answers."""
        halt(self.pid)  # it starts no more of them
        for pid in self.processes():
            try:
                halt(pid)
            except ProcessLookupError:
                pass

    def resume(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    def finish(self):
        """Ends it at once and leaves nothing behind."""
        forget(self.finish)
        for client in self.clients:
            client.close()
        self.clients = []
        self.kill()
        release_port(self.port)
        shutil.rmtree(self.folder, ignore_errors=True)
