"""One replica as the router uses it: its connections, its breaker, and what its engine reports of itself."""

import contextlib
import logging
import re
import zlib
from dataclasses import dataclass
from time import monotonic

from aiohttp import ClientError, ClientSession

from router.attempts import CircuitBreaker
from router.choice import Replica
from router.config import Breaker
from router.http.upstream import Pool

_SIGNAL = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{[^}\n]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
# An engine at work may be late with its answer; one that refuses, or says that it is not well, is believed at once.
_LATE_ALLOWED = 3

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Backend:
    """One replica, and what it takes to send it requests. `name` tells it apart without giving its address away."""

    name: str
    replica: Replica
    pool: Pool
    breaker: CircuitBreaker
    takes_priority: bool = False
    """Whether the engine schedules by vLLM's `priority`."""
    late: int = 0
    """How many times in a row the engine was late to say that it is well."""

    def refresh(self, now: float) -> None:
        """Shows the breaker's state to the choice."""
        self.replica.breaker_open = self.breaker.is_open(now)

    async def look(self, session: ClientSession) -> bool:
        """Asks the engine how it is; whether it became ready, or stopped being so."""
        replica = self.replica
        try:
            async with session.get(f"{replica.url}/health") as response:
                ready = response.status == 200
            self.late = 0
        except TimeoutError:
            self.late += 1
            ready = replica.ready and self.late < _LATE_ALLOWED
        except (ClientError, OSError):
            ready = False
        if ready:
            # An engine without these figures is chosen by the router's own count alone.
            with contextlib.suppress(ClientError, OSError, TimeoutError, ValueError):
                async with session.get(f"{replica.url}/metrics") as response:
                    if response.status == 200:
                        _read_signals(replica, await response.read())
        self.refresh(monotonic())
        if ready == replica.ready:
            return False
        level = logging.INFO if ready else logging.WARNING
        _logger.log(level, "%s at %s is %s", replica.model_id, replica.url, "ready" if ready else "not ready")
        replica.ready = ready
        replica.ready_since = monotonic()
        return True


def new_backend(replica: Replica, breaker: Breaker) -> Backend:
    name = f"{replica.variant}-{zlib.crc32(replica.url.encode()):08x}"
    return Backend(name, replica, Pool(replica.url), CircuitBreaker(breaker))


def _read_signals(replica: Replica, exposition: bytes) -> None:
    running = waiting = usage = 0.0
    for name, value in _SIGNAL.findall(exposition):
        number = float(value)
        # Several engine processes behind one server report one line each.
        if name == b"num_requests_running":
            running += number
        elif name == b"num_requests_waiting":
            waiting += number
        else:
            usage = max(usage, number)
    replica.running, replica.waiting, replica.kv_usage = int(running), int(waiting), usage
