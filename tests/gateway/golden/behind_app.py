"""behind.py of the examples, with requests that tell it to misbehave.

X-App: die-before-commit, die-after-commit, other-answer, failure (answers 500
after it has committed), wait (for an advisory lock before it does anything).
"""

import os
import pathlib
import signal
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples" / "transactions"))

import behind  # noqa: E402
import psycopg  # noqa: E402

WAIT_LOCK = 4711
manner = threading.local()
move = behind.move


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def move_or_die(*arguments):
    result = move(*arguments)
    if manner.word == "die-before-commit":
        die()
    return result


class Bank(behind.Bank):
    def do_POST(self):
        manner.word = self.headers["X-App"]
        if manner.word == "wait":
            with psycopg.connect(self.conninfo) as connection:
                connection.execute("SELECT pg_advisory_xact_lock(%s)",
                                   (WAIT_LOCK,))
        super().do_POST()

    def response(self, status, body):
        if manner.word == "die-after-commit":
            die()
        if manner.word == "other-answer":
            status, body = 200, b'{"something": "else"}'
        if manner.word == "failure":
            status, body = 500, b'{"error": "after the commit"}'
        super().response(status, body)


behind.move = move_or_die
behind.main(sys.argv[1], sys.argv[2], Bank)
