"""`python -m sdbench_vllm`: report whether the plug-in supports the vLLM of this environment; exit code 2 if not."""

import sys

from sdbench_vllm.seam import differences


def main() -> int:
    found = differences()
    for line in found:
        print(f"sdbench-vllm: {line}", file=sys.stderr)
    print("the plug-in does not support this vLLM" if found else "the plug-in supports this vLLM")
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main())
