"""Which requests are guarded, by which key, and when two are the same."""

import json

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key

UUID = "8c1f2f6e-0b1f-4d9a-9a55-2b8a3d5f8c11"
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def multipart(boundary, value=b"1"):
    return ({"Content-Type": "multipart/form-data; boundary=" + boundary},
            b'--%s\r\nContent-Disposition: form-data; name="a"\r\n\r\n%s\r\n'
            b'--%s--\r\n' % (boundary.encode(), value, boundary.encode()))


# ---- the key ----

@pytest.mark.parametrize("first,second", [
    ("abc", '"abc"'), ('"a\\"b"', '"a\\"b"'), ("a=b/c?:@", '"a=b/c?:@"'),
    ("k" * 255, '"%s"' % ("k" * 255)), ("abc", " abc "),
])
def test_spellings_of_a_key_are_one_key(gateway, app, first, second):
    # C05
    one = gateway.post(first)
    two = gateway.post(second)
    assert one.status == two.status == 201
    assert two.replayed and app.count() == 1
    assert app.last.key == first


def test_keys_that_differ_in_a_letter_are_two(gateway, app):
    # C05
    for key in ("abc", "abC", '"abc "', '"a b c"', "abc.", "ab"):
        assert gateway.post(key).status == 201
    assert app.count() == 6


def test_a_key_that_cannot_be_read_is_refused_with_the_reason(gateway, app):
    # C05
    bad = ["", '""', "a b", "a,b", "a;b", "a\\b", 'a"b', '"abc', '"a\\b"',
           '"abc"x', '"abc";p=1', '"a", "b"', "k" * 256,
           '"%s"' % ("k" * 256), b"caf\xc3\xa9", b"tab\there", b"\x7f"]
    for key in bad:
        answer = gateway.post(key)
        assert (answer.status, answer.problem) == (400, "key-invalid"), key
        document = answer.json()
        assert document["title"] == "Idempotency-Key is not valid"
        assert document["detail"]
    assert app.count() == 0
    gateway.logged(len(bad), verdict="key_invalid")


def test_each_fault_of_a_key_has_a_reason_of_its_own(gateway):
    # C05
    details = {gateway.post(key).json()["detail"] for key in (
        "", "k" * 256, "a b", '"a\\b"', '"abc', '"abc"x')}
    assert len(details) == 6


@pytest.mark.parametrize("second", ["abc", "other", ""])
def test_two_key_headers_are_refused_even_if_they_are_equal(gateway, app,
                                                            second):
    # C05
    answer = gateway.post(headers=[("Idempotency-Key", "abc"),
                                   ("idempotency-key", second)])
    assert (answer.status, answer.problem) == (400, "key-invalid")
    assert app.count() == 0


def test_a_missing_key_is_refused_where_one_is_required(gateway, app):
    # C06
    answer = gateway.post()
    assert (answer.status, answer.problem) == (400, "key-missing")
    assert answer.json()["title"] == "Idempotency-Key is missing"
    assert "Idempotency-Reference" not in answer.headers
    assert app.count() == 0
    gateway.logged(verdict="key_missing", status=400)


def test_a_missing_key_passes_where_it_is_optional_and_is_counted(
        make_gateway, app):
    # C06
    gateway = make_gateway(locations=guard(mode="optional"))
    for number in (1, 2):
        answer = gateway.post()
        assert answer.status == 201 and answer.json()["call"] == number
        assert "Idempotency-Reference" not in answer.headers
        assert "Idempotency-Expires" not in answer.headers
        assert app.last.header("Latchkey-Token") is None
    gateway.logged(2, verdict="passed", outcome="")
    key = new_key()
    assert not gateway.post(key).replayed
    assert gateway.post(key).replayed and app.count() == 3
    assert gateway.post("a b").problem == "key-invalid"


@pytest.mark.parametrize("rule,good,bad", [
    ("uuid", [UUID, '"%s"' % UUID, UUID.upper()],
     ["abc", UUID[:-1], UUID + "0", "{%s}" % UUID, UUID.replace("-", "")]),
    ("any min=8", ["12345678", '"12345678"'], ["1234567", '"1234567"']),
    ("min=20", [UUID], ["abc"]),
])
def test_a_route_may_demand_more_of_a_key(make_gateway, rule, good, bad):
    # C05
    gateway = make_gateway(locations=guard("/", "idempotency_key %s;" % rule))
    for key in bad:
        answer = gateway.post(key)
        assert (answer.status, answer.problem) == (400, "key-invalid"), key
        assert answer.json()["detail"]
    for key in good:
        assert gateway.post(key).status == 201, key


# ---- methods ----

