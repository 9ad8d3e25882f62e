"""Speculative decoding as a model of lm-evaluation-harness: `python -m sdbench.lm_eval run --model sdbench …`."""
