"""python -m sdbench.audit"""

from sdbench.__main__ import main

if __name__ == "__main__":
    main("audit")
