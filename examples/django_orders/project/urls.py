"""The URL routes."""

from django.urls import path
from orders import views

urlpatterns = [
    path("orders", views.create_order),
    path("receipts/<str:result_id>", views.receipt),
]
