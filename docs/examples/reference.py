"""Speculative decoding with any token-wise rule, one text at a time and without a cache: what the engine computes, in plain Python.

    tokens = decode([1, 2], target, draft, Ensemble(w=0.7), num_draft=5, num_new=20, uniforms=uniforms)

`target(text)` and `draft(text)` return the distribution of the next token, a list of V probabilities. `uniforms(n)` returns the
random numbers of round n: one to draw each drafted token, one to judge each, and one to draw the token that ends the round.
"""

from itertools import accumulate

import torch


def decode(prompt, target, draft, rule, *, num_draft, num_new, uniforms):
    """Return `num_new` tokens."""
    text, end, number = list(prompt), len(prompt) + num_new, 0
    while len(text) < end:
        to_draw, to_judge, to_end = uniforms(number)
        block, q = [], []
        for slot in range(
            min(num_draft, end - len(text) - 1)
        ):  # the token that ends the round has room after the draft
            q.append(draft(text + block))
            block.append(sample(q[slot], to_draw[slot]))
        p = [target(text + block[:slot]) for slot in range(len(block) + 1)]  # one forward pass of a real target
        law = p[-1]
        for slot, x in enumerate(block):
            keep, replacement = judge(rule, p[slot], q[slot], x)
            if to_judge[slot] >= keep:  # the first rejection ends the block
                block, law = block[:slot], replacement
                break
        text += [*block, sample(law, to_end)]
        number += 1
    return text[len(prompt) :]


def judge(rule, p, q, x):
    """Return the probability that a token-wise rule keeps the drafted x, and the distribution that replaces it if not."""
    p, q = (torch.tensor(law, dtype=torch.float64)[None, None] for law in (p, q))  # [B,K,V] of one row and one slot
    return float(rule.accept(p, q)[0, 0, x]), rule.replace_rejected(p, q, torch.tensor([[x]]))[0, 0].tolist()


def sample(law, u):
    """Return the first token whose cumulative probability exceeds u."""
    total = sum(law)
    return next(token for token, mass in enumerate(accumulate(law)) if mass > u * total)
