"""Targets that are slow, dead, hostile or not who they say they are: none
delays another one, none makes the courier leak or go elsewhere."""

import collections
import os
import pathlib
import socket
import subprocess
import threading

import pytest

from support import build
from support.gateway import Gateway
from support.life import until
from support.outbox import check_books
from support.provider import charge
from support.resp import fields


class Trap:
    """A place where nobody may come; who did."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.visitors = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            try:
                visitor, _ = self.listener.accept()
            except OSError:
                return
            self.visitors.append(visitor.recv(65536))
            visitor.close()


@pytest.fixture
def trap():
    made = Trap()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()
    assert not made.visitors, made.visitors


@pytest.fixture
def silent():
    """Accepts connections and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


# ---- what needs a person ----

def reasons(box, daemon=None):
    """What HEALTH says, by code."""
    raw = (daemon or box.daemon).raw()
    found = fields(raw("HEALTH"))
    raw.close()
    return {reason["code"].decode(): reason
            for reason in map(fields, found["reasons"])}


def test_health_names_what_is_dead_uncertain_paused_or_left_alone(
        box, make_provider):
    # C29
    dead, lost = make_provider(), make_provider(honours=False)
    dead.control(fail=400)
    lost.control(drop="after")
    nowhere = "http://127.0.0.1:1"
    box.target("dead", dead).target("lost", lost)
    box.target("down", nowhere, circuit_failures="1", circuit_open="1h")
    box.target("idle", nowhere).start("limits.disk_free=0")
    for target in ("dead", "lost", "down"):
        box.leave(charge(), target=target)
    assert box.operator("TARGET", "PAUSE", "idle", "WHO", "t", "WHY",
                        "t") == "OK"
    found = until(lambda: (lambda all: len(all) == 4 and all)(reasons(box)))
    assert list(found) == ["jobs-uncertain", "jobs-dead", "circuit-open",
                           "targets-paused"]
    until(lambda: reasons(box)["jobs-dead"]["since-ms"] > 0)
    assert found["jobs-dead"]["count"] == 1
    assert b"(down)" in found["circuit-open"]["text"]
    assert b"(idle)" in found["targets-paused"]["text"]
    said = box.daemon.cli("health")
    assert said.returncode == 1
    assert "for 4 reasons" in said.stdout and "dead list" in said.stdout


@pytest.mark.stores("postgres")
def test_health_names_jobs_that_no_courier_takes(box, provider):
    box.target("pay", provider).start("courier.enabled=no",
                                      "limits.disk_free=0")
    box.leave(charge())
    assert not reasons(box)
    box.sql("UPDATE latchkey.job SET due_ms = due_ms - 600000")
    found = until(lambda: reasons(box).get("jobs-late"))
    assert found["count"] == 1 and b"(pay)" in found["text"]


# ---- none delays another ----

def hanging(make_provider, silent):
    return make_provider(manner={"hang": "after"}).url


def byte_by_byte(make_provider, silent):
    return make_provider(manner={"pace": 200}).url


def nobody_home(make_provider, silent):
    dead = make_provider()
    dead.kill()
    return dead.url


def silence(make_provider, silent):
    return silent


def nowhere(make_provider, silent):
    return "http://no-such-host.invalid"


def giants(make_provider, silent):
    return make_provider(manner={"giant": 64 << 20}).url


def failing(make_provider, silent):
    return make_provider(manner={"fail": 503}).url


@pytest.mark.parametrize("kind", [hanging, byte_by_byte, nobody_home, silence,
                                  nowhere, giants, failing])
def test_a_target_in_trouble_does_not_delay_another(box, provider,
                                                    make_provider, silent,
                                                    kind):
    # C30: what is queued behind the bad one's jobs is delivered while these
    # are still open; nothing here depends on how long anything takes.
    box.target("bad", kind(make_provider, silent), attempts="1000000",
               backoff="500ms", backoff_max="5s").target("pay", provider)
    box.start("courier.batch=32")
    bad = box.leave_many(300, lambda key: charge(key), target="bad")
    good = box.leave_many(100, lambda key: charge(key))
    until(lambda: len(provider.charges()) == len(good), 60)
    open_ones = [job for job in box.jobs("TARGET", "bad")
                 if job["state"] in ("waiting", "leased")]
    assert kind is giants or open_ones
    assert len(box.jobs("TARGET", "bad")) == len(bad)
    assert int(box.target_status("pay")["dead"]) == 0


