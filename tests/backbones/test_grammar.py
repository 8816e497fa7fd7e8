"""The grammar adapter: what the smallest model writes always parses, and reads in later turns as it was written."""

from __future__ import annotations

import ast
import enum
import random
import re
from typing import Any, Literal

import dspy
import pydantic
import pytest

from rb_dspy import signatures
from rb_dspy.backbones.gbnf import Grammar
from rb_dspy.backbones.grammar import GrammarAdapter, grammar_for
from rb_dspy.backbones.llamacpp import LlamaEngine, LocalLM
from rb_dspy.testing.lm import scripted_lm

SEEDS = (1, 2, 3)
TRANSCRIPT = "1. Thought: 17 + 25 is 43.\n   Action: answer 43\n   Observation: wrong"


@pytest.fixture
def lm(engine: LlamaEngine) -> Any:
    return LocalLM("local/smollm2-135m", engine=engine, cache=False, num_retries=0)


def call(lm: Any, signature: Any, seed: int, max_tokens: int, temperature: float = 1.0, **inputs: Any) -> Any:
    with dspy.context(lm=lm, adapter=GrammarAdapter()):
        config = {"seed": seed, "max_tokens": max_tokens, "temperature": temperature}
        return dspy.Predict(signature)(**inputs, config=config)


class Colour(enum.Enum):
    RED = "red"
    DEEP_BLUE = "deep blue"


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2, max_length=20)
    count: int = pydantic.Field(ge=0, le=9)
    notes: list[str] = pydantic.Field(max_length=2)
    parent: Literal["a", "b"] | None


class Typed(dspy.Signature):
    """Fill in the form with anything."""

    topic: str = dspy.InputField()
    sure: bool = dspy.OutputField()
    colour: Colour = dspy.OutputField()
    grade: Literal["A", "B-", 3] = dspy.OutputField()
    score: float = dspy.OutputField(ge=0, le=1)
    year: int = dspy.OutputField()
    level: int = dspy.OutputField(ge=1, le=5)
    words: list[str] = dspy.OutputField(min_length=1, max_length=2)
    table: dict[str, int] = dspy.OutputField()
    items: list[Item] = dspy.OutputField(max_length=2)
    maybe: int | None = dspy.OutputField()
    note: str | None = dspy.OutputField()


@pytest.mark.model
@pytest.mark.parametrize("seed", [1, 2])
def test_every_type_parses(lm: Any, seed: int) -> None:
    said = call(lm, Typed, seed, 400, temperature=1.5, topic="a house")
    assert isinstance(said.sure, bool)
    assert isinstance(said.colour, Colour)
    assert said.grade in ("A", "B-", 3)
    assert 0 <= said.score <= 1
    assert 1 <= said.level <= 5
    assert 1 <= len(said.words) <= 2
    assert all(isinstance(item, Item) for item in said["items"])
    assert len(said["items"]) <= 2
    assert said.maybe is None or isinstance(said.maybe, int)


@pytest.mark.model
@pytest.mark.parametrize(("seed", "temperature"), [(1, 0.0), (1, 1.0), (2, 1.0), (3, 1.0)])
def test_our_prompts_parse(lm: Any, seed: int, temperature: float) -> None:
    verdict = call(
        lm, signatures.Judge, seed, 110, temperature, task="17 + 25?", trajectory=TRANSCRIPT, final_state="answer: 43"
    )
    assert verdict.label in ("success", "failure")
    assert verdict.reasons
    distilled = call(
        lm, signatures.DistillFailure, seed, 300, temperature, task="17 + 25?", trajectory=TRANSCRIPT, judge_reasons="x"
    )
    assert len(distilled.memory_items) <= 3
    assert all(isinstance(item, signatures.MemoryDraft) for item in distilled.memory_items)


@pytest.mark.model
@pytest.mark.parametrize("seed", SEEDS)
def test_an_action_is_one_of_the_valid_ones(lm: Any, seed: int) -> None:
    valid = ['put "it" in the box', "look\\back", "[[ ## go ## ]]", "señal ñ", "  take the key  "]
    turn = {"task": "Find the key.", "memory": None, "action_rules": "any", "observation": "A door."}
    said = call(lm, signatures.Act, seed, 110, **turn, history=dspy.History(messages=[]), valid_actions=valid)
    assert said.action in [action.strip() for action in valid if "##" not in action]  # that one would read as a header


