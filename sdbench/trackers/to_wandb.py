"""Weights & Biases: one run per results folder with its configuration, a table of the cells, their numbers, figures and page."""

import netrc
import os
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from sdbench.errors import first_line
from sdbench.trackers import Findings, TrackerError, flat, need


class WandB:
    """Sends to Weights & Biases. With mode="offline" it writes files to the results folder, which `wandb sync` sends later."""

    def __init__(
        self, project: str = "sdbench", entity: str | None = None, mode: Literal["online", "offline"] = "online"
    ) -> None:
        need("wandb", "wandb")
        self.project, self.entity, self.mode = project, entity, mode

    def check(self) -> None:
        """Raise TrackerError without a login. Without this test the run would fail at its end, after hours of work."""
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        if self.mode == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
            return
        if not os.environ.get("WANDB_API_KEY") and not _has_login(host):
            raise TrackerError(
                f"you are not logged in at {host}: run `wandb login`, set WANDB_API_KEY, or use tracker.mode=offline"
            )

    def send(self, findings: Findings) -> str:
        wandb: Any = import_module("wandb")  # by name, so that type checks pass where wandb is not installed
        quiet = {"silent": True, "console": "off", "x_disable_stats": True, "disable_git": True, "disable_code": True}
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                mode=None if self.mode == "online" else self.mode,  # None: WANDB_MODE, or online
                reinit="finish_previous",
                name=findings.name,
                dir=str(findings.folder),
                config=flat(findings.config),
                notes=findings.advice,
                settings=wandb.Settings(**quiet),
            )
            try:
                self._log(wandb, run, findings)
            except BaseException:
                run.finish(exit_code=1)  # sending again creates a new run: this one must not look as if it were running
                raise
            where = run.dir if run.offline else "nowhere (WANDB_MODE=disabled)" if run.disabled else run.url
            run.finish()
        except (wandb.errors.Error, OSError) as error:
            raise TrackerError(f"Weights & Biases: {first_line(error)}") from None
        return str(where)

    @staticmethod
    def _log(wandb: Any, run: Any, findings: Findings) -> None:
        figures = {f"figures/{path.stem}": wandb.Image(str(path)) for path in findings.figures}
        pages = {path.name: wandb.Html(path.read_text("utf-8")) for path in findings.pages if path.suffix == ".html"}
        run.log({"summary": wandb.Table(dataframe=findings.summary), **figures, **pages})
        for name, _, numbers in findings.cells():
            for metric, value in numbers.items():
                run.summary[f"{name}/{metric}"] = value


def _has_login(host: str) -> bool:
    """Return whether the file that `wandb login` writes names the host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
