"""What was guarded, and what was not, by location (C37)."""

import json
import re

import pytest

from support.app import tell
from support.gateway import guard
from support.life import new_key, until

SHOW = "location = /counters { idempotency_counters; }\n"
OPEN = "location /open { proxy_pass http://@APP@; }\n"
PLACES = guard("/") + OPEN + SHOW


@pytest.fixture
def gateway(make_gateway):
    return make_gateway(locations=PLACES)


def show(gateway, query=""):
    answer = gateway.request("GET", "/counters" + query)
    assert answer.status == 200, answer
    assert answer.header("Cache-Control") == "no-store"
    return answer


def counted(gateway, location="/", server=""):
    found = [entry for entry in show(gateway).json()["locations"]
             if (entry["server"], entry["location"]) == (server, location)]
    assert len(found) == 1, (location, show(gateway).json())
    return found[0]


def nonzero(counts):
    return {word: count for word, count in counts.items() if count}


def wait_counts(gateway, location="/", server="", **expected):
    """Requests are counted after their answers: an event nobody announces."""
    def reached():
        entry = counted(gateway, location, server)
        return all(entry[name] == value for name, value in expected.items())
    until(reached)
    entry = counted(gateway, location, server)
    covers = ("guarded", "observed", "refused", "unguarded")
    assert {name: entry[name] for name in covers if entry[name]} == \
        nonzero(expected)
    return entry


# ---- what is counted --------------------------------------------------------

def test_c37_requests_that_no_guard_covers_are_counted(gateway):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert gateway.request(method, "/open/x").status == 201
    entry = wait_counts(gateway, "/open", unguarded=4)
    assert entry["mode"] == "off"
    assert not nonzero(entry["verdicts"]) and not nonzero(entry["outcomes"])


def test_requests_that_change_nothing_are_not_counted(gateway):
    for method in ("GET", "HEAD", "OPTIONS"):
        gateway.request(method, "/open")
        gateway.request(method, "/")
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=1)
    wait_counts(gateway, "/")


def test_guarded_requests_are_counted_by_verdict_and_outcome(gateway):
    key, other = new_key(), new_key()
    gateway.post(key)
    gateway.post(key)
    gateway.post(key, b"other")
    gateway.post()
    gateway.post("a b")
    gateway.post(new_key(), tenant=None)
    gateway.post(other, headers=tell(status=500))
    gateway.post(other, headers=tell(close=True))
    gateway.post(other)
    entry = wait_counts(gateway, guarded=9)
    assert entry["mode"] == "required"
    assert nonzero(entry["verdicts"]) == {
        "new": 3, "replay": 1, "mismatch": 1, "key_missing": 1,
        "key_invalid": 1, "tenant_missing": 1, "uncertain": 1}
    assert nonzero(entry["outcomes"]) == {"kept": 1, "released": 1,
                                          "doubted": 1}


def test_c37_a_method_that_the_guard_leaves_out_is_unguarded(gateway):
    gateway.request("PUT", "/")
    gateway.request("DELETE", "/", key=new_key())
    wait_counts(gateway, unguarded=2)


def test_c37_optional_without_a_key_is_unguarded(make_gateway):
    gateway = make_gateway(locations=guard("/", mode="optional") + SHOW)
    gateway.post()
    gateway.post(new_key())
    entry = wait_counts(gateway, guarded=1, unguarded=1)
    assert nonzero(entry["verdicts"]) == {"new": 1, "passed": 1}


def test_c37_what_is_only_observed_is_not_called_guarded(make_gateway):
    gateway = make_gateway(locations=guard("/", mode="observe") + SHOW)
    key = new_key()
    gateway.post(key)
    gateway.wait_state(key, "completed")
    gateway.post(key)
    gateway.post()
    entry = wait_counts(gateway, observed=2, unguarded=1)
    assert entry["mode"] == "observe"
    assert nonzero(entry["verdicts"]) == {"new": 1, "replay": 1, "passed": 1}


def test_what_ends_before_the_guard_is_not_called_unguarded(make_gateway):
    gateway = make_gateway(locations=guard("/", "deny all;") + guard(
        "/early", "if ($http_x_stop) { return 403; }") + SHOW)
    assert gateway.post(new_key()).status == 403
    assert gateway.post(new_key(), path="/early",
                        headers={"X-Stop": "1"}).status == 403
    wait_counts(gateway, "/", refused=1)
    wait_counts(gateway, "/early", refused=1)


