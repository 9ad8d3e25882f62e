"""Trainings: heads, judges and distilled drafts of any pair, and the tiny pairs that ship with the package."""
