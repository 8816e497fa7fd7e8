"""A compile as a run: the scores, the candidates, the prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import Backbones, ReasoningBank, TaskStream
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.result import Compiled
from rb_dspy.compile.scores import Estimate
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.schema import RoleUsage
from rb_dspy.stream import Streams
from rb_dspy.tracking import Tracker
from tests.tracking.made import BETTER, capitals, compiled, questions, secretive
from tests.worlds import backbones


def streams() -> Streams:
    tasks = capitals(4).tasks
    parts = [TaskStream(name, tasks[n : n + 1]) for n, name in enumerate(("capitals", "capitals-dev", "capitals-held"))]
    return Streams(*parts, check=False)


@pytest.fixture(scope="module")
def run(tracker: Tracker, client: Any) -> Any:
    program = ReasoningBank(backbones=backbones(questions))
    with tracker.compile_run("capitals", program, streams(), params={"threads": 1}) as run:
        for calls, best in ((0, None), (8, 0.5), (16, 0.7)):
            usage = {"judge": RoleUsage(calls=calls, prompt_tokens=100 * calls)}
            run.on_progress(Progress(calls, 40, best, usage=usage, seconds=float(calls)))
        run.log_compiled(compiled(program))
    return client.get_run(run.id)


def text(client: Any, run: Any, name: str) -> str:
    return Path(client.download_artifacts(run.info.run_id, name)).read_text()


def test_scores_are_logged_with_their_intervals(run: Any) -> None:
    assert (run.info.run_name, run.info.status) == ("compile capitals", "FINISHED")
    found = run.data.metrics
    assert (found["held_out/before"], found["held_out/after"]) == (pytest.approx(0.5), 0.7)
    assert (found["held_out/difference_low"], found["held_out/difference_high"]) == pytest.approx((0.1, 0.3))
    assert found["dev/after"] == 0.7
    assert (found["usage/reflection.calls"], found["total/seconds"]) == (4, 6.5)
    said = run.data.params
    assert (said["optimizer"], said["stage"], said["budget"], said["metric_calls"]) == ("gepa", "judge", "40", "38")
    assert (said["hash.held_out"], said["seed"], said["threads"]) == ("feed", "7", "1")
    assert run.data.tags["rb.improved"] == "true"


def test_prompts_of_any_name_are_registered(tracker: Tracker, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    with tracker.compile_run("Städte & co.", program, streams()) as run:
        run.log_compiled(compiled(program))
    assert client.get_run(run.id).info.run_name == "compile Städte & co."
    assert client.get_prompt_version("St-dte-co.judge.predict", 2).template == BETTER
    assert not caplog.records


def test_its_page_says_what_came_of_it(run: Any) -> None:
    said = run.data.tags["mlflow.note.content"].split("\n")
    assert said[0] == "Held-out tasks say: **better**"
    (row,) = [line for line in said if line.startswith("held-out ")]
    before, after, difference, tasks = re.split("  +", row)[1:]
    assert (before[:4], after[:4], difference[:5], tasks) == ("0.50", "0.70", "+0.20", "20")
    assert said[said.index("```diff") + 1] == "--- judge.predict before"
    assert any(line.startswith("+") and line[1:] in BETTER for line in said)
    (search,) = [line for line in said if line.startswith("`search/best`")]
    assert "`search/score` of the candidates below this run" in search
    assert search.endswith("do not compare them.")


def test_what_the_search_measures_has_names_of_its_own(run: Any, client: Any) -> None:
    """Candidates are rated on what the optimizer chose by; dev, before and after, is another quantity."""
    children = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    assert [set(child.data.metrics) for child in children] == [{"search/score"}] * 2
    assert not [name for name in run.data.metrics if name in ("dev/score", "compile/best")]


@pytest.mark.parametrize(
    ("agent", "reflection", "unknown"),
    [
        ("openai/gpt-4o-mini", None, None),
        ("openai/gpt-4o-mini", "unheard/of", "reflection"),
        ("unheard/of", "openai/gpt-4o-mini", "judge"),
        ("unheard/of", None, "judge, reflection"),
    ],
)
def test_what_a_compile_cost_is_known_where_every_price_is(
    tracker: Tracker, client: Any, agent: str, reflection: str | None, unknown: str | None
) -> None:
    program = ReasoningBank(backbones=backbones(questions, model=agent))
    proposer = None if reflection is None else backbones(questions, model=reflection).lm("agent")
    with tracker.compile_run("capitals", program, streams(), reflection=proposer) as run:
        run.log_compiled(compiled(program))
    found = client.get_run(run.id).data
    into, out = 0.15e-6, 0.6e-6
    known = {"judge": 9000 * into + 800 * out, "reflection": 4000 * into + 900 * out}
    known = {role: usd for role, usd in known.items() if role not in (unknown or "")}
    assert {role: found.metrics.get(f"usage/{role}.usd") for role in known} == pytest.approx(known)
    assert found.tags.get("rb.no_price") == unknown
    assert found.metrics.get("total/usd") == (None if unknown else pytest.approx(sum(known.values())))


def test_a_compile_that_was_found_done_costs_nothing(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    result.found_done = True
    with tracker.compile_run("capitals", program, streams()) as run:
        run.log_compiled(result)
    found = client.get_run(run.id)
    assert found.data.metrics["held_out/after"] == 0.7
    assert not [name for name in found.data.metrics if name.startswith(("usage/", "cost/")) or name == "total/seconds"]
    assert found.data.tags["rb.found_done"] == "true"
    assert "It was found done: this run asked nothing" in found.data.tags["mlflow.note.content"]
    assert "rb.found_done" not in run_of_its_own(tracker, client).data.tags


def test_a_compile_that_is_given_again_leads_to_its_first_run(tracker: Tracker, client: Any, tmp_path: Path) -> None:
    """The candidates are there, and once; where the first was not tracked they are with the second."""
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    result.seconds = 77.5
    result.save(tmp_path / "kept.json")

    def logged(result: Compiled) -> Any:
        with tracker.compile_run("again", program, streams()) as run:
            run.log_compiled(result)
        found = client.get_run(run.id)
        below = f"tags.mlflow.parentRunId = '{run.id}'"
        return found.data, len(client.search_runs([found.info.experiment_id], below)), run.id

    again = Compiled.load(tmp_path / "kept.json").model_copy(update={"found_done": True})
    untracked = again.model_copy(update={"seconds": 78.5})
    _, candidates, first = logged(result)
    assert candidates == 2
    for _ in range(2):
        data, candidates, _ = logged(again)
        assert (data.tags["rb.found_done"], data.tags["rb.compile_run"], candidates) == ("true", first, 0)
        assert f"the run {first} has its cost and its candidates" in data.tags["mlflow.note.content"]
        assert data.metrics["held_out/after"] == 0.7
    data, candidates, second = logged(untracked)
    assert ("rb.compile_run" in data.tags, candidates) == (False, 2)
    assert logged(untracked)[0].tags["rb.compile_run"] == second


def run_of_its_own(tracker: Tracker, client: Any) -> Any:
    program = ReasoningBank(backbones=backbones(questions))
    with tracker.compile_run("capitals", program, streams()) as run:
        run.log_compiled(compiled(program))
    return client.get_run(run.id)


def test_a_page_says_where_nothing_came_of_it_and_is_not_too_long(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    after = {**result.prompts_before, "judge.predict": {"instructions": "a ``` b\n" * 5_000, "demos": []}}
    for prompts, last in ((result.prompts_before, "No prompt has changed."), (after, "```")):
        made = result.model_copy(update={"prompts_after": prompts})
        with tracker.compile_run("pages", program, streams()) as run:
            run.log_compiled(made)
        said = client.get_run(run.id).data.tags["mlflow.note.content"]
        assert said.split("\n")[-1] == last
        assert said.count("```") == (4 if last == "```" else 2)
        assert len(said) < 8_000  # what MLflow takes


def test_a_long_line_of_a_prompt_is_wrapped_on_its_page(tracker: Tracker, client: Any) -> None:
    """Else it pushes the page's tables out of sight."""
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    words = " ".join(f"word{n}" for n in range(100))
    after = {**result.prompts_before, "judge.predict": {"instructions": words, "demos": []}}
    with tracker.compile_run("wide", program, streams()) as run:
        run.log_compiled(result.model_copy(update={"prompts_after": after}))
    lines = client.get_run(run.id).data.tags["mlflow.note.content"].split("```diff")[1].split("\n")
    added = [line[1:] for line in lines if line.startswith("+") and "word" in line]
    assert "".join(added).split() == words.split()
    assert len(added) > 5
    assert max(map(len, lines)) <= 72


