"""What a client may have seen, request by request, and what the router may have done for it."""

import json
from collections import Counter
from collections.abc import Sequence

from tests.router.chaos.client import Reply
from tests.router.chaos.engines import Engine
from tests.router.chaos.router import AFTERMATH_S
from tests.router.chaos.storm import Seen

_ERROR = b'data: {"error"'
_LIMITS = frozenset(
    ("rate_limit_requests", "rate_limit_tokens", "concurrency_limit", "budget_day_exceeded", "model_not_allowed")
)
_BROKEN = frozenset(("variant_failed", "variant_timeout"))
_CODES = _LIMITS | {"variant_unavailable", "variant_timeout", "lane_full", "invalid_api_key"}


# What another replica could have prevented; a stream that has begun stays where it is.
_AVOIDABLE = frozenset(("503 variant_unavailable", "504 variant_timeout", "no answer", "cut"))


class Verdict:
    """Judges every request of a storm. `faults` in words; `outcomes` counts what came of the requests.

    `complete` are the ids of those whose client saw the whole right answer. `servable` counts those for which a replica
    was in no trouble all the while, `avoidable` what failed of them.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.faults: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.complete: set[str] = set()
        self.servable = 0
        self.avoidable: Counter[str] = Counter()
        self._engines = engines
        self._by_replica = {engine.replica: engine for engine in engines}

    def judge(self, seen: Seen) -> None:
        reply = seen.reply
        if reply.left:
            outcome = "client left"
            if reply.status == 200 and reply.body and not self._may_be_garbage(reply):
                self._expect_prefix(seen, reply.body)
        elif not reply.status:
            outcome = "no answer"
            self._fault(seen, "the connection broke before the head")
        elif reply.status == 200 and self._may_be_garbage(reply):
            outcome = "maybe garbage"
        elif reply.status == 200 and not reply.complete:
            outcome = "cut"
            if seen.shape.stream:
                self._fault(seen, "a stream was cut without an error event")
            self._expect_prefix(seen, reply.body)
        elif reply.status == 200:
            outcome = self._whole(seen)
        else:
            outcome = self._refused(seen)
        self.outcomes[outcome] += 1
        if not seen.poison and not reply.left and self._could_be_served(seen):
            self.servable += 1
            if outcome in _AVOIDABLE:
                self.avoidable[outcome] += 1

    def _whole(self, seen: Seen) -> str:
        body = seen.reply.body
        if body == self._wanted(seen):
            self.complete.add(seen.name)
            return "ok"
        at = body.rfind(_ERROR)
        if not seen.shape.stream or at < 0:
            self._fault(seen, f"wrong bytes: …{body[-300:]!r}")
            return "wrong"
        code = self._code(seen, body[at + len(b"data: ") :])
        if code not in _BROKEN or body.count(_ERROR) != 1 or not body.endswith(b"\n\n"):
            self._fault(seen, f"a stream ended with {body[at:]!r}")
        self._expect_prefix(seen, body[:at])
        return f"200 {code}"

    def _expect_prefix(self, seen: Seen, part: bytes) -> None:
        wanted = self._wanted(seen)
        at = part.rfind(_ERROR)
        if seen.reply.left and at >= 0:
            part = part[:at]
        # An event that was cut short is ended before the error event.
        if not wanted.startswith(part) and not (part.endswith(b"\n\n") and wanted.startswith(part[:-2])):
            self._fault(seen, f"wrong bytes in a part: …{part[-300:]!r}")

    def _refused(self, seen: Seen) -> str:
        reply = seen.reply
        if not reply.complete:
            self._fault(seen, f"an error of status {reply.status} was cut")
        code = self._code(seen, reply.body)
        engine = self._by_replica.get(reply.headers.get(b"x-twinspeed-replica", b"").decode())
        if code == str(reply.status):
            # vLLM's form of an error: the engine's own.
            asked = seen.poison.endswith(f"status={code}")
            if not asked and (engine is None or not engine.felt(reply.sent_at, reply.ended_at, "status")):
                self._fault(seen, f"an engine's {code} that nobody asked for")
            return f"engine's {code}"
        if code not in _CODES:
            self._fault(seen, f"an unknown code: {reply.body!r}")
        return f"{reply.status} {code}"

    def _code(self, seen: Seen, body: bytes) -> str:
        """The code of an error in OpenAI's shape, or in Anthropic's, as an engine writes it."""
        try:
            data = json.loads(body)
            error = data["error"]
            assert isinstance(error["message"], str)
            assert isinstance(error["type"], str)
            if data.get("type") == "error":
                return str(seen.reply.status)
            assert error["param"] is None or isinstance(error["param"], str)
            return str(error["code"])
        except (ValueError, KeyError, TypeError, AssertionError):
            self._fault(seen, f"no error in OpenAI's shape: {body!r}")
            return "?"

    def _wanted(self, seen: Seen) -> bytes:
        variant = seen.reply.headers.get(b"x-twinspeed-variant", b"").decode()
        if variant not in seen.shape.variants:
            self._fault(seen, f"served by variant {variant!r}")
            return b""
        return seen.shape.answer(variant, seen.name)

    def _may_be_garbage(self, reply: Reply) -> bool:
        engine = self._by_replica[reply.headers[b"x-twinspeed-replica"].decode()]
        return engine.felt(reply.sent_at, reply.ended_at, "garbage")

    def _could_be_served(self, seen: Seen) -> bool:
        """Whether one of the replicas was in no trouble all the while."""
        start, end = seen.reply.sent_at - AFTERMATH_S, seen.reply.ended_at
        return any(not engine.felt(start, end) for engine in self._engines if engine.variant in seen.shape.variants)

    def _fault(self, seen: Seen, what: str) -> None:
        self.faults.append(f"{seen.name} {seen.shape.path}:{seen.shape.suffix} {seen.manner} {seen.poison}: {what}")
