"""A private PostgreSQL: real, on a port of its own, and easily killed."""

import atexit
import itertools
import os
import pathlib
import shutil
import signal
import urllib.parse

import psycopg
from psycopg import sql

from . import build
from .life import until
from .service import Service, descendants, drop_shared_memory

SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "16MB",
    "synchronous_commit": "on",
    "fsync": "on",
    "max_wal_size": "256MB",
    "log_line_prefix": "%m [%p] %a ",
    # In its own folder instead of one for the whole machine.
    "dynamic_shared_memory_type": "mmap",
}
MODES = {"smart": signal.SIGTERM, "fast": signal.SIGINT,
         "immediate": signal.SIGQUIT}
_templates = {}
_numbers = itertools.count(1)


def programs():
    """Where the programs of the newest PostgreSQL are."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"),
                   key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    path = shutil.which("postgres")
    assert path, "there is no PostgreSQL here"
    return pathlib.Path(path).parent


def quote(value):
    return "'%s'" % str(value).replace("\\", "\\\\").replace("'", "''")


class Postgres(Service):
    """One server. Its superuser is `postgres`.

    auth="scram" asks for the password on TCP; the unix socket, which stands in
    a folder that is nobody else's, trusts everybody as ever.
    """

    name = "postgres"
    death = signal.SIGQUIT  # it then removes its shared memory

    def __init__(self, auth="trust", password=None, settings=None, host=None):
        super().__init__(host)
        assert auth in ("trust", "scram"), auth
        self.auth = auth
        self.password = password or ("secret" if auth == "scram" else None)
        self.settings = {**SETTINGS, **(settings or {})}
        self.bin = programs()
        self.data = self.folder / "data"
        self.primary = None
        self.standbys = []
        self.sync_names = []
        self.ready_once = False
        self.stores = {}  # databases of support/stores.py, and of which test

    # ---- making it ----

    def _template(self):
        """A fresh cluster, made once in each process that runs tests."""
        folder = _templates.get(os.getpid())
        if folder is None:
            folder = build.folder("lkpt")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            self.give(folder)
            self.run(self.bin / "initdb", "--no-sync", "--auth=trust",
                     "--encoding=UTF8", "--locale=C", "--username=postgres",
                     "-D", folder / "data")
            _templates[os.getpid()] = folder
        return folder / "data"

    def _make(self):
        self.run("cp", "-a", self._template(), self.data)
        self._configure()

    def _configure(self):
        method = "scram-sha-256" if self.auth == "scram" else "trust"
        self.write("data/pg_hba.conf", "".join(
            "%s\n" % line for line in (
                "local all all trust",
                "local replication all trust",
                "host all all all " + method,
                "host replication all all " + method)))
        settings = {**self.settings, "port": self.port,
                    "listen_addresses": self.address,
                    "unix_socket_directories": self.folder}
        self.write("data/postgresql.conf", "".join(
            "%s = %s\n" % (name, quote(value))
            for name, value in settings.items()))

    # ---- life ----

    def command(self):
        return [str(self.bin / "postgres"), "-D", str(self.data)]

    def _pid_file(self):
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def is_ready(self):
        lines = self._pid_file()
        return (len(lines) > 7 and int(lines[0]) == self.pid and
                lines[7].strip() == "ready")

    def processes(self):
        return descendants(self.pid)

    def launch(self):
        if not self.data.exists():
            self._make()
        return super().launch()

    def start(self):
        super().start()
        if not self.ready_once and self.password and not self.primary:
            self.query("ALTER ROLE postgres PASSWORD " + quote(self.password))
        self.ready_once = True
        return self

    def stop(self, mode="fast"):
        self.signal(MODES[mode])
        status = self.wait()
        # After SIGQUIT it may have had to kill some of its own.
        assert status == 0 or mode == "immediate", "exit %d\n%s" % (
            status, self.log_text())

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def kill(self):
        super().kill()
        lines = self._pid_file()
        if len(lines) > 6 and lines[6].split():
            drop_shared_memory(int(lines[6].split()[1]))
        for path in (self.data / "postmaster.pid",
                     *self.folder.glob(".s.PGSQL.*")):
            path.unlink(missing_ok=True)

    def finish(self):
        for standby in self.standbys:
            standby.finish()
        self.standbys = []
        super().finish()

    # ---- using it ----

    def url(self, database="postgres", user="postgres", password=None,
            port=None):
        """For whoever connects over TCP; `port` is that of a proxy."""
        password = password or (user == "postgres" and self.password)
        login = urllib.parse.quote(user, safe="")
        if password:
            login += ":" + urllib.parse.quote(password, safe="")
        return "postgres://%s@%s:%d/%s" % (
            login, self.address, port or self.port,
            urllib.parse.quote(database, safe=""))

    def connect(self, database="postgres", user="postgres", autocommit=True,
                **options):
        """A connection over the unix socket, closed at the end."""
        connection = psycopg.connect(
            host=str(self.folder), port=self.port, dbname=database, user=user,
            autocommit=autocommit, **options)
        self.clients.append(connection)
        return connection

    def query(self, text, parameters=None, database="postgres"):
        """One statement, committed; its rows, if it is one that has rows."""
        with psycopg.connect(host=str(self.folder), port=self.port,
                             dbname=database, user="postgres",
                             autocommit=True) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else None

    def value(self, text, parameters=None, database="postgres"):
        """The only column of the only row."""
        rows = self.query(text, parameters, database)
        assert len(rows) == 1 and len(rows[0]) == 1, rows
        return rows[0][0]

    def psql(self, text, database="postgres"):
        """What psql prints, without headings. From a file: a whole schema is
        too long for an argument."""
        path = self.write("psql-%d.sql" % next(_numbers), text)
        return self.run(self.bin / "psql", "-X", "-qAt", "-v",
                        "ON_ERROR_STOP=1", "-h", self.folder, "-p", self.port,
                        "-U", "postgres", "-d", database, "-f", path)

    def create_database(self, name=None):
        """An empty database; its URL."""
        name = name or "test_%d" % next(_numbers)
        self.query(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def create_user(self, name, password=None, more=""):
        self.query("CREATE ROLE %s LOGIN %s%s" % (
            '"%s"' % name.replace('"', '""'), more,
            " PASSWORD " + quote(password) if password else ""))

    def set(self, name, value):
        """Changes a setting that needs no restart; it counts from now on."""
        before = self.value("SELECT pg_conf_load_time()")
        self.query("ALTER SYSTEM SET %s = %s" % (name, quote(value)))
        self.query("SELECT pg_reload_conf()")
        # Each new backend has what the postmaster has.
        until(lambda: self.value("SELECT pg_conf_load_time()") > before)
        # Whether commits wait for a standby is told to all by the checkpointer,
        # which reads the settings between two checkpoints.
        self.query("CHECKPOINT")

    def terminate_backends(self, where="true"):
        """Ends the clients in pg_stat_activity that the condition chooses.

        How many there were; they are gone when it returns.
        """
        rows = self.query(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' AND (%s)" % where)
        assert all(ended for ended, in rows), rows
        return len(rows)

    # ---- more than one ----

    def standby(self, sync=True, host=None, settings=None):
        """Another server that streams from this one.

        With sync no COMMIT here returns before it is on the disk there, too.
        """
        other = Postgres(self.auth, self.password,
                         {**self.settings, **(settings or {})}, host)
        other.primary = self
        other.member = "standby_%d" % next(_numbers)
        self.standbys.append(other)
        other.copy_primary()
        other.start()
        if sync:
            self.sync_names.append(other.member)
            self.set("synchronous_standby_names", "FIRST %d (%s)" % (
                len(self.sync_names), ", ".join(self.sync_names)))
        other.wait_streaming("sync" if sync else "async")
        return other

    def copy_primary(self):
        login = {"host": self.primary.address, "port": self.primary.port,
                 "user": "postgres", "password": self.password,
                 "application_name": self.member}
        self.run(self.bin / "pg_basebackup", "--no-sync", "-c", "fast", "-X",
                 "stream", "-R", "-C", "-S", self.member, "-D", self.data,
                 "-d", " ".join("%s=%s" % (name, quote(value))
                                for name, value in login.items() if value))
        self._configure()
        # Once promoted, it must not wait for standbys of the old primary.
        with open(self.data / "postgresql.auto.conf", "a") as file:
            file.write("synchronous_standby_names = ''\n")

    def wait_streaming(self, state="sync"):
        until(lambda: self.primary.query(
            "SELECT 1 FROM pg_stat_replication WHERE application_name = %s"
            " AND state = 'streaming' AND sync_state = %s",
            (self.member, state)), 60)

    def wait_replayed(self):
        """Until what the primary has written can be read here."""
        target = self.primary.value("SELECT pg_current_wal_flush_lsn()::text")
        until(lambda: self.value(
            "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (target,)), 60)

    def promote(self):
        """Makes this standby the primary, whether the old one is dead or not.
        """
        assert self.value("SELECT pg_promote(true, 60)")
        assert not self.value("SELECT pg_is_in_recovery()")
        return self
