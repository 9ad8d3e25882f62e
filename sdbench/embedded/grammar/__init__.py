"""Seeded grammars of the tiny tasks, one file a family: each makes rows in the real data set's fields from chance."""
