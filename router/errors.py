"""Errors in OpenAI's shape, the only one in which the router itself refuses a request."""

import json
from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]


class ApiError(Exception):
    """An HTTP status and what OpenAI's clients read from the body of an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None,
        param: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers: Headers = list(headers)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        # In ASCII, because a message may quote a client's lone surrogate, which UTF-8 cannot hold.
        self.body = json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()
