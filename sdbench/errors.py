"""How an exception of another library is quoted in a message."""


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message; the name of its class where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
