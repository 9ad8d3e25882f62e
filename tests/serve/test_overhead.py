"""What the warning on a server's own clock says of the time that the server does not account for."""

import math

import pytest

from sdbench.engines.served.remarks import warn_of_overhead
from sdbench.metrics.load import overhead
from sdbench.records import LoadRecord, Store, read
from tests.records.synthetic import cell


@pytest.mark.parametrize(
    ("queue_s", "rest", "share"),
    [(0.5, "transport and this client", 0.2), (math.nan, "queueing, transport and this client", 0.45)],
)
def test_a_queue_that_is_not_reported_is_not_called_transport(queue_s, rest, share, tmp_path, capsys):
    """Of two seconds the server decodes for one, reads the prompt for a tenth, and half a second was in its queue."""
    setting = cell("micro", "gsm8k-tiny", "lossless", temperature=0.0)
    seconds = {"first_token_s": 0.8, "decode_s": 1.2, "block_s": 2.0}
    server = {"server_first_token_s": 0.1, "server_decode_s": 1.0, "server_queue_s": queue_s}
    with Store.open(tmp_path, config={}) as store:
        store.add_cells([setting])
        store.append([LoadRecord("p", "machine", setting.key, "e0", 0, 2, 10, **seconds, **server)])
        warn_of_overhead(store, "p")
    assert overhead(read(tmp_path).loads) == pytest.approx(share)
    assert (
        f"the server reports {share:.0%} less time than this client measures: the rest is {rest}\n"
        in capsys.readouterr().err
    )
