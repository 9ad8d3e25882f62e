"""Several jobs by one command: each ends for itself, here in one process and through submitit as on a cluster."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobStatus

from sdbench.cli import main
from sdbench.records import read
from sdbench.records.snapshot import take_snapshot


@pytest.fixture
def configs(micro_pair, tmp_path) -> Path:
    """A pair that is there and one that is not."""
    folder = tmp_path / "conf"
    (folder / "model").mkdir(parents=True)
    for name, place in (("there", micro_pair), ("nowhere", tmp_path / "nowhere")):
        text = f"defaults: [llama-tiny, _self_]\nname: {name}\ntarget: {place}/target\ndraft: {place}/draft\n"
        (folder / "model" / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.slow
def test_a_job_that_cannot_run_takes_no_other_with_it(configs, tmp_path, nursery):
    """In a process of its own, as Hydra sets up logging anew, which closes what the tests' own output goes to."""
    words = [
        "-m",
        "--config-dir",
        str(configs),
        "model=nowhere,there",
        f"results={tmp_path / 'results'}",
        "timing=off",
        "report=off",
    ]
    nursery.start([*words, "task=gsm8k-tiny,wmt-tiny", "w=0.5", "n=1", "max_new_tokens=4", "device=cpu"])
    assert nursery.ended() == 2
    output = nursery.said.read_text()
    assert "sdbench: 4 jobs" in output
    assert output.count("sdbench: bad configuration: model=nowhere task=") == 2
    for task in ("gsm8k-tiny", "wmt-tiny"):
        assert len(read(tmp_path / "results" / f"there-{task}").generations) == 4
    assert sorted(path.name for path in (tmp_path / "results").iterdir() if not path.name.startswith(".")) == [
        "there-gsm8k-tiny",
        "there-wmt-tiny",
    ]


@pytest.mark.slow
def test_force_decodes_what_the_jobs_of_a_launch_share_once_and_again_in_the_next(configs, tmp_path, nursery):
    """The target and the draft alone are cells of both jobs, which share a folder."""
    options = ["num_draft=2,3", "w=0.5", "n=1", "max_new_tokens=4", "device=cpu", "timing=off", "report=off"]
    words = ["-m", "--config-dir", str(configs), "model=there", "task=gsm8k-tiny", f"results={tmp_path}", *options]
    for num_launches in (1, 2):
        nursery.start([*words, "force=true"])
        assert nursery.ended() == 0, nursery.said.read_text()
        results = read(tmp_path / "there-gsm8k-tiny")
        assert len(results.generations) == 6
        assert results.problems == ()
        assert set(take_snapshot(tmp_path / "there-gsm8k-tiny" / "records").epochs.values()) == {num_launches}


@pytest.mark.slow
def test_submitit_hands_a_job_over_and_brings_its_code_back(configs, tmp_path):
    """The pickling and the folders of a cluster's jobs; the Slurm test decodes through them."""
    words = ["-m", "--config-dir", str(configs), "hydra/launcher=submitit_local", "model=nowhere"]
    command = [sys.executable, "-m", "sdbench", *words, f"results={tmp_path / 'results'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr
    assert f"what they say is below {tmp_path / 'results'}" in done.stderr
    assert "bad configuration: model=nowhere" in done.stderr
    logs = list((tmp_path / "results" / ".jobs").rglob("*_log.err"))
    assert any("neither a folder on this machine" in path.read_text() for path in logs)


@pytest.mark.parametrize("force", [["force=true"], []], ids=str)
def test_a_launch_with_force_in_which_a_job_died_is_continued_without_it(force, monkeypatch, capsys):
    class Launcher:
        def launch(self, *_: object, **__: object) -> None:
            raise RuntimeError("Job 7_1 died")

    plugins = SimpleNamespace(instantiate_launcher=lambda **_: Launcher())
    monkeypatch.setattr("sdbench.cli.launch.Plugins", SimpleNamespace(instance=lambda: plugins))
    assert main(["-m", "task=gsm8k-tiny,wmt-tiny", *force]) == 1
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "a job died" in line]
    hint = " (without force=true, which decodes everything once more)" if force else ""
    assert message.endswith(f"run the same command again{hint}")


