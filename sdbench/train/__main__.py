"""python -m sdbench.train"""

from sdbench.__main__ import main

if __name__ == "__main__":
    main("train")
