"""Puts the configuration and the pages of the documentation into the package when a wheel is built.

A clone and an editable install read `conf/` and `docs/` from the repository; an installed wheel reads its own copies.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COPIED = (("conf", "*.yaml"), ("docs", "*.md"))


class BuildWithConfiguration(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for folder, pattern in COPIED:
            for file in Path(folder).rglob(pattern):
                if "_build" not in file.parts:
                    target = Path(self.build_lib, "levytorch", file)
                    self.mkpath(str(target.parent))
                    self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithConfiguration})
