"""What people get wrong: each message names the cause and the cure.

A row is a command line, its exit status, and words of the message: those of the
cause, then those of the cure. {names} are what World makes.
"""

import http.server
import os
import shlex
import shutil
import sqlite3
import subprocess
import threading

import pytest

from support import build
from support.daemon import Daemon, secret_of
from support.gateway import check_config, nginx_for
from support.service import free_port, release_port


class Silent(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


class World:
    """One daemon and what may stand in its place, for all rows."""

    def __init__(self, redis, postgres):
        self.folder = build.folder("oops")
        self.daemon = Daemon(tcp=True).start()
        self.http = http.server.HTTPServer(("127.0.0.1", 0), Silent)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.port = free_port()
        self.closed = free_port()
        self.names = {
            "dir": self.folder,
            "server": self.daemon.tcp_address,
            "socket": self.daemon.address,
            "store": self.daemon.store,
            "redis": "127.0.0.1:%d" % redis.port,
            "http": "127.0.0.1:%d" % self.http.server_port,
            "postgres": "127.0.0.1:%d" % postgres.port,
            "database": postgres.create_database(),
            "closed": "127.0.0.1:%d" % self.closed,
            "port": self.port,
            "taken": self.daemon.tcp_address.rsplit(":", 1)[1],
            "build": build.BUILD,
            "nginx": nginx_for(build.BUILD, self.folder),
        }
        self.file("wrong.password", "wrong\n")
        self.file("right.password", secret_of("operator") + "\n")
        self.file("open.password", "secret\n", 0o644)
        self.file("text", "this is neither a database nor an export\n")
        self.file("profiles/latchkey/config",
                  "[live]\nserver = {server}\nsever = x\n")
        self.file("open/latchkey/config",
                  "[default]\nserver = {server}\nuser = operator\n"
                  "password_file = {dir}/open.password\n")
        (self.folder / "profiles").chmod(0o755)
        self.make_newer()
        for name, version in (("older", "0"), ("newer", "99")):
            self.names[name] = self.make_schema(postgres, version)

    def file(self, name, text, mode=0o600):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**self.names))
        path.chmod(mode)
        return path

    def make_newer(self):
        """The file of a daemon that does not exist yet."""
        path = self.folder / "newer.db"
        shutil.copy2(self.daemon.store, path)
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 99")
        database.close()

    def make_schema(self, postgres, version):
        """One of another version of Latchkey, by its own word."""
        url = postgres.create_database()
        done = self.run("latchkey migrate " + url)
        assert done.returncode == 0, done
        postgres.query("UPDATE latchkey.meta SET value = %s"
                       " WHERE name = 'version'", (version,),
                       database=url.rsplit("/", 1)[1])
        return url

    def run(self, line, **options):
        words = shlex.split(line.format(**self.names))
        env = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        program = {"nginx": self.names["nginx"]}.get(
            words[0], str(build.BUILD / words[0]))
        return subprocess.run([program, *words[1:]], capture_output=True,
                              text=True, env=env, stdin=subprocess.DEVNULL,
                              timeout=60 * build.patience(), **options)

    def finish(self):
        self.http.shutdown()
        self.http.server_close()
        self.daemon.finish()
        release_port(self.port)
        release_port(self.closed)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def world(redis_server, postgres):
    made = World(redis_server, postgres)
    yield made
    made.finish()


AS = "LATCHKEY_SERVER={server} LATCHKEY_USER=%s LATCHKEY_PASSWORD=%s "
OPERATOR = AS % ("operator", secret_of("operator"))
READER = AS % ("reader", secret_of("reader"))
PARTS = "LATCHKEY_NGINX={nginx} "

