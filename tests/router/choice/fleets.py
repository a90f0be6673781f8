"""Small fleets with known figures."""

from collections.abc import Mapping
from datetime import UTC, datetime

from router.choice import Decision, Demand, Model, Replica
from router.choice.demand import Busy
from router.config import ModelSettings, VariantSettings
from twinspeed.release import (
    Capabilities,
    EngineSettings,
    Evidence,
    Interval,
    Measurement,
    NgramSpeculation,
    Parent,
    Release,
    Variant,
    Weights,
)

SHA = "0" * 64
NAME = "acme/tiny"
NGRAM = NgramSpeculation(num_speculative_tokens=3, prompt_lookup_min=2, prompt_lookup_max=4)


def measurement(
    measure: str,
    value: float,
    *,
    workload: str = "chat",
    concurrency: int = 1,
    high: float | None = None,
    machine: str = "one machine",
    day: int = 1,
) -> Measurement:
    return Measurement(
        measure=measure,
        value=value,
        unit="",
        interval=None if high is None else Interval(low=-1.0, high=high),
        n=10,
        workload=workload,
        concurrency=concurrency,
        machine=machine,
        versions={},
        command="make bench",
        date=datetime(2026, 1, day, tzinfo=UTC),
    )


def speeds(ttft_ms: float, tpot_ms: Mapping[int, float], workload: str = "chat") -> tuple[Measurement, ...]:
    return (
        measurement("ttft_ms", ttft_ms, workload=workload),
        *(
            measurement("tpot_ms", value, workload=workload, concurrency=concurrency)
            for concurrency, value in tpot_ms.items()
        ),
    )


def variant(
    *,
    speed: tuple[Measurement, ...] = (),
    quality: tuple[Measurement, ...] = (),
    lossless_to: str | None = None,
    cannot: tuple[str, ...] = (),
    context: int = 8192,
    modalities: tuple[str, ...] = ("text",),
    max_num_seqs: int = 64,
    speculation: NgramSpeculation | None = None,
) -> Variant:
    return Variant(
        weights=Weights(path="w", format="bf16", recipe="copy", bytes=1, files={"model.safetensors": SHA}),
        speculation=speculation,
        lossless_to=lossless_to,
        engine=EngineSettings(max_model_len=context, max_num_seqs=max_num_seqs),
        capabilities=Capabilities.model_validate(
            {"context": context, "modalities": modalities, "sampling_not_supported": cannot}
        ),
        evidence=Evidence(speed=speed, quality=quality),
    )


def release(**variants: Variant) -> Release:
    return Release(
        name="tiny",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        tools={},
        parent=Parent(
            uri="file:///x",
            tree_sha256=SHA,
            architecture="LlamaForCausalLM",
            context_length=1_000_000,
            vocab_size=10,
            tokenizer_sha256=SHA,
            chat_template_sha256=None,
            generation_config_sha256=SHA,
            eos_token_ids=(2,),
        ),
        variants=variants,
    )


def priced(name: str, usd_per_hour: float | None = 3.6, **fields: object) -> VariantSettings:
    return VariantSettings.model_validate(
        {"replicas": (f"http://{name}-0:8000",), "usd_per_hour": usd_per_hour, **fields}
    )


def settings(
    max_quality_loss: float = 0.0, usd_per_hour: float | None = 3.6, **variants: VariantSettings
) -> ModelSettings:
    """`standard` and `fast` at `usd_per_hour`, which is 0.001 USD or a million nano-USD a second, unless given."""
    plain = {name: priced(name, usd_per_hour) for name in ("standard", "fast")}
    return ModelSettings(name=NAME, max_quality_loss=max_quality_loss, variants=plain | variants)


def replicas(variant_name: str, count: int = 1, **fields: object) -> list[Replica]:
    found = []
    for number in range(count):
        replica = Replica(f"http://{variant_name}-{number}:8000", variant_name, f"{NAME}:{variant_name}", ready=True)
        for name, value in fields.items():
            setattr(replica, name, value)
        found.append(replica)
    return found


def chosen(model: Model, demand: Demand, now: float = 0.0, **options: object) -> Decision:
    decision = model.choose(demand, now, **options)  # type: ignore[arg-type]
    assert not isinstance(decision, Busy)
    return decision
