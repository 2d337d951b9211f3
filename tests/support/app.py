"""The application behind the gateway: it counts, records and misbehaves.

How it treats a request is said by the request itself, in a header that takes
no part in the fingerprint: `headers=tell(status=402, hold="name")`, or by
`app.manner`, for all requests that say nothing. See MANNERS.
"""

import collections
import hashlib
import json
import socket
import struct
import threading
import time

from .build import patience
from .service import free_port, release_port
from .wire import Cut, Headers, Stream, encode_headers

MANNERS = {
    "status": 201,
    "headers": None,     # [[name, value], ...]; replaces Content-Type
    "body": None,        # text; without it a body that tells calls apart
    "bytes": None,       # so many bytes of PATTERN as the body
    "delay": 0,          # seconds before the answer
    "hold": None,        # waits for release() before the answer
    "hold_body": None,   # the same, after the first half of the body
    "early": False,      # answers before it reads the body
    "chunked": False,
    "plain": False,      # no Content-Length: the end of the connection counts
    "http10": False,
    "truncate": None,    # closes after so many bytes of the body
    "reset_body": None,  # resets after so many bytes of the body
    "close": False,      # closes without an answer
    "reset": False,      # resets without an answer
    "garbage": False,    # answers with something that is not HTTP
    "interim": None,     # sends answers of these statuses first, before holds
    "bad_chunk": False,  # chunked, and ends in what is not a chunk
}
PATTERN = bytes(range(256)) * 256
MAX_RECORDED = 1 << 20


def tell(**manner):
    """The header that makes the app behave so."""
    assert set(manner) <= set(MANNERS), manner
    return {"X-App": json.dumps(manner)}


def pattern(count):
    """What bytes=count sends."""
    return (PATTERN * (count // len(PATTERN) + 1))[:count]


class Call:
    """One request as it reached the app."""

    def __init__(self, protocol, method, target, version, headers, params):
        self.protocol = protocol
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.params = params
        self.number = None
        self.body = None
        self.length = None
        self.digest = None

    def header(self, name):
        return self.headers.get(name)

    @property
    def key(self):
        return next(iter(self.headers.all("Idempotency-Key")), None)

    def set_body(self, body):
        self.length = len(body)
        self.digest = hashlib.sha256(body).hexdigest()
        self.body = body[:MAX_RECORDED]


class Dropped(Exception):
    """The manner of this request is to end its connection."""


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                    struct.pack("ii", 1, 0))
    sock.close()


class App:
    """One app on a port of its own, with other protocols if asked for."""

    def __init__(self):
        self.changed = threading.Condition()
        self.calls = []
        self.by_key = collections.Counter()
        self.held = collections.Counter()
        self.released = set()
        self.manner = {}
        self.errors = []
        self.answered = 0
        self.listeners = {}
        self.ports = {}
        self.sockets = set()
        self.stopping = False

    # ---- life ----

    def start(self):
        self.stopping = False
        for protocol in self.ports or ["http"]:
            self.listen(protocol)
        return self

    def listen(self, protocol):
        """Its address; the first call opens it."""
        if protocol not in self.listeners:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Its own even while it is stopped: it may come back.
            port = self.ports.get(protocol) or free_port()
            self.ports[protocol] = port
            listener.bind(("127.0.0.1", port))
            listener.listen(1024)
            self.listeners[protocol] = listener
            threading.Thread(target=self._accept, daemon=True,
                             args=(listener, SERVERS[protocol])).start()
        return "127.0.0.1:%d" % self.ports[protocol]

    def listen_at(self, protocol, path):
        """The same on a unix socket, for as long as it is not stopped."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1024)
        self.listeners[path] = listener
        threading.Thread(target=self._accept, daemon=True,
                         args=(listener, SERVERS[protocol])).start()
        return "unix:%s" % path

    @property
    def address(self):
        return "127.0.0.1:%d" % self.ports["http"]

    def stop(self):
        """Nobody listens any more, open connections end."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
            sockets = list(self.sockets)
        for listener in self.listeners.values():
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.listeners.clear()
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def finish(self):
        self.stop()
        for port in self.ports.values():
            release_port(port)
        assert not self.errors, self.errors[0]

    def _accept(self, listener, server):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock, server),
                             daemon=True).start()

    def _serve(self, sock, server):
        with self.changed:
            self.sockets.add(sock)
        try:
            server(self, sock).serve()
        except (Cut, Dropped, OSError):
            pass
        except Exception as error:  # a defect of the app: the test must fail
            self.errors.append(repr(error))
        finally:
            with self.changed:
                self.sockets.discard(sock)
            sock.close()

    # ---- what the tests ask ----

    def count(self, key=None):
        """How often it was called, with this key or at all."""
        with self.changed:
            return len(self.calls) if key is None else self.by_key[key]

    @property
    def last(self):
        return self.calls[-1]

    def wait(self, condition, what):
        with self.changed:
            assert self.changed.wait_for(condition, 30 * patience()), what

    def wait_calls(self, count):
        self.wait(lambda: len(self.calls) >= count,
                  "the app was called %d times" % len(self.calls))

    def wait_answered(self, count):
        self.wait(lambda: self.answered >= count, "no answer was sent")

    def wait_held(self, name, count=1):
        """Until `count` requests stand at this hold."""
        self.wait(lambda: self.held[name] >= count,
                  "nobody waits at %r" % name)

    def release(self, name):
        with self.changed:
            self.released.add(name)
            self.changed.notify_all()

    # ---- what the servers call ----

    def manner_of(self, call):
        said = call.header("X-App")
        return dict(MANNERS, **(json.loads(said) if said else self.manner))

    def record(self, call):
        with self.changed:
            self.calls.append(call)
            call.number = len(self.calls)
            self.by_key[call.key] += 1
            self.changed.notify_all()

    def pause(self, name):
        with self.changed:
            self.held[name] += 1
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: name in self.released or self.stopping,
                60 * patience())
            if self.stopping:
                raise Dropped
            self.changed.notify_all()

    def note_answer(self):
        with self.changed:
            self.answered += 1
            self.changed.notify_all()