TOOL = [
    # the command line
    ("latchkey", 2, "name a command", "--help"),
    ("latchkey lsit", 2, '"lsit"', '"list"'),
    ("latchkey list --stat x", 2, "--stat", "--state"),
    ("latchkey list --state odd", 2, "odd", "uncertain"),
    ("latchkey list --limit many", 2, "many", "from 1"),
    ("latchkey stats --timeout soon", 2, '"soon"', "ms, s, m"),
    ("latchkey list extra", 2, '"extra" is one word too many', "usage"),
    ("latchkey release acme 'POST /pay' k1", 2, "why", "--why TEXT"),
    # addresses, and what is there
    ("latchkey --server nowhere ping", 2, '"nowhere"', "HOST:PORT"),
    ("latchkey --server unix:{dir}/gone ping", 3, "No such file", "start it"),
    ("latchkey --server unix:{dir}/text ping", 3, "not a socket", "--server"),
    ("latchkey --server {closed} ping", 3, "refused", "start latchkeyd"),
    ("latchkey --server no-such-host.invalid:1 ping", 3, "no-such-host",
     "name in --server"),
    ("latchkey --server {redis} list", 3, "a Redis", "--server"),
    ("latchkey --server {redis} ping", 3, "a Redis", "--server"),
    ("latchkey --server {redis} health", 3, "a Redis", "--server"),
    ("latchkey --server {http} list", 3, "an HTTP server", "--server"),
    ("latchkey --server {postgres} list", 3, "a PostgreSQL", "--server"),
    # users, passwords and profiles
    ("latchkey --server {server} stats", 4, "NOPERM", "--user"),
    ("latchkey --server {socket} stats", 4, "NOPERM", "[peers]"),
    ("latchkey --server {server} --user operator stats", 2, "needs a password",
     "--password-file"),
    ("latchkey --server {server} --user operator --password-file {dir}/gone "
     "stats", 2, "cannot read {dir}/gone: No such file", "check the path"),
    ("latchkey --server {server} --user operator "
     "--password-file {dir}/wrong.password stats", 4, "WRONGPASS",
     "right --user and password"),
    (READER + "latchkey evict a b c --why x", 4, "operate role", "--user"),
    ("latchkey --profile staging ping", 2, '"staging"', "server = ADDRESS"),
    ("XDG_CONFIG_HOME={dir}/profiles latchkey ping", 2, "config:3:",
     "server, user and password_file"),
    ("XDG_CONFIG_HOME={dir}/open latchkey ping", 2, "all users", "chmod 600"),
    # what is not there
    (OPERATOR + "latchkey evict a b c --why x", 1, "no operation",
     "latchkey list"),
    (OPERATOR + "latchkey dead retry 99 --why x", 1, "no job 99",
     "latchkey jobs"),
    (OPERATOR + "latchkey target pause nobody --why x", 1, '"nobody"',
     "latchkey target status"),
    # files and stores
    (OPERATOR + "latchkey backup {store}", 5, "store itself",
     "choose another"),
    (OPERATOR + "latchkey backup {dir}/text", 5, "it exists",
     "another name"),
    (OPERATOR + "latchkey backup {dir}/no/such/file", 5, "{dir}/no/such",
     "folder must be there"),
    ("latchkey import --store sqlite:{dir}/new.db {dir}/text", 1, "line 1",
     "latchkey export"),
    ("latchkey check-store sqlite:{dir}/text", 1, "not a database",
     "a new file"),
    ("latchkey check-store sqlite:{dir}/newer.db", 1, "later version",
     "use that version"),
    ("latchkey check-store redis://{closed}", 3, "refused", "running"),
    ("latchkey check-store {database}", 1, "no schema", "latchkey migrate"),
    ("latchkey check-store {older}", 1, "has version 0", "latchkey migrate"),
    ("latchkey migrate {newer}", 1, "newer Latchkey", "upgrade"),
    ("latchkey migrate mysql://x", 2, '"mysql"', "postgres:"),
    ("latchkey migrate postgres://x@{closed}/app", 3, "refused", "running"),
    ("latchkey check-store --config {dir}/gone", 2, "No such file",
     "the right file"),
]

CHECK = "latchkeyd --check-config "
START = "latchkeyd --store sqlite:{dir}/a.db --listen "

DAEMON = [
    ("latchkeyd --sotre x", 2, "--sotre", "--help"),
    ("latchkeyd --config {dir}/gone", 2, "No such file", "the right file"),
    (CHECK + "--config {dir}/text", 2, "text:1:", "name = value"),
    (CHECK + "--set daemon.lissten=x", 2, "no such setting", "daemon.listen"),
    (CHECK + "--set limits.connections=many", 2, '"many"', "digits"),
    (CHECK + "--set store.ttl=60", 2, "no unit", "30s"),
    (CHECK + "--set users.alice=boss", 2, "not a role", "ROLE PASSWORD"),
    (CHECK + "--set 'users.alice=operate file:{dir}/gone'", 2, "no such file",
     "write the password"),
    (CHECK + "--set peers.nobody-of-that-name=read", 2, "no such user",
     "correct the name"),
    (CHECK + "--set peers.root=boss", 2, '"boss"', "operate"),
    (CHECK + "--store mysql://x", 2, '"mysql://x"', "sqlite:PATH"),
    (CHECK + "--set target.pay.url=ftp://x", 2, "target.pay.url", "https://"),
    (CHECK + "--listen 0.0.0.0:7379", 2, "a password is needed",
     "auth.password_file"),
    (START + "{server}", 1, "already in use", "another daemon.listen"),
    (START + "unix:{dir}/text", 1, "not a socket", "remove it"),
    (START + "{socket}", 1, "another process", "stop it"),
    (START + "unix:{dir}/no/such/s", 1, "No such file", "folder must be"),
    ("latchkeyd --store sqlite:{store} --listen unix:{dir}/s", 1,
     "another latchkeyd", "stop that one"),
    ("latchkeyd --store sqlite:{dir}/no/such/s.db --listen unix:{dir}/s", 1,
     "No such file", "folder must be there"),
    ("latchkeyd --store sqlite:{dir} --listen unix:{dir}/s", 1, "is a folder",
     "a file in it"),
    ("latchkeyd --store sqlite:{dir}/newer.db --listen unix:{dir}/s", 1,
     "later version", "use that version"),
]

