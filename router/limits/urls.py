"""A store from its URL."""

from urllib.parse import urlsplit

from router.limits.store import Store
from twinspeed.errors import InputError

# Longer than any request of the default lanes `interactive` and `batch` may take.
_LEASE_TTL_S = 7200.0


def open_store(url: str, *, lease_ttl_s: float = _LEASE_TTL_S) -> Store:
    """The store behind `memory:`, `sqlite:///PATH`, `redis://…`, `rediss://…` or `postgresql://…`; not opened yet.

    Args:
        lease_ttl_s: seconds after which a reservation in Redis or Postgres counts as left behind by a router that
            died; more than any request may take.

    Raises:
        InputError: the URL is malformed.
    """
    scheme = url.partition(":")[0]
    # Imported here, since each brings a package along that the others do not need.
    if url == "memory:":
        from router.limits.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        from router.limits.sqlite import SqliteStore

        path = url.removeprefix("sqlite:///")
        if path in (url, ""):
            raise InputError("state.url: expected sqlite:///PATH, with four slashes for an absolute path.")
        return SqliteStore(path)
    if scheme in ("redis", "rediss"):
        from router.limits.redis import RedisStore

        return RedisStore(url, _address(url, 6379), lease_ttl_s)
    if scheme == "postgresql":
        from router.limits.postgres import PostgresStore

        return PostgresStore(url, _address(url, 5432), lease_ttl_s)
    raise InputError("state.url: expected memory:, sqlite:///PATH, redis://…, rediss://… or postgresql://….")


def _address(url: str, default_port: int) -> str:
    """`HOST:PORT`, which is all of such a URL that may be shown: it may hold a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise InputError(f"state.url: expected {url.partition(':')[0]}://USER:PASSWORD@HOST:PORT/DATABASE.")
    return f"{host}:{port or default_port}"
