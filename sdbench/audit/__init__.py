"""Does it emit the law it claims? Every claim of a rule, a drafter or an engine, as a test with known power. docs/audit.md."""
