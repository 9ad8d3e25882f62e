"""The limit on open files of this process: each request under way is a connection, and counts as one."""

import resource

from sdbench.config import ConfigError

OTHERS = 100  # files that the process has open beside its requests


def allow_requests(count: int, option: str) -> None:
    """Let an option have so many requests under way: raise the soft limit to the hard one; ConfigError if that is too low, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{option} may have {count} requests under way at a time, and this process may open {hard} files at most: send fewer "
            "requests, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
