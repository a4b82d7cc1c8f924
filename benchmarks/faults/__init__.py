"""Faults on the lab, each to end with tokens served and no hand touched; see docs/serving.md."""