@pytest.mark.parametrize("mode", ["required", "optional", "observe"])
def test_c37_what_return_answers_before_the_guard_is_unguarded(make_gateway,
                                                               mode):
    # C37: unless it refuses, for then nothing was done.
    answers = {"200": "unguarded", "204": "unguarded", "302 /": "unguarded",
               "401": "refused", "403": "refused", "503": "refused"}
    gateway = make_gateway(locations=SHOW + "".join(
        guard("/%s/" % answer[:3], mode=mode, to="return %s;" % answer)
        for answer in answers) + guard(
            "/if/", "if ($http_x_ok) { return 200; }", "return 401;", to=""))
    for answer, cover in answers.items():
        path = "/%s/" % answer[:3]
        assert gateway.post(new_key(), path=path).status == int(answer[:3])
        entry = wait_counts(gateway, path, **{cover: 1})
        assert not nonzero(entry["verdicts"])
    gateway.post(new_key(), path="/if/", headers={"X-Ok": "1"})
    gateway.post(new_key(), path="/if/")
    wait_counts(gateway, "/if/", unguarded=1, refused=1)


def test_requests_that_nobody_can_read_are_no_unguarded_ones(gateway):
    for text in (b"POST /open HTTP/1.1\r\n\r\n",
                 b"POST /open HTTP/1.1\r\nHost: a b\r\n\r\n"):
        sock = gateway.socket()
        sock.sendall(text)
        assert b" 400 " in sock.recv(65536)
        sock.close()
    wait_counts(gateway, "", refused=2)
    wait_counts(gateway, "/open")


# ---- where it is counted ----------------------------------------------------

def test_c37_return_rewrite_and_error_pages_are_counted(make_gateway):
    gateway = make_gateway(locations=OPEN + SHOW + """
        location /return { return 200 "x"; }
        location /rewrite { rewrite ^ /open/y last; }
        location /failing {
            proxy_pass http://@APP@;
            proxy_intercept_errors on;
            error_page 500 /page;
        }
        location /missing { error_page 404 = @app; }
        location @app { proxy_pass http://@APP@; }
        location /try { try_files /nowhere @app; }
        location = /page { return 200 "sorry"; }
    """)
    gateway.request("POST", "/return")
    wait_counts(gateway, "/return", unguarded=1)
    gateway.request("POST", "/rewrite")
    wait_counts(gateway, "/open", unguarded=1)
    wait_counts(gateway, "/rewrite")
    # The page itself is asked for with GET: it changed nothing.
    gateway.request("POST", "/failing", headers=tell(status=500))
    wait_counts(gateway, "/failing", unguarded=1)
    wait_counts(gateway, "= /page")
    # Here the app runs in the named location.
    gateway.request("POST", "/try")
    wait_counts(gateway, "@app", unguarded=1)


def test_a_guarded_request_counts_where_it_was_claimed(make_gateway):
    gateway = make_gateway(locations=SHOW + guard(
        "/", "proxy_intercept_errors on;", "error_page 404 /page;") +
        "location = /page { return 200 sorry; }\n")
    gateway.post(new_key(), headers=tell(status=404))
    entry = wait_counts(gateway, guarded=1)
    assert nonzero(entry["verdicts"]) == {"new": 1}
    wait_counts(gateway, "= /page")


def test_if_and_limit_except_count_with_their_location(make_gateway):
    gateway = make_gateway(server="""
        if ($http_x_server) { return 204; }
    """, locations=SHOW + guard(
        "/", "if ($http_x_if) { set $x 1; }") + """
        location /first { return 200; }
        location /if {
            if ($http_x_if) { return 200 "in"; }
            limit_except GET { allow all; }
            proxy_pass http://@APP@;
        }
    """)
    gateway.request("POST", "/if")
    gateway.request("POST", "/if", headers={"X-If": "1"})
    wait_counts(gateway, "/if", unguarded=2)
    gateway.post(new_key(), headers={"X-If": "1"})
    wait_counts(gateway, "/", guarded=1)
    wait_counts(gateway, "/first")
    gateway.request("POST", "/first", headers={"X-Server": "1"})
    wait_counts(gateway, "", unguarded=1)


