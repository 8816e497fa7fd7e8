"""What is written of a saved index beside its files: which they are, and which state of which bank they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic


class UnusableError(Exception):
    """Why what is saved cannot be used."""


class File(pydantic.BaseModel):
    """A file of the folder, and what tells whether it is as it was written."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    # Codes are in files that end in .sketch, since that is what banks have on disk.
    name: str = pydantic.Field(pattern=r"^[0-9a-f]{32}-[0-9a-f]{16}\.(faiss|sketch|columns)$")
    size: int
    xxh3_64: str


class SavedPart(pydantic.BaseModel):
    """The files of one part."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: File
    sketch: File | None
    """Of its codes; None where the part has none."""

    @property
    def files(self) -> tuple[File, ...]:
        """All that there are."""
        return (self.rows,) if self.sketch is None else (self.rows, self.sketch)


class Manifest(pydantic.BaseModel):
    """What is saved. Every file has a name that is used once, so that a manifest means one state or none."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[2]
    scope: str
    unit: str
    embedder: str
    dimension: int
    mark: int
    digest: str
    rows: int
    columns: File
    parts: tuple[SavedPart, ...] = pydantic.Field(strict=False)

    @property
    def files(self) -> tuple[File, ...]:
        """All that it names."""
        return (self.columns, *(file for part in self.parts for file in part.files))


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file. Raises ``UnusableError`` where it is none, and ``OSError``."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except pydantic.ValidationError as exc:
        raise UnusableError(f"its manifest cannot be read, {exc.error_count()} errors") from None
