"""The background tasks. `recruiter.contrib.django` finds this file by its name."""

from orders.models import Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task(queue_name="mail", priority=10)
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.mailed = True
    order.save()
    return f"Receipt for one {order.item}: {order.price} euros"
