"""A batch's input: JSON lines, each one request, read without ever holding more than a line of them."""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Never

from router.batches.pace import Pace
from router.batches.records import LineError

_REPORTED = 100
_BOM = b"\xef\xbb\xbf"
_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What one batch may hold: `requests` in all, and bytes in one line."""

    requests: int = 50_000
    line_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request: its line's number, from 1, and its body as JSON."""

    number: int
    custom_id: str
    body: bytes


class InvalidLineError(Exception):
    def __init__(self, error: LineError) -> None:
        super().__init__(error.message)
        self.error = error


def read_lines(stream: BinaryIO, line_bytes: int = sys.maxsize - 1) -> Iterator[tuple[int, bytes | None]]:
    """Every line that is not blank, with its number from 1; None for one that is longer than `line_bytes`."""
    number = 0
    while line := stream.readline(line_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > line_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(_PIECE)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line and not line.isspace():
            yield number, line


def parse_line(number: int, line: bytes, endpoint: str) -> RequestLine:
    """Raises InvalidLineError."""

    def invalid(code: str, message: str, param: str | None = None) -> InvalidLineError:
        return InvalidLineError(LineError(code, message, number, param))

    try:
        request: object = json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        message = f"This line is not UTF-8: {error.reason} at byte {error.start}."
        raise invalid("invalid_json_line", message) from None
    except (ValueError, RecursionError):
        raise invalid("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if not isinstance(request, dict):
        raise invalid("invalid_json_line", "This line is not a JSON object.")
    for name in ("custom_id", "method", "url", "body"):
        if name not in request:
            raise invalid("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    custom_id, body = request["custom_id"], request["body"]
    if not isinstance(custom_id, str) or not custom_id:
        raise invalid("invalid_value", "custom_id has to be a string that is not empty.", "custom_id")
    if request["method"] != "POST":
        raise invalid("invalid_value", "method has to be 'POST'.", "method")
    if request["url"] != endpoint:
        raise invalid("url_mismatch", f"url has to be the batch's endpoint, '{endpoint}'.", "url")
    if not isinstance(body, dict):
        raise invalid("invalid_value", "body has to be an object.", "body")
    if body.get("stream") is True:
        raise invalid("invalid_value", "A batch's requests cannot be streamed.", "body.stream")
    return RequestLine(number, custom_id, json.dumps(body, separators=(",", ":")).encode())


def validate(stream: BinaryIO, endpoint: str, limits: InputLimits, pace: Pace) -> tuple[int, list[LineError]]:
    """The number of requests, and the first of what is wrong with them."""
    errors: list[LineError] = []
    seen: set[bytes] = set()
    total = 0
    for number, line in read_lines(stream, limits.line_bytes):
        pace.step()
        total += 1
        if total > limits.requests:
            message = f"The input has more than {limits.requests} requests; make several batches of them."
            return total, [LineError("too_many_tasks", message)]
        try:
            if line is None:
                message = f"This line is longer than {limits.line_bytes} bytes."
                raise InvalidLineError(LineError("request_too_large", message, number))
            request = parse_line(number, line, endpoint)
            # A client may use ids of any length; their hashes are short.
            digest = hashlib.blake2b(request.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in seen:
                message = f"custom_id {request.custom_id[:100]!r} is a duplicate of another request's."
                raise InvalidLineError(LineError("duplicate_custom_id", message, number, "custom_id"))
            seen.add(digest)
        except InvalidLineError as error:
            errors.append(error.error)
            if len(errors) == _REPORTED:
                break
    if not total:
        errors.append(LineError("empty_file", "The input file has no requests."))
    return total, errors


def _refuse_constant(name: str) -> Never:
    # Python's parser takes NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        # It would be sent on as Infinity, which is not JSON.
        raise ValueError(f"{text} is too large")
    return value
