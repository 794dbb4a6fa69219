"""What pyproject.toml cannot express: compile the native CPU kernels, if that is possible.

A machine without a C compiler gets one for the build, out of the package `ziglang`. If nothing can be built the
installation succeeds all the same: torch takes over, and `headrace doctor` says what was lost.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_NATIVE = Path(__file__).parent / "kernels" / "native"


def _build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headrace_native_build", _NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildNative(build_ext):
    """Compile each instruction set's build beside the sources (editable) or into the wheel."""

    def run(self) -> None:
        """Compile; a failure is told, not raised."""
        native = _build_module()
        output = native.OUTPUT if self.inplace else Path(self.build_lib) / "kernels" / "native" / "lib"
        try:
            built = native.build(output)
        except native.BuildError as error:
            print(f"headrace: native CPU kernels were not built, torch will do: {error}", file=sys.stderr)  # noqa: T201
        else:
            print(f"headrace: native CPU kernels built: {', '.join(built)}", file=sys.stderr)  # noqa: T201

    def get_outputs(self) -> list[str]:
        """Return nothing: what was built is package data."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing, as there is no module to link to."""
        return {}


setup(
    ext_modules=[Extension("kernels.native.lib", sources=[], optional=True)],
    cmdclass={"build_ext": BuildNative},
    setup_requires=[] if _build_module().compiler() else ["ziglang==0.17.1"],
)
