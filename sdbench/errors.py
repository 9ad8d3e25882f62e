"""Recognise exceptions of other libraries, and quote exceptions, commands and addresses in messages."""

import re

# Exceptions of a user's rule, drafter or metric that count as failures of a cell. Errors of the records and of engines end a run.
OF_CODE = (AssertionError, AttributeError, NameError)  # mistakes in code, whose traceback is kept
FAILURES_OF_A_CELL = (
    *(ArithmeticError, ImportError, LookupError, MemoryError, RuntimeError, SyntaxError, TypeError, ValueError),
    *OF_CODE,
)
ALLOCATION = re.compile(
    r"allocate\D{0,20}([\d.]+) (bytes|KiB|MiB|GiB)"
)  # finds the requested size in an allocator's error message
WITHOUT_FORCE = "without force=true, which decodes everything once more"  # how to continue a run that had force=true


class PromptError(ValueError):
    """A model cannot decode one prompt, that of the request with this key; others may be decoded."""

    def __init__(self, message: str, key: int | str) -> None:
        super().__init__(message)
        self.key = key


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed. On a CPU torch then raises a RuntimeError, which only its message identifies."""
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    is_named = type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()
    return is_named or ALLOCATION.search(str(error)) is not None


def is_from_submitit(error: Exception) -> bool:
    """Return whether submitit raised this exception to requeue or time out a job; every handler must then let it pass."""
    return type(error).__module__.partition(".")[0] == "submitit"


def sentence_of_failure(error: BaseException) -> str:
    """Return the class of an exception and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def without_force(command: str) -> str:
    """Return the command without force=true, so that it continues what it began instead of decoding all texts again."""
    return re.sub(r" \+*force=\S+", "", command)


SECRET_NAME = re.compile(r"api_?keys?$|password|secret|^(hf|auth|access)?_?token$", re.IGNORECASE)  # of an option


def without_user(address: str) -> str:
    """Return the address of a server without a user's name and password."""
    return re.sub(r"://[^/?#\s]*@", "://", address)