def test_many_targets_in_trouble_together_delay_nobody(box, provider,
                                                       make_provider, silent):
    # C30
    for number, kind in enumerate((hanging, byte_by_byte, nobody_home, silence,
                                   nowhere, failing)):
        box.target("bad%d" % number, kind(make_provider, silent),
                   attempts="1000000")
    box.target("pay", provider).start("courier.batch=8")
    for number in range(6):
        box.leave_many(60, lambda key: charge(key), target="bad%d" % number)
    good = box.leave_many(60, lambda key: charge(key))
    until(lambda: len(provider.charges()) == len(good), 60)


# ---- answers of every kind ----

@pytest.mark.parametrize("manner", [
    {"drop": "after"}, {"drop": "before"}, {"garbage": 1}, {"cut": 1},
    {"hang": "after"}, {"hang": "before"}, {"pace": 100}, {"die": "after"},
    {"die": "before"}])
@pytest.mark.parametrize("honours", [True, False])
def test_sent_and_no_whole_answer(box, make_provider, manner, honours):
    """C27: again where the key is honoured; else uncertain, and no second
    call."""
    provider = make_provider(honours=honours)
    provider.control(**manner, next=1)
    box.target("pay", provider, timeout="1s").start()
    key = box.leave(charge())
    if "die" in manner:
        provider.wait_dead()
        provider.start()
    if honours:
        job = box.wait_job(key)
        assert job["attempts"] >= 2
        assert job["provider-id"] == provider.charges()[0]["id"]
        assert len(provider.charges()) == 1
        return
    job = box.wait_job(key, "uncertain")
    assert job["reason"] and job["attempts"] == 1 and job["called"]
    box.wait_job(box.leave(charge("next")))
    # An answer that was cut may be kept as far as it came.
    assert len(provider.calls(job["downstream-key"])) <= 1
    acts = len(provider.charges("cus_1"))
    assert acts == (0 if "before" in manner.values() else 1)
    line = box.daemon.wait_for_log("event=job-uncertain")
    assert "level=error" in line and job["reference"] in line


@pytest.mark.parametrize("honours", [True, False])
def test_what_was_never_sent_is_tried_again_wherever(box, make_provider,
                                                     honours):
    # C27: nobody listens; nothing can have happened.
    provider = make_provider(honours=honours)
    provider.kill()
    box.target("pay", provider).start()
    key = box.leave(charge())
    until(lambda: (box.job_of(key) or {}).get("attempts", 0) >= 2)
    assert not box.job_of(key)["sent"]
    provider.start()
    job = box.wait_job(key)
    assert len(provider.charges()) == len(provider.calls()) == 1
    *failed, last = job["history"]
    assert failed and not any(one["status"] for one in failed)
    assert last["called"] and last["status"] == 201


@pytest.mark.parametrize("honours", [True, False])
def test_an_uncertain_job_is_settled_by_an_operator(box, make_provider,
                                                    honours):
    # C32, C35
    provider = make_provider(honours=False)
    box.target("pay", provider).start()
    provider.control(drop="after" if honours else "before", next=1)
    key = box.leave(charge())
    job = box.wait_job(key, "uncertain")
    if honours:  # it happened
        made, = provider.charges()
        assert box.order("DELIVERED", job, "PROVIDER", made["id"], "STATUS",
                         201) == "OK"
        job = box.wait_job(key)
        assert job["provider-id"] == made["id"]
    else:
        assert box.order("AGAIN", job) == "OK"
        box.wait_job(key)
    assert len(provider.charges()) == 1


def test_a_giant_answer_counts_by_its_status_and_is_cut(box, provider):
    box.target("pay", provider, id="header:Provider-Id").start(
        "courier.answer_bytes=1k")
    before = rss(box.daemon.pid)
    keys = [box.leave(charge(giant=100 << 20)) for _ in range(4)]
    for key in keys:
        job = box.wait_job(key)
        assert job["status"] == 201 and job["provider-id"]
        assert job["answer-body-bytes"] <= 1024
    assert len(provider.charges()) == 4
    if not build.is_sanitized():
        assert rss(box.daemon.pid) - before < 64 << 20


@pytest.mark.stores("sqlite")
def test_an_answer_larger_than_what_is_kept_is_cut_and_marked_as_such(
        box, provider):
    box.target("pay", provider).start("courier.answer_bytes=100")
    job = box.wait_job(box.leave(charge(giant=5000)))
    assert 0 < job["answer-body-bytes"] <= 100
    # The id was looked for in all that came.
    assert job["provider-id"] == provider.charges()[0]["id"]


# ---- redirects, names, certificates ----

@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(box, provider, trap, app, status):
    box.target("pay", provider).target("hook", "http://" + app.address).start()
    job = box.wait_job(box.leave(charge(redirect="http://%s/" % trap.address)),
                       "dead")
    assert job["status"] == 302 and job["attempts"] == 1
    app.manner = {"status": status, "headers": [
        ["Location", "http://%s/" % trap.address]]}
    job = box.wait_job(box.leave(b"{}", target="hook", path="/"), "dead")
    assert job["status"] == status and app.count() == 1


