"""Tests of whether a rule, a drafter or an engine emits the law that it claims, with known power. See docs/audit.md."""
