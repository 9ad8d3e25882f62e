"""TensorBoard: event files, one TensorBoard run a curve, its steps the weight w in percent; a baseline is a line across."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

from sdbench.trackers import Findings, TrackerError, need

SUFFIX = ".sdbench"
TIME = 0.0  # nothing here knows the time: the same records give the same events
FULL = 100  # w = 1, in percent


class TensorBoard:
    """`folder`: where event files go, one folder a results folder; None: tensorboard/ beside the records."""

    def __init__(self, folder: str | None = None) -> None:
        need("tensorboard", "tensorboard")
        self.folder = folder

    def send(self, findings: Findings) -> str:
        home = findings.folder / "tensorboard" if self.folder is None else Path(self.folder) / findings.name
        try:
            for old in home.rglob(f"events.out.tfevents.*{SUFFIX}"):
                old.unlink()  # made from the same records: sending again replaces
            for curve, points in curves(findings).items():
                write(home / curve, [event for step, numbers in points for event in scalars(step, numbers)])
            write(home / "report", [text("recommendation", findings.advice), *map(image, findings.figures)])
        except OSError as error:
            raise TrackerError(f"event files cannot be written: {error}") from None
        return f"tensorboard --logdir {home}"


def curves(findings: Findings) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """{rule, draft length and temperature: its points in steps of w}; without w a point at either end."""
    curves: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for name, labels, numbers in findings.cells():
        words = [word for word in name.split() if not word.startswith("w=")]
        steps = [round(FULL * labels["w"])] if "w" in labels else [0, FULL]
        curves[" ".join(words)] += [(step, numbers) for step in steps]
    return {name: sorted(points, key=lambda point: point[0]) for name, points in sorted(curves.items())}


def write(folder: Path, events: list[Any]) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
    for event in events:
        writer.add_event(event)
    writer.close()


def scalars(step: int, numbers: dict[str, float]) -> list[Any]:
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    return [_event(scalar_pb(name, value), step) for name, value in numbers.items()]


def text(name: str, content: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    return _event(text_pb(name, content), 0)


def image(path: Path) -> Any:
    """A PNG as it is; its size stands in bytes 16 to 24."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    picture = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=data)
    return _event(Summary(value=[Summary.Value(tag=f"figures/{path.stem}", image=picture)]), 0)


def _event(summary: Any, step: int) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=TIME, step=step, summary=summary)
