"""TensorBoard: event files with one TensorBoard run per curve. The step is 10,000 · w; a baseline is a horizontal line."""

import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sdbench.trackers import Findings, TrackerError, curve_of, need

SUFFIX = ".sdbench"
TIME = 0.0  # a fixed time, so that the same records give the same events
FULL = 10_000  # the step of w = 1; steps are whole numbers, and w may have decimals, as 0.995


class TensorBoard:
    """Writes event files to `folder`/NAME for a results folder NAME; None: to tensorboard/ inside the results folder."""

    def __init__(self, folder: str | None = None) -> None:
        need("tensorboard", "tensorboard")
        self.folder = folder

    def send(self, findings: Findings) -> str:
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        home = findings.folder / "tensorboard" if self.folder is None else Path(self.folder) / findings.name
        try:
            for old in home.rglob(f"events.out.tfevents.*{SUFFIX}"):
                old.unlink()  # sending again replaces the events of the same records
            for curve, points in curves(findings).items():
                write(home / curve, [(step, scalar_pb(*item)) for step, numbers in points for item in numbers.items()])
            advice = text_pb("recommendation", findings.advice)
            write(home / "report", [(0, advice), *((0, image(path)) for path in findings.figures)])
        except OSError as error:
            raise TrackerError(f"event files cannot be written: {error}") from None
        return f"tensorboard --logdir {home}"


def curves(findings: Findings) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """Return the points (step, numbers) of each curve, by rule, draft length, temperature and settings that differ.

    A cell without w is a horizontal line: two equal points.
    """
    curves: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for name, labels, numbers in findings.cells():
        steps = [round(FULL * labels["w"])] if "w" in labels else [0, FULL]
        curves[curve_of(name)] += [(step, numbers) for step in steps]
    return {name: sorted(points, key=lambda point: point[0]) for name, points in sorted(curves.items())}


def write(folder: Path, summaries: Iterable[tuple[int, Any]]) -> None:
    """Write one event file: a step and a summary for each event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
    for step, summary in summaries:
        writer.add_event(Event(wall_time=TIME, step=step, summary=summary))
    writer.close()


def image(path: Path) -> Any:
    """Return a PNG file as a summary. Bytes 16 to 23 of the file are width and height."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    picture = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=data)
    return Summary(value=[Summary.Value(tag=f"figures/{path.stem}", image=picture)])
