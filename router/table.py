"""What is in force: the configuration, and every model with its variants, replicas and queue."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.backend import Backend
from router.choice import Goal, Model
from router.config import GOALS, LaneName, ModelSettings, RouterConfig
from router.errors import ApiError
from router.lanes import Queue
from router.leg import Leg

# The share of a model's places that the lanes without a waiting user may fill.
_BACKGROUND_SHARE = 0.9


@dataclass(slots=True)
class Entry:
    """One model as it is served. `backends` by the replica's URL."""

    settings: ModelSettings
    model: Model
    queue: Queue[Leg]
    backends: dict[str, Backend]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.settings.variants)

    def has_room(self, lane: LaneName) -> bool:
        """Whether a request of this lane may take a place, if there is one."""
        if lane == "interactive":
            return True
        ready = [backend.replica for backend in self.backends.values() if backend.replica.ready]
        places = sum(replica.max_in_flight for replica in ready)
        return sum(replica.in_flight for replica in ready) < max(1, int(places * _BACKGROUND_SHARE))

    def ready(self) -> dict[str, int]:
        """How many replicas of each variant can take requests."""
        counts = dict.fromkeys(self.variants, 0)
        for backend in self.backends.values():
            counts[backend.replica.variant] += backend.replica.open
        return counts


@dataclass(frozen=True, slots=True)
class Table:
    """The whole of it; replaced, never changed, when the configuration is."""

    config: RouterConfig
    entries: Mapping[str, Entry]
    """By the model's name."""

    def resolve(self, model: str) -> tuple[Entry, str | None, Goal]:
        """The model that a client asks for, the variant that it is pinned to, and the goal.

        Raises:
            ApiError: 404, there is none; names those there are.
        """
        entry = self.entries.get(model)
        if entry is not None:
            return entry, None, "policy"
        name, _, suffix = model.rpartition(":")
        entry = self.entries.get(name)
        if entry is not None:
            if suffix in entry.variants:
                return entry, suffix, "policy"
            if suffix == "floor":
                return entry, None, "floor"
            if suffix == "nitro":
                return entry, None, "nitro"
        raise unknown_model(model, self.listed())

    def listed(self) -> list[str]:
        """Every name that a client may ask for: of each model the bare one first."""
        return [
            name
            for entry in self.entries.values()
            for name in (entry.name, *(f"{entry.name}:{suffix}" for suffix in (*entry.variants, *GOALS)))
        ]


def unknown_model(model: str, known: Iterable[str]) -> ApiError:
    """Names every model that is served."""
    message = f"The model `{model}` does not exist. Known models: {', '.join(known)}."
    return ApiError(404, message, code="model_not_found", param="model")
