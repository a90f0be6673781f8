"""Picks variant and replica for a request, and can say why. Pure: no IO and no clock; `now` is passed in."""

from router.choice.demand import BUSY, Busy, Candidate, Decision, Demand, Goal, Reason
from router.choice.model import Model
from router.choice.prices import Prices, cost
from router.choice.replica import Replica

__all__ = ["BUSY", "Busy", "Candidate", "Decision", "Demand", "Goal", "Model", "Prices", "Reason", "Replica", "cost"]
