"""HTTP/1 on a socket, byte by byte: what tests send and what they get."""

import json
import socket
import struct

PROBLEM = "urn:latchkey:problem:"


class Cut(Exception):
    """The peer closed or reset the connection in the middle of a message."""


class Headers(list):
    """(name, value) pairs in their order; names compare without case."""

    def all(self, name):
        return [value for other, value in self if other.lower() == name.lower()]

    def get(self, name, default=None):
        values = self.all(name)
        assert len(values) < 2, "%s came %d times" % (name, len(values))
        return values[0] if values else default

    def __contains__(self, name):
        return bool(self.all(name))


class Response:
    """An answer as it came."""

    def __init__(self, version, status, reason, headers, body, complete=True):
        self.version = version
        self.status = status
        self.reason = reason
        self.headers = headers
        self.body = body
        self.complete = complete

    def __repr__(self):
        return "<%d %r %r>" % (self.status, list(self.headers),
                               self.body[:300])

    def header(self, name, default=None):
        return self.headers.get(name, default)

    def json(self):
        return json.loads(self.body)

    @property
    def problem(self):
        """The name of the problem if it is one of Latchkey's, else None."""
        if self.header("Content-Type") != "application/problem+json":
            return None
        document = self.json()
        assert document["status"] == self.status, self
        assert document["type"].startswith(PROBLEM), self
        return document["type"][len(PROBLEM):]

    @property
    def reference(self):
        return self.header("Idempotency-Reference")

    @property
    def replayed(self):
        value = self.header("Idempotent-Replayed")
        assert value in (None, "true"), self
        return value == "true"


class Stream:
    """Reads messages from a socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""

    def more(self):
        """Reads once; False at the end."""
        try:
            data = self.sock.recv(262144)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Cut(str(error)) from error
        self.buffer += data
        return bool(data)

    def line(self):
        while b"\n" not in self.buffer:
            if not self.more():
                raise Cut(repr(self.buffer))
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.rstrip(b"\r")

    def exactly(self, count):
        parts, have = [self.buffer[:count]], min(count, len(self.buffer))
        self.buffer = self.buffer[count:]
        while have < count:
            if not self.more():
                raise Cut("%d of %d bytes" % (have, count))
            part, self.buffer = (self.buffer[:count - have],
                                 self.buffer[count - have:])
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def rest(self):
        parts = [self.buffer]
        self.buffer = b""
        while self.more():
            parts.append(self.buffer)
            self.buffer = b""
        return b"".join(parts)

    def headers(self):
        found = Headers()
        while line := self.line():
            name, _, value = line.decode("latin-1").partition(":")
            found.append((name, value.strip()))
        return found

    def chunks(self):
        parts = []
        while True:
            size = int(self.line().split(b";")[0], 16)
            if size == 0:
                while self.line():
                    pass
                return b"".join(parts)
            parts.append(self.exactly(size))
            assert self.line() == b""


def encode_headers(headers):
    pairs = headers.items() if isinstance(headers, dict) else headers
    return b"".join(b"%s: %s\r\n" % (as_bytes(name), as_bytes(value))
                    for name, value in pairs)


def as_bytes(text):
    return text if isinstance(text, bytes) else str(text).encode("latin-1")


def encode_request(method, target, headers=(), body=None, version="1.1",
                   chunked=False):
    """A request; one that has a body says how long it is."""
    pairs = list(headers.items() if isinstance(headers, dict) else headers)
    names = {as_bytes(name).lower() for name, _ in pairs}
    if b"host" not in names:
        pairs.insert(0, ("Host", "localhost"))
    if body is not None:
        if chunked:
            pairs.append(("Transfer-Encoding", "chunked"))
            half = len(body) // 2
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part)
                            for part in (body[:half], body[half:]) if part)
            body += b"0\r\n\r\n"
        elif b"content-length" not in names:
            pairs.append(("Content-Length", len(body)))
    return b"%s %s HTTP/%s\r\n%s\r\n%s" % (
        as_bytes(method), as_bytes(target), as_bytes(version),
        encode_headers(pairs), body or b"")


class Connection:
    """A client's connection. Closed by reset() it sends RST."""

    def __init__(self, sock):
        self.sock = sock
        self.stream = Stream(sock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.sock.sendall(data)

    def close(self):
        self.sock.close()

    def shut(self):
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                             struct.pack("ii", 1, 0))
        self.sock.close()

    def at_end(self):
        """Reads on; True if nothing more came and the peer closed."""
        try:
            return self.stream.rest() == b""
        except Cut:
            return True

    def ask(self, method, target, headers=(), body=None, **options):
        self.send(encode_request(method, target, headers, body, **options))
        return self.response(method)

    def response(self, method="POST"):
        """The next final answer; one cut short is marked as not complete."""
        while True:
            version, status, reason, headers = self.head()
            if status >= 200:
                break
        try:
            body = self.body(method, status, headers)
            return Response(version, status, reason, headers, body)
        except Cut:
            return Response(version, status, reason, headers, b"", False)

    def head(self):
        version, status, *reason = self.stream.line().decode("latin-1").split(
            " ", 2)
        return version, int(status), "".join(reason), self.stream.headers()

    def body(self, method, status, headers):
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("Transfer-Encoding") == "chunked":
            return self.stream.chunks()
        length = headers.get("Content-Length")
        if length is not None:
            return self.stream.exactly(int(length))
        return self.stream.rest()
