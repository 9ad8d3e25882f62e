"""Engines that are servers: servers that are already running (Http), and those of vLLM and llama.cpp that are started here."""

from sdbench.engines.served.llamacpp import LlamaCpp
from sdbench.engines.served.options import Http
from sdbench.engines.served.started import Vllm

__all__ = ["Http", "LlamaCpp", "Vllm"]
