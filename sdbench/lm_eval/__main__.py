"""python -m sdbench.lm_eval …: lm-evaluation-harness's command line, with `--model sdbench` among its models (docs/lm_eval.md)."""

import sys
from importlib import import_module

from sdbench.config import ConfigError
from sdbench.config.checks import require_lm_eval
from sdbench.hub import HubError
from sdbench.subcommand import Exit

MODEL = "sdbench.lm_eval.model:SpeculativeLM"
# What this package uses of the harness; if a version lacks one of these, the error names it.
USED = (
    "lm_eval.models:",  # registers the harness's models
    "lm_eval.api.registry:model_registry.register",
    "lm_eval.__main__:cli_evaluate",
    "lm_eval.api.model:TemplateLM.loglikelihood",
    "lm_eval.api.model:CacheHook.add_partial",
    "lm_eval.api.model:LM.set_cache_hook",
    *(f"lm_eval.api.instance:Instance.{name}" for name in ("args", "task_name", "doc_id")),
    "lm_eval.models.utils:normalize_gen_kwargs",
    "lm_eval.utils:get_rolling_token_windows",
    "lm_eval.utils:make_disjoint_window",
)


def main() -> None:
    """Pass all arguments to the harness; report a mistake in them, or a hub that fails, as one sentence with exit code 2."""
    try:
        evaluate()
    except (ConfigError, HubError) as error:
        print(f"sdbench.lm_eval: {error}", file=sys.stderr)
        sys.exit(Exit.BAD_CONFIG)


def evaluate() -> None:
    """Run the harness's command line with our model registered."""
    try:
        require_lm_eval(USED)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'sdbench[lm-eval]'") from None
    import_module("lm_eval.api.registry").model_registry.register("sdbench", target=MODEL)
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
