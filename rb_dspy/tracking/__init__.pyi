from .registry import ProgramVersion as ProgramVersion
from .tracker import NoRun as NoRun, Tracker as Tracker
