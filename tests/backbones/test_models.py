"""The catalog of models, and what is known of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rb_dspy.backbones import models
from rb_dspy.errors import InputError, MissingDependency, ModelFileError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models.default_directory().mkdir(parents=True)
    return models.default_directory()


def test_the_catalog() -> None:
    specs = models.catalog()
    assert [spec.name for spec in specs] == ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m"]
    for spec in specs:
        assert len(spec.sha256) == 64
        assert all(part.member.split("/")[0].replace("_", "-") in part.requirement for part in spec.wheels)
    with pytest.raises(InputError, match="smollm2-135m"):
        models.find("smollm")


def test_absent_damaged_and_present(folder: Path) -> None:
    name = "smollm2-135m"
    with pytest.raises(MissingDependency, match=f"rb-dspy models get {name}"):
        models.model_path(name)
    path = folder / models.find(name).file
    path.write_bytes(b"GGUF")
    assert models.status(name) == "damaged"
    with pytest.raises(ModelFileError, match=f"rb-dspy models get {name}"):
        models.model_path(name)
    with path.open("r+b") as file:
        file.truncate(models.find(name).size)
    assert models.status(name) == "present"
    assert models.status(name, verify=True) == "damaged"
