"""Who asks, and for what: operations of others are never met."""

import base64
import subprocess

import pytest

from support import build
from support.app import tell
from support.gateway import guard
from support.life import new_key
from support.resp import fields


def basic(user, password):
    text = base64.b64encode(b"%s:%s" % (user.encode(), password.encode()))
    return {"Authorization": "Basic " + text.decode()}


def write_passwords(gateway, **users):
    lines = []
    for user, password in users.items():
        hashed = subprocess.run(["openssl", "passwd", "-apr1", password],
                                check=True, capture_output=True, text=True)
        lines.append("%s:%s" % (user, hashed.stdout))
    (gateway.folder / "htpasswd").write_text("".join(lines))


# ---- tenants ----

def test_tenants_with_the_same_key_never_meet(gateway, app):
    # C13
    key = new_key()
    answers = {}
    for tenant in ("acme", "globex", "ACME"):
        answers[tenant] = gateway.post(key, b"of " + tenant.encode(),
                                       tenant=tenant)
    assert [a.status for a in answers.values()] == [201, 201, 201]
    assert app.count() == 3
    assert len({answer.reference for answer in answers.values()}) == 3
    again = gateway.post(key, b"of globex", tenant="globex")
    assert again.replayed and again.body == answers["globex"].body


def test_a_lock_of_one_tenant_does_not_hold_up_another(gateway, app):
    # C13
    key = new_key()
    first = gateway.later(body=b"1", key=key, headers=tell(hold="acme"))
    app.wait_held("acme")
    other = gateway.post(key, b"2", tenant="globex")
    assert other.status == 201 and not other.replayed
    assert gateway.post(key, b"1").problem == "in-progress"
    app.release("acme")
    assert first.result().status == 201


@pytest.mark.parametrize("tenant", [None, "", "t" * 256])
def test_a_request_without_a_tenant_is_refused(gateway, app, tenant):
    # C15
    answer = gateway.post(new_key(), tenant=tenant)
    assert (answer.status, answer.problem) == (400, "tenant-missing")
    assert app.count() == 0
    gateway.logged(verdict="tenant_missing")
    if not tenant:
        gateway.wait_for_log(
            r'\[warn\].*"idempotency_tenant \$http_x_api_key" is empty')


@pytest.mark.parametrize("value,tenant,why", [
    ("$http_x_api_key", "t" * 256, "255"),
    ("$http_x_api_key", "a\tb", "control"),
    ("$http_x_api_key", "h:0123456789abcdef0123456789abcdef", "h:"),
    ("$http_x_api_key", "h:x", "h:"),
    ('" $http_x_api_key"', "acme", "space"),
    ('"$http_x_api_key "', "acme", "space"),
    ("$binary_remote_addr", "acme", "control"),
], ids=["long", "control", "as a hash", "h:", "blank before", "blank behind",
        "binary"])
def test_a_tenant_that_cannot_be_used_is_refused_and_logged(
        make_gateway, app, value, tenant, why):
    # C13, C15: it could pass for another one, or arrive as another one.
    gateway = make_gateway(locations=guard(tenant=value))
    key = new_key()
    answer = gateway.post(key, tenant=tenant)
    assert (answer.status, answer.problem) == (400, "tenant-missing")
    assert app.count() == 0 and gateway.commands("claim") == 0
    line = gateway.wait_for_log("idempotency_tenant.* cannot be used")
    assert why in line and "hashed" in line and "client: 127.0.0.1" in line
    assert "[error]" in line or "[warn]" in line


@pytest.mark.parametrize("tenant", ["H:x", "h", "hx:", "a h:", "a b", ":h"])
def test_a_tenant_that_only_resembles_a_hash_is_one(gateway, app, tenant):
    # C13
    key = new_key()
    assert gateway.post(key, tenant=tenant).status == 201
    assert app.last.header("Latchkey-Tenant") == tenant
    assert gateway.post(key, tenant=tenant).replayed


