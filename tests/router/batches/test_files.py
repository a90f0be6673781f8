"""Files over HTTP: the official client, pages, owners, and all that an upload can get wrong."""

import http.client
import json
import os
import random
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.router.batches.serving import Running, line, lines, running

pytestmark = pytest.mark.unit

BOUNDARY = "----b"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def ask(server: Running, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        sent = {"authorization": "Bearer key-a", **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content.startswith(b"{") else content


def upload(server: Running, body: bytes, content_type: str = f"multipart/form-data; boundary={BOUNDARY}") -> Any:
    return ask(server, "POST", "/v1/files", body, content_type=content_type)


def test_a_file_comes_back_as_it_went_in(client: OpenAI) -> None:
    content = os.urandom(3_000_000)
    made = client.files.create(file=('späti "x".jsonl', content), purpose="batch")
    assert (made.object, made.purpose, made.bytes, made.status) == ("file", "batch", 3_000_000, "processed")
    assert abs(made.created_at - time.time()) < 5
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    assert [each.id for each in client.files.list()] == [made.id]


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n", b"--" + BOUNDARY.encode(), b"\xff\xfe\x00" * 100_000])
def test_any_bytes_are_kept(client: OpenAI, content: bytes) -> None:
    made = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(made.id).read() == content


def test_a_deleted_file_is_gone_from_the_disk_too(client: OpenAI, server: Running) -> None:
    made = client.files.create(file=("in.jsonl", b"x"), purpose="batch")
    assert server.files() == [made.id]
    gone = client.files.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "file", True)
    assert server.files() == []
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)


def test_pages_hold_every_file_once_in_either_order(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.jsonl", b"x"), purpose="batch").id for n in range(7)]
    assert [each.id for each in client.files.list(limit=3, order="asc")] == made
    assert [each.id for each in client.files.list(limit=3)] == made[::-1]
    page = client.files.list(limit=7)
    assert (page.has_more, len(page.data)) == (False, 7)
    assert client.files.list(limit=6).has_more is True
    assert list(client.files.list(purpose="batch_output")) == []
    assert len(list(client.files.list(purpose="batch"))) == 7


def test_a_list_goes_on_behind_a_file_that_was_deleted(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.jsonl", b"x"), purpose="batch").id for n in range(5)]
    for each in client.files.list(limit=2, order="asc"):
        client.files.delete(each.id)
        made.remove(each.id)
    assert made == []


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up", "after=x", "after=%00"])
def test_a_query_that_means_nothing_is_refused(server: Running, query: str) -> None:
    status, answer = ask(server, "GET", f"/v1/files?{query}")
    assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])


def test_another_keys_files_do_not_exist(server: Running) -> None:
    ours, theirs = server.client("key-a"), server.client("key-b")
    made = ours.files.create(file=("in.jsonl", lines(line(1))), purpose="batch")
    for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            call(made.id)
        assert refused.value.code == "not_found"
    assert list(theirs.files.list()) == []
    with pytest.raises(openai.NotFoundError):
        theirs.batches.create(input_file_id=made.id, endpoint="/v1/completions", completion_window="24h")
    assert ours.files.retrieve(made.id) == made


def test_nothing_is_read_of_a_request_without_a_key(server: Running) -> None:
    for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/v1/batches")):
        assert ask(server, method, path, authorization="")[0] == 401


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..%2F..%2Fetc%2Fpasswd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "%2Fetc%2Fpasswd",
        "..",
        "%00",
        "a%0A",
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_no_id_leads_out_of_the_folder(server: Running, method: str, name: str) -> None:
    (server.service.store.blobs.path("").parent / "secret").write_text("secret")
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", "/v1/files/..%2Fsecret/content"):
        status, answer = ask(server, method, path)
        # 405 where a client's dots have made it another route's path.
        assert status in (404, 405), answer
    assert (server.service.store.blobs.path("").parent / "secret").exists()


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_multipart", None),
        (b"garbage", "invalid_multipart", None),
        (b"\x00" * 300_000, "invalid_multipart", None),
        (form(part("file", b"x", "a"), part("purpose", b"batch"))[:-8], "invalid_multipart", None),
        (form(), "missing_required_parameter", "file"),
        (form(part("file", b"x", "a")), "missing_required_parameter", "purpose"),
        (form(part("purpose", b"batch")), "missing_required_parameter", "file"),
        (form(part("purpose", b"fine-tune"), part("file", b"x", "a")), "invalid_value", "purpose"),
        (form(part("purpose", b"\xff"), part("file", b"x", "a")), "invalid_value", "purpose"),
        (form(part("purpose", b"batch"), part("file", b"x")), "invalid_value", "file"),
        (form(part("file", b"x", "a"), part("file", b"y", "b"), part("purpose", b"batch")), "invalid_value", "file"),
        (form(part("purpose", b"b" * 5000), part("file", b"x", "a")), "invalid_multipart", None),
        (form(part("expires_after[seconds]", b"1")), "unknown_parameter", "expires_after[seconds]"),
        (
            f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
            "invalid_multipart",
            None,
        ),
    ],
)
def test_a_bad_form_is_refused_and_leaves_nothing(server: Running, body: bytes, code: str, param: str | None) -> None:
    status, answer = upload(server, body)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, code, param), answer
    assert server.files() == []


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "",
        "multipart/form-data; boundary=" + "b" * 300,
    ],
)
def test_another_content_type_is_refused(server: Running, content_type: str) -> None:
    status, answer = upload(server, form(part("purpose", b"batch"), part("file", b"x", "a")), content_type)
    assert (status, answer["error"]["code"]) == (400, "invalid_multipart")


