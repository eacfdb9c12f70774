"""Tests with Django's own client. The receipts are sent here and now, by `flush`: no worker is needed."""

import os

from django.test import Client, TransactionTestCase

from orders.models import Order
from recruiter.contrib.django.backend import recruiters
from recruiter.testing import Sandbox

TARGET = os.environ.get("RECRUITER_TEST_TARGET", "mongodb://localhost:27017/orders_test")


class OrderTests(TransactionTestCase):
    def setUp(self) -> None:
        self.jobs = Sandbox(recruiters()["default"], TARGET)
        self.client = Client()

    def tearDown(self) -> None:
        self.jobs.close()

    def test_an_order_gets_its_receipt(self) -> None:
        answer = self.client.post("/orders", {"item": "cat", "price": 7}, content_type="application/json")
        self.assertEqual(answer.status_code, 201)
        place = f"/receipts/{answer.json()['receipt']}"
        self.assertEqual(self.client.get(place).json(), {"status": "READY", "receipt": None})

        self.jobs.flush()

        receipt = {"status": "SUCCESSFUL", "receipt": "Receipt for one cat: 7 euros"}
        self.assertEqual(self.client.get(place).json(), receipt)
        self.assertTrue(Order.objects.get().mailed)

    def test_an_order_that_is_rolled_back_has_no_receipt(self) -> None:
        answer = self.client.post("/orders", {"item": "cat", "price": -1}, content_type="application/json")

        self.assertEqual(answer.status_code, 400)
        self.jobs.assert_nothing_enqueued()
        self.assertFalse(Order.objects.exists())
