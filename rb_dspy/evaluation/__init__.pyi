# The names of this package; see ``__init__.py``.

from .arms import Arm as Arm, ArmLike as ArmLike
from .costs import Estimate as Estimate, estimate as estimate
from .intervals import Comparison as Comparison, Interval as Interval, compare as compare, detectable as detectable
from .progress import Progress as Progress
from .records import TaskRecord as TaskRecord, read_records as read_records
from .report import ArmReport as ArmReport, LessonEffect as LessonEffect, Report as Report
from .run import evaluate as evaluate, measure as measure, screen as screen
