"""The smallest real model, fetched once; and its engine, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rb_dspy.backbones import models
from rb_dspy.backbones.llamacpp import LlamaEngine

SMALL = "smollm2-135m"


@pytest.fixture(scope="session")
def small_model() -> Path:
    return models.get(SMALL)


@pytest.fixture(scope="session")
def engine(small_model: Path) -> LlamaEngine:
    """Two slots of 2,048 tokens, so that tests reach their limits quickly; one thread, since other tests run beside."""
    engine = LlamaEngine(SMALL, context=2048, slots=2, threads=1)
    engine.load()
    return engine
