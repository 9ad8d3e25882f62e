"""Our decoding inside lm-evaluation-harness: `python -m sdbench.lm_eval run --model sdbench …` is its own command line."""
