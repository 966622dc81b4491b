"""What the tests of the examples compare with can fail."""

from __future__ import annotations

import re

import pytest

from tests.examples.tour import Step, pattern, steps

README = """
```console
$ python buy.py tea
COMMITTED 200 {'id': '...'}
$ python buy.py --all
...
tea
```

```sh
make nothing
```
"""


def test_a_readme_has_steps() -> None:
    assert list(steps(README)) == [
        Step("python buy.py tea", "COMMITTED 200 {'id': '...'}"),
        Step("python buy.py --all", "...\ntea"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("", "", True),
        ("", "a warning", False),
        ("id (...)", "id (42)", True),
        ("id (...)", "id (42", False),
        ("id ...", "id 42\nand more", False),
        ("...\ntea", "milk\nsugar\ntea", True),
        ("...\ntea", "milk\ntea\nsugar", False),
    ],
)
def test_what_is_printed_is_compared(shown: str, printed: str, fits: bool) -> None:
    assert bool(re.fullmatch(pattern(shown), printed)) is fits
