"""An engine's output as JSON lines that name the variant, and the error worth showing when it gives up."""

import json
import re
import sys
from collections import deque
from datetime import UTC, datetime

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_VLLM = re.compile(
    r"^(?:\((?P<process>[^)]+)\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[(?P<source>[^\]]+)\] )?(?P<message>.*)$"
)
_PREFIX = re.compile(r"^\([^)]*pid=\d+\) ?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Exit|Interrupt|Failure): \S")
_ARGPARSE = re.compile(r"\berror: \S")
# These say that some other process failed, or what the parser thinks; the cause stands above them.
_SECOND_HAND = (
    "EngineDeadError",
    "Engine core initialization failed",
    "See root cause above",
    "WorkerProc initialization failed",
)


class EngineLog:
    """Writes what an engine prints, line by line, and remembers its last lines."""

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self._recent: deque[str] = deque(maxlen=400)

    def event(self, message: str, *, level: str = "INFO", **fields: object) -> None:
        """Our own word about the engine: started, ready, restarting, stopped."""
        self._write({"level": level, "source": "twinspeed", "message": message, **fields})

    def line(self, raw: str) -> None:
        """One line of the engine's output."""
        text = _ANSI.sub("", raw).rstrip()
        if not text:
            return
        self._recent.append(_PREFIX.sub("", text))
        match = _VLLM.match(text)
        if match is None:
            self._write({"level": "INFO", "source": "engine", "message": text})
            return
        record = {"level": match["level"], "source": match["source"] or "engine", "message": match["message"]}
        if match["process"]:
            record["process"] = match["process"]
        self._write(record)

    def forget(self) -> None:
        """A new run of the engine begins; its errors are its own."""
        self._recent.clear()

    def last_error(self) -> str:
        """The engine's own word on why it ended, in one line."""
        plain = [_VLLM.sub(r"\g<message>", line).strip() for line in self._recent]
        for pattern in (_EXCEPTION, _ARGPARSE):
            errors = [line for line in plain if pattern.search(line)]
            first_hand = [line for line in errors if not any(mark in line for mark in _SECOND_HAND)]
            if first_hand or errors:
                return (first_hand or errors)[-1]
        return plain[-1] if plain else "it printed nothing"

    def _write(self, record: dict[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"time": now, "variant": self._variant, **record}), file=sys.stdout, flush=True)
