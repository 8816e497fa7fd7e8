"""Programs in the registry: registered, listed, promoted, loaded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import httpx
import pytest
from mlflow.pyfunc import PythonModel, scoring_server

from rb_dspy import (
    BackboneConfig,
    Backbones,
    MaTTS,
    MattsConfig,
    MemoryBank,
    ProgramConfig,
    ReasoningBank,
    RetrieveConfig,
    Task,
    Tracker,
    Verdict,
)
from rb_dspy.cli.main import main
from rb_dspy.errors import ConfigError, InputError, RBError, SignatureChanged
from rb_dspy.prompts import prompts_of, set_state
from rb_dspy.testing import Corridor, Lock, lock, locksmith, scripted_lm
from rb_dspy.tracking.runs import models_of
from rb_dspy.tracking.settings import backbone_settings
from tests.served import Served, serving
from tests.tracking.helpers import BETTER, EMBEDDER, compiled, question

KEY = "sk-hunter2"


def scripted() -> Backbones:
    return Backbones(agent=scripted_lm(locksmith, model="openai/scripted"))


@pytest.fixture
def lessons(bank: MemoryBank) -> MemoryBank:
    bank.add("Codes of acme", "What acme made opens with 4711.")
    return bank


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, since all share one registry."""
    return request.node.name.replace("[", "-").rstrip("]")


def test_a_program_comes_back_as_it_was(
    tracker: Tracker, name: str, lessons: MemoryBank, capfd: pytest.CaptureFixture[str]
) -> None:
    config = ProgramConfig(retrieve=RetrieveConfig(k=2), learn="one_call", skip_known=True)
    program = MaTTS(ReasoningBank(config, backbones=scripted()), config=MattsConfig(k=2, mode="best_of_n"))
    tracker.check(program, name, bank=lessons, embedder=EMBEDDER)
    assert tracker.programs(name) == []
    assert tracker.register(None, program, name, bank=lessons, embedder=EMBEDDER) == 1
    assert tracker.register(None, program, name) == 2
    assert "registered" not in "".join(capfd.readouterr()), "the output belongs to the caller"
    loaded = tracker.program(name, scripted(), version=1)
    assert isinstance(loaded, MaTTS)
    assert (loaded.config, loaded.retrieve.config) == (program.config, program.retrieve.config)
    assert (type(loaded.review), loaded.skip_known) == (type(program.review), True)
    assert prompts_of(loaded) == prompts_of(program)
    versions = tracker.programs(name)
    assert [(each.version, each.champion, each.lessons) for each in versions] == [(1, False, 1), (2, False, 0)]


async def test_it_answers_with_its_lessons(tracker: Tracker, name: str, lessons: MemoryBank, tmp_path: Path) -> None:
    """In the environment it was registered with: a caller chooses neither that nor the files that it opens."""
    tracker.register(None, ReasoningBank(backbones=scripted()), name, bank=lessons, embedder=EMBEDDER)
    model = tracker.load(name, scripted(), version=1)
    text = lock("acme", 1).instruction
    app = httpx.ASGITransport(scoring_server.init(model))
    for extra in ({}, {"env": "sql", "env_args": json.dumps({"database": f"{tmp_path}/no.sqlite"})}, {"env": "twc"}):
        (answer,) = model.predict([{"instruction": text, **extra}])
        assert (answer.answer, answer.lessons, answer.steps, answer.error) == ("4711", ["Codes of acme"], 1, "")
        async with httpx.AsyncClient(transport=app, base_url="http://served") as caller:
            response = await caller.post("/invocations", json={"inputs": [{"instruction": text, **extra}]})
        (served,) = response.json()["predictions"]
        assert (served["answer"], served["lessons"], served["error"]) == ("4711", ["Codes of acme"], "")
    (answer,) = model.predict([{"instruction": "", "id": "mine"}])
    assert answer.id == "mine"
    assert "instruction" in answer.error


