"""Questions from the user's own file."""

import random
import unicodedata

import pytest
from hypothesis import given, strategies as st

from rb_dspy.environments.question import Question
from rb_dspy.errors import InputError, RBError
from rb_dspy.schema import Outcome, Task


def answered(said: str, /, **env_args) -> Outcome | None:
    task = Task(id="q", instruction="What is it?", env_args=env_args)
    environment = Question().make(task)
    environment.reset(task)
    assert environment.step(said)[1]
    return environment.outcome()


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Paris", "Paris"),
        ("  paris.\n", "Paris"),
        ("<answer>Paris</answer>", "paris"),
        ("```\nParis\n```", "Paris"),
        ('"New   York"', "new york"),
        ("ＰＡＲＩＳ", "paris"),
        ("42", 42),
        ("-3", "-3"),
        ("0.5", 0.5),
        (".5.", ".5"),
        ("50%", "50%"),
    ],
)
def test_an_answer_is_right_after_normalisation(answer, right):
    assert answered(answer, answer=right) == Outcome(reward=1.0, success=True)


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Paris, France", "Paris"), ("", "Paris"), ("3", "-3"), ("50", "50%"), ("5", ".5"), ("1", "11")],
)
def test_a_near_answer_is_wrong(answer, right):
    assert answered(answer, answer=right).reward == 0.0


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ("~p", "p"),
        ("!done", "done"),
        ("5!", "5"),
        ("n!", "n"),
        ("/etc", "etc"),
        ("*.txt", "txt"),
        ("*args", "args"),
        ("*foo*", "foo"),
        ("__init__", "init"),
        ("=A1", "A1"),
        ("@bob", "bob"),
        (":root", "root"),
        (".gitignore", "gitignore"),
        ("x'", "x"),
        ('5"', "5"),
        ("&x", "x"),
        ("a^", "a"),
        ("|x|", "x"),
        ("!=", "="),
        ("$5", "5"),
    ],
)
def test_a_mark_of_the_answers_own_is_part_of_it(right, other):
    for said in (right, f" {right}. ", f"**{right}**", f'"{right}"', f"\\boxed{{{right}}}", f"`{right}`."):
        assert answered(said, answer=right).success, said
    for said in (other, f" {other}. ", f"\\boxed{{{other}}}", f"`{other}`."):
        assert not answered(said, answer=right).success, said


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("~p", "p"),
        ("~5", "5"),
        ("!done", "done"),
        ("/etc", "etc"),
        ("*.txt", "txt"),
        ("*args", "args"),
        ("=A1", "A1"),
        ("a_", "a"),
        ("@bob", "bob"),
        ("|x|", "x"),
        ("#1", "1"),
        (".5", "5"),
        (",5", "5"),
        ("$5", "5"),
        ("2**", "2"),
    ],
)
def test_a_mark_that_changes_what_was_said_is_not_cut(said, right):
    assert not answered(said, answer=right).success


@pytest.mark.parametrize("right", ["&", "*", "?", "!=", "...", ".", "'", "_", "\\", "**", "$", "``"])
def test_an_answer_may_be_all_marks(right):
    for said in (right, f" {right}\n", f'"{right}"', f"\\boxed{{{right}}}"):
        assert answered(said, answer=right).success, said
    for said in ("", "x", "=", right + "x"):
        assert not answered(said, answer=right).success, said


