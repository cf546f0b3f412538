# Two commands matter: `make run` and `make test`. Each sets up all it needs.
PYTHON ?= python3
BIN := .venv/bin
# What is installed: the package alone, or also what its tests need (all extras).
CORE := .venv/.core
READY := .venv/.ready
# The test files, rewritten by pytest and compiled: on the core that mypy leaves free, and once, not by each worker.
COMPILED := .venv/.tests-compiled
# Three more than there are cores: so many files of tests wait for other processes most of the time.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 3)')
# With byte code, whatever the environment says: otherwise every worker rewrites and compiles all test files again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal --durations 20

.PHONY: run test quick nightly lint bench bench-console machine charts docs setup tables clean

run: $(CORE)  ## the main job: both IP-FLs and FedAvg on the bundled digits, without and with a last step
	$(BIN)/ipfl compare --methods fedavg,ipfl,ipfl-plus,fedavg+adapt,ipfl-plus+adapt --seeds 1 --out runs/default --overwrite

test: machine $(READY)  ## lint, types and every test
	$(MAKE) --no-print-directory -j 2 lint $(COMPILED)
	$(PYTEST)

$(COMPILED): $(READY) $(shell find tests benchmarks -name '*.py')
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 0 --collect-only -qq >/dev/null 2>&1 || true  # errors come again
	@touch $@

quick: $(READY)  ## the fast tests only
	$(PYTEST) -m "not slow"

nightly: $(READY)  ## runs that die at every operation on their files and store: 2,000 kills of each method
	IPFL_KILLS=2000 $(PYTEST) tests/play/test_simulated_kills.py

lint: $(READY)  ## style, types, layers between packages, declared dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

bench: $(READY)  ## all benchmarks, some 20 minutes; PARTS="bank clients" for some; figures in benchmarks/README.md
	$(BIN)/python benchmarks/bench.py $(PARTS)

bench-console: $(READY)  ## the console on a million transfers, and on 500 rounds of 1,000 clients
	$(BIN)/python benchmarks/console.py

machine:  # first: what cannot be had is said before anything else is installed
	@$(PYTHON) tests/prepare_machine.py .venv chromium openssl

charts:  ## the console's build of ECharts, after a change in charts/ (needs npm; the result is committed)
	cd charts && npm ci --ignore-scripts --no-audit --no-fund --silent && npm run --silent build
	sha256sum src/ipfl/console/static/vendor/echarts.min.js

tables: $(CORE)  ## the tables of the paper in docs/results.md, from the numbers in experiments/results
	$(BIN)/ipfl reproduce tables

docs: $(READY)  ## the documentation site, in build/docs: open build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

setup: $(READY)  ## create .venv with the pinned dependencies of everything, tests included

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ipfl needs Python 3.11 or newer (make PYTHON=python3.12 …)" >&2; exit 1; }
	@$(PYTHON) tests/prepare_machine.py .venv python3-venv
	@$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(READY): $(CORE)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # on all cores, which pip does not
	@touch $@

clean:  ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