def test_the_longest_tenant_works(gateway):
    # C15
    key = new_key()
    assert gateway.post(key, tenant="t" * 255).status == 201
    assert gateway.post(key, tenant="t" * 255).replayed


def test_a_hashed_tenant_is_stored_and_passed_on_as_a_hash(make_gateway, app):
    # C13
    def prepared(secret):
        gateway = make_gateway(
            start=False, http="idempotency_secret @FOLDER@/secret;",
            locations=guard(tenant="$http_x_api_key hashed"))
        (gateway.folder / "secret").write_text(secret)
        return gateway.start()

    gateway = prepared("0123456789abcdef")
    key = new_key()
    assert gateway.post(key, tenant="tok-secret-1").status == 201
    assert gateway.post(key, tenant="tok-secret-1").replayed
    stored = app.last.header("Latchkey-Tenant")
    assert stored.startswith("h:") and len(stored) == 34
    assert set(stored[2:]) <= set("0123456789abcdef")
    # An operator who knows the value can compute what to look for.
    assert subprocess.run(
        [str(build.BUILD / "latchkey"), "tenant", "-", "--secret-file",
         str(gateway.folder / "secret")], input="tok-secret-1", text=True,
        capture_output=True, check=True).stdout == stored + "\n"
    assert gateway.record(key, stored)
    assert not gateway.record(key, "tok-secret-1")
    assert gateway.logged(2, key=key)[0]["tenant"] == stored
    assert not gateway.post(key, tenant="tok-secret-2").replayed
    # Another secret, other names: nothing can be told from the hash alone.
    prepared("fedcba9876543210").post(key, tenant="tok-secret-1")
    assert app.last.header("Latchkey-Tenant") not in (stored, None)


# ---- endpoints ----

@pytest.mark.parametrize("one,two", [
    ("/payments", "/refunds"), ("/a/b", "/a%2Fb"), ("/a", "/a/"),
    ("/a/b", "/a//b"), ("/A", "/a")])
def test_a_key_on_two_endpoints_is_two_operations(gateway, app, one, two):
    # C14
    key = new_key()
    first = gateway.post(key, path=one)
    second = gateway.post(key, path=two)
    assert not second.replayed and second.status == 201
    assert first.reference != second.reference
    assert app.count() == 2
    assert gateway.post(key, path=one).body == first.body
    assert gateway.post(key, path=two).body == second.body


def test_a_key_of_two_methods_is_two_operations(gateway, app):
    # C14
    key = new_key()
    assert gateway.request("POST", key=key).status == 201
    assert gateway.request("PATCH", key=key).json()["call"] == 2


def test_the_scope_is_the_path_as_sent_without_its_query(gateway, app):
    # C14
    key = new_key()
    gateway.post(key, path="/a%20b/../c?x=1")
    assert app.last.header("Latchkey-Scope") == "POST /a%20b/../c"
    gateway.post(key, path="http://localhost/abs?x=1")
    assert app.last.header("Latchkey-Scope") == "POST /abs"


# ---- authentication ----

def test_a_replay_passes_basic_authentication_again(make_gateway, app):
    # C16
    gateway = make_gateway(start=False, locations=guard(
        "/", "auth_basic x;", "auth_basic_user_file @FOLDER@/htpasswd;",
        tenant="$remote_user"))
    write_passwords(gateway, ann="right", bob="also")
    gateway.start()
    key = new_key()
    assert gateway.post(key, headers=basic("ann", "wrong")).status == 401
    assert app.count() == 0
    first = gateway.post(key, headers=basic("ann", "right"))
    assert first.status == 201
    for headers in (basic("ann", "wrong"), {}, basic("eve", "right")):
        refused = gateway.post(key, headers=headers)
        assert refused.status == 401
        assert refused.body != first.body and not refused.reference
    assert gateway.post(key, headers=basic("ann", "right")).replayed
    other = gateway.post(key, headers=basic("bob", "also"))
    assert not other.replayed and other.status == 201


