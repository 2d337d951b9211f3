"""A network that loses answers after whoever answers has done the work.

It stands before a server of HTTP/1.1, passes requests on, reads each answer to
its end and then drops some of them. Which ones, and how, is decided by the
number of the answer and a seed: the same run loses the same answers.
"""

import collections
import itertools
import random
import socket
import threading

from .app import reset
from .build import patience
from .wire import Cut, Stream

# How an answer is lost; all that a client sees is the end of a connection.
NOTHING = "nothing"  # closed without a byte
RESET = "reset"      # reset without a byte
HEAD = "head"        # closed within the header
BODY = "body"        # closed within the body
LEFT = "left"        # both sides closed while the server still works on it
WAYS = (NOTHING, RESET, HEAD, BODY, LEFT)


class Recorder(Stream):
    """Remembers what it has read, so that it can be passed on as it came."""

    def __init__(self, sock):
        super().__init__(sock)
        self.raw = b""

    def line(self):
        while b"\n" not in self.buffer:
            if not self.more():
                raise Cut(repr(self.buffer))
        end = self.buffer.index(b"\n") + 1
        self.raw += self.buffer[:end]
        return super().line()

    def exactly(self, count):
        data = super().exactly(count)
        self.raw += data
        return data

    def message(self, is_answer):
        """Reads one message: (where its body begins, all of it)."""
        self.raw = b""
        first = self.line().split(b" ")
        headers = self.headers()
        head = len(self.raw)
        self.read_body(headers, is_answer and int(first[1]) in (204, 304))
        return head, self.raw

    def read_body(self, headers, bodiless):
        if bodiless:
            return
        if "chunked" in (headers.get("Transfer-Encoding") or ""):
            self.chunks()
        else:
            self.exactly(int(headers.get("Content-Length") or 0))


class Lossy:
    """Passes on to `port`; drops a `share` of the answers."""

    def __init__(self, port, seed=1, share=1 / 3, ways=WAYS):
        self.target = ("127.0.0.1", port)
        self.random = random.Random(seed)
        self.share = share
        self.ways = itertools.cycle(ways)
        self.lost = collections.Counter()
        self.passed = 0
        self.lock = threading.Lock()
        self.sockets = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            sockets = list(self.sockets)
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock,),
                             daemon=True).start()

    def _serve(self, sock):
        with self.lock:
            self.sockets.add(sock)
        client = Recorder(sock)
        try:
            while client.buffer or client.more():
                _, request = client.message(is_answer=False)
                if not self._exchange(sock, request):
                    return
        except (Cut, OSError):
            pass
        finally:
            with self.lock:
                self.sockets.discard(sock)
            sock.close()

    def _decide(self):
        """How the next answer is lost; None: it is passed on."""
        with self.lock:
            lost = self.random.random() < self.share
            if not lost:
                self.passed += 1
                return None
            way = next(self.ways)
            self.lost[way] += 1
            return way

    def _exchange(self, sock, request):
        """One request and its answer; False if the connection is over."""
        way = self._decide()
        server = socket.create_connection(self.target)
        try:
            server.settimeout(30 * patience())
            server.sendall(request)
            if way == LEFT:
                return False
            head, answer = Recorder(server).message(is_answer=True)
        finally:
            server.close()
        return self._answer(sock, way, head, answer)

    @staticmethod
    def _answer(sock, way, head, answer):
        if way is None:
            sock.sendall(answer)
            return True
        if way == RESET:
            reset(sock)
        elif way == HEAD:
            sock.sendall(answer[:head // 2])
        elif way == BODY:
            sock.sendall(answer[:head + (len(answer) - head) // 2])
        return False
