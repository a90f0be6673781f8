"""The administrators' side of `twinspeed route explain`: asks a running router."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from twinspeed.errors import InputError, TwinspeedError


def read_request(path: Path) -> dict[str, Any]:
    """A request's body from a JSON file, or from standard input where the path is `-`.

    Raises:
        InputError: there is no such file, or it holds no JSON object.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a file with a request's JSON body, or - for stdin") from None
    except ValueError as error:
        raise InputError(f"{path}: no JSON ({error}); give a request's body as a client would send it") from None
    if not isinstance(body, dict):
        raise InputError(f"{path}: expected a JSON object, as a client would send it")
    return body


def ask(admin_url: str, key: str, question: dict[str, Any]) -> dict[str, Any]:
    """What the router's POST /admin/explain answers.

    Raises:
        InputError: the router refuses the question; says why.
        TwinspeedError: no router answers there.
    """
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = Request(f"{admin_url.rstrip('/')}/admin/explain", json.dumps(question).encode(), headers)
    try:
        with urlopen(request, timeout=10) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return answer
    except HTTPError as error:
        with error:
            try:
                reason = json.loads(error.read())["error"]["message"]
            except (ValueError, LookupError, TypeError):
                reason = f"HTTP {error.code}"
        raise InputError(f"{admin_url}: {reason}") from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TwinspeedError(f"no router's admin API answers at {admin_url}: {reason}") from None
