"""A Service's replicas are followed through everything that an API server does."""

import asyncio
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from router.config import KubernetesService
from router.discovery import Cluster, KubernetesReplicas
from tests.router.discovery.api_server import ApiServer, endpoint, slice_of

pytestmark = pytest.mark.unit

ONE, TWO, THREE = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))


class Fleet:
    """What the router was told, each set in its turn."""

    def __init__(self) -> None:
        self.told: list[set[str]] = []

    def update(self, urls: frozenset[str]) -> None:
        self.told.append(set(urls))

    @property
    def now(self) -> set[str] | None:
        return self.told[-1] if self.told else None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def following(cluster: Cluster, port: int | str = "http", backoff: float = 0.01) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    service = KubernetesService(namespace="inference", service="fast", port=port)
    task = asyncio.create_task(
        KubernetesReplicas(service, cluster, backoff=backoff, backoff_max=0.05).run(fleet.update)
    )
    try:
        yield fleet
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def put_token(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first")
    return file


def cluster_at(url: str, token: Path) -> Cluster:
    return Cluster(url, token, token.parent / "ca.crt")


Scenario = Callable[[ApiServer, Fleet], Coroutine[None, None, None]]
Play = Callable[..., None]


@pytest.fixture
def play(token: Path) -> Play:
    """Runs a scenario on a server with slice `a` of replica 1 and a router that follows it."""

    def run(scenario: Scenario, port: int | str = "http") -> None:
        async def whole() -> None:
            api = ApiServer()
            api.put(slice_of("a", "10.0.0.1"))
            async with api.running(), following(cluster_at(api.url, token), port) as fleet:
                await until(lambda: api.watching == 1)
                await scenario(api, fleet)

        asyncio.run(whole())

    return run


def test_lists_then_watches_from_there(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        assert fleet.told == [{ONE}]
        assert api.queries == [
            {"labelSelector": "kubernetes.io/service-name=fast"},
            {
                "labelSelector": "kubernetes.io/service-name=fast",
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": "101",
                "timeoutSeconds": "120",
            },
        ]
        api.put(slice_of("a", "10.0.0.1", "10.0.0.2"))
        await until(lambda: fleet.now == {ONE, TWO})
        api.put(slice_of("a", endpoint("10.0.0.1", ready=False, serving=True, terminating=True), "10.0.0.2"))
        await until(lambda: fleet.now == {TWO})
        api.delete("a")
        await until(lambda: fleet.now == set())
        assert api.lists == 1

    play(scenario)


def test_a_service_without_slices_has_no_replicas_until_it_has_some(token: Path) -> None:
    async def scenario() -> None:
        api = ApiServer()
        async with api.running(), following(cluster_at(api.url, token)) as fleet:
            await until(lambda: fleet.told == [set()])
            api.put(slice_of("a", "10.0.0.1"))
            await until(lambda: fleet.told == [set(), {ONE}])

    asyncio.run(scenario())


def test_a_change_that_moves_no_replica_is_not_told(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.put({**slice_of("a", "10.0.0.1"), "unknown": {"field": 1}})
        api.put(slice_of("a", "10.0.0.1", endpoint("10.0.0.2", ready=False)))
        api.bookmark()
        api.put(slice_of("a", "10.0.0.1", "10.0.0.3"))
        await until(lambda: len(fleet.told) > 1)
        assert fleet.told == [{ONE}, {ONE, THREE}]

    play(scenario)


def test_slices_that_split_and_merge_lose_nobody(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.put(slice_of("a", "10.0.0.1", "10.0.0.2"))
        await until(lambda: fleet.now == {ONE, TWO})
        # The controller makes the new slice first; what comes in one piece is told as one change.
        api.put(slice_of("b", "10.0.0.2", "10.0.0.3"), slice_of("a", "10.0.0.1"))
        await until(lambda: fleet.now == {ONE, TWO, THREE})
        api.put(slice_of("a"), slice_of("b", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
        api.delete("a")
        api.put(slice_of("b", "10.0.0.2"))
        await until(lambda: fleet.now == {TWO})
        assert fleet.told == [{ONE}, {ONE, TWO}, {ONE, TWO, THREE}, {TWO}]

    play(scenario)


def test_an_ended_watch_goes_on_from_the_last_version(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.put(slice_of("a", "10.0.0.2"))
        await until(lambda: fleet.now == {TWO})
        api.end_watches()
        await until(lambda: len(api.watched_from) == 2)
        api.put(slice_of("a", "10.0.0.3"))
        await until(lambda: fleet.now == {THREE})
        assert api.watched_from == [101, 102]
        assert api.lists == 1

    play(scenario)


def test_a_bookmark_moves_the_version_on(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.bookmark()
        api.compact()
        api.end_watches()
        await until(lambda: api.watched_from == [101, 151])
        assert api.lists == 1

    play(scenario)


def test_a_connection_lost_inside_a_line_loses_no_change(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.send(b'{"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceV')
        await asyncio.sleep(0.02)
        api.cut_watches()
        await until(lambda: len(api.watched_from) == 2)
        api.put(slice_of("a", "10.0.0.2"))
        await until(lambda: fleet.now == {TWO})
        api.send(b'{"type": "MODIFIED"')
        api.end_watches()
        await until(lambda: len(api.watched_from) == 3)
        assert fleet.told == [{ONE}, {TWO}]
        assert api.watched_from == [101, 101, 102]
        assert api.lists == 1

    play(scenario)


def test_a_line_that_comes_in_pieces_is_put_together(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        whole = b'{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"102"}}}\n\n'
        for position in range(len(whole)):
            api.send(whole[position : position + 1])
            await asyncio.sleep(0)
        await until(lambda: fleet.now == set())

    play(scenario)


def test_what_changed_while_the_connection_was_lost_is_told(play: Play) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.status = 503
        api.cut_watches()
        await until(lambda: api.refused > 3)
        api.put(slice_of("a", "10.0.0.2"))
        api.put(slice_of("b", "10.0.0.3"))
        assert fleet.told == [{ONE}]
        api.status = None
        await until(lambda: fleet.now == {TWO, THREE})
        assert api.lists == 1

    play(scenario)


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_that_is_gone_leads_to_a_new_list(
    play: Play, caplog: pytest.LogCaptureFixture, as_event: bool
) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.gone_as_event = as_event
        api.status = 503
        api.cut_watches()
        await until(lambda: api.refused > 0)
        api.put(slice_of("b", "10.0.0.2"))
        api.delete("a")
        api.compact()
        api.status = None
        await until(lambda: fleet.now == {TWO})
        assert fleet.told == [{ONE}, {TWO}]
        assert api.lists == 2
        await until(lambda: api.watching == 1)
        api.put(slice_of("b", "10.0.0.3"))
        await until(lambda: fleet.now == {THREE})

    play(scenario)
    assert [record.getMessage() for record in caplog.records if "503" not in record.getMessage()] == []


@pytest.mark.parametrize(
    "piece",
    [
        b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n',
        b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"9"},"endpoints":[{"addresses":3}]}}\n',
        b'{"type":"MODIFIED","object":{"metadata":{}}}\n',
        b'{"type":"BOOKMARK","object":{}}\n',
        b'{"type":"RENAMED","object":{}}\n',
        b"<html>\n",
        b"[]\n",
        b"\xff\n",
    ],
)
def test_an_answer_that_is_no_watch_leads_to_a_new_list(play: Play, piece: bytes) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.send(piece)
        await until(lambda: api.lists == 2)
        await until(lambda: api.watching == 1)
        assert fleet.told == [{ONE}]
        api.put(slice_of("a", "10.0.0.2"))
        await until(lambda: fleet.now == {TWO})

    play(scenario)


def test_a_lost_api_server_empties_nothing_and_is_reported_once(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = ApiServer()
        api.put(slice_of("a", "10.0.0.1"))
        async with AsyncExitStack() as server:
            await server.enter_async_context(api.running())
            async with following(cluster_at(api.url, token)) as fleet:
                await until(lambda: api.watching == 1)
                await server.aclose()
                await until(lambda: bool(caplog.records))
                await asyncio.sleep(0.3)
                assert fleet.told == [{ONE}]

    asyncio.run(scenario())
    [record] = caplog.records
    assert record.getMessage().startswith("inference/fast: the Kubernetes API does not say where its replicas are (")
    assert record.getMessage().endswith("); the 1 that are known stay in use")


def test_reports_that_the_api_answers_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        caplog.set_level(logging.INFO, logger="router.discovery")
        api.status = 403
        api.cut_watches()
        await until(lambda: api.refused > 3)
        api.status = None
        await until(lambda: len(caplog.records) == 2)

    play(scenario)
    lost, again = (record.getMessage() for record in caplog.records)
    assert "let the router's service account `list` and `watch` endpointslices.discovery.k8s.io there" in lost
    assert again == "inference/fast: the Kubernetes API answers again"


def test_one_lost_connection_is_no_news(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        async def lose_then_change(replica: int) -> None:
            api.cut_watches()
            await until(lambda: api.watching == 1)
            api.put(slice_of("a", f"10.0.0.{replica}"))
            await until(lambda: fleet.now == {f"http://10.0.0.{replica}:8000"})

        for replica in (2, 3, 4):
            await lose_then_change(replica)

    play(scenario)
    assert not caplog.records


def test_a_watch_that_always_ends_at_once_is_tried_ever_more_slowly(token: Path) -> None:
    async def scenario() -> None:
        api = ApiServer()
        api.put(slice_of("a", "10.0.0.1"))
        api.compacted = 10_000
        async with api.running(), following(cluster_at(api.url, token)) as fleet:
            await until(lambda: bool(fleet.told))
            await asyncio.sleep(0.5)
        assert 3 < len(api.watched_from) < 60, "pauses grow to 0.05 s, 0.025 s on average"
        assert fleet.told == [{ONE}]

    asyncio.run(scenario())


def test_the_token_is_read_again_when_it_rotates(play: Play, token: Path) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.token = "second"
        api.cut_watches()
        await until(lambda: api.refused > 1)
        put_token(token, b"second\n")
        await until(lambda: api.watching == 1)
        api.put(slice_of("a", "10.0.0.2"))
        await until(lambda: fleet.told == [{ONE}, {TWO}])

    play(scenario)


@pytest.mark.parametrize("broken", [None, b"\xff\xfe", b"a\r\nb"])
def test_a_token_that_cannot_be_read_is_waited_for(play: Play, token: Path, broken: bytes | None) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        put_token(token, broken)
        api.cut_watches()
        await asyncio.sleep(0.1)
        assert api.watching == 0
        put_token(token, b"first")
        await until(lambda: api.watching == 1)

    play(scenario)


def test_a_port_that_no_pod_has_is_reported_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(api: ApiServer, fleet: Fleet) -> None:
        api.put(slice_of("a", "10.0.0.2"))
        api.put(slice_of("a", "10.0.0.2", ports=[{"name": "", "port": 80}]))
        await until(lambda: fleet.now == {"http://10.0.0.2:80"})
        assert fleet.told == [set(), {"http://10.0.0.2:80"}]

    play(scenario, port=80)
    [record] = caplog.records
    assert record.getMessage() == "inference/fast: no port 80 among its pods' (http=8000); set `port` to one of these"


def test_the_server_s_certificate_is_checked_against_the_cluster_s_ca(token: Path) -> None:
    folder = token.parent
    for name in ("ca", "other"):
        subprocess.run(
            f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.crt -days 1 -subj /CN={name} "
            "-addext subjectAltName=IP:127.0.0.1",
            shell=True,
            cwd=folder,
            check=True,
            capture_output=True,
        )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ca.crt", folder / "ca.key")

    async def scenario() -> None:
        api = ApiServer()
        api.put(slice_of("a", "10.0.0.1"))
        async with api.running(tls):
            async with following(Cluster(api.url, token, folder / "other.crt")) as fleet:
                await asyncio.sleep(0.2)
                assert fleet.told == []
                assert api.queries == [], "nothing, and no token, was sent to a server that is not trusted"
            async with following(Cluster(api.url, token, folder / "ca.crt")) as fleet:
                await until(lambda: fleet.now == {ONE})

    asyncio.run(scenario())
