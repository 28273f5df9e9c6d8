# Every target sets up its own virtual environment first: on a fresh machine `make demo` and `make test` are enough.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed

.PHONY: setup demo test fuzz bench lint clean

setup: $(STAMP)

# torch first and pinned: a later requirement on it then finds it satisfied
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py --out results/demo

test: lint
	$(BIN)/pytest -n 2

# damaged and forged models and checkpoints: 0 exceptions, 0 other answers
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m fuzz.fuzzing --cases 20000

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/heads.py
	$(BIN)/python benchmarks/images.py
	$(BIN)/python benchmarks/bounds.py
	$(BIN)/python benchmarks/probabilities.py
	$(BIN)/python benchmarks/tabular.py
	$(BIN)/python benchmarks/classifiers.py
	$(BIN)/python benchmarks/boosting.py
	$(BIN)/python benchmarks/foreign.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/million_rows.py
	$(BIN)/python benchmarks/effects.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/coverage.py --others
	$(BIN)/python benchmarks/trust.py
	$(BIN)/python benchmarks/defaults.py

clean:
	rm -rf $(VENV) build *.egg-info
