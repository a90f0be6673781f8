"""One model's variants and replicas, and the choice among them.

A variant may serve a request if its release's evidence bounds the expected quality loss (`max_quality_loss`) and it is
able to. Of those that meet the deadline the cheapest is taken, at prices computed from the hardware's price and the
measured speed at the present load. Within a variant a prompt goes to the replica that knows its prefix, or else to the
least loaded one. A session stays where it is for as long as that is allowed, because its KV cache is there.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from zlib import crc32

from router.choice.demand import BUSY, Busy, Candidate, Decision, Demand
from router.choice.eligible import Admitted, admit
from router.choice.explain import candidates
from router.choice.prices import cost
from router.choice.ranking import Choice, rank, reason_alone
from router.choice.replica import Replica
from router.choice.sessions import Sessions, Stay
from router.choice.variant import Option, build
from router.config import ModelSettings
from router.errors import ApiError
from router.record import Usage
from twinspeed.errors import InputError
from twinspeed.release import Release

# An answer's length until some have been seen.
_FIRST_OUTPUT = 256.0
_OUTPUT_WEIGHT = 0.05
_RETRY_AFTER_S = 5


class Model:
    """Mutable: replicas come and go, speeds and answers' lengths are learned. One event loop's only.

    Every `now` is of one monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: ModelSettings,
        release: Release | None,
        replicas: Iterable[Replica] = (),
        *,
        slow_start: float = 30.0,
    ) -> None:
        """Raises InputError where a replica's variant is none of the model's."""
        self.name = settings.name
        self._max_loss = settings.max_quality_loss
        self._slow_start = slow_start
        self._variants = build(settings, release, slow_start)
        self._sessions = Sessions()
        self._output = _FIRST_OUTPUT
        self._expected_output = round(_FIRST_OUTPUT)
        self.set_replicas(replicas)

    def set_replicas(self, replicas: Iterable[Replica]) -> None:
        """Replaces the replicas. Those that stay are to be the same objects: they carry the load.

        Raises:
            InputError: one's variant is none of the model's.
        """
        by_variant: dict[str, list[Replica]] = {name: [] for name in self._variants}
        for replica in replicas:
            if replica.variant not in by_variant:
                raise InputError(f"replica {replica.url}: {self.name} has no variant {replica.variant!r}")
            by_variant[replica.variant].append(replica)
        for name, those in by_variant.items():
            self._variants[name].balance.set_replicas(those)

    def take_over(self, previous: "Model") -> None:
        """Keeps the sessions, the answers' length and the replicas of the model that this one replaces.

        Requests that wait by that one see replicas come and go as this one does.
        """
        for name in self._variants.keys() & previous._variants.keys():
            balance = self._variants[name].balance = previous._variants[name].balance
            balance.configure(self._slow_start)
        self._sessions = previous._sessions
        self._output, self._expected_output = previous._output, previous._expected_output

    def expected_usage(self, demand: Demand) -> Usage:
        """The tokens that a request will probably take; the prompt as if nothing of it were cached."""
        output, most = self._expected_output, demand.max_tokens
        return Usage(demand.prompt_tokens, output if most is None or output < most else most)

    def highest_cost(self, demand: Demand, now: float) -> int:
        """Nano-USD that the expected usage comes to on the dearest variant that may serve it, alone on its replica."""
        usage = self.expected_usage(demand)
        variants = self._variants.values() if demand.pin is None else (self._variants[demand.pin],)
        return max(cost(each.prices(each.speed.rates(demand.task_kind, now), 1), usage) for each in variants)

    def choose(self, demand: Demand, now: float, exclude: Collection[str] = ()) -> Decision | Busy:
        """Where the request goes. Does not count it: `in_flight` is the caller's.

        Args:
            demand: `pin`, if any, is a variant of this model.
            exclude: URLs of replicas already tried; used only if no other may serve.

        Returns:
            The decision, or BUSY where every replica that may serve has all that it takes.

        Raises:
            ApiError: 400 `capability_not_supported` or `max_cost_exceeded`; 503 `variant_unavailable`, with
                retry-after, where no replica that may serve is ready.
        """
        choice = self._decide(demand, now, exclude)
        if choice is BUSY:
            return BUSY
        option = choice.option
        variant, replica = option.variant, option.replica
        if option.in_turn:
            variant.balance.took(replica, now)
        if demand.session is not None:
            key = (demand.pin or demand.goal, demand.session)
            self._sessions.put(key, variant.name, replica.url, demand.prompt_tokens, now)
        return Decision(
            replica,
            choice.reason,
            option.expected,
            variant.prices(option.rates, option.batch),
            option.ttft,
            option.tpot,
            option.e2e,
            round(option.cost),
            option.loss,
            option.batch,
            demand.task_kind,
        )

    def explain(self, demand: Demand, now: float) -> list[Candidate]:
        """Every replica of every variant, the chosen one first, with what speaks for and against it.

        None is chosen where `choose` would answer BUSY or raise ApiError.
        """
        choice: Choice | None = None
        # What refuses the request stands in every replica's own verdict.
        with suppress(ApiError):
            decided = self._decide(demand, now, ())
            choice = None if decided is BUSY else decided
        expected = self.expected_usage(demand)
        return candidates(self.name, self._variants, self._max_loss, demand, expected, choice, now)

    def observe(
        self, decision: Decision, usage: Usage, *, ttft_s: float | None, tpot_s: float | None, now: float
    ) -> None:
        """Learns from an answer that came whole; None is unknown."""
        self._output += _OUTPUT_WEIGHT * (usage.completion - self._output)
        self._expected_output = max(1, round(self._output))
        speed = self._variants[decision.replica.variant].speed
        speed.observe(decision.task_kind, decision.batch, usage.prompt - usage.cached, ttft_s, tpot_s, now)

    def _decide(self, demand: Demand, now: float, exclude: Collection[str]) -> Choice | Busy:
        """Shared by `choose` and `explain`, so that the explanation is the truth. Changes nothing."""
        admitted, unable = admit(self.name, self._variants, self._max_loss, demand)
        expected = self.expected_usage(demand)
        key = demand.prefix_hash
        options: list[Option] = []
        held: Option | None = None
        if demand.session is not None:
            stay = self._sessions.get((demand.pin or demand.goal, demand.session), now)
            if stay is not None:
                held = self._held(stay, admitted, demand, expected, now, exclude)
            if held is not None:
                if held.on_time and not held.full and (demand.max_cost is None or held.cost <= demand.max_cost):
                    return Choice(held, "pinned" if demand.pin is not None else "session", [held])
                options.append(held)
            if key is None:
                key = crc32(demand.session.encode("utf-8", "surrogatepass"))
        for variant, loss in admitted:
            spot = variant.balance.pick(key, now, exclude)
            if spot is None:
                continue
            replica, least = spot
            option = variant.option(replica, loss, demand, expected, now)
            if least is not replica and not option.on_time:
                # The prompt's prefix is worth a detour, but no deadline.
                other = variant.option(least, loss, demand, expected, now)
                if other.on_time or other.e2e < option.e2e:
                    option = other
            option.in_turn = option.replica is least
            if held is None or held.replica is not option.replica:
                options.append(option)
        if not options:
            if exclude:
                return self._decide(demand, now, ())
            raise self._unavailable(admitted)
        # At the batch of the busiest, so that no variant is cheap merely because it is busy.
        batch = max([option.batch for option in options])
        for option in options:
            option.compare(batch)
        ranked = rank(options, demand, alone=reason_alone(len(admitted), options, unable))
        return BUSY if ranked is BUSY else Choice(ranked[0], ranked[1], options)

    def _held(
        self, stay: Stay, admitted: Admitted, demand: Demand, expected: Usage, now: float, exclude: Collection[str]
    ) -> Option | None:
        """The session's own variant, on its own replica if that is still open."""
        for variant, loss in admitted:
            if variant.name == stay.variant:
                spot = variant.balance.pick(demand.prefix_hash, now, exclude, stay.url)
                if spot is None:
                    return None
                replica = spot[0]
                if replica.url == stay.url:
                    expected = Usage(expected.prompt, expected.completion, min(stay.tokens, expected.prompt))
                return variant.option(replica, loss, demand, expected, now)
        return None

    def _unavailable(self, admitted: Admitted) -> ApiError:
        names = " or ".join(variant.name for variant, _ in admitted)
        ready = [
            f"`{self.name}:{variant.name}`"
            for variant in self._variants.values()
            if any(replica.open for replica in variant.balance.replicas)
        ]
        advice = f", or ask for {' or '.join(ready)}" if ready else ""
        message = f"No replica of variant {names} of `{self.name}` is ready: try again in {_RETRY_AFTER_S} s{advice}."
        headers = [(b"retry-after", b"%d" % _RETRY_AFTER_S)]
        return ApiError(503, message, code="variant_unavailable", headers=headers)