@pytest.fixture
def in_process(monkeypatch) -> None:
    """The jobs of a multirun run one after the other, as Hydra's basic launcher does but without its logging."""

    def launcher(*, hydra_context, task_function, config):
        def launch(lines, **_: object) -> list[SimpleNamespace]:
            codes = []
            for line in lines:
                cfg = hydra_context.config_loader.load_sweep_config(config, list(line))
                HydraConfig.instance().set_config(cfg)
                codes.append(task_function(cfg))
            return [SimpleNamespace(status=JobStatus.COMPLETED, return_value=code) for code in codes]

        return SimpleNamespace(launch=launch)

    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    plugins = SimpleNamespace(instantiate_launcher=launcher)
    monkeypatch.setattr("sdbench.cli.launch.Plugins", SimpleNamespace(instance=lambda: plugins))


@pytest.fixture
def launched(in_process, monkeypatch) -> list[list[str]]:
    """The words of each job that a multirun starts. The jobs do nothing."""
    jobs: list[list[str]] = []
    monkeypatch.setattr("sdbench.passes.job.run_job", lambda _, words, **__: jobs.append(list(words)) or 0)
    return jobs


def test_the_command_of_a_job_names_the_folder_of_the_users_files(launched, configs):
    """It is printed after an interruption, and recorded."""
    folder = ["--config-dir", str(configs)]
    assert main(["-m", *folder, "model=there"]) == 0
    assert main(["-m", "w=0.3"]) == 0
    assert launched == [[*folder, "model=there"], ["w=0.3"]]


def test_an_option_of_tasks_that_are_swept_need_not_be_an_option_of_the_default_task(launched, capsys):
    tasks = ["-m", "task=humaneval-tiny,mbpp-tiny"]
    assert main([*tasks, "task.sandbox=rlimit"]) == 0
    assert launched == [[task, "task.sandbox=rlimit"] for task in ("task=humaneval-tiny", "task=mbpp-tiny")]
    assert main([*tasks, "task.sandbx=rlimit"]) == 2
    (message,) = capsys.readouterr().err.splitlines()[-1:]
    assert message.startswith("sdbench: task.sandbx is not an option (did you mean sandbox?")
    assert len(launched) == 2, "no job begins"


def test_a_launcher_starts_a_single_job_too(launched, capsys):
    """A job that is meant for a cluster must not run on its login node."""
    assert main(["w=0.3", "hydra/launcher=basic"]) == 0
    assert launched == [["w=0.3"]]
    assert "sdbench: 1 job\n" in capsys.readouterr().err


def test_each_job_of_a_process_prints_its_warnings(in_process, micro_pair, tmp_path, capsys):
    model = shutil.copytree(micro_pair / "target", tmp_path / "short")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    words = [
        f"model.target={model}",
        "model.draft=null",
        "drafter=lookup",
        "task=gsm8k-tiny",
        f"results={tmp_path / 'r'}",
    ]
    options = ["n=1", "max_new_tokens=4", "device=cpu", "timing=off", "report=off", "w=0.5"]
    assert main(["-m", *words, *options, "num_draft=2,3"]) == 0
    err = capsys.readouterr().err
    assert err.count("sdbench: warning: 1 of 1 prompts were too long for 36 tokens") == 2, err


def test_the_local_launcher_is_refused_where_it_would_hide_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert main(["-m", "hydra/launcher=submitit_local", "task=gsm8k-tiny,wmt-tiny"]) == 2
    error = capsys.readouterr().err
    assert "submitit_local hides this machine's GPUs from the jobs: write hydra.launcher.gpus_per_node=1" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("launcher", "ends"), [("basic", ""), ("slurm", "; submitted jobs go on until scancel ends them")]
)
def test_an_interrupted_launch_is_continued_as_a_whole(launcher, ends, monkeypatch, capsys):
    class Launcher:
        def launch(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    plugins = SimpleNamespace(instantiate_launcher=lambda **_: Launcher())
    monkeypatch.setattr("sdbench.cli.launch.Plugins", SimpleNamespace(instance=lambda: plugins))
    assert main(["-m", f"hydra/launcher={launcher}", "task=gsm8k-tiny,wmt-tiny"]) == 130
    assert f"sdbench: to continue all jobs, run the whole command with -m again{ends}\n" in capsys.readouterr().err
