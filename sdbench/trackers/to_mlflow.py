"""MLflow: one run per results folder with its configuration, figures and page, and a child run per cell with its numbers."""

import contextlib
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from sdbench.errors import first_line, without_user
from sdbench.trackers import Findings, TrackerError, flat, need

LONGEST = 500  # characters of a parameter's value; every MLflow store accepts this length


class MLflow:
    """Sends to the MLflow server or store at `uri`; None: MLFLOW_TRACKING_URI, or the library's default."""

    def __init__(self, uri: str | None = None, experiment: str = "sdbench") -> None:
        if uri is not None and without_user(uri) != uri:
            raise ValueError(
                "tracker.uri has a user's name or password, and the records hold the configuration: set MLFLOW_TRACKING_URI in the "
                "shell instead"
            )
        need("mlflow", "mlflow")
        self.uri, self.experiment = uri, experiment

    def check(self) -> None:
        """Raise TrackerError if no server answers. Without this test the library would retry for minutes at the end of the run."""
        url = urlsplit(self.uri or os.environ.get("MLFLOW_TRACKING_URI", ""))
        if url.scheme not in ("http", "https") or url.hostname is None:
            return
        try:
            socket.create_connection((url.hostname, url.port or {"http": 80, "https": 443}[url.scheme]), 5).close()
        except OSError as error:
            raise TrackerError(f"no server answers at {without_user(url.geturl())} ({error})") from None

    def send(self, findings: Findings) -> str:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        client: Any = None
        begun: list[str] = []
        try:
            client = MlflowClient(self.uri)
            known = client.get_experiment_by_name(self.experiment)
            home = known.experiment_id if known else client.create_experiment(self.experiment)
            parent = client.create_run(home, run_name=findings.name, tags={"mlflow.note.content": findings.advice})
            key = parent.info.run_id
            begun.append(key)
            self._log(client, key, flat(findings.config), {})
            for path in (*findings.figures, *findings.pages):
                client.log_artifact(key, str(path), "figures" if path in findings.figures else None)
            for name, labels, numbers in findings.cells():
                child = client.create_run(home, run_name=name, tags={"mlflow.parentRunId": key})
                begun.append(child.info.run_id)
                self._log(client, child.info.run_id, {label: str(value) for label, value in labels.items()}, numbers)
                client.set_terminated(begun.pop())
            client.set_terminated(key)
        except (MlflowException, OSError) as error:
            for run in begun:  # sending again creates new runs, so these must not remain marked as running
                with contextlib.suppress(MlflowException, OSError):
                    client.set_terminated(run, "FAILED")
            raise TrackerError(f"MLflow: {without_user(first_line(error))}") from None
        return f"MLflow experiment {self.experiment}, run {key} at {without_user(client.tracking_uri)}"

    @staticmethod
    def _log(client: Any, key: str, params: dict[str, str], numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric, Param

        kept = [Param(name, value[:LONGEST]) for name, value in params.items()]
        for start in range(0, len(kept), 100):  # MLflow accepts at most 100 parameters in a batch
            client.log_batch(key, params=kept[start : start + 100])
        client.log_batch(key, metrics=[Metric(name, value, 0, 0) for name, value in numbers.items()])
