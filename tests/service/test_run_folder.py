"""The private folder of a run, and what killed runs leave."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratebound.service.listening import StartError
from ratebound.service.run_folder import make_run_folder
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import default_directory


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rb-") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        yield Path(made)


def files_of(zone: str) -> list[str]:
    return [name for name in os.listdir(default_directory()) if zone in name]


def test_a_folder_is_removed_with_its_zone(home: Path) -> None:
    folder = make_run_folder()
    zone = folder.own_zone()
    SharedMemoryStorage(zone, size=1 << 20)
    assert len(files_of(zone)) == 2
    folder.remove()
    assert files_of(zone) == []
    assert list(home.glob("ratebound-*/*")) == []


@pytest.mark.parametrize("is_made", [True, False], ids=["zone made", "zone not made"])
def test_a_start_removes_what_a_killed_run_left_and_nothing_of_a_run_that_goes_on(home: Path, is_made: bool) -> None:
    killed, lives = make_run_folder(), make_run_folder()
    zones = [folder.own_zone() for folder in (killed, lives)]
    for zone in zones if is_made else zones[1:]:
        SharedMemoryStorage(zone, size=1 << 20)
    for lock in killed._locks:
        os.close(lock)  # as the system does
    third = make_run_folder()
    assert (killed.path.exists(), lives.path.exists()) == (False, True)
    assert [len(files_of(zone)) for zone in zones] == [0, 2]
    lives.remove()
    third.remove()


def test_the_zone_of_a_killed_run_is_dropped_even_if_its_folder_is_gone(home: Path) -> None:
    killed = make_run_folder()
    zone = killed.own_zone()
    SharedMemoryStorage(zone, size=1 << 20)
    for path in killed.path.iterdir():
        path.unlink()
    killed.path.rmdir()
    for lock in killed._locks:
        os.close(lock)
    make_run_folder().remove()
    assert files_of(zone) == []


@pytest.mark.parametrize("how", ["mode", "link"])
def test_a_folder_that_others_may_enter_stops_the_start(home: Path, how: str) -> None:
    above = home / f"ratebound-{os.geteuid()}"
    if how == "mode":
        above.mkdir(mode=0o700)
        above.chmod(0o755)
    else:
        (home / "elsewhere").mkdir(mode=0o700)
        above.symlink_to(home / "elsewhere")
    with pytest.raises(StartError, match="must be a folder that only this user may enter"):
        make_run_folder()


def test_a_long_home_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = home / ("a" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    folder = make_run_folder()
    assert folder.path.parent.parent == home
    folder.remove()
