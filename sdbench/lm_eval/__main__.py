"""python -m sdbench.lm_eval …: lm-evaluation-harness's command line, with `--model sdbench` among its models (docs/lm_eval.md)."""

import sys
from importlib import import_module

from sdbench.config import ConfigError
from sdbench.subcommand import Exit

MODEL = "sdbench.lm_eval.model:SpeculativeLM"


def main() -> None:
    """Pass all words on; a mistake in `--model_args` is one sentence and exit code 2."""
    try:
        import_module("lm_eval.models")  # its own models, by their names
    except ModuleNotFoundError as error:
        print(f"sdbench.lm_eval: {error.name} is not installed: pip install 'sdbench[lm-eval]'", file=sys.stderr)
        sys.exit(Exit.BAD_CONFIG)
    import_module("lm_eval.api.registry").model_registry.register("sdbench", target=MODEL)
    try:
        import_module("lm_eval.__main__").cli_evaluate()
    except ConfigError as error:
        print(f"sdbench.lm_eval: {error}", file=sys.stderr)
        sys.exit(Exit.BAD_CONFIG)


if __name__ == "__main__":
    main()