@pytest.mark.parametrize(
    "said",
    [
        "\\boxed{%s}",
        "$%s$",
        "$$%s$$",
        "\\(%s\\)",
        "\\[ %s \\]",
        "$\\boxed{%s}$.",
        "\\boxed{\\text{%s}}",
        "**$%s$**",
        "*%s*",
        "_%s_",
        "***%s***.",
        "**%s.**",
        "* %s",
        "= %s",
        ": %s",
        "'%s'",
        "“%s”",
        "`%s`!",
        "%s?",
        "<answer>**%s**</answer>",
    ],
)
@pytest.mark.parametrize("right", ["42", "-3.5", "1,000", "New York", "C++", "5!", "~p", "[1, 2]", "x'", "don't"])
def test_what_markdown_latex_and_sentences_put_around_an_answer_is_cut(said, right):
    assert answered(said % right, answer=right).success
    assert not answered(said % f"{right} 7", answer=right).success


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("Paris.", "Paris"),
        ('"New York".', "new york"),
        ("**Paris**", "Paris"),
        ("$42$", "42"),
        ("\\boxed{42}", "42.0"),
        ("`-3`", "-3"),
        ("Yes!", "yes"),
        ("Hello, World!", "hello, world"),
        ("[1, 2].", "[1, 2]"),
        ("<answer>Paris</answer>", "Paris"),
        ("https://example.com/", "https://example.com"),
        ("src", "src/"),
        ("... and so on", "and so on"),
        ("42", "=42"),
    ],
)
def test_a_mark_that_only_ends_or_quotes_the_right_answer_may_be_missing(right, said):
    assert answered(said, answer=right).success


_PLAIN = st.from_regex(r"[A-Za-z]{2,8}( [a-z]{2,5})?|-?[1-9][0-9]{0,5}(\.[0-9]{1,3})?", fullmatch=True)
_AROUND = st.sampled_from(
    ["%s", '"%s"', "'%s'", "`%s`", "**%s**", "*%s*", "_%s_", "%s.", "%s!", " %s\n", "... %s", "%s;"]
)


@given(_PLAIN, st.lists(_AROUND, max_size=4))
def test_marks_around_a_plain_answer_make_no_difference(right, around):
    said = right
    for each in around:
        said = each % said
    assert answered(said, answer=right).success
    assert not answered(said.replace(right, f"{right}7"), answer=right).success


def test_marks_are_put_in_order_but_for_so_many_that_it_is_no_text():
    acute, below = "\u0301", "\u0316"
    assert answered(f"e{acute}{below}", answer=f"e{below}{acute}").success
    assert answered(f"é{below * 3}", answer=f"e{below * 3}{acute}").success
    many = f"e{acute * 5000}{below * 4999}"
    assert answered(many, answer=many).success
    assert not answered(many, answer=f"e{below * 4999}{acute * 5000}").success, "it is left as it is"
    apart = "\u0f73"  # no mark itself; taken apart, it is two
    assert not answered(f"e{apart * 100}", answer=f"e{unicodedata.normalize('NFKC', apart * 100)}").success


def test_any_of_several_answers_is_right():
    assert answered("NYC", answers=["New York", "NYC"]).success
    assert answered("Boston", answer="Boston", answers=["NYC"]).success
    assert not answered("LA", answers=["New York", "NYC"]).success


def test_without_ground_truth_the_outcome_is_none():
    assert answered("Paris") is None


@pytest.mark.parametrize(
    "bad", [{"answer": ""}, {"answer": True}, {"answer": {"a": 1}}, {"answers": "x"}, {"answers": [None]}]
)
def test_a_task_that_cannot_be_scored_is_refused_before_it_is_worked_on(bad):
    with pytest.raises(InputError, match="task 'q'"):
        Question().make(Task(id="q", instruction="What?", env_args=bad))


def test_several_answers_under_the_name_of_one_are_told_where_to_go():
    with pytest.raises(InputError, match=r"task .q.: env_args\.answer is a list; expected env_args\.answers"):
        Question().make(Task(id="q", instruction="What?", env_args={"answer": ["Paris", "paris"]}))


@pytest.mark.parametrize("key", ["anwser", "Answer", "answr", "asnwers"])
def test_a_misspelt_answer_is_no_question_without_one(key):
    with pytest.raises(InputError, match=rf"task 'q': env_args.{key}: did you mean 'answers?'\?"):
        Question().make(Task(id="q", instruction="What?", env_args={key: "Paris"}))
    other = Task(id="q", instruction="What?", env_args={"source": "a", "difficulty": 3, "answer": "Paris"})
    assert Question().oracle(other) == ("Paris",)


def test_the_agent_sees_neither_the_answer_nor_whether_it_was_right():
    task = Task(id="q", instruction="What is it?", env_args={"answer": "xyzzy"})
    seen = []
    for said in ("xyzzy", "plugh"):
        environment = Question().make(task)
        seen.append([environment.action_rules, environment.reset(task), *environment.step(said)])
        assert environment.valid_actions() is None
        assert environment.answer() == said
    assert seen[0] == seen[1]
    assert "xyzzy" not in str(seen)


