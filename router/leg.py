"""One attempt's hold on a replica."""

from dataclasses import dataclass

from router.backend import Backend
from router.choice import Decision
from router.relay import Attempt


@dataclass(slots=True, eq=False)
class Leg:
    """A place on a replica, and the attempt that uses it once it is sent."""

    decision: Decision
    backend: Backend
    attempt: Attempt | None = None
    left: bool = False
    """Whether the place has been given back."""
