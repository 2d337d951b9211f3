"""Daemons for storms, on every store."""

import pytest

from support import build, linear, stores

SETTINGS = {
    # With so small a cache many an answer has to be loaded.
    "sqlite": ["store.sweep_interval=20ms", "store.checkpoint_pages=60",
               "store.reap_rows=16", "limits.cache_bytes=200000"],
    "postgres": ["store.sweep_interval=20ms", "store.poll=20ms"],
    "redis": ["store.sweep_interval=20ms", "store.poll=20ms"],
}


class Storms:
    """storms("redis") is a list of daemons on a new store there."""

    def __init__(self, request):
        self.request = request
        self.made = []

    @property
    def redis(self):
        return self.request.getfixturevalue("redis_server")

    @property
    def postgres(self):
        return self.request.getfixturevalue("postgres")

    def make(self, **options):
        daemon = linear.StormDaemon(**options)
        self.made.append(daemon)
        return daemon.start()

    def __call__(self, store, **options):
        settings = list(SETTINGS[store])
        if store == "sqlite":
            return [self.make(shim=not build.is_sanitized(),
                              settings=settings, **options)]
        if store == "postgres":
            url = stores.make_postgres(self.postgres)
        else:
            url = self.redis.url()
            settings.append("store.prefix=" + stores.make_prefix())
        return [self.make(url=url, settings=settings, **options)
                for _ in range(2)]

    def finish(self):
        for daemon in self.made:
            daemon.finish()


@pytest.fixture
def storms(request):
    storms = Storms(request)
    yield storms
    storms.finish()
