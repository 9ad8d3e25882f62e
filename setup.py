"""Only what pyproject.toml cannot say: the YAML files of configs/ go into the wheel as sdbench/configs."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """An editable install needs no copy: it finds configs/ beside the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                Path(__file__).parent / "configs", Path(self.build_lib, "sdbench", "configs"), dirs_exist_ok=True
            )


setup(cmdclass={"build_py": BuildWithConfigs})
