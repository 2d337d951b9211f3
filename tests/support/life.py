"""Short forms for what most tests do with a connection."""

import itertools
import time

from .build import patience

FINGERPRINT = "1:" + "ab" * 32
OTHER_FINGERPRINT = "1:" + "cd" * 32
NAME = ("acme", "POST /payments")

_numbers = itertools.count(1)


def new_key():
    return "key-%d" % next(_numbers)


def name(key, tenant="acme", scope="POST /payments"):
    return (tenant, scope, key)


def claim(raw, key, *options, fingerprint=FINGERPRINT, tenant="acme",
          scope="POST /payments"):
    """CLAIM; the reply as it came."""
    return raw("CLAIM", tenant, scope, key, fingerprint, *options)


def begin(raw, key, *options, **more):
    """A claim that must be NEW; its token."""
    reply = claim(raw, key, *options, **more)
    assert isinstance(reply, list) and reply[0] == b"NEW", reply
    return reply[1]


def complete(raw, key, token, status=201, headers=b"", body=b"", *options,
             tenant="acme", scope="POST /payments"):
    return raw("COMPLETE", tenant, scope, key, token, status, headers, body,
               *options)


def finish(raw, key, status=201, headers=b"Content-Type: text/plain\r\n",
           body=b"done", options=(), **more):
    """A whole operation; its token."""
    token = begin(raw, key, **more)
    reply = complete(raw, key, token, status, headers, body, *options, **more)
    assert reply == "OK", reply
    return token


def verdict(reply):
    """The word of a verdict, whatever its form."""
    word = reply[0] if isinstance(reply, list) else reply
    return word.decode() if isinstance(word, bytes) else str(word)


def refusal(daemon):
    """The log of a daemon whose server will not do: it listens, and says so to
    whatever needs the store."""
    daemon.start()
    daemon.wait_for_log("event=store-unavailable")
    reply = claim(daemon.raw(), new_key())
    assert reply.code == "UNAVAILABLE", reply
    daemon.stop()
    return daemon.log_text()


def rounds(seconds, enough):
    """For as long as that, and on a slow machine until it is enough."""
    end = time.monotonic() + seconds
    deadline = end + 60 * patience()
    while time.monotonic() < end or not enough():
        assert time.monotonic() < deadline, "it is never enough"
        yield


def until(condition, timeout=60, pause=0.01):
    """Asks again and again, for what no event announces; what it answered."""
    deadline = time.monotonic() + timeout * patience()
    while True:
        answer = condition()
        if answer or time.monotonic() > deadline:
            assert answer, "it did not happen in time"
            return answer
        time.sleep(pause)
