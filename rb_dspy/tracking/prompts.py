"""Instructions of predictors as versions in MLflow's prompt registry: one prompt for each predictor."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping
from typing import Any

from rb_dspy.tracking.where import Place

log = logging.getLogger("rb_dspy")

MAX_PROMPT = 100_000
"""Characters of the longest prompt that MLflow's registry takes (3.17: ``MAX_MODEL_REGISTRY_TAG_VALUE_LENGTH``)."""
_EXPERIMENTS = "_mlflow_experiment_ids"
"""The tag by which MLflow's page of an experiment finds its prompts."""
_LINKING = "link_prompt_to_experiment_thread"
"""Name of the threads in which MLflow goes on writing after it has returned."""
_LINK_SECONDS = 10.0


def register_prompts(
    place: Place, prefix: str, instructions: Mapping[str, str], *, note: str, run_id: str = ""
) -> dict[str, int]:
    """Predictor -> version of the prompt ``PREFIX.PREDICTOR`` that has its instruction.

    A text that is a version already stays that version; only one that is new becomes a new one, with ``note`` as its
    commit message. ``run_id``: the run whose prompts these are. One that is too long for the registry is left out, with
    a warning: it is kept whole with its run and in the model.
    """
    found: dict[str, int] = {}
    with place.using():
        for predictor, text in instructions.items():
            name = f"{prefix}.{predictor}"
            if len(text) > MAX_PROMPT:
                _tell_left_out(name, len(text))
                continue
            version = _known(place, name, text)
            if version is None:
                tags = {"rb.predictor": predictor, _EXPERIMENTS: f",{place.experiment_id},"}
                version = place.client.register_prompt(name, text, commit_message=note, tags=tags)
                _settle()
            found[predictor] = int(version.version)
            if run_id:
                place.client.link_prompt_version_to_run(run_id, version)
    return found


def set_alias(place: Place, prefix: str, versions: Mapping[str, int], alias: str) -> None:
    """Let ``alias`` name these versions."""
    for predictor, version in versions.items():
        place.client.set_prompt_alias(f"{prefix}.{predictor}", alias, version)


@functools.cache  # once, though a compile registers its prompts before and after, and most are the same
def _tell_left_out(name: str, length: int) -> None:
    log.warning(
        "tracking: the prompt %s has %s characters, and MLflow's prompt registry takes %s: it is not in there, but"
        " whole among the files of its run, and in its model where the program is registered",
        name,
        f"{length:,}",
        f"{MAX_PROMPT:,}",
    )


def _known(place: Place, name: str, text: str) -> Any:
    """The newest version with this text, if there is one."""
    if place.client.get_prompt(name) is None:
        return None
    same = [version for version in place.client.search_prompt_versions(name) if version.template == text]
    return max(same, key=lambda version: int(version.version), default=None)


def _settle() -> None:
    """Wait for what MLflow still writes: it would collide with the next version of the same prompt."""
    for thread in threading.enumerate():
        if thread.name.startswith(_LINKING):
            thread.join(_LINK_SECONDS)
