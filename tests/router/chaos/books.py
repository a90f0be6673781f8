"""Whether what the router wrote down of every request agrees with its clients, its engines and its own sums."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.router.chaos.engines import Engine
from tests.router.chaos.storm import Seen

_SUMS = ("tokens", "cost")


def log_faults(entries: Iterable[Mapping[str, Any]], seen: Mapping[str, Seen], complete: set[str]) -> list[str]:
    """Each request that was sent whole is logged once, as its client saw it; `complete` ones with the known tokens."""
    faults = []
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        lines[entry["request_id"]].append(entry)
    for name, each in seen.items():
        logged, reply = lines.pop(name, []), each.reply
        if len(logged) > 1 or (not logged and not reply.left):
            faults.append(f"{name} is logged {len(logged)} times")
        for entry in logged:
            if not reply.left and (entry["status"] != reply.status or entry["client_left"]):
                faults.append(f"{name} got {reply.status}, and the log says {entry}")
            if name in complete and _tokens(entry) != each.shape.tokens:
                faults.append(f"{name} took {each.shape.tokens} tokens, and the log says {entry}")
    return faults + [f"nobody sent {name}" for name in lines]


def sum_faults(entries: Iterable[Mapping[str, Any]], usage: Mapping[str, Mapping[str, int]], sent: float) -> list[str]:
    """`usage` by key, as the admin API tells it; `sent` requests went to an engine, by the metrics."""
    summed = {key: dict.fromkeys(_SUMS, 0) for key in usage}
    for entry in entries:
        if entry.get("key_id") in summed:
            summed[entry["key_id"]]["tokens"] += _tokens(entry) + entry["spent_tokens"]
            summed[entry["key_id"]]["cost"] += entry["cost_nano_usd"]
    faults = [
        f"{key}: {period}_{what} is {used[f'{period}_{what}']}, and the log's sum {summed[key][what]}"
        for key, used in usage.items()
        for what in _SUMS
        for period in ("day", "month")
        if used[f"{period}_{what}"] != summed[key][what]
    ]
    counted = sum(used["day_requests"] for used in usage.values())
    return faults if counted == sent else [*faults, f"{counted} requests are booked, and {sent:g} were sent"]


def attempt_faults(
    entries: Iterable[Mapping[str, Any]], seen: Mapping[str, Seen], engines: Iterable[Engine]
) -> list[str]:
    """No request reaches an engine after its client has had a byte of an answer, nor more often than the log says.

    Once more where a kept connection broke, since an engine may close it as the request is on its way.
    """
    attempts = {entry["request_id"]: entry["attempts"] for entry in entries}
    faults = []
    arrived: Counter[str] = Counter()
    for engine in engines:
        for at, name in engine.attempts:
            arrived[name] += 1
            # After an error the rule says nothing: a stopped engine finds late what the router has given up.
            if name in seen and seen[name].reply.status == 200 and 0 < seen[name].reply.first_at < at:
                late = at - seen[name].reply.first_at
                faults.append(f"{name} came to {engine.replica} {late:.3f} s after its client had a byte")
    for name, count in arrived.items():
        if name in attempts and count > attempts[name] + 1:
            faults.append(f"{name} came to engines {count} times, and the log says {attempts[name]}")
    return faults


def _tokens(entry: Mapping[str, Any]) -> int:
    tokens: int = entry.get("prompt_tokens", 0) + entry.get("completion_tokens", 0)
    return tokens
