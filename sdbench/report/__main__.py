"""python -m sdbench.report"""

from sdbench.report.command import COMMAND

if __name__ == "__main__":
    COMMAND.main()