def test_only_post_and_patch_are_guarded_unless_told_otherwise(gateway, app):
    # C06
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
        for _ in range(2):
            answer = gateway.request(method, body=None, key="same")
            assert answer.status == 201
            assert not answer.replayed and answer.reference is None
    assert app.count() == 10
    for method in ("POST", "PATCH"):
        assert not gateway.request(method, key="same").replayed
        assert gateway.request(method, key="same").replayed
    assert app.count() == 12
    gateway.logged(10, verdict="")


def test_a_route_chooses_its_methods(make_gateway, app):
    # C06
    gateway = make_gateway(locations=guard(
        "/", "idempotency_methods PUT DELETE;", "proxy_next_upstream off;"))
    for method in ("PUT", "DELETE"):
        assert gateway.request(method, body=None).problem == "key-missing"
        assert not gateway.request(method, key="k").replayed
        assert gateway.request(method, key="k").replayed
    for _ in range(2):
        assert not gateway.request("POST", key="k").replayed


# ---- the same request? ----

def check_same(gateway, app, requests, same):
    """The second of two requests is the first one again, or it is not."""
    key = new_key()
    (headers, body), (other_headers, other_body) = requests
    before = app.count()
    first = gateway.post(key, body, headers=headers)
    assert first.status == 201
    second = gateway.post(key, other_body, headers=other_headers)
    if same:
        assert second.replayed and second.body == first.body, requests
    else:
        assert (second.status, second.problem) == (422, "key-reused"), requests
    assert app.count() == before + 1
    third = gateway.post(key, body, headers=headers)
    assert third.replayed and third.body == first.body


def test_json_that_means_the_same_is_the_same_request(gateway, app):
    # C04
    pairs = [
        ('{"a":1,"b":2}', ' { "b" : 2.0 ,\n "a" : 10e-1 } '),
        ('"\\u0061\\/"', '"a/"'), ("1E400", "10e399"),
        ('{"a":{"c":[1,2],"b":null}}', '{"a":{"b":null,"c":[1,2]}}'),
        ("-0.0", "0"), ('{"a":1,"a":2}', '{"a":1,"a":2}'),
        ('{"broken":', '{"broken":'), ("[" * 5000, "[" * 5000),
    ]
    for first, second in pairs:
        check_same(gateway, app, [(JSON, first.encode()),
                                  (JSON, second.encode())], True)


def test_json_that_means_something_else_is_another_request(gateway, app):
    # C03, C04
    pairs = [
        ("9007199254740993", "9007199254740992"), ("[1,2]", "[2,1]"),
        ('{"a":1}', '{"a":"1"}'), ('{"a":null}', "{}"), ("1e400", "1e401"),
        ('{"a":1,"a":2}', '{"a":2}'), ('{"a":1,"a":2}', '{"a":2,"a":1}'),
        ('{"broken":', '{"broken": '), ("{}", ""),
    ]
    for first, second in pairs:
        check_same(gateway, app, [(JSON, first.encode()),
                                  (JSON, second.encode())], False)


def test_forms_compare_by_what_they_say(gateway, app):
    # C04
    check_same(gateway, app, [(FORM, b"a=1&b=%32"), (FORM, b"b=2&a=1")], True)
    check_same(gateway, app, [(FORM, b"a=1&a=2"), (FORM, b"a=2&a=1")], False)
    check_same(gateway, app, [(FORM, b"a.b=1&a_b=2"), (FORM, b"a_b=2&a.b=1")],
               False)
    check_same(gateway, app, [multipart("xxx"), multipart("yyyy")], True)
    check_same(gateway, app, [multipart("xxx"), multipart("xxx", b"2")],
               False)


def test_other_bodies_compare_byte_by_byte(gateway, app):
    # C03
    text = {"Content-Type": "text/plain"}
    check_same(gateway, app, [(text, b"a b"), (text, b"a  b")], False)
    check_same(gateway, app, [({}, b"\0\xff"), ({}, b"\0\xff")], True)
    check_same(gateway, app, [({}, b"\0\xff"), ({}, b"\0\xfe")], False)
    large = bytes(300000)
    check_same(gateway, app, [({}, large), ({}, large)], True)
    check_same(gateway, app, [({}, large), ({}, large[:-1] + b"1")], False)
    check_same(gateway, app, [({}, b""), ({}, None)], True)


def test_the_media_type_counts_without_its_parameters(gateway, app):
    # C03
    utf8 = {"Content-Type": "Application/JSON; charset=utf-8"}
    check_same(gateway, app, [(JSON, b"{}"), (utf8, b"{}")], True)
    check_same(gateway, app, [(JSON, b"{}"),
                              ({"Content-Type": "text/plain"}, b"{}")], False)
    check_same(gateway, app, [(JSON, b"{}"), ({}, b"{}")], False)


def test_another_coding_of_the_body_is_another_request(gateway, app):
    # C03
    def coded(*codings):
        return (list(JSON.items())
                + [("Content-Encoding", coding) for coding in codings], b"{}")

    check_same(gateway, app, [(JSON, b"{}"), coded("gzip")], False)
    check_same(gateway, app, [coded("gzip"), coded("br")], False)
    check_same(gateway, app, [coded("gzip"), coded("gzip", "br")], False)
    check_same(gateway, app, [coded("gzip", "br"), coded("GZIP, br")], True)
    check_same(gateway, app, [(JSON, b"{}"), coded("identity")], True)