AUTH_REQUEST = """
auth_request /auth;
auth_request_set $account $upstream_http_x_account;
"""
AUTH = """
location = /auth {
    internal;
    proxy_method GET;
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
    proxy_set_header X-App $http_x_auth;
    proxy_pass http://@APP@;
}
"""


def allow(account):
    return {"X-Auth": tell(status=204, headers=[["X-Account", account]])[
        "X-App"]}


def test_a_replay_asks_the_authentication_service_again(make_gateway, app):
    # C16
    gateway = make_gateway(locations=AUTH + guard(
        "/", AUTH_REQUEST, tenant="$account"))
    key = new_key()
    first = gateway.post(key, headers=allow("ann"))
    assert first.status == 201 and app.count() == 2
    assert app.last.header("Latchkey-Tenant") == "ann"
    again = gateway.post(key, headers=allow("ann"))
    assert again.replayed and again.body == first.body and app.count() == 3
    for status in (401, 403):
        refused = gateway.post(key, headers={
            "X-Auth": tell(status=status)["X-App"]})
        assert refused.status == status and not refused.replayed
    other = gateway.post(key, headers=allow("bob"))
    assert other.status == 201 and not other.replayed


def test_satisfy_any_lets_in_whom_one_check_lets_in(make_gateway, app):
    # C16
    gateway = make_gateway(locations=AUTH + guard(
        "/", "satisfy any;", "deny all;", AUTH_REQUEST))
    key = new_key()
    refused = {"X-Auth": tell(status=403)["X-App"]}
    assert gateway.post(key, headers=refused).status == 403
    assert app.count() == 1
    assert gateway.post(key, headers=allow("x")).status == 201
    assert gateway.post(key, headers=refused).status == 403
    assert gateway.post(key, headers=allow("x")).replayed


def test_a_replay_passes_access_rules_again(make_gateway, app):
    # C16
    gateway = make_gateway(locations=guard("/"))
    key = new_key()
    assert gateway.post(key).status == 201
    gateway.reload(locations=guard("/", "deny all;"))
    refused = gateway.post(key)
    assert refused.status == 403 and not refused.reference
    assert app.count() == 1


# ---- what the app is told ----

def test_the_app_is_told_the_name_and_token_of_the_operation(gateway, app):
    # C13
    key = new_key() + '"\\'
    sent = '"%s"' % key.replace("\\", "\\\\").replace('"', '\\"')
    first = gateway.post(sent, path="/pay?x=1")
    call = app.last
    assert call.header("Idempotency-Key") == sent
    assert call.header("Latchkey-Key") == key
    assert call.header("Latchkey-Tenant") == "acme"
    assert call.header("Latchkey-Scope") == "POST /pay"
    assert call.header("Latchkey-Attempt") == "1"
    assert call.header("Latchkey-Reference") == first.reference
    record = gateway.record(key, scope="POST /pay")
    assert int(call.header("Latchkey-Token")) == record["token"]
    with gateway.daemon.raw() as raw:
        found = fields(raw("FIND", "acme", first.reference))
    assert found["key"] == key.encode()


NAMES = ("Latchkey-Tenant", "Latchkey-Scope", "Latchkey-Key",
         "Latchkey-Token", "Latchkey-Attempt", "Latchkey-Reference",
         "latchkey-tenant", "LATCHKEY-TOKEN", "Latchkey-Anything")


@pytest.mark.parametrize("mode,key", [
    ("required", "k"), ("optional", "k"), ("optional", None)])
def test_what_a_client_sends_under_these_names_is_removed(make_gateway, app,
                                                          mode, key):
    # C13
    gateway = make_gateway(locations=guard(mode=mode),
                           server="underscores_in_headers on;")
    forged = [(name, "forged") for name in NAMES]
    forged += [(name.replace("-", "_"), "forged") for name in NAMES]
    assert gateway.post(key, headers=forged).status == 201
    names = [name.lower() for name, value in app.last.headers
             if name.lower().startswith("latchkey")]
    assert sorted(names) == sorted(
        name.lower() for name in NAMES[:6]) if key else names == []
    assert "forged" not in [value for _, value in app.last.headers]
