# Everything runs in one environment, .venv, which is made once from constraints.txt.
# Needs Python 3.11 or newer and make; choose another Python with: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With CONSTRAINTS=/dev/null the newest release of everything.
CONSTRAINTS ?= constraints.txt
# Python compiles a module when it is first imported, and most of what is installed never is.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c $(CONSTRAINTS)
# Editors and type checkers read a plain path; the import hook of setuptools' other mode they do not.
EDITABLE := --config-settings editable_mode=compat -e
# Of the extras, what the tests of every day need; text is covered without its packages.
EXTRAS := azure,delta,gcs,http,iceberg,onnx,progress,s3
READY := $(VENV)/.ready
WRITERS_READY := $(VENV)/.ready-writers
BENCH_READY := $(VENV)/.ready-bench
DOCS_READY := $(VENV)/.ready-docs
ENGINES_READY := $(VENV)/.ready-engines
HOROVOD_READY := $(VENV)/.ready-horovod
PEERS := build/peers
PEERS_READY := $(PEERS)/.ready

RANKS ?= 2
DOCS_PORT ?= 8000
DEMO_ROWS ?= 2000000
TRAIN := OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(RANKS) -m demo.train
TESTS := tests torch_table_loader strategies/tests
LOWEST := .venv-lowest
LOWEST_TORCH ?= 2.5.0
LOWEST_TESTS := $(addprefix tests/, rooms laws mixtures order) strategies/tests \
    $(addprefix tests/torch/test_, exactly_once.py same_batches.py state.py rows.py nested.py table_laws.py) \
    --ignore tests/rooms/test_docs.py
PYTEST := $(BIN)/python -m pytest $(TESTS)
# Three processes share the files of tests, whichever is free takes the next: on two cores, since tests wait now and
# then. If one dies, the run ends and says so.
SHARED := --numprocesses 3 --dist loadfile --max-worker-restart 0
EVERY_DAY := -m "not slow and not rare and not kills and not heavy"
# Rewritten assertions of 400 files are kept for the next run, whatever the machine says of bytecode.
export PYTHONDONTWRITEBYTECODE :=
IN_CI := -m "not rare and not kills and not heavy" --timeout 900 -o faulthandler_timeout=890

.DEFAULT_GOAL := help
.PHONY: help install demo demo-s3 demo-parquet check lint format test test-ci test-all test-lowest horovod bench \
    docs docs-serve docs-check dist clean

help:
	@echo "Try it"
	@echo "  make demo          train on an Iceberg table on two ranks and prove what was delivered"
	@echo "  make demo-parquet  the same on plain Parquet"
	@echo "  make demo-s3       the same on S3 and Glue, which moto plays"
	@echo "Change it"
	@echo "  make install       make .venv, with all that the targets below need; they do so themselves, too"
	@echo "  make check         what every change must pass: lint and test (minutes)"
	@echo "  make format        style, mended"
	@echo "  make lint          style and types"
	@echo "  make test          the tests of every day"
	@echo "  make test-ci       these, the tests that take longer, and more examples: what .ci/run runs"
	@echo "  make docs          the site, under build/docs"
	@echo "  make docs-serve    build it, and serve it on http://127.0.0.1:$(DOCS_PORT)"
	@echo "  make docs-check    look at each page in Chromium; screenshots under build/screenshots"
	@echo "  make bench         measure, and write bench/RESULTS.md"
	@echo "Release it"
	@echo "  make test-all      all tests, those that kill processes or need Java 17 too, and faults put in (hours)"
	@echo "  make test-lowest   most tests with the lowest versions that pyproject.toml claims (Python 3.11)"
	@echo "  make horovod       build Horovod for the torch that is installed, and install it (minutes, once)"
	@echo "  make dist          build the wheel and the source distribution, check them, and try the wheel"
	@echo "  make clean         remove the environment and everything built"

