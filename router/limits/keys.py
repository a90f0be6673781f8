"""An API key: what it may use, and its secret, of which only the SHA-256 is ever kept."""

import hashlib
import secrets
import time
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from router.config import LaneName
from router.record import NANO

_PREFIX = "sk-ts-"
_SECRET_LENGTH = len(_PREFIX) + len(secrets.token_urlsafe(32))

# Below 2**53, so that numbers stay exact in Redis too, whose scripts count in doubles.
_Usd = Annotated[float, Field(ge=0, le=9_000_000)]
_Count = Annotated[int, Field(ge=1, le=1_000_000_000_000)]


class KeySettings(BaseModel):
    """What a key may use; None is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=200, description="whose key it is, for people")
    models: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="`NAME` allows the model and every suffix, `NAME:VARIANT` that pin only; without it, every model",
    )
    lanes: tuple[LaneName, ...] = Field(default=("interactive", "batch"), min_length=1)
    rpm: _Count | None = Field(default=None, description="requests admitted in any 60 seconds")
    tpm: _Count | None = Field(default=None, description="tokens of the requests admitted in any 60 seconds")
    concurrency: _Count | None = Field(default=None, description="requests under way at once")
    budget_day_usd: _Usd | None = Field(default=None, description="USD in a day, UTC")
    budget_month_usd: _Usd | None = Field(default=None, description="USD in a calendar month, UTC")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as requests are checked against it; `created_at` in seconds since the epoch."""

    id: str
    settings: KeySettings
    created_at: int
    lanes: tuple[LaneName, ...] = field(init=False)
    rpm: int | None = field(init=False)
    tpm: int | None = field(init=False)
    concurrency: int | None = field(init=False)
    budget_day: int | None = field(init=False)
    """Nano-USD."""
    budget_month: int | None = field(init=False)
    """Nano-USD."""
    _models: frozenset[str] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings = self.settings
        # Read once per request, and pydantic's attributes are slow.
        values = {
            "lanes": settings.lanes,
            "rpm": settings.rpm,
            "tpm": settings.tpm,
            "concurrency": settings.concurrency,
            "budget_day": _nano(settings.budget_day_usd),
            "budget_month": _nano(settings.budget_month_usd),
            "_models": None if settings.models is None else frozenset(settings.models),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def allows(self, model: str) -> bool:
        """Whether the key may use `model`, given as the client asks for it: `NAME` or `NAME:SUFFIX`."""
        allowed = self._models
        if allowed is None:
            return True
        while model not in allowed:
            # A model's own name may hold colons too, so that each of them may be where the suffix begins.
            model, colon, _ = model.rpartition(":")
            if not colon:
                return False
        return True


def new_key(settings: KeySettings) -> tuple[Key, str, bytes]:
    """A key with a fresh id, its secret, and the secret's SHA-256."""
    key = Key(f"key_{secrets.token_hex(6)}", settings, int(time.time()))
    secret = _PREFIX + secrets.token_urlsafe(32)
    return key, secret, hashlib.sha256(secret.encode()).digest()


def digest(secret: str) -> bytes | None:
    """A secret's SHA-256; None for what cannot be one of our secrets, whatever its length."""
    if len(secret) != _SECRET_LENGTH or not secret.startswith(_PREFIX) or not secret.isascii():
        return None
    return hashlib.sha256(secret.encode()).digest()


def _nano(usd: float | None) -> int | None:
    # By way of the decimal figure that was written, since 0.1 × 10⁹ is to be 100 000 000.
    return None if usd is None else round(Decimal(str(usd)) * NANO)
