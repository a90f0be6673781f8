"""Calendar days and months in UTC, as numbers that grow by one; seconds since the epoch go in."""

from datetime import UTC, datetime

DAY_S = 86_400


def month_of(day: int) -> int:
    """The month of a day that is given in days since the epoch: year × 12 + month, counted from 0."""
    date = datetime.fromtimestamp(day * DAY_S, UTC)
    return date.year * 12 + date.month - 1


def day_left_s(wall: float) -> float:
    return DAY_S - wall % DAY_S


def month_left_s(wall: float) -> float:
    year, month = divmod(month_of(int(wall // DAY_S)) + 1, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC).timestamp() - wall
