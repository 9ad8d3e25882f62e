"""How an exception of another library is quoted in a message."""

import json


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message; the name of its class where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def json_fault(error: Exception) -> str:
    """Return what is wrong with one line of JSON, without the decoder's own count of lines."""
    return f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else first_line(error)
