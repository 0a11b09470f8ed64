# Each target creates and uses .venv by itself: one command on a fresh machine is all.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-elsewhere lint bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# PHOTOS=folder takes your own photographs instead of made-up ones.
demo: $(STAMP)
	$(if $(PHOTOS),$(BIN)/mba sfm $(PHOTOS) --output demo/scene,$(BIN)/mba demo --output demo)

# A file stays in one process, so that its fixtures are made once.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --durations 10

# The same as other machines would run it: nearly an hour.
test-elsewhere: $(STAMP)
	$(BIN)/python tests/elsewhere.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/objectives.py
	$(BIN)/python benchmarks/ablation.py
	$(BIN)/python benchmarks/covariance.py
	$(BIN)/python benchmarks/solver_race.py

clean:
	rm -rf $(VENV) demo benchmarks/results .mypy_cache .ruff_cache
