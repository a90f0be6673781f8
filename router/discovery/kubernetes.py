"""Replicas found as the endpoints of a Kubernetes Service: lists its EndpointSlices, then watches them.

The protocol is that of https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes.
What was last known stays in force while the API server does not answer.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from router.config import KubernetesService
from router.discovery.cluster import Cluster
from router.discovery.endpoints import Event, Slice, SliceList, Status, Versioned, replicas

_logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_LIST_S = 30.0
# A watch ends after this and the next begins, so that a connection lost without a word is noticed.
_WATCH_S = 120
_SETTLED_S = 10.0  # a watch that ran this long ends a row of failures
_LINE_BYTES = 16 * 1024 * 1024  # no slice comes near: etcd holds at most 1.5 MiB of one


class KubernetesReplicas:
    """The ready endpoints of one Service. Its pod's account needs `list` and `watch` on EndpointSlices there."""

    def __init__(
        self, service: KubernetesService, cluster: Cluster, *, backoff: float = 0.5, backoff_max: float = 30.0
    ) -> None:
        """`backoff` is in seconds; it doubles with each failure up to `backoff_max`, with full jitter."""
        self._service = service
        self._cluster = cluster
        self._backoff = backoff
        self._backoff_max = backoff_max
        self._label = f"{service.namespace}/{service.service}"
        self._slices: dict[str, Slice] = {}
        self._version: str | None = None
        self._told: frozenset[str] | None = None
        self._failures = 0
        self._reported = False
        self._other_ports: frozenset[str] = frozenset()

    async def run(self, update: Callable[[frozenset[str]], None]) -> None:
        """As `Discovery.run`, once. Only an answer that says so empties the set."""
        while True:
            began = time.monotonic()
            failure: Exception | None = None
            try:
                async with self._session() as session:
                    await self._follow(session, update)
            except _Expired:
                self._version = None
            except (ValidationError, _Unusable) as error:
                self._version = None
                failure = error
            except (aiohttp.ClientError, OSError, TimeoutError, _Refused) as error:
                failure = error
            if time.monotonic() - began > _SETTLED_S:
                self._failures = 0
            self._failures += 1
            if failure is not None:
                self._report(failure)
            await asyncio.sleep(self._pause())

    def _session(self) -> aiohttp.ClientSession:
        headers = self._cluster.headers()
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=self._cluster.trust()))

    async def _follow(self, session: aiohttp.ClientSession, update: Callable[[frozenset[str]], None]) -> None:
        if self._version is None:
            await self._list(session)
            self._tell(update)
        timeout = aiohttp.ClientTimeout(connect=_CONNECT_S, sock_read=_WATCH_S + _CONNECT_S)
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(_WATCH_S),
        }
        async with self._get(session, query, timeout) as response:
            _require_ok(response)
            self._recovered()
            async for lines in _lines(response.content):
                for line in lines:
                    self._take(Event.model_validate_json(line))
                self._failures = 0
                self._tell(update)

    async def _list(self, session: aiohttp.ClientSession) -> None:
        # Without a resourceVersion the newest is asked for, so that a lagging API server takes no replica back.
        async with self._get(session, {}, aiohttp.ClientTimeout(total=_LIST_S)) as response:
            _require_ok(response)
            listed = SliceList.model_validate_json(await response.read())
        self._slices = {part.metadata.name: part for part in listed.items}
        self._version = listed.metadata.resource_version

    def _get(
        self, session: aiohttp.ClientSession, query: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        namespace = quote(self._service.namespace, safe="")
        return session.get(
            f"{self._cluster.url}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            params={"labelSelector": f"kubernetes.io/service-name={self._service.service}", **query},
            timeout=timeout,
            allow_redirects=False,
        )

    def _take(self, event: Event) -> None:
        if event.type == "ERROR":
            status = Status.model_validate(event.object)
            if status.code == HTTPStatus.GONE:
                raise _Expired
            raise _Unusable(f"the watch broke off: {status.message or status.code}")
        if event.type == "BOOKMARK":
            self._version = Versioned.model_validate(event.object).metadata.resource_version
            return
        part = Slice.model_validate(event.object)
        if event.type == "DELETED":
            self._slices.pop(part.metadata.name, None)
        else:
            self._slices[part.metadata.name] = part
        self._version = part.metadata.resource_version

    def _tell(self, update: Callable[[frozenset[str]], None]) -> None:
        found = replicas(self._slices.values(), self._service.port)
        if found.other_ports and found.other_ports != self._other_ports:
            _logger.warning(
                "%s: no port %s among its pods' (%s); set `port` to one of these",
                self._label,
                self._service.port,
                ", ".join(sorted(found.other_ports)),
            )
        self._other_ports = found.other_ports
        if found.urls != self._told:
            self._told = found.urls
            _logger.info("%s: %d replicas", self._label, len(found.urls))
            update(found.urls)

    def _report(self, failure: Exception) -> None:
        # One lost connection is an API server's daily life; only a second in a row, or a refusal, is news.
        if self._reported or (self._failures < 2 and not isinstance(failure, _Refused)):
            return
        self._reported = True
        _logger.warning(
            "%s: the Kubernetes API does not say where its replicas are (%s); the %d that are known stay in use",
            self._label,
            _reason(failure),
            len(self._told or ()),
        )

    def _recovered(self) -> None:
        if self._reported:
            self._reported = False
            _logger.info("%s: the Kubernetes API answers again", self._label)

    def _pause(self) -> float:
        return random.uniform(0, min(self._backoff_max, self._backoff * 2 ** min(self._failures - 1, 16)))


class _Expired(Exception):
    """The API server no longer keeps the version from which the watch was to go on."""


class _Refused(Exception):
    """An HTTP status other than 200."""


class _Unusable(Exception):
    """The answer is not what the API promises."""


def _require_ok(response: aiohttp.ClientResponse) -> None:
    if response.status == HTTPStatus.GONE:
        raise _Expired
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise _Refused("HTTP 401: it does not accept the service account's token")
    if response.status == HTTPStatus.FORBIDDEN:
        raise _Refused(
            "HTTP 403: let the router's service account `list` and `watch` endpointslices.discovery.k8s.io there"
        )
    if response.status != HTTPStatus.OK:
        raise _Refused(f"HTTP {response.status}")


def _reason(failure: Exception) -> str:
    if isinstance(failure, ValidationError):
        first = failure.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        return (
            f"its answer is no {failure.title}: {field}: {first['msg']}"
            if field
            else f"its answer is no {failure.title}"
        )
    return " ".join(str(failure).split()) or type(failure).__name__


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """The lines of a watch, those together that came together; the last, where it is not ended, is dropped."""
    rest = b""
    async for piece in stream.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise _Unusable(f"a line of the watch is longer than {_LINE_BYTES} bytes")
        if lines := [line for line in whole if line.strip()]:
            yield lines
