"""How a program is saved as an MLflow model: as MLflow saves a Python model, but without paths of this machine.

A flavor, for ``mlflow.models.Model.log``. MLflow notes where the code and the artifacts came from, and where the store
is; loading needs none of it, and who loads the model need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import pyfunc
from mlflow.models import Model


def save_model(path: str, mlflow_model: Model, made_of: Mapping[str, Any], **kwargs: Any) -> None:
    """Save in the folder ``path``, with the arguments of ``mlflow.pyfunc.save_model``.

    ``made_of`` is its ``model_config``: under that name MLflow would log it as parameters of the run, each under
    another name than all our runs have for it.
    """
    pyfunc.save_model(path, mlflow_model=mlflow_model, model_config=dict(made_of), **kwargs)
    settings = mlflow_model.flavors[pyfunc.FLAVOR_NAME]
    settings["model_code_path"] = Path(settings["model_code_path"]).name  # the only part of it that loading looks at
    for artifact in settings["artifacts"].values():
        artifact["uri"] = artifact["path"]
    mlflow_model.artifact_path = None
    mlflow_model.save(Path(path) / "MLmodel")
