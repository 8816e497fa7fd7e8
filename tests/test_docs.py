"""What the README and the pages under ``docs`` show is so: Python, commands, settings, links."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from markdown_it import MarkdownIt

from rb_dspy.cli.main import app
from rb_dspy.config_file import load_settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}

GIVEN = """
from collections.abc import Callable
from typing import Any

import dspy
from rb_dspy import MaTTS, MemoryBank, ReasoningBank, TaskStream, signatures

program: ReasoningBank
bank: MemoryBank
stream: TaskStream
task: str
system_prompt: str
my_agent: Callable[[str, str], list[dict[str, Any]]]
"""
"""What a page takes for granted: the reader's own, and what another page has made."""


GROUP: Any = typer.main.get_command(app)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; "" for those that name none."""
    return [part.content for part in MarkdownIt().parse(text) if part.type == "fence" and part.info == language]


def commands(text: str) -> Iterator[list[str]]:
    """What stands after ``rb-dspy`` wherever a page calls it."""
    shown = "\n".join(blocks(text, "")).replace("\\\n", " ").splitlines()
    for line in [*shown, *re.findall(r"(?<!# )`(rb-dspy [^`]+)`", text)]:
        if line.startswith("rb-dspy "):
            yield shlex.split(line, comments=True)[1:]


def asked_of(words: list[str]) -> Any:
    """The command that a command line asks something of. Raises for one that there is not, and for its options."""
    command, rest = GROUP, words
    while True:
        _, rest, _ = command.make_parser(command.context_class(command)).parse_args(rest)
        if not hasattr(command, "commands"):
            return command
        name, *rest = rest
        command = command.commands[name]


MYPY = """
[mypy]
strict = true
plugins = pydantic.mypy
follow_imports = skip
ignore_missing_imports = true
[mypy-rb_dspy.*,pydantic.*]
follow_imports = silent
[mypy-numpy.*]
follow_imports = skip
follow_imports_for_stubs = true
"""
"""What other packages export is Any here: to follow all imports takes minutes."""


def test_their_python_is_what_the_package_takes(tmp_path: Path) -> None:
    files = []
    for page, text in PAGES.items():
        if code := blocks(text, "python"):
            files.append(tmp_path / f"{Path(page).stem.replace('-', '_').lower()}_page.py")
            files[-1].write_text("\n".join([GIVEN, *code]))
    assert len(files) > 5
    (tmp_path / "mypy.ini").write_text(MYPY)
    options = ["--config-file", tmp_path / "mypy.ini", "--cache-dir", ROOT / ".mypy_cache" / "docs"]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if [*commands(text)]])
def test_their_commands_are_commands(page: str) -> None:
    for words in commands(PAGES[page]):
        assert asked_of(words).name, words


def there_are(name: str, command: Any) -> Iterator[str]:
    """A command, or those of a group; hidden ones are nobody's."""
    for part, each in getattr(command, "commands", {}).items():
        yield from there_are(f"{name} {part}", each)
    if not hasattr(command, "commands") and not command.hidden:
        yield name


def listed() -> Iterator[str]:
    """The commands in the table of the page that is called every command; of a group the first alone is named whole."""
    groups = {name for name, command in GROUP.commands.items() if hasattr(command, "commands")}
    for line in PAGES["docs/command-line.md"].splitlines():
        if line.startswith("| `rb-dspy "):
            first, *others = (span.split() for span in re.findall(r"`([^`]+)`", line.split("|")[1]))
            group = [first[1]] if first[1] in groups else []
            yield from (" ".join([*group, each[0]]) for each in [first[1 + len(group) :], *others])


def test_every_command_is_on_the_page_of_commands() -> None:
    known = [each for name, command in GROUP.commands.items() for each in there_are(name, command)]
    assert len(known) > 20
    assert sorted(listed()) == sorted(known)


def test_the_reference_is_what_the_help_says() -> None:
    written = PAGES["docs/command-line.md"].partition("\n# All commands and options\n")[2]
    made = [sys.executable, "-m", "typer", "rb_dspy.cli.main", "utils", "docs", "--name", "rb-dspy"]
    done = subprocess.run(made, capture_output=True, text=True, cwd=ROOT, check=True)
    assert written == done.stdout.removeprefix("# `rb-dspy`\n"), "run make docs"


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "toml")])
def test_their_settings_are_settings(page: str, tmp_path: Path) -> None:
    for block in blocks(PAGES[page], "toml"):
        if "project" not in tomllib.loads(block):  # of a package of the reader's
            file = tmp_path / "rb.toml"
            file.write_text(block)
            load_settings(file)


@pytest.mark.parametrize("page", PAGES)
def test_their_links_lead_somewhere(page: str) -> None:
    found = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", PAGES[page])
    for target in (target for pair in found for target in pair if target and "://" not in target):
        assert (ROOT / page).parent.joinpath(target).exists(), target
