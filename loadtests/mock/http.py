"""The few HTTP answers that the mock's parts share, over ASGI."""

from http import HTTPStatus

from starlette.types import Receive, Send

from loadtests.mock.wire import to_json

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"
_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


async def read_body(receive: Receive) -> bytes:
    message = await receive()
    parts: list[bytes] = [message.get("body", b"")]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


def header(headers: Headers, name: bytes) -> str:
    """The first of that name, which is in lower case; empty where there is none."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return ""


async def start(send: Send, status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
    named = [(b"content-type", content_type), *headers]
    await send({"type": "http.response.start", "status": status, "headers": named})


async def respond(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, *headers: tuple[bytes, bytes]
) -> None:
    await start(send, status, content_type, (b"content-length", b"%d" % len(body)), *headers)
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_error(send: Send, path: str, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
    """In the form of the API at `path`: Anthropic's or OpenAI's."""
    kind = _ERROR_TYPES.get(status) or _phrase(status)
    if path.startswith("/v1/messages"):
        error: dict[str, object] = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    await respond(send, status, to_json(error), JSON, *headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
