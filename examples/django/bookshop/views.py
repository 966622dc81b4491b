"""The one view. It would look the same without twophp, but for the intent that it notes."""

import json

from django.http import HttpRequest, JsonResponse

from bookshop.models import Order
from twophp import current_intent


async def orders(request: HttpRequest) -> JsonResponse:
    """Order a book."""
    intent = current_intent()
    assert intent is not None  # The policy says require=True.
    title = json.loads(request.body)["title"]
    order = await Order.objects.acreate(title=title, intent=intent.server_correlation_id)
    return JsonResponse({"id": order.pk, "title": title}, status=201)
