"""What an audit draws its texts from: this package's engine, transformers' own generate, or a file of generations."""

from __future__ import annotations

from collections.abc import Callable

from sdbench.audit.command import AuditCommand
from sdbench.audit.report import AuditRun


def backend_of(given: AuditCommand) -> Callable[[AuditCommand], AuditRun]:
    """The function that runs this command; only its own module is imported."""
    if "generations" in given.values:
        from sdbench.audit.generations import audit_file as run
    elif given.values.get("backend") == "transformers":
        from sdbench.audit.transformers_backend import audit_generate as run
    else:
        from sdbench.audit.native import audit_engine as run
    return run