def test_a_name_that_leads_nowhere_is_a_failure_that_may_pass(box, provider):
    box.target("bad", "http://no-such-host.invalid", attempts="3").target(
        "pay", provider).start()
    job = box.wait_job(box.leave(charge(), target="bad"), "dead")
    assert job["attempts"] == 3 and job["status"] == 0 and job["reason"]
    assert not job["sent"]


def test_proxies_of_the_environment_are_not_used(box, provider, trap,
                                                 monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://" + trap.address)
    monkeypatch.delenv("no_proxy", raising=False)
    box.target("pay", provider).start()
    box.wait_job(box.leave(charge()))


class Tls:
    """nginx with TLS before a provider."""

    def __init__(self, app, **options):
        self.gateway = Gateway(
            app=app, tls=True, module=False, workers=1,
            locations="location / { proxy_pass http://@APP@;"
                      " proxy_set_header X-Protocol $server_protocol; }",
            **options)
        self.folder = self.gateway.folder

    def start(self):
        self.gateway.start()
        return self

    def url(self, host="localhost"):
        return "https://%s:%d" % (host, self.gateway.tls_port)

    @property
    def certificate(self):
        return self.folder / "cert.pem"


@pytest.fixture
def make_tls():
    made = []

    def make(app, **options):
        made.append(Tls(app, **options))
        return made[-1]

    yield make
    for tls in made:
        tls.gateway.kill()  # else it waits for connections that idle
        tls.gateway.finish()


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True,
                   capture_output=True)


def issue(folder, name, days=2, san="DNS:localhost"):
    """A certificate of a private CA in the folder; (certificate, key)."""
    ca = folder / "ca.pem"
    if not ca.exists():
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt",
                "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2, "-subj",
                "/CN=A private CA", "-keyout", folder / "ca.key", "-out", ca)
    request, cert, key = (folder / (name + end)
                          for end in (".csr", ".pem", ".key"))
    openssl("req", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=" + name,
            "-keyout", key, "-out", request)
    extension = folder / (name + ".ext")
    extension.write_text("subjectAltName=%s\n" % san)
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey",
            folder / "ca.key", "-CAcreateserial", "-days", days, "-extfile",
            extension, "-out", cert)
    return cert, key


def place(tls, cert, key):
    """The server's certificate, before it starts."""
    (tls.folder / "cert.pem").write_bytes(cert.read_bytes())
    (tls.folder / "key.pem").write_bytes(key.read_bytes())


def test_a_private_ca_is_trusted_where_it_is_named_and_only_there(
        box, provider, make_tls, tmp_path):
    tls = make_tls(provider)
    place(tls, *issue(tmp_path, "server"))
    tls.start()
    ca = tmp_path / "ca.pem"
    box.target("good", tls.url(), ca_file=ca)
    box.target("system", tls.url(), attempts="2")
    box.target("other-name", tls.url("127.0.0.1"), ca_file=ca, attempts="2")
    box.start()
    for target in ("system", "other-name"):
        job = box.wait_job(box.leave(charge(target), target=target), "dead")
        assert job["attempts"] == 2 and not job["sent"], job
        assert "certificate" in job["reason"].lower() or \
            "ssl" in job["reason"].lower(), job
    box.wait_job(box.leave(charge("good"), target="good"))
    assert [line["customer"] for line in provider.charges()] == ["good"]


def test_an_expired_certificate_and_another_ca_are_refused(
        box, provider, make_tls, tmp_path):
    old, other = tmp_path / "old", tmp_path / "other"
    for number, folder in enumerate((old, other)):
        folder.mkdir()
        tls = make_tls(provider)
        place(tls, *issue(folder, "server", days=-1 if folder is old else 2))
        tls.start()
        box.target("t%d" % number, tls.url(), attempts="2",
                   ca_file=old / "ca.pem")
    box.start()
    for number in range(2):
        job = box.wait_job(box.leave(charge(), target="t%d" % number), "dead")
        assert not job["sent"] and job["reason"]
    assert not provider.calls()


def test_a_client_certificate_is_shown_where_it_is_asked_for(
        box, provider, make_tls, tmp_path):
    tls = make_tls(provider, server="ssl_client_certificate %s;"
                   "ssl_verify_client on;" % (tmp_path / "ca.pem"))
    place(tls, *issue(tmp_path, "server"))
    cert, key = issue(tmp_path, "client")
    tls.start()
    ca = tmp_path / "ca.pem"
    box.target("with", tls.url(), ca_file=ca, cert_file=cert, key_file=key)
    box.target("without", tls.url(), ca_file=ca)
    box.start()
    box.wait_job(box.leave(charge("with"), target="with"))
    box.wait_job(box.leave(charge("without"), target="without"), "dead")
    assert [line["customer"] for line in provider.charges()] == ["with"]