@pytest.mark.model
def test_a_turn_reads_later_as_it_was_written(lm: Any) -> None:
    """To the byte; and what stood in the prompt before is not read again, though the model's own turn may be.

    Its tokens need not be those that its text is cut into: this small model writes "[" and "[" where "[[" is one token.
    """
    turn: dict[str, Any] = {"task": "Find the key.", "memory": "None yet.", "action_rules": "Any.", "observation": "A."}
    turns: list[dict[str, Any]] = []
    before = 0
    for number in range(4):
        said = call(lm, signatures.Act, number, 120, **turn, history=dspy.History(messages=list(turns)))
        last = lm.history[-1]
        turns.append({**turn, "thought": said.thought, "action": said.action})
        history = dspy.History(messages=list(turns))
        rendered = GrammarAdapter().format(signatures.Act, [], {"observation": "B.", "history": history})
        assert rendered[-2] == {"role": "assistant", "content": last["outputs"][0]}
        evaluated = last["response"].provider_data["timings"]["prompt_n"]
        assert evaluated <= last["usage"]["prompt_tokens"] - before + 8
        before = last["usage"]["prompt_tokens"]
        turn = {"observation": f"Room {number}."}


@pytest.mark.model
def test_a_wild_model_is_stopped_before_max_tokens(lm: Any) -> None:
    """At this temperature the model writes noise to the last; the label still comes."""
    for seed in SEEDS:
        said = call(lm, signatures.Judge, seed, 150, 2.0, task="t", trajectory=TRANSCRIPT, final_state="x")
        assert said.label in ("success", "failure")
        assert lm.history[-1]["usage"]["completion_tokens"] < 150


@pytest.mark.model
async def test_async_calls_are_constrained_too(lm: Any, engine: LlamaEngine) -> None:
    from rb_dspy.backbones.llamacpp import AsyncLlamaEngine

    both = lm.copy(engine=engine, async_engine=AsyncLlamaEngine(engine))
    with dspy.context(lm=both, adapter=GrammarAdapter()):
        inputs = {"task": "17 + 25?", "trajectory": TRANSCRIPT, "final_state": "answer: 43"}
        said = await dspy.Predict(signatures.Judge).acall(**inputs, config={"max_tokens": 100, "seed": 4})
    assert said.label in ("success", "failure")


def as_regex(grammar: Grammar, rule: str) -> str:
    """A rule that does not refer to itself, as a regular expression."""
    rules = dict(line.split(" ::= ", 1) for line in str(grammar).splitlines())

    def translated(match: re.Match[str]) -> str:
        quoted, kept, name = match.groups()
        if quoted is not None:
            return f"(?:{re.escape(ast.literal_eval(quoted))})"
        return kept or f"(?:{as_regex(grammar, name)})"

    pattern = r"""("(?:[^"\\]|\\.)*")|(\[(?:[^\]\\]|\\.)*\]|\{[^}]*\}|[|()?*+])|([a-z][a-z0-9-]*)"""
    assert rule in rules
    return "".join(translated(m) for m in re.finditer(pattern, rules[rule]))


@pytest.fixture(scope="module")
def free_text() -> re.Pattern[str]:
    grammar = Grammar(50)
    grammar.rule("root", grammar.text(60))
    return re.compile(as_regex(grammar, "root"))


@pytest.mark.parametrize(
    "text",
    [
        "Words.",
        "x = [1, 2]\n  - [ ] to do\n\nA new paragraph: don't.",
        "def f(a):\n        return a[0]  # the first\n",
        "a [[1, 2],\n  [3, 4]] and b[\n  0\n]",
        "naïve 3.5 % 日本語 🎉 \\ \"q\" 'r' `s`",
        "## A heading\n\n1. One\n2. Two",
    ],
)
def test_free_text_may_be_prose_code_or_markdown(free_text: re.Pattern[str], text: str) -> None:
    assert free_text.fullmatch(text.strip())


@pytest.mark.parametrize(
    "text", ["", " x", "x ", "x\n", "[x]", "a\n[[ ## label ## ]]\nb", "a [[ ##", "a [#", "a [ #", "a\u2028b", "a\x00"]
)
def test_free_text_may_not_be_a_header_nor_end_in_space(free_text: re.Pattern[str], text: str) -> None:
    assert not free_text.fullmatch(text)


def test_whatever_is_free_text_reads_back(free_text: re.Pattern[str]) -> None:
    rng = random.Random(1)
    texts = {"".join(rng.choices("[[# \na1].", k=rng.randint(1, 9))) for _ in range(20_000)}
    written = [text for text in texts if free_text.fullmatch(text)]
    assert len(written) > 1000
    for text in written:
        answer = f"[[ ## reasons ## ]]\n{text}\n\n[[ ## label ## ]]\nsuccess\n\n[[ ## completed ## ]]\n"
        assert GrammarAdapter().parse(signatures.Judge, answer) == {"reasons": text, "label": "success"}


