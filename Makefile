# The same commands for a person and for CI. `make serve` and `make test` do all the set-up they need.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.10,$(if $(shell command -v $(name)),$(name))))
VENV ?= .venv
BIN := $(VENV)/bin
# Ray must neither phone home nor ask for tokens on a loopback cluster.
export RAY_USAGE_STATS_ENABLED = 0
export RAY_AUTH_MODE ?= disabled

.PHONY: setup check test test-fast test-long test-gpu soak churn chaos rolling simulate mutants cases serve chat bench bench-in-process bench-aborts \
	bench-layers bench-kernel bench-engine bench-peers bench-workers bench-store fix clean

STAMP := $(VENV)/.ready

$(STAMP): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error No Python 3.10-3.13 on the PATH. Install one, or name it: make PYTHON=/path/to/python))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# The fused CPU step too, compiled anew when its sources change; without a compiler torch computes alone.
setup: $(STAMP)
	@$(BIN)/python -m kernels.cpu.build || true

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real processes on a slow machine can run into a test's patience: what failed has one more attempt, in a new process with
# servers of its own. What both attempts say is printed.
AGAIN := --last-failed --last-failed-no-failures none
test: setup
	$(call twice,-n 2 --dist loadfile -m 'not ray and not long')
	$(call twice,-m 'ray and not long')
define twice
$(BIN)/python -m pytest --cache-clear $(1) || \
	{ [ $$? = 1 ] && echo 'A second attempt for what failed:' && $(BIN)/python -m pytest $(1) $(AGAIN); }
endef

# Ray's control service dies and comes back, and the whole head. Ray ends whoever hears nothing of it for a minute.
test-long: setup
	RAY_gcs_rpc_server_reconnect_timeout_s=300 $(BIN)/python -m pytest -m long

# On a machine with a GPU: attention and the runner on it, and what they are worth.
test-gpu: setup
	$(BIN)/python -m pytest tests/kernels/attention tests/runner
	$(BIN)/python -m tests.bench.gpu

# Rings 1-3: no model, no Ray; in several processes.
test-fast: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m 'not model and not ray'

# The random machines for long: 200,000 steps of the engine's, then clusters; prints seeds, and how often what happened.
soak: setup
	$(BIN)/python -m tests.soak

# 20,000 requests with leaving clients, aborts and timeouts on two workers, and what is left of them: before and after.
churn: setup
	$(BIN)/python -m tests.e2e.churn

# Sessions under a seeded fate that kills, freezes and drains; see tests/e2e/chaos.py.
chaos: setup
	$(BIN)/python -m tests.e2e.chaos

# 10,000 requests while every worker is replaced twice and scaled 1-3-1: not one may fail.
rolling: setup
	$(BIN)/python -m tests.e2e.rolling

# The pool's own policies against synthetic traces of up to 1,000 workers.
simulate: setup
	$(BIN)/python -m tests.simulate

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

# From a client's leaving to the worker's pages being free, by stage.
bench-aborts: setup
	$(BIN)/python -m tests.bench.abort_latency

# What actors and HTTP add to the bare engine: time to first token, throughput.
bench-layers: setup
	$(BIN)/python -m tests.bench.actor_layer

# Remora, llama.cpp's server and vLLM by turns, where they are installed.
bench-peers: setup
	$(BIN)/python -m tests.bench peers

# Two workers on this machine against one, by turns.
bench-workers: setup
	$(BIN)/python -m tests.bench workers

# What a step costs the engine, and what a turn costs as its session grows.
bench-engine: setup
	$(BIN)/python -m tests.bench engine
	$(BIN)/python -m tests.bench turns

# Steps of the fused CPU operator beside what the machine allows at best.
bench-kernel: setup
	$(BIN)/python -m tests.bench.kernel

# Commit and load times of the session stores.
bench-store: setup
	$(BIN)/python -m tests.bench.store_load

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info
