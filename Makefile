# `make run` shows the product, `make test` proves it. Both set up what they need in .venv, from nothing.
PYTHON ?= python3
BIN := .venv/bin
# The core. Commands, the notation, a limit of requests in the process, policies as text and pacers are not compiled.
UNCOMPILED := $(addprefix tests/unit/test_,cli.py commands.py in_flight.py notation.py pictures.py)
UNCOMPILED += $(addprefix tests/property/test_,descriptors.py pacing.py policy_mistakes.py)
CORE := $(filter-out $(UNCOMPILED),$(wildcard tests/unit/test_*.py tests/property/test_*.py))
# What shared memory does in a compiled build; its files, servers and commands are the same in both
ZONES := $(filter-out %_opening.py %_servers.py %_command.py,$(wildcard tests/shared_memory/test_*.py))
# The service's modules that are compiled
SERVICE := tests/service/test_http1.py tests/service/test_check.py tests/service/test_check_hostile.py tests/service/test_admin.py
# Every worker has servers of its own. Bytecode is kept: workers and the programs that tests start share it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# The compiled wheel comes before the editable install, and tests/compiled fails if it is not what runs.
ON_COMPILED := PYTHONPATH=$(CURDIR)/build/compiled RATEBOUND_EXPECT_COMPILED=1

.DEFAULT_GOAL := help
.PHONY: help run api demo test compiled wheel check check-types check-compiles check-style check-imports check-tests servers test-long bench bench-quick docs docs-serve pictures lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/run  ## start the service with an example policy and traffic, and show its dashboard; PORT=5000 takes 5000 to 5003, TRAFFIC=no
	@$(BIN)/python examples/service/run.py

api: .venv/api  ## serve an example API that uses the library; PORT=8001 takes another port
	@$(BIN)/python examples/api/serve.py

demo: .venv/run  ## play the same traffic through all algorithms, side by side
	@$(BIN)/ratebound demo
	@echo
	@echo "Next: $(BIN)/ratebound explain \"10/second burst 20; 500/hour\""
	@echo "      $(BIN)/ratebound --help, README.md, docs/explanation/algorithms.md"

test:  ## the whole suite: checks, pytest in parallel, the core again on the compiled wheel; brings the servers
	@$(MAKE) --no-print-directory --jobs=4 servers compiled check-types check-tests check-style check-imports
	$(PYTEST)
	RATEBOUND_EXAMPLES=25 $(ON_COMPILED) $(PYTEST) tests/compiled $(CORE) tests/contract tests/concurrency tests/waiting $(ZONES) $(SERVICE)

check: .venv/ready  ## ruff, mypy strict, the import contract, and that mypyc accepts the modules that it compiles
	@$(MAKE) --no-print-directory --jobs=4 check-types check-compiles check-style check-imports

check-types: .venv/ready
	$(BIN)/mypy

check-compiles: .venv/ready
	$(BIN)/python tools/compile_modules.py check

check-style: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check-imports: .venv/ready
	$(BIN)/lint-imports --no-cache

# All tests can be found. It also writes their bytecode: else every worker would, each for itself.
check-tests: .venv/ready
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qqq >.venv/tests || { cat .venv/tests; exit 1; }

# Needs no .venv: in `make test` it runs beside pip.
servers:
	@tools/get_servers

# Builds the wheel with RATEBOUND_COMPILE=yes: what mypyc rejects fails here.
compiled: .venv/ready
	@tools/get_compiler
	@$(BIN)/python tools/install_compiled.py

wheel: .venv/ready  ## build the compiled wheel into dist
	@tools/get_compiler
	RATEBOUND_COMPILE=yes $(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

test-long: .venv/ready compiled servers  ## far more examples, everything on the compiled wheel, and whether tests notice changes of the code
	RATEBOUND_LONG=1 RATEBOUND_EXAMPLES=2000 $(PYTEST) tests/packaging tests/property tests/redis tests/faults tests/shared_memory tests/web
	RATEBOUND_LONG=1 RATEBOUND_EXAMPLES=2000 $(ON_COMPILED) $(PYTEST)
	$(BIN)/python tools/mutate.py

bench: .venv/bench compiled servers  ## both builds side by side with their peers: memory, shared memory, slices, the web, Redis, databases, the service, clients and load tests
	@tools/get_servers wrk
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks redis
	$(BIN)/python -m benchmarks web
	$(BIN)/python -m benchmarks shm
	$(BIN)/python -m benchmarks slices
	$(BIN)/python -m benchmarks bytes
	$(BIN)/python -m benchmarks storages
	$(BIN)/python -m benchmarks service --builds compiled
	$(BIN)/python -m benchmarks client
	$(BIN)/python -m benchmarks loadtest

bench-quick: .venv/bench compiled  ## the same in memory, with fewer rounds and keys: for a look, not for a figure
	$(BIN)/python -m benchmarks --quick

docs: .venv/ready  ## build the documentation into build/site; every broken link fails
	$(MKDOCS) build --strict
	@echo "The documentation is in build/site: open build/site/index.html, its search works without a server"

docs-serve: .venv/ready  ## serve the documentation while you write, on port 8800; PORT=8801 takes another
	$(MKDOCS) serve --no-strict --dev-addr 127.0.0.1:$(or $(PORT),8800)

pictures: .venv/ready  ## draw the pictures of docs/pictures again, from the kernels (screenshots: tools/picture_*.py)
	@for tool in tools/draw_*.py; do $(BIN)/python $$tool || exit 1; done

lock: .venv/ready  ## write the pinned requirements anew
	$(BIN)/pip install --quiet uv
	cd requirements && $(COMPILE) test.in -o test.txt && $(COMPILE) bench.in -o bench.txt
	cd requirements && $(COMPILE) run.in ../pyproject.toml --extra service -o run.txt
	cd requirements && $(COMPILE) api.in ../pyproject.toml --extra fastapi --extra policy --extra prometheus -o api.txt
	cd requirements && $(COMPILE) container.in ../pyproject.toml --extra service --extra redis --extra postgres -o container.txt

COMPILE := ../$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11

# .venv grows: each set adds its packages, at the same versions. The tests' set has all of the others.
define install
	@tools/make_venv $(PYTHON)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-compile -r $<
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # on all cores, which pip does not; some files are no Python
	RATEBOUND_COMPILE=no $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endef

# A set is installed whole or not at all: its file is written last.
.venv/run .venv/api: .venv/%: requirements/%.txt pyproject.toml
	$(install)
	@touch $@

.venv/ready: requirements/test.txt pyproject.toml
	$(install)
	@touch $@ .venv/run .venv/api

.venv/bench: requirements/bench.txt .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	@touch $@

clean:  ## remove what the other commands made
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
