"""The same shop on a machine that fails when the first order is entered, and nothing is settled or answered yet."""

import os
import signal

from django.db.models.signals import post_save

from bookshop import asgi
from bookshop.models import Order

application = asgi.application


def power_cut(instance: Order, **_more: object) -> None:
    """As ``kill -9``: nobody tidies up."""
    print("the power fails before order", instance.pk, "is settled", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


post_save.connect(power_cut, sender=Order)
