"""Requests that nobody sends by accident, byte for byte.

Whatever they try, the app is called at most once for an operation, never in
another tenant's name, and the gateway stays alive.
"""

import itertools

import pytest

from support.app import App
from support.daemon import Daemon
from support.gateway import Gateway, guard, params
from support.h2 import DATA, END_HEADERS, END_STREAM, HEADERS, Http2, literal
from support.life import new_key
from support.wire import Cut, as_bytes, encode_headers

OURS = ("Latchkey-Tenant", "Latchkey-Scope", "Latchkey-Key",
        "Latchkey-Token", "Latchkey-Attempt", "Latchkey-Reference")
HOST, TENANT, CLOSE = (("Host", "localhost"), ("X-API-Key", "acme"),
                       ("Connection", "close"))
NAME = (HOST, TENANT, CLOSE)
NOBODY = (HOST, CLOSE)
NO_HOST = (TENANT, CLOSE)
KEPT = (HOST, TENANT)
SMUGGLED = (b"POST /smuggled HTTP/1.1\r\nHost: localhost\r\n"
            b"X-API-Key: victim\r\nIdempotency-Key: smuggled\r\n"
            b"Content-Length: 2\r\n\r\n{}")


def head(*more, line="POST / HTTP/1.1", key="k", base=NAME):
    """Request line and headers."""
    pairs = list(base) + [("Idempotency-Key", key)] * (key is not None)
    extra = b"".join(as_bytes(text) + b"\r\n" for text in more)
    return as_bytes(line) + b"\r\n" + encode_headers(pairs) + extra + b"\r\n"


def post(*more, body=b"{}", **options):
    """A whole request; its body has the length that it says."""
    return head("Content-Length: %d" % len(body), *more, **options) + body


def chunked(*chunks, end=b"0\r\n\r\n", **options):
    return head("Transfer-Encoding: chunked", **options) + b"".join(
        chunks) + end


def target(path, **options):
    return post(line=b"POST %s HTTP/1.1" % as_bytes(path), **options)


# ---- one gateway for all of them ----

class Bench:
    """A daemon, an app and a gateway that keeps its connections to it."""

    def __init__(self):
        self.daemon = Daemon().start()
        self.app = App().start()
        self.gateway = Gateway(
            daemon=self.daemon, app=self.app, h2=True,
            http="upstream kept { server @APP@; keepalive 8; }",
            server="client_header_timeout 1s; client_body_timeout 1s;"
                   "keepalive_timeout 5s; proxy_http_version 1.1;"
                   "proxy_set_header Connection '';",
            locations=guard(to="proxy_pass http://kept;")).start()
        self.workers = sorted(self.gateway.workers())
        self.tenants = itertools.count(1)

    def finish(self):
        try:
            self.gateway.finish()
        finally:
            self.app.finish()
            self.daemon.finish()

    def tenant(self):
        """One that nobody has used; what it does starts from nothing."""
        self.seen = self.app.count()
        return "acme-%d" % next(self.tenants)

    def calls(self):
        """What has reached the app since tenant()."""
        return self.app.calls[self.seen:]

    def exchange(self, data):
        """Sends it at once; every answer until nginx closes."""
        with self.gateway.raw() as connection:
            answers = []
            try:
                connection.send(data)
                while connection.stream.buffer or connection.stream.more():
                    answers.append(connection.response())
            except Cut:
                pass
            return answers

    def check(self, tenant):
        """Each call is an operation of its own, in its sender's name."""
        names = set()
        for call in self.calls():
            for name in OURS:
                assert len(call.headers.all(name)) == 1, call.headers
            # From 1.23 on nginx joins headers that are sent twice.
            assert call.header("Latchkey-Tenant") in (tenant,
                                                      tenant + ", victim")
            assert call.target != "/smuggled"
            assert len(call.headers.all("Content-Length")) <= 1
            assert "Transfer-Encoding" not in call.headers
            names.add((call.header("Latchkey-Scope"), call.key))
        assert len(names) == len(self.calls()), "it ran twice: %s" % names
        self.check_alive()

    def check_alive(self):
        answer = self.gateway.post(new_key(), tenant="somebody")
        assert answer.status == 201
        assert sorted(self.gateway.workers()) == self.workers


