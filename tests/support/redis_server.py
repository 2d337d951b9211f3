"""A private Redis, replicas of it, and Sentinels that watch over them."""

import functools
import re
import urllib.parse

import redis

from .life import until
from .service import Service

OPTIONS = {
    "save": "",
    # It listens only where the tests are.
    "protected-mode": "no",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


def quote(value):
    return '"%s"' % str(value).replace("\\", "\\\\").replace('"', '\\"')


def directives(options):
    """Lines of redis.conf; one for each value if there are several.

    A tuple is one line of several words.
    """
    lines = []
    for name, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, bool):
                value = "yes" if value else "no"
            words = value if isinstance(value, tuple) else (value,)
            lines.append(" ".join(
                [name.replace("_", "-"), *map(quote, words)]))
    return "".join(line + "\n" for line in lines)


class RedisServer(Service):
    """One server. Any directive is a keyword: appendonly=True.

    users: ["app on >secret ~* &* +@all"], as in redis.conf. replicaof: another
    RedisServer, or (address, port).
    """

    name = "redis"

    def __init__(self, users=(), replicaof=None, host=None, **options):
        super().__init__(host)
        self.users = list(users)
        self.options = {**OPTIONS, **{
            name.replace("_", "-"): value for name, value in options.items()}}
        self.password = options.get("requirepass")
        # Whoever leads today may have to follow tomorrow.
        self.options.setdefault("masterauth", self.password or "")
        self.primary = None
        if isinstance(replicaof, RedisServer):
            self.primary = replicaof
            replicaof = (replicaof.address, replicaof.port)
        if replicaof:
            self.options["replicaof"] = tuple(replicaof)
        self.replicas = []
        self.socket = self.folder / "s"
        self.config = self.folder / "redis.conf"

    # ---- life ----

    def lines(self):
        text = directives({
            "port": self.port, "bind": self.address,
            "unixsocket": self.socket, "dir": self.folder,
            "daemonize": False, **self.options})
        return text + "".join("user %s\n" % user for user in self.users)

    def command(self):
        return ["redis-server", str(self.config)]

    def launch(self):
        # Only once: a Sentinel may have had it rewritten.
        if not self.config.exists():
            self.write(self.config.name, self.lines())
        return super().launch()

    def is_ready(self):
        try:
            with self._connect() as client:
                return client.ping()
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False
        except redis.ResponseError as error:
            # A user without the right to ask, of a server that works.
            return str(error).startswith(("NOPERM", "NOAUTH"))

    def start(self):
        first = self.process is None
        super().start()
        if first and self.primary:
            self.wait_linked()
        return self

    def stop(self):
        """SIGTERM: it writes what it has been told to keep."""
        super().stop()

    def finish(self):
        for replica in self.replicas:
            replica.finish()
        self.replicas = []
        super().finish()

    # ---- using it ----

    def _connect(self, **options):
        options.setdefault("password", self.password)
        return redis.Redis(unix_socket_path=str(self.socket), **options)

    @functools.cached_property
    def admin(self):
        return self.client()

    def client(self, **options):
        """A client over the unix socket, closed at the end."""
        client = self._connect(**options)
        self.clients.append(client)
        return client

    def url(self, user=None, password=None, database=None, port=None):
        """For whoever connects over TCP; `port` is that of a proxy."""
        password = password or (not user and self.password)
        login = urllib.parse.quote(user or "", safe="")
        if password:
            login += ":" + urllib.parse.quote(password, safe="")
        return "redis://%s%s:%d%s" % (
            login + "@" if login else "", self.address, port or self.port,
            "" if database is None else "/%d" % database)

    def set(self, name, value):
        """CONFIG SET."""
        self.admin.config_set(name.replace("_", "-"), value)

    # ---- more than one ----

    def replica(self, host=None, **options):
        """A replica that has all there is, and follows."""
        inherited = {name.replace("-", "_"): value
                     for name, value in self.options.items()
                     if name != "replicaof"}
        other = RedisServer(users=self.users, replicaof=self, host=host,
                            **{**inherited, **options})
        self.replicas.append(other)
        return other.start()

    def wait_linked(self):
        """Until the primary's data is here."""
        until(lambda: self.admin.info("replication").get(
            "master_link_status") == "up", 60)

    def wait_replicated(self):
        """Until every replica that is connected has acknowledged the rest.

        A new one acknowledges nothing, whatever it has, for up to a second.
        """
        def done():
            found = self.admin.info("replication")
            others = [value for name, value in found.items()
                      if re.fullmatch(r"slave\d+", name)]
            return others and all(
                other["offset"] >= max(found["master_repl_offset"], 1)
                for other in others)
        until(done, 60)

    def promote(self):
        """What a fail-over does: from now on it follows nobody."""
        self.admin.replicaof("NO", "ONE")
        self.primary = None
        return self


class Sentinel(RedisServer):
    """Watches over a RedisServer and its replicas, alone or with others."""

    name = "sentinel"

    def __init__(self, primary, service="main", quorum=1, down_after=0.5,
                 failover_timeout=5, host=None):
        super().__init__(host=host)
        self.watched = primary
        self.service = service
        self.quorum = quorum
        self.down_after = down_after
        self.failover_timeout = failover_timeout

    def lines(self):
        primary = self.watched
        text = directives({
            "port": self.port, "bind": self.address,
            "unixsocket": self.socket, "dir": self.folder,
            "daemonize": False,
            "sentinel": [
                ("monitor", self.service, primary.address, primary.port,
                 self.quorum),
                ("down-after-milliseconds", self.service,
                 int(self.down_after * 1000)),
                ("failover-timeout", self.service,
                 int(self.failover_timeout * 1000))]})
        if primary.password:
            text += directives({"sentinel": ("auth-pass", self.service,
                                             primary.password)})
        return text

    def command(self):
        return super().command() + ["--sentinel"]

    def start(self):
        super().start()
        until(lambda: self.counted("num-slaves") >=
              len(self.watched.replicas), 60)
        return self

    def counted(self, what):
        found = self.admin.sentinel_master(self.service)
        return int(found[what])

    def wait_sentinels(self, count):
        """Until it knows so many, itself among them."""
        until(lambda: self.counted("num-other-sentinels") + 1 >= count, 60)

    def leader(self):
        """(address, port) of the server that it names as the primary."""
        address, port = self.admin.sentinel_get_master_addr_by_name(
            self.service)
        return address.decode(), int(port)

    def wait_failover(self, old=None, timeout=90):
        """Until another server leads; which."""
        old = old or self.watched
        until(lambda: self.leader() != (old.address, old.port), timeout)
        servers = [self.watched, *self.watched.replicas]
        leader = next(server for server in servers
                      if (server.address, server.port) == self.leader())
        until(lambda: leader.admin.info("replication")["role"] == "master")
        return leader
