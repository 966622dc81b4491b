"""The same client on a machine that fails, ``before`` or ``after`` Phase 2: ``python unlucky.py before cleo``."""

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

import letters

moment = sys.argv[1]
really_send = HTTPAdapter.send


def send(self: HTTPAdapter, request: PreparedRequest, *args: Any, **how: Any) -> Response:
    """Send each request but the confirm, of which the machine dies: ``kill -9``, nobody tidies up."""
    is_confirm = str(request.url).endswith("/confirm")
    if is_confirm and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = really_send(self, request, *args, **how)
    if is_confirm:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


with patch.object(HTTPAdapter, "send", send):
    letters.main(sys.argv[2:])
