"""What a job does as one of Slurm's."""

import os
import shutil
import subprocess

from sdbench.prepare.progress import warn

PATIENCE_S = 30.0  # for a controller that does not answer


def batch_job() -> str | None:
    """What names this Slurm job when it is requeued, and its whole array; None outside one, and in an interactive shell of
    one, where the same command twice means twice.
    """
    if os.environ.get("ENVIRONMENT") != "BATCH":
        return None
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    return job and f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')} {job}"


def name_batch_job(name: str) -> None:
    """Gives this Slurm job the name of its pair and task, in place of the one that a whole array has: for squeue and scancel."""
    job = os.environ.get("SLURM_JOB_ID")
    if batch_job() is None or job is None or shutil.which("scontrol") is None:
        return
    command = ["scontrol", "update", f"JobId={job}", f"JobName={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        warn(f"Slurm does not answer, so this job is not named {name}")
        return
    if done.returncode:
        warn(f"Slurm does not name this job {name}: {' '.join(done.stderr.split())}")
