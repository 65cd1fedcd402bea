# Two commands do all the set-up: `make demo` and `make test`. Everything else is what they are made of.
PYTHON ?= python3
VENV := .venv
DEPLOY := $(VENV)/bin/deploy
WORKERS ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE # container images set it: each `deploy` would compile all of the tool anew, 0.3 s

.PHONY: demo test check unit integration golden attack gpu kubernetes quark down clean

demo: $(VENV)/ready ## a real sglang server on this machine's CPU: up, proven, one streamed answer, down
	$(DEPLOY) up --profile cpu-tiny
	$(DEPLOY) ask cpu-tiny "Once upon a time" --tokens 48
	$(DEPLOY) down cpu-tiny

test: check ## format, lint, types, unit, golden, integration; installs what the tests need where it can
	.ci/services $(VENV)/bin/python -m pytest tests $(WORKERS) --durations=10 --durations-min=5

check: $(VENV)/ready ## format, lint, types: seconds
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

unit golden integration: $(VENV)/ready ## one kind of tests
	$(VENV)/bin/python -m pytest tests/$@ $(WORKERS)

gpu: $(VENV)/ready ## the whole line on this machine's NVIDIA GPUs; skipped, with the reason, where there are none
	$(VENV)/bin/python -m pytest tests/gpu -v -s

attack: $(VENV)/ready ## ten times the rounds of random faults that the tests hold; ATTACK_SEED=… repeats them
	ATTACK=$${ATTACK:-10} $(VENV)/bin/python -m pytest tests/attack --timeout 0

kubernetes: ## a real Kubernetes for the tests, built once from Debian's sources: as root, ten minutes and more
	.ci/kubernetes

quark: $(VENV)/ready ## `deploy quantise` with AMD Quark itself, built once (1.5 GB), and what sglang loads of it: minutes
	QUARK=1 $(VENV)/bin/python -m pytest tests/integration/test_real_quark.py -v -s

down: ## stop every server of this checkout
	$(DEPLOY) down --all

clean: ## remove the virtual environment; what servers need stays in the tool's home
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml
	.ci/venv $(PYTHON) $(VENV)
	touch $@
