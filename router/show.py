"""Tables for people, of what `twinspeed route explain` and `twinspeed route replay` find."""

from typing import Any

from rich.table import Table

from router.choice.replay import Estimate, Replay


def explained(answer: dict[str, Any]) -> Table:
    """The candidates of a request, as POST /admin/explain gives them, best first."""
    table = Table(title=f"{answer['model']}: where this request would go", title_justify="left")
    for heading in ("", "variant", "replica", "cost, USD", "TTFT, s", "TPOT, ms", "quality loss", "why"):
        table.add_column(heading, justify="right" if heading.endswith(("USD", "s", "loss")) else "left")
    for each in answer["candidates"]:
        loss = each["quality_loss"]
        table.add_row(
            "→" if each["chosen"] else "",
            each["variant"],
            each["replica"],
            f"{each['predicted_cost_usd']:.9f}",
            f"{each['predicted_ttft_s']:.3f}",
            f"{each['predicted_tpot_s'] * 1000:.1f}",
            "unknown" if loss is None else f"{loss:.4f}",
            each["verdict"],
        )
    return table


def replayed(result: Replay, seed: int) -> Table:
    """A replay's four ways of choosing, with 95 % intervals."""
    title = f"{result.requests} requests, simulated; 95 % intervals; seed {seed}"
    table = Table(title=title, title_justify="left")
    for heading in ("", "spend, USD", "cost per request, USD", "÷ standard", "quality loss", "SLO attained", "shares"):
        table.add_column(heading, justify="left" if heading in ("", "shares") else "right")
    for each in (result.policy, result.standard, result.alternative, result.random_mix):
        table.add_row(
            each.name,
            f"{each.spend_usd:.6f}",
            _estimate(each.cost_usd, 9),
            _estimate(each.cost_ratio, 3),
            _estimate(each.quality_loss, 4),
            _estimate(each.slo_attainment, 3),
            ", ".join(f"{variant} {share:.0%}" for variant, share in each.shares.items()),
        )
    return table


def _estimate(value: Estimate | None, digits: int) -> str:
    if value is None:
        return "unknown"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"
