"""Several hosts on one machine, each with a network of its own.

A host is a network namespace, held by a process that does nothing. All are
plugged into a bridge in a namespace of its own. Nothing of it has a name in
the machine's own network, and all of it is gone when its holders are, however
the tests end.
"""

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading

import pytest

from .build import patience
from .life import until
from .service import die_with, forget, launch, prefix, reserve

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


def missing():
    """Why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "only root can have several hosts"
    for program in ("ip", "nsenter", "unshare"):
        if not shutil.which(program):
            return "there is no program %s" % program
    if subprocess.run(["unshare", "--net", "ip", "link", "add", "type",
                       "bridge"], capture_output=True).returncode:
        return "this machine allows no bridge in a network of its own"
    return None


def need_hosts():
    """Where the tests are meant to be whole, what is missing is a failure."""
    reason = missing()
    if not reason:
        return
    if os.environ.get("CI") or os.environ.get("LATCHKEY_NEED_HOSTS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Namespace:
    """A network; `prefix` before a command runs it there."""

    def __init__(self):
        ours = os.stat("/proc/self/ns/net").st_ino
        self.holder = launch(prefix() + ["unshare", "--net", "sleep",
                                         "infinity"])
        self.path = "/proc/%d/ns/net" % self.holder.pid
        until(lambda: os.stat(self.path).st_ino != ours)
        self.prefix = ["nsenter", "--net=" + self.path, "--"]
        self.ip("link", "set", "lo", "up")

    def ip(self, *words):
        result = subprocess.run([*self.prefix, "ip", *map(str, words)],
                                capture_output=True, text=True)
        assert result.returncode == 0, "ip %s: %s" % (words, result.stderr)
        return result.stdout

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Host(Namespace):
    """One host: its `address` is known to all the others."""

    def __init__(self, hosts, name, number):
        super().__init__()
        self.hosts = hosts
        self.name = name
        self.port = "port%d" % number
        self.address = hosts.address(number)
        self.processes = []
        hosts.plug(self.port, self.holder.pid, "eth0")
        self.ip("address", "add", self.address + "/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        hosts.wait_open(self.port)

    def run(self, command, **options):
        """Popen of a command on this host; it is killed at the end."""
        process = launch([*self.prefix, *prefix(), *map(str, command)],
                         **options)
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def inside(self):
        """The calling thread is on this host: sockets that it makes are, too.
        """
        own = os.open("/proc/%d/task/%d/ns/net" % (
            os.getpid(), threading.get_native_id()), os.O_RDONLY)
        there = os.open(self.path, os.O_RDONLY)
        try:
            enter(there)
            yield self
        finally:
            enter(own)
            os.close(own)
            os.close(there)

    def connect(self, address, port, timeout=20):
        """A connection that comes from this host."""
        with self.inside():
            return socket.create_connection((address, port),
                                            timeout * patience())

    def listen(self, port=0):
        """A listening socket on this host."""
        with self.inside():
            return socket.create_server((self.address, port))

    def cut(self):
        """Pulls the plug: packets are lost both ways, and nobody is told."""
        self.hosts.switch.ip("link", "set", self.port, "down")

    def heal(self):
        self.hosts.switch.ip("link", "set", self.port, "up")
        self.hosts.wait_open(self.port)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        super().close()


def enter(handle):
    if _libc.setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Hosts:
    """A network: `with Hosts() as hosts: a = hosts.add("a")`."""

    def __init__(self):
        need_hosts()
        # From the range for tests of networks, which nobody routes.
        self.network = next("198.18.%d" % number for number in range(256)
                            if reserve("network-%d" % number))
        self.numbers = itertools.count(2)
        self.hosts = {}
        self.joined = None
        self.switch = Namespace()
        die_with(self.close)
        self.switch.ip("link", "add", "bridge", "type", "bridge",
                       "forward_delay", "0", "stp_state", "0")
        self.switch.ip("link", "set", "bridge", "up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getitem__(self, name):
        return self.hosts[name]

    def address(self, number):
        return "%s.%d" % (self.network, number)

    def plug(self, port, pid, name):
        """A cable from the bridge to the network of a process."""
        self.switch.ip("link", "add", port, "type", "veth", "peer", "name",
                       name, "netns", pid)
        self.switch.ip("link", "set", port, "master", "bridge", "up")

    def wait_open(self, port):
        """Until packets go through it."""
        until(lambda: "state forwarding" in self.switch.ip(
            "-d", "link", "show", port))

    def add(self, name):
        host = Host(self, name, next(self.numbers))
        self.hosts[name] = host
        return host

    def join(self):
        """Plugs in the machine itself, as one more host; its address."""
        if not self.joined:
            name = "lk%d-%s" % (os.getpid(), self.network.split(".")[2])
            self.plug("port1", os.getpid(), name)
            self.joined = name
            for words in (["address", "add", self.address(1) + "/24", "dev",
                           name], ["link", "set", name, "up"]):
                subprocess.run(["ip", *words], check=True)
            self.wait_open("port1")
        return self.address(1)

    def close(self):
        """Ends it, with whatever runs there. A network that still has open
        sockets of the tests lives, unseen, until they are closed."""
        forget(self.close)
        for host in self.hosts.values():
            host.close()
        self.hosts = {}
        if self.joined:
            subprocess.run(["ip", "link", "delete", self.joined], check=True)
        self.joined = None
        self.switch.close()
