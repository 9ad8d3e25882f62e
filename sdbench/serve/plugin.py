"""`python -m sdbench.serve.plugin --check PYTHON`: whether the vLLM of an interpreter has the seam that our plug-in knows.

Exit code 0 where it does; 2, and what differs, where it does not, or where the plug-in or vLLM is not installed there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from sdbench.config import ConfigError
from sdbench.serve.command import look

USAGE = "usage: python -m sdbench.serve.plugin --check PYTHON"
CHECK_S = 600  # importing vLLM alone takes long


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or argv[0] != "--check":
        print(USAGE, file=sys.stderr)
        return 2
    try:
        facts = look(argv[1], "vllm")
        if not look(argv[1], "sdbench_vllm")["there"]:
            raise ConfigError(f"{argv[1]} has no sdbench_vllm: pip install --no-deps plugins/vllm there")
    except ConfigError as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return 2
    print(f"vllm {facts['version']}", flush=True)
    return subprocess.run([argv[1], "-m", "sdbench_vllm"], timeout=CHECK_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
