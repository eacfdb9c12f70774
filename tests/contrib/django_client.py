"""A browser for the example project: orders a cat with Django's test client, and waits for the receipt that a worker
sends. Run as a program by test_django.py."""

from __future__ import annotations

import json
import sys
import time

import django
from django.core.management import call_command
from django.test import Client

django.setup()


def main() -> None:
    call_command("migrate", run_syncdb=True, verbosity=0)
    client = Client()
    order = client.post("/orders", {"item": "cat", "price": 7}, content_type="application/json").json()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = client.get(f"/receipts/{order['receipt']}").json()
        if answer["status"] in ("SUCCESSFUL", "FAILED"):
            print(json.dumps(answer))
            return
        time.sleep(0.02)
    sys.exit(f"no receipt: {answer}")


if __name__ == "__main__":
    main()
