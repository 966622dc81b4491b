"""What the server runs: Django, and the middleware around it.

``service``, ``store`` and ``allow_insecure`` are TWOPHP_SERVICE, TWOPHP_STORE and TWOPHP_ALLOW_INSECURE.
"""

import os
from typing import Any, Literal

from django.core.asgi import get_asgi_application

from twophp import Policy, anonymous
from twophp.asgi import TwoPhaseMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bookshop.settings")
django = get_asgi_application()


async def reconcile(intent: Any) -> tuple[Literal["COMMITTED", "NOT_DONE"], str | None]:
    """Say what became of an intent whose process died in the view: it is done if its order is there."""
    from bookshop.models import Order  # noqa: PLC0415 - models can be imported once Django is set up.

    order = await Order.objects.filter(intent=intent.server_correlation_id).afirst()
    return ("COMMITTED", str(order.pk)) if order else ("NOT_DONE", None)


application = TwoPhaseMiddleware(
    django,
    identify=anonymous,
    policies={"POST /orders": Policy.standard(require=True)},
    reconcile=reconcile,
)
