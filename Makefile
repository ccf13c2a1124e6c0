# `make demo` and `make test` do everything from a fresh clone: they set up the environment when it is missing or old.
# Needs Python 3.11 or later, git and make.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PY      := $(BIN)/python
STAMP   := $(VENV)/.installed
# Parallel test processes.
WORKERS ?= 2
# Behaviour with a cache: the first run fills it, the second finds what the first has left, and checks each find.
WARM      := $(VENV)/warm
WITH_WARM  = FOREGRAD_CACHE=$(WARM) FOREGRAD_CACHE_VERIFY=1 FOREGRAD_BACKEND=eager $(PY) -m pytest -q -n $(WORKERS)
# Extra arguments for the one command that installs torch, e.g. the index of its CPU wheels.
TORCH_PIP_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup redis demo examples test test-slow test-all coverage try-torch conformance libraries bench bench-cold bench-warm bench-train bench-examples lint format clean

help:
	@echo "make demo         train a small transformer: eager, captured and compiled side by side"
	@echo "make examples     train four small models whose losses contain second derivatives"
	@echo "make test         run the tests that are quick, 6 minutes at most on 2 cores"
	@echo "make test-slow    run the other tests, and behaviour with the backends that compile"
	@echo "make test-all     both"
	@echo "make coverage     how much of the source the quick tests run in their own processes"
	@echo "make try-torch VERSION=...  the quick tests with another torch, and which of its private names differ (sets up .venv-torch-VERSION)"
	@echo "make conformance  every op, module and architecture against eager, 12,000 random programs, killed writers and builds, attacks on files, and behaviour when compiled (long)"
	@echo "make libraries    classes of transformers, timm and others and training loops against eager, beside torch.compile (long; sets up .venv-libraries)"
	@echo "make bench        time to capture, of a call, of a question to the data, of a training step, and what saved-tensor policies cost"
	@echo "make bench-cold   time to the end of the first step, in fresh processes (long)"
	@echo "make bench-warm   the same with filled caches and with a saved step, beside torch.compile and JAX"
	@echo "make bench-train  time of a whole training step beside torch.compile and JAX (long; sets up .venv-jax)"
	@echo "make bench-examples  the examples with eager, torch.compile and foregrad, in one run (long)"
	@echo "make lint         formatting, lint, types"
	@echo "make clean        remove the environment and caches"

setup: $(STAMP)

# torch is installed first and alone, by its exact version, so that a local CPU wheel is taken where there is one
# and the second command finds torch's requirement already met.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "foregrad needs Python 3.11 or later; set PYTHON=... to choose one" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet $(TORCH_PIP_ARGS) torch==2.13.0
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev,conformance]'
	@touch $@

# The tests start a Redis server of their own, which they skip where there is none. Debian has the program in redis-tools,
# under another name; the package redis-server would start a service as well.
redis: $(STAMP)
	@command -v redis-server >/dev/null || test -x $(BIN)/redis-server \
	  || { test "$$(id -u)" = 0 && apt-get update -qq \
	       && apt-get install -qq -y --no-install-recommends redis-tools >/dev/null \
	       && ln -sf "$$(command -v redis-check-rdb)" $(BIN)/redis-server; } \
	  || echo "no redis-server, and it cannot be installed here: the tests that need one are skipped" >&2

demo: $(STAMP)
	@$(BIN)/foregrad demo

examples: $(STAMP)
	$(PY) examples/pinn.py
	$(PY) examples/force_field.py
	$(PY) examples/maml.py
	$(PY) examples/gradient_penalty.py

# A test is slow or not. Behaviour with a backend that compiles: a sample here, the other files in the slow part.
SAMPLE := tests/behaviours/test_grads.py tests/behaviours/test_views.py tests/behaviours/test_effects.py

test: $(STAMP) redis
	$(PY) -m pytest -q -n $(WORKERS) -m "not slow"
	FOREGRAD_BACKEND=inductor $(PY) -m pytest -q -n $(WORKERS) -m also_compiled $(SAMPLE)
	FOREGRAD_BACKEND=aoti $(PY) -m pytest -q -n $(WORKERS) -m also_compiled $(SAMPLE)

test-slow: $(STAMP) redis
	$(PY) -m pytest -q -n $(WORKERS) -m slow
	FOREGRAD_BACKEND=inductor $(PY) -m pytest -q -n $(WORKERS) -m also_compiled $(SAMPLE:%=--ignore=%) tests/behaviours
	FOREGRAD_BACKEND=aoti $(PY) -m pytest -q -n $(WORKERS) -m also_compiled $(SAMPLE:%=--ignore=%) tests/behaviours
	rm -rf $(WARM)
	$(WITH_WARM) tests/behaviours/test_guards.py tests/behaviours/test_grads.py
	$(WITH_WARM) tests/behaviours/test_guards.py tests/behaviours/test_grads.py

test-all: test
	$(MAKE) test-slow