class Server:
    """What the protocols share: a request's way through its manner."""

    protocol = None

    def __init__(self, app, sock):
        self.app = app
        self.sock = sock
        self.stream = Stream(sock)

    def handle(self, call):
        """True if the connection may be used again."""
        manner = self.app.manner_of(call)
        if not manner["early"]:
            call.set_body(self.read_body())
        self.app.record(call)
        for status in manner["interim"] or []:
            self.sock.sendall(b"HTTP/1.1 %d Interim\r\nLink: </a.css>; "
                              b"rel=preload\r\nX-Interim: yes\r\n\r\n"
                              % status)
        if manner["delay"]:
            time.sleep(manner["delay"])
        if manner["hold"]:
            self.app.pause(manner["hold"])
        self.maybe_drop(manner)
        self.answer(call, manner)
        self.app.note_answer()
        if manner["early"]:
            call.set_body(self.read_body())
        return not (manner["plain"] or manner["http10"])

    def maybe_drop(self, manner):
        if manner["reset"]:
            reset(self.sock)
            raise Dropped
        if manner["close"]:
            raise Dropped
        if manner["garbage"]:
            self.sock.sendall(b"\0garbage\r\n\r\n")
            raise Dropped

    def answer(self, call, manner):
        status = manner["status"]
        body = self.body_of(call, manner)
        headers = [tuple(pair) for pair in manner["headers"] or
                   [("Content-Type", "application/json")]]
        bodiless = status in (204, 304)
        self.send_head(status, headers, None if bodiless else len(body),
                       manner)
        if not bodiless and call.method != "HEAD":
            self.send_parts(body, manner)
        self.end(manner, bodiless)

    def body_of(self, call, manner):
        if manner["bytes"] is not None:
            return pattern(manner["bytes"])
        if manner["body"] is not None:
            return manner["body"].encode()
        return json.dumps({"call": call.number, "key": call.key}).encode()

    def send_parts(self, body, manner):
        for cut, end in (("truncate", socket.socket.close),
                         ("reset_body", reset)):
            if manner[cut] is not None:
                self.send_body(body[:manner[cut]], manner)
                if end is reset:
                    time.sleep(0.05)  # a reset overtakes what is not yet read
                end(self.sock)
                raise Dropped
        if manner["hold_body"]:
            half = len(body) // 2
            self.send_body(body[:half], manner)
            self.app.pause(manner["hold_body"])
            body = body[half:]
        self.send_body(body, manner)


class HttpServer(Server):
    protocol = "http"

    def serve(self):
        while True:
            if not self.stream.buffer and not self.stream.more():
                return
            method, target, version = self.stream.line().decode(
                "latin-1").split(" ")
            self.request_headers = self.stream.headers()
            call = Call(self.protocol, method, target, version,
                        self.request_headers, {})
            if not self.handle(call) or version == "HTTP/1.0" or \
                    self.request_headers.get("Connection") == "close":
                return

    def read_body(self):
        if "chunked" in (self.request_headers.get("Transfer-Encoding") or ""):
            return self.stream.chunks()
        return self.stream.exactly(
            int(self.request_headers.get("Content-Length") or 0))

    def send_head(self, status, headers, length, manner):
        if length is not None:
            if manner["chunked"] or manner["bad_chunk"]:
                headers.append(("Transfer-Encoding", "chunked"))
            elif not manner["plain"]:
                headers.append(("Content-Length", length))
        version = b"1.0" if manner["http10"] else b"1.1"
        self.sock.sendall(b"HTTP/%s %d Status\r\n%s\r\n" % (
            version, status, encode_headers(headers)))

    def send_body(self, data, manner):
        if manner["chunked"] or manner["bad_chunk"]:
            data = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
        self.sock.sendall(data)

    def end(self, manner, bodiless):
        if manner["bad_chunk"]:
            self.sock.sendall(b"zz\r\nnot a chunk\r\n0\r\n\r\n")
        elif manner["chunked"] and not bodiless:
            self.sock.sendall(b"0\r\n\r\n")