def test_environments_may_be_a_class(tracker: Tracker, name: str) -> None:
    tracker.register(None, ReasoningBank(), name, environments="rb_dspy.testing:Corridor")
    made = tracker.program(name, scripted(), version=1).environments(question(), "0")
    assert isinstance(made, Corridor)


def test_compiled_prompts_are_registered_and_promoted_if_they_improved(
    tracker: Tracker, client: Any, name: str
) -> None:
    program = ReasoningBank(backbones=scripted())
    before = prompts_of(program)
    assert tracker.register(compiled(program), program, name) == 1
    assert prompts_of(program) == before
    loaded = tracker.program(name, scripted())
    assert loaded.judge.predict.signature.instructions == BETTER
    (version,) = tracker.programs(name)
    assert (version.champion, version.improved, version.step, version.optimizer) == (True, True, "judge", "gepa")
    assert version.held_out == str(compiled(program).held_out)
    assert tracker.register(compiled(program, low=-0.1), program, name) == 2
    assert [each.champion for each in tracker.programs(name)] == [True, False]


def test_promotion_without_an_improvement_needs_force(tracker: Tracker, name: str) -> None:
    program = ReasoningBank(backbones=scripted())
    tracker.register(None, program, name)
    with pytest.raises(InputError, match="champion"):
        tracker.load(name)
    with pytest.raises(InputError, match="force"):
        tracker.promote(name, 1)
    tracker.promote(name, 1, force=True)
    assert tracker.programs(name)[0].champion
    assert tracker.program(name, scripted())
    tracker.register(compiled(program, low=-0.1), program, name)
    with pytest.raises(InputError, match="force"):
        tracker.promote(name, 2)


def test_the_registry_may_be_large(tracker: Tracker, client: Any) -> None:
    """One page of an answer has 200 versions."""
    tags = {"rb.kind": "program"}
    client.create_registered_model("theirs")
    client.create_model_version("theirs", "file:///nowhere")
    for name, versions in (("large", 205), ("zmail", 1)):
        client.create_registered_model(name, tags=tags)
        for number in range(versions):
            client.create_model_version(name, f"file:///nowhere/{number}", tags=tags)
    client.set_registered_model_alias("large", "champion", "117")
    listed = [each for each in tracker.programs() if each.name in ("large", "theirs", "zmail")]
    assert [(each.name, each.version) for each in listed] == [*(("large", n) for n in range(1, 206)), ("zmail", 1)]
    assert [each.version for each in tracker.programs("large") if each.champion] == [117]
    assert tracker.programs("nothing") == tracker.programs("it's") == []


@pytest.mark.parametrize(
    ("uri", "version"),
    [("nothing", None), ("nothing", 3), ("models:/nothing/3", None), ("models:/nothing/3", 3), ("nothing", "latest")],
)
def test_what_is_not_there_cannot_be_loaded(tracker: Tracker, uri: str, version: Any) -> None:
    with pytest.raises(InputError, match="nothing"):
        tracker.load(uri, version=version)
    with pytest.raises(InputError, match="nothing"):
        tracker.promote("nothing", 1)


@pytest.mark.parametrize("bad", ["a/b", "a'b", "", "models:/x", "{v}"])
def test_a_name_that_mlflow_would_not_take_is_refused(tracker: Tracker, bad: str) -> None:
    with pytest.raises(InputError):
        tracker.check(ReasoningBank(), bad)
    with pytest.raises(InputError):
        tracker.register(None, ReasoningBank(), bad)


def test_a_program_for_other_signatures_is_refused(tracker: Tracker, name: str, tmp_path: Path) -> None:
    program = ReasoningBank(backbones=scripted())
    program.judge.predict.signature = program.judge.predict.signature.append("more", dspy.InputField(), str)
    tracker.register(None, program, name)
    with pytest.raises(SignatureChanged):
        tracker.load(name, version=1)


