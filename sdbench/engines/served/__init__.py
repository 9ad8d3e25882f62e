"""Engines that are servers: those that run already (Http), and vLLM servers that are started here (Vllm)."""

from sdbench.engines.served.options import Http, Vllm

__all__ = ["Http", "Vllm"]
