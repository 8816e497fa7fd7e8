"""``rb-dspy programs``: what is registered, what is different, who is champion and why."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rb_dspy import MemoryBank, ReasoningBank, save_program
from rb_dspy.cli.main import main
from rb_dspy.config import TrackingConfig
from rb_dspy.matts import MaTTS
from rb_dspy.plugins import embedder
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.testing import HashEmbedder
from rb_dspy.tracking import Tracker
from tests.cli.desk import CODES, staffed, write_tasks
from tests.tracking.made import BETTER, compiled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with files to register, and MLflow's store to register them in."""
    made = tmp_path_factory.mktemp("programs")
    shutil.copy(empty_store, made / "rb-mlflow.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(made)
        compiled(ReasoningBank(), gain=0.3, reach=0.1).save("better.json")
        compiled(ReasoningBank(), gain=0.4, reach=0.1, after=0.8).save("best.json")
        compiled(ReasoningBank(), gain=0.1, reach=0.3).save("unsure.json")
        compiled(ReasoningBank(), stage="agent").save("agent.json")
        save_program(ReasoningBank(), "plain.json")
        save_program(MaTTS(ReasoningBank()), "scaled.json")
    return made


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    staffed(monkeypatch)


def called(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> list[str]:
    given = main(["programs", *args])
    printed = capsys.readouterr()
    assert given == code, printed
    if code:
        assert printed.err.count("\n") == 1, printed.err
    return [" ".join(line.split()) for line in (printed.err if code else printed.out).splitlines()]


def champion(capsys: pytest.CaptureFixture[str], name: str) -> int | None:
    found = [json.loads(line) for line in called(capsys, "list", name, "--json")]
    return next((version["number"] for version in found if "champion" in version["aliases"]), None)


def test_from_a_file_to_a_champion(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = called(capsys, "register", "desk", "better.json")
    assert shown[0] == "desk version 1 is champion"
    assert shown[-1].endswith("programs show desk 1")
    shown = called(capsys, "register", "desk", "unsure.json")
    assert shown[0] == "desk version 2 is registered, not champion: held-out tasks do not say that it is better"
    assert called(capsys, "register", "desk", "plain.json")[1] == "Not compiled."

    monkeypatch.setenv("COLUMNS", "80")
    shown = called(capsys, "list", "desk")
    assert shown[0] == "program better difference, held-out"
    assert shown[1] == "desk 1 champion yes 0.300 [0.200, 0.400]"
    assert shown[2].startswith("judge accuracy · made 2")
    assert shown[3] == "desk 2 not shown 0.100 [-0.200, 0.400]"
    assert shown[5].startswith("desk 3 not measured made 2")
    assert len(shown) == 6

    assert called(capsys, "diff", "desk", "1", "2") == ["desk 1 → 2", "the prompts are the same"]
    shown = called(capsys, "diff", "desk", "3")
    assert shown[0] == "desk 3 → 1"
    assert "--- judge.predict version 3" in shown
    assert f"+{BETTER}" in shown
    assert not any("act.predict" in line for line in shown)

    (refused,) = called(capsys, "promote", "desk", "2", code=2)
    assert "held-out tasks do not say that it is better" in refused
    assert (
        "compile with more tasks or a larger --budget may show it, or make it champion all the same with --force"
        in refused
    )
    assert champion(capsys, "desk") == 1

    shown = called(capsys, "promote", "desk", "2", "--force")
    assert shown[0] == "desk version 2 is champion"
    assert "made champion by force; held-out: 0.600" in " ".join(shown)
    assert champion(capsys, "desk") == 2
    assert "made champion by force; held-out" in " ".join(called(capsys, "show", "desk"))
    assert "not shown, forced" in " ".join(called(capsys, "list", "desk"))

    assert called(capsys, "promote", "desk", "1") == ["desk version 1 is champion"], "2 was never shown to be better"
    assert champion(capsys, "desk") == 1
    shown = called(capsys, "register", "desk", "best.json")
    assert shown[0] == "desk version 4 is champion, in place of version 1"
    (refused,) = called(capsys, "promote", "desk", "1", code=2)
    assert "on the same held-out tasks the champion did as well, or better" in refused
    called(capsys, "promote", "desk", "1", "--force")
    assert called(capsys, "promote", "desk", "4", "--force") == ["desk version 4 is champion"], "no force was needed"
    assert champion(capsys, "desk") == 4
    *_, last = map(json.loads, called(capsys, "list", "desk", "--json"))
    assert last["forced"] == ""


def test_a_program_is_found_among_more_names_than_mlflow_gives_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{Path('rb-mlflow.db').resolve()}"
    client = MlflowClient(store, store)
    for number in range(100):
        client.create_registered_model(f"another-{number:03}")
    called(capsys, "register", "zmail", "plain.json")
    assert called(capsys, "show", "zmail")[0].startswith("zmail version 1")
    assert "zmail" in {json.loads(line)["name"] for line in called(capsys, "list", "--json")}
    assert "zmail" in called(capsys, "show", "nobody", code=2)[0]


def test_a_refusal_quotes_a_store_with_braces_in_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("rb-mlflow.db", "a{v}.db")
    store = ("--set", "tracking.uri=sqlite:///a{v}.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["{v}/rb-dspy"])
        patched.setenv("PATH", "")
        called(capsys, "register", "braces", "unsure.json", *store)
        assert "'{v}/rb-dspy' compile" in called(capsys, "promote", "braces", "1", *store, code=2)[0]


def test_what_is_not_comparable_waits_for_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "register", "mixed", "agent.json")
    shown = called(capsys, "register", "mixed", "better.json")
    assert shown[0] == (
        "mixed version 2 is registered, not champion: it is better than what it came from, but not known to be better"
        " than version 1"
    )
    assert champion(capsys, "mixed") == 1
    assert shown[-1].startswith("make it champion all the same: ")
    assert shown[-1].endswith(" programs promote mixed 2 --force")
    (refused,) = called(capsys, "promote", "mixed", "2", code=2)
    assert "nobody knows whether it is better than the champion, which has other prompts" in refused
    onward = "compile --program models:/mixed@champion --set tracking.uri=sqlite:///rb-mlflow.db"
    assert f"{onward}, or make it champion all the same with --force" in refused
    assert "force=True" not in refused
    assert champion(capsys, "mixed") == 1
    shown = called(capsys, "promote", "mixed", "2", "--force")
    assert shown[0] == "mixed version 2 is champion"
    assert "made champion by force" in shown[1]
    assert champion(capsys, "mixed") == 2
    listed = " ".join(called(capsys, "list", "mixed"))
    assert "tasks solved with given lessons" in listed
    assert "judge accuracy" in listed


def test_what_is_registered_here_is_what_the_library_loads(capsys: pytest.CaptureFixture[str]) -> None:
    draft = MemoryDraft(
        title="Capitals", description="When a capital is asked.", content="Name the capital of the country."
    )
    with MemoryBank.open("lessons.sqlite", scope="desk", embedder=embedder("minilm")) as bank:
        task = Task(id="t", instruction="What is the capital of Chile?")
        bank.append(task, Trajectory(task_id="t"), Verdict(label="success"), [draft])
    (line,) = called(
        capsys, "register", "taught", "better.json", "--bank", "lessons.sqlite", "--scope", "desk", "--json"
    )
    assert json.loads(line)["aliases"] == ["champion"]
    model = Tracker(TrackingConfig()).load("taught", backbones="tests.tracking.made:known")
    (answer,) = model.predict([{"instruction": "What is the capital of Peru?"}])
    answer = answer if isinstance(answer, dict) else answer.model_dump()
    assert (answer["answer"], answer["lessons"]) == ("Lima", ["Capitals"])


def test_lessons_inside_are_told_of_and_can_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    """A run has its bank's own: it says that it does not use them, and how to get them into a bank."""
    draft = MemoryDraft(title="Open first", description="When it is shut.", content="Open it, then put it in.")
    with MemoryBank.open("inside.sqlite", scope="desk", embedder=embedder("minilm")) as bank:
        task = Task(id="t", instruction="What is the capital of Chile?")
        bank.append(task, Trajectory(task_id="t"), Verdict(label="success"), [draft])
    kept = called(capsys, "register", "inside", "plain.json", "--bank", "inside.sqlite", "--scope", "desk")
    assert "1 lesson of scope desk inside" in kept
    assert not any("inside" in line for line in called(capsys, "register", "without", "plain.json")[1:])
    shown = called(capsys, "show", "inside")
    assert any(line.startswith("1 lesson of scope desk inside: ") for line in shown)
    write_tasks(Path("mail.jsonl"), 1, queues=1)
    run = ["run", "--stream", "mail.jsonl", "--program", "models:/inside/1", "--memory", "frozen"]
    assert main([*run, "--bank", "inside.sqlite", "--scope", "desk"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the 1 lesson of scope desk inside it: not used here, where the bank has its own; `" in told
    assert "programs lessons inside 1 --set tracking.uri=sqlite:///rb-mlflow.db` gets them" in told

    MemoryBank.open("own.sqlite", scope="desk", embedder=HashEmbedder()).close()
    (refused,) = called(capsys, "lessons", "inside", "1", "--out", "own.sqlite", code=2)
    assert "a database, perhaps a bank" in refused
    written = called(capsys, "lessons", "inside", "1", "--out", "had.jsonl")
    assert written[0] == "1 lesson of scope desk written to had.jsonl"
    command = written[1].partition("bank import ")[2].split()
    assert main(["bank", "import", *command, "--bank", "new.sqlite"]) == 0
    capsys.readouterr()
    with MemoryBank.open("new.sqlite", scope="desk", embedder=embedder("minilm")) as bank:
        assert [item.title for item in bank.items()] == ["Open first"]
    (line,) = called(capsys, "lessons", "inside", "--json")
    assert json.loads(line) == {"path": "lessons.jsonl", "lessons": 1, "scope": "desk", "version": 1}
    (refused,) = called(capsys, "lessons", "without", code=2)
    assert "without version 1: no lessons inside; programs register --bank puts some in" in refused


def test_a_registered_program_is_run_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Also resumed with, compiled from, and measured: all of them take what ``programs show`` says."""
    for name, told in (("first", ""), ("second", CODES)):
        program = ReasoningBank()
        program.act.predict.signature = program.act.predict.signature.with_instructions(f"Do the task. {told}")
        save_program(program, f"{name}.json")
        called(capsys, "register", "clerk", f"{name}.json")
    called(capsys, "promote", "clerk", "2", "--force")
    write_tasks(Path("mail.jsonl"), 2, queues=4)
    uri = next(line for line in called(capsys, "show", "clerk") if line.startswith("use it: ")).split()[-1]
    assert uri == "models:/clerk/2"

    def coded(program: str, scope: str) -> int:
        args = ["run", "--stream", "mail.jsonl", "-n", "8", "--program", program, "--scope", scope]
        assert main([*args, "--json"]) == 0
        *tasks, _ = map(json.loads, capsys.readouterr().out.splitlines())
        assert len(tasks) == 8
        return sum(task["answer"].startswith("Q-") for task in tasks)

    few = coded("first.json", "file")
    assert few < 8
    assert coded("models:/clerk/1", "one") == few
    assert coded(uri, "two") == coded("models:/clerk@champion", "champion") == coded("models:/clerk", "clerk") == 8
    assert main(["run", "--stream", "mail.jsonl", "-n", "1", "--program", uri, "--scope", "shown"]) == 0
    shown = capsys.readouterr().out
    assert f"prompts from {uri}" in shown
    run_id = shown.partition("· run ")[2].split()[0]
    assert f"bank rollback run:{run_id} --bank rb-bank.sqlite --scope shown" in " ".join(shown.split())
    assert main(["bank", "rollback", f"run:{run_id}", "--scope", "shown", "--yes"]) == 0
    matrix = ["backbones", "matrix", "--backbone", "clerk=any", "--tasks-file", "mail.jsonl", "--whole", "--json"]
    capsys.readouterr()
    assert main([*matrix, "--program", f"two={uri}", "--program", "one=first.json"]) == 0
    told = capsys.readouterr()
    assert "may have been compiled" not in told.err
    cells = {cell["program"]: cell["success"]["mean"] for cell in json.loads(told.out)["cells"]}
    assert (cells["two"], cells["one"]) == (1.0, few / 8)


@pytest.mark.parametrize("command", ["run", "resume", "compile"])
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("models:/nobody@champion", "no program 'nobody' is registered; known: "),
        ("models:/known/9", "known: no version '9'; known: 1"),
        ("models:/known", "known: no champion yet; known: 1"),
        ("models:/known/1/2", "expected models:/NAME@champion, or models:/NAME/2, or the name of a file"),
        ("models:/", "expected models:/NAME@champion, or models:/NAME/2, or the name of a file"),
        ("none.json", "none.json: no such file"),
        ("models:/knwn-scaled/1", "compiled with test-time scaling; say how with --matts MODE"),
    ],
)
def test_a_program_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, command: str, program: str, message: str
) -> None:
    if not (folder / "known").exists():
        called(capsys, "register", "known", "plain.json")
        called(capsys, "register", "knwn-scaled", "scaled.json", "--matts", "parallel")
        (folder / "known").touch()
    write_tasks(Path("mail.jsonl"), 2)
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")):
        pass
    data = {"run": ["--stream", "mail.jsonl"], "resume": [], "compile": ["--tasks-file", "mail.jsonl"]}[command]
    fits = "scaled" in program and command != "compile"
    assert main([command, *data, "--program", program]) == (0 if fits else 2)
    said = capsys.readouterr().err
    assert (message in said) is not fits, said


def test_a_store_that_refuses_is_one_line_without_sql(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "register", "locked", "plain.json")
    with sqlite3.connect("rb-mlflow.db") as store:
        store.execute(
            "CREATE TRIGGER full BEFORE INSERT ON registered_model_aliases BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
    try:
        (refused,) = called(capsys, "promote", "locked", "1", "--force", code=6)
    finally:
        with sqlite3.connect("rb-mlflow.db") as store:
            store.execute("DROP TRIGGER full")
    assert refused.startswith("error: promoting locked version 1: MLflow's database refused: no room; see that")
    assert not any(word in refused for word in ("SQL", "INSERT", "sqlite3", "parameters", "sqlalche"))
    assert champion(capsys, "locked") is None
    assert called(capsys, "promote", "locked", "1", "--force")[0] == "locked version 1 is champion"


@pytest.mark.parametrize("name", ["pöst", "a/b", "", " ", "a b", "a.b", "x" * 201, "models:/a", "a\n"])
def test_a_name_that_mlflow_refuses_is_refused_before_anything_is_done(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    store = ("--set", "tracking.uri=sqlite:///unmade.db")
    (told,) = called(capsys, "register", name, "none.json", *store, code=2)
    assert (
        "no program can be registered as that; expected 1 to 200 characters, each one of a-z, A-Z, 0-9, _ and -" in told
    )
    assert not Path("unmade.db").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("list", "nobody"), "no program 'nobody' is registered; known: "),
        (("show", "nobody"), "no program 'nobody' is registered"),
        (("show", "errors", "9"), "errors: no version '9'; known: 1"),
        (("show", "errors", "champion"), "errors: no champion yet; known: 1"),
        (("diff", "errors", "uncompiled"), "errors: no champion yet; known: 1"),
        (("diff", "errors", "1", "next"), "errors: no version 'next'; known: 1"),
        (("promote", "errors", "1"), "not measured"),
        (("promote", "errors", "1"), "compile saves, or make it champion all the same with --force"),
        (("promote", "errors", "9", "--force"), "errors: no version '9'"),
        (("register", "errors", "none.json"), "none.json: no such file"),
        (("register", "errors", "scaled.json"), "compiled with test-time scaling; say how with --matts MODE"),
        (("register", "errors", "plain.json", "--matts", "parallel"), "compiled without test-time scaling; leave out"),
        (("list", "--set", "tracking.uri=sqlite:///none.db"), "none.db: nothing is registered there"),
        (("list", "--set", "tracking.uri=redis://x"), "expected sqlite:///FILE.db"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, args: tuple[str, ...], message: str
) -> None:
    if not (folder / "errors").exists():
        called(capsys, "register", "errors", "plain.json")
        (folder / "errors").touch()
    assert message in called(capsys, *args, code=2)[0]
    assert not Path("none.db").exists()