@pytest.mark.parametrize("http,expected", [("auto", "HTTP/2.0"),
                                           ("1.1", "HTTP/1.1"),
                                           ("2", "HTTP/2.0")])
@pytest.mark.stores("sqlite")
def test_http_2_is_spoken_where_the_target_can(box, app, make_tls, http,
                                               expected):
    tls = make_tls(app).start()
    box.target("hook", tls.url(), ca_file=tls.certificate, http=http,
               id="json:/call").start()
    for _ in range(3):
        box.wait_job(box.leave(b"{}", target="hook", path="/x"))
    assert {call.header("X-Protocol") for call in app.calls} == {expected}


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.stores("sqlite")
def test_connections_of_http_2_that_end_repeat_nothing(box, make_provider,
                                                       make_tls, honours):
    """C27: nginx, before the provider, is reloaded and its workers are killed
    while calls share connections: streams are refused, cut and told to go."""
    provider = make_provider(honours=honours, manner={"delay_20": 60})
    tls = make_tls(provider).start()
    box.target("pay", tls.url(), ca_file=tls.certificate, http="2",
               idempotency="yes" if honours else "no", attempts="100000",
               concurrency="16").start()
    keys = box.leave_many(400, lambda key: charge(key))
    for share in range(40, 360, 40):
        provider.wait_charges(share)
        if share % 80:
            tls.gateway.reload()
        else:
            for worker in tls.gateway.workers():
                tls.gateway.kill_worker(worker)
    box.wait_settled()
    counts = check_books(box, provider, keys)
    if honours:
        assert counts == {"delivered": 400}
    else:
        assert max(collections.Counter(
            call["key"] for call in provider.calls()
            if call["did"] == "charged").values()) == 1


# ---- connections ----

def test_connections_are_used_again_where_the_key_is_honoured(box, app):
    app.manner = {"status": 200}
    seen = set()
    box.target("hook", "http://" + app.address, concurrency="2",
               id="json:/call").start()
    for _ in range(20):
        box.wait_job(box.leave(b"{}", target="hook", path="/x"))
        seen |= {sock.getpeername() for sock in list(app.sockets)}
    assert app.count() == 20 and len(seen) <= 4


def test_a_request_is_never_sent_again_in_secret(box, app):
    """C27: a kept connection that dies under a request makes clients repeat
    it by themselves. At a service that does not honour keys that would be a
    second effect: there each call has a connection of its own."""
    box.target("hook", "http://" + app.address, idempotency="no",
               id="json:/call").start()
    for _ in range(10):
        box.wait_job(box.leave(b"{}", target="hook", path="/x"))
        assert app.last.headers.all("Connection") in ([], ["close"])
    app.manner = {"close": True}
    job = box.wait_job(box.leave(b"{}", target="hook", path="/y"),
                       "uncertain")
    assert [call.target for call in app.calls].count("/y") == 1
    assert job["attempts"] == 1


def rss(pid):
    for line in pathlib.Path("/proc/%d/status" % pid).read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def test_neither_connections_nor_memory_leak(box, make_provider, silent):
    """Thousands of calls of every kind, and as much is open as before."""
    honest = make_provider(manner={"drop_after": 20, "drop_before": 20,
                                   "fail_503": 20})
    other = make_provider(honours=False, manner={"drop_after": 30,
                                                 "fail_503": 20})
    dead = make_provider()
    dead.kill()
    quick = {"attempts": "3", "timeout": "100ms", "backoff": "1ms",
             "backoff_max": "2ms"}
    box.target("pay", honest, **quick).target("other", other, **quick)
    quick["concurrency"] = "80"  # they only wait for their time-outs
    box.target("dead", dead, **quick).target("silent", silent, **quick)
    box.target("nowhere", "http://no-such-host.invalid", **quick)
    box.start("courier.answer_bytes=1k")
    box.raw, box.operator
    files = descriptors(box.daemon.pid)
    targets = ("pay", "other", "dead", "silent", "nowhere")

    def round_of(count):
        for target in targets:
            box.leave_many(count, lambda key: charge(key), target=target)
        box.wait_settled(timeout=120)
        return rss(box.daemon.pid)

    round_of(40)
    memory = round_of(40)
    for _ in range(3):
        last_memory = round_of(80)
    # A name is looked up on a thread, which may outlive the call by seconds.
    until(lambda: descriptors(box.daemon.pid) <= files + 32, 60)
    if not build.is_sanitized():
        assert last_memory - memory < 24 << 20, (memory, last_memory)
