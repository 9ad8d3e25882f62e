"""The part of lm-evaluation-harness that its tasks need here, checked before one is built."""

from sdbench.config import ConfigError
from sdbench.config.checks import require_lm_eval

# What is used of the harness, as module:name; a version without one of these is refused, and the message names it. Attributes that
# its methods set on an object (`dataset`) are not listed: a class does not show them.
USED = (
    "lm_eval.tasks._yaml_loader:load_yaml",
    "lm_eval.filters:",  # registers filters
    "lm_eval.api.registry:filter_registry.keys",
    "lm_eval.api.samplers:SAMPLER_REGISTRY",
    "lm_eval.api.metrics:mean",
    "lm_eval.utils:env.from_string",
    *(
        f"lm_eval.api.task:ConfigurableTask.{name}"
        for name in (
            *("VERSION", "config", "eval_docs", "instances", "task_name"),
            *("doc_to_target", "set_fewshot_seed", "build_all_requests"),
            *("apply_filters", "process_results", "aggregation", "higher_is_better"),
        )
    ),
    *(
        f"lm_eval.api.task:TaskConfig.{name}"
        for name in (
            "generation_kwargs",
            "num_fewshot",
            "test_split",
            "validation_split",
            "custom_dataset",
            "fewshot_config",
        )
    ),
    *(f"lm_eval.api.instance:Instance.{name}" for name in ("doc", "doc_id", "args", "resps", "filtered_resps")),
)


def check_library() -> None:
    """Raise ConfigError unless the harness is installed in a version that has everything used here."""
    try:
        require_lm_eval(USED)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tasks of lm-evaluation-harness need the extra lm-eval, and {error.name} is not installed: "
            "pip install 'sdbench[lm-eval]'"
        ) from None