# In a folder of its own: what is installed is in cache keys, and every process would load a part of it.
COVERAGE := $(CURDIR)/$(VENV)/coverage
coverage: $(STAMP) redis
	$(PY) -m pip install --quiet --upgrade --no-deps --target $(COVERAGE) coverage==7.17.3 pytest-cov==7.1.0
	PYTHONPATH=$(COVERAGE) $(PY) -m pytest -q -n $(WORKERS) -m "not slow" --cov=src/foregrad --cov-report=term:skip-covered

# Another release of torch, with all other packages as they are here. Its private names are compared also if tests fail.
TRIED := .venv-torch-$(VERSION)
try-torch: $(STAMP)
	@test -n "$(VERSION)" || { echo "name a release: make try-torch VERSION=2.12.1" >&2; exit 1; }
	test -x $(TRIED)/bin/python || $(PYTHON) -m venv $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet $(TORCH_PIP_ARGS) torch==$(VERSION)
	$(PY) -m pip freeze --exclude-editable --exclude torch > $(TRIED)/others.txt
	$(TRIED)/bin/python -m pip install --quiet --no-deps -r $(TRIED)/others.txt
	$(TRIED)/bin/python -m pip install --quiet --no-deps -e .
	-$(PY) -m tests.house.private_names $(TRIED)/bin/python
	$(TRIED)/bin/python -m pytest -q -n $(WORKERS) -m "not slow"

conformance: $(STAMP)
	$(PY) -m tests.conformance all
	$(PY) -m tests.conformance all --dynamic
	$(PY) -m tests.conformance all --dynamic --subject foregrad-default --sample 9
	$(PY) -m tests.fuzz --count 8000
	$(PY) -m tests.keep.fuzz --count 50000
	$(PY) -m tests.attacks --count 100000 --jobs $(WORKERS)
	$(PY) -m tests.keep.stale --alone
	$(PY) -m tests.keep.stale --count 2000
	$(PY) -m tests.keep.share
	$(PY) -m tests.keep.kills --kills 1000
	$(PY) -m tests.keep.kills --kills 1000 --damage
	$(PY) -m tests.keep.kills --inductor --kills 200
	FOREGRAD_BACKEND=inductor $(PY) -m pytest -q -n $(WORKERS) tests/behaviours
	FOREGRAD_BACKEND=aoti $(PY) -m pytest -q -n $(WORKERS) tests/behaviours
	rm -rf $(WARM)
	$(WITH_WARM) tests/behaviours tests/step
	$(WITH_WARM) tests/behaviours tests/step
	$(PY) -m tests.fuzz --about draws --count 4000
	$(PY) -m tests.fuzz --about questions --count 2000
	$(PY) -m tests.fuzz --about questions --count 40 --against inductor
	$(PY) -m tests.fuzz --count 400 --against dynamic-inductor
	$(PY) -m tests.fuzz.sizes --count 1000 --backend eager
	$(PY) -m tests.fuzz.sizes --count 300
	$(PY) tests/backends/first_thing.py all

# Their own requirements name torch without a version, and torchvision has no wheel for the CPU: none of these is followed.
LIBRARIES := timm torchvision==0.28.0 torch_geometric diffusers peft accelerate lightning pytorch-lightning lightning-utilities \
  torchmetrics torchdiffeq scipy psutil xxhash requests urllib3 charset_normalizer certifi importlib_metadata zipp \
  aiohttp multidict yarl propcache aiosignal frozenlist aiohappyeyeballs attrs setuptools
# What each subject found, from which docs/compatibility.md is written. A third runs with the default backend as well.
FOUND := .venv-libraries/found
libraries: $(STAMP)
	test -x .venv-libraries/bin/python || cp -a $(VENV) .venv-libraries
	.venv-libraries/bin/python -m pip install --quiet --no-deps $(LIBRARIES)
	rm -rf $(FOUND) && mkdir -p $(FOUND)
	-for subject in foregrad torch-fullgraph torch-default; do \
	  .venv-libraries/bin/python -m tests.conformance libraries --jobs $(WORKERS) --subject $$subject --results $(FOUND)/$$subject; done
	-.venv-libraries/bin/python -m tests.conformance libraries --jobs $(WORKERS) --subject foregrad-default --sample 3
	.venv-libraries/bin/python -m tests.conformance.compatibility $(foreach subject,foregrad torch-fullgraph torch-default,$(subject)=$(FOUND)/$(subject))

bench: $(STAMP)
	$(PY) benchmarks/capture.py
	$(PY) benchmarks/call.py
	$(PY) benchmarks/questions.py
	$(PY) benchmarks/sizes.py
	$(PY) benchmarks/step.py
	$(PY) benchmarks/saved.py

bench-cold: $(STAMP)
	$(PY) benchmarks/cold.py --plot docs/cold.svg

bench-warm: $(STAMP)
	$(PY) benchmarks/warm.py --json docs/warm.json --markdown docs/warm.md

bench-train: $(STAMP)
	$(PY) benchmarks/train_step.py --clock wall --threads 2 --json docs/train-step.json --markdown docs/train-step.md

bench-examples: $(STAMP)
	$(PY) examples/compare.py --markdown examples/README.md

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-jax .venv-libraries .venv-torch-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
