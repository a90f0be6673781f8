"""A deterministic stand-in for one vLLM server, which misbehaves on request and tells what reached it.

Answers are `w0 w1 w2 …`, one word a token, `max_tokens` of them. `return_token_ids` (streams) and `prompt_logprobs`
(completions of a prompt of token ids) are answered in vLLM's form. A request's header `x-mock` may ask for
    status=S        an answer with status S and an error body
    hang            nothing until POST /release
    hold-after=N    N events (not streamed: half of the body), then nothing until POST /release
    die-after=N     N events (not streamed: half of the body), then a broken connection
    cut-after=N     as die-after, with half of the next event before the end
GET /stats: how many requests started, finished and were aborted by the peer, and what the last one brought.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer
from starlette.types import Receive, Scope, Send

_PATHS = {"/v1/chat/completions": "chat.completion", "/v1/completions": "text_completion"}
# Every prompt is these tokens, and token N of every answer has id 1000 + N.
_PROMPT_TOKEN_IDS = [1, 2, 3, 4, 5]
_FIRST_TOKEN_ID = 1000
_Headers = list[tuple[bytes, bytes]]
_PeerLeft = asyncio.Task[None]


@dataclass
class Stats:
    """`last_body` in base64; `last_headers` in the order they came."""

    started: int = 0
    finished: int = 0
    aborted: int = 0
    last_body: str = ""
    last_query: str = ""
    last_peer: str = ""
    last_headers: list[tuple[str, str]] = field(default_factory=list)


class _PeerLeftError(Exception):
    """The peer closed the connection before its answer was complete."""


class MockEngine:
    """An ASGI application that serves one model id. Times in seconds."""

    def __init__(self, model: str, *, ttft: float = 0.0, itl: float = 0.0, tokens_per_chunk: int = 1) -> None:
        self.model = model
        self.stats = Stats()
        self._ttft = ttft
        self._itl = itl
        self._tokens_per_chunk = tokens_per_chunk
        self._released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "GET", "/health":
                await _respond(send, 200, {})
            case "GET", "/v1/models":
                model = {"id": self.model, "object": "model", "created": 0, "owned_by": "mock"}
                await _respond(send, 200, {"object": "list", "data": [model]})
            case "GET", "/stats":
                await _respond(send, 200, asdict(self.stats))
            case "POST", "/release":
                self._released.set()
                await _respond(send, 200, {})
            case "POST", path if path in _PATHS:
                await self._generate(scope, receive, send)
            case _:
                await _respond_error(send, 404, "Not Found")

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        self.stats.started += 1
        self.stats.last_body = base64.b64encode(body).decode()
        self.stats.last_query = scope["query_string"].decode("latin-1")
        self.stats.last_peer = str(scope["client"])
        self.stats.last_headers = headers
        peer_left = asyncio.create_task(_until_disconnect(receive))
        fault = dict(headers).get("x-mock", "")
        try:
            await self._answer(json.loads(body), _PATHS[scope["path"]], fault, peer_left, send)
            self.stats.finished += 1
        except _PeerLeftError:
            self.stats.aborted += 1
        finally:
            peer_left.cancel()

    async def _answer(self, request: dict[str, Any], kind: str, fault: str, peer_left: _PeerLeft, send: Send) -> None:
        fault, _, argument = fault.partition("=")
        if fault == "status":
            await _respond_error(send, int(argument), "As asked.")
            return
        if request["model"] != self.model:
            await _respond_error(send, 404, f"The model `{request['model']}` does not exist.")
            return
        if fault == "hang":
            await self._hold(peer_left)
        await _pause(peer_left, self._ttft)
        if request.get("stream"):
            pieces = list(self._events(request, kind))
            fault_at = int(argument or 0)
            await _start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        else:
            whole = json.dumps(self._completion(request, kind)).encode()
            pieces = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
            fault_at = 1
            length = (b"content-length", b"%d" % len(whole))
            await _start(send, 200, [(b"content-type", b"application/json"), length])
        for index, piece in enumerate(pieces):
            if index == fault_at and fault == "hold-after":
                await self._hold(peer_left)
            if index == fault_at and fault in ("die-after", "cut-after"):
                # The server breaks the connection of an answer that is left incomplete.
                await _send(send, piece[: len(piece) // 2] if fault == "cut-after" else b"")
                return
            await _send(send, piece)
            await _pause(peer_left, self._itl)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _hold(self, peer_left: _PeerLeft) -> None:
        released = asyncio.create_task(self._released.wait())
        await asyncio.wait((released, peer_left), return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        self._released.clear()
        await _pause(peer_left, 0)

    def _events(self, request: dict[str, Any], kind: str) -> Iterator[bytes]:
        """One event for each `tokens_per_chunk` tokens, then the finish, usage if asked for, and [DONE]."""
        tokens = _tokens(request)
        base = self._base(kind if kind == "text_completion" else "chat.completion.chunk")
        for start in range(0, len(tokens), self._tokens_per_chunk):
            part = tokens[start : start + self._tokens_per_chunk]
            choice = _choice(kind, "".join(part), None, "delta")
            chunk = {**base, "choices": [choice]}
            if request.get("return_token_ids"):
                choice["token_ids"] = [_FIRST_TOKEN_ID + start + offset for offset in range(len(part))]
                if start == 0:
                    chunk["prompt_token_ids"] = _PROMPT_TOKEN_IDS
            yield _event(chunk)
        yield _event({**base, "choices": [_choice(kind, "", "length", "delta")]})
        if (request.get("stream_options") or {}).get("include_usage"):
            yield _event({**base, "choices": [], "usage": _usage(len(tokens))})
        yield b"data: [DONE]\n\n"

    def _completion(self, request: dict[str, Any], kind: str) -> dict[str, Any]:
        tokens = _tokens(request)
        choice = _choice(kind, "".join(tokens), "length", "message")
        if request.get("prompt_logprobs"):
            choice["prompt_logprobs"] = [None, *(_logprob(token) for token in request["prompt"][1:])]
        return {**self._base(kind), "choices": [choice], "usage": _usage(len(tokens))}

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": "mock-1", "object": kind, "created": 0, "model": self.model}


def _tokens(request: dict[str, Any]) -> list[str]:
    return [f"w{index} " for index in range(request.get("max_tokens") or 16)]


def _choice(kind: str, text: str, finish: str | None, holder: str) -> dict[str, Any]:
    said = {"text": text} if kind == "text_completion" else {holder: {"role": "assistant", "content": text}}
    return {"index": 0, **said, "finish_reason": finish}


def _logprob(token: int) -> dict[str, Any]:
    """One position of vLLM's `prompt_logprobs`; every token is the most probable one."""
    return {str(token): {"logprob": -0.25, "rank": 1, "decoded_token": f"t{token}"}}


