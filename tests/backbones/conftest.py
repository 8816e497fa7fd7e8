"""The smallest real model, fetched once; and its engine, loaded once."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rb_dspy.backbones import models
from rb_dspy.backbones.llamacpp import LlamaEngine
from tests.backbones.served import KEY, Server, serving

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


@pytest.fixture
def swept() -> Iterator[None]:
    """For tests that ask a server through litellm, which leaves sockets and an event loop for whoever comes later."""
    import litellm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.ModelResponse()  # put together when it is first made, with a warning of pydantic's
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.in_memory_llm_clients_cache.flush_cache()
        gc.collect()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY, "none")
    with serving() as found:
        yield found
