"""The rules of sdbench inside a vLLM server. vLLM calls `register` when it loads its plug-ins."""


def register() -> None:
    """Install the plug-in, in the front end and in the engine core, if VLLM_PLUGINS names `sdbench`; RuntimeError for a version of
    vLLM that it does not support.
    """
    import os

    if "sdbench" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return  # installed, but not requested: servers of this environment are unchanged
    from sdbench_vllm.seam import install

    install()
