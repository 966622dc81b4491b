# The one entry point for everything a contributor does. Each target does its own set-up on a machine that has
# python3 with venv and make; what Debian packages a target needs, tools/need brings.

PYTHON ?= python3
BIN    := .venv/bin
ARGS   ?=
TIMES  ?= 10
SEEDS  ?= 1000
FROM   ?= 0
EVENTS ?= 200
BUG    ?=

MAKEFLAGS     += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test stress lint bench simulate trace docs screenshots coverage mutants pythons lowest dist lock clean
.DELETE_ON_ERROR:

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: .venv/.ready ## See it work
	@$(BIN)/twophp demo --once $(ARGS)

test: lint ## Lint, then every test; ARGS="tests/core -k name" narrows it
	@tools/need git curl openssl node-express postgresql redis-server strace chromium
	@$(BIN)/python -m compileall -q src tests # Where Python keeps no bytecode, each process of a test would compile all.
	@echo "test: pytest $(ARGS)"
	@$(BIN)/pytest -q -n 2 --dist worksteal $(ARGS)

stress: .venv/.ready ## Repeat some tests beside busy processes; ARGS="tests/core -k name", TIMES=10
	@$(BIN)/python -m tools.stress --times $(TIMES) -- $(ARGS)

lint: .venv/.ready ## Style, types and layers
	@echo "lint: ruff, mypy, import-linter"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --diff .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > .venv/imports.log || { cat .venv/imports.log; exit 1; }

bench: .venv/.ready ## Measure every bar, and write bench/latest.json; ARGS="--quick", "--only server", "--peers"
	@tools/need postgresql redis-server wrk
	@$(BIN)/python -m bench $(ARGS)

simulate: .venv/.ready ## Run seeds of the simulation; SEEDS=10000 FROM=0 EVENTS=200 BUG=name, ARGS="--trace"
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM) --events $(EVENTS) --bug "$(BUG)" $(ARGS)

trace: .venv/.ready ## Count the calls, files and opcodes of one handshake; ARGS="--json" for a machine
	@$(BIN)/python -m tools.trace $(ARGS)

docs: .venv/.ready ## Write the generated pages, build the site in build/site, check its links
	@$(BIN)/python -m tools.docs
	@$(BIN)/python -m tools.site

screenshots: .venv/.ready ## Write docs/screenshots again: every page of the central ledger, light and dark
	@tools/need chromium
	@$(BIN)/python -m tools.screenshots

coverage: .venv/.ready ## Measure what the tests run, by line and branch; ARGS="tests/core" narrows it
	@tools/need git curl openssl node-express postgresql redis-server strace chromium
	@$(BIN)/coverage erase
	@nice $(BIN)/coverage run -m pytest -q $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o build/coverage/report.json
	@$(BIN)/python -m tools.covered $(if $(ARGS),--partial)

mutants: .venv/.ready ## Change one thing in core at a time, and ask its tests; ARGS="phase --minutes 20"
	@nice $(BIN)/python -m tools.mutants $(ARGS)

pythons: .venv/.ready ## Test the built wheel on every Python from 3.11 to 3.14 that can be had; ARGS="tests/core"
	@$(BIN)/python -m tools.pythons $(ARGS)

lowest: .venv/.ready ## Test the built wheel with the oldest dependencies that it allows; ARGS="tests/core"
	@$(BIN)/python -m tools.pythons --lowest $(ARGS)

dist: .venv/.ready ## Build wheel, source archive and bill of materials in dist; two builds have to be the same
	@$(BIN)/python -m tools.dist

lock: .venv/.ready ## Pin the newest dependencies by hash in requirements/dev.txt
	@echo "lock: requirements/dev.txt"
	@$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --group dev --group docs --universal --python-version 3.11 \
		--generate-hashes --custom-compile-command "make lock" \
		--output-file requirements/dev.txt
	@echo "lock: bench/peers.txt"
	@$(BIN)/uv pip compile bench/peers.in --quiet --universal --python-version 3.11 --generate-hashes \
		--constraints requirements/dev.txt --custom-compile-command "make lock" --output-file bench/peers.txt

clean: ## Remove everything that make made
	@rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: requirements/dev.txt pyproject.toml
	@echo "set-up: .venv from requirements/dev.txt"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
