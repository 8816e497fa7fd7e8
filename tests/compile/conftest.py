# TEMPORARY
import importlib
import sys

sys.path.insert(0, "/tmp")
importlib.import_module("stub")
