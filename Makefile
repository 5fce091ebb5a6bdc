# Everything installs by itself: `make demo` and `make test` need only python3, make and a network.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check lint types imports spelling format learn bench compare docs clean help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

DEMO := runs/demo
ROWS := 'data.filter=["partial=no"]'

demo: $(STAMP) ## train ViZDoom basic while recording, learn from the recording, compare everything on one page
	$(BIN)/rollmill train -f configs/doom_basic.yaml --overwrite run.experiment=demo run.name=agent \
	  recording=episodes recording.every=2 recording.when=spread recording.budget_gb=0.5
	$(BIN)/rollmill eval $(DEMO)/agent --episodes 100 --random
	$(BIN)/rollmill offline $(DEMO)/agent/data -f configs/offline_dt.yaml --overwrite run.experiment=demo run.name=dt \
	  evaluation.episodes=0 $(ROWS)
	$(BIN)/rollmill offline $(DEMO)/agent/data -f configs/offline_bc.yaml --overwrite run.experiment=demo run.name=bc \
	  evaluation.episodes=0 $(ROWS)
	$(BIN)/rollmill offline-eval $(DEMO)/dt $(DEMO)/bc --behaviour $(DEMO)/agent --random --targets 0 40 70 85 --videos \
	  --report $(DEMO)/report.html

test: $(STAMP) ## run the tests (about 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: lint types imports spelling test ## what CI runs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

spelling: $(STAMP)
	$(BIN)/codespell src tests docs examples benchmarks configs README.md CONTRIBUTING.md CHANGELOG.md

format: $(STAMP) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

learn: $(STAMP) ## check that agents really learn (hours on 2 cores); prints a table
	$(BIN)/python benchmarks/learn.py

bench: $(STAMP) ## measure simulator, sampling and training speed on this machine
	$(BIN)/rollmill bench all -f configs/doom_basic.yaml

compare: $(STAMP) ## measure rollmill beside other libraries, each in a venv of its own (about an hour, 7 GB)
	$(BIN)/python benchmarks/raw_sampling.py
	$(BIN)/python benchmarks/train_gym.py
	$(BIN)/python benchmarks/sample_factory.py
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/store.py

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache site