class Theirs(PythonModel):
    """A model that is noticed when it is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        Path("unpickled").touch()

    def load_context(self, context: Any) -> None:
        Path("loaded").touch()

    def predict(self, model_input: list[str]) -> list[str]:
        return model_input


CODE = """
from pathlib import Path
import mlflow
Path("imported").touch()
class Theirs(mlflow.pyfunc.PythonModel):
    def predict(self, model_input: list[str]) -> list[str]:
        return model_input
mlflow.models.set_model(Theirs())
"""


@pytest.mark.parametrize("kind", ["pickle", "code", "as ours", "elsewhere", "malformed"])
def test_nothing_of_a_foreign_model_is_loaded(
    tracker: Tracker, client: Any, store: str, name: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither unpickled nor imported nor asked for from another server, though its tags say that it is ours."""
    import mlflow

    code = Path("served.py" if kind == "as ours" else "theirs.py")
    code.write_text(CODE)
    made: Any = Theirs() if kind == "pickle" else str(code.resolve())
    source = mlflow.pyfunc.log_model(name="theirs", python_model=made, pip_requirements=[]).model_uri
    if kind == "elsewhere":
        source = "http://models.example/theirs"
    if kind == "malformed":
        Path("bad").mkdir()
        Path("bad/MLmodel").write_text("flavors: {python_function: [1]}")
        source = Path("bad").resolve().as_uri()
    name = f"theirs {kind}"
    client.create_registered_model(name, tags={"rb.kind": "program"})
    client.create_model_version(name, source, tags={"rb.kind": "program"})
    for marker in ("unpickled", "loaded", "imported"):
        Path(marker).unlink(missing_ok=True)
    chosen = ["--set", f"tracking.uri={store}"]
    assert main(["programs", "list", "--json", *chosen]) == 0
    assert name in capfd.readouterr().out
    for command in (["programs", "show", name], ["run", "--task", "a", "--program", f"models:/{name}/1"]):
        assert main([*command, "--set", "agent=openai/x", "--set", "bank.embedder=hash", *chosen]) == 2
        assert "error:" in capfd.readouterr().err
    for use in (tracker.load, tracker.program, tracker.state):
        with pytest.raises(InputError):
            use(name, version=1)
    assert not {"unpickled", "loaded", "imported"} & {each.name for each in Path.cwd().iterdir()}


