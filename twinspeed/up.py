"""A release's engines and router, started together, waited for, and stopped together."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import openai

from twinspeed import environments, hardware, jobs, processes, release as releases
from twinspeed.console import Report, step
from twinspeed.errors import TwinspeedError
from twinspeed.release import Release

# An engine drains for 30 s and is then killed by its supervisor; killing the supervisor earlier would orphan it.
_STOP_S = 60.0


@dataclass(frozen=True)
class Part:
    """One process of the stack."""

    name: str
    child: subprocess.Popen[bytes]
    errors: Path
    output: Path


@dataclass(frozen=True)
class Stack:
    """A release being served."""

    url: str
    release: Release
    engine_urls: dict[str, str]
    parts: Sequence[Part]

    @property
    def models(self) -> list[str]:
        return [self.release.name, *(f"{self.release.name}:{variant}" for variant in self.release.variants)]

    def wait(self) -> None:
        """Return never, unless a part ends by itself.

        Raises:
            TwinspeedError: the part that ended, and its last words.
        """
        while True:
            _require_alive(self.parts)
            time.sleep(0.5)


@contextmanager
def serving(folder: Path, *, host: str, port: int, logs: Path) -> Iterator[Stack]:
    """Serve every variant of the release in `folder` behind a router on `host:port` while the block runs.

    Entered once each variant has answered a real completion through the router. Logs go to the folder `logs`.

    Raises:
        InputError: no such release, a taken port, or no engine environment.
        TwinspeedError: an engine or the router ended; holds its own last error.
    """
    release = releases.verify(folder, use_cache=True)
    processes.require_port(host, port)
    jobs.require(environments.resolve("engine"))
    logs.mkdir(parents=True, exist_ok=True)
    ports = {variant: processes.free_port() for variant in release.variants}
    engine_urls = {variant: f"http://127.0.0.1:{number}" for variant, number in ports.items()}
    parts: list[Part] = []
    try:
        shares = split_cpus(sorted(os.sched_getaffinity(0)), len(ports))
        for (variant, number), cpus in zip(ports.items(), shares, strict=True):
            arguments = ["serve", "--release", folder, "--variant", variant, "--port", number, "--cpus", cpus]
            parts.append(_start(variant, arguments, logs))
        engines = [f"--engine={variant}={url}" for variant, url in engine_urls.items()]
        router = ["route", "serve", "--name", release.name, "--release", folder, "--host", host, "--port", port]
        usd_per_hour = hardware.detect().usd_per_hour
        if usd_per_hour is not None:
            router += ["--usd-per-hour", usd_per_hour / len(engines)]
        router += engines
        parts.append(_start("router", router, logs))
        stack = Stack(f"http://{f'[{host}]' if ':' in host else host}:{port}", release, engine_urls, parts)
        for part, variant in zip(parts, release.variants, strict=False):
            with step(f"waiting for a completion from {variant}") as report:
                _wait_for_completion(stack, part, variant, report)
        yield stack
    finally:
        with step("stopping the router and the engines"):
            # The router first: it lets requests under way finish while their engines still run.
            processes.stop([part.child for part in parts if part.name == "router"], _STOP_S)
            processes.stop([part.child for part in parts if part.name != "router"], _STOP_S)


def split_cpus(cpus: Sequence[int], engines: int) -> list[str]:
    """For each engine on this machine, the CPUs of its compute threads, as vLLM takes them (`0,1,2`).

    Left to itself, every engine binds the same ones. A share of more than one CPU leaves its last one for the engine's
    server and scheduler.
    """
    each = max(1, len(cpus) // engines)
    shares = [[cpus[(index * each + place) % len(cpus)] for place in range(each)] for index in range(engines)]
    return [",".join(map(str, share[:-1] or share)) for share in shares]


def _start(name: str, arguments: Sequence[object], logs: Path) -> Part:
    output, errors = logs / f"{name}.jsonl", logs / f"{name}.err"
    command = processes.twinspeed_command(*(str(argument) for argument in arguments))
    with output.open("wb") as out, errors.open("wb") as err:
        return Part(name, processes.start(command, stdout=out, stderr=err), errors, output)


def _wait_for_completion(stack: Stack, part: Part, variant: str, report: Report) -> None:
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    while True:
        _require_alive(stack.parts)
        report(0.0, _last_message(part.output))
        if not _healthy(stack.engine_urls[variant]):
            time.sleep(0.5)
            continue
        try:
            answer = client.completions.create(
                model=f"{stack.release.name}:{variant}", prompt="Hello", max_tokens=1, temperature=0
            )
        except openai.APIConnectionError:
            time.sleep(0.5)
            continue
        except openai.APIStatusError as error:
            if error.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise TwinspeedError(f"{variant} refuses a first completion: {error}") from None
            time.sleep(0.5)
            continue
        if answer.usage is None or answer.usage.completion_tokens < 1:
            raise TwinspeedError(f"{variant} answered without a token: see {part.output}")
        return


def _healthy(engine_url: str) -> bool:
    """Whether the engine itself says so; asking through the router would fill its log while the engine loads."""
    try:
        with urlopen(f"{engine_url}/health", timeout=2) as response:
            return bool(response.status == HTTPStatus.OK)
    except OSError:
        return False


def _require_alive(parts: Sequence[Part]) -> None:
    for part in parts:
        if part.child.poll() is not None:
            lines = part.errors.read_text(errors="replace").strip().splitlines()
            reason = lines[-1].removeprefix("error: ") if lines else f"exit code {part.child.returncode}"
            raise TwinspeedError(f"{part.name} ended: {reason} (full log: {part.output})")


def _last_message(output: Path) -> str:
    """What the engine last said, for the progress line."""
    with output.open("rb") as stream:
        stream.seek(max(0, output.stat().st_size - 4096))
        for line in reversed(stream.read().splitlines()):
            try:
                return str(json.loads(line)["message"])
            except (ValueError, KeyError, TypeError):
                continue
    return "starting"
