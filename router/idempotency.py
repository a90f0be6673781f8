"""Requests sent again under one `Idempotency-Key`: made once, paid once, and answered alike.

Answers are kept by the process that gave them, for ten minutes and in bounded memory. Those that failed are not kept,
so that they can be tried again; nor are streams, which can only be refused a second time.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from router.body import RequestBody
from router.errors import ApiError
from router.exchange import Answer
from router.http.server import Request

_KEPT_S = 600.0
_KEPT_BYTES = 64 * 1024 * 1024
_LONGEST_KEY = 255


@dataclass(slots=True, eq=False)
class Claim:
    """One key in use. `answer` is there once the first request is answered; `again` wakes those who wait."""

    name: tuple[str, str]
    digest: bytes
    stream: bool
    since: float
    again: asyncio.Event
    answer: Answer | None = None
    over: bool = False


class Idempotency:
    """The keys of the last minutes."""

    def __init__(self) -> None:
        self._claims: OrderedDict[tuple[str, str], Claim] = OrderedDict()
        self._bytes = 0

    async def claim(self, request: Request, body: RequestBody, owner: str) -> Claim | Answer | None:
        """None where the request has no key; the answer where it has been given; otherwise the right to give it.

        Whoever gets a claim has to end it.

        Raises:
            ApiError: 400, the key is too long; 409, a stream has it; 422, another request has it.
        """
        given = request.header(b"idempotency-key")
        if given is None:
            return None
        if not 0 < len(given) <= _LONGEST_KEY:
            message = f"The header Idempotency-Key must have 1 to {_LONGEST_KEY} bytes."
            raise ApiError(400, message, code="invalid_value", param="idempotency-key")
        name = owner, given.decode("latin-1")
        digest = sha256(request.target + b"\n" + body.raw).digest()
        while (claim := self._claims.get(name)) is not None:
            if claim.over and asyncio.get_running_loop().time() - claim.since > _KEPT_S:
                self._forget(claim)
                break
            if claim.digest != digest:
                message = "This Idempotency-Key was used for another request; give each request its own."
                raise ApiError(422, message, code="idempotency_key_reused", param="idempotency-key")
            if claim.stream:
                message = "A stream with this Idempotency-Key was begun already, and cannot be sent a second time."
                raise ApiError(409, message, code="idempotency_key_in_use", param="idempotency-key")
            if claim.answer is not None:
                return claim.answer
            await claim.again.wait()
        stream = body.members.get("stream") is True
        claim = Claim(name, digest, stream, asyncio.get_running_loop().time(), asyncio.Event())
        self._claims[name] = claim
        return claim

    def end(self, claim: Claim, answer: Answer | None, *, good: bool) -> None:
        """Keeps a good answer for those who ask again, and lets the key go otherwise."""
        claim.over = True
        if not good:
            self._forget(claim)
        else:
            claim.answer = answer
            self._bytes += len(answer.body) if answer is not None else 0
            self._claims.move_to_end(claim.name)
            self._make_room()
        claim.again.set()

    def _make_room(self) -> None:
        oldest_kept = asyncio.get_running_loop().time() - _KEPT_S
        for claim in list(self._claims.values()):
            if claim.over and (self._bytes > _KEPT_BYTES or claim.since < oldest_kept):
                self._forget(claim)
            elif claim.over:
                return

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.name) is claim:
            del self._claims[claim.name]
            self._bytes -= len(claim.answer.body) if claim.answer is not None else 0
