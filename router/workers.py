"""Several router processes on one port: started, replaced when one ends, told to reload, and stopped in order."""

import logging
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from router.config import RouterConfig
from router.listen import listen
from twinspeed import processes

# Seconds: a worker's own grace for running streams, and some more.
_STOPPING = 40.0
# A worker that ends sooner than this after its start is not started again at once.
_QUICK_END = 5.0

_logger = logging.getLogger(__name__)


def supervise(config: RouterConfig, settings: Path) -> None:
    """Runs `listen.workers` processes until SIGTERM or SIGINT."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    def reload(*_: object) -> None:
        for worker in workers.values():
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGHUP)

    workers: dict[int, subprocess.Popen[bytes]] = {}
    started: dict[int, float] = {}
    # Held without listening on it, so that the port stays ours and its number is known while workers come and go.
    with (
        listen(config.listen.host, config.listen.port, shared=True) as reserved,
        tempfile.TemporaryDirectory(prefix="twinspeed-router-") as metrics,
    ):
        worker_at = f"{reserved.getsockname()[1]}:{metrics}"
        command = processes.twinspeed_command("route", "serve", "--config", settings, "--worker", worker_at)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)
        try:
            while not stopping:
                for number in range(config.listen.workers):
                    worker = workers.get(number)
                    if worker is not None and worker.poll() is None:
                        continue
                    if worker is not None:
                        _logger.error("router worker %d ended with %s; starting another", number, worker.returncode)
                        if time.monotonic() - started[number] < _QUICK_END:
                            time.sleep(1)
                    workers[number] = processes.start(command)
                    started[number] = time.monotonic()
                # Python goes on sleeping after a signal's handler has run.
                time.sleep(0.2)
        finally:
            processes.stop(list(workers.values()), _STOPPING)
