"""Each folder of the package can be read in a sitting: it holds a dozen modules at most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

PACKAGE = Path(__file__).parents[2] / "mcproxy"
MODULES: Final = 12
"""In one folder, beside its `__init__.py`."""


def crowded(package: Path) -> dict[str, int]:
    """The folders below the package that hold too many modules, and how many."""
    modules = (path for path in package.rglob("*.py") if path.name != "__init__.py")
    counted = Counter(path.parent.relative_to(package.parent).as_posix() for path in modules)
    return {folder: many for folder, many in counted.items() if many > MODULES}


def test_no_folder_has_more_than_a_dozen_modules() -> None:
    assert crowded(PACKAGE) == {}, "give those that belong together a folder of their own"


def test_a_folder_with_too_many_modules_is_found(tmp_path: Path) -> None:
    room = tmp_path / "package" / "room"
    room.mkdir(parents=True)
    for name in ("__init__", *map(str, range(MODULES))):
        (room / f"{name}.py").touch()
    assert crowded(tmp_path / "package") == {}
    (room / "more.py").touch()
    assert crowded(tmp_path / "package") == {"package/room": MODULES + 1}