def test_no_garbage_is_a_fault_of_ours(server: Running) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    good = form(part("purpose", b"batch"), part("file", b"hello", "a"))
    for _ in range(300):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            where = chance.randrange(len(body))
            body[where : where + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        status, answer = upload(server, bytes(body))
        assert status in (200, 400), (status, answer, bytes(body))


def test_the_order_of_the_forms_parts_does_not_matter(server: Running) -> None:
    status, answer = upload(server, form(part("file", b"hello", "../../a"), part("purpose", b"batch")))
    assert (status, answer["bytes"], answer["filename"]) == (200, 5, "../../a")


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    with running(tmp_path, max_file_bytes=400_000) as server:
        client = server.client()
        assert client.files.create(file=("in.jsonl", b"x" * 400_000), purpose="batch").bytes == 400_000
        # Too large by its length, and too large as it turns out.
        for size in (400_001, 600_000):
            with pytest.raises(openai.APIStatusError) as refused:
                client.files.create(file=("in.jsonl", b"x" * size), purpose="batch")
            assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
        assert len(server.files()) == 1


def test_a_file_without_a_length_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    with running(tmp_path, max_file_bytes=400_000) as server, socket.create_connection(("127.0.0.1", server.port)) as s:
        head = "POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ntransfer-encoding: chunked\r\n"
        s.sendall(f"{head}content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode())
        start = part("file", b"", "a")[:-2]
        s.sendall(b"%x\r\n%b\r\n" % (len(start), start))
        for _ in range(10):
            s.sendall(b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000))
        assert s.recv(1000).startswith(b"HTTP/1.1 413 ")
        assert server.files() == []


def test_an_upload_that_breaks_off_leaves_nothing(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        head = "POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ncontent-length: 1000000\r\n"
        s.sendall(f"{head}content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode())
        s.sendall(part("file", b"x" * 400_000, "a"))
        deadline = time.monotonic() + 5
        while not server.files():
            assert time.monotonic() < deadline
            time.sleep(0.005)
    while server.files():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    block = b"x" * 1_000_000
    with running(tmp_path) as server, closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        head, tail = form(part("purpose", b"batch"), part("file", b"\0", "a")).split(b"\0")
        before = resident()
        connection.putrequest("POST", "/v1/files")
        connection.putheader("authorization", "Bearer k")
        connection.putheader("content-type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("content-length", str(len(head) + len(tail) + 100 * len(block)))
        connection.endheaders()
        connection.send(head)
        for _ in range(100):
            connection.send(block)
        connection.send(tail)
        answer = json.loads(connection.getresponse().read())
        assert answer["bytes"] == 100 * len(block)
        assert resident() - before < 30_000_000


def test_leftovers_of_dead_processes_are_swept_and_young_files_are_not(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        kept = server.client().files.create(file=("in.jsonl", b"x"), purpose="batch").id
    hour_ago = time.time() - 3700
    for name in ("file-orphan", "file-x.partial", kept):
        (tmp_path / "files" / name).touch()
        os.utime(tmp_path / "files" / name, (hour_ago, hour_ago))
    (tmp_path / "files" / "file-young").touch()
    with running(tmp_path) as server:
        assert server.files() == sorted([kept, "file-young"])


def test_what_is_stored_is_for_the_router_alone(client: OpenAI, server: Running) -> None:
    made = client.files.create(file=("in.jsonl", b"x"), purpose="batch")
    path = server.service.store.blobs.path(made.id)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
