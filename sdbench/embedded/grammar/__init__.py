"""Seeded grammars of the tiny tasks, one file per family of tasks: random rows in the real data set's fields."""
