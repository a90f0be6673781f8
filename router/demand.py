"""What a request asks of a choice, read from its body and its headers."""

import zlib
from dataclasses import dataclass
from typing import Protocol

from router.body import RequestBody
from router.choice import Demand, Goal
from router.config import LaneName
from router.errors import ApiError
from router.record import NANO
from router.usage import estimate_tokens

# What a picture or a clip is taken to cost in prompt tokens.
_MEDIA_TOKENS = 1000
_PREFIX_CHARS = 4096
_TIERS: dict[str, LaneName] = {
    "auto": "interactive",
    "default": "interactive",
    "priority": "interactive",
    "flex": "batch",
    # Anthropic's.
    "standard_only": "interactive",
}
_PRIORITIES: dict[LaneName, int] = {"interactive": 0, "rollout": 1, "batch": 2}
_LANES: tuple[LaneName, ...] = ("interactive", "batch", "rollout")
# Asked for with another value than these, a sampling option needs an engine that does not speculate.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "min_p": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "logits_processors": (None, []),
}
_MEDIA = {"image_url": "image", "input_image": "image", "image": "image", "input_audio": "audio", "audio_url": "audio"}


class Headed(Protocol):
    """Whatever has a request's headers."""

    def header(self, wanted: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""


@dataclass(frozen=True, slots=True)
class Class:
    """How a request is scheduled: its lane, the tier that it gets, and the seconds after which it is late."""

    lane: LaneName
    tier: str
    patience: float

    @property
    def priority(self) -> int:
        """vLLM's: lower goes first, and 0 is what requests have that say nothing."""
        return -1 if self.tier == "priority" else _PRIORITIES[self.lane]


def read_class(request: Headed, body: RequestBody) -> Class:
    """From `service_tier`, or the header `x-twinspeed-lane`.

    Raises:
        ApiError: 400 for a tier or lane that there is not.
    """
    tier = body.members.get("service_tier") or "default"
    if not isinstance(tier, str) or tier not in _TIERS:
        raise _invalid(f"`service_tier` must be one of {', '.join(_TIERS)}.", "service_tier")
    lane = _TIERS[tier]
    asked = request.header(b"x-twinspeed-lane")
    if asked is not None:
        named = asked.decode("latin-1")
        if named not in _LANES:
            raise _invalid(f"The header x-twinspeed-lane must be one of {', '.join(_LANES)}.", "x-twinspeed-lane")
        lane = named
    return Class(lane, tier if tier in ("flex", "priority") else "default", 1.0 if tier == "priority" else 10.0)


def read_demand(request: Headed, body: RequestBody, *, pin: str | None, goal: Goal) -> Demand:
    """Raises ApiError, 400, where a header is no number."""
    members = body.members
    needs, media = _needs(members, body.raw)
    texts = len(body.raw) if not media else _text_length(members)
    slo_ttft = _number(request, b"x-slo-ttft-ms")
    slo_tpot = _number(request, b"x-slo-tpot-ms")
    max_cost = _number(request, b"x-max-cost-usd")
    session = request.header(b"x-session-id")
    task = request.header(b"x-twinspeed-task")
    return Demand(
        pin=pin,
        goal=goal,
        prompt_tokens=estimate_tokens(texts) + media * _MEDIA_TOKENS,
        max_tokens=_max_tokens(members),
        needs=needs,
        task_kind=task.decode("latin-1") if task else "chat",
        session=session.decode("latin-1") if session else None,
        prefix_hash=_prefix_hash(members),
        slo_ttft_s=None if slo_ttft is None else slo_ttft / 1000,
        slo_tpot_s=None if slo_tpot is None else slo_tpot / 1000,
        max_cost=None if max_cost is None else round(max_cost * NANO),
    )


def _needs(members: dict[str, object], raw: bytes) -> tuple[frozenset[str], int]:
    """What the engine has to be able to do, and how many pictures and clips there are."""
    needs = {name for name, neutral in _NEUTRAL.items() if name in members and members[name] not in neutral}
    if members.get("tools"):
        needs.add("tools")
    media = 0
    if b"image" in raw or b"audio" in raw:
        for part in _content_parts(members):
            kind = _MEDIA.get(str(part.get("type")))
            if kind:
                needs.add(kind)
                media += 1
    return frozenset(needs), media


def _content_parts(members: dict[str, object]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = []
    for name in ("messages", "input"):
        turns = members.get(name)
        for turn in turns if isinstance(turns, list) else ():
            content = turn.get("content") if isinstance(turn, dict) else None
            parts += [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return parts


def _text_length(members: dict[str, object]) -> int:
    """Characters of text in the messages, without pictures and clips."""
    length = 0
    for name in ("messages", "input"):
        turns = members.get(name)
        for turn in turns if isinstance(turns, list) else ():
            content = turn.get("content") if isinstance(turn, dict) else None
            if isinstance(content, str):
                length += len(content)
    return length + sum(len(str(part.get("text", ""))) for part in _content_parts(members))


def _max_tokens(members: dict[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = members.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _prefix_hash(members: dict[str, object]) -> int | None:
    """Equal for requests whose prompts begin alike: what a conversation keeps from turn to turn."""
    turns = members.get("messages") or members.get("input") or members.get("prompt")
    if isinstance(turns, str):
        text = turns[:_PREFIX_CHARS]
    elif isinstance(turns, list) and turns:
        text = "".join(map(_opening, turns[:2]))
    else:
        return None
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _opening(turn: object) -> str:
    content = turn.get("content") if isinstance(turn, dict) else turn
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict) and part.get("text")), "")
    return str(content)[:_PREFIX_CHARS]


def _number(request: Headed, header: bytes) -> float | None:
    value = request.header(header)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise _invalid(f"The header {header.decode()} must be a number that is not negative.", header.decode())
    return number


def _invalid(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
