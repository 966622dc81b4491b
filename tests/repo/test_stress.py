"""``make stress`` repeats tests beside busy processes until one fails, and leaves no process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import stress

COUNTING = "from pathlib import Path\n\ndef test_it():\n    runs = Path('runs')\n    runs.open('a').write('x')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def test_a_test_that_passes_is_run_as_often_as_was_asked(folder: Path) -> None:
    (folder / "test_it.py").write_text(COUNTING, encoding="utf-8")
    assert stress.main(["--times", "3", "--busy", "1", "--", "test_it.py", "-p", "no:cacheprovider"]) == 0
    assert (folder / "runs").read_text() == "xxx"


def test_the_first_failure_ends_it(folder: Path) -> None:
    (folder / "test_it.py").write_text(f"{COUNTING}    assert len(runs.read_text()) < 2\n", encoding="utf-8")
    assert stress.main(["--times", "3", "--busy", "0", "--", "test_it.py"]) == 1
    assert (folder / "runs").read_text() == "xx"


def test_no_busy_process_outlives_it() -> None:
    with stress.load(2) as busy:
        assert [one.poll() for one in busy] == [None, None]
    assert [one.returncode for one in busy] == [-9, -9]
