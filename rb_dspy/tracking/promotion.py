"""Which version of a registered program is champion: by what held-out tasks say of it, or by force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rb_dspy.errors import InputError
from rb_dspy.tracking.prompts import set_alias
from rb_dspy.tracking.refused import translated
from rb_dspy.tracking.where import Place

CHAMPION = "champion"
"""The alias of the version that is to be used, and of its prompts."""
IMPROVED, HELD_OUT, MEAN, DATA = "rb.improved", "rb.held_out", "rb.held_out.mean", "rb.held_out.data"
MEASURE, BEFORE, AFTER, SAME = "rb.measure", "rb.prompts.before", "rb.prompts.after", "rb.prompts.same"
PROMPT = "rb.prompt."
"""Tags of a version. Before the name of a predictor: the number of its prompt."""
FORCED = "rb.forced"
"""The tag of a version that was made champion although held-out tasks do not say that it is better."""


@dataclass(frozen=True)
class Remedies:
    """What helps a version that is not known to be better, as whoever asked would write it."""

    measure: str
    """Where it was not measured."""
    more: str
    """Where held-out tasks do not say that it is better."""
    onward: str
    """Where the champion may be better."""
    force: str


def in_python(name: str) -> Remedies:
    """For the caller of ``Tracker.promote``."""
    return Remedies(
        measure="register it with the Compiled that compile_program gives",
        more="compile again with more tasks held out or a larger budget",
        onward=f'compile on from the champion\'s prompts, and register that as "{name}"',
        force="make it champion all the same with promote(..., force=True)",
    )


def promote(place: Place, name: str, version: int, *, force: bool = False, remedies: Remedies | None = None) -> None:
    """Make ``version`` the champion. See ``Tracker.promote``."""
    remedies = remedies or in_python(name)
    with place.using(), translated(f"promoting {name} version {version}"):
        tags = place.client.get_model_version(name, str(version)).tags
        why_not = doubt(tags, champion_tags(place, name))
        if why_not:
            if not force:
                raise InputError(f"{name} version {version}: {why_not}; {_helps(tags, remedies)}, or {remedies.force}")
            why = (
                f"{datetime.now(UTC):%Y-%m-%d}: made champion by force; held-out: {tags.get(HELD_OUT, 'not measured')}"
            )
            place.client.set_model_version_tag(name, str(version), FORCED, why)  # first: no champion without it
        place.client.set_registered_model_alias(name, CHAMPION, str(version))
        prompts = {key.removeprefix(PROMPT): int(value) for key, value in tags.items() if key.startswith(PROMPT)}
        set_alias(place, name, prompts, CHAMPION)


def champion_tags(place: Place, name: str) -> Mapping[str, str]:
    """The tags of the version that is champion now; none where there is no champion."""
    number = champion_of(place, name)
    tags: Mapping[str, str] = place.client.get_model_version(name, number).tags if number else {}
    return tags


def champion_of(place: Place, name: str) -> str:
    """The number of the version that is champion now; empty where none is.

    Raises what MLflow raises: a registry that does not answer must not be taken for one without a champion, which
    anything would take the place of.
    """
    return str(place.client.get_registered_model(name).aliases.get(CHAMPION, ""))


def doubt(tags: Mapping[str, str], champion: Mapping[str, str]) -> str:
    """Why a version is not known to be better than the champion; empty where it is, or where it is the champion."""
    said = tags.get(HELD_OUT, "not measured")
    if tags.get(IMPROVED) != "true":
        return (
            f"held-out tasks do not say that it is better than the program it came from ({said}); the interval of the"
            " difference must be above 0"
        )
    if tags == champion or _follows(tags, champion):
        return ""
    if _measured_alike(tags, champion):
        did = f"{float(champion[MEAN]):.3f}, and this one {float(tags[MEAN]):.3f}"
        return (
            "it is better than the program it came from, but on the same held-out tasks the champion did as well, or"
            f" better: {did}"
        )
    return (
        "it is better than the program it came from, but nobody knows whether it is better than the champion, which has"
        " other prompts, or was measured in another way or on other tasks"
    )


def _helps(tags: Mapping[str, str], remedies: Remedies) -> str:
    """What a version of which there is a doubt needs."""
    if HELD_OUT not in tags:
        return remedies.measure
    return remedies.onward if tags.get(IMPROVED) == "true" else remedies.more


def _follows(tags: Mapping[str, str], champion: Mapping[str, str]) -> bool:
    """Whether an improved version takes the champion's place by itself.

    It does where there is no champion. Where both were measured in the same way on the same held-out tasks, and have
    the same prompts in the steps that were not measured, it must have done better; where it did as well, the champion
    has the same prompts or was never shown to be better. Else it must have been compiled from the champion's prompts,
    or nobody knows which is better: a better judge, say, may come with the agent's prompt of before.
    """
    if _measured_alike(tags, champion):
        as_well = float(tags[MEAN]) == float(champion[MEAN])
        no_loss = tags[AFTER] == champion.get(AFTER) or champion.get(IMPROVED) != "true"
        return float(tags[MEAN]) > float(champion[MEAN]) or (as_well and no_loss)
    return not champion or tags[BEFORE] == champion.get(AFTER)


def _measured_alike(tags: Mapping[str, str], champion: Mapping[str, str]) -> bool:
    """Whether the scores of both can be compared."""
    return all(tags[name] == champion.get(name) for name in (MEASURE, DATA, SAME))
