"""A service that answers questions about what it was asked to do, as a test
tells it to: it drops every POST without an answer, unless told otherwise."""

import http.server
import threading
import time
import urllib.parse

from .life import until


class Witness:
    """`says(path)` gives status, body and perhaps headers of a GET. `posts`
    and `gets` are (path, headers, body, when)."""

    def __init__(self):
        self.says = lambda path: (404, b"")
        self.takes = lambda path: None  # a POST: status, or None to drop it
        self.posts, self.gets = [], []
        self.gate = threading.Event()  # a GET is answered once it is set
        self.gate.set()
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever,
                         kwargs={"poll_interval": 0.01}, daemon=True).start()

    def _handler(witness):  # noqa: N805
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                witness.gets.append((self.path, self.headers, b"",
                                     time.monotonic()))
                witness.gate.wait(60)
                self.answer(*witness.says(self.path))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]
                                           or 0))
                witness.posts.append((self.path, self.headers, body,
                                      time.monotonic()))
                status = witness.takes(self.path)
                if status is None:
                    self.close_connection = True
                else:
                    self.answer(status, b"")

            def answer(self, status, body, headers=()):
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass
        return Handler

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server.server_port

    def asked(self, word):
        """The questions in which that word stands, oldest first."""
        word = urllib.parse.quote(word, safe="-._~")
        return [one for one in list(self.gets) if word in one[0]]

    def wait_asked(self, word, count=1):
        until(lambda: len(self.asked(word)) >= count)
        return self.asked(word)

    def finish(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
