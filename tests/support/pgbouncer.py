"""A private PgBouncer that shares few connections to a PostgreSQL."""

import signal
import urllib.parse

import psycopg

from .service import Service

SETTINGS = {
    "pool_mode": "transaction",
    "max_client_conn": 200,
    "default_pool_size": 10,
    "server_login_retry": 1,
    "ignore_startup_parameters": "extra_float_digits",
}


class PgBouncer(Service):
    """One before `server`, a Postgres; every database of it can be reached.

    users: {name: password} who may log in, besides the superuser. Its target
    can be another port of the same machine, such as a proxy's.
    """

    name = "bouncer"
    ending = signal.SIGINT

    def __init__(self, server, users=None, port=None, settings=None,
                 host=None):
        super().__init__(host)
        self.server = server
        self.server_port = port or server.port
        self.passwords = {"postgres": server.password or "", **(users or {})}
        self.settings = {**SETTINGS, **(settings or {})}

    def lines(self):
        scram = self.server.auth == "scram"
        settings = {
            "listen_addr": self.address, "listen_port": self.port,
            "unix_socket_dir": self.folder,
            "auth_type": "scram-sha-256" if scram else "trust",
            "auth_file": self.folder / "users",
            "admin_users": "postgres", **self.settings}
        return "[databases]\n* = host=%s port=%d\n[pgbouncer]\n%s" % (
            self.server.address, self.server_port, "".join(
                "%s = %s\n" % setting for setting in settings.items()))

    def command(self):
        return ["/usr/sbin/pgbouncer", str(self.folder / "ini")]

    def launch(self):
        self.write("users", "".join(
            '"%s" "%s"\n' % tuple(word.replace('"', '""') for word in pair)
            for pair in self.passwords.items()))
        self.write("ini", self.lines())
        return super().launch()

    def is_ready(self):
        try:
            return bool(self.admin("SHOW VERSION"))
        except psycopg.OperationalError:
            return False

    def admin(self, command):
        """A command of its console (SHOW POOLS, PAUSE, KILL ...); its rows."""
        with psycopg.connect(
                host=str(self.folder), port=self.port, dbname="pgbouncer",
                user="postgres", password=self.passwords["postgres"],
                autocommit=True) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else None

    def url(self, database="postgres", user="postgres", password=None):
        login = urllib.parse.quote(user, safe="")
        password = password or self.passwords.get(user)
        if password:
            login += ":" + urllib.parse.quote(password, safe="")
        return "postgres://%s@%s:%d/%s" % (
            login, self.address, self.port,
            urllib.parse.quote(database, safe=""))