def test_every_kind_of_location_is_named_as_it_is_written(make_gateway):
    gateway = make_gateway(server="server_name api.example www.example;",
                           locations=SHOW + r"""
        location = /exact { return 200; }
        location ^~ /prefix { return 200; }
        location ~ \.php$ { return 200; }
        location ~* \.(gif|"png")$ { return 200; }
        location /outer {
            location /outer/inner { return 200; }
            location ~ \.php$ { return 200; }
            return 200;
        }
        location @named { return 200; }
    """)
    for path in ("/exact", "/prefix/x", "/a.php", "/outer/inner",
                 "/outer/b.php", "/outer", "/outer"):
        assert gateway.request("POST", path).status == 200
    counts = {r"= /exact": 1, r"^~ /prefix": 1, r"~ \.php$": 1,
              r"~ \.php$ #2": 1, r'~ \.(gif|"png")$': 0,
              "/outer/inner": 1, "/outer": 2, "@named": 0, "": 0}
    for location, count in counts.items():
        wait_counts(gateway, location, "api.example", unguarded=count)
    shown = [entry["location"] for entry in show(gateway).json()["locations"]]
    assert sorted(shown) == sorted([*counts, "= /counters"])


def test_servers_of_the_same_name_are_told_apart(make_gateway):
    gateway = make_gateway(locations=guard("/") + SHOW, http="""
        server { listen unix:@FOLDER@/t; server_name twin; return 200; }
        server { listen unix:@FOLDER@/u; server_name twin;
                 location / { return 200; } }
        server { listen unix:@FOLDER@/v; server_name twin;
                 location / { return 200; } }
    """)
    shown = [(entry["server"], entry["location"])
             for entry in show(gateway).json()["locations"]]
    assert len(set(shown)) == len(shown)
    assert {("twin", "/"), ("twin", "/ #2"), ("twin", ""), ("twin", " #2"),
            ("twin", " #3")} <= set(shown)


def test_each_worker_counts_into_the_same(make_gateway):
    gateway = make_gateway(locations=PLACES, workers=4)
    for _ in range(60):
        gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=60)


def test_subrequests_are_not_counted(make_gateway):
    gateway = make_gateway(locations=OPEN + SHOW + """
        location /main { mirror /open; proxy_pass http://@APP@; }
    """)
    gateway.request("POST", "/main")
    wait_counts(gateway, "/main", unguarded=1)
    wait_counts(gateway, "/open")


# ---- reload -----------------------------------------------------------------

def reload(gateway, **changes):
    """A reload after which no old worker takes requests."""
    old = gateway.reload(**changes)
    until(lambda: not old & set(gateway.workers()))


def many(count):
    return "".join("location /many/%d { return 200; }\n" % number
                   for number in range(count))


def test_counts_survive_a_reload(gateway):
    gateway.post(new_key())
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=1)
    reload(gateway)
    wait_counts(gateway, "/", guarded=1)
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=2)


@pytest.mark.parametrize("counts", [(5, 0), (500, 3), (1000, 2000, 1)])
def test_counts_survive_locations_that_come_and_go(gateway, counts):
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=1)
    for number, count in enumerate(counts, 2):
        reload(gateway, locations=many(count) + PLACES)
        entries = show(gateway).json()["locations"]
        assert len(entries) == count + 4
        gateway.request("POST", "/open")
        wait_counts(gateway, "/open", unguarded=number)
        if count:
            last = "/many/%d" % (count - 1)
            gateway.request("POST", last)
            wait_counts(gateway, last, unguarded=1)
    reload(gateway, locations=PLACES)
    wait_counts(gateway, "/open", unguarded=len(counts) + 1)


def test_a_location_that_comes_back_finds_its_counts(gateway):
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=1)
    reload(gateway, locations=guard("/") + SHOW)
    reload(gateway, locations=PLACES)
    wait_counts(gateway, "/open", unguarded=1)


def test_an_old_worker_counts_until_it_is_gone(gateway, app):
    running = gateway.later("POST", "/open", headers=tell(hold="it"))
    app.wait_held("it")
    reload(gateway, locations=many(3) + PLACES)
    wait_counts(gateway, "/open")
    app.release("it")
    assert running.result().status == 201
    wait_counts(gateway, "/open", unguarded=1)


def test_a_reload_that_fails_changes_nothing(gateway):
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=1)
    gateway.allow(r"\[emerg\]")
    lines = len(gateway.log())
    gateway.config_file.write_text(gateway.config().replace(
        "location /open", many(2000) + "proxy_nonsense; location /open"))
    gateway.process.send_signal(1)
    gateway.wait_for_log("proxy_nonsense", since=lines)
    for pid in gateway.workers():
        gateway.kill_worker(pid)
    until(lambda: len(gateway.workers()) == gateway.worker_count
          and not set(gateway.workers()) & gateway.killed)
    gateway.request("POST", "/open")
    wait_counts(gateway, "/open", unguarded=2)


# ---- how it is shown --------------------------------------------------------

