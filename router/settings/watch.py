"""Takes new settings over while the router runs: when told to, or when the file's content has changed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from router.config import RouterConfig
from router.settings.load import check, read
from twinspeed.errors import InputError

_logger = logging.getLogger(__name__)


class ConfigWatcher:
    """Keeps one RouterConfig in force, and hands each newer one to `apply`.

    All or nothing: settings that are invalid, that change what only a restart can change, or that `apply` refuses by
    raising leave those before in force, and are logged once. `apply` never runs twice at a time.

    Attributes:
        config: the settings in force.
        generation: 1 for those the router started with; one more for each that took their place.
        loaded_at: wall clock, seconds since the epoch, when they came into force.
        last_error: why the latest attempt was refused, as many lines as there are faults; None where it was taken.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        config: RouterConfig,
        apply: Callable[[RouterConfig], Awaitable[None]],
        *,
        poll_interval: float = 1.0,
    ) -> None:
        """`config` is what `load(path, environ)` gave; `poll_interval` is in seconds."""
        self.config = config
        self.generation = 1
        self.loaded_at = time.time()
        self.last_error: str | None = None
        self._path = path
        self._environ = environ
        self._apply = apply
        self._poll_interval = poll_interval
        self._triggered = asyncio.Event()

    def trigger(self) -> None:
        """Load and apply the file now, changed or not. From the event loop's thread, as its signal handlers are."""
        self._triggered.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        handled: bytes | str | None = None
        before: bytes | str | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval):
                    await self._triggered.wait()
            told = self._triggered.is_set()
            self._triggered.clear()
            content = await asyncio.to_thread(self._read)
            # A change counts once two polls have seen the same, for an editor may be half way through the file.
            if told or (content != handled and content == before):
                handled = content
                await self._take(content, even_if_equal=told)
            before = content

    def _read(self) -> bytes | str:
        # Opened by its name each time, which follows the links that Kubernetes swaps in a mounted ConfigMap.
        try:
            return read(self._path)
        except InputError as error:
            return str(error)

    async def _take(self, content: bytes | str, *, even_if_equal: bool) -> None:
        try:
            if isinstance(content, str):
                raise InputError(content)
            config = await asyncio.to_thread(check, self._path, content, self._environ)
            if config != self.config or even_if_equal:
                self._require_same_start(config)
                await self._apply(config)
                self.config = config
                self.generation += 1
                self.loaded_at = time.time()
                _logger.info("%s: settings of generation %d are in force", self._path, self.generation)
            self.last_error = None
        except InputError as error:
            self._refuse(str(error))
        except Exception as error:
            self._refuse(f"{self._path}: could not be applied: {error or type(error).__name__}")

    def _require_same_start(self, config: RouterConfig) -> None:
        old, new = _fixed(self.config), _fixed(config)
        changed = [name for name in old if old[name] != new[name]]
        if changed:
            raise InputError(
                "\n".join(
                    f"{self._path}: {name}: cannot change while the router runs; put it back, or restart the router"
                    for name in changed
                )
            )

    def _refuse(self, reason: str) -> None:
        self.last_error = reason
        _logger.error("settings of generation %d stay in force: %s", self.generation, "; ".join(reason.splitlines()))


def _fixed(config: RouterConfig) -> dict[str, object]:
    """What is opened once, when the router starts."""
    admin = config.admin
    return {
        "listen.host": config.listen.host,
        "listen.port": config.listen.port,
        "listen.workers": config.listen.workers,
        "admin.host": admin and admin.host,
        "admin.port": admin and admin.port,
        "state.url": config.state.url,
        "state.folder": config.state.folder,
        "state.file_bytes": config.state.file_bytes,
        "state.batch_requests": config.state.batch_requests,
        "limits.header_bytes": config.limits.header_bytes,
        "access_log": config.access_log,
        "otlp_endpoint": config.otlp_endpoint,
    }
