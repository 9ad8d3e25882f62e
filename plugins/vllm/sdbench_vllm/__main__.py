"""`python -m sdbench_vllm`: whether the vLLM of this environment has the seam that the plug-in knows; exit code 2 where not."""

import sys

from sdbench_vllm.seam import differences


def main() -> int:
    found = differences()
    for line in found:
        print(f"sdbench-vllm: {line}", file=sys.stderr)
    print("the seam is not the known one" if found else "the seam is the known one")
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main())
