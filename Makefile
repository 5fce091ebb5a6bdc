# Everything installs by itself: `make demo` and `make test` need only python3, make and a network.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

.PHONY: demo test test-all versions-newest versions-lowest test-gpu test-browser check lint types imports spelling format learn bench compare consumers pictures install-check docs dist clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# What the demo needs is a part of what the tests need; each is installed when it is first asked for.
$(DEMO_STAMP): EXTRA := demo
$(STAMP): EXTRA := dev
$(DEMO_STAMP) $(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRA)]"
	touch $@

EXPERIMENT ?= demo
SEED ?= 0
DEMO := runs/$(EXPERIMENT)
DEMO_RUN := --overwrite run.experiment=$(EXPERIMENT) run.seed=$(SEED)
ROWS := 'data.filter=["partial=no"]'

demo: $(DEMO_STAMP) ## train ViZDoom basic while recording, learn from the recording, compare everything on one page
	$(BIN)/rollmill train -f doom_basic $(DEMO_RUN) run.name=agent \
	  recording=all recording.when=spread recording.budget_gb=1
	$(BIN)/rollmill eval $(DEMO)/agent --episodes 100 --random
	$(BIN)/rollmill offline $(DEMO)/agent/data -f offline_dt $(DEMO_RUN) run.name=dt \
	  evaluation.episodes=0 $(ROWS)
	$(BIN)/rollmill offline $(DEMO)/agent/data -f offline_bc $(DEMO_RUN) run.name=bc \
	  evaluation.episodes=0 $(ROWS)
	$(BIN)/rollmill eval $(DEMO)/dt $(DEMO)/bc --behaviour $(DEMO)/agent --random --targets 0 40 70 85 --report-videos \
	  --report $(DEMO)/comparison.html

# Tests that may be skipped on a machine like CI's. Six need packages that have no place beside ours (TensorFlow and its
# data sets, d3rlpy, LeRobot, datasets, Trackio): `make consumers` runs them. Two more are for what a machine may not allow.
MAX_SKIPS ?= 8

# One more than there are cores: tests of processes wait now and then.
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)

TEST := $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --max-skips $(MAX_SKIPS)

test: $(STAMP) ## run the tests but for the slowest (tests/slow.txt), 7 minutes on 2 cores
	$(TEST) -m "not learning and not slow" $(PYTEST_WORDS)

test-all: $(STAMP) ## run all tests, 15 minutes on 2 cores
	$(TEST) $(PYTEST_WORDS)

# Other versions than those of constraints.txt, each in a venv of its own.
versions-newest: ## run the tests with the newest versions that pip finds
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[dev]"
	.venv-newest/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile --max-skips $(MAX_SKIPS)

versions-lowest: ## run the tests with the lowest versions that pyproject.toml claims
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python tools/lowest_versions.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --constraint .venv-lowest/constraints.txt --editable ".[dev]"
	.venv-lowest/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile --max-skips $(MAX_SKIPS)

test-gpu: $(STAMP) ## run the tests of the CUDA paths, on a machine with a GPU
	ROLLMILL_TEST_GPU=cuda $(BIN)/python -m pytest tests/gpu --max-skips 0

test-browser: $(STAMP) ## run the tests of pages in a real browser (needs chromium); none may be skipped
	$(BIN)/python -m pytest tests/browser --max-skips 0

check: lint types imports spelling test-all ## what CI runs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

spelling: $(STAMP)
	$(BIN)/codespell src tests docs examples benchmarks README.md CONTRIBUTING.md CHANGELOG.md

format: $(STAMP) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

learn: $(STAMP) ## check that agents really learn (hours on 2 cores); prints a table
	$(BIN)/python benchmarks/learn.py

bench: $(STAMP) ## measure simulator, sampling and training speed on this machine
	$(BIN)/rollmill bench all -f doom_basic

compare: $(STAMP) ## measure rollmill beside other libraries, each in a venv of its own (about an hour, 7 GB)
	$(BIN)/python benchmarks/raw_sampling.py
	$(BIN)/python benchmarks/train_gym.py
	$(BIN)/python benchmarks/sample_factory.py
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/store.py

# What other programs read must be read by them, in versions that they choose themselves (d3rlpy wants another Gymnasium
# than we test with). Only torch is held: the plain one may bring gigabytes for GPUs.
CONSUMED := msgpack zstandard google-crc32c pytest hypothesis
CHECK := -m pytest --noconftest -p no:cacheprovider

.venv-tensorflow/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet tensorflow-cpu tensorflow-datasets protobuf pillow $(CONSUMED)
	touch $@

.venv-d3rlpy/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" d3rlpy "minari[hdf5]" pillow $(CONSUMED)
	touch $@

# LeRobot asks for much that its reader never imports. torchvision's compiled half fits one build of torch; the reader needs none of it.
.venv-lerobot/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" "datasets<5" "huggingface-hub<0.36" "av<16" \
	  accelerate jsonlines pillow $(CONSUMED)
	$(@D)/bin/python -m pip install --quiet --no-deps "lerobot>=0.4,<0.5" "torchvision>=0.23,<0.26"
	touch $@

.venv-trackio/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet trackio numpy pydantic pyyaml rich pytest
	touch $@

consumers: .venv-trackio/.installed .venv-tensorflow/.installed .venv-d3rlpy/.installed .venv-lerobot/.installed ## exports opened by TensorFlow, d3rlpy, LeRobot and datasets, metrics by Trackio, each in a venv of its own (minutes, 5 GB)
	.venv-tensorflow/bin/python -c "import tensorflow"
	PYTHONPATH=src .venv-tensorflow/bin/python $(CHECK) tests/store/convert/test_tfrecord.py -k tensorflow
	.venv-tensorflow/bin/python -c "import tensorflow_datasets"
	PYTHONPATH=src .venv-tensorflow/bin/python $(CHECK) tests/store/convert/test_tfds_reader.py
	.venv-d3rlpy/bin/python -c "import d3rlpy, minari"
	PYTHONPATH=src .venv-d3rlpy/bin/python $(CHECK) tests/store/convert/test_d3rlpy.py
	.venv-lerobot/bin/python -c "import lerobot"
	PYTHONPATH=src .venv-lerobot/bin/python $(CHECK) tests/store/convert/test_lerobot_reader.py
	.venv-lerobot/bin/python -c "import datasets"
	PYTHONPATH=src .venv-lerobot/bin/python $(CHECK) tests/store/convert/test_parquet.py -k hugging_face
	.venv-trackio/bin/python -c "import trackio"
	PYTHONPATH=src .venv-trackio/bin/python $(CHECK) tests/monitor/test_trackio.py

pictures: $(STAMP) ## make the pictures of README and docs from what `make demo` has left (needs chromium)
	$(BIN)/python tools/pictures.py

install-check: ## build the wheel, install it into a fresh venv from the package index, run the quick start; seconds and MB (minutes, 2 GB)
	$(PYTHON) tools/install_check.py

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

dist: ## build source archive and wheel into dist/, and check them
	rm -rf dist && $(PYTHON) -m venv .venv-dist && .venv-dist/bin/python -m pip install --quiet build twine
	.venv-dist/bin/python -m build
	.venv-dist/bin/python -m twine check --strict dist/*

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache site
