"""The engine's command line and environment, from the manifest and the hardware alone."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serve.command import EngineCommand, engine_command
from twinspeed import environments, paths
from twinspeed.hardware import Hardware
from twinspeed.release import (
    Capabilities,
    EngineSettings,
    NgramSpeculation,
    Parallel,
    Parent,
    Release,
    Variant,
    Weights,
)

pytestmark = pytest.mark.unit

CPU = Hardware(cpu="Xeon", cores=2, memory_bytes=24 * 2**30, instruction_sets=(), gpus=())
SHA = "0" * 64


def a_release(settings: EngineSettings, speculation: NgramSpeculation | None = None) -> Release:
    variant = Variant(
        weights=Weights(
            path="variants/standard", format="bf16", recipe="copy", bytes=1, files={"model.safetensors": SHA}
        ),
        speculation=None,
        lossless_to=None,
        engine=settings,
        capabilities=Capabilities(context=512),
    )
    return Release(
        name="tiny",
        created_at=datetime.now(UTC),
        tools={},
        parent=Parent(
            uri="file:///tiny",
            tree_sha256=SHA,
            architecture="LlamaForCausalLM",
            context_length=1024,
            vocab_size=512,
            tokenizer_sha256=SHA,
            chat_template_sha256=None,
            generation_config_sha256=SHA,
            eos_token_ids=(2,),
        ),
        variants={"standard": variant, "fast": variant.model_copy(update={"speculation": speculation})},
    )


def command(
    settings: EngineSettings,
    *,
    hardware: str = "cpu",
    speculation: NgramSpeculation | None = None,
    cpus: str | None = None,
) -> EngineCommand:
    return engine_command(
        a_release(settings, speculation),
        Path("/releases/tiny"),
        "fast",
        host="127.0.0.1",
        port=8001,
        hardware=CPU,
        environment=environments.resolve("engine", hardware),
        cpus=cpus,
    )


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(f"--{name}") + 1]


EAGER = EngineSettings(max_model_len=512, args={"enforce_eager": True})


def test_serves_the_variants_weights_under_the_name_that_says_which_variant_answers() -> None:
    argv = command(EAGER).argv
    assert argv[argv.index("serve") + 1] == "/releases/tiny/variants/standard"
    assert option(argv, "served-model-name") == "tiny:fast"
    assert (option(argv, "host"), option(argv, "port")) == ("127.0.0.1", "8001")
    assert option(argv, "max-model-len") == "512"
    assert "--enforce-eager" in argv


def test_speculation_is_passed_as_the_manifest_has_it() -> None:
    speculation = NgramSpeculation(num_speculative_tokens=8, prompt_lookup_min=3, prompt_lookup_max=6)
    passed = json.loads(option(command(EAGER, speculation=speculation).argv, "speculative-config"))
    assert passed == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 3,
        "prompt_lookup_max": 6,
    }
    assert "--speculative-config" not in command(EAGER).argv


def test_parallelism_becomes_flags_on_gpus_and_none_on_a_cpu() -> None:
    settings = EngineSettings(max_model_len=512, parallel=Parallel(tensor=4, pipeline=2, data=3))
    on_gpu = command(settings, hardware="cuda")
    assert option(on_gpu.argv, "tensor-parallel-size") == "4"
    assert option(on_gpu.argv, "pipeline-parallel-size") == "2"
    assert option(on_gpu.argv, "data-parallel-size") == "3"
    assert "LD_PRELOAD" not in on_gpu.env
    assert not [part for part in command(EAGER).argv if part.startswith("--") and "parallel" in part]


def test_the_manifests_settings_win_over_our_defaults() -> None:
    settings = EngineSettings(
        max_model_len=512,
        args={"enforce_eager": True, "shutdown_timeout": 5, "enable_prefix_caching": False},
        env={"VLLM_CPU_KVCACHE_SPACE": "7"},
    )
    built = command(settings)
    assert built.argv.count("--shutdown-timeout") == 1
    assert option(built.argv, "shutdown-timeout") == "5"
    assert "--no-enable-prefix-caching" in built.argv
    assert built.env["VLLM_CPU_KVCACHE_SPACE"] == "7"


def test_the_engine_stays_off_the_network_and_caches_its_compilation_in_our_home() -> None:
    env = command(EAGER).env
    assert env["VLLM_NO_USAGE_STATS"] == env["DO_NOT_TRACK"] == env["HF_HUB_OFFLINE"] == "1"
    assert Path(env["VLLM_CACHE_ROOT"]) == paths.engine_cache()
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(paths.engine_cache())
    assert env["VLLM_USE_AOT_COMPILE"] == "0"


def test_the_callers_python_does_not_reach_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("VIRTUAL_ENV", "/my/venv")
    env = command(EAGER).env
    assert env["PYTHONPATH"] == str(environments.project_path())
    assert "VIRTUAL_ENV" not in env


def test_compute_threads_are_bound_where_the_caller_says_and_only_on_a_cpu() -> None:
    settings = EngineSettings(max_model_len=512)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in command(EAGER).env
    assert command(EAGER, cpus="0,1,2").env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in command(settings, hardware="cuda", cpus="0,1,2").env


def test_a_step_on_a_cpu_is_short_but_holds_every_sequence_with_its_drafts() -> None:
    speculation = NgramSpeculation(num_speculative_tokens=8, prompt_lookup_min=3, prompt_lookup_max=6)
    crowd = EngineSettings(max_model_len=512, max_num_seqs=128, args={"enforce_eager": True})
    assert option(command(EAGER).argv, "max-num-batched-tokens") == "512"
    assert option(command(crowd, speculation=speculation).argv, "max-num-batched-tokens") == str(128 * 9)
    assert "--max-num-batched-tokens" not in command(crowd, hardware="cuda").argv


def test_without_a_compiler_the_engine_runs_uncompiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.command._can_compile", lambda environment: False)
    built = command(EngineSettings(max_model_len=512))
    assert "--enforce-eager" in built.argv
    assert any("g++" in notice for notice in built.notices)


def test_without_tcmalloc_the_engine_runs_and_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    built = command(EAGER)
    assert any("libtcmalloc-minimal4" in notice for notice in built.notices)
    assert "tcmalloc" not in built.env["LD_PRELOAD"]
