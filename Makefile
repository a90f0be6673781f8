# Each target calls one command. PYTHON is only used to make the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps

.PHONY: quickstart test check bench-quickstart bench-router schema clean

quickstart: $(VENV)/.base
	$(BIN)/twinspeed quickstart

test: $(VENV)/.dev
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The figures in README.md and docs/benchmarks/quickstart.*
bench-quickstart: $(VENV)/.base
	$(BIN)/twinspeed quickstart
	$(BIN)/python -m evals.publish runs/quickstart/report.json

# The figures in docs/benchmarks/router-peers.*: HARNESS is its folder, PEERS that of the other gateways' environments.
bench-router: $(VENV)/.base
	$(BIN)/python -m loadtests.router_peers --harness "$(HARNESS)" --peers "$(PEERS)"

schema: $(VENV)/.base
	$(BIN)/python -c "from twinspeed import release; print(release.json_schema(), end='')" > docs/release.schema.json
	$(BIN)/python -c "from router.settings import json_schema; print(json_schema(), end='')" > docs/router.schema.json

# Markers are written last, so that an install cut short is done again.
$(VENV)/.base: environments/base.txt pyproject.toml
	$(PYTHON) -m venv $(VENV) || { echo "cannot make $(VENV): install Python 3.11 with venv (Debian: python3 python3-venv)"; exit 2; }
	$(PIP) -r environments/base.txt
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base environments/dev.txt
	$(PIP) -r environments/dev.txt
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
