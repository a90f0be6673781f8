"""Batches over HTTP with the official client: outputs, retries, cancellation, expiry."""

import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.router.batches.serving import CHAT, Engine, Running, ended, line, lines, read, run, running

pytestmark = pytest.mark.unit


def execute(server: Running, statement: str, *values: object) -> None:
    with server.service.store.database.transaction() as connection:
        connection.execute(statement, values)


def upload(client: OpenAI, content: bytes) -> str:
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def create(client: OpenAI, content: bytes, **options: Any) -> Any:
    wanted = {"endpoint": CHAT, "completion_window": "24h", **options}
    return client.batches.create(input_file_id=upload(client, content), **wanted)


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_batch_runs_from_its_input_to_its_output(client: OpenAI, server: Running) -> None:
    made = create(client, lines(*(line(n) for n in range(50))), metadata={"job": "night"})
    assert (made.object, made.status, made.endpoint) == ("batch", "validating", CHAT)
    assert (made.metadata, made.completion_window) == ({"job": "night"}, "24h")
    assert made.expires_at == made.created_at + 24 * 3600
    batch = ended(client, made.id)
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (50, 50, 0)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.error_file_id is None
    assert batch.errors is None
    output = read(client, batch.output_file_id)
    assert [each["custom_id"] for each in output] == [f"id-{n}" for n in range(50)]
    for n, each in enumerate(output):
        assert each.keys() == {"id", "custom_id", "response", "error"}
        assert each["id"].startswith("batch_req_")
        assert each["error"] is None
        assert each["response"] == {
            "status_code": 200,
            "request_id": server.engine.request_ids[n],
            "body": {"tag": n, "endpoint": CHAT},
        }
    assert len({each["id"] for each in output}) == 50
    stored = client.files.retrieve(batch.output_file_id)
    assert (stored.purpose, stored.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert server.engine.owners == {"key-a"}
    assert server.engine.most_running <= 8


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_every_endpoint_is_served(client: OpenAI, endpoint: str) -> None:
    batch = run(client, lines(line(1, url=endpoint)), endpoint)
    assert read(client, batch.output_file_id)[0]["response"]["body"]["endpoint"] == endpoint


def test_refused_requests_go_to_the_error_file(client: OpenAI) -> None:
    refusal = json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}})
    batch = run(client, lines(line(1), line(2, status=400, raw=refusal), line(3, status=500), line(4)))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == ["id-1", "id-4"]
    first, second = read(client, batch.error_file_id)
    assert (first["custom_id"], first["response"]["status_code"], first["error"]) == ("id-2", 400, None)
    assert first["response"]["body"] == json.loads(refusal)
    assert second["response"]["status_code"] == 500


def test_a_batch_without_a_success_has_no_output_file(client: OpenAI) -> None:
    batch = run(client, lines(line(1, status=404)))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert len(read(client, batch.error_file_id)) == 1


@pytest.mark.parametrize(
    "raw", ["<html>\nbad gateway", "", '{"a": NaN', "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")]
)
def test_an_answer_that_is_no_json_does_not_spoil_the_file(client: OpenAI, raw: str) -> None:
    batch = run(client, lines(line(1, status=502, raw=raw), line(2)))
    [failed] = read(client, batch.error_file_id)
    assert failed["response"]["body"]["error"]["message"] == raw
    assert len(read(client, batch.output_file_id)) == 1


def test_an_answer_of_several_lines_is_put_on_one(client: OpenAI) -> None:
    batch = run(client, lines(line(1, raw='{\n "a": "x\\ny"\r\n}\n'), line(2)))
    assert read(client, batch.output_file_id)[0]["response"]["body"] == {"a": "x\ny"}


def test_a_fault_of_the_routers_own_costs_one_request(client: OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    batch = run(client, lines(line(1, fault=1), line(2)))
    [failed] = read(client, batch.error_file_id)
    assert (failed["response"], failed["error"]["code"]) == (None, "internal_server_error")
    assert batch.request_counts.completed == 1
    assert "Line 1 of" in caplog.text


def test_what_is_asked_for_later_is_sent_again(client: OpenAI, server: Running) -> None:
    server.engine.refuse_first = 3
    server.engine.retry_after = "0.2"
    started = time.monotonic()
    batch = run(client, lines(*(line(n) for n in range(4))))
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 4, 0)
    assert len(server.engine.sent) == 7
    assert time.monotonic() - started > 0.2


