"""What pyproject.toml cannot say: the dashboards, which lie beside the packages, are shipped within
streamfl."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DASHBOARDS = Path(__file__).parent / "dashboards"


class WithDashboards(build_py):
    """Packages, and ``dashboards/*.json`` as ``streamfl/dashboards``. An editable installation reads them
    where they lie."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "streamfl", "dashboards")
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(DASHBOARDS.glob("*.json")):
                self.copy_file(str(path), str(folder / path.name))


setup(cmdclass={"build_py": WithDashboards})