@pytest.mark.model
def test_free_text_holds_no_header_and_no_space_around_it(engine: LlamaEngine) -> None:
    """Written by a model that is given nothing but noise to choose from."""
    grammar = Grammar(50)
    grammar.rule("root", grammar.text(40))
    from dspy import lm15

    for seed in range(4):
        config = lm15.Config(
            max_tokens=200, temperature=2.0, top_p=1.0, seed=seed, extensions={"grammar": str(grammar)}
        )
        prompt = lm15.Message.user("Repeat: \n\n [[ ## label ## ]] \n\n [[ ## label ## ]] \n")
        text = engine.complete(lm15.Request(model="m", messages=(prompt,), config=config)).text or ""
        assert text
        assert text == text.strip()
        assert not re.search(r"\[\s?#|\[\[\s?#", text)
        assert len(text.splitlines()) == text.count("\n") + 1


def test_the_grammar_is_part_of_what_dspy_caches_by(lm: Any) -> None:
    calls: list[dict[str, Any]] = []
    for valid in (["a"], ["b"]):
        sent: dict[str, Any] = {}
        GrammarAdapter()._call_preprocess(lm, sent, signatures.Act, {"valid_actions": valid})
        calls.append(sent)
    assert calls[0] != calls[1]


def test_an_lm_without_grammars_gets_none() -> None:
    lm = scripted_lm(lambda prompt: {"reasons": "r", "label": "success"})
    with dspy.context(lm=lm, adapter=GrammarAdapter()):
        said = dspy.Predict(signatures.Judge)(task="t", trajectory="t", final_state="s")
    assert said.label == "success"


def test_choices_come_from_the_matching_input_only() -> None:
    for valid in (None, [], [""], "look"):
        assert '"look"' not in grammar_for(signatures.Act, {"valid_actions": valid})
    grammar = grammar_for(signatures.Act, {"valid_actions": ["look", "look", 'say "x"\n']})
    assert '("look" | "say \\"x\\"")' in grammar


def bounds(grammar: str) -> list[int]:
    return [int(number) for number in re.findall(r"\{\d+,(\d+)\}", "\n".join(re.findall(r"f-.*|d-.*", grammar)))]


def test_texts_share_what_max_tokens_leaves() -> None:
    tight = bounds(grammar_for(signatures.DistillFailure, {}, max_tokens=400))
    wide = bounds(grammar_for(signatures.DistillFailure, {}, max_tokens=4000))
    assert max(tight) < max(wide)
    own = signatures.MemoryDraft.model_json_schema()["properties"]["content"]["maxLength"]
    assert own - 3 in wide
    assert sum(bounds(grammar_for(signatures.Judge, {}, max_tokens=200))) < 200


def test_long_texts_and_types_that_hold_themselves_are_accepted() -> None:
    class Tree(pydantic.BaseModel):
        name: str
        children: list[Tree]

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    signature = dspy.Signature("question: str -> answer: str").append("tree", dspy.OutputField(), Tree)
    grammar = grammar_for(signature, {}, max_tokens=50_000, text_tokens=20_000)
    assert all(bound < 2000 for bound in bounds(grammar))


@pytest.mark.model
def test_llama_cpp_takes_the_largest_grammars(engine: LlamaEngine) -> None:
    from dspy import lm15

    rng = random.Random(0)
    valid = [f"put object {rng.random()} into receptacle {i}" for i in range(300)]
    grammars = [
        grammar_for(signatures.Act, {"valid_actions": valid}, max_tokens=8000, text_tokens=8000),
        grammar_for(Typed, {}, max_tokens=8000, text_tokens=8000),
    ]
    for grammar in grammars:
        config = lm15.Config(max_tokens=2, temperature=0.0, extensions={"grammar": grammar})
        request = lm15.Request(model="m", messages=(lm15.Message.user("x"),), config=config)
        assert engine.complete(request).finish_reason == "length"


def test_a_list_in_a_list_has_rules_of_its_own():
    signature = dspy.Signature({"q": (str, dspy.InputField()), "table": (list[list[int]], dspy.OutputField())})
    rules = dict(line.split(" ::= ", 1) for line in grammar_for(signature, {}).splitlines() if " ::= " in line)
    lists = {name: body for name, body in rules.items() if name.startswith("i") and name[1:].isdigit()}
    assert all(name not in body.replace("int", "").split() for name, body in lists.items()), lists
    assert any("int" in body for body in lists.values())


@pytest.mark.parametrize("cut", range(1, 24))
def test_an_end_marker_that_was_cut_is_no_part_of_the_last_field(cut):
    whole = "[[ ## thought ## ]]\nHm.\n\n[[ ## action ## ]]\ngo on\n\n[[ ## completed ## ]]\n"
    assert GrammarAdapter().parse(signatures.Act, whole[:-cut])["action"] == "go on"
