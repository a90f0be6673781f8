"""Remembers what reached the mock: counts, the last request as it came, and every request with its outcome."""

import base64
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice

from loadtests.mock.request import Json

_KEPT = 100_000
RUNNING, FINISHED, ABORTED = "running", "finished", "aborted"


class Stats:
    """Counts, and the last request: its body in base64, its headers in the order they came."""

    def __init__(self) -> None:
        self.started = 0
        self.finished = 0
        self.aborted = 0
        self._body = b""
        self._query = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self.last_peer = ""

    def add(self, body: bytes, query: bytes, headers: list[tuple[bytes, bytes]], peer: str) -> None:
        self.started += 1
        self._body, self._query, self._headers, self.last_peer = body, query, headers, peer

    @property
    def last_body(self) -> str:
        return base64.b64encode(self._body).decode()

    @property
    def last_query(self) -> str:
        return self._query.decode("latin-1")

    @property
    def last_headers(self) -> list[tuple[str, str]]:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]

    def to_json(self) -> Json:
        names = ("started", "finished", "aborted", "last_body", "last_query", "last_peer", "last_headers")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class Entry:
    """`at` in seconds since the epoch; `fault` as it was asked for; `outcome` is running, finished or aborted."""

    at: float
    path: str
    request_id: str
    fault: str = ""
    outcome: str = RUNNING


class Ledger:
    """Keeps the last 100,000 requests, and counts by as many ids."""

    def __init__(self) -> None:
        self.counts: OrderedDict[str, int] = OrderedDict()
        self._entries: deque[Entry] = deque(maxlen=_KEPT)

    def add(self, path: str, request_id: str) -> Entry:
        entry = Entry(time.time(), path, request_id)
        self._entries.append(entry)
        if request_id:
            self.counts[request_id] = self.counts.get(request_id, 0) + 1
            if len(self.counts) > _KEPT:
                self.counts.popitem(last=False)
        return entry

    def is_first(self, entry: Entry) -> bool:
        """Whether no other request had its id."""
        return self.counts.get(entry.request_id, 1) == 1

    def last(self, limit: int) -> list[Json]:
        """The newest entries, the oldest of them first."""
        newest = list(islice(reversed(self._entries), limit))
        return [{name: getattr(entry, name) for name in Entry.__slots__} for entry in reversed(newest)]
