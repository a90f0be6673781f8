"""Answers the requests of vLLM's APIs, in the time that the batch takes and with the fault that was asked for."""

import asyncio
import json
from collections.abc import Callable
from functools import lru_cache

from starlette.types import Send

from loadtests.mock import chat, messages, request, responses, tokens
from loadtests.mock.batch import Batch
from loadtests.mock.faults import Delivery, Fault, Holds, Peer
from loadtests.mock.http import EVENTS, JSON, respond, respond_error, start
from loadtests.mock.reply import Reply, compose
from loadtests.mock.request import Ask, BadRequestError, Json
from loadtests.mock.wire import to_json

# A long answer that takes no time lets others go on after so many steps, and sees whether its peer has left.
_STEPS_AT_ONCE = 256
_REMEMBERED = 64


class _Api:
    """How one of the APIs for generation is read and written. Load tests ask for the same answers again and again."""

    def __init__(
        self,
        read: Callable[[Json], Ask],
        whole: Callable[[Reply], Json],
        steps: Callable[[Reply], list[list[bytes]]],
    ) -> None:
        self.read = read
        self.whole = lru_cache(_REMEMBERED)(lambda reply: to_json(whole(reply)))
        self.steps = lru_cache(_REMEMBERED)(steps)


_APIS = {
    "/v1/chat/completions": _Api(request.read_chat, chat.chat, chat.chat_steps),
    "/v1/completions": _Api(request.read_completion, chat.completion, chat.completion_steps),
    "/v1/responses": _Api(request.read_responses, responses.response, responses.response_steps),
    "/v1/messages": _Api(request.read_messages, messages.message, messages.message_steps),
}
# What takes no generation takes no time either.
_CALCULATIONS: dict[str, Callable[[Json, str], Json]] = {
    "/v1/embeddings": tokens.embeddings,
    "/v1/messages/count_tokens": tokens.count_tokens,
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
}
PATHS = frozenset((*_APIS, *_CALCULATIONS))


class Answers:
    """Answers for one model id; a step of the engine makes `tokens_per_chunk` tokens, which are one event."""

    def __init__(self, model: str, batch: Batch, holds: Holds, tokens_per_chunk: int) -> None:
        self._model = model
        self._batch = batch
        self._holds = holds
        self._tokens_per_chunk = tokens_per_chunk

    async def answer(self, path: str, body: bytes, fault: Fault | None, peer: Peer, send: Send) -> None:
        """One of PATHS. Raises BadRequestError before the answer has begun, and BrokenOffError after that."""
        request = _parse(body)
        model = request.get("model")
        if model not in (None, self._model):
            await respond_error(send, path, 404, f"The model `{model}` does not exist.")
            return
        if fault is not None or self._batch.may_wait:
            peer.watch()
        api = _APIS.get(path)
        if api is None:
            answer = _CALCULATIONS[path](request, self._model)
            await self._hang(fault)
            await self._send_whole(to_json(answer), fault, peer, send)
            return
        ask = api.read(request)
        cached = sum(self._batch.cache.add(prompt, ask.salt) for prompt in ask.prompts)
        reply = compose(ask, body, self._model, cached, self._tokens_per_chunk)
        held = reply.prompt.tokens + reply.output_tokens
        await self._batch.enter(held)
        try:
            await self._hang(fault)
            await self._batch.prefill(reply.prompt.tokens, cached)
            if ask.stream:
                await self._send_steps(api.steps(reply), reply, fault, peer, send)
            else:
                if self._batch.steps_take_time:
                    for _ in reply.chunks()[1:]:
                        await self._batch.step()
                self._batch.generation_tokens += reply.output_tokens
                await self._send_whole(api.whole(reply), fault, peer, send)
        finally:
            self._batch.leave(held)

    async def _hang(self, fault: Fault | None) -> None:
        if fault is not None and fault.name == "hang":
            await self._holds.wait()

    async def _send_whole(self, body: bytes, fault: Fault | None, peer: Peer, send: Send) -> None:
        if fault is None:
            await peer.complete()
            await respond(send, 200, body)
            return
        await start(send, 200, JSON, (b"content-length", b"%d" % len(body)))
        delivery = Delivery(send, fault, self._holds, stream=False)
        for piece in (body[: len(body) // 2], body[len(body) // 2 :]):
            await delivery.write(piece)
        await _end(delivery, peer, send)

    async def _send_steps(
        self, steps: list[list[bytes]], reply: Reply, fault: Fault | None, peer: Peer, send: Send
    ) -> None:
        await start(send, 200, EVENTS)
        delivery = None if fault is None else Delivery(send, fault, self._holds, stream=True)
        left = reply.output_tokens
        timed = self._batch.steps_take_time
        for number, step in enumerate(steps):
            if number and timed:
                await self._batch.step()
            elif number % _STEPS_AT_ONCE == _STEPS_AT_ONCE - 1:
                peer.watch()
                await asyncio.sleep(0)
            made = min(left, reply.tokens_per_chunk * reply.choices)
            self._batch.generation_tokens += made
            left -= made
            for event in step:
                if delivery is None:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                else:
                    await delivery.write(event)
        await _end(delivery, peer, send)


async def _end(delivery: Delivery | None, peer: Peer, send: Send) -> None:
    if delivery is not None:
        await delivery.flush()
    await peer.complete()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _parse(body: bytes) -> Json:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"The body is no JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequestError("The body must be a JSON object.")
    return request