class CgiServer(Server):
    """FastCGI, SCGI and uwsgi: variables instead of a request line."""

    def make_call(self, params):
        headers = Headers()
        for name, value in params.items():
            if name.startswith("HTTP_"):
                headers.append((name[5:].replace("_", "-"), value))
        return Call(self.protocol, params.get("REQUEST_METHOD"),
                    params.get("REQUEST_URI"),
                    params.get("SERVER_PROTOCOL"), headers, params)

    def head(self, status, headers, length, manner):
        if length is not None and not manner["plain"]:
            headers.append(("Content-Length", length))
        return b"Status: %d Status\r\n%s\r\n" % (status,
                                               encode_headers(headers))

    def serve(self):
        self.params = self.read_params()
        self.handle(self.make_call(self.params))

    def read_body(self):
        return self.stream.exactly(int(self.params.get("CONTENT_LENGTH")
                                       or 0))

    def send_head(self, status, headers, length, manner):
        self.sock.sendall(self.head(status, headers, length, manner))

    def send_body(self, data, manner):
        self.sock.sendall(data)

    def end(self, manner, bodiless):
        pass


class ScgiServer(CgiServer):
    protocol = "scgi"

    def read_params(self):
        size = b""
        while (digit := self.stream.exactly(1)) != b":":
            size += digit
        words = self.stream.exactly(int(size)).split(b"\0")
        self.stream.exactly(1)
        texts = [word.decode("latin-1") for word in words]
        return dict(zip(texts[::2], texts[1::2]))


class UwsgiServer(CgiServer):
    protocol = "uwsgi"

    def read_params(self):
        _, size, _ = struct.unpack("<BHB", self.stream.exactly(4))
        packet = self.stream.exactly(size)
        words = []
        while packet:
            length = struct.unpack("<H", packet[:2])[0]
            words.append(packet[2:2 + length].decode("latin-1"))
            packet = packet[2 + length:]
        return dict(zip(words[::2], words[1::2]))


class FastcgiServer(CgiServer):
    protocol = "fastcgi"

    def serve(self):
        while self.stream.buffer or self.stream.more():
            self.params = self.read_params()
            self.handle(self.make_call(self.params))
            if not self.keep:
                return

    def read_record(self):
        _, kind, self.id, size, padding = struct.unpack(
            ">BBHHBx", self.stream.exactly(8))
        data = self.stream.exactly(size)
        self.stream.exactly(padding)
        return kind, data

    def read_stream(self, wanted):
        parts = []
        while True:
            kind, data = self.read_record()
            assert kind == wanted, (kind, wanted)
            if not data:
                return b"".join(parts)
            parts.append(data)

    def read_params(self):
        kind, data = self.read_record()
        assert kind == 1, kind
        self.keep = bool(data[2] & 1)
        data = self.read_stream(4)
        params = {}
        while data:
            name, data = self.take_length(data)
            value, data = self.take_length(data)
            params[data[:name].decode("latin-1")] = data[
                name:name + value].decode("latin-1")
            data = data[name + value:]
        return params

    @staticmethod
    def take_length(data):
        if data[0] < 128:
            return data[0], data[1:]
        return struct.unpack(">I", data[:4])[0] & 0x7fffffff, data[4:]

    def read_body(self):
        return self.read_stream(5)

    def send_record(self, kind, data):
        self.sock.sendall(struct.pack(">BBHHBx", 1, kind, self.id, len(data),
                                      0) + data)

    def send_head(self, status, headers, length, manner):
        self.send_record(6, self.head(status, headers, length, manner))

    def send_body(self, data, manner):
        for at in range(0, len(data), 32768):
            self.send_record(6, data[at:at + 32768])

    def end(self, manner, bodiless):
        self.send_record(6, b"")
        self.send_record(3, b"\0" * 8)


SERVERS = {server.protocol: server for server in (
    HttpServer, FastcgiServer, ScgiServer, UwsgiServer)}
