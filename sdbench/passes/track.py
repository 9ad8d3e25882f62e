"""The tracker of a run: built at the start, so that a missing library is found early, and used once at the end."""

from sdbench.config import ConfigError, Run
from sdbench.errors import first_line
from sdbench.records import StoreError
from sdbench.trackers import Findings, Tracker, TrackerError, make


def tracker_of(run: Run) -> Tracker | None:
    """Build the tracker, None if there is none. Its errors become ConfigErrors."""
    if run.tracker is None:
        return None
    try:
        return make(str(run.tracker.target), run.tracker.options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"tracker={run.tracker.name}: {first_line(error)}") from None


def check_login(run: Run) -> None:
    """Check that the tracker can be used at the end: a login, a server that answers."""
    tracker = tracker_of(run)
    check = getattr(tracker, "check", None)
    if check is None:
        return
    try:
        check()
    except TrackerError as error:
        raise ConfigError(f"tracker={run.tracker.name if run.tracker else ''}: {error}") from None


def track(run: Run, findings: Findings) -> None:
    """Send the results to the tracker and print where they can be seen. If that fails, the records are kept."""
    tracker = tracker_of(run)
    if tracker is None:
        return
    try:
        print(f"tracker: {tracker.send(findings)}")
    except TrackerError as error:
        rest = f"the records in {findings.folder} are whole: the same command sends them again"
        raise StoreError(f"{error}; {rest}") from error
