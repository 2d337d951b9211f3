"""latchkey up: one command from an app to a gateway before it."""

import fcntl
import http.server
import os
import pty
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import termios
import threading

import pytest

from support import build
from support.app import tell
from support.gateway import MODULE
from support.life import until
from support.service import free_port, release_port
from support.up import Up, is_gone

REFERENCE = re.compile(r"[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}$")


@pytest.fixture
def make_up(app):
    """Starts any number: make_up("--mode", "required"), before the app."""
    made = []

    def make(*arguments, start=True, upstream=None, **options):
        up = Up(upstream or "http://" + app.address, *arguments, **options)
        made.append(up)
        return up.start() if start else up

    yield make
    errors = []
    for up in made:
        try:
            up.finish()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


def later(function, *args, **more):
    """Runs it beside the test; the result comes from the answer's call."""
    result = []
    thread = threading.Thread(
        target=lambda: result.append(function(*args, **more)))
    thread.start()

    def answer():
        thread.join(60 * build.patience())
        return result[0]

    return answer


# ---- a first try ----


def test_the_curl_line_works_as_printed_and_again_is_a_replay_C02(make_up,
                                                                  app):
    up = make_up()
    answers = [subprocess.run([*up.curl_line(), "-s"], capture_output=True,
                              timeout=60).stdout for _ in range(2)]
    assert answers[0].startswith(b"HTTP/1.1 201"), answers[0]
    assert b"Idempotent-Replayed: true" in answers[1]
    assert answers[0].split(b"\r\n\r\n")[1] == answers[1].split(b"\r\n\r\n")[1]
    assert app.count() == 1


def test_the_curl_line_goes_to_the_path_that_is_given(make_up, app):
    up = make_up("--path", "/orders")
    assert up.curl_line()[2].endswith("/orders")
    assert not any("In place of /" in line for line in up.out)
    assert any("In place of /" in line for line in make_up().out)


@pytest.mark.parametrize("tenant, source", [
    ("$http_x_api_key", ("header", "X-Api-Key", "demo")),
    ("acct-${http_x_account}", ("header", "X-Account", "demo")),
    ("$cookie_session", ("header", "Cookie", "session=demo")),
    ("$arg_account", ("target", "account=demo", None)),
    ("$http_x_a$http_x_b", ("header", "X-B", "demo")),
    ("everybody", None),
])
def test_the_curl_line_brings_what_the_tenant_needs(make_up, app, tenant,
                                                    source):
    up = make_up("--tenant", tenant)
    answer = subprocess.run([*up.curl_line(), "-s"], capture_output=True,
                            timeout=60).stdout
    assert answer.startswith(b"HTTP/1.1 201"), answer
    if source and source[0] == "header":
        assert app.last.header(source[1]) == source[2]
    elif source:
        assert source[1] in app.last.target


def test_it_says_how_callers_are_told_apart_C15(make_up, app):
    up = make_up()
    assert any("Authorization" in line and "hash" in line for line in up.out)
    refused = up.post("/pay", key="k1", caller=None)
    assert refused.problem == "tenant-missing"
    assert app.count() == 0
    assert up.post("/pay", key="k1", caller="Bearer a").status == 201
    assert up.post("/pay", key="k1", caller="Bearer b").status == 201
    by_key = up.post("/pay", key="k1", caller=None, **{"X-Api-Key": "c"})
    assert by_key.status == 201 and not by_key.replayed
    assert app.count() == 3


def test_operators_can_look_with_the_line_that_is_printed_C35(make_up):
    up = make_up("--tenant", "$http_x_api_key", "--tenant-plain")
    reference = up.post("/pay", key="k1", **{"X-Api-Key": "acme"}).reference
    assert reference in up.look().stdout
    evicted = up.look("evict", "acme", "POST /pay", "k1", "--why", "test")
    assert evicted.returncode == 0, evicted
    assert max(map(len, up.out)) <= 80, up.text()


def test_the_tool_finds_it_by_a_profile_while_it_runs_C35(make_up):
    up = make_up()
    name = "up-%d" % up.port
    running = up.folder / ".local/state/latchkey/running"
    assert [path.name for path in running.iterdir()] == [name]
    if not os.path.exists("/run/latchkey/latchkeyd.sock"):
        assert up.look_line()[1:] == ["list"]
    other = make_up(folder=up.folder, dir=False)  # the same home
    named = "up-%d" % other.port
    assert other.look_line()[1:] == ["list", "--profile", named]
    one = other.post("/pay", key="k1").reference
    assert one in other.look().stdout
    assert one not in other.look("list", "--profile", name).stdout
    other.stop()
    assert not (running / named).is_symlink()
    up.process.kill()
    up.wait()
    assert (running / name).is_symlink()  # left, and not believed
    until(lambda: refuses(str(up.dir / "latchkeyd.sock")))
    result = up.look("ping", "--profile", name)
    assert result.returncode == 2 and "no such latchkey up" in result.stderr
    again = make_up(folder=up.folder, port=up.port)
    assert again.look("ping", "--profile", name).returncode == 0


def test_without_a_home_the_line_for_operators_is_a_whole_one(make_up):
    up = make_up(start=False)
    (up.folder / ".local").write_text("in the way")
    up.start()
    reference = up.post("/pay", key="k1").reference
    assert "unix:%s/latchkeyd.sock" % up.dir in up.look_line()
    assert reference in up.look().stdout