UP = [
    ("latchkey up", 2, "where is your app", "--upstream"),
    ("latchkey up --upstream ftp://x", 2, "no known scheme", "http://"),
    ("latchkey up --upstream 8080", 2, "already", "--listen"),
    ("latchkey up --upstream 3000 --mode maybe", 2, '"maybe"', "observe"),
    ("latchkey up --upstream 3000 --tenant '$remote_user'", 2, "no one",
     "$http_authorization"),
    ("latchkey up --upstream 3000 --store mysql://x", 2, "mysql",
     "sqlite:PATH"),
    ("latchkey up --upstream 3000 --dir {dir}/text", 5, "not a folder",
     "--dir"),
    ("latchkey up --upstream 3000 --dir {dir}/profiles", 5, "open to others",
     "chmod 700"),
    ("LATCHKEYD=/nonexistent latchkey up --upstream 3000 --dir {dir}/up", 5,
     "cannot be used as latchkeyd", "LATCHKEYD"),
    (PARTS + "latchkey up --upstream 3000 --listen {taken} --dir {dir}/up", 5,
     "in use", "--listen"),
]


@pytest.mark.parametrize("line, status, cause, cure", TOOL + DAEMON + UP)
def test_a_mistake_is_told_with_its_cause_and_its_cure(world, line, status,
                                                       cause, cure):
    result = world.run(line)
    assert result.returncode == status, result
    for words in (cause, cure):
        assert words.format(**world.names) in result.stderr, result.stderr
    assert result.stdout == ""


GUARDED = "location / { idempotency required; %s proxy_pass http://@APP@; }"
TENANT = "idempotency_tenant $http_x_api_key hashed;"


@pytest.mark.parametrize("line, cause, cure", [
    ("", "no \"idempotency_tenant\"", "name who the client is"),
    (TENANT, "needs a key", "idempotency_secret"),
    ("idempotency_tenant $remote_user;", "verifies", "auth_basic"),
    ("idempotency maybe;", '"maybe"', '"required"'),
    ("idempotency_methods POTS;", '"POTS"', '"POST"'),
    ("idempotency_mismatch_status 200;", '"200"', '"422"'),
])
def test_a_mistake_in_nginx_is_told_with_its_cause_and_its_cure(line, cause,
                                                                cure):
    checked = check_config(
        GUARDED.replace("idempotency required;",
                        "" if line.startswith("idempotency maybe") else
                        "idempotency required;") % line)
    assert not checked.ok
    said = [text for text in checked.text.splitlines() if "[emerg]" in text]
    assert cause in said[0] and cure in said[0], said
    assert "nginx.conf:" in said[0]


def test_a_full_disk_is_named(faulty):
    daemon = faulty()
    raw = daemon.raw()
    daemon.set_faults("fail write ENOSPC any forever")
    assert "UNAVAILABLE the disk is full" in raw(
        "CLAIM", "acme", "POST /pay", "k1", "1:00")
    said = daemon.cli("health")
    assert said.returncode == 3
    assert "disk is full" in said.stdout and "make room" in said.stdout
    full = subprocess.run([str(build.BUILD / "latchkey"), "--help"],
                          stdout=open("/dev/full", "w", encoding="ascii"),
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert full.returncode == 5
    assert "No space left" in full.stderr


def test_who_may_not_use_the_socket_hears_who_may(world):
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    program = world.folder / "latchkey"
    shutil.copy2(build.BUILD / "latchkey", program)
    world.folder.chmod(0o755)
    result = subprocess.run(
        [str(program), "--server", world.daemon.address, "ping"], env={},
        capture_output=True, text=True, timeout=60, user=65534, group=65534,
        extra_groups=[])
    assert result.returncode == 4
    assert "Permission denied" in result.stderr and "sudo" in result.stderr
