"""Dependencies point one way: what may import what, as docs and code both promise."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
STAGES = ("serve", "router", "quant", "evals", "loadtests", "distill")
PACKAGES = ("twinspeed", *STAGES)
HEAVY = ("torch", "transformers", "llmcompressor", "vllm")
# The modules that run inside a heavy environment, and what they may import there.
INSIDE_HEAVY_ENVIRONMENTS = {
    "serve/vllm_plugin/": HEAVY,
    "quant/recipes.py": ("torch", "transformers", "llmcompressor"),
    "quant/gguf.py": ("torch", "transformers", "llmcompressor"),
}
# Imports every module given, with stand-ins for the heavy packages at hand, and prints those that got imported.
IMPORT = f"""
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
if "twinspeed.cli" in sys.argv:
    sys.modules["twinspeed.cli"].build_app()
print(*sorted(set({HEAVY!r}) & sys.modules.keys()))
"""


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Every import in a file, those inside functions included: its line and the full name of what is imported.

    `module` is the file's own name, from which relative imports are resolved.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")
            base = package[: len(package) - node.level] if node.level else []
            yield node.lineno, ".".join([*base, *filter(None, [node.module])])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called in ("__import__", "import_module", "importlib.import_module"):
                yield node.lineno, str(node.args[0].value)


def module_name(root: Path, path: Path) -> str:
    """A file's name as a module; a package's `__init__` keeps its own, so that `from .` means the package."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def source_files(root: Path) -> list[Path]:
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def may_import(file: str, target: str) -> bool:
    """Whether the file may import from the top-level package `target`."""
    own = file.split("/")[0]
    if target in PACKAGES:
        return target == own or (target == "twinspeed" and own in STAGES)
    if target in HEAVY:
        return any(target in allowed for place, allowed in INSIDE_HEAVY_ENVIRONMENTS.items() if file.startswith(place))
    return True


def violations(root: Path) -> list[str]:
    """`file:line imports name` for everything that may not be."""
    return [
        f"{file}:{line} imports {name}"
        for path in source_files(root)
        for file in [path.relative_to(root).as_posix()]
        for line, name in imports(path, module_name(root, path))
        if not may_import(file, name.split(".")[0])
    ]


def test_dependencies_point_one_way() -> None:
    assert violations(ROOT) == []


def test_every_package_is_looked_at() -> None:
    seen = {path.relative_to(ROOT).parts[0] for path in source_files(ROOT)}
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    # These hold data and tests, no code of the product.
    assert there - {"environments", "tests"} == seen
    assert seen >= {"twinspeed", "serve", "router", "quant", "evals", "loadtests"}


@pytest.mark.parametrize(
    ("file", "code", "found"),
    [
        ("twinspeed/up.py", "import router.service", "router.service"),
        ("twinspeed/up.py", "def later():\n    from serve import command", "serve"),
        ("twinspeed/up.py", "import importlib\nimportlib.import_module('quant.build')", "quant.build"),
        ("twinspeed/hardware.py", "import torch", "torch"),
        ("quant/build.py", "from evals.speed import measure", "evals.speed"),
        ("quant/build.py", "from transformers import AutoConfig", "transformers"),
        ("quant/recipes.py", "import vllm", "vllm"),
        ("quant/recipes_more.py", "import torch", "torch"),
        ("router/app.py", "try:\n    import torch\nexcept ImportError:\n    pass", "torch"),
        ("router/app.py", "from loadtests import mock_engine", "loadtests"),
        ("router/app.py", "__import__('vllm')", "vllm"),
        ("loadtests/trace.py", "from vllm.outputs import RequestOutput", "vllm.outputs"),
        ("serve/command.py", "import vllm", "vllm"),
        ("serve/command.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "torch"),
        ("distill/train.py", "import quant.recipes", "quant.recipes"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str, found: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"import json\nfrom twinspeed import files\n{code}\n")
    [violation] = violations(tmp_path)
    place, _, name = violation.partition(" imports ")
    assert name == found
    line = int(place.removeprefix(f"{file}:"))
    assert found.split(".")[0] in path.read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("serve/vllm_plugin/__init__.py", "import torch, vllm\nfrom vllm.v1 import outputs"),
        ("quant/recipes.py", "from llmcompressor import oneshot\nimport transformers"),
        ("quant/gguf.py", "import torch"),
        ("router/app.py", "from . import body\nfrom .config import Config\nimport router.headers\nimport torchlike"),
        ("evals/__init__.py", "from . import speed\nfrom twinspeed.release import Release"),
    ],
)
def test_what_is_allowed_is_no_violation(tmp_path: Path, file: str, code: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert violations(tmp_path) == []


def imported(*modules: str, stand_ins: Path) -> list[str]:
    for name in HEAVY:
        (stand_ins / f"{name}.py").touch()
    environment = {"PYTHONPATH": f"{stand_ins}:{ROOT}", "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        [sys.executable, "-c", IMPORT, *modules], env=environment, capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


def light_modules() -> list[str]:
    """All modules of the base environment."""
    return [
        ".".join(part for part in module_name(ROOT, path).split(".") if part != "__init__")
        for path in source_files(ROOT)
        if path.name != "__main__.py" and "serve/vllm_plugin/" not in path.as_posix()
    ]


def test_the_command_line_with_all_its_commands_imports_nothing_heavy(tmp_path: Path) -> None:
    assert imported("twinspeed.cli", stand_ins=tmp_path) == []


def test_no_module_of_the_base_environment_imports_anything_heavy(tmp_path: Path) -> None:
    modules = light_modules()
    assert {"router.service", "loadtests.mock_engine", "quant.recipes", "twinspeed.up"} <= set(modules)
    assert imported(*modules, stand_ins=tmp_path) == []


def test_a_heavy_import_at_run_time_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("try:\n    import torch\nexcept ImportError:\n    pass\n")
    assert imported("twinspeed.cli", "planted", stand_ins=tmp_path) == ["torch"]
