"""vLLM's CPU build at temperature > 0: it is asked whether its sampler expands, and one that does not is refused."""

from pathlib import Path

import pytest
from processes import environment_with_vllm

from sdbench.cli import main
from sdbench.config import ConfigError
from sdbench.serve.plugin import draws_from_laws

RIGHT = "x.repeat_interleave(torch.diff(cu.long(), prepend=torch.zeros(1).long()))"
UNWRITTEN = "x.new_full((num_tokens,), 77)"


def environment(folder: Path, expanded: str, torch: str = "2.13.0+cpu") -> str:
    """An interpreter with a stand-in for vLLM whose sampler expands so."""
    python = environment_with_vllm(folder)
    vllm = folder / "site" / "vllm"
    (vllm / "v1" / "sample").mkdir(parents=True)
    for package in (vllm / "v1", vllm / "v1" / "sample"):
        (package / "__init__.py").write_text("")
    (vllm / "platforms.py").write_text(
        "class current_platform:\n    import_kernels = register_triton_kernel_overrides = staticmethod(lambda: None)\n"
    )
    source = f"import torch\ndef expand_batch_to_tokens(x, cu, num_tokens):\n    return {expanded}\n"
    (vllm / "v1" / "sample" / "rejection_sampler.py").write_text(source)
    info = folder / "site" / "torch-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    return str(python)


@pytest.mark.parametrize(("expanded", "is_right"), [(RIGHT, True), (UNWRITTEN, False)])
def test_an_interpreter_says_whether_it_expands(expanded, is_right, tmp_path):
    assert draws_from_laws(environment(tmp_path, expanded)) is is_right


def test_one_that_does_not_answer_is_a_mistake(tmp_path):
    with pytest.raises(
        ConfigError, match=r"the test of vLLM.s sampling of drafted tokens failed.*No module named 'vllm.platforms'"
    ):
        draws_from_laws(str(environment_with_vllm(tmp_path)))


@pytest.mark.slow
def test_sampling_without_the_plugin_is_refused_on_the_broken_build(served_words, tmp_path, capsys):
    python = environment(tmp_path / "broken", UNWRITTEN)
    words = [*served_words(tmp_path / "results", temperature=1), "engine=vllm", f"engine.python={python}"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "vLLM 0.32.0 on a CPU writes garbage when it speculates at temperature=1 (vllm#55005)" in message
    assert "engine.plugin=true repairs it" in message
    assert not list((tmp_path / "results").rglob("generations-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "case",
    ["greedy", "plugin", *(pytest.param(case, marks=pytest.mark.slow) for case in ("gpu", "whole"))],
)
def test_it_is_not_refused_where_it_does_no_harm(case, served_words, tmp_path):
    expanded = RIGHT if case == "whole" else UNWRITTEN
    python = environment(tmp_path / "build", expanded, "2.13.0+cu130" if case == "gpu" else "2.13.0+cpu")
    temperature = 0 if case == "greedy" else 1
    plugin = ["engine.plugin=true"] if case == "plugin" else []
    words = served_words(tmp_path / "results", temperature=temperature, n=1)
    assert main([*words, "engine=vllm", f"engine.python={python}", *plugin, "engine.grace_s=2"]) == 0