def test_the_prompts_of_a_program_are_shown_and_used(
    tracker: Tracker, store: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = ReasoningBank(backbones=scripted())
    tracker.register(compiled(program), program, name)
    assert main(["programs", "show", name, "--json", "--set", f"tracking.uri={store}"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["prompts"]["judge.predict"] == {"instructions": BETTER, "demos": []}
    fresh = ReasoningBank()
    set_state(fresh, tracker.state(name))
    assert fresh.judge.predict.signature.instructions == BETTER


def _judge(task: Task, trajectory: Any) -> Verdict:
    return Verdict(label="success")


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (lambda: ReasoningBank(judge=_judge), {}),
        (lambda: ReasoningBank(environments=Lock.make), {}),
        (lambda: ReasoningBank(environments=Lock.make), {"environments": "rb_dspy.testing:Nothing"}),
        (lambda: ReasoningBank(environments=Lock.make), {"environments": "rb_dspy"}),
        (lambda: ReasoningBank(environments=Lock.make), {"environments": "rb_dspy.config:ROLES"}),
        (lambda: ReasoningBank(backbones=Backbones(agent=dspy.LM("openai/x", api_base=f"http://me:{KEY}@h/v1"))), {}),
        (lambda: ReasoningBank(), {"backbones": {"agent": 7}}),
    ],
)
def test_a_program_that_could_not_be_built_again_is_refused(
    tracker: Tracker, name: str, program: Any, options: dict[str, Any]
) -> None:
    for refuse in (tracker.check, partial(tracker.register, None)):
        with pytest.raises(InputError) as caught:
            refuse(program(), name, **options)
        assert KEY not in str(caught.value)
    assert tracker.programs(name) == []


def test_lessons_need_the_embedder_that_they_were_stored_with(tracker: Tracker, name: str, lessons: MemoryBank) -> None:
    with MemoryBank.open(None, scope="x", embedder=type(lessons.embedder)(dimension=8)) as small:
        small.add("A title", "A text.")
        with pytest.raises(InputError, match="embedder"):
            tracker.register(None, ReasoningBank(), name, bank=small, embedder=EMBEDDER)


def test_a_key_is_never_stored_and_the_rest_of_a_backbone_is(
    tracker: Tracker, store: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Served(play=locksmith)) as provider:
        lm = dspy.LM(
            "openai/mine",
            api_base=provider.address,
            api_key=KEY,
            temperature=0.3,
            max_tokens=77,
            top_p=0.5,
            extra_headers={"X-Key": KEY},
            aws_secret_access_key=KEY,
            cache=False,
            num_retries=0,
        )
        options = {"top_p": 0.4, "model_type": "chat", "extra_headers": {"X-Custom": KEY}}
        judge = BackboneConfig(model="openai/judge", api_key_env="MY_KEY", api_base=provider.address, options=options)
        both = Backbones(agent=lm)
        tracker.register(None, ReasoningBank(backbones=both), name)
        tracker.register(None, ReasoningBank(), name, backbones={"agent": lm, "judge": judge})
        files = [path for path in Path(store.removeprefix("sqlite:///")).parent.rglob("*") if path.is_file()]
        assert len(files) > 5
        assert not [path for path in files if KEY.encode() in path.read_bytes()]
        monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
        loaded = tracker.program(name, version=1).backbones.lm("agent")
        assert {
            "temperature": 0.3,
            "max_tokens": 77,
            "top_p": 0.5,
            "api_base": provider.address,
        }.items() <= loaded.kwargs.items()
        monkeypatch.setenv("MY_KEY", "sk-mine")
        own = tracker.program(name, version=2).backbones.lm("judge").kwargs
        assert (own["api_key"], own["top_p"]) == ("sk-mine", 0.4)
        (answer,) = tracker.load(name, version=1).predict([question()])
        assert answer.answer == "0000"
        assert provider.asked == [("mine", "Bearer sk-usual")]


def test_only_the_models_of_their_own_are_named_by_role() -> None:
    backbones = Backbones(agent="openai/a", judge="openai/b")
    assert models_of(backbones) == {"agent": "openai/a", "judge": "openai/b"}
    assert backbone_settings(backbones).keys() == {"agent", "judge"}
    assert models_of(Backbones(judge="openai/b")) == {"judge": "openai/b"}


def test_settings_of_this_place_come_before_the_stored_backbones(
    tracker: Tracker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.register(None, ReasoningBank(backbones=scripted()), name)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    assert tracker.program(name, version=1).backbones.lm("agent").model == "openai/scripted"
    Path("rb.toml").write_text("[bank]\nscope = 'x'\n")
    assert tracker.program(name, version=1).backbones.lm("agent").model == "openai/scripted"
    Path("rb.toml").write_text("[backbones.agent]\nmodel = 'openai/of-the-file'\n")
    assert tracker.program(name, version=1).backbones.lm("agent").model == "openai/of-the-file"
    monkeypatch.setenv("RB_DSPY_BACKBONES__AGENT__MODEL", "openai/of-the-variable")
    assert tracker.program(name, version=1).backbones.lm("agent").model == "openai/of-the-variable"
    assert tracker.program(name, scripted(), version=1).backbones.lm("agent").model == "openai/scripted"


def test_a_store_that_fails_is_an_infrastructure_error(tracker: Tracker, name: str, empty_store: Path) -> None:
    import shutil
    import sqlite3

    file = shutil.copy(empty_store, Path.cwd() / "broken.db")
    broken = Tracker(f"sqlite:///{file}")
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE registered_model_tags")
    with pytest.raises(RBError) as caught:
        broken.programs()
    assert not isinstance(caught.value, InputError | ConfigError)
    assert "\n" not in str(caught.value)