def _usage(tokens: int) -> dict[str, int]:
    prompt = len(_PROMPT_TOKEN_IDS)
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": tokens + prompt}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pause(peer_left: _PeerLeft, seconds: float) -> None:
    if seconds:
        await asyncio.wait((peer_left,), timeout=seconds)
    if peer_left.done():
        raise _PeerLeftError


async def _start(send: Send, status: int, headers: _Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _respond(send: Send, status: int, data: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(data).encode()
    length = (b"content-length", b"%d" % len(body))
    await _start(send, status, [(b"content-type", b"application/json"), length, *headers])
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _respond_error(send: Send, status: int, message: str) -> None:
    error = {"message": message, "type": "MockError", "param": None, "code": status}
    await _respond(send, status, {"error": error}, (b"retry-after", b"7"))


def run(
    port: Annotated[int, typer.Option()],
    model: Annotated[str, typer.Option(metavar="NAME:VARIANT")],
    ttft_ms: Annotated[float, typer.Option()] = 0.0,
    itl_ms: Annotated[float, typer.Option()] = 0.0,
    tokens_per_chunk: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Serve the mock engine on 127.0.0.1."""
    import uvicorn

    engine = MockEngine(model, ttft=ttft_ms / 1000, itl=itl_ms / 1000, tokens_per_chunk=tokens_per_chunk)
    uvicorn.run(engine, port=port, access_log=False, log_level="critical", lifespan="off", ws="none")


if __name__ == "__main__":
    typer.run(run)
