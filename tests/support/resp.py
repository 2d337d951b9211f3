"""A tiny client for the Redis protocol that hides nothing.

Replies are returned with their type, so that a test can tell a simple string
from a bulk string and an integer from its text:

    +OK      -> Simple("OK")       $2 OK   -> b"OK"
    -ERR x   -> Error("ERR x")     :5      -> 5
    *2 ...   -> [..., ...]         nil     -> None
    %1 ...   -> {...: ...}         >2 ...  -> Push([..., ...])
"""

import socket
import time


class Simple(str):
    """A simple string."""


class Error(str):
    """An error reply; not an exception, so that pipelines go on."""

    @property
    def code(self):
        return self.split(" ", 1)[0]


class Push(list):
    """A RESP3 push."""


class Closed(Exception):
    """The daemon closed the connection."""


def encode(*words):
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        if not isinstance(word, bytes):
            word = str(word).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(out)


def connect(address, timeout=60):
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        target = address[len("unix:"):]
    else:
        host, port = address.rsplit(":", 1)
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        target = (host.strip("[]"), int(port))
    sock.settimeout(timeout)
    until = time.monotonic() + timeout
    while True:
        try:
            sock.connect(target)
            return sock
        except BlockingIOError:  # more wait to be accepted than fit
            if time.monotonic() > until:
                sock.close()
                raise
            time.sleep(0.01)
        except BaseException:
            sock.close()
            raise


class Raw:
    """One connection. `raw("PING")` sends a command and reads its reply."""

    def __init__(self, address, timeout=60):
        self.sock = connect(address, timeout)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send_bytes(self, data):
        self.sock.sendall(data)

    def send(self, *words):
        self.send_bytes(encode(*words))

    def __call__(self, *words):
        self.send(*words)
        return self.read()

    def login(self, user, password=None):
        reply = self("AUTH", user, password or user + "-secret")
        assert reply == "OK", reply
        return self

    def _more(self):
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(repr(self.buffer[:200]))
        self.buffer += data

    def _line(self):
        while b"\r\n" not in self.buffer:
            self._more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def _bytes(self, count):
        chunks = [self.buffer]
        have = len(self.buffer)
        while have < count + 2:
            self.buffer = b""
            self._more()
            chunks.append(self.buffer)
            have += len(self.buffer)
        whole = b"".join(chunks)
        self.buffer = whole[count + 2:]
        assert whole[count:count + 2] == b"\r\n", whole[count:count + 2]
        return whole[:count]

    def read(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return Simple(rest.decode())
        if kind == b"-":
            return Error(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"_":
            return None
        if kind in (b"$", b"="):
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else self._many(int(rest))
        if kind == b">":
            return Push(self._many(int(rest)))
        if kind == b"%":
            items = self._many(2 * int(rest))
            return dict(zip(items[::2], items[1::2]))
        raise AssertionError("not a reply: %r" % line)

    def _many(self, count):
        return [self.read() for _ in range(count)]

    def at_end(self):
        """True once the daemon has closed it; reads what is left."""
        try:
            while True:
                self.buffer = b""
                self._more()
        except Closed:
            return True
        except socket.timeout:
            return False


def fields(reply):
    """LOOKUP's flat list (or map) as a dict with names as text."""
    if isinstance(reply, dict):
        pairs = reply.items()
    else:
        pairs = zip(reply[::2], reply[1::2])
    return {name.decode(): value for name, value in pairs}
