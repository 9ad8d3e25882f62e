"""The clock waits for any kind of accelerator, and for nothing on a CPU or when it is off."""

from types import SimpleNamespace

import pytest
import torch

from sdbench.engine.clock import Clock


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "hpu"])
def test_a_reading_waits_for_the_device(kind, monkeypatch):
    waits = []
    modules = {kind: SimpleNamespace(synchronize=lambda: waits.append(kind))}
    monkeypatch.setattr(torch, "get_device_module", lambda device: modules[device.type])
    assert Clock(torch.device(kind), True).read() > 0
    assert waits == [kind]
    assert Clock(torch.device(kind), None).read() == 0
    assert waits == [kind]


def test_a_reading_on_a_cpu_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: pytest.fail("nothing to wait for"))
    assert Clock(torch.device("cpu"), True).read() > 0
