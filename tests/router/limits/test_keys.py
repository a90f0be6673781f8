import pytest
from pydantic import ValidationError

from router.limits import Key, KeySettings, StoreUnavailable
from router.limits.keys import digest, new_key
from router.limits.store import stored_key

pytestmark = pytest.mark.unit


def key(**settings: object) -> Key:
    return Key("key_1", KeySettings.model_validate({"name": "n", **settings}), 0)


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (None, "anything", True),
        (None, "anything:fast", True),
        (("m",), "m", True),
        (("m",), "m:fast", True),
        (("m",), "m:nitro", True),
        (("m",), "mm", False),
        (("m",), "mm:m", False),
        (("m",), "", False),
        (("m:fast",), "m:fast", True),
        (("m:fast",), "m", False),
        (("m:fast",), "m:standard", False),
        (("m:fast",), "m:faster", False),
        (("a:8b",), "a:8b", True),
        (("a:8b",), "a:8b:fast", True),
        (("a:8b",), "a:9b:fast", False),
        (("a", "b:fast"), "b:fast", True),
    ],
)
def test_a_listed_name_allows_every_suffix_and_a_listed_pin_only_itself(
    models: tuple[str, ...] | None, model: str, allowed: bool
) -> None:
    assert key(models=models).allows(model) is allowed


def test_budgets_are_the_decimal_figure_in_nano_usd() -> None:
    assert key(budget_day_usd=0.1, budget_month_usd=8_999_999.999999999).budget_day == 100_000_000
    assert key(budget_month_usd=1234567.891).budget_month == 1_234_567_891_000_000
    assert key(budget_day_usd=0).budget_day == 0
    assert key().budget_day is None


@pytest.mark.parametrize(
    "settings",
    [
        {"rpm": 0},
        {"tpm": -1},
        {"concurrency": 0},
        {"budget_day_usd": -0.1},
        {"budget_month_usd": 9_000_001},
        {"budget_day_usd": float("nan")},
        {"models": ()},
        {"lanes": ()},
        {"lanes": ("express",)},
        {"name": ""},
        {"admin": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        key(**settings)


def test_a_secret_is_long_random_and_recognised_by_its_form() -> None:
    made = [new_key(KeySettings(name="n")) for _ in range(100)]
    assert len({each.id for each, _, _ in made}) == len({secret for _, secret, _ in made}) == 100
    for each, secret, hashed in made:
        assert each.id.startswith("key_")
        assert secret.startswith("sk-ts-")
        assert len(secret) >= 6 + 43
        assert digest(secret) == hashed
    assert digest("sk-ts-" + "ä" * 43) is None
    assert digest("x" + made[0][1][1:]) is None


def test_stored_settings_of_another_version_are_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"settings of key_1 are of another version: teapot"):
        stored_key("key_1", '{"name": "n", "teapot": 1}', 0)