def test_what_nothing_broke_in_is_clean(run: Any) -> None:
    said, found = run.data.tags, run.data.metrics
    assert (said["rb.clean"], said["rb.changed"]) == ("true", "judge.predict")
    counts = ("total/broken", "total/proposals_failed", "held_out/broken_before", "dev/broken_after")
    assert [found[name] for name in counts] == [0, 0, 0, 0]
    assert (found["held_out/tasks"], found.get("held_out/clean")) == (20, None)
    assert (run.data.params["version.dspy"], run.data.params["examples.dev"]) == ("3.4.1", "6")


@pytest.mark.parametrize(
    ("what", "metric"),
    [
        ("metric calls", "total/broken"),
        ("proposals", "total/proposals_failed"),
        ("scores before", "dev/broken_before"),
        ("scores after", "held_out/broken_after"),
    ],
)
def test_what_broke_is_counted_and_not_clean(tracker: Tracker, client: Any, what: str, metric: str) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    scores = result.scores
    broke: dict[str, Any] = {
        "metric calls": {"broken": 3},
        "proposals": {"proposals_failed": 3},
        "scores before": {
            "scores": scores.model_copy(update={"dev": scores.dev.model_copy(update={"broken_before": 3})})
        },
        "scores after": {
            "scores": scores.model_copy(
                update={
                    "held_out": scores.held_out.model_copy(
                        update={"broken_after": 3, "clean": Estimate(mean=0.1, low=-0.2, high=0.4, tasks=17)}
                    )
                }
            )
        },
    }[what]
    with tracker.compile_run("broken", program, streams()) as going:
        going.log_compiled(result.model_copy(update=broke))
    found = client.get_run(going.id)
    assert found.data.metrics[metric] == 3
    assert found.data.tags["rb.clean"] == "false"
    if what == "scores after":
        kept = [found.data.metrics[f"held_out/clean{end}"] for end in ("", "_low", "_high")]
        assert kept == [0.1, -0.2, 0.4]
        assert found.data.tags["rb.improved"] == "false"


