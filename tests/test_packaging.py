"""What is shipped: the wheel and the locks."""

import os
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = "requirements.lock"


def read_lock(name: str) -> dict[str, tuple[Requirement, str]]:
    """Package -> its requirement and the rest of its entry."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    entries = [line.partition("--hash") for line in text.splitlines() if line and not line.startswith("#")]
    requirements = [(Requirement(before), sign + after) for before, sign, after in entries]
    return {canonicalize_name(requirement.name): (requirement, rest) for requirement, rest in requirements}


def pinned(name: str) -> dict[str, str]:
    return {package: str(requirement.specifier)[2:] for package, (requirement, _) in read_lock(name).items()}


def declared(*extras: str) -> list[Requirement]:
    project = PROJECT["project"]
    texts = project["dependencies"] + [text for extra in extras for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in texts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built offline with the installed build back end."""
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(built)


def test_wheel_holds_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    information = f"rb_dspy-{PROJECT['project']['version']}.dist-info"
    names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names} == {"rb_dspy", information}
    assert {"rb_dspy/py.typed", "rb_dspy/backbones/catalog.json", f"{information}/licenses/LICENSE"} <= names
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "rb_dspy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("rb_dspy/")} == on_disk


def test_wheel_offers_the_command_and_the_plug_ins(wheel: zipfile.ZipFile) -> None:
    entry_points = wheel.read(f"rb_dspy-{PROJECT['project']['version']}.dist-info/entry_points.txt").decode()
    for group in ("[console_scripts]", "[rb_dspy.embedders]", "[rb_dspy.environments]"):
        assert group in entry_points


def test_top_level_signatures_is_a_link_into_the_package() -> None:
    assert (ROOT / "signatures").is_symlink()
    assert Path(os.readlink(ROOT / "signatures")) == Path("rb_dspy/signatures")


def test_lock_pins_every_package_with_a_hash() -> None:
    entries = read_lock(LOCK)
    assert entries
    for package, (requirement, rest) in entries.items():
        assert re.fullmatch(r"==[^=,*]+", str(requirement.specifier)), package
        assert requirement.url is None, package
        assert re.fullmatch(r"(\s*--hash=sha256:[0-9a-f]{64})+\s*", rest), package


@pytest.mark.parametrize("name", [LOCK, "requirements-torch.txt"])
def test_lock_names_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=", ""), flags=re.MULTILINE), "an option of pip's"


def test_torch_and_its_gpu_packages_are_pinned_apart() -> None:
    apart = pinned("requirements-torch.txt")
    assert apart["torch"] == "2.13.0"
    assert not {p for p in pinned(LOCK) if p in apart or p.startswith(("nvidia-", "cuda-", "triton"))}


def test_lock_satisfies_what_the_project_declares() -> None:
    versions = pinned(LOCK)
    every = declared(*PROJECT["project"]["optional-dependencies"])
    for requirement in [*every, *map(Requirement, PROJECT["build-system"]["requires"])]:
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement
