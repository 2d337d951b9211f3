"""Daemons whose couriers deliver jobs: what a test says to them, and reads."""

import collections

from . import stores
from .build import patience
from .life import FINGERPRINT, begin, complete, new_key, until
from .resp import Error, fields

JSON_TYPE = "Content-Type: application/json\r\n"
SCOPE = "POST /payments"
# Quick where the defaults are patient.
TARGET = {"timeout": "%ds" % (20 * patience()), "backoff": "20ms",
          "backoff_max": "100ms", "idempotency": "yes", "id": "json:/id",
          "circuit_failures": "0"}
COURIER = ["courier.lease=2s", "store.sweep_interval=100ms",
           "store.poll=50ms"]
UNFINISHED = ("waiting", "leased", "uncertain", "dead")


def target_settings(name, url, **more):
    """--set lines for one target; `header` may be a list."""
    lines = ["target.%s.url=%s" % (name, url)]
    if "timeout" in more:
        more.setdefault("connect_timeout", more["timeout"])
    for option, value in {**TARGET, **more}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        lines += ["target.%s.%s=%s" % (name, option, one) for one in values]
    return lines


def text(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else \
        value


class Unavailable(AssertionError):
    """The store cannot decide now: a failed disk, a database that is gone."""


class Box:
    """A store, the daemons on it, and the targets that they know."""

    def __init__(self, kind, make_daemon, faulty, server=None):
        self.kind = kind
        self.server = server
        self.url = stores.make_postgres(server) if server else None
        self.make_daemon = make_daemon
        self.faulty = faulty
        self.targets = []
        self.settings = list(COURIER)
        self.daemon = None
        self._raw = self._operator = None

    # ---- making it ----

    def target(self, name, to, **more):
        """Names a target; `to`: a Provider, or a URL."""
        if not isinstance(to, str):
            if not to.honours:
                more.setdefault("idempotency", "no")
            to = to.url
        self.targets += target_settings(name, to, **more)
        return self

    def start(self, *settings, faults=None, build=None, **options):
        """A daemon; another one on the same store if there is one already."""
        options.setdefault("settings",
                           self.settings + self.targets + list(settings))
        if self.url:
            options["url"] = self.url
        if faults is None:
            made = self.make_daemon(**options)
        else:
            made = self.faulty(*faults, **options)
        if self.daemon is None:
            self.daemon = made
        return made

    @property
    def is_shared(self):
        return self.url is not None

    @property
    def raw(self):
        if self._raw is None:
            self._raw = self.daemon.raw()
        return self._raw

    @property
    def operator(self):
        if self._operator is None:
            self._operator = self.daemon.raw(user="operator")
        return self._operator

    def reconnect(self):
        """After the daemon was started again."""
        self._raw = self._operator = None

    def sql(self, query, parameters=None):
        """As the owner of the database; PostgreSQL only."""
        return self.server.query(query, parameters,
                                 stores.database_of(self.url))

    # ---- leaving jobs ----

    def enqueue(self, key, token, name="charge", target="pay",
                path="/v1/charges", body=b"", headers=JSON_TYPE,
                tenant="acme", scope=SCOPE, method=None, delay=None,
                raw=None):
        """ENQUEUE; the reply as it came."""
        words = ["ENQUEUE", tenant, scope, key, token, name, target, path]
        if method:
            words += ["METHOD", method]
        if headers:
            words += ["HEADERS", headers]
        if body:
            words += ["BODY", body]
        if delay is not None:
            words += ["DELAY", delay]
        return (raw or self.raw)(*words)

    def leave(self, body, key=None, complete_it=True, raw=None, options=(),
              **more):
        """A whole operation that leaves one job; its key."""
        key = key or new_key()
        place = {name: more[name] for name in ("tenant", "scope")
                 if name in more}
        raw = raw or self.raw
        token = begin(raw, key, **place)
        reply = self.enqueue(key, token, body=body, raw=raw, **more)
        assert reply == "OK", reply
        if complete_it:
            reply = complete(raw, key, token, 201, b"", b"", *options, **place)
            assert reply == "OK", reply
        return key

    def leave_many(self, count, body_of, target="pay", path="/v1/charges",
                   **more):
        """So many operations with a job each, in one go; their keys."""
        keys = [new_key() for _ in range(count)]
        for start in range(0, count, 200):
            self._leave_some(keys[start:start + 200], body_of, target, path,
                             **more)
        return keys

    def _leave_some(self, keys, body_of, target, path, raw=None):
        raw = raw or self.raw
        for key in keys:
            raw.send("CLAIM", "acme", SCOPE, key, FINGERPRINT)
        tokens = [raw.read()[1] for _ in keys]
        for key, token in zip(keys, tokens):
            raw.send("ENQUEUE", "acme", SCOPE, key, token, "charge", target,
                     path, "HEADERS", JSON_TYPE, "BODY", body_of(key))
            raw.send("COMPLETE", "acme", SCOPE, key, token, 201, "", "")
        replies = [raw.read() for _ in range(2 * len(keys))]
        assert set(replies) == {"OK"}, set(map(str, replies))

    # ---- reading them ----

    def jobs(self, *filters, raw=None):
        """What JOBS lists, all pages of it."""
        raw = raw or self.operator
        found, cursor = [], 0
        while True:
            words = ["JOBS", *filters, "LIMIT", 500]
            if cursor:
                words += ["CURSOR", cursor]
            reply = raw(*words)
            if isinstance(reply, Error) and reply.code == "UNAVAILABLE":
                raise Unavailable(reply)
            assert isinstance(reply, list), reply
            cursor, page = reply
            found += [as_job(one) for one in page]
            if cursor in (None, 0, b"", b"0"):
                return found

    def job_of(self, key, name="charge", tenant="acme", whole=True):
        """The job of an operation; None: there is none."""
        found = [job for job in self.jobs("TENANT", tenant)
                 if job["key"] == key and job["name"] == name]
        assert len(found) <= 1, found
        if not found:
            return None
        return self.show(found[0]["id"]) if whole else found[0]

    def bodies(self, job):
        """The job with its bodies."""
        return self.show(job["id"], "BODY", "WHO", "test", "WHY", "to compare")

    def show(self, number, *options):
        reply = self.operator("JOB", "SHOW", number, *options)
        assert reply is not None and not isinstance(reply, str), reply
        return as_job(reply)

    def wait_job(self, key, state="delivered", name="charge", tenant="acme"):
        """The job, whole, once it is so."""
        last = []

        def found():
            try:
                job = self.job_of(key, name, tenant, whole=False)
            except Unavailable:
                return False
            last[:] = [job]
            return job and job["state"] == state
        try:
            until(found, pause=0.02)
        except AssertionError:
            raise AssertionError("%s is %r\n%s" % (
                key, last, self.daemon.log_text())) from None
        return self.job_of(key, name, tenant)

    def states(self):
        """How many jobs there are in each state."""
        return collections.Counter(job["state"] for job in self.jobs())

    def wait_settled(self, open_states=("waiting", "leased"), timeout=60):
        """Until no job is under way any more; the counts."""
        self.counts = None

        def settled():
            try:
                self.counts = self.states()
            except Unavailable:
                return False
            return not any(self.counts[word] for word in open_states)
        try:
            until(settled, timeout, pause=0.05)
        except AssertionError:
            raise AssertionError("%s\n%s" % (
                self.counts, self.daemon.log_text())) from None
        return self.counts

    def order(self, word, job, *more, who="op", why="test"):
        return self.operator("JOB", word, job["id"], "WHO", who, "WHY", why,
                             *more)

    def target_status(self, name="pay", raw=None):
        reply = (raw or self.operator)("TARGET", "STATUS", name)
        assert isinstance(reply, list) and len(reply) == 1, reply
        return {key: text(value) for key, value in fields(reply[0]).items()}


def as_job(reply):
    """Text where it is text; `history` is a list of dicts."""
    job = {}
    for name, value in fields(reply).items():
        if name == "history":
            value = [{key: value if key == "body" else text(value)
                      for key, value in fields(one).items()}
                     for one in value]
        elif name not in ("body", "answer-body"):
            value = text(value)
        job[name] = value
    return job


def check_books(box, provider, keys):
    """The provider's ledger against ours, when nothing is under way any more.

    A provider that honours keys: each job exactly once, delivered, with its
    id. One that does not: at most once, delivered with its id or uncertain.
    What was made is known here, and nothing is forgotten. The counts.
    """
    ours = {job["key"]: job for job in box.jobs()
            if job["key"] in set(keys)}
    assert set(ours) == set(keys), "forgotten: %s" % (set(keys) - set(ours))
    theirs = collections.defaultdict(list)
    for line in provider.charges():
        theirs[line["key"]].append(line["id"])
    downstream = {job["downstream-key"] for job in ours.values()}
    assert len(downstream) == len(ours)
    assert set(theirs) <= downstream, "only there: %s" % (
        set(theirs) - downstream)
    for key, job in ours.items():
        made = theirs.get(job["downstream-key"], [])
        told = (key, job, made, provider.calls(job["downstream-key"]))
        assert len(made) <= 1, told
        if job["state"] == "delivered":
            assert made == [job["provider-id"]], told
        else:
            assert job["state"] == "uncertain", told
            assert not provider.honours, told
    return collections.Counter(job["state"] for job in ours.values())
