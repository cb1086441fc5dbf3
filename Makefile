# The same commands for a person and for CI. `make serve` and `make test` do all the set-up they need.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.10,$(if $(shell command -v $(name)),$(name))))
VENV ?= .venv
BIN := $(VENV)/bin
# Ray must neither phone home nor ask for tokens on a loopback cluster.
export RAY_USAGE_STATS_ENABLED = 0
export RAY_AUTH_MODE ?= disabled

.PHONY: setup check test test-fast soak mutants cases serve chat bench bench-in-process fix clean

STAMP := $(VENV)/.ready

$(STAMP): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error No Python 3.10-3.13 on the PATH. Install one, or name it: make PYTHON=/path/to/python))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

setup: $(STAMP)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup
	$(BIN)/python -m pytest

# Rings 1-3: no model, no Ray.
test-fast: setup
	$(BIN)/python -m pytest -m 'not model and not ray'

# The random machines with a larger budget.
soak: setup
	REMORA_MACHINE_EXAMPLES=1700 REMORA_MACHINE_STEPS=120 $(BIN)/python -m pytest --timeout 1200 tests/engine/test_engine_machine.py tests/sim

# Takes rules of the engine, worker and store away, one at a time: the tests must notice each.
mutants: setup
	$(BIN)/python -m tests.mutants

# Writes tests/CASES.md: which test proves which rule and which case.
cases: setup
	$(BIN)/python -m tests.cases_table

serve: setup
	$(BIN)/remora serve

chat: setup
	$(BIN)/remora chat

bench: setup
	$(BIN)/python -m tests.bench --url $(or $(REMORA_URL),http://127.0.0.1:$(or $(PORT),8000))

bench-in-process: setup
	$(BIN)/python -m tests.bench --in-process

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info
