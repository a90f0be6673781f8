"""The requests of the storm. What an answer has to be is what an undisturbed engine says to the same request."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from router.usage import parse_usage
from tests.router.chaos.client import ask_once, request

NAME = "acme/tiny-7b"
VARIANTS = ("standard", "fast")
_TAG = "t00000000"
_STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_EVENTS_OF_USAGE = ("/v1/chat/completions", "/v1/completions")


def tag(number: int) -> str:
    """As long as every other, so that it can be put in the place of another."""
    return f"t{number:08d}"


@dataclass(slots=True)
class Shape:
    """One kind of request. `suffix` is the pin, or nothing; `weight` how often it comes, against the others."""

    path: str
    suffix: str
    stream: bool
    body: dict[str, object]
    weight: float = 1.0
    tokens: int = 0
    """Prompt and completion, once `learn` knows them."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """By variant, with the tag of the request that was asked there."""

    @property
    def variants(self) -> tuple[str, ...]:
        return (self.suffix,) if self.suffix else VARIANTS

    def _encode(self, model: str) -> bytes:
        return json.dumps({"model": model, **self.body, "metadata": {"tag": _TAG}}).encode()

    def request(self, name: str, secret: str, **headers: str) -> bytes:
        model = f"{NAME}:{self.suffix}" if self.suffix else NAME
        body = self._encode(model).replace(_TAG.encode(), name.encode())
        return request(
            "POST",
            self.path,
            body,
            content_type="application/json",
            authorization=f"Bearer {secret}",
            x_request_id=name,
            **headers,
        )

    def answer(self, variant: str, name: str) -> bytes:
        return self.answers[variant].replace(_TAG.encode(), name.encode())

    async def learn(self, ports: Mapping[str, int]) -> None:
        """Asks the undisturbed engine of each variant, at its port."""
        for variant in self.variants:
            reply = await ask_once(ports[variant], "POST", self.path, self._encode(f"{NAME}:{variant}"))
            assert reply.status == 200, reply.body
            self.answers[variant] = reply.body
            # In the same words, not streamed, every API says what it used.
            whole = self._encode(f"{NAME}:{variant}").replace(b'"stream": true', b'"stream": false')
            used = parse_usage((await ask_once(ports[variant], "POST", self.path, whole)).body)
            assert used is not None, self.path
            assert used.cached == 0, "what an engine has cached depends on the storm"
            self.tokens = used.total


def shapes() -> list[Shape]:
    return list(_shapes())


def _shapes() -> Iterator[Shape]:
    for suffix, often in (("", 2.0), ("standard", 1.0), ("fast", 1.0)):
        for length in (1, 6, 17):
            for path in _STREAMS:
                usual = often * (3.0 if path == "/v1/chat/completions" else 0.5)
                yield Shape(path, suffix, False, _words(path, length), usual)
                yield Shape(path, suffix, True, {**_words(path, length), "stream": True}, usual)
                if path in _EVENTS_OF_USAGE:
                    options = {"stream": True, "stream_options": {"include_usage": True}}
                    yield Shape(path, suffix, True, {**_words(path, length), **options}, usual)
        # More than sockets' buffers hold.
        yield Shape(_STREAMS[0], suffix, True, {**_words(_STREAMS[0], 700), "stream": True}, often * 0.2)
        # More than the router holds before it passes an answer on.
        yield Shape("/v1/embeddings", suffix, False, {"input": "a b c", "dimensions": 430_000}, often * 0.01)
        yield Shape("/v1/embeddings", suffix, False, {"input": "a b c"}, often * 0.3)


def _words(path: str, length: int) -> dict[str, object]:
    text = "one two three four five"
    match path:
        case "/v1/completions":
            return {"prompt": text, "max_tokens": length}
        case "/v1/responses":
            return {"input": text, "max_output_tokens": length}
        case _:
            return {"messages": [{"role": "user", "content": text}], "max_tokens": length}
