"""vLLM's server with a fault planted in our plug-in: `python -m faulty_server …` replaces a rejected draft from the wrong law.

vLLM imports the main module again in its engine, so that the fault stands there too.
"""

import runpy

from sdbench.verify import ensemble


def target_alone(p, q):
    """p [B,K,V], where norm((p − q)+) is meant."""
    return p


ensemble.excess = target_alone

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
