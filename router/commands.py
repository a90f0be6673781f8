"""The command `twinspeed route serve`: runs the router until it is told to stop."""

import contextlib
import socket
from typing import Annotated

import typer

from router.config import parse_config
from twinspeed.errors import InputError

# Seconds that running streams get to finish once the router is told to stop.
_GRACE = 30


def serve(
    name: Annotated[str, typer.Option(help="The model's name, as clients ask for it.")],
    engine: Annotated[
        list[str],
        typer.Option(
            metavar="VARIANT=URL",
            help="A variant and its engine's root: standard=http://127.0.0.1:8001. One for each variant.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
) -> None:
    """Serve a model's variants behind one OpenAI-compatible endpoint."""
    config = parse_config(name, engine)
    listener = _listen(host, port)
    with listener:
        # Late, so that the command line starts fast.
        import uvicorn

        from router.app import create_app

        variants = ", ".join(config.upstreams)
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Routing {name} ({variants}) on http://{shown}:{listener.getsockname()[1]}/v1", err=True)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(config),
                access_log=False,
                log_level="warning",
                ws="none",
                lifespan="on",
                # Longer than common clients and load balancers keep an idle connection (60 s), so that they
                # close it and not the router, which could do so as they send the next request.
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_GRACE,
            )
        )
        # uvicorn repeats the signal once it has stopped in order.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise InputError(
            f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port or --host."
        ) from None
