"""PostgreSQL's protocol, as far as one must know it to see a COMMIT pass."""

import re
import struct

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
CANCEL_REQUEST = 80877102
# A statement of its own, or the last of several.
COMMIT = re.compile(
    r"^\s*(commit|end)(\s+(work|transaction))?\s*;?\s*$"
    r"|;\s*commit(\s+(work|transaction))?\s*;?\s*$", re.IGNORECASE)


class Message:
    """One message as it came.

    kind: its type, or b"" where there is none. statement: the text of what it
    executes, else None. number: of a ReadyForQuery and of the message that it
    answers, both the same, counted from 1; else None.
    """

    def __init__(self, kind, raw):
        self.kind = kind
        self.raw = raw
        self.statement = None
        self.number = None

    @property
    def body(self):
        return self.raw[5:]


def strings(body, count):
    """The first `count` strings, each of which ends with a zero byte."""
    return [part.decode("utf-8", "replace")
            for part in body.split(b"\0", count)[:count]]


class Conversation:
    """What both sides of one connection must know of each other.

    Once it is opaque, encrypted or not PostgreSQL at all, bytes are passed on
    as they come.
    """

    def __init__(self):
        self.opaque = False
        self.bare_replies = 0  # single bytes that answer SSLRequest
        self.asked = 1         # the first ReadyForQuery is for the login
        self.answered = 0


class Half:
    """Cuts the bytes of one side into messages."""

    def __init__(self, conversation):
        self.state = conversation
        self.buffer = b""

    def feed(self, data):
        self.buffer += data
        found = []
        while self.buffer:
            if self.state.opaque:
                found.append(Message(b"", self.buffer))
                self.buffer = b""
                break
            message = self.next()
            if message is None:
                break
            found.append(message)
        return found

    def take(self, length):
        raw, self.buffer = self.buffer[:length], self.buffer[length:]
        return raw

    def take_typed(self):
        if len(self.buffer) < 5:
            return None
        length = 1 + struct.unpack_from("!I", self.buffer, 1)[0]
        return self.take(length) if len(self.buffer) >= length else None


class Client(Half):
    """What a client says."""

    def __init__(self, conversation):
        super().__init__(conversation)
        self.started = False
        self.statements = {}
        self.portals = {}

    def next(self):
        if not self.started:
            return self.next_startup()
        raw = self.take_typed()
        return raw and self.understand(raw[:1], raw)

    def next_startup(self):
        # Whatever else speaks first (RESP, HTTP, TLS) begins otherwise.
        if self.buffer[0] != 0:
            self.state.opaque = True
            return Message(b"", self.take(len(self.buffer)))
        if len(self.buffer) < 8:
            return None
        length, code = struct.unpack_from("!II", self.buffer)
        if len(self.buffer) < length:
            return None
        if code in (SSL_REQUEST, GSS_REQUEST):
            self.state.bare_replies += 1
        elif code == CANCEL_REQUEST:
            self.state.opaque = True
        else:
            self.started = True
        return Message(b"", self.take(length))

    def understand(self, kind, raw):
        message = Message(kind, raw)
        if kind == b"Q":
            message.statement, = strings(message.body, 1)
        elif kind == b"P":
            name, text = strings(message.body, 2)
            self.statements[name] = text
        elif kind == b"B":
            portal, name = strings(message.body, 2)
            self.portals[portal] = self.statements.get(name, "")
        elif kind == b"E":
            portal, = strings(message.body, 1)
            message.statement = self.portals.get(portal, "")
        if kind in b"QSF":
            self.state.asked += 1
            message.number = self.state.asked
        return message


class Server(Half):
    """What a server says."""

    def next(self):
        if self.state.bare_replies:
            self.state.bare_replies -= 1
            reply = self.take(1)
            self.state.opaque = reply != b"N"
            return Message(b"", reply)
        raw = self.take_typed()
        if raw is None:
            return None
        message = Message(raw[:1], raw)
        if message.kind == b"Z":
            self.state.answered += 1
            message.number = self.state.answered
        return message