def test_two_media_types_are_refused(make_gateway, app):
    # C13
    gateway = make_gateway(server="underscores_in_headers on;")
    for other in ("Content-Type", "content-type", "Content_Type"):
        for types in (("text/plain", "application/json"),
                      ("text/plain", "text/plain")):
            answer = gateway.post(new_key(), headers=[
                ("Content-Type", types[0]), (other, types[1])])
            assert (answer.status, answer.problem) == (400, "request-invalid")
            assert "Content-Type" in answer.json()["detail"]
    assert app.count() == 0
    gateway.logged(6, verdict="request_invalid")


def test_another_query_is_another_request(gateway, app):
    # C03
    key = new_key()
    assert gateway.post(key, path="/?a=1").status == 201
    for path in ("/?a=2", "/?a=1&b=2", "/", "/?"):
        assert gateway.post(key, path=path).problem == "key-reused", path
    assert gateway.post(key, path="/?a=1").replayed and app.count() == 1


def test_path_and_method_count_where_the_scope_leaves_them_out(make_gateway,
                                                               app):
    # C03
    gateway = make_gateway(locations=guard("/", "idempotency_scope all;"))
    key = new_key()
    assert gateway.post(key, path="/a").status == 201
    assert gateway.post(key, path="/b").problem == "key-reused"
    assert gateway.request("PATCH", "/a", b"{}", key=key).problem == \
        "key-reused"
    assert gateway.post(key, path="/a").replayed
    assert app.last.header("Latchkey-Scope") == "all"
    assert app.count() == 1


def test_a_reused_key_is_refused_while_the_first_still_runs(make_gateway,
                                                            app):
    # C03
    gateway = make_gateway(locations=guard("/", "idempotency_wait 20s;"))
    key = new_key()
    first = gateway.later(body=b"1", key=key, headers=tell(hold="run"))
    app.wait_held("run")
    other = gateway.post(key, b"2")
    assert (other.status, other.problem) == (422, "key-reused")
    assert other.json()["title"] == "Idempotency-Key is already used"
    app.release("run")
    assert first.result().status == 201
    assert gateway.post(key, b"1").body == first.result().body
    assert app.count() == 1
    gateway.logged(key=key, verdict="mismatch", status=422)


def test_a_route_may_answer_409_to_a_reused_key(make_gateway):
    # C03
    gateway = make_gateway(locations=guard(
        "/", "idempotency_mismatch_status 409;"))
    key = new_key()
    gateway.post(key, b"1")
    other = gateway.post(key, b"2")
    assert (other.status, other.problem) == (409, "key-reused")


def test_chosen_headers_take_part_and_others_do_not(make_gateway, app):
    # C03
    gateway = make_gateway(locations=guard(
        "/", "idempotency_headers X-Currency Accept;"))
    euro, pound = {"X-Currency": "EUR"}, {"x-currency": "GBP"}
    check_same(gateway, app, [(euro, b"1"), (dict(euro, Foo="1"), b"1")],
               True)
    check_same(gateway, app, [(euro, b"1"), (pound, b"1")], False)
    check_same(gateway, app, [(euro, b"1"), ({}, b"1")], False)


def test_ignored_members_take_no_part(make_gateway, app):
    # C04
    gateway = make_gateway(locations=guard(
        "/", "idempotency_ignore /sent_at /meta/signature;"))

    def body(**members):
        return (JSON, json.dumps(members).encode())

    check_same(gateway, app, [
        body(a=1, sent_at=1, meta={"signature": "x"}),
        body(sent_at=2, a=1, meta={"signature": "y"})], True)
    check_same(gateway, app, [body(a=1, sent_at=1), body(a=2, sent_at=1)],
               False)
    check_same(gateway, app, [body(a=1, meta={"b": 1}),
                              body(a=1, meta={"b": 2})], False)


def test_a_key_may_be_bound_to_a_session(make_gateway, app):
    # C03
    gateway = make_gateway(locations=guard(
        "/", "idempotency_bind $cookie_session;"))
    one, two = {"Cookie": "session=1"}, {"Cookie": "session=2; x=1"}
    check_same(gateway, app, [(one, b"1"),
                              ({"Cookie": "x=2; session=1"}, b"1")], True)
    check_same(gateway, app, [(one, b"1"), (two, b"1")], False)


def test_problem_types_may_have_another_base(make_gateway):
    # C06
    gateway = make_gateway(locations=guard(
        "/", "idempotency_problem_base https://example.org/problems#;"))
    document = gateway.post().json()
    assert document["type"] == "https://example.org/problems#key-missing"
