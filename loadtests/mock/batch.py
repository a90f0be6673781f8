"""How long the mock takes: a batch of running requests, a queue before it, and a cache of prompts; and its metrics."""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from loadtests.mock.request import Words

_BLOCK = 16
_BLOCKS = 65_536


class PrefixCache:
    """Which blocks of 16 tokens have been seen at the same place after the same beginning. Holds a million tokens."""

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, prompt: Words, salt: str) -> int:
        """How many of the prompt's first tokens were known; as in vLLM never all, and all of its blocks are from now.

        Prompts of different salt share nothing.
        """
        known, all_known, key = 0, True, hash(salt)
        for start in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            key = hash((key, prompt[start : start + _BLOCK]))
            all_known = all_known and key in self._blocks
            if all_known and start + _BLOCK < len(prompt):
                known += _BLOCK
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        self.queries += len(prompt)
        self.hits += known
        return known


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds. A step of the batch takes `itl`, and `itl_per_seq` more for each request that runs."""

    ttft: float = 0.0
    itl: float = 0.0
    itl_per_seq: float = 0.0
    prefill_tokens_per_s: float = 0.0
    """For all prompts together, one after another; 0 takes no time. Cached tokens take none."""
    max_num_seqs: int = 0
    """Requests that run at once; more wait, first come first served. 0 sets no limit."""


class Batch:
    """The requests that run. All of them advance together, so that one timer moves them all."""

    def __init__(self, pace: Pace) -> None:
        self.cache = PrefixCache()
        self.running = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.held_tokens = 0
        self._pace = pace
        self._queue: deque[asyncio.Future[None]] = deque()
        self._steppers: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._prefilled_at = 0.0

    @property
    def steps_take_time(self) -> bool:
        return bool(self._pace.itl or self._pace.itl_per_seq)

    @property
    def may_wait(self) -> bool:
        pace = self._pace
        return bool(pace.ttft or pace.prefill_tokens_per_s or pace.max_num_seqs) or self.steps_take_time

    async def enter(self, tokens: int) -> None:
        """Waits for a place, which must be left again; `tokens` is what the request will hold of the cache."""
        limit = self._pace.max_num_seqs
        if limit and self.running >= limit:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self._queue.remove(turn)
                else:
                    self._hand_over()
                raise
        else:
            self.running += 1
        self.held_tokens += tokens

    def leave(self, tokens: int) -> None:
        self.held_tokens -= tokens
        self._hand_over()

    def _hand_over(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    async def prefill(self, tokens: int, cached: int = 0) -> None:
        delay = self._pace.ttft
        if self._pace.prefill_tokens_per_s:
            now = asyncio.get_running_loop().time()
            begins = max(now, self._prefilled_at)
            self._prefilled_at = begins + (tokens - cached) / self._pace.prefill_tokens_per_s
            delay += self._prefilled_at - now
        if delay:
            await asyncio.sleep(delay)
        self.prompt_tokens += tokens

    async def step(self) -> None:
        """Until the step that the batch is in is over; the first to wait begins one."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if not self._steppers:
            self._timer = loop.call_later(self._pace.itl + self._pace.itl_per_seq * self.running, self._advance)
        self._steppers.append(done)
        try:
            await done
        except asyncio.CancelledError:
            if done in self._steppers:
                self._steppers.remove(done)
                if not self._steppers and self._timer is not None:
                    self._timer.cancel()
            raise

    def _advance(self) -> None:
        steppers, self._steppers = self._steppers, []
        for done in steppers:
            if not done.done():
                done.set_result(None)

    def metrics(self, model: str) -> bytes:
        """In Prometheus's text format, by vLLM's names and labels."""
        values: list[tuple[str, str, float]] = [
            ("vllm:num_requests_running", "gauge", self.running),
            ("vllm:num_requests_waiting", "gauge", len(self._queue)),
            ("vllm:kv_cache_usage_perc", "gauge", min(1.0, self.held_tokens / (_BLOCK * _BLOCKS))),
            ("vllm:prefix_cache_queries_total", "counter", self.cache.queries),
            ("vllm:prefix_cache_hits_total", "counter", self.cache.hits),
            ("vllm:prompt_tokens_total", "counter", self.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self.generation_tokens),
        ]
        label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = [
            f"# HELP {name} As in vLLM.\n# TYPE {name} {kind}\n"
            f'{name}{{engine="0",model_name="{label}"}} {float(value)}\n'
            for name, kind, value in values
        ]
        return "".join(lines).encode()
