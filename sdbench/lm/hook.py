"""A hook around the calls of a model, for example to time or to count them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

from torch import Tensor

# Returns a context around each call, given the `LM`, its input (tokens, states or slots), and the call, which can be repeated.
ModelHook = Callable[[Any, Tensor, Callable[[], Any]], AbstractContextManager[object]]
Method = TypeVar("Method", bound=Callable[..., Any])


def no_model_hook(lm: Any, inputs: Tensor, call: Callable[[], Any]) -> AbstractContextManager[object]:
    return nullcontext()


def with_hook(method: Method) -> Method:
    """Run a method of `LM` within the model's hook."""

    @wraps(method)
    def call(lm: Any, inputs: Tensor, *args: Any, **options: Any) -> Any:
        again = partial(method, lm, inputs, *args, **options)
        with lm.hook(lm, inputs, again):
            return again()

    return call  # type: ignore[return-value]
