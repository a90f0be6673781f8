"""The administrators' API, on a port of its own: keys, replicas, and why a request would go where."""

import hashlib
import hmac
import json
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from router.api import use_openai_errors
from router.body import BodyError, parse_body
from router.demand import read_demand
from router.errors import ApiError
from router.limits import Key, KeySettings
from router.record import NANO

if TYPE_CHECKING:
    from router.service import Router


class Question(BaseModel):
    """A request that is asked about and not sent: its body as a client would send it, and its headers."""

    model_config = ConfigDict(extra="forbid")

    body: dict[str, Any]
    headers: dict[str, str] = Field(default_factory=dict)

    def header(self, wanted: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        name = wanted.decode()
        return next((value.encode() for key, value in self.headers.items() if key.lower() == name), None)


def create_admin(router: "Router") -> FastAPI:
    """Every route needs the key whose SHA-256 is in the settings."""
    app = FastAPI(title="Twinspeed router: administration", redirect_slashes=False)
    use_openai_errors(app)
    admin = APIRouter(prefix="/admin", dependencies=[Depends(_key_check(router))])

    @admin.post("/keys", status_code=201)
    async def create_key(settings: KeySettings) -> dict[str, Any]:
        """Makes a key. Its secret is in this answer and nowhere else."""
        key, secret = await router.store.create_key(settings)
        return {**_shown(key), "secret": secret}

    @admin.get("/keys")
    async def list_keys() -> dict[str, Any]:
        return {"data": [_shown(key) for key in await router.store.list_keys()]}

    @admin.delete("/keys/{key_id}")
    async def revoke_key(key_id: str) -> dict[str, Any]:
        """Takes a key out of use for good; requests under way end as they would have."""
        if not await router.store.revoke_key(key_id):
            raise ApiError(404, f"There is no key {key_id}.", code="key_not_found")
        return {"id": key_id, "revoked": True}

    @admin.get("/keys/{key_id}/usage")
    async def usage(key_id: str) -> dict[str, Any]:
        """What the key has used today and this month (UTC), and what is reserved now."""
        found = await router.store.usage(key_id)
        if found is None:
            raise ApiError(404, f"There is no key {key_id}.", code="key_not_found")
        return asdict(found)

    @admin.get("/replicas")
    async def replicas() -> dict[str, Any]:
        """Every replica with its load, as the choice sees it."""
        return {
            "data": [
                {"model": entry.name, "name": backend.name, **asdict(backend.replica)}
                for entry in router.gateway.table.entries.values()
                for backend in entry.backends.values()
            ]
        }

    @admin.post("/explain")
    async def explain(question: Annotated[Question, Body()]) -> dict[str, Any]:
        """Every candidate for a request, its predicted cost, latency and quality, and why it would win or lose."""
        return explain_request(router, question)

    app.include_router(admin)
    return app


def explain_request(router: "Router", question: Question) -> dict[str, Any]:
    """Raises ApiError where the request itself would be refused."""
    try:
        body = parse_body(json.dumps(question.body).encode())
    except BodyError as error:
        raise ApiError(400, str(error), code="invalid_body") from None
    entry, pin, goal = router.gateway.table.resolve(body.model)
    demand = read_demand(question, body, pin=pin, goal=goal)
    candidates = entry.model.explain(demand, monotonic())
    return {
        "model": entry.name,
        "demand": {**asdict(demand), "needs": sorted(demand.needs)},
        "candidates": [
            {**asdict(candidate), "predicted_cost_usd": candidate.predicted_cost / NANO} for candidate in candidates
        ],
    }


def _shown(key: Key) -> dict[str, Any]:
    return {"id": key.id, "created_at": key.created_at, **key.settings.model_dump()}


def _key_check(router: "Router") -> Any:
    async def check(request: Request) -> None:
        settings = router.config.admin
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(secret.encode()).hexdigest()
        if settings is None or scheme.lower() != "bearer" or not hmac.compare_digest(given, settings.key_sha256):
            headers = [(b"www-authenticate", b"Bearer")]
            raise ApiError(401, "The administrators' key is needed.", code="invalid_admin_key", headers=headers)

    return check
