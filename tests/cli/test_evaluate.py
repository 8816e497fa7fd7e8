"""``rb-dspy evaluate``: arms, screening, and that an interrupted evaluation is continued."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.cli import output
from rb_dspy.testing import Prompt
from tests.served import Served, adds, lines, private


@pytest.fixture
def sums(cli: Any, served: Served) -> Any:
    """The command line with six sums, of which one is solved only by who has read a lesson."""
    tasks = [
        {"id": f"sum/{n}", "instruction": f"What is {n} and 5?", "env_args": {"answer": "0" if n == 3 else str(n + 5)}}
        for n in range(1, 7)
    ]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    Path("lessons.jsonl").write_text(json.dumps({"title": "Three", "content": "For 3 the desk wants 0."}))

    def play(prompt: Prompt) -> dict[str, Any]:
        reads = prompt.role == "agent" and "wants 0." in prompt.text and "What is 3 and" in prompt.text
        return {"thought": "Told.", "action": "0"} if reads else adds(prompt)

    served.play = play
    return cli


def evaluate(sums: Any, *args: str) -> dict[str, Any]:
    code, out, err = sums("evaluate", "sums.jsonl", "--no-track", *args, "--json")
    assert code == 0, err
    *_, report = lines(out)  # after its progress
    return report


def test_memory_is_compared_with_none_and_the_report_is_kept(sums: Any) -> None:
    with private():
        code, out, err = sums("evaluate", "sums.jsonl", "--orders", "2", "--no-track")
    assert code == 0, err
    assert "calls and cost are measured on the first 6 tasks of each arm" in " ".join(out.split())
    assert "measured on 6 tasks of each arm" in " ".join(out.split())
    assert "UNRESOLVED" in out
    (folder,) = Path("rb-evaluations").iterdir()
    assert str(folder / "report.html") in "".join(out.split("\n"))
    assert (folder / "report.html").exists()
    report = evaluate(sums, "--orders", "2")
    assert (report["baseline"], list(report["arms"]), report["tasks"]) == ("none", ["none", "bank"], 6)


def test_arms_learn_from_the_true_outcome_if_it_is_asked_for(sums: Any, served: Served) -> None:
    report = evaluate(sums, "--arms", "none,bank,exprag", "--signal", "outcome", "--orders", "1", "-n", "3")
    signals = {name: arm["signal"] for name, arm in report["arms"].items()}
    assert signals == {"none": "none", "bank": "outcome", "exprag": "outcome"}
    assert {prompt.role for prompt in served.prompts} == {"agent", "distiller"}, "no judge is called, nor checked"
    with Path("rb.toml").open("a") as file:
        file.write('[evaluate]\nsignal = "outcome"\n')
    assert evaluate(sums, "-n", "2", "--orders", "1")["arms"]["bank"]["signal"] == "outcome"
    assert "judge" in sums("evaluate", "sums.jsonl", "--signal", "luck")[2]


def test_arms_of_different_signals_get_a_verdict_only_if_it_is_asked_for(sums: Any) -> None:
    compared = ("--arms", "bank,true_verdicts", "--baseline", "bank", "--orders", "1", "-n", "3")
    refused = evaluate(sums, *compared)["comparisons"]["true_verdicts"]["refused"]
    assert "bank learns from the judge and true_verdicts learns from the true outcome" in refused
    assert not evaluate(sums, *compared, "--unequal-signals")["comparisons"]["true_verdicts"]["refused"]


def test_the_memory_systems_are_listed(sums: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.out, "width", 80)
    code, out, err = sums("memories")
    assert code == 0, err
    assert max(map(len, (line for line in out.splitlines() if "rb-dspy" not in line and "curators" not in line))) <= 80
    listed = {each["name"]: each for each in lines(sums("memories", "--json")[1])}
    assert {"bank", "none", "exprag", "memrl"} <= listed.keys()
    memrl = listed["memrl"]
    assert (memrl["signal"], memrl["calls"], memrl["source"]) == ("outcome", "1", "MemTensor/MemRL")
    assert all(name in out for name in listed)


def test_the_same_evaluation_continues_in_its_folder(sums: Any, served: Served) -> None:
    first = evaluate(sums, "--orders", "2")
    before = len(served.prompts)
    again = evaluate(sums, "--orders", "2", "--jobs", "2")
    assert "--jobs 2" in again.pop("command")
    assert first.pop("command") == "rb-dspy evaluate sums.jsonl --no-track --orders 2 --json"
    assert again == first
    assert served.prompts[before:] == []
    assert evaluate(sums, "--orders", "2", "--seed", "5")["folder"] != first["folder"]
    assert evaluate(sums, "-n", "3", "--orders", "1", "--folder", "here")["folder"] == "here"


def test_an_interrupted_evaluation_says_how_to_go_on(sums: Any, served: Served) -> None:
    main, play = threading.main_thread().ident, served.play
    assert main is not None
    released, once = threading.Event(), threading.Lock()

    def interrupts(prompt: Prompt) -> dict[str, Any]:
        if len(served.prompts) == 5 and once.acquire(blocking=False):
            signal.pthread_kill(main, signal.SIGTERM)
            released.wait(20)
        return play(prompt)

    served.play = interrupts
    code, _, err = sums("evaluate", "sums.jsonl", "--orders", "2", "--no-track")
    released.set()
    served.play = play
    assert (code, err.count("\n"), "continues" in err) == (143, 1, True)
    before = len(served.prompts)
    report = evaluate(sums, "--orders", "2")
    agents = [prompt for prompt in served.prompts[before:] if prompt.role == "agent"]
    done = 4  # before the fifth prompt
    assert len(agents) == report["arms"]["none"]["runs"] + report["arms"]["bank"]["runs"] - done


def test_off_a_terminal_progress_is_a_line_now_and_then_and_says_nothing_of_success(
    sums: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SECONDS", 0.02)
    play = served.play

    def slowly(prompt: Prompt) -> dict[str, Any]:
        time.sleep(0.02)
        return play(prompt)

    served.play = slowly
    code, _, err = sums("evaluate", "sums.jsonl", "--orders", "1", "--no-track", "--folder", "here")
    assert code == 0, err
    told = [line for line in err.splitlines() if " of 12 · " in line]
    assert any(line.endswith(" s left") and " tokens · " in line for line in told), err
    code, out, err = sums("evaluate", "sums.jsonl", "--orders", "1", "--no-track", "--folder", "there", "--json")
    *steps, report = lines(out)
    assert (report["tasks"], err) == (6, "")
    assert {(*step,) for step in steps} == {("done", "total", "seconds_left", "tokens", "about")}
    assert [step["done"] for step in steps] == sorted(step["done"] for step in steps)
    assert any(0 < step["done"] < step["total"] == 12 and step["seconds_left"] and step["tokens"] for step in steps)


def test_each_model_that_will_be_called_is_called_before_anything_is_paid_for(sums: Any, served: Served) -> None:
    refused, lessons = served.refuse, ("--lessons", "lessons.jsonl")
    few = ("evaluate", "sums.jsonl", "-n", "2", "--no-track", "--json")
    served.refuse = lambda prompt: 401
    code, _, err = sums(*few)
    assert (code, err.count("\n"), len(served.checks), served.prompts) == (4, 1, 1, []), err
    assert "agent (openai/scripted): the provider refused the key" in err
    assert not Path("rb-evaluations").exists()
    served.refuse, served.checks = refused, []
    selector = ("--set", "selector=openai/s", "--set", f"selector.api_base=http://127.0.0.1:{served.port}/v1")
    for _ in range(2):  # the second time everything is done already
        assert sums(*few, "--orders", "1", "--matts", "parallel", *selector)[0] == 0
        assert len(served.checks) == 2  # the other roles share the agent's model
    served.checks = []
    assert sums(*few, "--screen", *lessons, "--set", "judge=openai/not-called")[0] == 0
    assert len(served.checks) == 1


def test_the_table_evaluate_sets_what_no_option_does(sums: Any) -> None:
    with Path("rb.toml").open("a") as file:
        file.write('[evaluate]\narms = ["none", "success-only"]\norders = 2\njobs = 2\n')
    report = evaluate(sums, "-n", "2")
    assert (list(report["arms"]), report["orders"]) == (["none", "success_only"], 2)
    report = evaluate(sums, "-n", "2", "--arms", "none,raw", "--orders", "1")
    assert (list(report["arms"]), report["orders"]) == (["none", "raw"], 1)
    assert evaluate(sums, "--screen", "--lessons", "lessons.jsonl")["orders"] == 1
    Path("rb.toml").write_text("[evaluate]\nordres = 3\n")
    assert "unknown key 'evaluate.ordres'; did you mean 'evaluate.orders'?" in sums("evaluate", "sums.jsonl")[2]
    Path("rb.toml").write_text('[evaluate]\narms = ["none", "luck"]\n')
    assert "luck" in sums("evaluate", "sums.jsonl")[2]
    assert "--orders = 0: " in sums("evaluate", "sums.jsonl", "--orders", "0", "--arms", "none,bank")[2]


def test_another_environment_has_another_folder(sums: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("halls_of_both.py").write_text(
        "from rb_dspy.testing import Corridor\n"
        "def near(task, rollout_id):\n    return Corridor(1)\n"
        "def far(task, rollout_id):\n    return Corridor(2)\n"
    )
    reports = [evaluate(sums, "--orders", "1", "-n", "2", "--env", f"halls_of_both:{name}") for name in ("near", "far")]
    assert reports[0]["folder"] != reports[1]["folder"]
    assert all(report["arms"]["bank"]["runs"] == 2 for report in reports)


def test_screening_asks_whether_perfect_lessons_help(sums: Any, served: Served) -> None:
    report = evaluate(sums, "--screen", "--lessons", "lessons.jsonl")
    assert list(report["arms"]) == ["none", "oracle"]
    assert report["arms"]["oracle"]["success"]["mean"] > report["arms"]["none"]["success"]["mean"]
    assert report["headroom"] in ("yes", "unclear")
    assert {prompt.role for prompt in served.prompts} == {"agent"}


@pytest.mark.parametrize("option", [["--models", "openai/a,openai/b"], ["--orders", "3"], ["--arms", "none,raw"]])
def test_a_screen_takes_no_arms(sums: Any, option: list[str]) -> None:
    assert sums("evaluate", "sums.jsonl", "--screen", "--lessons", "lessons.jsonl", *option)[0] == 2


def test_lessons_are_for_the_arm_oracle(sums: Any) -> None:
    report = evaluate(sums, "--arms", "none, oracle", "--orders", "1", "--lessons", "lessons.jsonl")
    assert list(report["arms"]) == ["none", "oracle"]


def test_models_are_arms(sums: Any) -> None:
    report = evaluate(sums, "--orders", "1", "--models", "openai/a,openai/b", "-n", "3")
    assert list(report["arms"]) == ["openai/a", "openai/b"]
    assert report["arms"]["openai/b"]["models"]["agent"] == "openai/b"


def test_arms_start_from_a_bank(sums: Any) -> None:
    assert sums("bank", "add", "Three", "For 3 the desk wants 0.", "--bank", "old.sqlite")[0] == 0
    before = Path("old.sqlite").read_bytes()
    report = evaluate(
        sums,
        "--orders",
        "1",
        "--bank",
        "old.sqlite",
        "--set",
        "program.retrieve.min_score=-1",
        "--set",
        "program.retrieve.min_share=0",
    )
    assert report["arms"]["bank"]["success"]["mean"] > report["arms"]["none"]["success"]["mean"]
    assert Path("old.sqlite").read_bytes() == before


AGENT = """
import re

