"""As much of HTTP/2 as a test needs to open, reset and read streams.

Requests carry their headers as literals, so nothing has to be compressed;
what a response's headers say is not read, its body is.
"""

import collections
import socket
import struct

from .build import patience
from .wire import Stream, as_bytes

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = (
    0, 1, 3, 4, 6, 7, 8)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW = 1 << 30


def literal(name, value):
    """A header field that is not indexed (RFC 7541, 6.2.2)."""
    out = b"\0"
    for text in (as_bytes(name).lower(), as_bytes(value)):
        out += length(len(text)) + text
    return out


def length(number):
    if number < 127:
        return bytes([number])
    out, number = b"\x7f", number - 127
    while number >= 128:
        out, number = out + bytes([number % 128 + 128]), number // 128
    return out + bytes([number])


class Http2:
    """A connection with prior knowledge, without TLS."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(30 * patience())
        self.stream = Stream(self.sock)
        self.next_stream = 1
        self.bodies = collections.defaultdict(bytes)
        self.ended = set()
        self.sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        # No table for compression, a window that is never full.
        self.send(SETTINGS, 0, 0, struct.pack(">HIHI", 1, 0, 4, WINDOW))
        self.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, kind, flags, stream, payload=b""):
        self.sock.sendall(struct.pack(
            ">BHBBI", len(payload) >> 16, len(payload) & 0xffff, kind, flags,
            stream) + payload)

    def post(self, headers, body, path="/"):
        """Sends a request; its stream."""
        stream = self.next_stream
        self.next_stream += 2
        block = b"".join(literal(name, value) for name, value in [
            (":method", "POST"), (":scheme", "http"),
            (":authority", "localhost"), (":path", path),
            ("content-length", len(body)), *headers])
        self.send(HEADERS, END_HEADERS, stream, block)
        self.send(DATA, END_STREAM, stream, body)
        return stream

    def reset(self, stream):
        self.send(RST_STREAM, 0, stream, struct.pack(">I", 8))

    def body(self, stream):
        """Reads until this stream has ended; its body."""
        while stream not in self.ended:
            self.read_frame()
        return self.bodies[stream]

    def read_frame(self):
        high, low, kind, flags, stream = struct.unpack(
            ">BHBBI", self.stream.exactly(9))
        payload = self.stream.exactly(high << 16 | low)
        assert kind != GOAWAY, payload
        if kind == SETTINGS and not flags & ACK:
            self.send(SETTINGS, ACK, 0)
        if kind == PING and not flags & ACK:
            self.send(PING, ACK, 0, payload)
        if kind == DATA:
            self.bodies[stream] += payload
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and
                                  flags & END_STREAM):
            self.ended.add(stream)
