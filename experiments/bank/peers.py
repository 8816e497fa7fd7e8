"""Other memories, from the package index, in a virtual environment of their own and a process each."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "peers"

_WHOLE = ("mem0ai==2.2.1", "langmem==0.0.30", "faiss-cpu", "numpy", "pydantic", "sqlite-vec", "pysqlite3-binary")
"""pysqlite3: reasoning-bank needs an SQLite that loads extensions, and many a Python's own does not."""
_ALONE = ("reasoning-bank==0.1.1",)
"""Without what it depends on: it asks for sentence-transformers, so for torch, which its storage never imports."""

NAMES = ("reasoning-bank 0.1.1", "mem0 2.2.1", "mem0-store 2.2.1", "langmem 0.0.30")
"""The second is mem0's public ``Memory`` on its FAISS store, the third that store alone, without what surrounds it."""


_NOWHERE = "http://127.0.0.1:9"
"""Where a peer that tries to reach the network is sent: nothing answers there."""


def install() -> Path:
    """The interpreter that has the peers; made on first use, which takes some minutes and 400 MB."""
    wanted = hashlib.sha256("\n".join(_WHOLE + _ALONE).encode()).hexdigest()[:12]
    place = FOLDER / wanted
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = place / "installed"
    if not done.exists():
        print(f"installing the peers into {place.relative_to(HERE.parents[1])}", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *_WHOLE], check=True, stdout=sys.stderr)
        subprocess.run([*pip, "--no-deps", *_ALONE], check=True, stdout=sys.stderr)
        done.touch()
    return python


def ask(peer: str, folder: Path, **request: Any) -> dict[str, Any]:
    """What ``peer_worker`` answers; raises ``RuntimeError`` with the end of what it wrote where it fails."""
    offline = {
        "MEM0_TELEMETRY": "False",
        "MEM0_DIR": str(folder / "mem0-home"),
        "ANONYMIZED_TELEMETRY": "False",
        "LANGCHAIN_TRACING_V2": "false",
        "LANGSMITH_TRACING": "false",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HOME": str(folder),
        "OPENAI_API_KEY": "none",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOWHERE),
    }
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(install()), "-W", "ignore", str(HERE / "peer_worker.py")],
        input=json.dumps({"peer": peer, "folder": str(folder), **request}),
        capture_output=True,
        text=True,
        env={**os.environ, **offline},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{peer}: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
