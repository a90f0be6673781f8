"""`twinspeed serve`: one variant's engine, kept running."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    release: Annotated[Path, typer.Option(help="Folder of the release.")],
    variant: Annotated[str, typer.Option(help="Which of its variants to serve.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the engine's OpenAI API.")] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    cpus: Annotated[
        str | None,
        typer.Option(help="CPUs for the engine's compute threads, such as 0-7; vLLM's choice when not given."),
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="cpu or cuda; found out when not given.")] = None,
) -> None:
    """Serve one variant of a release with vLLM: restarts it when it crashes, drains it on SIGTERM.

    The log is JSON lines on standard output.
    """
    import asyncio
    import signal

    from serve.command import engine_command
    from serve.logs import EngineLog
    from serve.supervisor import Supervisor
    from twinspeed import environments, hardware as machine, jobs, processes, release as releases

    log = EngineLog(variant)
    manifest = releases.verify(release, only=variant, use_cache=True)
    processes.require_port(host, port)
    environment = environments.resolve("engine", hardware)
    jobs.require(environment)
    command = engine_command(
        manifest,
        release,
        variant,
        host=host,
        port=port,
        hardware=machine.detect(),
        environment=environment,
        cpus=cpus,
    )
    for notice in command.notices:
        log.event(notice, level="WARNING")

    async def supervise() -> None:
        supervisor = Supervisor(command, f"http://{host}:{port}/health", log)
        loop = asyncio.get_running_loop()
        for received in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(received, supervisor.stop)
        await supervisor.run()

    asyncio.run(supervise())
