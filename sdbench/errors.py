"""Quote exceptions of other libraries in messages."""


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
