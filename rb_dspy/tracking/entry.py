"""What MLflow keeps as the code of a registered program, and runs when it loads one. No pickle is in it."""

import mlflow

from rb_dspy.tracking.served import ServedProgram

mlflow.models.set_model(ServedProgram())
