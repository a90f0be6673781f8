"""Whether a cheaper variant's answer will do: the verifiers of a cascade, and what two answers are compared by."""

import asyncio
import json
import logging
import re
from collections.abc import Callable

import jsonschema  # type: ignore[import-untyped]
from aiohttp import ClientError, ClientSession, ClientTimeout
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from router.body import RequestBody
from router.config import Cascade

_TIMEOUT = ClientTimeout(total=10)

_logger = logging.getLogger(__name__)


async def accepts(cascade: Cascade, body: RequestBody, answer: bytes) -> bool:
    """Whether the cascade's verifier takes a whole answer, in JSON. What cannot be verified is not taken."""
    try:
        data = json.loads(answer)
    except ValueError:
        return False
    if cascade.verifier == "http":
        return await _ask(cascade.url or "", body, data)
    texts = texts_of(data)
    check = _schema_check(body) if cascade.verifier == "json_schema" else _pattern_check(cascade.pattern or "")
    # A schema or a pattern can take long on what it was not made for.
    return bool(texts) and await asyncio.to_thread(lambda: all(check(text) for text in texts))


def texts_of(data: object) -> list[str]:
    """The text of every choice of an answer; empty where one has none, such as a tool call."""
    if not isinstance(data, dict):
        return []
    if isinstance(data.get("output"), list):
        parts = [part for item in data["output"] if isinstance(item, dict) for part in item.get("content") or ()]
        return ["".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))]
    texts = []
    for choice in data.get("choices") or ():
        message = choice.get("message") if isinstance(choice, dict) else None
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if not isinstance(text, str):
            return []
        texts.append(text)
    return texts


def agree(one: bytes, other: bytes) -> bool:
    """Whether two answers to the same request say the same: their text and their tool calls."""

    def said(answer: bytes) -> object:
        try:
            data = json.loads(answer)
            return [
                [choice["message"].get("content"), _calls(choice["message"])] if "message" in choice else choice["text"]
                for choice in data["choices"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    first = said(one)
    return first is not None and first == said(other)


def _calls(message: dict[str, object]) -> list[object]:
    calls = message.get("tool_calls")
    return [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _pattern_check(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def _schema_check(body: RequestBody) -> Callable[[str], bool]:
    """Against the schema of the request's `response_format`; without one, the text has to be JSON."""
    asked = body.members.get("response_format")
    given = asked.get("json_schema") if isinstance(asked, dict) else None
    schema = given.get("schema") if isinstance(given, dict) else None

    def check(text: str) -> bool:
        try:
            # With a registry of its own, because the default one fetches, and a client's schema may name any address.
            validator = jsonschema.Draft202012Validator(schema if isinstance(schema, dict) else True, registry=REGISTRY)
            validator.validate(json.loads(text))
        except (ValueError, jsonschema.exceptions.ValidationError, jsonschema.exceptions.SchemaError):
            return False
        except Exception as error:
            # A client's schema can be anything, such as one that refers to itself or to elsewhere.
            _logger.info("a response_format's schema cannot be checked: %r", error)
            return False
        return True

    return check


async def _ask(url: str, body: RequestBody, answer: object) -> bool:
    """What the operator's own verifier says."""
    question = {"request": body.members, "response": answer}
    try:
        async with (
            ClientSession(timeout=_TIMEOUT) as session,
            session.post(url, json=question, allow_redirects=False) as said,
        ):
            verdict = await said.json() if said.status == 200 else None
    except (ClientError, TimeoutError, ValueError) as error:
        _logger.warning("the verifier at %s failed: %r", url, error)
        return False
    return isinstance(verdict, dict) and verdict.get("accept") is True
