"""The sockets that the router listens on."""

import socket

from twinspeed.errors import InputError


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket; port 0 takes a free one. `shared` lets other processes bind it too (SO_REUSEPORT).

    Raises:
        InputError: the address is taken, or not ours to bind.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address[:2])
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InputError(
            f"Cannot listen on {host}:{port} ({error.strerror}); choose another with --port, or in the settings."
        ) from None
    return listener