def test_the_text_form_is_what_prometheus_reads(make_gateway):
    gateway = make_gateway(server=r'server_name "~^a\"b\\c$";', locations=
                           guard("/") + SHOW + "location '/q\"\\\\\t\xff' "
                           "{ return 200; }\nlocation /open { return 200; }")
    gateway.request("POST", "/open")
    gateway.post(new_key())
    wait = [entry["server"] for entry in show(gateway).json()["locations"]][0]
    wait_counts(gateway, "/open", wait, unguarded=1)
    wait_counts(gateway, "/", wait, guarded=1)
    answer = show(gateway, "?format=prometheus")
    assert answer.header("Content-Type") == \
        "text/plain; version=0.0.4; charset=utf-8"
    samples = parse(answer.body.decode("utf-8"))
    assert samples["latchkey_gateway_unguarded_total",
                   ("server", wait), ("location", "/open")] == 1
    assert samples["latchkey_gateway_requests_total", ("server", wait),
                   ("location", "/"), ("verdict", "new")] == 1
    assert samples["latchkey_gateway_outcomes_total", ("server", wait),
                   ("location", "/"), ("outcome", "kept")] == 1
    assert samples["latchkey_gateway_location_info", ("server", wait),
                   ("location", "/"), ("mode", "required")] == 1
    # Guarded places have all their series from the start.
    assert samples["latchkey_gateway_requests_total", ("server", wait),
                   ("location", "/"), ("verdict", "replay")] == 0


def parse(text):
    """Samples by name and labels, read as strictly as the format is."""
    assert text.endswith("\n")
    samples, typed, current = {}, set(), None
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            word, name = line.split(" ")[1:3]
            assert word in ("HELP", "TYPE")
            if word == "TYPE":
                assert name not in typed
                typed.add(name)
                current = name
            continue
        name, labels, value = re.fullmatch(
            r"([a-z_]+)\{(.*)\} ([0-9]+)", line).groups()
        assert name == current
        pairs = re.findall(r'([a-z]+)="((?:[^"\\]|\\["\\n])*)"', labels)
        assert ",".join('%s="%s"' % pair for pair in pairs) == labels
        key = (name, *[(label, re.sub(
            r"\\(.)", lambda found: found[1].replace("n", "\n"), text))
            for label, text in pairs])
        assert key not in samples
        samples[key] = int(value)
    return samples


def test_names_cannot_leave_their_strings(make_gateway):
    gateway = make_gateway(locations=SHOW +
                           'location "/a\\"},{\\n" { return 200; }\n'
                           "location '/b\"\\\\' { return 200; }\n")
    document = json.loads(show(gateway).body)
    assert len(document["locations"]) == 4
    assert len(parse(show(gateway, "?format=prometheus").body.decode())) > 4


def test_another_format_is_refused(gateway):
    answer = gateway.request("GET", "/counters?format=xml")
    assert (answer.status, answer.problem) == (400, "query-invalid")
    assert show(gateway, "?format=json").json() == show(gateway).json()


def test_only_get_and_head_show(gateway):
    answer = gateway.request("POST", "/counters")
    assert answer.status == 405 and answer.header("Allow") == "GET, HEAD"
    head = gateway.request("HEAD", "/counters")
    assert (head.status, head.body) == (200, b"")


# ---- variables --------------------------------------------------------------

def test_variables_tell_what_was_decided(gateway):
    key = new_key()
    first = gateway.post(key)
    gateway.post(key)
    new = gateway.logged(key=key, verdict="new")[0]
    assert (new["outcome"], new["attempt"], new["tenant"]) == ("kept", "1",
                                                               "acme")
    assert new["reference"] == first.reference
    assert re.fullmatch(r"\d+\.\d{3}", new["wait_time"])
    replay = gateway.logged(key=key, verdict="replay")[0]
    assert (replay["outcome"], replay["reference"]) == ("", first.reference)


def test_variables_are_empty_where_nothing_is_guarded(gateway):
    gateway.request("POST", "/open")
    entry = gateway.logged(uri="/open")[0]
    assert [entry[name] for name in ("verdict", "outcome", "reference",
                                     "attempt", "wait_time", "tenant")] == \
        [""] * 6


def test_variables_survive_an_error_page(make_gateway):
    gateway = make_gateway(locations=guard(
        "/", "proxy_intercept_errors on;", "error_page 404 /page;") +
        "location = /page { return 200 sorry; }\n")
    key = new_key()
    gateway.post(key, headers=tell(status=404))
    assert gateway.logged(key=key)[0]["verdict"] == "new"
