"""Embedders and environments of other packages, some of which are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rb_dspy import MemoryBank, TaskStream
from rb_dspy.cli.main import main
from rb_dspy.errors import ConfigError, InputError, MissingDependency
from rb_dspy.plugins import embedder, environment_family

MODULES = {
    "acme_gone": "import not_installed_any_more\n",
    "acme_bad": "raise RuntimeError('no graphics card:\\nsee the manual')\n",
    "acme_torn": "def f(:\n",
    "acme_made": """
from rb_dspy.errors import ConfigError

class Ours:
    def __init__(self):
        raise ConfigError("acme needs a key")

class Lost:
    def __init__(self):
        raise FileNotFoundError("/data/words")

class Asks:
    def __init__(self, words):
        pass

class Empty:
    pass

class Broken:
    templates = tasks = make = None
    def check(self):
        raise OSError("no\\ndisk")
""",
}

BROKEN = {
    "acme_gone:Any": "cannot be imported: No module named 'not_installed_any_more'",
    "acme_bad:Any": "cannot be imported: RuntimeError: no graphics card: see the manual",
    "acme_torn:Any": "cannot be imported: SyntaxError: invalid syntax",
    "acme_made:Any": "cannot be imported: AttributeError: module 'acme_made' has no attribute 'Any'",
    "acme_made:Lost": "cannot be made: FileNotFoundError: /data/words",
    "acme_made:Asks": "cannot be made: TypeError: ",
}
"""Where a plugin is, and what is said of it."""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with all of them is installed, each by its place as its name."""
    site = tmp_path / "site"
    about = site / "acme-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    places = [*BROKEN, "acme_made:Ours", "acme_made:Empty", "acme_made:Broken"]
    points = [f"{name(place)} = {place}" for place in places]
    groups = ("[rb_dspy.environments]", "[rb_dspy.embedders]")
    (about / "entry_points.txt").write_text("\n".join(line for group in groups for line in (group, *points, "")))
    for module, text in MODULES.items():
        (site / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)


def name(place: str) -> str:
    return place.replace(":", "-")


@pytest.mark.parametrize(("place", "said"), BROKEN.items())
def test_a_plugin_that_cannot_be_had_is_refused_in_one_line_whatever_it_raises(
    place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = name(place)
    environment, embeds = (f"the {what} '{plugin}' of acme {said}" for what in ("environment", "embedder"))
    for call, told in (
        (lambda: environment_family(plugin), environment),
        (lambda: TaskStream.named(plugin, n=1), environment),
        (lambda: embedder(plugin), embeds),
        (lambda: MemoryBank.open(None, scope="x", embedder=plugin), embeds),
    ):
        with pytest.raises(MissingDependency) as caught:
            call()
        assert str(caught.value).startswith(told)
        assert str(caught.value).endswith("; install what it needs, or choose another")
        assert "\n" not in str(caught.value)
    assert main(["run", "--stream", plugin, "--no-track"]) == 3
    assert capsys.readouterr().err.startswith(f"error: {environment}")


def test_a_plugin_that_is_not_what_it_is_listed_as_is_refused_with_what_it_lacks() -> None:
    family = "check, templates, tasks, make"
    for call, what, lacks in (
        (lambda: TaskStream.named("acme_made-Empty", n=1), "environment", family),
        (lambda: MemoryBank.open(None, scope="x", embedder="acme_made-Empty"), "embedder", "id, dimension, embed"),
    ):
        with pytest.raises(MissingDependency) as caught:
            call()
        told = f"the {what} 'acme_made-Empty' of acme cannot be used: Empty has no {lacks}"
        assert str(caught.value) == f"{told}; tell its maker, or choose another"


def test_an_error_of_ours_is_told_as_it_is() -> None:
    for call in (environment_family, embedder):
        with pytest.raises(ConfigError, match=r"^acme needs a key$"):
            call("acme_made-Ours")


def test_broken_environments_are_listed_with_what_is_wrong_beside_those_that_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["envs", "--json"]) == 0
    found = {each["stream"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["question"]["problem"] == ""
    for place, said in BROKEN.items():
        assert found[name(place)]["problem"].startswith(f"the environment '{name(place)}' of acme {said}")
    assert found["acme_made-Ours"]["problem"] == "acme needs a key"
    assert found["acme_made-Empty"]["problem"].startswith("the environment 'acme_made-Empty' of acme cannot be used: ")
    assert found["acme_made-Broken"]["problem"] == "OSError: no disk"
    assert main(["envs"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "reasoning-gym" in shown
    assert "RuntimeError" in shown


@pytest.mark.parametrize("given", ["minlm", "MiniLM", "all-minilm"])
def test_what_is_nearly_an_embedders_name_is_no_model_of_the_hubs(given: str) -> None:
    with pytest.raises(InputError, match=rf"^unknown embedder '{given}'; did you mean 'minilm'\? installed: "):
        embedder(given)
    for name in (f"somebody/{given}", "other-model"):
        with pytest.raises(MissingDependency, match=rf"embedding model '{name}'"):
            embedder(name)
