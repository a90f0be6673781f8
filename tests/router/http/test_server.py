"""HTTP/1.1 as clients and attackers speak it: framing, limits, pipelining, patience, and leaving."""

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from router.http.server import Connection, Request, Responder, Server

pytestmark = pytest.mark.unit

ECHO = b"POST /echo HTTP/1.1\r\nhost: r\r\n"


class Echo:
    """Answers with the request's line and body; `/stream` in three parts, `/hang` never, `/early` before the body."""

    def __init__(self, app: "EchoApp", request: Request, connection: Connection) -> None:
        self.app = app
        self.request = request
        self.connection = connection
        self.taken = 0

    def body_arrived(self) -> None:
        self.taken += sum(map(len, self.request.body))
        self.request.body.clear()
        self.connection.body_taken()
        if self.request.path == "/early":
            self.connection.respond(409, [], b"enough")

    def request_complete(self) -> None:
        request, connection = self.request, self.connection
        if request.path == "/stream":
            connection.begin(200, [(b"content-type", b"text/plain")], b"one ")
            connection.send(b"two ")
            connection.end(b"three")
        elif request.path == "/taken":
            connection.respond(200, [], b"%d" % self.taken)
        elif request.path == "/flood":
            connection.begin(200, [])
            while connection.writable:
                connection.send(b"x" * 65536)
        elif request.path == "/hang":
            self.app.hanging.append(connection)
            self.app.asked.set()
        else:
            body = b"".join(request.body)
            line = request.method + b" " + request.target + b" "
            connection.respond(200, [(b"x-seen", b"%d" % len(request.headers))], line + body)

    def client_left(self) -> None:
        self.app.left.append(self.request.path)
        self.app.somebody_left.set()

    def writing_paused(self) -> None:
        self.app.paused.set()

    def writing_resumed(self) -> None:
        self.app.resumed.set()
        self.connection.end()


class EchoApp:
    def __init__(self) -> None:
        self.left: list[str] = []
        self.hanging: list[Connection] = []
        self.asked = threading.Event()
        """A request for `/hang` has come."""
        self.somebody_left = threading.Event()
        self.paused = threading.Event()
        self.resumed = threading.Event()

    def responder(self, request: Request, connection: Connection) -> Responder:
        return Echo(self, request, connection)

    def body_limit(self, request: Request) -> int | None:
        return None if request.path in ("/taken", "/early") else 1000


class Running:
    """The server in a thread of its own."""

    def __init__(self, **options: float) -> None:
        self.app = EchoApp()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = Server(self.app, **self._options)  # type: ignore[arg-type]
        await self.server.start(self.socket)
        self._ready.set()
        await self._stop.wait()
        await self.server.stop(self.grace)

    grace = 0.0

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def exchange(self, *parts: bytes) -> bytes:
        """All that comes until the server closes."""
        received = b""
        with self.connect() as connection:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(65536):
                received += data
        return received


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(header_bytes=4096)
    yield server
    server.stop()


def read_until(connection: socket.socket, end: bytes, count: int = 1) -> bytes:
    received = b""
    while received.count(end) < count:
        data = connection.recv(65536)
        assert data, f"closed after {received!r}"
        received += data
    return received


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_request_is_read_whatever_the_pieces_it_comes_in(running: Running, size: int) -> None:
    request = ECHO + b"Content-Length: 5\r\nconnection: close\r\n\r\nhello"
    pieces = [request[at : at + size] for at in range(0, len(request), size)]
    answer = running.exchange(*pieces)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nPOST /echo hello")
    assert b"x-seen: 3\r\n" in answer


def test_a_chunked_body_is_put_together(running: Running) -> None:
    head = ECHO + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    answer = running.exchange(head, b"3\r\nhel\r\n", b"2\r\nlo\r\n0\r\n\r\n")
    assert answer.endswith(b"POST /echo hello")


def test_one_connection_carries_many_requests_and_pipelined_ones_are_answered_in_order(running: Running) -> None:
    one = ECHO + b"content-length: 1\r\n\r\n"
    with running.connect() as connection:
        connection.sendall(b"".join(one + b"%d" % number for number in range(8)))
        answers = read_until(connection, b"POST /echo ", 8)
        connection.sendall(one + b"z")
        answers += read_until(connection, b"POST /echo z")
    positions = [answers.index(b"POST /echo %c" % character) for character in b"01234567z"]
    assert positions == sorted(positions)


def test_more_pipelined_requests_than_are_held_are_all_answered(running: Running) -> None:
    one = b"GET /x HTTP/1.1\r\nhost: r\r\n\r\n"
    with running.connect() as connection:
        connection.sendall(one * 500)
        assert read_until(connection, b"GET /x ", 500).count(b"HTTP/1.1 200") == 500


def test_a_stream_is_framed_in_chunks_and_for_http_1_0_ends_with_the_connection(running: Running) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)) as connection:
        for _ in range(2):
            connection.request("POST", "/stream")
            response = connection.getresponse()
            assert (response.read(), response.getheader("transfer-encoding")) == (b"one two three", "chunked")
    old = running.exchange(b"POST /stream HTTP/1.0\r\n\r\n")
    assert old.endswith(b"\r\n\r\none two three")
    assert b"transfer-encoding" not in old


