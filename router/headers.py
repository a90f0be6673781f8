"""Which headers cross the router, in each direction (RFC 9110, section 7.6.1)."""

from collections.abc import Iterable

from router.errors import Headers

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# The client's key is the router's business, and a compressed answer could not be followed by an error event.
# `expect` is already answered here; `host` and `content-length` are those of the next request.
_NOT_SENT = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"accept-encoding",
    b"authorization",
    b"expect",
    b"x-request-id",
}
# The server that runs this app writes its own `date` and `server`; the rest the router sets itself.
_NOT_RETURNED = _HOP_BY_HOP | {
    b"date",
    b"server",
    b"x-accel-buffering",
    b"x-request-id",
    b"x-twinspeed-variant",
}


def find_header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """The first value of a header, by its lower-case name."""
    return next((value for name, value in headers if name == wanted), None)


def to_engine(headers: Iterable[tuple[bytes, bytes]], request_id: bytes) -> list[tuple[str, str]]:
    """The client's headers for the engine. Names come in lower case from ASGI."""
    kept = _without(headers, _NOT_SENT)
    kept.append((b"x-request-id", request_id))
    # aiohttp writes values as UTF-8; bytes that are not would fail there.
    return [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in kept]


def to_client(headers: Iterable[tuple[bytes, bytes]], own: Headers) -> Headers:
    """The engine's headers for the client, then the router's own."""
    return _without(((name.lower(), value) for name, value in headers), _NOT_RETURNED) + own


def _without(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    kept: Headers = []
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
        elif name not in dropped:
            kept.append((name, value))
    return [header for header in kept if header[0] not in named] if named else kept
