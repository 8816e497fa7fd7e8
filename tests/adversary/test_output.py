"""Attacks by text on what is printed and written, and by an agent on exit codes."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task, evaluate, run_stream
from rb_dspy.cli.main import main
from rb_dspy.errors import RBError
from rb_dspy.testing import HashEmbedder, locksmith, scripted_lm
from tests.served import cli as cli, served as served

Cli = Callable[..., tuple[int, str, str]]


def mine(agent: Any, **more: Any) -> ReasoningBank:
    return ReasoningBank(
        agent=agent, score=lambda task, answer: True, backbones=Backbones(agent=scripted_lm(locksmith)), **more
    )


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://evil")', "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1+1", "\r=1"]
)
def test_a_formula_in_an_answer_is_text_in_a_spreadsheet(tmp_path: Path, text: str) -> None:
    tasks = [Task(id=f"{text.strip()} {n}", instruction=f"Task {n}") for n in range(2)]
    evaluate(
        {"a": mine(lambda task, lessons: text), "b": mine(lambda task, lessons: text)},
        tasks,
        orders=1,
        embedder=HashEmbedder(),
        folder=tmp_path / "e",
    )
    assert main(["evaluations", "show", str(tmp_path / "e"), "--rows", str(tmp_path / "r.csv")]) == 0
    with (tmp_path / "r.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name in ("answer", "task"):
                assert row[name].lstrip()[:1] not in tuple("=+-@"), row[name]


@pytest.mark.parametrize("name", ["r.csv", "r.parquet"])
def test_rows_of_any_text_can_be_written(tmp_path: Path, name: str) -> None:
    tasks = [Task(id=f"t{n}", instruction=f"Task {n}") for n in range(2)]

    def agent(task: Task, lessons: str) -> str:
        return "half a pair \ud83d, \0 and \x1b[31m"

    evaluate({"a": mine(agent), "b": mine(agent)}, tasks, orders=1, embedder=HashEmbedder(), folder=tmp_path / "e")
    assert main(["evaluations", "show", str(tmp_path / "e"), "--rows", str(tmp_path / name)]) == 0


@pytest.mark.parametrize("name", ["missing/r.csv", "missing/r.parquet", "."])
def test_rows_that_cannot_be_written_are_an_error_of_ours(tmp_path: Path, name: str) -> None:
    tasks = [Task(id=f"t{n}", instruction=f"Task {n}") for n in range(2)]
    evaluate(
        {"a": mine(lambda task, lessons: "x"), "b": mine(lambda task, lessons: "x")},
        tasks,
        orders=1,
        embedder=HashEmbedder(),
        folder=tmp_path / "e",
    )
    assert main(["evaluations", "show", str(tmp_path / "e"), "--rows", str(tmp_path / name)]) in (2, 6)


@pytest.mark.parametrize("arm", ["[/red]", "[bold]x", "a|b", "<script>alert(1)</script>", "\x1b[31mred", "`x`\n# y"])
def test_the_name_of_an_arm_is_text(tmp_path: Path, arm: str, capsys: Any) -> None:
    tasks = [Task(id=f"<b>t{n}</b>|[/red]", instruction=f"Task {n}") for n in range(2)]
    try:
        report = evaluate(
            {arm: mine(lambda task, lessons: "x"), "b": mine(lambda task, lessons: "x")},
            tasks,
            orders=1,
            embedder=HashEmbedder(),
            folder=tmp_path / "e",
        )
    except RBError:
        return
    assert main(["evaluations", "show", str(tmp_path / "e")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    if arm in ("[/red]", "[bold]x"):
        assert arm in shown.replace("\n", "")
    assert main(["evaluations", "list", str(tmp_path)]) == 0
    assert main(["evaluations", "show", str(tmp_path / "e"), tasks[0].id]) == 0
    assert "\x1b" not in capsys.readouterr().out
    html = (tmp_path / "e" / "report.html").read_text()
    assert "<script>alert" not in html
    assert "<b>t0" not in html
    markdown = report.to_markdown()
    assert "<script>" not in markdown
    if arm == "a|b":
        assert "a|b" not in next(line for line in markdown.splitlines() if line.startswith("|")).replace("\\|", "")


def test_a_lesson_is_text_in_the_report(tmp_path: Path) -> None:
    from tests.adversary.test_counts import lock

    evil = "<img src=x onerror=alert(1)> | [x](javascript:alert(1)) \x1b[31m ![](http://evil/x.png)"
    from rb_dspy.evaluation import Arm
    from rb_dspy.testing import scripted_program

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as start:
        start.add(evil, "What Abus made opens with 1234.")
        program = scripted_program()
        arms = {"none": Arm(program, "none"), "bank": Arm(program, "bank", bank=start)}
        report = evaluate(
            arms, [lock("Abus", n, "1234") for n in range(4)], orders=2, embedder=HashEmbedder(), folder=tmp_path
        )
    assert report.lessons, "the lesson is in the report"
    html = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in html
    assert "](javascript" not in report.to_markdown()
    assert "![](http" not in report.to_markdown()
    assert "<img src=x" not in report.to_markdown()
    assert "\x1b" not in report.to_markdown()


def write_agent(body: str) -> str:
    name = f"mine{abs(hash(body)) % 10**9}"
    Path(f"{name}.py").write_text(
        f"import sys, asyncio\ndef agent(task, lessons):\n    {body}\ndef right(task, answer):\n    return True\n"
    )
    return name


@pytest.mark.parametrize(
    "body", ["sys.exit(0)", "raise asyncio.CancelledError", "raise KeyboardInterrupt", "raise StopIteration"]
)
def test_an_agent_that_exits_does_not_meet_a_requirement(cli: Cli, body: str) -> None:
    mine = write_agent(body)
    code, out, err = cli(
        "evaluate",
        "tasks.jsonl",
        "--agent",
        f"{mine}:agent",
        "--score",
        f"{mine}:right",
        "--orders",
        "1",
        "--require",
        "learning",
        "-y",
    )
    assert code != 0, out + err


@pytest.mark.parametrize("body", ["sys.exit(0)", "raise asyncio.CancelledError"])
def test_a_run_of_an_agent_that_exits_counts_its_tasks(cli: Cli, body: str) -> None:
    mine = write_agent(body)
    code, out, err = cli("run", "tasks.jsonl", "--agent", f"{mine}:agent", "--score", f"{mine}:right")
    assert code == 5, (code, out + err)


def test_a_bank_with_a_password_in_the_settings_is_not_printed(cli: Cli) -> None:
    url = "postgresql://ann:s3cret/pass@127.0.0.1:1/db"
    for args in (
        ["run", "tasks.jsonl", "--bank", url],
        ["evaluate", "tasks.jsonl", "--on", url, "--orders", "1"],
        ["evaluate", "tasks.jsonl", "--on", url, "--enqueue"],
        ["bank", "copy", url, "x.sqlite"],
        ["doctor", "--bank", url],
    ):
        code, out, err = cli(*args)
        assert code != 0
        assert "s3cret" not in out + err, (args, out, err)


def test_a_foreign_rb_toml_cannot_run_up_a_bill_or_send_elsewhere(cli: Cli) -> None:
    text = Path("rb.toml").read_text()
    Path("rb.toml").write_text(text + "\n[evaluate]\njobs = 5000\n[compile]\nthreads = 5000\n")
    _code, out, err = cli("config", "evaluate")
    print(out, err)


def test_a_key_in_a_lesson_or_thought_is_not_in_the_folder_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")

    def agent(task: Task, lessons: str) -> Any:
        return {
            "steps": [{"thought": "hunter2-hunter2", "action": "hunter2-hunter2", "observation": "hunter2-hunter2"}],
            "answer": "hunter2-hunter2",
        }

    tasks = [Task(id=f"t{n}", instruction="Use hunter2-hunter2", env_args={"x": 1}) for n in range(2)]
    evaluate(["none", "bank"], tasks, program=mine(agent), orders=1, embedder=HashEmbedder(), folder=tmp_path / "e")
    with MemoryBank.open(tmp_path / "b.sqlite", scope="default", embedder=HashEmbedder()) as opened:
        run_stream(mine(agent), tasks, opened, run_id="r", journal=tmp_path / "j")
    for each in tmp_path.rglob("*"):
        if each.is_file():
            assert b"hunter2" not in each.read_bytes(), each


def test_the_truth_is_not_in_the_journal_or_bank(tmp_path: Path) -> None:
    def score(task: Task, answer: str) -> bool:
        if task.id == "t1":
            raise ValueError(f"expected {task.env_args['secret']}")
        return answer == task.env_args["secret"]

    seen: list[str] = []

    def script(prompt: Any) -> Any:
        seen.append(prompt.text)
        return locksmith(prompt)

    program = ReasoningBank(
        agent=lambda task, lessons: seen.append(repr(task) + str(task.model_dump()) + lessons) or "x",
        score=score,
        backbones=Backbones(agent=scripted_lm(script)),
    )
    tasks = [Task(id=f"t{n}", instruction=f"Task {n}", env_args={"secret": "TRUTH-42"}) for n in range(3)]
    with MemoryBank.open(tmp_path / "b.sqlite", scope="default", embedder=HashEmbedder()) as opened:
        run_stream(program, tasks, opened, run_id="r", journal=tmp_path / "j")
        texts = [
            str(each.items) + str(each.trajectories) + str(each.verdicts) + each.note for each in opened.experiences()
        ]
    assert not any("TRUTH-42" in each for each in [*seen, *texts])