def test_a_head_request_is_answered_without_a_body(running: Running) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)) as connection:
        connection.request("HEAD", "/echo")
        response = connection.getresponse()
        assert (response.read(), int(response.getheader("content-length") or 0)) == (b"", len("HEAD /echo "))
        connection.request("GET", "/after")
        assert connection.getresponse().read() == b"GET /after "


def test_a_client_that_waits_for_leave_to_send_gets_it(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(ECHO + b"content-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert read_until(connection, b"POST /echo hi").startswith(b"HTTP/1.1 200")


def test_an_upgrade_is_not_taken_and_the_request_is_answered(running: Running) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    with running.connect() as connection:
        connection.sendall(ECHO + upgrade + b"content-length: 2\r\n\r\nhi")
        assert read_until(connection, b"POST /echo hi").startswith(b"HTTP/1.1 200")
        connection.sendall(ECHO + b"content-length: 2\r\n\r\nho")
        assert read_until(connection, b"POST /echo ho").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (ECHO + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (ECHO + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (ECHO + b"content-length: -1\r\n\r\n", 400),
        (ECHO + b"content-length: 9999999999999999999999\r\n\r\n", 400),
        (ECHO + b"transfer-encoding: chunked\r\n\r\nZZ\r\n", 400),
        (ECHO + b"content-length: 1001\r\n\r\n", 413),
        (ECHO + b"transfer-encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n", 413),
        (b"GET /" + b"a" * 5000, 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 5000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000, 431),
    ],
)
def test_what_is_no_request_or_too_large_is_refused_and_the_connection_closed(
    running: Running, request_bytes: bytes, status: int
) -> None:
    answer = running.exchange(request_bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    assert body.startswith(b'{"error": {"message": ')
    assert answer.count(b"HTTP/1.1 ") == 1


def test_nothing_after_a_refused_request_is_read_as_one(running: Running) -> None:
    smuggled = ECHO + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + b"GET /x HTTP/1.1\r\n\r\n"
    assert running.exchange(smuggled).count(b"HTTP/1.1 ") == 1


def test_garbage_behind_a_request_does_not_take_its_answer_away(running: Running) -> None:
    answer = running.exchange(b"GET /stream HTTP/1.1\r\nhost: r\r\n\r\n" + b"\x00\x00\x00\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"three\r\n0\r\n\r\nHTTP/1.1 400 " in answer


def test_a_client_that_sends_slowly_is_not_waited_for() -> None:
    impatient = Running(idle=0.3, reading=0.3)
    try:
        assert impatient.exchange(b"GET / HT").startswith(b"HTTP/1.1 408 ")
        assert impatient.exchange(ECHO + b"content-length: 9\r\n\r\nhal").startswith(b"HTTP/1.1 408 ")
        assert impatient.exchange() == b""
    finally:
        impatient.stop()


def test_a_body_taken_in_pieces_may_be_larger_than_any_buffer(running: Running) -> None:
    size = 3_000_000
    head = b"POST /taken HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
    assert running.exchange(head, b"x" * size).endswith(b"%d" % size)


def test_an_answer_before_the_body_has_come_ends_the_connection(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nhost: r\r\ncontent-length: 9\r\n\r\nhal")
        answer = read_until(connection, b"enough")
        assert answer.startswith(b"HTTP/1.1 409 ")
        assert connection.recv(1) == b""


def test_a_client_that_leaves_is_reported_while_it_is_answered(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\nhost: r\r\n\r\n")
        assert running.app.asked.wait(5)
        assert not running.app.left
    assert running.app.somebody_left.wait(5)
    assert running.app.left == ["/hang"]


def test_a_slow_reader_is_noticed_and_caught_up_with(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"GET /flood HTTP/1.1\r\nhost: r\r\n\r\n")
        assert running.app.paused.wait(5)
        assert not running.app.resumed.is_set()
        received = 0
        while not running.app.resumed.is_set():
            received += len(connection.recv(1 << 20))
        assert received > 65536


def test_stopping_lets_a_running_answer_end_and_closes_idle_connections() -> None:
    server = Running()
    server.grace = 5.0
    with server.connect() as idle, server.connect() as busy:
        idle.sendall(b"GET /x HTTP/1.1\r\nhost: r\r\n\r\n")
        read_until(idle, b"GET /x ")
        busy.sendall(b"GET /hang HTTP/1.1\r\nhost: r\r\n\r\n")
        assert server.app.asked.wait(5)
        server.loop.call_soon_threadsafe(server._stop.set)
        assert idle.recv(1) == b""
        server.loop.call_soon_threadsafe(server.app.hanging[0].respond, 200, [], b"late")
        answer = b""
        while data := busy.recv(65536):
            answer += data
        assert answer.endswith(b"late")
        assert b"connection: close" in answer
    server.stop()
