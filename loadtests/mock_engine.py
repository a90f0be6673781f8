"""A deterministic stand-in for one vLLM server, which misbehaves on request and tells what reached it.

It serves one model id by vLLM's APIs: chat completions, completions, responses, messages, embeddings, tokenize and
detokenize, health, models and metrics. A token is a word. An answer is `w0 w1 w2 …`, as long as it may be, or for
    metadata.tag or user                        the same with `[tag]` as its first token
    response_format or text.format              a small JSON value that fits a simple schema
    tools, where tool_choice asks for a call    a call whose arguments fit the function's parameters
    x_echo_sha: true                            the SHA-256 of the body as it arrived, whole, in hexadecimal
`stop`, `n`, `logprobs`, `return_token_ids` (chat, completions) and `prompt_logprobs` (completions) are answered in
vLLM's form. A repeated beginning of a prompt is cached, in blocks of 16 tokens, for requests of one `cache_salt`.

A request's header `x-mock`, or else POST /fault {"x-mock": …} for all requests until POST /fault {}, may ask for
    status=S        an answer with status S and an error body
    hang            nothing until POST /release
    hold-after=N    N events (not streamed: half of the body), then nothing until POST /release
    die-after=N     N events (not streamed: half of the body), then a broken connection
    cut-after=N     as die-after, with half of the next event before the end
    garbage         a whole answer of bytes that are no JSON
    bad-http        bytes that are no HTTP, then the end of the connection
    reset           a reset of the connection before the head
    slow=MS         a pause before each event (not streamed: before each half of the body)
    split           each event (each half) in three writes
    burst=N         N events in each write
and with `once:` before it for the next request only; in a header, only for the first request of an x-request-id.

GET /stats: how many requests started, finished and were aborted by the peer, and what the last one brought.
GET /log?limit=N: the last requests, with their ids and outcomes. GET /requests: how often each x-request-id came.
POST /release-loading: the end of a start that would last longer; until then all of vLLM's paths answer 503.
"""

import asyncio
import json
import time
from typing import Annotated
from urllib.parse import parse_qs

import typer
from starlette.types import Receive, Scope, Send

from loadtests.mock.answers import PATHS, Answers
from loadtests.mock.batch import Batch, Pace
from loadtests.mock.faults import BrokenOffError, Fault, Holds, Peer, break_connection, parse_fault
from loadtests.mock.http import METRICS, header, read_body, respond, respond_error
from loadtests.mock.ledger import ABORTED, FINISHED, Entry, Ledger, Stats
from loadtests.mock.request import BadRequestError
from loadtests.mock.wire import to_json