def test_only_the_first_answer_counts():
    task = Task(id="q", instruction="What is it?", env_args={"answer": "a"})
    environment = Question().make(task)
    environment.reset(task)
    environment.step("b")

    assert environment.step("a")[1]
    assert not environment.outcome().success
    assert environment.answer() == "b"

    environment.reset(task)
    assert environment.answer() is None
    assert environment.outcome().info == {"error": "no answer was given"}


def test_an_answer_can_be_replaced_when_the_question_is_opened_again():
    task = Task(id="q", instruction="What is it?", env_args={"answer": "xyzzy"})
    told = []
    for first in ("xyzzy", "plugh"):
        environment = Question().make(task)
        environment.reset(task)
        assert environment.reopen() is None, "there is nothing to replace yet"
        environment.step(first)
        told.append(environment.reopen())
        assert environment.answer() == first
        assert environment.outcome().success is (first == "xyzzy"), "the answer before counts until there is another"
        assert environment.step("frotz") == ("Your answer was taken.", True)
        assert environment.step("xyzzy")[0] == "The question is closed: an answer was given before."
        assert environment.answer() == "frotz"
        assert not environment.outcome().success
    assert told[0] == told[1], "it must not tell whether the answer was right"
    assert "replaces" in told[0]
    environment.reopen()
    environment.reset(task)
    assert environment.answer() is None


def test_an_environment_must_be_reset_first():
    environment = Question().make(Task(id="q", instruction="What?"))
    with pytest.raises(RBError, match="reset"):
        environment.step("x")
    with pytest.raises(RBError, match="reset"):
        environment.outcome()


def test_tasks_come_from_a_file():
    with pytest.raises(InputError, match="come from a file"):
        Question().tasks(seed=0)


def test_baselines_have_something_to_say():
    task = Task(id="q", instruction="What is it?", env_args={"answers": ["a", "b"]})
    family = Question()
    family.check()

    assert list(family.templates()) == []
    assert family.oracle(task) == ("a",)
    assert family.random_action(None, task, random.Random(0)) == family.random_action(None, task, random.Random(0))
    with pytest.raises(InputError, match="no known answer"):
        family.oracle(Task(id="q", instruction="What?"))


@given(st.text(st.characters()), st.text(min_size=1))
def test_no_text_breaks_the_scoring(said, right):
    try:
        outcome = answered(said, answer=right)
    except InputError:
        return  # nothing is left of the answer after normalisation
    assert outcome.reward in (0.0, 1.0)


def test_a_huge_answer_is_wrong_and_not_slow():
    assert "100,000 characters" in answered("'" * 100_000, answer="x").info["error"]
    assert answered("`" * 10_000, answer="x").reward == 0.0


@pytest.mark.parametrize(
    ("answer", "right"), [("3.0", "3"), (".5", "0.5"), ("−3", "-3"), ("1,000", "1000"), ("1e3", 1000)]
)
def test_numbers_are_compared_as_numbers(answer, right):
    assert answered(answer, answer=right).success
    assert not answered(answer + "1", answer=right).success


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("1,000", 1000),
        ("-1,234,567.50", "-1234567.5"),
        ("+12,000", "12000"),
        ("2,3", "2,3"),
        ("1,2,3", "1,2,3"),
        ("0,5", "0,5"),
        ("$1,234.50", "$1,234.50"),
    ],
)
def test_commas_may_group_thousands(answer, right):
    assert answered(answer, answer=right).success
    assert answered(str(right), answer=answer).success


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("23", "2,3"),
        ("123", "1,2,3"),
        ("12", "1,2"),
        ("5", "0,5"),
        ("500", "0,500"),
        ("1000", "1,00,0"),
        ("10000", "1,0000"),
        ("1234567", "1234,567"),
        ("1.2345", "1.23,45"),
        ("1,000", "1,0,0,0"),
    ],
)
def test_other_commas_do_not_vanish(answer, right):
    assert not answered(answer, answer=right).success
    assert not answered(right, answer=answer).success
