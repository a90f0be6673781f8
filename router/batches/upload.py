"""Takes a multipart/form-data body apart as it arrives: the part `file` goes to disk, the form's fields are kept."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from router.batches.blobs import PartialFile
from router.errors import ApiError
from twinspeed.files import human_bytes

_FIELD_BYTES = 4096
# What the multipart encoding may add to the file's own bytes.
OVERHEAD = 64 * 1024


class Upload:
    """One upload. Blocks: to be used in threads, one call at a time."""

    def __init__(self, content_type: str, partial: PartialFile, max_bytes: int) -> None:
        """Raises ApiError 400 where the body is no multipart/form-data."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _bad("The request has to be multipart/form-data with a boundary.")
        self._partial = partial
        self._max_bytes = max_bytes
        self._fields: dict[str, bytearray] = {}
        self._filename: str | None = None
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._part = ""
        self._is_file = False
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_part_data": self._part_data,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value_more,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_end": self._ends,
                },
            )
        except FormParserError as error:
            raise _bad(f"The request's boundary is not valid: {error}") from None

    def feed(self, data: bytes) -> None:
        """Takes more of the body.

        Raises:
            ApiError: 400 where it is not valid, 413 where the file is too large.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _bad(f"The request is not valid multipart/form-data: {error}") from None

    def finish(self) -> tuple[str, str]:
        """The file's name and purpose, once the whole body has been fed; the content is in the partial file.

        Raises:
            ApiError: 400 where the body is cut short or a field is missing or not valid.
        """
        if not self._complete:
            raise _bad("The request is not valid multipart/form-data: it ends before its last boundary.")
        for name in self._fields:
            if name != "purpose":
                raise ApiError(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        if self._filename is None:
            raise _missing("file")
        if "purpose" not in self._fields:
            raise _missing("purpose")
        purpose = self._fields["purpose"].decode(errors="replace")
        if purpose != "batch":
            raise ApiError(
                400,
                f"Invalid value: '{purpose}'. Supported values are: 'batch'.",
                code="invalid_value",
                param="purpose",
            )
        return self._filename, purpose

    def _part_begins(self) -> None:
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_more(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _bad("A part of the request has no name.")
        self._part = options[b"name"].decode(errors="replace")
        self._is_file = self._part == "file"
        if self._is_file:
            if b"filename" not in options:
                raise ApiError(400, "'file' has to be a file, with a name.", code="invalid_value", param="file")
            if self._filename is not None:
                raise ApiError(400, "'file' is given twice.", code="invalid_value", param="file")
            self._filename = options[b"filename"].decode(errors="replace")
        else:
            self._fields[self._part] = bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            if self._partial.size + end - start > self._max_bytes:
                raise too_large(self._max_bytes)
            self._partial.write(data[start:end])
            return
        # Counted over all of them, since there may be many.
        if sum(map(len, self._fields.values())) + len(self._fields) + end - start > _FIELD_BYTES:
            raise _bad("The request's fields are too long.")
        self._fields[self._part] += data[start:end]

    def _ends(self) -> None:
        self._complete = True


def too_large(max_bytes: int) -> ApiError:
    message = f"The file is larger than {human_bytes(max_bytes)}, the most that is taken."
    return ApiError(413, message, code="file_too_large", param="file")


def _bad(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_multipart")


def _missing(name: str) -> ApiError:
    return ApiError(400, f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)
