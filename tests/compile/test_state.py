"""What is saved of a program, that it comes back whole, and what is refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.files import write_json
from rb_dspy.compile.state import (
    load_program,
    predictors_of,
    prompts_of,
    save_program,
    set_prompts,
    set_state,
    signature_hash,
    state_of,
)
from rb_dspy.errors import DspyTooOld, InputError, RBError, SignatureChanged
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft
from rb_dspy.testing import scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.school import program
from tests.compile.teacher import locks, pupil
from tests.tracking import made

_ROOT = Path(__file__).parents[2]


def taught(made: MaTTS) -> MaTTS:
    """Other instructions, and demonstrations with every type that stands in ours."""
    turn = {"task": "Öffne „das“ Tor.", "memory": None, "action_rules": "a code", "observation": "A keypad.\n\t✓"}
    said = {"thought": "I try.", "action": "1"}
    draft = {"title": "Look", "description": "Where a lock is.", "content": "Look at it, \U0001f512 and all."}
    demos: dict[str, dict[str, Any]] = {
        "act.predict": {
            "history": dspy.History(messages=[{**turn, **said, "valid_actions": ["1", "2"]}]),
            "observation": "It stays shut.",
            "valid_actions": ["1", "2"],
            **said,
        },
        "judge.predict": {"task": "t", "trajectory": "r", "final_state": "f", "reasons": "so", "label": "failure"},
        "distill.success": {"task": "t", "memory_items": [MemoryDraft(**draft)]},
        "contrast.predict": {"task": "t", "analysis": "a", "memory_items": [MemoryDraft(**draft)]},
        "select.predict": {"task": "t", "candidates": "c", "analysis": "a", "choice": 2},
    }
    for name, predictor in made.named_predictors():
        predictor.signature = predictor.signature.with_instructions(
            f"{predictor.signature.instructions}\n\nFor {name}: ß"
        )
        if name in demos:
            predictor.demos = [dspy.Example(augmented=True, **demos[name])]
    return made


def asked(made: MaTTS) -> list[Any]:
    """Every prompt of one task, as a language model gets it."""
    lm = made.backbones.lm("agent")  # type: ignore[union-attr]
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        made(task=locks(1, 1)[0], bank=bank)
        made(task=locks(1, 2)[1], bank=bank)
    return sorted([p.system, [list(message) for message in p.messages]] for p in lm.engine.prompts)


def test_prompts_are_the_same_to_the_byte_in_a_new_process(tmp_path: Path) -> None:
    made = taught(program())
    save_program(made, tmp_path / "made.json")
    code = (
        "import json, sys\n"
        "from rb_dspy.compile.state import load_program\n"
        "from tests.compile.school import program\n"
        "from tests.compile.test_state import asked\n"
        "made = program()\n"
        "load_program(made, sys.argv[1])\n"
        "print(json.dumps(asked(made)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "made.json")],
        cwd=_ROOT, capture_output=True, text=True, check=False, env=_environment(),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    before = asked(made)
    assert json.loads(ran.stdout) == before
    everything = json.dumps(before, ensure_ascii=False)
    for shown in ("\U0001f512 and all.", "For act.predict: ß", "Öffne „das“ Tor."):
        assert shown in everything or shown.replace('"', '\\"') in everything


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(_ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}


def test_demonstrations_get_their_types_back(tmp_path: Path) -> None:
    save_program(taught(program()), tmp_path / "made.json")
    back = program()
    load_program(back, tmp_path / "made.json")
    demos = {name: predictor.demos for name, predictor in back.named_predictors()}
    assert isinstance(demos["act.predict"][0].history, dspy.History)
    assert isinstance(demos["distill.success"][0].memory_items[0], MemoryDraft)
    assert isinstance(demos["contrast.predict"][0].memory_items[0], MemoryDraft)
    assert demos["select.predict"][0].choice == 2
    assert prompts_of(back) == prompts_of(taught(program()))
    save_program(back, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "made.json").read_bytes()


def test_a_long_input_that_an_optimizer_cut_stays_text(tmp_path: Path) -> None:
    made = program()
    made.act.predict.demos = [dspy.Example(history="{'messages': [...\n\t\t... <TRUNCATED>", action="1", thought="")]
    save_program(made, tmp_path / "made.json")
    back = program()
    load_program(back, tmp_path / "made.json")
    assert back.act.predict.demos[0].history.startswith("{'messages'")


def test_no_language_model_is_in_the_file_even_where_one_was_pinned(tmp_path: Path) -> None:
    made = program()
    made.judge.predict.lm = scripted_lm(pupil, model="canary/model")
    save_program(made, tmp_path / "made.json")
    text = (tmp_path / "made.json").read_text()
    assert "canary" not in text
    assert "scripted" not in text


def test_what_dspy_holds_for_compiled_is_saved_as_well(tmp_path: Path) -> None:
    made = taught(program())
    made.judge._compiled = True
    made.distill._compiled = True
    assert "judge.predict" not in dict(made.named_predictors())
    assert [name for name, _ in predictors_of(made)] == [name for name, _ in program().named_predictors()]
    save_program(made, tmp_path / "made.json")
    back = program()
    load_program(back, tmp_path / "made.json")
    assert "For judge.predict" in back.judge.predict.signature.instructions
    assert made.judge._compiled


class _Asks(dspy.Signature):
    """Ask."""

    question: str = dspy.InputField(desc="what is asked")
    answer: str = dspy.OutputField(desc="what is said")


def _other(change: str) -> Any:
    fields = dict(_Asks.fields)
    if change == "renamed":
        return _Asks.delete("answer").append("reply", dspy.OutputField(desc="what is said"), str)
    if change == "type":
        return _Asks.with_updated_fields("answer", type_=int)
    if change == "description":
        return _Asks.with_updated_fields("answer", desc="a number")
    if change == "order":
        return _Asks.append("more", dspy.OutputField(desc="m"), str)
    raise AssertionError(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("renamed", "field 'answer' is gone; predict: field 'reply' is new"),
        ("type", "field 'answer' has another type"),
        ("description", r"field 'answer' has another description \(what is said -> a number\)"),
    ],
)
def test_another_signature_is_refused_and_what_differs_is_said(tmp_path: Path, change: str, said: str) -> None:
    class One(dspy.Module):
        def __init__(self, signature: Any) -> None:
            super().__init__()
            self.predict = dspy.Predict(signature)

    save_program(One(_Asks), tmp_path / "one.json")
    other = One(_other(change))
    assert signature_hash(other) != signature_hash(One(_Asks))
    with pytest.raises(SignatureChanged, match=f"predict: {said}") as caught:
        load_program(other, tmp_path / "one.json")
    assert "\n" not in str(caught.value)
    assert "compile it again" in str(caught.value)


def test_the_order_of_fields_counts_and_instructions_do_not(tmp_path: Path) -> None:
    class One(dspy.Module):
        def __init__(self, *outputs: str) -> None:
            super().__init__()
            self.predict = dspy.Predict(f"question -> {', '.join(outputs)}")

    save_program(One("a", "b"), tmp_path / "one.json")
    with pytest.raises(SignatureChanged, match="another order"):
        load_program(One("b", "a"), tmp_path / "one.json")
    other = One("a", "b")
    other.predict.signature = other.predict.signature.with_instructions("Something else.")
    load_program(other, tmp_path / "one.json")
    assert other.predict.signature.instructions != "Something else."


def test_a_field_whose_type_got_other_fields_counts(tmp_path: Path) -> None:
    import pydantic

    def made(**fields: Any) -> dspy.Module:
        kind = pydantic.create_model("Thing", **fields)

        class One(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.predict = dspy.Predict(dspy.Signature({"thing": (kind, dspy.OutputField())}))

        return One()

    save_program(made(a=(str, ...)), tmp_path / "one.json")
    with pytest.raises(SignatureChanged, match="field 'thing' has another schema"):
        load_program(made(a=(str, ...), b=(int, 0)), tmp_path / "one.json")


def test_a_program_with_other_predictors_takes_a_state_only_in_part(tmp_path: Path) -> None:
    plain = ReasoningBank()
    plain.judge.predict.signature = plain.judge.predict.signature.with_instructions("Judge well.")
    save_program(plain, tmp_path / "plain.json")
    scaled = program()
    with pytest.raises(SignatureChanged, match=r"contrast.predict is not in the file"):
        load_program(scaled, tmp_path / "plain.json")
    load_program(scaled, tmp_path / "plain.json", partial=True)
    assert scaled.judge.predict.signature.instructions == "Judge well."


def test_a_newer_dspy_is_refused(tmp_path: Path) -> None:
    made = program()
    save_program(made, tmp_path / "made.json")
    state = json.loads((tmp_path / "made.json").read_text())
    state["versions"]["dspy"] = "99.1.0"
    (tmp_path / "made.json").write_text(json.dumps(state))
    before = prompts_of(made)
    with pytest.raises(DspyTooOld, match=r"dspy 99\.1\.0, and dspy .* is installed"):
        load_program(made, tmp_path / "made.json")
    assert prompts_of(made) == before


class _Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("never"),))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(_Evil()), "pickled"),
        (b"PK\x03\x04...", "pickled"),
        (b"not json", "not JSON"),
        (b"SQLite format 3\0", r"a database, perhaps a bank, or a file of one; expected a rb_dspy program"),
        (b"[1, 2]", "not a rb_dspy program"),
        (b'{"format": "rb_dspy program", "version": 7}', "install a newer rb_dspy"),
        (b'{"format": "rb_dspy program", "version": 1}', "predictors cannot be read"),
        (b'{"format": "rb_dspy program", "version": 1, "predictors": {"a": {"instructions": 1}}}', "cannot be read"),
        pytest.param(b"[" * 100_000, r"made\.json: JSON that cannot be read \(RecursionError\); expected", id="deep"),
        pytest.param(b'{"version": ' + b"1" * 5000 + b"}", r"JSON that cannot be read \(ValueError\)", id="digits"),
    ],
)
def test_what_is_no_saved_program_is_refused(
    tmp_path: Path, content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.json").write_bytes(content)
    with pytest.raises(InputError, match=said):
        load_program(program(), tmp_path / "made.json")
    assert not (tmp_path / "never").exists()


HALF = "a\ud800b"


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": HALF},
        {"demos": [{"task": HALF}]},
        {"demos": [{"memory_items": [{HALF: 1}]}]},
    ],
)
def test_a_text_that_cannot_be_sent_is_refused_and_no_predictor_is_changed(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """JSON can write half a character, which UTF-8 cannot."""
    state = state_of(taught(program()))
    last = list(state["predictors"])[-1]
    state["predictors"][last].update(change)
    (tmp_path / "made.json").write_text(json.dumps(state))
    made = program()
    before = prompts_of(made)
    with pytest.raises(InputError, match=rf"made\.json: {last}: .*half a character, '\\ud800'") as caught:
        load_program(made, tmp_path / "made.json")
    assert str(caught.value).isprintable()
    with pytest.raises(InputError, match=rf"state: {last}: "):
        set_state(made, state)
    assert prompts_of(made) == before


def test_prompts_are_set_in_all_predictors_or_in_none() -> None:
    made = program()
    before = prompts_of(made)
    names = list(before)
    prompts = {name: {"instructions": f"For {name}.", "demos": []} for name in names}
    for spoiled in ({"instructions": HALF, "demos": []}, {"instructions": "Well.", "demos": [None]}):
        with pytest.raises((ValueError, AttributeError)):
            set_prompts(made, {**prompts, names[-1]: spoiled})
        assert prompts_of(made) == before
    set_prompts(made, prompts)
    assert prompts_of(made) == prompts


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "made.json"
    save_program(program(), target)
    kept = target.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RBError, match="No space left"):
        save_program(taught(program()), target)
    monkeypatch.undo()
    with pytest.raises(InputError, match="nothing was written"):
        write_json(target, {"reward": float("nan")})
    assert target.read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["made.json"]


def test_missing_places_are_said(tmp_path: Path) -> None:
    calls: list[tuple[Callable[[], None], str]] = [
        (lambda: load_program(program(), tmp_path / "none.json"), "no such file"),
        (lambda: save_program(program(), tmp_path / "none" / "made.json"), "no such folder"),
        (lambda: save_program(program(), tmp_path), "a folder"),
    ]
    for call, said in calls:
        with pytest.raises(InputError, match=said):
            call()


def test_prompts_may_be_set_for_some_predictors_only() -> None:
    made = program()
    before = prompts_of(made)
    set_prompts(made, {"judge.predict": {"instructions": "Judge well.", "demos": []}})
    after = prompts_of(made)
    assert [name for name in before if before[name] != after[name]] == ["judge.predict"]
    assert state_of(made)["signatures"] == signature_hash(program())


def test_the_limits_of_a_field_count_since_they_stand_in_the_prompt() -> None:
    def limited(most: int | None) -> dspy.Module:
        class Grade(dspy.Signature):
            """Grade it."""

            text: str = dspy.InputField()
            grade: int = dspy.OutputField(**({} if most is None else {"le": most}))

        return dspy.Predict(Grade)

    ten, thousand = limited(10), limited(1000)
    assert signature_hash(ten) == signature_hash(limited(10))
    assert len({signature_hash(each) for each in (ten, thousand, limited(None))}) == 3
    with pytest.raises(SignatureChanged, match=r"field 'grade' has another constraints \(.*10 -> .*1000\)"):
        set_state(thousand, state_of(ten))


@pytest.mark.parametrize("versions", [None, [], "x", {}, {"dspy": 3}, pytest.param({"dspy": "9" * 5000}, id="digits")])
def test_a_state_must_say_which_dspy_saved_it(versions: Any) -> None:
    with pytest.raises(InputError, match="does not say which dspy saved it"):
        set_state(program(), {**state_of(program()), "versions": versions})
    broken = state_of(program())
    broken["predictors"]["act.predict"]["fields"][0]["name"] = ["task"]
    with pytest.raises(InputError, match="its predictors cannot be read"):
        set_state(program(), broken)


def test_what_was_compiled_without_scaling_is_for_a_scaled_program_too() -> None:
    compiled = made.compiled(ReasoningBank())
    scaled = MaTTS(ReasoningBank())
    own = scaled.contrast.predict.signature.instructions
    assert compiled.apply(scaled) is scaled
    assert scaled.judge.predict.signature.instructions == made.BETTER
    assert scaled.contrast.predict.signature.instructions == own
    whole = made.compiled(MaTTS(ReasoningBank()))
    with pytest.raises(SignatureChanged):
        whole.apply(ReasoningBank())
    strange = ReasoningBank()
    strange.judge = made.compiled  # type: ignore[assignment]
    with pytest.raises(SignatureChanged):
        compiled.apply(MaTTS(strange))
