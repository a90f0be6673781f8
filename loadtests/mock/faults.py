"""What can go wrong with an answer on request, and the sending of an answer with that fault."""

import asyncio
import re
import socket
import struct
from dataclasses import dataclass
from typing import Protocol, cast

from starlette.types import Receive, Send

from loadtests.mock.request import BadRequestError

# Whether a fault takes a number.
_FAULTS = {
    "status": True,
    "hang": False,
    "hold-after": True,
    "die-after": True,
    "cut-after": True,
    "garbage": False,
    "bad-http": False,
    "reset": False,
    "slow": True,
    "split": False,
    "burst": True,
}
_ASKED = re.compile(r"(?P<once>once:)?(?P<name>[a-z-]+)(=(?P<number>[0-9]{1,9}))?")
_NO_HTTP = b"\x00\x15\x03 this is no HTTP\r\n\r\n"
_GARBAGE = b'{"choices":[{\xff\xfe\x00]}'


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    number: int
    once: bool


def parse_fault(text: str) -> Fault:
    """The fault that `x-mock` asks for. Raises BadRequestError where there is none such."""
    asked = _ASKED.fullmatch(text)
    if asked is None or _FAULTS.get(asked["name"]) is not (asked["number"] is not None):
        known = ", ".join(f"{name}=N" if numbered else name for name, numbered in _FAULTS.items())
        raise BadRequestError(f"x-mock: no fault {text!r}; there are {known}, each also after once:")
    return Fault(asked["name"], int(asked["number"] or 0), asked["once"] is not None)


class BrokenOffError(Exception):
    """The answer ends here, incomplete; the server will break the connection."""


class Holds:
    """Where answers wait until somebody releases all of them, or the next one where none waits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._open = False

    async def wait(self) -> None:
        if self._open:
            self._open = False
            return
        released = asyncio.get_running_loop().create_future()
        self._waiting.add(released)
        try:
            await released
        finally:
            self._waiting.discard(released)

    def release(self) -> None:
        self._open = not self._waiting
        for released in self._waiting:
            if not released.done():
                released.set_result(None)


class Peer:
    """Cancels the task that answers when the other side closes the connection before the answer is complete."""

    def __init__(self, receive: Receive) -> None:
        self.left = False
        self._receive = receive
        self._over = False
        self._answering = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Worth its cost only where the answer waits for something."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_left())

    async def complete(self) -> None:
        """Before the answer's last bytes: from here on the other side may leave. A leave until now is told here."""
        if self._watch is not None:
            await asyncio.sleep(0)
        self.close()

    def close(self) -> None:
        self._over = True
        if self._watch is not None:
            self._watch.cancel()

    async def _until_left(self) -> None:
        await until_disconnect(self._receive)
        if not self._over and self._answering is not None:
            self.left = True
            self._answering.cancel()


class Delivery:
    """Sends the pieces of one answer: events, or the halves of a JSON body; spoilt where there is a fault."""

    def __init__(self, send: Send, fault: Fault, holds: Holds, *, stream: bool) -> None:
        self._send = send
        self._fault = fault
        self._holds = holds
        self._stream = stream
        # A body that is not streamed is faulty in its middle.
        self._fault_at = fault.number if stream else 1
        self._index = 0
        self._burst = b""

    async def write(self, piece: bytes) -> None:
        """Raises BrokenOffError where the fault ends the answer."""
        here = self._index == self._fault_at
        self._index += 1
        match self._fault.name:
            case "hold-after" if here:
                await self._holds.wait()
            case "die-after" if here:
                await self._write(b"")
                raise BrokenOffError
            case "cut-after" if here:
                await self._write(piece[: len(piece) // 2])
                raise BrokenOffError
            case "slow":
                await asyncio.sleep(self._fault.number / 1000)
            case "garbage":
                piece = _spoilt(piece, stream=self._stream)
            case "burst":
                self._burst += piece
                if self._index % max(1, self._fault.number):
                    return
                piece, self._burst = self._burst, b""
            case "split":
                third = len(piece) // 3 or 1
                for part in (piece[:third], piece[third : 2 * third]):
                    await self._write(part)
                    await asyncio.sleep(0)
                piece = piece[2 * third :]
        await self._write(piece)

    async def flush(self) -> None:
        if self._burst:
            await self._write(self._burst)

    async def _write(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})


def _spoilt(piece: bytes, *, stream: bool) -> bytes:
    """Bytes of the same length that are no JSON, in the frame of an event where it is one."""
    if not stream:
        return (_GARBAGE * (len(piece) // len(_GARBAGE) + 1))[: len(piece)]
    return b"data: " + _GARBAGE + b"\n\n"


class _Cycle(Protocol):
    transport: asyncio.Transport


async def break_connection(fault: Fault, send: Send, receive: Receive) -> None:
    """Closes the connection without an answer: with a reset, or after bytes that are no HTTP. Needs uvicorn."""
    transport = cast(_Cycle, getattr(send, "__self__")).transport  # noqa: B009
    if fault.name == "reset":
        # With no time to linger, what the other side gets is a reset and not an end.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.write(_NO_HTTP)
        transport.close()
    # uvicorn would answer 500 for us if it had not noticed the end.
    await until_disconnect(receive)


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