def test_a_batch_that_is_asked_to_wait_does_not_keep_another_from_running(tmp_path: Path) -> None:
    engine = Engine()
    engine.refuse_first = 8
    engine.retry_after = "3600"
    with running(tmp_path, engine, poll=0.05) as server:
        client = server.client()
        waiting = create(client, lines(*(line(n) for n in range(8))))
        wait_for(lambda: len(engine.sent) == 8)
        assert run(client, lines(line("other"))).status == "completed"
        assert client.batches.retrieve(waiting.id).status == "in_progress"


def test_batches_side_by_side_share_the_slots(client: OpenAI, server: Running) -> None:
    made = [create(client, lines(*(line(f"{b}-{n}", seconds=0.02) for n in range(30)))) for b in range(3)]
    assert [ended(client, each.id).request_counts.completed for each in made] == [30, 30, 30]
    assert server.engine.most_running == 8


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"extra_body": {"metadata": {"k": 1}}}, "metadata.k", "invalid_value"),
        ({"extra_body": {"output_expires_after": {}}}, "output_expires_after", "unknown_parameter"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(client: OpenAI, change: Any, param: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, lines(line(1)), **change)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"input_file_id": "\\ud800"}', b"null"])
def test_a_body_that_is_no_request_is_refused(client: OpenAI, body: bytes) -> None:
    with pytest.raises(openai.BadRequestError):
        client.post("/batches", content=body, cast_to=object, options={"headers": {"content-type": "application/json"}})


def test_an_output_file_is_no_input(client: OpenAI) -> None:
    batch = run(client, lines(line(1)))
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.batches.create(input_file_id=batch.output_file_id, endpoint=CHAT, completion_window="24h")


def test_a_file_is_kept_while_a_batch_reads_it(client: OpenAI) -> None:
    made = create(client, lines(line(1, seconds=0.5)))
    with pytest.raises(openai.ConflictError) as refused:
        client.files.delete(made.input_file_id)
    assert refused.value.code == "file_in_use"
    ended(client, made.id)
    assert client.files.delete(made.input_file_id).deleted


