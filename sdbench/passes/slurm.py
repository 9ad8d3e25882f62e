"""A job as a Slurm job: its id and its name."""

import os
import shutil
import subprocess

from sdbench.prepare.progress import warn

PATIENCE_S = 30.0  # how long to wait for a controller that does not answer


def batch_job() -> str | None:
    """Return an id of this Slurm job that its requeues and its whole array share; None if no batch script runs this."""
    if os.environ.get("ENVIRONMENT") != "BATCH":
        return None
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    return job and f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')} {job}"


def name_batch_job(name: str) -> None:
    """Rename this Slurm job to its pair and task, instead of the name of the whole array, for squeue and scancel."""
    job = os.environ.get("SLURM_JOB_ID")
    if batch_job() is None or job is None or shutil.which("scontrol") is None:
        return
    if job == os.environ.get("SLURM_ARRAY_JOB_ID"):  # one task has the id of the array, which would rename all of them
        job = f"{job}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    command = ["scontrol", "update", f"JobId={job}", f"JobName={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        warn(f"Slurm does not answer, so this job is not named {name}")
        return
    if done.returncode:
        warn(f"Slurm does not name this job {name}: {' '.join(done.stderr.split())}")