# torch comes first and alone: what follows then finds it there and pulls no other build of it.
# pip knows dependency groups from 25.1 on; a new environment may have an older one.
$(READY): pyproject.toml constraints.txt strategies/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." \
	         "Pass another one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "pip>=25.1" torch
	$(INSTALL) $(EDITABLE) ".[$(EXTRAS)]" -e ./strategies --group dev --group frameworks \
	    --group site
	@touch $@

# The last one is there for its jars of Java's iceberg-core: it asks for a pyarrow of its own, which it does not get.
$(WRITERS_READY): $(READY)
	$(INSTALL) --group writers
	$(INSTALL) --no-deps bodo-iceberg-connector
	@touch $@

$(BENCH_READY): $(READY)
	$(INSTALL) --group bench
	@touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) --group docs
	@touch $@

$(ENGINES_READY): $(READY)
	$(INSTALL) --group engines
	@touch $@

# Other loaders, apart: they ask for older versions of what is in .venv, and run with the newer ones.
$(PEERS_READY): $(READY)
	$(INSTALL) --no-deps --upgrade --target $(PEERS) --group peers
	@touch $@

$(HOROVOD_READY): $(READY) tools/build_horovod.py
	$(BIN)/python tools/build_horovod.py
	@touch $@

horovod: $(HOROVOD_READY)

install: $(READY)

demo: $(READY)
	$(BIN)/python -m demo.make_lake --rows $(DEMO_ROWS)
	$(TRAIN) --data build/demo/lake

demo-s3: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m demo.on_s3 --rows $(DEMO_ROWS) --ranks $(RANKS)

demo-parquet: $(READY)
	$(BIN)/python -m demo.make_clicks --rows $(DEMO_ROWS)
	$(TRAIN) --data build/demo/plain

check: lint test

# faulthandler reads the stacks of threads that run on, which may crash them: it speaks only when a test is lost anyway.
test: $(READY)
	LAWS_EFFORT=0.25 $(PYTEST) $(EVERY_DAY) $(SHARED)

# uv takes the lowest version of every direct dependency. From PyPI torch comes with gigabytes of CUDA; with
# LOWEST_TORCH=2.13.0+cpu or the like it is another one. Docs show today's messages.
$(LOWEST)/.ready: pyproject.toml constraints.txt strategies/pyproject.toml
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet -c constraints.txt uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	    $(EDITABLE) ".[all]" -e ./strategies --group dev torch==$(LOWEST_TORCH)
	@touch $@

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest $(LOWEST_TESTS) $(EVERY_DAY) --timeout 400 -o faulthandler_timeout=390

test-ci: $(READY)
	LAWS_EFFORT=0.5 $(PYTEST) $(IN_CI) $(SHARED)

test-all: $(WRITERS_READY) $(DOCS_READY) $(ENGINES_READY) $(HOROVOD_READY) $(PEERS_READY)
	LAWS_EFFORT=10 LAWS_EXPLORE=1 $(PYTEST) --timeout 1800 -o faulthandler_timeout=1790
	$(BIN)/python -m tools.plant
	$(BIN)/python -m tools.guests
	$(MAKE) test-lowest

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases tests demo bench examples tools
	$(BIN)/mypy strategies/tests

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_READY)
	$(BIN)/python -m bench.run

# Without --quiet, which hides warnings from --strict too.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/docs
	@echo "build/docs/index.html"

# Searching needs a server: browsers let no page from a file read another one.
docs-serve: docs
	$(BIN)/python -m http.server --directory build/docs --bind 127.0.0.1 $(DOCS_PORT)

docs-check: $(DOCS_READY)
	$(BIN)/python -m pytest tests/site

# With REPOSITORY, the URL of the repository, links of the README work on a package index.
dist: $(READY)
	$(BIN)/python -m tools.release $(if $(REPOSITORY),--repository $(REPOSITORY))

clean:
	rm -rf $(VENV) $(LOWEST) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