@pytest.fixture(scope="module")
def bench():
    bench = Bench()
    yield bench
    bench.finish()


# ---- what nginx does not let through ----

REFUSED = {
    # how long the body is
    "two lengths": head("Content-Length: 2", "Content-Length: 5") + b"{}xxx",
    "one length twice": head("Content-Length: 2", "Content-Length: 2")
    + b"{}",
    "a list of lengths": head("Content-Length: 2, 2") + b"{}",
    "a negative length": head("Content-Length: -2") + b"{}",
    "a length with a sign": head("Content-Length: +2") + b"{}",
    "a length in hex": head("Content-Length: 0x2") + b"{}",
    "a length beyond all": head("Content-Length: 18446744073709551618")
    + b"{}",
    "CL.TE": head("Content-Length: 5", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "TE.CL": head("Transfer-Encoding: chunked", "Content-Length: 4")
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
    "TE.TE": head("Transfer-Encoding: chunked", "Transfer-Encoding: identity")
    + b"0\r\n\r\n" + SMUGGLED,
    "TE.TE, the other first": head("Transfer-Encoding: identity",
                                   "Transfer-Encoding: chunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "an unknown coding": head("Transfer-Encoding: xchunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "a list of codings": head("Transfer-Encoding: chunked, identity")
    + b"0\r\n\r\n" + SMUGGLED,
    "a coding with a space": head("Transfer-Encoding : chunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "a coding after a tab": head("Transfer-Encoding:\tchunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "a coding after VT": head("Transfer-Encoding: \x0bchunked")
    + b"0\r\n\r\n" + SMUGGLED,
    "a coding with HTTP/1.0": chunked(b"2\r\n{}\r\n",
                                      line="POST / HTTP/1.0"),
    "a chunk that is too long": chunked(b"1\r\n{}\r\n"),
    "a chunk beyond all": chunked(b"fffffffffffffffff\r\n{}\r\n"),
    "a negative chunk": chunked(b"-2\r\n{}\r\n"),
    "a chunk without a size": chunked(b"\r\n{}\r\n"),
    "chunks without an end": chunked(b"2\r\n{}\r\n", end=b""),
    "a body that never comes": head("Content-Length: 2"),
    # header lines
    "a folded key": post("Idempotency-Key: a\r\n b", key=None),
    "a key after a fold": post("X-Other: a\r\n Idempotency-Key: k", key=None),
    "a key after a space": post("X-Other: a", " Idempotency-Key: k",
                                key=None),
    "a key before a space": post("Idempotency-Key : k", key=None),
    "a key with CR": post("Idempotency-Key: a\rLatchkey-Tenant: victim",
                          key=None),
    "a key with NUL": post(key="a\0b"),
    "a name with NUL": post("Latchkey\0-Tenant: victim"),
    "a header without a name": post(": k"),
    "names with a space": post(*("%s : victim" % name for name in OURS)),
    "a key of 9000": post(key="k" * 9000),
    "a tenant with NUL": post("X-API-Key: acme\0", base=NOBODY),
    "two expectations": post("Expect: 100-continue", "Expect: 200-ok"),
    # the request line
    "a user in the target": target("http://victim@localhost/"),
    "an asterisk": target("*"),
    "a relative path": target("pay"),
    "an authority": target("localhost:80"),
    "connect": post(line="CONNECT localhost:80 HTTP/1.1"),
    "trace": head(line="TRACE / HTTP/1.1"),
    "a method in lower case": post(line="post / HTTP/1.1"),
    "a path with %00": target("/a%00b"),
    "a path with NUL": target("/a\0b"),
    "a path above the root": target("/../../etc"),
    "an escaped path above the root": target("/%2e%2e/a"),
    "half an escape": target("/%2"),
    "a path with a space": target("/a b"),
    "a path with control bytes": target("/\x01\x1f\x7f"),
    "a path of 9000": target("/" + "a" * 9000),
    "HTTP/2.0 in words": post(line="POST / HTTP/2.0"),
    "HTTP/9.9": post(line="POST / HTTP/9.9"),
    # the host
    "no host": post(base=NO_HOST),
    "two hosts": post("Host: victim"),
    "a host with a path": post("Host: localhost/../x", base=NO_HOST),
    "a host with a space": post("Host: local host", base=NO_HOST),
    "an empty host": post("Host:", base=NO_HOST),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(bench, name):
    # C13
    tenant = bench.tenant()
    answers = bench.exchange(REFUSED[name].replace(b"acme", tenant.encode()))
    assert len(answers) <= 1
    assert all(answer.status in (400, 405, 408, 414, 501, 505)
               for answer in answers)
    assert not bench.calls()
    bench.check(tenant)
    assert bench.gateway.record("k", tenant) is None


# ---- what the module does not let through ----

PROBLEMS = {
    "a key in a trailer": ("key-missing", chunked(
        b"2\r\n{}\r\n", key=None, end=b"0\r\nIdempotency-Key: k\r\n\r\n")),
    "a key with underscores": ("key-missing", post(
        "Idempotency_Key: k", key=None)),
    "a key with a dot": ("key-missing", post("Idempotency.Key: k", key=None)),
    "a key in the query": ("key-missing", target(
        "/?Idempotency-Key=k", key=None)),
    "a key without a colon": ("key-invalid", post("Idempotency-Key")),
    "two keys": ("key-invalid", post("Idempotency-Key: other")),
    "one key twice": ("key-invalid", post("Idempotency-Key: k")),
    "two keys in two cases": ("key-invalid", post("IDEMPOTENCY-key: other")),
    "a list of keys": ("key-invalid", post(key="k, other")),
    "a list of quoted keys": ("key-invalid", post(key='"k", "other"')),
    "an empty key": ("key-invalid", post(key="")),
    "a key of spaces": ("key-invalid", post(key="   ")),
    "an empty quoted key": ("key-invalid", post(key='""')),
    "a wrong escape": ("key-invalid", post(key=r'"a\bc"')),
    "an escaped end": ("key-invalid", post(key='"a\\"')),
    "a key with parameters": ("key-invalid", post(key='"k";a=b')),
    "a key of UTF-8": ("key-invalid", post(key=b"\xc3\xa4")),
    "a quoted key of bytes": ("key-invalid", post(key=b'"\xff\xfe"')),
    "a key with a tab": ("key-invalid", post(key="a\tb")),
    "a key of 256": ("key-invalid", post(key="k" * 256)),
    "a key of 7000": ("key-invalid", post(key="k" * 7000)),
    "no tenant": ("tenant-missing", post(base=NOBODY)),
    "a tenant in a trailer": ("tenant-missing", chunked(
        b"2\r\n{}\r\n", base=NOBODY, end=b"0\r\nX-API-Key: acme\r\n\r\n")),
    "an empty tenant": ("tenant-missing", post("X-API-Key:", base=NOBODY)),
    "a tenant with underscores": ("tenant-missing", post(
        "X_API_Key: acme", base=NOBODY)),
    "a tenant with a control byte": ("tenant-missing", post(
        "X-API-Key: acme\x01", base=NOBODY)),
    "a tenant with a tab": ("tenant-missing", post(
        "X-API-Key: acme\tb", base=NOBODY)),
    "a tenant with DEL": ("tenant-missing", post(
        "X-API-Key: acme\x7f", base=NOBODY)),
    "a tenant beyond its limit": ("tenant-missing", post(
        "X-API-Key: acme" + "t" * 256, base=NOBODY)),
    "only a forged tenant": ("tenant-missing", post(
        "Latchkey-Tenant: acme", base=NOBODY)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_not_a_key_or_a_tenant_is_refused(bench, name):
    # C05, C06, C15
    problem, data = PROBLEMS[name]
    tenant = bench.tenant()
    (answer,) = bench.exchange(data.replace(b"acme", tenant.encode()))
    assert (answer.status, answer.problem) == (400, problem)
    assert not bench.calls()
    bench.check(tenant)


# ---- what runs, and runs once ----

ONCE = {
    "chunk extensions": chunked(b'2;a=b;c="0\r\n', b"{}\r\n"),
    "chunks that end in LF": chunked(b"2\n{}\n", end=b"0\n\n"),
    "another key in a trailer": chunked(
        b"2\r\n{}\r\n", end=b"0\r\nIdempotency-Key: other\r\n"
        b"Latchkey-Tenant: victim\r\nX-API-Key: victim\r\n\r\n"),
    "lines that end in LF": post(base=NAME).replace(b"\r\n", b"\n"),
    "a forged tenant after LF": post(
        "Idempotency-Key: a\nLatchkey-Tenant: victim", key=None),
    "lower case": post("idempotency-key: k", key=None),
    "upper case": post("IDEMPOTENCY-KEY: k", key=None),
    "a quoted key": post(key='"k"'),
    "escapes": post(key=r'"a\"b\\c"'),
    "a key of 255": post(key="k" * 255),
    "a quoted key of 255 escapes": post(key='"%s"' % (r"\\" * 255)),
    "the key as hop by hop": post("Connection: Idempotency-Key", base=KEPT,
                                  line="POST / HTTP/1.0"),
    "ours as hop by hop": post("Connection: Latchkey-Tenant, X-API-Key",
                               base=KEPT, line="POST / HTTP/1.0"),
    "two tenants": post("X-API-Key: victim"),
    "an absolute target": target("http://localhost/a"),
    "an absolute target elsewhere": target("http://victim/a"),
    "an absolute target without a path": target("http://localhost"),
    "an absolute target with a query": target("http://localhost?a=b"),
    "dots": target("/a/./b/../c"),
    "escaped dots": target("/a/%2e/b/%2E%2e/c"),
    "slashes": target("//a///b"),
    "an escaped slash": target("/a%2fb"),
    "CR and LF, escaped": target("/a%0d%0aLatchkey-Tenant:%20victim"),
    "a path of bytes": target(b"/\xc3\xa4\xff"),
    "a fragment": target("/a#b"),
    "a query of bytes": target(b"/?\xff=\xc3&&&="),
    "HTTP/1.0": post(line="POST / HTTP/1.0"),
    "HTTP/1.0 without a host": post(line="POST / HTTP/1.0", base=NO_HOST),
    "HTTP/1.2": post(line="POST / HTTP/1.2"),
    "a host of bytes": post(b"Host: \xff", base=NO_HOST),
    "an expectation": post("Expect: 100-continue"),
    "an expectation in capitals": post("Expect: 100-CONTINUE"),
    "an expectation nobody knows": post("Expect: a miracle"),
    "a method override": post("X-HTTP-Method-Override: GET"),
    "an upgrade": post("Connection: upgrade", "Upgrade: h2c",
                       "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    "a range": post("Range: bytes=0-1", "If-Range: x"),
    "nine hundred headers": post(*("X-%d: y" % n for n in range(900))),
    "forged headers": post(*("%s: victim" % name for name in OURS)),
    "forged headers in lower case": post(
        *("%s: victim" % name.lower() for name in OURS)),
    "forged headers a hundred times": post(*("%s: victim" % name
                                             for name in OURS * 20)),
    "a request as the body": post(body=SMUGGLED),
    "a body of NULs": post(body=b"\0" * 100),
    "an empty body": post(body=b""),
    "no body": head(),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_is_odd_but_clear_runs_once_and_is_replayed(bench, name):
    # C01, C02, C13
    tenant = bench.tenant()
    data = ONCE[name].replace(b"acme", tenant.encode())
    (first,) = bench.exchange(data)
    (again,) = bench.exchange(data)
    assert first.status == again.status == 201
    assert not first.replayed and again.replayed
    assert first.body == again.body
    assert len(bench.calls()) == 1
    bench.check(tenant)


def test_a_tenant_is_taken_byte_by_byte(bench):
    # C13
    for value in (b"\xc3\xa4", b"\xff\xfe", b"a, victim", b"'; --", b"%00",
                  b"a  b", b"*", b"\x80"):
        bench.seen = bench.app.count()
        data = post(b"X-API-Key: " + value, base=NOBODY)
        for replayed in (False, True):
            (answer,) = bench.exchange(data)
            assert answer.status == 201 and answer.replayed == replayed
        bench.check(value.decode("latin-1"))


def test_http_0_9_starts_nothing(bench):
    tenant = bench.tenant()
    with bench.gateway.raw() as connection:
        connection.send(b"POST /\r\n")
        assert b"201" not in connection.stream.rest()
    assert not bench.calls()
    bench.check(tenant)


# ---- several in one packet ----

@pytest.mark.parametrize("count", [2, 100])
def test_the_same_request_many_times_in_one_packet_runs_once(bench, count):
    # C01
    tenant = bench.tenant()
    one = post(base=(HOST, ("X-API-Key", tenant)))
    last = post(base=(HOST, ("X-API-Key", tenant), CLOSE))
    answers = bench.exchange(one * (count - 1) + last)
    assert [answer.status for answer in answers] == [201] * count
    assert [answer.replayed for answer in answers] == [False] + [True] * (
        count - 1)
    assert len({answer.body for answer in answers}) == 1
    assert len(bench.calls()) == 1
    bench.check(tenant)


def test_what_follows_in_one_packet_does_not_inherit_anything(bench):
    # C13
    tenant = bench.tenant()
    mine = (HOST, ("X-API-Key", tenant))
    answers = bench.exchange(
        post(base=mine) + post(base=mine, body=b"[]") + post(base=(HOST,))
        + post(base=mine, key=None) + post(base=(*mine, CLOSE), key="other"))
    assert [answer.problem for answer in answers] == [
        None, "key-reused", "tenant-missing", "key-missing", None]
    assert len(bench.calls()) == 2
    bench.check(tenant)


def test_a_client_that_sends_its_body_before_it_may_is_served_once(bench):
    # C02
    tenant = bench.tenant()
    data = post("Expect: 100-continue").replace(b"acme", tenant.encode())
    for cut in range(0, len(data), 7):
        with bench.gateway.raw() as connection:
            connection.send(data[:cut])
            connection.send(data[cut:])
            assert connection.response().status == 201
    assert len(bench.calls()) == 1
    bench.check(tenant)


# ---- paths ----

def test_a_scope_of_any_length_names_one_operation(bench):
    # C14
    tenant = bench.tenant()
    paths = ["/" + "a" * count for count in (1000, 1018, 1019, 1020, 2000,
                                             7000)]
    paths += [path[:-1] + "b" for path in paths]
    paths += [b"/" + b"\xc3\xa4" * 600, b"/" + b"\xc3\xa4" * 600 + b"a"]
    for path in paths:
        data = target(path).replace(b"acme", tenant.encode())
        (first,) = bench.exchange(data)
        (again,) = bench.exchange(data)
        assert (first.status, again.status) == (201, 201), path
        assert again.replayed and first.body == again.body
    assert len(bench.calls()) == len(paths)
    scopes = [call.header("Latchkey-Scope") for call in bench.calls()]
    assert len(set(scopes)) == len(paths)
    assert max(map(len, scopes)) <= 1024
    bench.check(tenant)


@pytest.mark.parametrize("path", [
    "/pay", "//pay", "/./pay", "/x/../pay", "/%70ay", "/pay?", "/pay?a",
    "/open/../pay", "/open/%2e%2e/pay", "/pay/", "/pay/../pay"])
def test_no_spelling_of_a_path_leads_around_the_guard(make_gateway, app,
                                                      path):
    # C06
    gateway = make_gateway(locations=guard("/pay")
                           + "location /open { proxy_pass http://@APP@; }\n"
                           + "location / { return 404; }\n")
    assert gateway.request("POST", path, b"{}").problem == "key-missing"
    assert app.count() == 0


# ---- names that the client may not use ----

UPSTREAMS = {
    "http": "proxy_pass http://@APP@;",
    "fastcgi": params("fastcgi") + "fastcgi_pass @FASTCGI@;",
    "scgi": params("scgi") + "scgi_pass @SCGI@;",
    "uwsgi": params("uwsgi") + "uwsgi_pass @UWSGI@;",
}


def forged():
    """Every spelling that an app might take for one of ours."""
    for name in OURS:
        for text in (name, name.lower(), name.upper(),
                     name.replace("-", "_"), name.lower().replace("-", "_"),
                     name.swapcase()):
            yield text, "forged"
    yield "Idempotency_Key", "forged"
    yield "IDEMPOTENCY_KEY", "forged"


@pytest.mark.parametrize("kind", UPSTREAMS)
def test_forged_names_never_reach_the_app(make_gateway, app, kind):
    # C13
    gateway = make_gateway(
        server="underscores_in_headers on;",
        locations=guard("/", to=UPSTREAMS[kind], mode="optional"))
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST",
                   "PATCH", "PROPFIND"):
        for key in (None, "k"):
            gateway.request(method, "/", b"", list(forged()), key=key)
            call = app.last
            assert call.method == method
            assert "forged" not in [value for _, value in call.headers]
            assert "forged" not in call.params.values()
            guarded = key and method in ("POST", "PATCH")
            for name in OURS:
                assert len(call.headers.all(name)) == (1 if guarded else 0)
            assert call.headers.all("Idempotency-Key") == ([key] if key
                                                           else [])
    assert app.count() == 16


def test_forged_names_with_other_signs_never_reach_the_app(make_gateway, app):
    # C13: PHP takes "." for "_", and nginx may be told to let it pass
    gateway = make_gateway(
        server="underscores_in_headers on; ignore_invalid_headers off;",
        locations=guard("/", to=UPSTREAMS["fastcgi"], mode="optional"))
    signs = [(name.replace("-", "."), "forged") for name in OURS]
    for key in (None, "k"):
        gateway.post(key, headers=signs)
        assert "forged" not in app.last.params.values()


UNGUARDED = {
    "nothing of ours in it": "location / { %s }",
    "off": "location / { idempotency off; %s }",
    "observe": "location / { idempotency observe;"
               "idempotency_tenant $http_x_api_key; %s }",
    "a named one": "location / { return 402; error_page 402 = @app; }"
                   "location @app { %s }",
    "after a rewrite": "location / { rewrite ^ /app last; }"
                       "location /app { %s }",
}


@pytest.mark.parametrize("where", UNGUARDED)
@pytest.mark.parametrize("kind", UPSTREAMS)
def test_forged_names_do_not_come_through_what_is_not_guarded(
        make_gateway, app, kind, where):
    # C13: nor into variables that a server or a location makes of them
    seen = "set $seen $http_latchkey_tenant;"
    gateway = make_gateway(
        server="underscores_in_headers on; add_header X-Seen \"[$seen]\" "
        "always; " + seen,
        locations=UNGUARDED[where] % (seen + UPSTREAMS[kind]))
    for method, key in (("POST", None), ("POST", "k"), ("GET", None)):
        answer = gateway.request(method, "/", b"", [
            pair for pair in forged() if "latchkey" in pair[0].lower()],
            key=key)
        assert answer.header("X-Seen") == "[]"
        call = app.last
        assert "forged" not in [value for _, value in call.headers]
        assert "forged" not in call.params.values()
        assert call.headers.all("Idempotency-Key") == ([key] if key else [])
    assert app.count() == 3


def test_forged_names_do_not_come_through_an_error_page(make_gateway, app):
    # C13: nginx cannot read the request, and never begins with it
    gateway = make_gateway(
        server="error_page 400 = @app;",
        locations="location @app { proxy_method GET; proxy_pass http://@APP@;"
        "proxy_pass_request_body off; proxy_set_header Content-Length ''; }")
    with gateway.raw() as raw:
        raw.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n"
                 b"Latchkey-Tenant: forged\r\nX-Kept: yes\r\n"
                 b"Host: again\r\n\r\n")
        raw.response("GET")
    assert app.last.header("X-Kept") == "yes"
    assert "forged" not in [value for _, value in app.last.headers]


def test_forged_names_do_not_come_through_http_2_and_grpc(make_gateway):
    # C13
    echo = make_gateway(module=False, h2=True, locations="location / { "
                        "return 200 '[$http_latchkey_tenant$http_x_kept]'; }")
    gateway = make_gateway(h2=True, locations="location / { "
                           "grpc_pass grpc://127.0.0.1:%d; }" % echo.h2_port)
    for port, seen in ((echo.h2_port, b"[forgedyes]"),
                       (gateway.h2_port, b"[yes]")):
        with Http2(port) as connection:
            stream = connection.post([("latchkey-tenant", "forged"),
                                      ("x-kept", "yes")], b"{}")
            assert connection.body(stream) == seen


# ---- HTTP/2 ----

class Rude(Http2):
    """Sends what it is told; an error of the connection is an end."""

    def read_frame(self):
        try:
            super().read_frame()
        except AssertionError as error:
            raise Cut("GOAWAY") from error

    def say(self, headers, body=b"{}", trailers=None):
        """A request of just these fields; the body of the answer."""
        stream = self.next_stream
        self.next_stream += 2
        self.send(HEADERS, END_HEADERS, stream, block(headers))
        self.send(DATA, 0 if trailers else END_STREAM, stream, body)
        if trailers:
            self.send(HEADERS, END_HEADERS | END_STREAM, stream,
                      block(trailers))
        try:
            return self.body(stream)
        except Cut:
            return b""


def block(pairs):
    """Fields as they are: upper case stays."""
    out = b""
    for name, value in pairs:
        plain = literal(name, value)
        out += plain.replace(as_bytes(name).lower(), as_bytes(name), 1)
    return out


def fields(*more, path="/", tenant="acme", key="k", length=2):
    return [(":method", "POST"), (":scheme", "http"),
            (":authority", "localhost"), (":path", path),
            *([("x-api-key", tenant)] if tenant else []),
            *([("idempotency-key", key)] if key is not None else []),
            *([("content-length", length)] if length is not None else []),
            *more]


H2_REFUSED = {
    "a name in upper case": fields(("Idempotency-Key", "k"), key=None),
    "a name in upper case beside the key": fields(("Latchkey-Tenant", "v")),
    "LF in a value": fields(("x-other", "a\nlatchkey-tenant: victim")),
    "CR LF in a value": fields(("x-other", "a\r\nlatchkey-tenant: victim")),
    "LF in the key": fields(key="a\nb"),
    "NUL in the key": fields(key="a\0b"),
    "LF in the tenant": fields(tenant="acme\nvictim"),
    "LF in the path": fields(path="/a\nb"),
    "a space in the path": fields(path="/a b"),
    "an empty path": fields(path=""),
    "a path without a slash": fields(path="pay"),
    "two paths": fields((":path", "/b")),
    "two methods": fields((":method", "GET")),
    "an unknown pseudo header": fields((":victim", "x")),
    "a colon in a name": fields(("latchkey-tenant:", "victim")),
    "a length that is too short": fields(length=1),
    "a length that is too long": fields(length=3),
    "two lengths": fields(("content-length", 5)),
    "two keys": fields(("idempotency-key", "k")),
    "a list of keys": fields(key="k, other"),
    "no key": fields(key=None),
    "no tenant": fields(tenant=None),
    "a key with underscores": fields(("idempotency_key", "k"), key=None),
    "two hosts": fields(("host", "a"), ("host", "b")),
}


@pytest.mark.parametrize("name", H2_REFUSED)
def test_http_2_requests_that_are_wrong_start_nothing(bench, name):
    # C05, C13
    tenant = bench.tenant()
    pairs = [(field, as_bytes(value).replace(b"acme", tenant.encode()))
             for field, value in H2_REFUSED[name]]
    with Rude(bench.gateway.h2_port) as client:
        assert b'"call"' not in client.say(pairs)
    assert not bench.calls()
    bench.check(tenant)


H2_ONCE = {
    "plain": (fields(), None),
    "no length": (fields(length=None), None),
    "forged headers": (fields(*((name.lower(), "victim")
                                for name in OURS)), None),
    "a coding": (fields(("transfer-encoding", "chunked")), None),
    "a connection header": (
        fields(("connection", "idempotency-key, latchkey-tenant")), None),
    "a cookie in crumbs": (fields(*(("cookie", "a=%d" % number)
                                    for number in range(20))), None),
    "keys in trailers": (fields(), [
        ("idempotency-key", "other"), ("latchkey-tenant", "victim"),
        ("x-api-key", "victim")]),
    "a host that differs": (fields(("host", "victim")), None),
}


@pytest.mark.parametrize("name", H2_ONCE)
def test_http_2_requests_that_are_odd_run_at_most_once(bench, name):
    # C01, C13
    tenant = bench.tenant()
    pairs, trailers = H2_ONCE[name]
    pairs = [(field, tenant if value == "acme" else value)
             for field, value in pairs]
    bodies = []
    for _ in range(3):
        with Rude(bench.gateway.h2_port) as client:
            bodies.append(client.say(pairs, trailers=trailers))
    assert len(set(bodies)) == 1, bodies
    assert len(bench.calls()) == (1 if b'"call"' in bodies[0] else 0)
    bench.check(tenant)
    if name == "plain":
        assert b'"call"' in bodies[0]
