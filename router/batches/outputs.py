"""A batch's output: what stands on a line, and the files of them that are written when the batch ends."""

import json
import time
from contextlib import ExitStack, closing
from typing import Literal

from router.batches.blobs import PartialFile
from router.batches.lines import parse_line, read_lines
from router.batches.pace import Pace
from router.batches.progress import Ending, Progress
from router.batches.records import BatchRecord, FileRecord, LineResult, new_id

_NEVER_SENT = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
}
_QUOTED = 1000


def answer_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """The line of a request that was answered; `body` stands in it as it came if it is JSON on one line."""
    try:
        content = json.loads(body)
        whole = body.strip() if b"\n" not in body and b"\r" not in body else json.dumps(content).encode()
    except (ValueError, RecursionError):
        # OpenAI's clients look for this shape, and what is no JSON would spoil the file.
        text = body[:_QUOTED].decode(errors="replace")
        kind = "server_error" if status >= 500 else "invalid_request_error"
        whole = json.dumps({"error": {"message": text, "type": kind, "param": None, "code": "not_json"}}).encode()
    return b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}\n' % (
        _text(new_id("batch_req_")),
        _text(custom_id),
        status,
        _text(request_id),
        whole,
    )


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """The line of a request that has no answer."""
    return b'{"id":%b,"custom_id":%b,"response":null,"error":{"code":%b,"message":%b}}\n' % (
        _text(new_id("batch_req_")),
        _text(custom_id),
        _text(code),
        _text(message),
    )


def finish(progress: Progress, batch: BatchRecord, ending: Ending, pace: Pace) -> None:
    """Writes the batch's files, in the order of its input, and ends it; what was never sent is an error.

    Blocks, for long. Raises ClaimLostError, and leaves no file then.
    """
    with _Outputs(progress, batch) as outputs, closing(progress.results(batch)) as results:
        result = next(results, None)
        if ending != "completed" and batch.total:
            code, message = _NEVER_SENT[ending]
            with progress.blobs.path(batch.input_file_id).open("rb") as stream:
                for number, line in read_lines(stream):
                    pace.step()
                    if result is not None and result.line == number:
                        outputs.add(result)
                        result = next(results, None)
                    elif line is not None:
                        custom_id = parse_line(number, line, batch.endpoint).custom_id
                        outputs.add(LineResult(number, True, error_line(custom_id, code, message)))
        while result is not None:
            pace.step()
            outputs.add(result)
            result = next(results, None)
        output, error = outputs.keep("output"), outputs.keep("error")
        progress.finish(batch, ending, output, error)
        outputs.recorded = True
    progress.forget_results()


class _Outputs:
    """The two files, each made when its first line comes. As a context it removes them unless they are `recorded`."""

    def __init__(self, progress: Progress, batch: BatchRecord) -> None:
        self.recorded = False
        self._blobs = progress.blobs
        self._batch = batch
        self._open: dict[str, tuple[str, PartialFile]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "_Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if not self.recorded:
            for file_id, _ in self._open.values():
                self._blobs.remove(file_id)

    def add(self, result: LineResult) -> None:
        kind: Literal["output", "error"] = "error" if result.failed else "output"
        if kind not in self._open:
            file_id = new_id("file-")
            self._open[kind] = (file_id, self._stack.enter_context(self._blobs.create(file_id)))
        self._open[kind][1].write(result.output)

    def keep(self, kind: Literal["output", "error"]) -> FileRecord | None:
        if kind not in self._open:
            return None
        file_id, partial = self._open[kind]
        partial.keep()
        filename = f"{self._batch.id}_{kind}.jsonl"
        return FileRecord(file_id, self._batch.owner, "batch_output", filename, partial.size, int(time.time()))


def _text(value: str) -> bytes:
    # In ASCII, because a client's text may hold a lone surrogate, which UTF-8 cannot.
    return json.dumps(value).encode()
