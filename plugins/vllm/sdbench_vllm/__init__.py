"""The rules of sdbench inside a vLLM server: `register` is what vLLM calls where VLLM_PLUGINS names `sdbench`."""


def register() -> None:
    """Puts the seam in place, in the front end and in the engine core; a version that is not known is an error."""
    import os

    if "sdbench" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return  # installed, but not asked for: a server of this environment is as it was
    from sdbench_vllm.seam import install

    install()