def test_the_line_for_operators_names_a_program_that_is_there(make_up):
    up = make_up()
    assert up.look_line()[0] == str(build.BUILD / "latchkey")
    path = "%s:%s" % (build.BUILD.resolve(), os.environ["PATH"])
    by_name = make_up(env={"PATH": path})
    assert by_name.look_line()[0] == "latchkey"
    other = by_name.folder / "bin"  # a namesake is not meant
    other.mkdir()
    (other / "latchkey").write_text("#!/bin/sh\n")
    (other / "latchkey").chmod(0o755)
    third = make_up(env={"PATH": "%s:%s" % (other, path)})
    assert third.look_line()[0] == str(build.BUILD / "latchkey")


# ---- the app ----


class LateApp:
    """An app at a fixed address that comes and goes."""

    def __init__(self, port, host="127.0.0.1"):
        self.server = http.server.ThreadingHTTPServer((host, port), Created)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Created(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_an_app_that_is_missing_is_noticed_and_so_is_its_coming(make_up):
    port = free_port()
    up = make_up(upstream=str(port))
    missing = up.wait_for("no app listens")[0]
    assert "http://localhost:%d" % port in missing
    assert "refused" in missing and len(missing) <= 80
    assert len(up.wait_for("another --upstream")[0]) <= 80
    assert up.post("/pay", key="k1").status == 502
    app = LateApp(port)
    up.wait_for("is there now")
    assert up.post("/pay", key="k1").status == 201
    app.stop()
    assert up.post("/pay", key="k2").status == 502
    up.wait_for("no app listens", 2)
    release_port(port)


def test_an_app_that_is_there_is_not_mentioned(make_up):
    up = make_up()
    assert up.post("/pay", key="k1").status == 201
    up.stop()
    assert "app at" not in up.text() and "no app" not in up.text()


@pytest.mark.parametrize("form", ["%d", ":%d", "localhost:%d", "127.0.0.1:%d",
                                  "http://localhost:%d",
                                  "http://localhost:%d/"])
def test_an_app_is_named_as_people_do(form):
    port = free_port()
    printed = print_config("--upstream", form % port)
    assert printed.returncode == 0, printed.stderr
    assert "proxy_pass http://127.0.0.1:%d;" % port in printed.stdout
    release_port(port)


def test_localhost_is_where_the_app_listens(make_up):
    port = free_port()
    up = make_up(upstream="localhost:%d" % port)
    up.wait_for("no app listens")
    try:
        app = LateApp6(port)
    except OSError:
        pytest.skip("there is no IPv6 here")
    up.wait_for(r"\[::1\]:%d, not at 127.0.0.1.*start latchkey up again" % port)
    printed = print_config("--upstream", str(port))
    assert "proxy_pass http://[::1]:%d;" % port in printed.stdout
    app.stop()
    release_port(port)


class LateApp6(LateApp):
    def __init__(self, port):
        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6

        self.server = Server(("::1", port), Created)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


# ---- asynchronous requests and other stores ----


@pytest.mark.parametrize("url", ["http", "fastcgi"])
def test_async_shows_202_and_the_answer_later_C31(make_up, app, url):
    up = make_up("--async", upstream="%s://%s" % (
        url, app.address if url == "http" else app.listen(url)))
    assert any("respond-async" in line for line in up.out)
    later = up.post("/pay", key="k1", Prefer="respond-async")
    assert later.status == 202, up.text()
    place = later.header("Location")
    me = {"Authorization": "Bearer me"}
    until(lambda: up.ask("GET", place, me).status == 201)
    assert up.ask("GET", place, {"Authorization": "Bearer you"}).status == 404
    assert up.post("/pay", key="k1").status == 201
    assert app.count() == 1
    assert up.requests("/pay")[0][2:4] == ["202", "accepted"]
    up.process.kill()  # its sockets are in nobody's way
    up.wait()
    until(lambda: refuses(str(up.dir / "latchkeyd.sock")))
    again = make_up("--async", folder=up.folder)
    assert again.post("/pay", key="k2", Prefer="respond-async").status == 202


@pytest.mark.parametrize("arguments, text", [
    (("--async", "--mode", "observe"), "observe"),
    (("--async", "--store", "redis://127.0.0.1:6379"), "sqlite: or postgres:"),
    (("--store", "mysql://x"), "postgres://"),
    (("--store", "postgres://x\n"), "postgres://"),
    (("--store", "sqlite:"), "a path"),
])
def test_what_does_not_go_together_is_refused(arguments, text):
    printed = print_config("--upstream", "3000", *arguments)
    assert printed.returncode == 2 and printed.stdout == "", printed
    assert text in printed.stderr


def test_answers_may_be_in_redis(make_up, app, redis_server):
    up = make_up("--store", redis_server.url())
    assert up.post("/pay", key="k1").status == 201
    assert up.post("/pay", key="k1").replayed and app.count() == 1
    assert (up.dir / "tenants.secret").exists()
    assert not (up.dir / "latchkey.db").exists()


def test_answers_may_be_in_postgres_which_is_migrated_when_asked(make_up, app,
                                                                 postgres):
    url = postgres.create_database()
    without = make_up("--store", url)
    without.wait_for("latchkey up does that with --migrate")
    assert without.post("/pay", key="k1").status == 503
    up = make_up("--store", url.replace("@", ":s3cret@", 1), "--migrate")
    assert up.post("/pay", key="k1").status == 201
    assert up.post("/pay", key="k1").replayed and app.count() == 1
    assert any("postgres" in line and "store " in line for line in up.out)
    assert "s3cret" not in up.text()
    up.stop()
    again = make_up("--store", url, folder=up.folder)
    assert again.post("/pay", key="k1").replayed


# ---- what it shows ----


def test_a_request_without_a_caller_gets_a_hint_once(make_up):
    up = make_up("--mode", "required")
    for key in ("k1", "k2", None):
        assert up.post("/pay", key=key, caller=None).status == 400
    up.requests("/pay", 3)
    hints = up.wait_for(r"^  \^ ", 2)
    assert len(hints) == 2, hints
    up.wait_for("^    -H 'Authorization: Bearer demo', or ")
    assert "Idempotency-Key" in hints[1]
    assert [line for line in up.out[up.out.index(hints[0]):]
            if len(line) > 80] == []
    other = make_up("--tenant", "$http_x_api_key")
    other.post("/pay", key="k1")
    assert "$http_x_api_key" in other.wait_for(r"^  \^ ")[0]


def test_of_the_daemon_only_warnings_are_shown_while_all_is_well(make_up):
    up = make_up()
    assert up.post("/pay", key="k1").status == 201
    up.stop()
    assert not any("level=info" in line for line in up.err), up.err
    assert not any(line.startswith("latchkeyd: ") for line in up.out), up.out


def test_what_the_daemon_said_is_shown_when_it_fails(make_up):
    up = make_up()
    os.kill(up.children()["latchkeyd"], signal.SIGKILL)
    assert up.wait() == 5
    assert any("event=listening" in line for line in up.err), up.err
    warned = make_up(start=False)
    daemon = warned.folder / "daemon"
    daemon.write_text(
        "#!/bin/sh\necho time=1 level=info event=first x=1 >&2\n"
        "echo time=2 level=warn event=second x=1 >&2\nexit 7\n")
    daemon.chmod(0o755)
    warned.env["LATCHKEYD"] = str(daemon)
    assert warned.run() == 5
    assert [line.split(" x=")[0] for line in warned.err[:2]] == [
        "latchkeyd: time=1 level=info event=first",
        "latchkeyd: time=2 level=warn event=second"]
    assert "exit status 7" in warned.err[2]


def test_warnings_of_the_daemon_and_what_is_no_log_line_are_shown(make_up):
    up = make_up(start=False)
    daemon = up.folder / "daemon"
    daemon.write_text("#!/bin/sh\necho time=1 level=warn event=early >&2\n"
                      "echo something else >&2\nexec %s \"$@\"\n"
                      % (build.BUILD / "latchkeyd").resolve())
    daemon.chmod(0o755)
    up.env["LATCHKEYD"] = str(daemon)
    up.start()
    assert [line for line in up.err if line.startswith("latchkeyd: ")] == [
        "latchkeyd: time=1 level=warn event=early",
        "latchkeyd: something else"]


def test_each_request_is_shown_with_its_verdict(make_up, app):
    up = make_up("--mode", "required")
    asked = [
        lambda: up.post("/pay", key="k1"),
        lambda: up.post("/pay", key="k1"),
        lambda: up.post("/pay", key="k1", body=b'{"a":1}'),
        lambda: up.post("/pay"),
        lambda: up.post("/pay", key="k2", caller=None),
        lambda: up.post("/pay", key="k3", **tell(status=500)),
        lambda: up.ask("GET", "/pay"),
    ]
    answers = []
    for number, ask in enumerate(asked, 1):
        answers.append(ask())
        # An answer may be there before its line, and workers differ.
        lines = up.requests("/pay", number)
    first = answers[0]
    shown = [(line[1], line[2], line[3]) for line in lines]
    assert shown == [("POST", "201", "new"), ("POST", "201", "replay"),
                     ("POST", "422", "mismatch"),
                     ("POST", "400", "key_missing"),
                     ("POST", "400", "tenant_missing"),
                     ("POST", "500", "new"), ("GET", "201", "-")]
    assert [lines[0][4], lines[5][4]] == ["kept", "released"]
    assert first.reference in lines[0] and first.reference in lines[1]
    assert REFERENCE.match(lines[0][5])
    assert all(line[-2] == "ms" for line in lines), lines


def test_text_from_outside_is_escaped_and_queries_are_not_shown(make_up):
    up = make_up()
    up.post("/pay?token=s3cret")
    up.requests("/pay?...")
    up.ask("GET", b"/a\xc2\x9b31m\xe2\x80\xaeb\xff")
    up.wait_for(r"/a\\xc2\\x9b31m\\xe2\\x80\\xaeb\\xff$")
    up.ask("A" * 500, b"/odd")
    up.wait_for(r" A{15}\u2026 .* /odd$")  # nor does it spread the columns
    up.stop()
    assert "s3cret" not in up.text()
    assert "\x1b" not in up.text() and "\x9b" not in up.text()


@pytest.mark.parametrize("env, coloured", [
    ({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_that_want_it(make_up, env, coloured):
    master, slave = pty.openpty()
    up = make_up(start=False, terminal=slave, env=env).launch()
    os.close(slave)
    seen = b""
    try:
        while b"Ctrl-C stops it" not in seen:
            seen += os.read(master, 65536)
        up.post("/pay", key="k1")
        while b"/pay\r\n" not in seen:
            seen += os.read(master, 65536)
    finally:
        up.process.send_signal(signal.SIGTERM)
        up.wait()
        os.close(master)
    assert (b"\x1b[32mnew kept" in seen) == coloured, seen


def test_a_terminal_of_80_columns_wraps_nothing(make_up):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    up = make_up(start=False, terminal=slave, env={"NO_COLOR": "1"}).launch()
    os.close(slave)
    seen = b""
    try:
        while b"Ctrl-C stops it" not in seen:
            seen += os.read(master, 65536)
        up.post("/customers/42/orders/4711/payments", key="k1")
        while "…\r\n".encode() not in seen:
            seen += os.read(master, 65536)
    finally:
        up.process.send_signal(signal.SIGTERM)
        up.wait()
        os.close(master)
    lines = seen.decode().splitlines()
    assert any("/customers/" in line for line in lines)
    assert max(map(len, lines)) <= 80, "\n".join(lines)


def test_a_reader_that_stands_still_holds_up_nobody(make_up):
    reading, writing = os.pipe()
    up = make_up(start=False, stdout=writing).launch()
    try:
        os.close(writing)
        until(lambda: (up.dir / "nginx.pid").exists())
        for _ in range(300):  # more than fits into a pipe
            assert up.ask("GET", "/" + "a" * 1000).status == 201
        up.stop(signal.SIGTERM)
    finally:
        os.close(reading)


def test_a_reader_that_leaves_ends_it(make_up):
    reading, writing = os.pipe()
    up = make_up(start=False, stdout=writing).launch()
    os.close(writing)
    until(lambda: (up.dir / "nginx.pid").exists())
    pids = up.descendants()
    os.close(reading)
    up.ask("GET", "/x")
    assert up.wait() == 5
    assert is_gone(pids)


# ---- modes and apps ----


def test_without_a_key_optional_passes_and_required_refuses_C06(make_up, app):
    up = make_up()
    assert up.post("/pay", caller=None).status == 201
    assert up.requests("/pay")[0][3] == "passed"
    strict = make_up("--mode", "required")
    assert strict.post("/pay").problem == "key-missing"
    assert app.count() == 1


def test_observe_changes_nothing_and_shows_what_it_would_do_C43(make_up, app):
    up = make_up("--mode", "observe")
    for number in (1, 2):
        assert not up.post("/pay", key="k1").replayed
        up.requests("/pay", number)
        until(lambda: "completed" in up.look().stdout)
    assert app.count() == 2
    assert [line[3] for line in up.requests("/pay", 2)] == ["new", "replay"]


@pytest.mark.parametrize("protocol", ["fastcgi", "uwsgi", "scgi"])
def test_apps_behind_other_protocols_C02(make_up, app, protocol):
    url = "%s://%s" % (protocol, app.listen(protocol))
    up = make_up(upstream=url)
    first = up.post("/pay?a=1", key="k1", body=b'{"n":1}')
    again = up.post("/pay?a=1", key="k1", body=b'{"n":1}')
    assert first.status == 201 and again.replayed and again.body == first.body
    assert app.count() == 1
    assert app.last.body == b'{"n":1}'
    assert app.last.params["PATH_INFO"] == "/pay"
    assert app.last.params["QUERY_STRING"] == "a=1"


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_a_script_of_fastcgi_is_named(make_up, app, kind):
    if kind == "port":
        url = "fastcgi://%s/srv/www/index.php" % app.listen("fastcgi")
    else:
        path = make_up(start=False).folder / "php.sock"
        url = "fastcgi://%s:/srv/www/index.php" % app.listen_at("fastcgi",
                                                                path)
    up = make_up(upstream=url)
    assert up.post("/pay", key="k1").status == 201
    assert up.post("/pay", key="k1").replayed and app.count() == 1
    assert app.last.params["SCRIPT_FILENAME"] == "/srv/www/index.php"
    assert app.last.params["SCRIPT_NAME"] == "/index.php"
    assert app.last.params["DOCUMENT_ROOT"] == "/srv/www"


@pytest.mark.parametrize("prefix, target", [
    ("", "/a%2Fb?x=1"), ("/", "/a%2Fb?x=1"), ("/api/v1", "/api/v1/pay"),
    ("/api/", "/api/pay")])
def test_the_path_of_the_app_is_put_before(make_up, app, prefix, target):
    up = make_up(upstream="http://%s%s" % (app.address, prefix))
    sent = target if len(prefix) < 2 else "/pay"
    assert up.post(sent, key="k1").status == 201
    assert app.last.target == target


def test_the_path_of_an_app_on_a_unix_socket_is_put_before(make_up, app):
    path = make_up(start=False).folder / "app.sock"
    up = make_up(upstream=app.listen_at("http", path) + ":/api/v1")
    assert up.post("/pay?a=1", key="k1").status == 201
    assert app.last.target == "/api/v1/pay?a=1"


def test_unix_sockets_on_both_sides(make_up, app):
    """The gateway of the first is the app of the second."""
    folder = make_up(start=False).folder
    front = "unix:%s/front" % folder
    up = make_up(listen=front)
    second = make_up(upstream=front)
    assert second.post("/pay", key="k1").status == 201, up.text()
    assert subprocess.run([*up.curl_line(), "-s"], capture_output=True,
                          timeout=60).stdout.startswith(b"HTTP/1.1 201")
    assert app.count() == 2
    up.process.kill()
    up.wait()
    until(lambda: refuses(front[5:]))
    again = make_up(listen=front)  # what a killed one has left is no obstacle
    assert again.post("/pay", key="k2").status == 201, again.text()


def refuses(path):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return True
    return False


def test_what_the_app_receives(make_up, app):
    up = make_up()
    reference = up.post("/pay", key="k1", **{"Latchkey-Token": "7"}).reference
    assert app.last.header("Latchkey-Reference") == reference
    assert app.last.header("Latchkey-Token") != "7"
    assert app.last.header("Host") == "localhost"
    assert app.last.header("X-Forwarded-For") == "127.0.0.1"


# ---- the folder ----


def test_answers_survive_a_restart(make_up, app):
    up = make_up()
    first = up.post("/pay", key="k1")
    up.stop()
    again = make_up(folder=up.folder)
    second = again.post("/pay", key="k1")
    assert second.replayed and second.body == first.body
    assert second.reference == first.reference
    assert app.count() == 1


def test_the_folder_is_private_and_by_the_port(make_up):
    up = make_up(dir=False)
    folder = up.folder / ".local/state/latchkey" / ("up-%d" % up.port)
    for path in (folder, *folder.iterdir()):
        if not path.is_socket():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    other = make_up(dir=False, env={"XDG_STATE_HOME": str(up.folder / "x")})
    folder = up.folder / "x/latchkey" / ("up-%d" % other.port)
    assert (folder / "latchkey.db").exists()


def test_what_only_a_running_one_needs_is_removed(make_up):
    up = make_up()
    assert (up.dir / "latchkeyd.sock").exists()
    up.stop()
    left = {path.name for path in up.dir.iterdir()}
    assert {"latchkey.db", "latchkey.db.secret", "nginx.conf"} <= left
    assert not left & {"latchkeyd.sock", "nginx.pid", "requests.log",
                       "nginx.log", "latchkeyd.log", "tmp"}


def test_credentials_are_stored_as_hashes_unless_told_otherwise(make_up):
    up = make_up()
    up.post("/pay", key="k1", caller="Bearer s3cret-credential")
    stored = b"".join(path.read_bytes() for path in up.dir.glob("latchkey.db*"))
    assert b"s3cret-credential" not in stored
    plain = make_up("--tenant-plain")
    plain.post("/pay", key="k1", caller="Bearer s3cret-credential")
    stored = b"".join(path.read_bytes()
                      for path in plain.dir.glob("latchkey.db*"))
    assert b"s3cret-credential" in stored


def test_a_store_elsewhere_has_its_secret_beside_it(make_up, app):
    up = make_up(start=False)
    up.arguments += ["--store", "sqlite:%s/my answers.db" % up.folder]
    up.start()
    first = up.post("/pay", key="k1")
    up.stop()
    assert (up.folder / "my answers.db.secret").stat().st_size >= 16
    shutil.rmtree(up.dir)
    again = make_up(*up.arguments[-2:], folder=up.folder)
    assert again.post("/pay", key="k1").reference == first.reference
    assert app.count() == 1


def test_a_secret_that_is_gone_is_not_made_anew(make_up, app):
    up = make_up()
    up.post("/pay", key="k1")
    up.stop()
    (up.dir / "latchkey.db.secret").unlink()
    again = make_up(start=False, folder=up.folder)
    assert again.run() == 5
    assert "latchkey.db.secret" in again.err[-1]
    assert not (up.dir / "latchkey.db.secret").exists()


def test_it_needs_no_root(make_up, app):
    if os.geteuid() != 0:
        pytest.skip("the other tests show it")
    up = make_up(start=False)
    programs = up.folder / "bin"
    programs.mkdir()
    for name in ("latchkey", "latchkeyd", MODULE):
        shutil.copy2(build.BUILD / name, programs / name)
    up.folder.chmod(0o755)
    up.dir.mkdir(mode=0o700)
    os.chown(up.dir, 65534, 65534)
    up.build, up.user = programs, 65534
    up.start()
    assert not any("user root" in line for line in
                   (up.dir / "nginx.conf").read_text().splitlines())
    body = b"x" * 300000  # does not fit into nginx's memory
    assert up.post("/pay", key="k1", body=body).status == 201
    assert up.post("/pay", key="k1", body=body).replayed


# ---- the end ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGHUP])
def test_a_signal_stops_both(make_up, number):
    up = make_up()
    until(lambda: len(up.descendants()) >= 4)  # nginx forks its workers late
    pids = up.descendants()
    up.stop(number)
    assert is_gone(pids)


def test_what_is_under_way_is_answered_and_stored_first_C40(make_up, app):
    up = make_up()
    answer = later(up.post, "/pay", key="k1", **tell(hold="door"))
    app.wait_held("door")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("in progress")
    until(lambda: refuses_port(up.port))
    app.release("door")
    first = answer()
    assert first.status == 201
    assert up.wait() == 0
    assert up.requests("/pay")[0][3:5] == ["new", "kept"]
    again = make_up(folder=up.folder)
    assert again.post("/pay", key="k1").body == first.body
    assert app.count() == 1


def refuses_port(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_a_second_signal_does_not_wait(make_up, app):
    up = make_up()
    answer = later(lambda: cut(up.post, "/pay", key="k1",
                               **tell(hold="door")))
    app.wait_held("door")
    pids = up.descendants()
    up.process.send_signal(signal.SIGINT)
    up.wait_for("in progress")
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 0
    assert is_gone(pids)
    answer()


def cut(function, *args, **more):
    try:
        return function(*args, **more)
    except Exception:
        return None


@pytest.mark.parametrize("name", ["latchkeyd", "nginx"])
def test_it_fails_when_a_child_dies_and_stops_the_other(make_up, name):
    up = make_up()
    pids = up.descendants()
    os.kill(up.children()[name], signal.SIGKILL)
    assert up.wait() == 5
    assert any(re.search("%s has ended unexpectedly.*signal 9" % name, line)
               for line in up.err), up.text()
    until(lambda: is_gone(pids))


def test_children_do_not_outlive_it(make_up):
    up = make_up()
    pids = up.descendants()
    up.process.kill()
    up.wait()
    until(lambda: is_gone(pids))
    make_up(folder=up.folder, port=up.port)


# ---- what can go wrong at the start ----


def test_an_address_in_use_is_named(make_up, app):
    port = int(app.address.split(":")[1])
    up = make_up(start=False, upstream="http://127.0.0.1:9", port=port)
    assert up.run() == 5
    assert "127.0.0.1:%d is in use" % port in up.err[-1]


def test_a_second_one_in_the_same_folder_is_refused(make_up):
    up = make_up()
    second = make_up(start=False, folder=up.folder)
    assert second.run() == 5
    assert "process %d" % up.process.pid in second.err[-1]
    assert up.post("/pay", key="k1").status == 201


def test_a_store_in_use_is_told_by_the_daemon(make_up):
    up = make_up()
    second = make_up("--store", "sqlite:%s/latchkey.db" % up.dir, start=False)
    assert second.run() == 5
    assert any(line.startswith("latchkeyd: ") and "store-failed" in line
               for line in second.err), second.err
    assert "latchkeyd could not start" in second.err[-1]
    assert up.post("/pay", key="k1").status == 201


@pytest.mark.parametrize("variable, text", [
    ("LATCHKEYD", "latchkeyd"), ("LATCHKEY_NGINX", "nginx"),
    ("LATCHKEY_MODULE", MODULE)])
def test_what_is_missing_is_named(make_up, variable, text):
    up = make_up(start=False, env={variable: "/nonexistent/thing"})
    assert up.run() == 5
    assert text in up.err[-1] and variable in up.err[-1]
    assert not up.dir.exists()


@pytest.mark.skipif(
    any(os.path.exists(path) for path in
        ("/usr/sbin/latchkeyd", "/usr/local/sbin/latchkeyd",
         "/usr/lib/nginx/modules/" + MODULE,
         "/usr/local/lib/nginx/modules/" + MODULE)),
    reason="Latchkey is installed")
def test_all_that_is_missing_is_named_with_its_cure(make_up):
    up = make_up(start=False, env={"PATH": "/usr/bin"})
    alone = up.folder / "bin"
    alone.mkdir()
    shutil.copy2(build.BUILD / "latchkey", alone)
    up.build = alone
    up.env["LATCHKEY_NGINX"] = shutil.which("nginx", path="/usr/sbin") or ""
    assert up.run() == 5
    assert re.search("cannot find latchkeyd: .*make install", up.err[-2])
    assert re.search("cannot find .*%s: sudo apt-get install nginx-dev"
                     % MODULE, up.err[-1])


def test_a_module_that_is_none_is_told_by_nginx(make_up):
    up = make_up(start=False)
    wrong = up.folder / "wrong.so"
    wrong.write_text("this is no module")
    up.env["LATCHKEY_MODULE"] = str(wrong)
    assert up.run() == 5
    assert any(line.startswith("nginx: ") and "wrong.so" in line
               for line in up.err), up.err
    assert "nginx could not start" in up.text()


@pytest.mark.parametrize("arguments, text", [
    (("--tenant", "$no_such_variable"), "no_such_variable"),
    (("--upstream", "http://no-such-host.invalid:80"),
     "no-such-host.invalid"),
])
def test_what_nginx_refuses_is_told_in_its_words(make_up, arguments, text):
    up = make_up(*arguments, start=False)
    assert up.run() == 5
    assert any(line.startswith("nginx: ") and text in line
               for line in up.err), up.err


def test_a_folder_that_others_may_enter_is_refused(make_up):
    up = make_up(start=False)
    up.dir.mkdir(mode=0o755)
    assert up.run() == 5
    assert "chmod 700" in up.err[-1]
    assert list(up.dir.iterdir()) == []


def test_a_folder_that_is_too_deep_is_refused(make_up):
    up = make_up(start=False)
    up.arguments += ["--dir", str(up.folder / ("d" * 100))]
    assert up.run() == 2
    assert "shorter --dir" in up.err[-1]


# ---- --print-config ----


def print_config(*arguments, env=None):
    return subprocess.run(
        [str(build.BUILD / "latchkey"), "up", *arguments, "--print-config"],
        capture_output=True, text=True, timeout=60,
        env={"HOME": "/nonexistent", "PATH": "/usr/bin", **(env or {})})


@pytest.mark.parametrize("url, line", [
    ("http://127.0.0.1:3000", "proxy_pass http://127.0.0.1:3000;"),
    ("http://[::1]:3000/v1", "proxy_pass http://[::1]:3000/v1/;"),
    ("https://127.0.0.1", "proxy_ssl_verify on;"),
    ("unix:/run/app.sock", "proxy_pass http://unix:/run/app.sock;"),
    ("fastcgi://unix:/run/php.sock", "fastcgi_pass unix:/run/php.sock;"),
    ("fastcgi://unix:/run/php.sock:/srv/i.php",
     "fastcgi_pass unix:/run/php.sock;"),
    ("unix:/run/app.sock:/v1", "proxy_pass http://unix:/run/app.sock:/v1/;"),
    ("uwsgi://127.0.0.1:3031", "uwsgi_pass 127.0.0.1:3031;"),
    ("scgi://127.0.0.1:4000", "scgi_pass 127.0.0.1:4000;"),
])
def test_the_printed_configuration_is_one_that_nginx_takes(make_up, url, line):
    up = make_up(start=False)
    env = {"LATCHKEY_MODULE": str(build.BUILD / MODULE)}
    arguments = ("--upstream", url, "--listen", str(up.port), "--dir",
                 str(up.dir))
    printed = print_config(*arguments, env=env)
    assert printed.returncode == 0, printed.stderr
    assert line in [text.strip() for text in printed.stdout.splitlines()]
    assert "latchkeyd" in printed.stdout.split("load_module")[0]
    assert not up.dir.exists()
    up.dir.mkdir()
    (up.dir / "latchkey.db.secret").write_text("0123456789abcdef")
    config = up.dir / "nginx.conf"
    config.write_text(printed.stdout)
    checked = subprocess.run(
        [up.environment()["LATCHKEY_NGINX"], "-t", "-e", "stderr", "-p",
         str(up.dir), "-c", str(config)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def commands_of(text):
    """The commands in the comments at the top, by what is said of them."""
    found, title = {}, None
    for line in text.split("load_module")[0].splitlines():
        if line.startswith("#   "):
            found[title] = found.get(title, "") + line[4:] + "\n"
        elif line.strip("# "):
            title = line.strip("# ")
    return [found[title] for title in found]


@pytest.mark.parametrize("options", [
    (), ("--tenant-plain",), ("--store", "sqlite:{}/far away/answers.db")])
def test_the_printed_commands_bring_a_fresh_machine_up(make_up, app, options):
    up = make_up(start=False)
    home = up.folder / "my home"
    options = [option.format(up.folder) for option in options]
    printed = print_config("--upstream", "http://" + app.address, "--listen",
                           str(up.port), *options, env={
                               **up.environment(), "HOME": str(home)})
    assert printed.returncode == 0, printed.stderr
    folder = home / ".local/state/latchkey" / ("up-%d" % up.port)
    assert not home.exists()
    files, daemon, nginx = commands_of(printed.stdout)
    subprocess.run(["sh", "-e", "-c", files], check=True)
    secrets = {path: path.read_bytes() for path in up.folder.rglob("*")
               if path.is_file() and path != up.folder / "nginx"}
    assert len(secrets) == (0 if options == ["--tenant-plain"] else 1)
    for path, text in secrets.items():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert len(text.strip()) == 64, path
    subprocess.run(["sh", "-e", "-c", files], check=True)  # what is there stays
    assert all(path.read_bytes() == text for path, text in secrets.items())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "nginx.conf").write_text(printed.stdout)
    subprocess.run(["sh", "-c", nginx.strip() + " -t"], check=True)
    running = [subprocess.Popen(["sh", "-c", "exec " + line])
               for line in (daemon, nginx)]
    try:
        until(lambda: not refuses(str(folder / "latchkeyd.sock")) and
              not refuses_port(up.port))
        first = up.post("/pay", key="k1")
        assert first.status == 201
        assert up.post("/pay", key="k1").replayed
        assert app.count() == 1
        listed = subprocess.run(
            [str(build.BUILD / "latchkey"), "list", "--server",
             "unix:%s" % (folder / "latchkeyd.sock")],
            capture_output=True, text=True)
        assert first.reference in listed.stdout, listed
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize("tenant, advice", [
    ("$remote_user", "$http_authorization"),
    ("user:${remote_user}", "--print-config"),
    ("$ssl_client_s_dn", "TLS"),
    ("$http_x_api_key hashed", "--tenant-plain"),
    ("hashed", "by default"),
])
def test_a_tenant_that_up_cannot_have_is_refused_with_advice(tenant, advice):
    printed = print_config("--upstream", "http://127.0.0.1:3000", "--tenant",
                           tenant)
    assert printed.returncode == 2 and printed.stdout == "", printed
    assert advice in printed.stderr


@pytest.mark.parametrize("tenant", ["$remote_user_id", "unhashed",
                                    "hashed-$http_x"])
def test_a_tenant_that_only_looks_like_it_is_taken(tenant):
    printed = print_config("--upstream", "http://127.0.0.1:3000", "--tenant",
                           tenant)
    assert printed.returncode == 0, printed
    assert '"%s" hashed;' % tenant in printed.stdout


def test_options_that_are_for_other_commands_are_neither_listed_nor_taken():
    listed = subprocess.run([str(build.BUILD / "latchkey"), "up", "--help"],
                            capture_output=True, text=True).stdout
    assert "--upstream" in listed and "--version" in listed
    for option in ("--server=x", "--user=x", "--password-file=x",
                   "--timeout=1s", "--json"):
        assert option.split("=")[0] not in listed
        refused = print_config("--upstream", "http://127.0.0.1:3000", option)
        assert refused.returncode == 2 and refused.stdout == "", refused
        assert "up has no " + option.split("=")[0] in refused.stderr


def test_the_printed_configuration_needs_nothing_installed():
    printed = print_config("--upstream", "http://127.0.0.1:3000", env={
        "LATCHKEYD": "/nonexistent", "LATCHKEY_NGINX": "/nonexistent",
        "LATCHKEY_MODULE": "/nonexistent"})
    assert printed.returncode == 0, printed
    assert "/nonexistent/.local/state/latchkey/up-8080/" in printed.stdout


@pytest.mark.parametrize("path", ["orders", "", "/a b", "/a;b", "/a'b"])
def test_a_path_that_is_none_is_refused(path):
    printed = print_config("--upstream", "http://127.0.0.1:3000", "--path",
                           path)
    assert printed.returncode == 2 and "--path" in printed.stderr


BREAKOUTS = ['x"; user root; #', "x;y", "x\ny", "x{y}", "x#y", "x\\", "x'y",
             "x\ry", "x\ty", "x\x7fy", "x`y", "x\x1by"]


@pytest.mark.parametrize("text", [*BREAKOUTS, "", "$", "a$", "${x", "$ {x}",
                                  "$x{", "caf\u00e9"])
def test_a_tenant_cannot_break_out_of_the_configuration(text):
    printed = print_config("--upstream", "http://127.0.0.1:3000", "--tenant",
                           text)
    assert printed.returncode == 2 and printed.stdout == "", printed
    assert "--tenant" in printed.stderr


@pytest.mark.parametrize("text", [
    *("http://127.0.0.1:3000/" + text for text in BREAKOUTS),
    *("http://%s:3000" % text for text in BREAKOUTS),
    *("unix:/run/" + text for text in BREAKOUTS),
    *("fastcgi://127.0.0.1:9000/srv/" + text for text in BREAKOUTS),
    *("fastcgi://unix:/run/s:/srv/" + text for text in BREAKOUTS),
    *("localhost:3000/" + text for text in BREAKOUTS),
    *(text + ":3000" for text in BREAKOUTS),
    "", "0", "65536", "3000x", ":", "localhost", "h:", "ftp://h", "http://", "http://:3000",
    "http://h:0", "http://h:65536", "http://h:99999999999", "http://h:3000x",
    "http://h:3000?q", "http://h:3000/$host", "http://[::1:3000",
    "http://[]:3000", "fastcgi://h", "uwsgi://h:1/path", "scgi://h:1/path",
    "fastcgi://h:1/dir/", "https://unix:/run/x", "unix:relative", "unix:/a:b",
    "unix:/a b", "unix:/" + "a" * 120, "http://h:80 ", " http://h:80",
    "unix:/" + "a" * 120 + ":/b", "unix:/a:", "unix:/a:b/c", "unix::/a",
    "fastcgi://unix:/a:/dir/", "uwsgi://unix:/a:/b", "scgi://unix:/a:/b",
])
def test_an_upstream_cannot_break_out_of_the_configuration(text):
    printed = print_config("--upstream", text)
    assert printed.returncode == 2 and printed.stdout == "", printed
    assert "--upstream" in printed.stderr


@pytest.mark.parametrize("text", [
    *("%s:80" % text for text in BREAKOUTS), *BREAKOUTS, "", "0", "65536",
    "x", ":80", "127.0.0.1:", "127.0.0.1:80 ssl", "80 ssl", "unix:rel",
    "unix:/a;b", "[::1]", "-1", "+80", "080808",
])
def test_an_address_cannot_break_out_of_the_configuration(text):
    printed = print_config("--upstream", "http://127.0.0.1:3000",
                           "--listen=" + text)
    assert printed.returncode == 2 and printed.stdout == "", printed
    assert "--listen" in printed.stderr


@pytest.mark.parametrize("option, value", [
    *(("--dir", "/tmp/" + text) for text in [*BREAKOUTS, "$host"]),
    *(("--store", "sqlite:/tmp/" + text) for text in [*BREAKOUTS, "$host"]),
    ("--dir", ""), ("--store", "postgres:x\ny"),
    ("--store", "redis://x y"), ("--store", "sqlite:"),
    ("--store", "/tmp/x.db"), ("--mode", "off"), ("--mode", ""),
])
def test_paths_cannot_break_out_of_the_configuration(option, value):
    printed = print_config("--upstream", "http://127.0.0.1:3000", option,
                           value)
    assert printed.returncode == 2 and printed.stdout == "", printed


def test_a_password_in_the_upstream_is_not_repeated():
    printed = print_config("--upstream", "http://me:s3cret@127.0.0.1:3000")
    assert printed.returncode == 2
    assert "s3cret" not in printed.stderr


@pytest.mark.parametrize("listen", ["3000", "localhost:3000", "*:3000",
                                    "0.0.0.0:3000", "[::1]:3000"])
def test_the_address_of_the_app_itself_is_refused(listen):
    printed = print_config("--upstream", "http://127.0.0.1:3000", "--listen",
                           listen)
    assert printed.returncode == 2
    assert "elsewhere" in printed.stderr


def test_without_an_upstream_it_asks_for_one():
    printed = print_config()
    assert printed.returncode == 2
    assert "--upstream 3000" in printed.stderr
