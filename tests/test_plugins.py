"""Embedders and environments of other packages, some of which are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rb_dspy.errors import ConfigError, InputError, MissingDependency
from rb_dspy.plugins import embedder, environment_family, environment_names

MODULES = {
    "acme_gone": "import not_installed_any_more\n",
    "acme_bad": "raise RuntimeError('no graphics card:\\nsee the manual')\n",
    "acme_made": """
from rb_dspy.errors import ConfigError

class Ours:
    def __init__(self):
        raise ConfigError("acme needs a key")

class Asks:
    def __init__(self, words):
        pass

class Empty:
    pass

class Works:
    id, dimension, name = "works", 3, "works"
    check = templates = tasks = make = embed = None
""",
}
BROKEN = ["acme_gone:Any", "acme_bad:Any", "acme_made:Missing", "acme_made:Asks", "acme_made:Empty"]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package whose entry points are called after their places."""
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    points = [f"{name(place)} = {place}" for place in (*BROKEN, "acme_made:Ours", "acme_made:Works")]
    groups = ("[rb_dspy.environments]", "[rb_dspy.embedders]")
    (about / "entry_points.txt").write_text("\n".join(line for group in groups for line in (group, *points, "")))
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def name(place: str) -> str:
    return place.replace(":", "-")


@pytest.mark.parametrize("load", [environment_family, embedder])
@pytest.mark.parametrize("place", BROKEN)
def test_a_broken_plugin_is_refused_in_one_line(place: str, load: Callable[[str], object]) -> None:
    with pytest.raises(MissingDependency) as caught:
        load(name(place))
    assert "acme" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [environment_family, embedder])
def test_an_error_of_ours_is_raised_as_it_is(load: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError, match=r"^acme needs a key$"):
        load("acme_made-Ours")


@pytest.mark.parametrize("load", [environment_family, embedder])
def test_a_plugin_is_made_once(load: Callable[[str], object]) -> None:
    assert load("acme_made-Works") is load("acme_made-Works")
    assert {"question", "acme_made-Works"} <= set(environment_names())


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(InputError, match="reasoning-gym"):
        environment_family("nowhere")


@pytest.mark.parametrize("mistyped", ["minlm", "MiniLM", "all-minilm"])
def test_a_mistyped_embedder_is_not_looked_up_on_the_hub(mistyped: str) -> None:
    with pytest.raises(InputError, match="'minilm'"):
        embedder(mistyped)
    assert repr(embedder(f"somebody/{mistyped}")) == f"SentenceTransformerEmbedder('somebody/{mistyped}')"