def test_the_best_so_far_is_at_its_metric_call(run: Any, client: Any) -> None:
    points = client.get_metric_history(run.info.run_id, "search/best")
    assert sorted((point.step, point.value) for point in points) == [(8, 0.5), (16, 0.7)]


def test_the_three_streams_are_inputs(run: Any) -> None:
    given = {each.tags[0].value: each.dataset for each in run.inputs.dataset_inputs}
    assert set(given) == {"compile", "dev", "held_out"}
    assert given["dev"].digest == streams().dev.digest


def test_candidates_are_runs_below_it(run: Any, client: Any) -> None:
    found = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    scores = {child.info.run_name: child.data.metrics["search/score"] for child in found}
    assert scores == {"candidate 0": pytest.approx(0.5), "candidate 1": 0.7}
    best = next(child for child in found if child.info.run_name == "candidate 1")
    assert text(client, best, "prompts/judge.predict.txt") == BETTER
    table = json.loads(text(client, run, "candidates.json"))
    assert table["columns"][:2] == ["score", "candidate"]
    assert [row[1] for row in table["data"]] == [1] * 4 + [0] * 4, "the best first, a row for each predictor"


def test_the_difference_and_the_result_can_be_read_again(run: Any, client: Any, tmp_path: Path) -> None:
    assert f"+{BETTER}" in text(client, run, "prompts.diff")
    again = Compiled.load(client.download_artifacts(run.info.run_id, "compiled.json", str(tmp_path)))
    assert again.prompts_after["judge.predict"]["instructions"] == BETTER


