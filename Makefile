PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
CORE := .venv/installed-core
EVERYTHING := .venv/installed-everything
COMPILED := .venv/compiled
KERNELS := $(shell find src/hinet/engine src/hinet/data src/hinet/encoders src/hinet/compiled.py src/hinet/machine_code.py src/hinet/numba_internals.py -name '*.py')
# Processes of pytest; with 0, the tests run in pytest itself.
PROCESSES ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL = $(PIP) install $(PIP_OPTIONS) --constraint constraints.txt --editable

.PHONY: demo test test-slow test-browser check bench bench-peers docs release clean

demo: $(CORE)  ## train, evaluate and predict on the built-in ICD-10-CM set
	$(BIN)/hinet demo

test: $(COMPILED)  ## all tests except slow and browser tests; includes doctests
	$(BIN)/python -m pytest -q -m "not slow" --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 15 --ignore tests/browser

test-slow: $(COMPILED)  ## slow tests, such as a cluster that loses a worker in training
	$(BIN)/python -m pytest -q -m slow --durations 5 --ignore tests/browser

test-browser: $(COMPILED)  ## web page tests in Chromium, if installed; screenshots are in build/screenshots
	$(BIN)/python -m pytest -q -p no:schemathesis --numprocesses $(PROCESSES) --dist loadfile --durations 5 tests/browser

check: $(EVERYTHING)  ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(EVERYTHING)  ## slow measurements; HINET_DATA is the folder of the data sets; results are in benchmarks/results
	$(BIN)/python benchmarks/taxonomy.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/ontologies.py
	$(BIN)/python benchmarks/downpour.py
	$(BIN)/python benchmarks/probabilities.py
	$(BIN)/python benchmarks/icd_torch.py
	$(BIN)/python benchmarks/dense_hierarchy.py
	$(BIN)/python benchmarks/vectorise.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/model_size.py
	$(BIN)/python benchmarks/classifier.py
	$(BIN)/python benchmarks/moved_nodes.py
	$(BIN)/python benchmarks/risk.py
	$(BIN)/python benchmarks/cli.py
	$(BIN)/python benchmarks/install.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/forged_models.py
	$(BIN)/python benchmarks/saving.py
	$(BIN)/python benchmarks/comparison.py
	$(BIN)/python benchmarks/encoders.py
	$(BIN)/python benchmarks/lshtc/run.py
	$(BIN)/python benchmarks/meaning.py
	$(BIN)/python benchmarks/unknown_words.py
	$(BIN)/python benchmarks/few_rows.py
	$(BIN)/python benchmarks/corrections.py
	$(BIN)/python benchmarks/scripts.py
	$(BIN)/python benchmarks/active.py
	$(BIN)/python benchmarks/labelling.py
	$(BIN)/python benchmarks/several_labels.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/tune.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/page.py

bench-peers: $(EVERYTHING)  ## comparison with other tools, e.g. DATA='naics lshtc' HINET_DATA=folder; writes docs/benchmarks.md
	$(BIN)/python benchmarks/bench_peers.py --data $(or $(DATA),icd)
	$(BIN)/python benchmarks/bench_peers.py --report

docs: $(EVERYTHING)  ## documentation site in build/site, with a generated command-line reference; warnings are errors
	$(BIN)/typer hinet.cli utils docs --name hinet --output docs/cli.md
	$(BIN)/python tools/figures.py
	$(BIN)/python -m sphinx -b html -W --keep-going -q -j auto -c tools/site -d build/doctrees docs build/site

release: $(CORE)  ## sdist and wheel in dist, tested in a fresh install; TAG=v1.2.3 also checks the tag
	$(INSTALL) '.[release]'
	$(BIN)/python tools/release.py $(TAG)

clean:  ## remove generated files
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(CORE): pyproject.toml constraints.txt  # packages that users need, without torch
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) '.[demo,meaning]'
	touch $@

$(EVERYTHING): pyproject.toml constraints.txt  # also packages for tests and benchmarks
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) '.[demo,bench,dev,docs]'
	touch $(CORE) $@

$(COMPILED): $(EVERYTHING) $(KERNELS)  # once, on all cores, so that parallel tests do not compile the same kernels
	$(BIN)/hinet compile --quiet
	touch $@
