"""A post office: it sends each letter that is confirmed."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

sent: list[str] = []


async def send(request: Request) -> JSONResponse:
    """Send a letter. It runs once for each, whatever becomes of the client."""
    letter = await request.json()
    sent.append(letter["to"])
    return JSONResponse({"id": f"receipt-{len(sent)}"}, status_code=201)


async def show(_request: Request) -> JSONResponse:
    """All that was sent."""
    return JSONResponse(sent)


app = Starlette(routes=[Route("/letters", send, methods=["POST"]), Route("/letters", show)])
app.add_middleware(
    TwoPhaseMiddleware,
    service="office",
    store="sqlite:///office.db",
    identify=anonymous,
    policies={"POST /letters": Policy.long_running()},  # Two minutes to confirm.
    allow_insecure=True,  # Loopback.
)
