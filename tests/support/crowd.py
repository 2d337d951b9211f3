"""Clients that ask several gateways for the same keys, whatever happens, and
the proof that what they were told agrees with what the app did.

Every other key goes to a location that runs again what is uncertain.
"""

import collections
import random
import threading

from .app import tell
from .build import patience
from .gateway import guard
from .life import new_key, until
from .wire import Cut

HOLD, AGAIN = "/", "/again"
# What nginx says if it did not reach the app: it was released.
UNREACHED = (502, 504)


def locations(*lines):
    return guard(HOLD, *lines) + guard(
        AGAIN, "idempotency_uncertain reexecute;", *lines)


class Client(threading.Thread):
    """Asks anywhere, again and again, until there is a verdict."""

    def __init__(self, crowd, seed):
        super().__init__(daemon=True)
        self.crowd = crowd
        self.dice = random.Random(seed)
        self.answers = []
        self.error = None

    def run(self):
        try:
            while key := self.crowd.key(len(self.answers)):
                path = self.crowd.path(len(self.answers))
                self.answers.append(
                    until(lambda: self.ask(key, path), 60))
        except BaseException as error:  # the test asks for it
            self.error = error

    def ask(self, key, path):
        """(status, body) once it is final."""
        try:
            got = self.dice.choice(self.crowd.gateways).post(
                key, path=path, headers=tell(
                    delay=self.dice.choice([0, 0, 0.01, 0.1])))
        except (Cut, OSError):
            return None
        if not got.complete or got.status in (503, *UNREACHED):
            return None
        assert got.status == 201 or got.problem in (
            "in-progress", "outcome-unknown"), got
        if got.status == 409 and (path == AGAIN or
                                  got.problem == "in-progress"):
            return None
        return got.status, got.body


class Crowd:
    """All ask for one key after the other until it is over."""

    def __init__(self, gateways, seed, count=6):
        self.gateways = gateways
        self.lock = threading.Lock()
        self.keys = []
        self.over = False
        self.clients = [Client(self, seed * 100 + number)
                        for number in range(count)]

    def key(self, number):
        """The key of that number; None: there is no more."""
        with self.lock:
            if number == len(self.keys) and not self.over:
                self.keys.append(new_key())
            return self.keys[number] if number < len(self.keys) else None

    @staticmethod
    def path(number):
        return AGAIN if number % 2 else HOLD

    def start(self):
        for client in self.clients:
            client.start()
        return self

    def finish(self):
        """Ends it, once enough is known of quiet times as well; every client
        has got a verdict on every key."""
        wanted = len(self.keys) + 15
        until(lambda: len(self.keys) >= wanted or any(
            client.error for client in self.clients), 60)
        self.over = True
        for client in self.clients:
            client.join(90 * patience())
            assert client.error is None, client.error
            assert len(client.answers) == len(self.keys)

    def check(self, app):
        """How many keys had which end."""
        outcomes = collections.Counter()
        for number, key in enumerate(self.keys):
            told = {client.answers[number] for client in self.clients}
            outcomes[self.check_key(app, key, told, self.path(number))] += 1
        print(dict(outcomes))
        assert outcomes["answered"] > 10, "hardly anything got through"
        assert outcomes["answered"] > outcomes["uncertain"]
        return outcomes

    def check_key(self, app, key, told, path):
        """What all clients were told agrees with the app's own ledger, and
        with what all gateways say now."""
        made = {body for status, body in told if status == 201}
        before = app.count(key)
        final = [gateway.settled(key, path=path) for gateway in self.gateways]
        calls = [call for call in app.calls if call.key == key]
        assert len(made) <= 1, (key, made)
        if made:
            assert {answer.body for answer in final} == made, key
            assert all(answer.replayed for answer in final)
            assert len(calls) == before, "it ran once more: " + key
            check_runs(calls, final[0], path)
        if path == AGAIN:
            assert {status for status, _ in told} == {201}
            return "answered" if len(calls) == 1 else "run again"
        assert len(calls) <= 1, key
        return "answered" if made else self.check_open(
            final, len(calls) - before)

    @staticmethod
    def check_open(final, ran):
        """All were told that it is uncertain. Since then it may have got its
        answer after all; or a gateway has found out that its claim, whose fate
        it did not know, never came to anything, and the key was free."""
        fresh = [answer for answer in final
                 if answer.status == 201 and not answer.replayed]
        assert len(fresh) == ran
        assert len({answer.body for answer in final}) == 1 or not any(
            answer.status == 201 for answer in final)
        return "freed" if ran else "uncertain"


def check_runs(calls, answer, path):
    """Each run was allowed by a claim of its own; that of the last counts."""
    tokens = [int(call.header("Latchkey-Token")) for call in calls]
    assert len(set(tokens)) == len(tokens)
    assert path == AGAIN or len(tokens) == 1
    last = max(calls, key=lambda call: int(call.header("Latchkey-Token")))
    assert answer.json()["call"] == last.number
