"""Speeds of closed loops: a loop in which requests were repeated alone shows no speed under load."""

import math

import pandas as pd

from sdbench.metrics.load import load_table


def loop(cell: str, concurrency: int, *, repeat: int = 0, is_disturbed: bool = False) -> list[dict]:
    seconds = math.nan if is_disturbed else 4.0
    return [
        {
            "cell": cell,
            "verifier": cell,
            "concurrency": concurrency,
            "pass_id": "p",
            "repeat": repeat,
            "reached": 1.0,
            "example": str(example),
            "tokens": 10,
            "first_tokens": 1,
            "first_token_s": 0.1,
            "decode_s": 1.0 + example / 10,
            "block_s": seconds,
            "held_s": seconds,
            "held_tokens": 0 if is_disturbed else 40,
            "is_cached": False,
            **dict.fromkeys(("server_queue_s", "server_first_token_s", "server_decode_s"), math.nan),
        }
        for example in range(4)
    ]


def test_a_loop_with_repeated_requests_has_no_speed_of_a_user():
    rows = [*loop("target", 1), *loop("lossless", 1, is_disturbed=True)]
    rows += [*loop("target", 8), *loop("lossless", 8, is_disturbed=True), *loop("ensemble", 8)]
    table = load_table(pd.DataFrame(rows)).set_index(["cell", "concurrency"])
    users = ["tokens_per_s_user", "first_token_s", "speedup_user"]
    assert table.loc[("lossless", 8), users].isna().all()
    assert table.loc[("ensemble", 8), users].notna().all()
    assert table.loc[("lossless", 1), users].notna().all(), "with one user a repeat changes nothing"


def test_a_disturbed_repeat_is_left_out_of_the_tokens_of_all_users():
    """It made those of all repeats unknown."""
    rows = [*loop("lossless", 8), *loop("lossless", 8, repeat=1, is_disturbed=True)]
    (row,) = load_table(pd.DataFrame(rows)).to_dict("records")
    assert row["tokens_per_s_all"] == 4 * 40 / 4.0
    (row,) = load_table(pd.DataFrame(rows[4:])).to_dict("records")
    assert math.isnan(row["tokens_per_s_all"])
