"""A session with the adapter may be sent to another process, as any session of requests may."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.client.callers import settings
from tests.client.shop import Shop, committed
from tests.patience import PATIENCE_S
from twophp.client.requests import TwoPhaseAdapter
from twophp.core.errors import ConfigError

SPAWNED = """
import multiprocessing, os, sys
import requests
from twophp.client.requests import TwoPhaseAdapter

def post(session, url):
    with session:
        return session.post(url, json={"item": 1}).twophp["phase"], os.getpid()

if __name__ == "__main__":
    session = requests.Session()
    adapter = TwoPhaseAdapter(ledger="sqlite:///checkout.db", source="checkout", allow_insecure=True)
    session.mount("http://", adapter)
    os.chdir("/")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        phase, there = pool.apply(post, (session, sys.argv[1]))
    assert (phase, there == os.getpid()) == ("COMMITTED", False)
    assert post(session, sys.argv[1])[0] == "COMMITTED"
"""


def unpickled(session: requests.Session) -> Any:
    return pickle.loads(pickle.dumps(session))  # noqa: S301 - our own.


def mounted(folder: Path, **changes: Any) -> requests.Session:
    session = requests.Session()
    session.headers["x-of-the-session"] = "yes"
    session.mount("http://", TwoPhaseAdapter(**settings(folder, **changes)))
    return session


def test_a_pickled_session_works_in_another_process(orders: Shop, tmp_path: Path) -> None:
    """Also from another folder: both write to the same ledger."""
    program = tmp_path / "spawning.py"
    program.write_text(SPAWNED)
    command = [sys.executable, str(program), f"{orders.url}/orders"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert len(orders.runs) == len(committed(tmp_path / "checkout.db")) == 2


@pytest.mark.parametrize("copied", [unpickled, copy.deepcopy])
def test_a_copy_has_the_settings_and_a_life_of_its_own(copied: Any, orders: Shop, tmp_path: Path) -> None:
    with mounted(tmp_path, max_body_bytes=1_234) as session:
        another = copied(session)
    adapter = another.get_adapter(orders.url)
    assert adapter._machinery.settings.max_body_bytes == 1_234
    with another:  # The original is closed.
        assert another.post(f"{orders.url}/orders").twophp["phase"] == "COMMITTED"
    assert orders.heard[-1].headers["x-of-the-session"] == "yes"
    with pytest.raises(Exception, match="closed"):
        another.post(f"{orders.url}/orders")


def test_a_copy_opens_nothing_before_it_is_used(tmp_path: Path) -> None:
    with mounted(tmp_path) as session:
        data = pickle.dumps(session)
    for path in tmp_path.iterdir():
        path.unlink()
    pickle.loads(data).close()  # noqa: S301 - our own.
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pickled_is_named_and_may_be_copied_all_the_same(orders: Shop, tmp_path: Path) -> None:
    with mounted(tmp_path, credentials=lambda _url: {"x-who": "me"}) as session:
        with pytest.raises(ConfigError, match="credentials") as raised:
            pickle.dumps(session)
        with copy.deepcopy(session) as another:
            another.post(f"{orders.url}/orders")
    assert raised.value.code == "not_picklable"
    assert orders.heard[-1].headers["x-who"] == "me"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_the_ledger_from_another_folder(orders: Shop, tmp_path: Path) -> None:
    program = """
import os, sys, requests
from twophp.client.requests import TwoPhaseAdapter
session = requests.Session()
session.mount("http://", TwoPhaseAdapter(ledger="sqlite:///checkout.db", source="checkout", allow_insecure=True))
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
os.chdir("/")
session.post(sys.argv[1])
session.close()
os._exit(0)
"""
    command = [sys.executable, "-W", "ignore", "-c", program, f"{orders.url}/orders"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert len(committed(tmp_path / "checkout.db")) == 1
