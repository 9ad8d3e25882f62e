"""What the sources of drafters report, and why the numbers in results/drafters differ: a table of drafter_tables.py."""

HEADLINES = {
    "model": ("2 to 3× (T5-XXL, arXiv:2211.17192)", "a tiny draft is not much cheaper than its tiny target"),
    "lookup": ("2 to 4× on tasks that copy (Saxena 2023)", "prompts are short, and answers copy single words of them"),
    "suffix": ("up to 5.3× (arXiv:2411.04975)", "the paper reads outputs of other requests too, of agents that repeat themselves"),
    "retrieval": ("1.62 to 2.36× (REST, arXiv:2311.08252)", "chains instead of trees, and another corpus"),
    "early-exit": ("1.83× (LayerSkip, Llama-3-8B)", "a target of a few layers that was not trained for early exits"),
    "universal": ("up to 1.9× (arXiv:2502.05202)", "two tiny models of other families, as fast as each other"),
    "intersection": ("up to 2.5× (TLI, arXiv:2502.05202)", "a tiny draft of another family and training"),
    "gate": ("2.07× per token (PIPO, arXiv:2605.27255)", "plain rules judge each token: only `sure` spares the target"),
    "tiers": ("2.5 to 3× (VIA-SD, arXiv:2606.12243)", "plain rules judge each token: only `sure` spares the target"),
    "medusa": ("2.2 to 3.6× (arXiv:2401.10774)", "a chain instead of a tree, and a target that is cheap to call"),
    "mtp": ("1.8× (DeepSeek-V3, one token, arXiv:2412.19437)", "five tokens from one layer, and a target of few layers"),
    "eagle": ("2.7 to 3.5× (LLaMA2-Chat 70B, arXiv:2401.15077)", "a chain instead of a tree, and 200 steps of training"),
    "block": ("up to 6.2× (DFlash, Qwen3-8B, arXiv:2602.06036)", "blocks of 5 instead of 16, and 200 steps of training"),
    "eagle3": ("3.0 to 6.5× (arXiv:2503.01840)", "a chain instead of a tree, and 200 steps of training"),
    "hybrid": ("5.41×, 21.8 % over EAGLE-3 (Graft, arXiv:2605.20104)", "a chain instead of a tree, and a separate draft model"),
    "pruned": (
        "about 1.4× (Intel, Qwen3-0.6B without 6 of 28 layers)",
        "Intel's draft is healed by training, this one is not; [healed.md](healed.md) compares both",
    ),
    "healed": (
        "about 1.4×, from 1.3× before (Intel, Qwen3-8B and Qwen3-0.6B without 6 of 28 layers, trained on 500,000 answers)",
        "3 of the target's own 18 layers, trained on its answers to one task: [healed.md](healed.md)",
    ),
    "distilled": (
        "10 to 45 % over the draft before (DistillSpec, arXiv:2310.08461)",
        "tokens per round, not speed; this draft differs from its target mostly in wording, which 200 steps on one task teach it: "
        "[results/learned](../README.md#learned-heads-judges-and-drafts)",
    ),
    "model (int8)": (
        "2.2× in int8, 3.4× in int4, 7.3× in int8 with a draft of 164M (StarCoder 15B on a Xeon, "
        "huggingface.co/blog/intel-starcoder-quantization)",
        "a 15B target in int8 reads half the bytes of bfloat16 for a token; here the draft is in int8, whose weights are few, "
        "and in float32 they are converted in each call",
    ),
    "model (heuristic)": (
        "0.89 to 1.82× (eight pairs and tasks, huggingface.co/blog/dynamic_speculation_lookahead)",
        "tokens per round, not speed, and a length grows to 8 at most",
    ),
    "model (confidence)": (
        "1.09 to 2.71×, on seven of the eight above `heuristic` (the same)",
        "tokens per round, not speed, and this draft's q(x) is hardly ever below 0.4 at T = 0, so its blocks do not end earlier",
    ),
    "model (adaptive)": ("no figure for a threshold that is fitted online (arXiv:2405.04304)", "–"),
    "model (value)": ("no figure", "–"),
}  # fmt: skip