def test_another_keys_batches_do_not_exist(client: OpenAI, server: Running) -> None:
    batch = run(client, lines(line(1)))
    theirs = server.client("key-b")
    for call in (theirs.batches.retrieve, theirs.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(batch.id)
    with pytest.raises(openai.NotFoundError):
        theirs.files.content(batch.output_file_id)
    assert list(theirs.batches.list()) == []


def test_batches_are_listed_page_by_page_the_newest_first(client: OpenAI) -> None:
    file_id = upload(client, lines(line(1)))
    made = [client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h").id for _ in range(5)]
    assert [each.id for each in client.batches.list(limit=2)] == made[::-1]
    assert client.batches.list(limit=2).has_more is True
    with pytest.raises(openai.BadRequestError):
        client.batches.list(limit=101)


def test_a_cancelled_batch_stops_and_accounts_for_every_line(client: OpenAI, server: Running) -> None:
    made = create(client, lines(*(line(n) for n in range(20)), *(line(n, seconds=30) for n in range(20, 60))))
    wait_for(lambda: client.batches.retrieve(made.id).request_counts.completed == 20)
    wait_for(lambda: server.engine.running == 8)
    assert client.batches.cancel(made.id).status == "cancelling"
    batch = ended(client, made.id, 5)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    assert server.engine.running == 0
    assert len(server.engine.sent) == 28
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == [f"id-{n}" for n in range(20)]
    left = read(client, batch.error_file_id)
    assert [each["custom_id"] for each in left] == [f"id-{n}" for n in range(20, 60)]
    assert {(each["response"], each["error"]["code"]) for each in left} == {(None, "batch_cancelled")}
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (60, 20, 0)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(made.id)


def test_a_batch_that_has_ended_cannot_be_cancelled(client: OpenAI) -> None:
    batch = run(client, lines(line(1)))
    with pytest.raises(openai.ConflictError) as refused:
        client.batches.cancel(batch.id)
    assert refused.value.code == "batch_not_cancellable"
    assert client.batches.retrieve(batch.id) == batch


def test_a_batch_is_cancelled_at_any_moment(client: OpenAI) -> None:
    content = lines(*(line(n, seconds=0.005) for n in range(100)))
    for moment in range(12):
        made = create(client, content)
        time.sleep(moment * 0.01)
        try:
            client.batches.cancel(made.id)
        except openai.ConflictError:
            assert ended(client, made.id).status == "completed"
        batch = ended(client, made.id)
        found = [*read(client, batch.output_file_id), *read(client, batch.error_file_id)]
        # One that was cancelled before its lines were looked at has none to account for.
        assert len(found) == batch.request_counts.total
        assert sorted(each["custom_id"] for each in found) == sorted(f"id-{n}" for n in range(len(found)))


def test_an_expired_batch_hands_out_what_it_has(client: OpenAI, server: Running) -> None:
    made = create(client, lines(line(1), line(2, seconds=60), line(3, status=400), line(4, seconds=60)))
    wait_for(lambda: sum(client.batches.retrieve(made.id).request_counts.to_dict().values()) == 4 + 2)
    # The run that is under way knows the old time; one that goes on from here knows the new one.
    execute(server, "UPDATE batches SET expires_at = ?, claim = 'another' WHERE id = ?", int(time.time()) + 1, made.id)
    wait_for(lambda: server.engine.running == 0)
    execute(server, "UPDATE batches SET claim = NULL WHERE id = ?", made.id)
    batch = ended(client, made.id)
    assert batch.status == "expired"
    assert batch.expired_at >= batch.expires_at
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == ["id-1"]
    errors = {each["custom_id"]: each for each in read(client, batch.error_file_id)}
    assert list(errors) == ["id-2", "id-3", "id-4"]
    assert errors["id-2"]["error"]["code"] == errors["id-4"]["error"]["code"] == "batch_expired"
    assert errors["id-3"]["response"]["status_code"] == 400
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 1, 1)


def test_a_batch_that_expired_while_the_router_was_down_sends_nothing(tmp_path: Path) -> None:
    with running(tmp_path, poll=0.05) as server:
        client = server.client()
        made = create(client, lines(line(1), line(2, seconds=60)))
        wait_for(lambda: client.batches.retrieve(made.id).request_counts.completed == 1)
        execute(server, "UPDATE batches SET expires_at = ? WHERE id = ?", int(time.time()) - 10, made.id)
    with running(tmp_path, poll=0.05) as server:
        batch = ended(server.client(), made.id)
        assert (batch.status, server.engine.sent) == ("expired", [])
        assert len(read(server.client(), batch.output_file_id)) == 1


def test_a_router_that_stops_in_order_goes_on_where_it_was(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        made = create(server.client(), lines(*(line(n, seconds=0.02) for n in range(100))))
        wait_for(lambda: server.engine.answered >= 30)
        first = server.engine
    started = time.monotonic()
    with running(tmp_path) as server:
        client = server.client()
        batch = ended(client, made.id)
        # The claim was let go, so nobody waits for it to run out.
        assert time.monotonic() - started < 5
        assert sorted(int(each["custom_id"][3:]) for each in read(client, batch.output_file_id)) == list(range(100))
        # What was answered was recorded before the first server closed.
        assert len(server.engine.sent) == 100 - first.answered


def test_results_leave_the_database_once_they_are_in_files(client: OpenAI, server: Running) -> None:
    run(client, lines(*(line(n) for n in range(10))))

    def left() -> int:
        with server.service.store.database.reading() as connection:
            return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])

    wait_for(lambda: left() == 0)


def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, poll=0.05, lease=0.5) as server:
        client = server.client()
        made = create(client, lines(*(line(n, seconds=0.01) for n in range(300))))
        wait_for(lambda: server.engine.answered > 50)
        blocked = sqlite3.connect(tmp_path / "batches.sqlite3", isolation_level=None, check_same_thread=False)
        blocked.execute("BEGIN IMMEDIATE")
        threading.Timer(1.0, lambda: (blocked.execute("ROLLBACK"), blocked.close())).start()
        batch = ended(client, made.id, 30)
        assert batch.request_counts.completed == 300
        assert sorted(int(each["custom_id"][3:]) for each in read(client, batch.output_file_id)) == list(range(300))


def test_another_formats_database_is_refused(tmp_path: Path) -> None:
    from router.batches import BatchStore
    from twinspeed.errors import TwinspeedError

    store = BatchStore(tmp_path)
    store.open()
    store.close()
    with sqlite3.connect(tmp_path / "batches.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    store = BatchStore(tmp_path)
    with pytest.raises(TwinspeedError, match="format 9"):
        store.open()
    store.close()