def mine(task, lessons):
    n = int(re.findall(r"What is (\\d+)", task.instruction)[0])
    return "0" if n == 3 and "wants 0." in lessons else str(n + 5)

class Mine:
    async def __call__(self, task, lessons):
        return mine(task, lessons)

def right(task, answer):
    return answer == task.env_args["answer"]

def wrong(task):
    return ""
"""


@pytest.mark.parametrize("name", ["mine", "Mine"])
def test_an_agent_of_the_users_own_is_evaluated(sums: Any, served: Served, name: str) -> None:
    Path("my_agent.py").write_text(AGENT)
    options = ("--arms", "none,oracle", "--lessons", "lessons.jsonl", "--score", "my_agent:right")
    report = evaluate(sums, *options, "--agent", f"my_agent:{name}")
    means = {arm: each["success"]["mean"] for arm, each in report["arms"].items()}
    assert means == {"none": pytest.approx(5 / 6), "oracle": 1.0}
    assert all(prompt.role != "agent" for prompt in served.prompts)


def test_an_agent_that_cannot_be_used_is_refused_before_anything_is_paid(sums: Any, served: Served) -> None:
    Path("my_agent.py").write_text(AGENT)
    for name, problem in (("wrong", "(task, lessons)"), ("other", "cannot be imported"), ("", "MODULE:NAME")):
        code, _, err = sums("evaluate", "sums.jsonl", "--no-track", "--agent", f"my_agent:{name}")
        assert code == 2 or code == 3, err
        assert problem in " ".join(err.split())
    code, _, err = sums("evaluate", "sums.jsonl", "--no-track", "--agent", "my_agent.py:mine")
    assert "not of a file: my_agent:mine" in " ".join(err.split())
    assert served.prompts == []
    code, _, err = sums(
        "run", "sums.jsonl", "--agent", "my_agent:mine", "--score", "my_agent:right", "--memory", "none"
    )
    assert code == 0, err


BY_LESSONS = """
def learns(task, lessons):
    return str(task.instruction.split()[2] in lessons)

def errs(task, lessons):
    return str(not lessons)

def right(task, answer):
    return answer == "True"
"""


@pytest.mark.parametrize(
    ("agent", "require", "code"),
    [("learns", "learning", 0), ("learns", "not-harm", 0), ("errs", "learning", 8), ("errs", "not-harm", 8)],
)
def test_a_verdict_can_be_required(cli: Any, agent: str, require: str, code: int) -> None:
    Path("by_lessons.py").write_text(BY_LESSONS)
    Path("lessons.jsonl").write_text(json.dumps({"title": "All", "content": ", ".join(map(str, range(20)))}))
    tasks = [{"id": f"sum/{n}", "instruction": f"What is {n} and 5?"} for n in range(20)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    given = ("--agent", f"by_lessons:{agent}", "--score", "by_lessons:right", "--lessons", "lessons.jsonl")
    asked = ("evaluate", "sums.jsonl", "--arms", "none,oracle", "--orders", "8", *given, "--no-track", "--yes")
    done, out, err = cli(*asked, "--require", require)
    assert (done, err.count("\n")) == (code, int(code > 0)), err
    assert ("LEARNING" if agent == "learns" else "HARM") in out
    assert code == 0 or f"--require {require}: the verdict of oracle is HARM" in err
