"""Which version of a registered program is champion: by what held-out tasks say of it, or by force."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from rb_dspy.errors import InputError
from rb_dspy.tracking.prompts import set_alias
from rb_dspy.tracking.refused import translated
from rb_dspy.tracking.where import Place, load_mlflow

CHAMPION = "champion"
"""The alias of the version that is to be used, and of its prompts."""
IMPROVED, HELD_OUT, MEAN, DATA = "rb.improved", "rb.held_out", "rb.held_out.mean", "rb.held_out.data"
MEASURE, BEFORE, AFTER, SAME = "rb.measure", "rb.prompts.before", "rb.prompts.after", "rb.prompts.same"
PROMPT = "rb.prompt."
"""Tags of a version. Before the name of a predictor: the number of its prompt."""
FORCED = "rb.forced"
"""The tag of a version that was made champion although held-out tasks do not say that it is better."""


def promote(place: Place, name: str, version: int, *, force: bool = False) -> None:
    """Make ``version`` the champion. See ``Tracker.promote``."""
    with place.using(), translated(f"promoting {name} version {version}"):
        tags = place.client.get_model_version(name, str(version)).tags
        why_not = doubt(tags, champion_tags(place, name))
        if why_not:
            if not force:
                raise InputError(f"{name} version {version}: {why_not}")
            why = (
                f"{datetime.now(UTC):%Y-%m-%d}: made champion by force; held-out: {tags.get(HELD_OUT, 'not measured')}"
            )
            place.client.set_model_version_tag(name, str(version), FORCED, why)  # first: no champion without it
        place.client.set_registered_model_alias(name, CHAMPION, str(version))
        prompts = {key.removeprefix(PROMPT): int(value) for key, value in tags.items() if key.startswith(PROMPT)}
        set_alias(place, name, prompts, CHAMPION)


def champion_tags(place: Place, name: str) -> Mapping[str, str]:
    """The tags of the version that is champion now; none where there is no champion."""
    try:
        tags: Mapping[str, str] = place.client.get_model_version_by_alias(name, CHAMPION).tags
    except load_mlflow().MlflowException:
        return {}
    return tags


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
        " other prompts, or was measured in another way or on other tasks; compile from the champion, or --force"
    )


def _follows(tags: Mapping[str, str], champion: Mapping[str, str]) -> bool:
    """Whether an improved version takes the champion's place by itself.

    It does where there is no champion. Where both were measured in the same way on the same held-out tasks, and have
    the same prompts in the steps that were not measured, it must have done better. Else it must have been compiled
    from the champion's prompts, or nobody knows which is better: a better judge, say, may come with the agent's prompt
    of before.
    """
    if _measured_alike(tags, champion):
        return float(tags[MEAN]) > float(champion[MEAN])
    return not champion or tags[BEFORE] == champion.get(AFTER)


def _measured_alike(tags: Mapping[str, str], champion: Mapping[str, str]) -> bool:
    """Whether the scores of both can be compared."""
    return all(tags[name] == champion.get(name) for name in (MEASURE, DATA, SAME))
