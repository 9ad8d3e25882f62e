"""Trainings: heads, judges and distilled drafts of any pair."""
