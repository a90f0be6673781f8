"""A Kubernetes API server's EndpointSlices, over real HTTP: list, watch, versions, tokens, and all that goes wrong."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Json = dict[str, Any]


def endpoint(address: str, **conditions: bool | None) -> Json:
    return {"addresses": [address], "conditions": conditions}


def of_pod(uid: str, described: Json) -> Json:
    return {**described, "targetRef": {"kind": "Pod", "name": uid, "uid": uid}}


def slice_of(name: str, *endpoints: Json | str, family: str = "IPv4", ports: list[Json] | None = None) -> Json:
    """A slice with one port, `http` 8000, unless `ports` says otherwise."""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "inference", "labels": {"kubernetes.io/service-name": "fast"}},
        "addressType": family,
        "endpoints": [endpoint(e, ready=True) if isinstance(e, str) else e for e in endpoints],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
    }


class ApiServer:
    """Keeps a history of versions, as etcd does, so that a watch can go on from any that is not compacted."""

    def __init__(self) -> None:
        self.token = "first"
        self.version = 100
        self.compacted = 0
        self.status: int | None = None
        """Answers every request with this."""
        self.gone_as_event = True
        """Says that a version is compacted inside the watch; else with the HTTP status."""
        self.lists = 0
        self.watched_from: list[int] = []
        self.queries: list[dict[str, str]] = []
        self.refused = 0
        self.url = ""
        self._slices: dict[str, Json] = {}
        self._history: list[tuple[int, bytes]] = []
        self._watches: dict[asyncio.Queue[bytes | None], asyncio.Transport] = {}

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["ApiServer"]:
        app = web.Application()
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    @property
    def watching(self) -> int:
        return len(self._watches)

    def put(self, *slices: Json) -> None:
        """Create or change slices; what a watch is told of them comes in one piece."""
        self._tell(*(("MODIFIED" if s["metadata"]["name"] in self._slices else "ADDED", s) for s in slices))

    def delete(self, name: str) -> None:
        self._tell(("DELETED", self._slices[name]))

    def bookmark(self) -> None:
        """What happens to other services moves the version on."""
        self.version += 50
        self.send(_line("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self.version)}}))

    def compact(self) -> None:
        """Forget all versions before this one."""
        self.compacted = self.version

    def send(self, piece: bytes) -> None:
        """Raw bytes to all watches."""
        for queue in self._watches:
            queue.put_nowait(piece)

    def end_watches(self) -> None:
        """In order, as after timeoutSeconds."""
        for queue in self._watches:
            queue.put_nowait(None)
        self._watches.clear()

    def cut_watches(self) -> None:
        """Without a word, as a lost connection."""
        for transport in self._watches.values():
            transport.abort()
        self._watches.clear()

    def _tell(self, *changes: tuple[str, Json]) -> None:
        pieces = b""
        for kind, changed in changes:
            self.version += 1
            name = changed["metadata"]["name"]
            stamped = {**changed, "metadata": {**changed["metadata"], "resourceVersion": str(self.version)}}
            if kind == "DELETED":
                del self._slices[name]
            else:
                self._slices[name] = stamped
            line = _line(kind, stamped)
            self._history.append((self.version, line))
            pieces += line
        self.send(pieces)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.queries.append(query)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            raise web.HTTPUnauthorized
        if self.status is not None:
            self.refused += 1
            return web.Response(status=self.status)
        if "watch" in query:
            return await self._watch(request, int(query["resourceVersion"]))
        self.lists += 1
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self._slices.values()) or None,
            }
        )

    async def _watch(self, request: web.Request, since: int) -> web.StreamResponse:
        self.watched_from.append(since)
        expired = since < self.compacted
        if expired and not self.gone_as_event:
            raise web.HTTPGone
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if expired:
            await response.write(_line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, line in self._history:
            if version > since:
                queue.put_nowait(line)
        transport = request.transport
        assert transport is not None
        self._watches[queue] = transport
        try:
            while (piece := await queue.get()) is not None:
                await response.write(piece)
        finally:
            self._watches.pop(queue, None)
        return response


def _line(kind: str, changed: Json) -> bytes:
    return json.dumps({"type": kind, "object": changed}).encode() + b"\n"
