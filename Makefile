# `make run` shows the product, `make test` proves it. Both set up what they need in .venv, from nothing.
PYTHON ?= python3
BIN := .venv/bin
# Every worker has servers of its own. Bytecode is kept: workers and the programs that tests start share it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help run demo test check check-types check-compiles check-style check-imports test-long bench bench-quick pictures lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/ready  ## serve an example API with limits, and show where to look; PORT=8001 takes another port
	@$(BIN)/python examples/api/serve.py

demo: .venv/ready  ## play the same traffic through all algorithms, side by side
	@$(BIN)/ratebound demo
	@echo
	@echo "Next: $(BIN)/ratebound explain \"10/second burst 20; 500/hour\""
	@echo "      $(BIN)/ratebound --help, README.md, docs/algorithms.md"

test: check  ## the whole suite: checks, then pytest in parallel; brings the servers it needs
	@tools/get_servers
	$(PYTEST)

check: .venv/ready  ## ruff, mypy strict, the import contract, and that mypyc accepts the kernels
	@$(MAKE) --no-print-directory --jobs=4 check-types check-compiles check-style check-imports

check-types:
	$(BIN)/mypy

check-compiles:
	$(BIN)/python tools/check_mypyc.py

check-style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check-imports:
	$(BIN)/lint-imports --no-cache

test-long: .venv/ready  ## the property tests with far more examples, and whether tests notice changes of the code
	@tools/get_servers
	RATEBOUND_LONG=1 RATEBOUND_EXAMPLES=2000 $(PYTEST) tests/property tests/redis tests/faults tests/web
	$(BIN)/python tools/mutate.py

bench: .venv/bench compiled  ## both builds side by side with their peers, in memory, on the web and on Redis
	@tools/get_servers
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks redis
	$(BIN)/python -m benchmarks web

bench-quick: .venv/bench compiled  ## the same in memory, with fewer rounds and keys: for a look, not for a figure
	$(BIN)/python -m benchmarks --quick

pictures: .venv/ready  ## draw the pictures of docs/algorithms.md again, from the kernels
	$(BIN)/python tools/draw_algorithms.py

lock: .venv/ready  ## write the pinned requirements anew
	$(BIN)/pip install --quiet uv
	cd requirements && for name in test bench; do \
		../$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
			$$name.in -o $$name.txt; done

# A venv is made in one go or not at all: `ready` is written last.
.venv/ready: requirements/test.txt pyproject.toml
	@tools/make_venv $(PYTHON)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/test.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/bench: requirements/bench.txt .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	@touch $@

clean:  ## remove what the other commands made
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