class MockEngine:
    """An ASGI application that serves one model id. Times in seconds; Pace explains those of the batch."""

    def __init__(
        self,
        model: str,
        *,
        ttft: float = 0.0,
        itl: float = 0.0,
        tokens_per_chunk: int = 1,
        itl_per_seq: float = 0.0,
        prefill_tokens_per_s: float = 0.0,
        max_num_seqs: int = 0,
        loading: float = 0.0,
    ) -> None:
        """Answers 503 for `loading` seconds from now; infinity lasts until POST /release-loading."""
        self.model = model
        self.stats = Stats()
        self.ledger = Ledger()
        self._batch = Batch(Pace(ttft, itl, itl_per_seq, prefill_tokens_per_s, max_num_seqs))
        self._holds = Holds()
        self._answers = Answers(model, self._batch, self._holds, tokens_per_chunk)
        self._ready_at = time.monotonic() + loading
        self._default_fault = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path in PATHS and scope["method"] == "POST" and not self._is_loading():
            await self._serve(path, scope, receive, send)
            return
        match scope["method"], path:
            case "GET", "/stats":
                await respond(send, 200, to_json(self.stats.to_json()))
            case "GET", "/log":
                limit = int(parse_qs(scope["query_string"].decode()).get("limit", ["100"])[0])
                await respond(send, 200, to_json({"requests": self.ledger.last(limit)}))
            case "GET", "/requests":
                await respond(send, 200, to_json(self.ledger.counts))
            case "POST", "/release":
                self._holds.release()
                await respond(send, 200, b"{}")
            case "POST", "/release-loading":
                self._ready_at = 0.0
                await respond(send, 200, b"{}")
            case "POST", "/fault":
                await self._set_fault(await read_body(receive), send)
            case _ if self._is_loading():
                await respond_error(send, path, 503, "The engine is loading its model.")
            case "GET", "/health":
                await respond(send, 200, b"{}")
            case "GET", "/v1/models":
                model = {"id": self.model, "object": "model", "created": 0, "owned_by": "mock"}
                await respond(send, 200, to_json({"object": "list", "data": [model]}))
            case "GET", "/metrics":
                await respond(send, 200, self._batch.metrics(self.model), METRICS)
            case _:
                await respond_error(send, path, 404, "Not Found")

    def _is_loading(self) -> bool:
        return time.monotonic() < self._ready_at

    async def _set_fault(self, body: bytes, send: Send) -> None:
        fault = json.loads(body).get("x-mock", "")
        try:
            if fault:
                parse_fault(fault)
        except BadRequestError as error:
            await respond_error(send, "/fault", 400, str(error))
            return
        self._default_fault = fault
        await respond(send, 200, b"{}")

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        headers = scope["headers"]
        self.stats.add(body, scope["query_string"], headers, str(scope["client"]))
        entry = self.ledger.add(path, header(headers, b"x-request-id"))
        peer = Peer(receive)
        try:
            fault = self._choose_fault(entry, header(headers, b"x-mock"))
            if fault is not None and fault.name in ("reset", "bad-http"):
                await break_connection(fault, send, receive)
            elif fault is not None and fault.name == "status":
                await respond_error(send, path, fault.number, "As asked.", (b"retry-after", b"7"))
            else:
                await self._answers.answer(path, body, fault, peer, send)
        except BadRequestError as error:
            await respond_error(send, path, 400, str(error))
        except BrokenOffError:
            pass
        except asyncio.CancelledError:
            if not peer.left:
                raise
            self.stats.aborted += 1
            entry.outcome = ABORTED
            return
        finally:
            peer.close()
        self.stats.finished += 1
        entry.outcome = FINISHED

    def _choose_fault(self, entry: Entry, asked: str) -> Fault | None:
        """The header's fault where one is `asked` for, or else the default one."""
        text = asked or self._default_fault
        if not text:
            return None
        fault = parse_fault(text)
        if fault.once:
            if not asked:
                self._default_fault = ""
            elif not self.ledger.is_first(entry):
                return None
        entry.fault = text
        return fault


def run(
    port: Annotated[int, typer.Option()],
    model: Annotated[str, typer.Option(metavar="NAME:VARIANT")],
    ttft_ms: Annotated[float, typer.Option()] = 0.0,
    itl_ms: Annotated[float, typer.Option()] = 0.0,
    tokens_per_chunk: Annotated[int, typer.Option(min=1)] = 1,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at once; more wait. 0 sets no limit.")] = 0,
    itl_per_seq_ms: Annotated[float, typer.Option(help="Added to each step for each request that runs.")] = 0.0,
    prefill_tokens_per_s: Annotated[float, typer.Option(help="For all prompts together; 0 takes no time.")] = 0.0,
    loading_s: Annotated[float, typer.Option(help="503 for so long; inf lasts until POST /release-loading.")] = 0.0,
) -> None:
    """Serve the mock engine on 127.0.0.1."""
    import uvicorn

    engine = MockEngine(
        model,
        ttft=ttft_ms / 1000,
        itl=itl_ms / 1000,
        tokens_per_chunk=tokens_per_chunk,
        itl_per_seq=itl_per_seq_ms / 1000,
        prefill_tokens_per_s=prefill_tokens_per_s,
        max_num_seqs=max_num_seqs,
        loading=loading_s,
    )
    uvicorn.run(engine, port=port, access_log=False, log_level="critical", lifespan="off", ws="none")


if __name__ == "__main__":
    typer.run(run)
