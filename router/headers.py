"""Which headers cross the router, in each direction (RFC 9110, section 7.6.1)."""

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
# The client's keys and addresses are the router's business, and a compressed answer could not be followed by an error
# event. `expect` is already answered here; `host` and `content-length` are those of the next request.
_NOT_SENT = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"accept-encoding",
    b"authorization",
    b"x-api-key",
    b"cookie",
    b"expect",
    b"http2-settings",
    b"traceparent",
    b"x-request-id",
}
# The server writes the length itself; the rest the router sets, or would tell what is behind it.
_NOT_RETURNED = _HOP_BY_HOP | {
    b"content-length",
    b"server",
    b"set-cookie",
    b"x-accel-buffering",
    b"x-request-id",
}


def to_engine(headers: Headers, authority: bytes, length: int, own: Headers) -> list[bytes]:
    """The client's headers for the engine, as lines; names come in lower case."""
    lines = [b"host: %b\r\n" % authority]
    lines += [b"%b: %b\r\n" % header for header in _without(headers, _NOT_SENT)]
    lines += [b"%b: %b\r\n" % header for header in own]
    lines.append(b"content-length: %d\r\n\r\n" % length)
    return lines


def to_client(headers: Headers, own: Headers) -> Headers:
    """The engine's headers for the client, then the router's own."""
    kept = _without(headers, _NOT_RETURNED)
    if any(name.startswith((b"x-twinspeed-", b"x-ratelimit-")) for name, _ in kept):
        kept = [header for header in kept if not header[0].startswith((b"x-twinspeed-", b"x-ratelimit-"))]
    return kept + own


def _without(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    kept: Headers = []
    named: set[bytes] = set()
    for header in headers:
        if header[0] == b"connection":
            named.update(token.strip().lower() for token in header[1].split(b","))
        elif header[0] not in dropped:
            kept.append(header)
    return [header for header in kept if header[0] not in named] if named else kept
