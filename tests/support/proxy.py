"""A network between a client and a server that delays, freezes and cuts.

It knows enough of PostgreSQL's protocol to lose exactly the answer to a
COMMIT, or the COMMIT itself. Anything else is passed on as bytes.
"""

import collections
import os
import re
import select
import socket
import threading
import time
import urllib.parse

from . import pgwire
from .app import reset as reset_socket
from .build import patience

REQUESTS, REPLIES = "requests", "replies"
AFTER_COMMIT = "after_commit"
BEFORE_COMMIT = "before_commit"
REPLY_LOST = "reply_lost"


class Strike:
    """Something that will happen to the next `n` that match."""

    def __init__(self, proxy, kind, n, skip, matching, reset):
        self.proxy = proxy
        self.kind = kind
        self.left = n
        self.skip = skip
        self.matching = matching
        self.reset = reset
        self.count = 0

    def wait(self, count=1, timeout=60):
        """Until it has struck so often."""
        with self.proxy.changed:
            assert self.proxy.changed.wait_for(
                lambda: self.count >= count, timeout * patience()), (
                    "%s: %d of %d" % (self.kind, self.count, count))


class Link:
    """One client's connection and the one that it goes on to."""

    def __init__(self, proxy, client, server):
        self.proxy = proxy
        self.client = client
        self.server = server
        self.dead = False
        self.reset = False
        self.pumps = 2
        self.closed = threading.Event()
        self.wake = os.eventfd(0)
        state = pgwire.Conversation()
        self.says = pgwire.Client(state)
        self.hears = pgwire.Server(state)
        self.holding = None     # the strike whose COMMIT is with the server
        self.hold_until = None  # the number of the answer that it waits for
        self.held = []
        self.exchange = []      # what came since the last ReadyForQuery
        self.losing = None      # the strike whose reply is dropped
        self.draining = False

    def start(self):
        with self.proxy.changed:
            self.dead = self.proxy.closing
            self.proxy.links.add(self)
            self.proxy.changed.notify_all()
        for sock in (self.client, self.server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way, source, sink, handle in (
                (REQUESTS, self.client, self.server, self._ask),
                (REPLIES, self.server, self.client, self._answer)):
            threading.Thread(target=self._pump, daemon=True,
                             args=(way, source, sink, handle)).start()

    def end(self, reset=True):
        """Cuts it. The sockets are closed by the pump that ends last."""
        with self.proxy.changed:
            if not self.dead:
                self.dead = True
                self.reset = reset
                os.eventfd_write(self.wake, 1)
            self.proxy.changed.notify_all()

    # ---- bytes ----

    def _ready(self, sock, event):
        """Waits for the socket; False if the link was cut."""
        if self.dead:
            return False
        poll = select.poll()
        poll.register(sock, event)
        poll.register(self.wake, select.POLLIN)
        poll.poll()
        return not self.dead

    def _send(self, sock, data):
        while data and self._ready(sock, select.POLLOUT):
            data = data[sock.send(data):]
        return not self.dead

    def _pump(self, way, source, sink, handle):
        try:
            while self._ready(source, select.POLLIN):
                data = source.recv(65536)
                if not self._lag(way):
                    return
                if not data:
                    self._end_of(source, sink)
                    return
                if not handle(data):
                    return
        except OSError:
            self._lose(source)
        finally:
            self._leave()

    def _lag(self, way):
        """What the network does to any bytes; False if the link was cut."""
        proxy, taken = self.proxy, time.monotonic()
        with proxy.changed:
            proxy.waiting += 1
            while not self.dead:
                left = taken + proxy.seconds - time.monotonic()
                if left > 0:
                    proxy.changed.wait(left)
                elif way in proxy.frozen:
                    proxy.changed.wait()
                else:
                    break
            proxy.waiting -= 1
        return not self.dead

    def _end_of(self, source, sink):
        if source is self.server and (self.losing or self.holding):
            self._lose(source)
        else:
            sink.shutdown(socket.SHUT_WR)

    def _leave(self):
        with self.proxy.changed:
            self.pumps -= 1
            if self.pumps:
                return
            if self.reset:
                reset_socket(self.client)
            self.client.close()
            self.server.close()
            os.close(self.wake)
            self.dead = True
            self.proxy.links.discard(self)
            self.proxy.changed.notify_all()
            self.closed.set()

    # ---- strikes ----

    def _ask(self, data):
        """Bytes of the client; False at the end of the link."""
        if self.draining:
            return True
        if self.losing is None:
            self.losing = self.proxy.take([REPLY_LOST], data)
        out = b""
        for message in self.says.feed(data):
            strike = None
            if message.statement is not None and not self.holding:
                strike = self.proxy.take([AFTER_COMMIT, BEFORE_COMMIT],
                                         message.statement)
            if strike and strike.kind == BEFORE_COMMIT:
                self._send(self.server, out)
                return self._strike(strike)
            if strike:
                self.holding = strike
            out += message.raw
            if self.holding and message.number:
                self.hold_until = message.number
                if not self._send(self.server, out) or not self._await():
                    return False
                out = b""
        return self._send(self.server, out)

    def _await(self):
        """Nothing more is passed on until the COMMIT is decided."""
        with self.proxy.changed:
            self.proxy.changed.wait_for(
                lambda: self.dead or not self.holding)
        return not self.dead

    def _answer(self, data):
        """Bytes of the server; False at the end of the link."""
        if self.losing:
            if not self.draining:
                # Whatever was sent before is done before it sees the end.
                self.draining = True
                self.server.shutdown(socket.SHUT_WR)
            return True
        out = b""
        for message in self.hears.feed(data):
            self.exchange.append((message.kind, message.body[:16]))
            if self.holding:
                self.held.append(message.raw)
                if message.number and message.number == self.hold_until:
                    if self._is_done():
                        return self._strike(self.holding)
                    out += self._pass_on()
            else:
                out += message.raw
            if message.number:
                self.exchange = []
        return self._send(self.client, out)

    def _is_done(self):
        """Whether the server has done it, and not refused or rolled back."""
        tags = [body for kind, body in self.exchange if kind == b"C"]
        failed = any(kind == b"E" for kind, _ in self.exchange)
        return not failed and not (tags and tags[-1].startswith(b"ROLLBACK"))

    def _pass_on(self):
        """What was held; the strike is left for the next COMMIT."""
        held, self.held = b"".join(self.held), []
        with self.proxy.changed:
            self.holding.left += 1
            self.holding = self.hold_until = None
            self.proxy.changed.notify_all()
        return held

    def _strike(self, strike):
        with self.proxy.changed:
            strike.count += 1
            self.proxy.struck[strike.kind] += 1
        self.end(strike.reset)
        return False

    def _lose(self, source):
        """One side is gone. A strike that was under way is done with, if this
        is the end that it waited for; else it is left for another."""
        strike = self.losing or self.holding
        if strike and source is self.server:
            if self.draining:
                self._strike(strike)
                return
            with self.proxy.changed:
                strike.left += 1
        self.end()


class Proxy:
    """Listens on a port of its own and passes on to `target`.

    target: a port of this machine, (address, port), or a service that has
    both. struck: how often each kind of strike has struck. waiting: how many
    connections have bytes, one way or the other, that are delayed or frozen.
    """

    def __init__(self, target, address="127.0.0.1"):
        self.retarget(target)
        self.changed = threading.Condition()
        self.seconds = 0
        self.frozen = frozenset()
        self.refusing = False
        self.closing = False
        self.strikes = []
        self.struck = collections.Counter()
        self.accepted = 0
        self.refused = 0
        self.waiting = 0
        self.links = set()
        self.listener = socket.create_server((address, 0), backlog=256)
        self.address, self.port = self.listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with self.changed:
            self.closing = True
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thaw()
        self.cut()

    def through(self, url):
        """The same URL, by way of this proxy."""
        parts = urllib.parse.urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc="%s%s%s:%d" % (
            login, at, self.address, self.port)).geturl()

    def retarget(self, target):
        """Where new connections go from now on."""
        if isinstance(target, int):
            target = ("127.0.0.1", target)
        elif not isinstance(target, tuple):
            target = (target.address, target.port)
        self.target = target

    # ---- what happens to all ----

    def delay(self, seconds):
        """Bytes take so long, each way, those on their way too; 0: none."""
        with self.changed:
            self.seconds = seconds
            self.changed.notify_all()

    def freeze(self, *ways):
        """Bytes are taken and not passed on; only REQUESTS, only REPLIES."""
        with self.changed:
            self.frozen = frozenset(ways or (REQUESTS, REPLIES))

    def thaw(self):
        """What was frozen goes on."""
        with self.changed:
            self.frozen = frozenset()
            self.changed.notify_all()

    def refuse(self, refusing=True):
        """New connections are reset at once; those that exist live on."""
        with self.changed:
            self.refusing = refusing

    def cut(self, reset=True):
        """Ends all connections; how many there were. They are closed when it
        returns."""
        with self.changed:
            links = list(self.links)
        for link in links:
            link.end(reset)
        for link in links:
            assert link.closed.wait(20 * patience())
        return len(links)

    def wait_links(self, count, timeout=60):
        """Until so many connections exist."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.links) == count,
                                         timeout * patience()), (
                "%d connections" % len(self.links))

    # ---- strikes ----

    def _add(self, kind, n, skip, matching, reset):
        strike = Strike(self, kind, n, skip, matching, reset)
        with self.changed:
            self.strikes.append(strike)
        return strike

    def cut_after_commit(self, n=1, skip=0, matching=pgwire.COMMIT,
                         reset=True):
        """The next n COMMITs happen, and who sent them sees a lost connection.

        skip: so many are left in peace first. One that the server refuses or
        turns into a rollback is answered as ever and does not count. matching:
        other statements, e.g. one that commits without a transaction.
        """
        return self._add(AFTER_COMMIT, n, skip, re.compile(matching), reset)

    def cut_before_commit(self, n=1, skip=0, matching=pgwire.COMMIT,
                          reset=True):
        """The next n COMMITs never arrive; both sides see a lost connection."""
        return self._add(BEFORE_COMMIT, n, skip, re.compile(matching), reset)

    def cut_after_reply_lost(self, n=1, skip=0, matching=b"", reset=True):
        """The next n requests are done, and their replies are lost.

        For whatever protocol: bytes from the client that match (all, by
        default) are passed on; what the server answers is dropped, and when it
        has done all that it was sent, the client's connection is cut.
        """
        return self._add(REPLY_LOST, n, skip, re.compile(matching), reset)

    def calm(self):
        """Takes back all strikes that have not happened."""
        with self.changed:
            self.strikes = []

    def take(self, kinds, text):
        """The strike that this text brings about, or None."""
        with self.changed:
            for strike in self.strikes:
                if (strike.kind in kinds and strike.left and
                        strike.matching.search(text)):
                    if strike.skip:
                        strike.skip -= 1
                        return None
                    strike.left -= 1
                    return strike
        return None

    # ---- connections ----

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.changed:
                refusing = self.refusing
                self.refused += refusing
                self.accepted += not refusing
            if refusing:
                reset_socket(client)
            else:
                threading.Thread(target=self._join, args=(client,),
                                 daemon=True).start()

    def _join(self, client):
        with self.changed:
            self.changed.wait_for(lambda: REQUESTS not in self.frozen)
        try:
            server = socket.create_connection(self.target, 20 * patience())
        except OSError:
            reset_socket(client)
            return
        link = Link(self, client, server)
        link.start()
