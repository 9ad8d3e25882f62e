"""This process's limit on open files: the connection of each request in progress counts as an open file."""

import resource

from sdbench.config import ConfigError

OTHERS = 100  # open files besides the requests


def allow_requests(count: int, option: str) -> None:
    """Raise the soft limit for the `count` requests in progress that an option allows; ConfigError if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{option} allows {count} requests at a time, but this process may open only {hard} files: send fewer "
            "requests, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