def test_instructions_are_versions_of_prompts(run: Any, client: Any) -> None:
    versions = {version.version: version for version in client.search_prompt_versions("capitals.judge.predict")}
    assert versions[2].template == BETTER
    assert versions[1].template != BETTER
    assert [version.version for version in client.search_prompt_versions("capitals.act.predict")] == [1]
    linked = json.loads(run.data.tags["mlflow.linkedPrompts"])
    assert {"name": "capitals.judge.predict", "version": "2"} in linked


def test_the_same_prompts_again_are_no_new_versions(tracker: Tracker, client: Any, run: Any) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    with tracker.compile_run("capitals", program, streams()) as again:
        again.log_compiled(compiled(program))
    assert len(client.search_prompt_versions("capitals.judge.predict")) == 2


def test_an_evaluation_takes_what_there_is(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    with tracker.evaluation("matrix", program, capitals(2), params={"orders": 3}) as run:
        run.metrics({"seed/success": 0.5, "compiled/success": 0.7, "nothing": None, "broken": float("nan")})
        run.table("matrix.json", {"program": ["seed", "compiled"], "success": [0.5, 0.7]})
        run.table("more.json", {"x": [1]})
    found = client.get_run(run.id)
    assert found.data.metrics == {"seed/success": 0.5, "compiled/success": 0.7}
    assert found.data.params["orders"] == "3"
    assert len(json.loads(found.data.tags["mlflow.loggedArtifacts"])) == 2
    assert found.inputs.dataset_inputs[0].dataset.digest == capitals(2).digest


def test_an_evaluation_takes_a_list_of_tasks(tracker: Tracker, client: Any) -> None:
    with tracker.evaluation("matrix", stream=[*capitals(2)]) as run:
        pass
    assert client.get_run(run.id).inputs.dataset_inputs[0].dataset.digest == capitals(2).digest
    with pytest.raises(InputError), tracker.evaluation("none", stream="mail.jsonl"):
        pass


def test_a_role_that_nobody_plays_hides_no_other(tracker: Tracker, client: Any) -> None:
    """For an agent of one's own a program has a judge alone: it is named, and its key is not."""
    program = ReasoningBank(backbones=Backbones(judge=dspy.LM("openai/judge", api_key="plain word")))
    with pytest.raises(ValueError, match="plain word"), tracker.evaluation("alone", program) as run:
        raise ValueError("refused: plain word")
    kept = client.get_run(run.id).data
    assert {name: value for name, value in kept.params.items() if name.startswith("lm.")} == {
        "lm.judge": "openai/judge"
    }
    assert kept.tags["error"] == "ValueError: refused: [hidden]"


@pytest.mark.parametrize("told", [True, False])
def test_errors_of_who_proposes_are_kept_without_key_and_address(tracker: Tracker, client: Any, told: bool) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    proposer = secretive(9, "canary77").lm("agent")
    said = "failed to connect to 127.0.0.1:9" + ", with key-canary77" * told
    with (
        pytest.raises(BackboneError, match="failed to connect"),
        tracker.compile_run("down", program, streams(), reflection=proposer if told else None) as run,
    ):
        raise BackboneError(said)
    kept = client.get_run(run.id).data.tags["error"]
    assert kept == "failed to connect to [hidden]" + ", with [hidden]" * told
