"""Serve one GGUF model on a loopback port until the parent closes this process's stdin.

A standalone script, started by ``rb_dspy.backbones.local``: it imports nothing from this package. Arguments: the
model's file, tokens of context per slot, slots, threads. The key comes from an environment variable, because other
users of the machine can read a command line. Prints one line: the address, or ``error: ...``.
"""

from __future__ import annotations

import os
import sys

KEY_VARIABLE = "RB_DSPY_LOCAL_KEY"
SAVED_PROMPTS_MIB = 512
"""Memory for prompts whose slot another prompt took."""


def main(path: str, context: int, slots: int, threads: int) -> None:
    """Load the model, print the address, and wait."""
    # Threads that spin while they wait slow down the thread that they wait for: 1 token a second on a busy
    # machine. OpenMP reads both variables once, when the library is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "300")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel, params.n_ctx, params.kv_unified = slots, slots * context, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.no_extra_bufts = True  # repacked weights load slower, take more memory, and read prompts slower
    # A partly cached prompt must give the same numbers as one that is not cached.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_batch = params.n_ubatch
    params.cache_ram_mib = SAVED_PROMPTS_MIB
    params.warmup = params.fit_params = params.ui = params.endpoint_slots = False
    params.verbosity = -1
    params.api_keys = [os.environ.pop(KEY_VARIABLE)]
    params.cors_origins, params.cors_credentials = "null", False
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"error: {error}", flush=True)
        os._exit(1)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # until the parent closes it or ends, however it ends
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:5]))
