# Every target sets itself up in .venv. On Linux without an NVIDIA driver torch comes from its index of CPU wheels, which saves about
# 2 GB of CUDA packages; where that index cannot be reached, from the usual one.
PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin
JOBS   ?= 2
CPU    ?= https://download.pytorch.org/whl/cpu
# Packages are compiled when a process first imports them: compiling all of them takes half of the time of the set-up, and few are used.
# What is compiled then must be kept, or each of the many processes of a run compiles it again.
INSTALL := -m pip install --quiet --no-compile --constraint constraints.txt
export PYTHONDONTWRITEBYTECODE :=
# a file's tests stay in one process, which trains their pools once
SPREAD := --dist loadfile --no-loadscope-reorder

.PHONY: setup demo tour test test-slow test-all lab lint bench pictures docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "mia_nb needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@if [ "$$(uname)" = Linux ] && ! nvidia-smi >/dev/null 2>&1; then \
	  $(RUN)/python $(INSTALL) --retries 0 --timeout 10 --no-deps --index-url $(CPU) torch torchvision || \
	    echo "$(CPU) gave no torch: the usual packages are taken"; fi
	$(RUN)/python $(INSTALL) --editable '.[test,dev,docs]'
	@touch $@

demo: setup  ## the main job, small: train, attack, convert, account, explore, report; no GPU, no download
	$(RUN)/mia-nb run all --preset demo

tour: setup  ## all notebooks at larger sizes, defenses and differential equations too
	$(RUN)/mia-nb run all --preset tour

test: setup  ## what a change can break
	$(RUN)/python -m pytest -m "not gpu and not slow" -n $(JOBS) $(SPREAD)

test-slow: setup  ## the rest: long simulations, compilation, clusters, benchmarks, kernels, the largest notebooks, whatever needs a browser
	$(RUN)/python -m pytest -m "not gpu and slow" -n $(JOBS) $(SPREAD)

test-all: setup  ## both in one go, what CI runs: tests are collected once, and a file's quick and slow ones share its pools and servers
	$(RUN)/python -m pytest -m "not gpu" -n $(JOBS) $(SPREAD)

lab: setup
	MIA_NB_HOME=$(CURDIR) $(RUN)/jupyter lab notebooks

lint: setup
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/nbstripout --keep-id --verify notebooks/*.ipynb notebooks/workshop/*.ipynb

bench: setup
	$(RUN)/python benchmarks/run.py

pictures: setup  ## the README's pictures, and those that notebooks are stored with
	$(RUN)/python docs/pictures.py
	$(RUN)/python docs/stored.py

docs: setup  ## build/site: the documentation, for reading offline; notebooks executed where results/ has a run of them
	$(RUN)/python docs/site.py
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --quiet --strict --config-file build/mkdocs.yml
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
