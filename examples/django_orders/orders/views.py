"""Requests in, results out."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from orders.models import Order
from orders.tasks import send_receipt


@csrf_exempt
@transaction.atomic
def create_order(request: HttpRequest) -> JsonResponse:
    """The order and its receipt, or neither."""
    wanted = json.loads(request.body)
    order = Order.objects.create(item=wanted["item"], price=wanted["price"])
    result = send_receipt.enqueue(order.pk)
    if order.price < 0:
        transaction.set_rollback(True)
        return JsonResponse({"error": "a price is not negative"}, status=400)
    return JsonResponse({"order": order.pk, "receipt": result.id}, status=201)


def receipt(_request: HttpRequest, result_id: str) -> JsonResponse:
    result = send_receipt.get_result(result_id)
    text = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"status": result.status, "receipt": text})
