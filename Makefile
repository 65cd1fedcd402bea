# `make demo`, `make test` and `make test-all` install everything they need.
PYTHON ?= python3
VENV := .venv
DEPLOY := $(VENV)/bin/deploy
WORKERS ?= 4# processes that run tests; 0: only pytest itself
PYTEST = $(VENV)/bin/python -m pytest --numprocesses $(WORKERS)
unexport PYTHONDONTWRITEBYTECODE # container images set it, and then each `deploy` compiles all modules, 0.3 s

.PHONY: demo test test-all test-failed check unit integration golden attack gpu kubernetes quark down clean

demo: $(VENV)/ready ## start a real sglang server on the CPU, verify it, stream one response, stop it
	$(DEPLOY) up --profile cpu-tiny
	$(DEPLOY) ask cpu-tiny "Once upon a time" --tokens 48
	$(DEPLOY) down cpu-tiny

test: check ## check, unit, golden and main integration tests; as root, install their packages
	.ci/services $(PYTEST) tests -m "not slow and not attack" --fail-on-needless-skips

test-all: check ## `test` and every test marked `slow` or `attack`
	.ci/services $(PYTEST) tests --fail-on-needless-skips

test-failed: $(VENV)/ready ## the tests that failed in the last run, one at a time
	.ci/services $(VENV)/bin/python -m pytest tests --last-failed --last-failed-no-failures none --fail-on-needless-skips

check: $(VENV)/ready ## format, lint, types: seconds
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --config-file tests/mypy.ini & $(VENV)/bin/mypy; code=$$?; wait $$! && exit $$code

unit golden integration: $(VENV)/ready ## one kind of tests
	$(PYTEST) tests/$@

gpu: $(VENV)/ready ## tests on this host's NVIDIA GPUs; skipped without GPUs
	$(VENV)/bin/python -m pytest tests/gpu -v -s

attack: $(VENV)/ready ## ten times the random faults of `test-all`; ATTACK_SEED=… repeats them
	ATTACK=$${ATTACK:-10} $(VENV)/bin/python -m pytest tests/attack --timeout 0

kubernetes: ## build a real Kubernetes for the tests from Debian's sources, once: as root, at least ten minutes
	.ci/kubernetes

quark: $(VENV)/ready ## `deploy quantize` with real AMD Quark (1.5 GB, installed once); sglang loads the result
	QUARK=1 $(VENV)/bin/python -m pytest tests/integration/test_real_quark.py -v -s

down: ## stop every server of this checkout
	$(DEPLOY) down --all

clean: ## remove the virtual environment, but not the home of `deploy`
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml
	.ci/venv $(PYTHON) $(VENV)
	touch $@
