"""A Flask application whose orders are handled in the background.

pip install '../recruiter[embedded]' flask
flask --app examples/flask_orders.py recruiter dev    # a private MongoDB and a fleet
flask --app examples/flask_orders.py run              # the application, in another terminal
curl -X POST 'localhost:5000/orders?item=cat&price=7'
"""

import os
from typing import Any

from flask import Flask, current_app, request

from recruiter import JobNotFound
from recruiter.contrib.flask import FlaskRecruiter

recruiter = FlaskRecruiter()


@recruiter.task(group="mail")
def send_receipt(item: str, price: int) -> str:
    """Runs inside the application's context, in another process."""
    return f"Receipt for one {item}: {price} {current_app.config['CURRENCY']}"


def create_app(target: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["CURRENCY"] = "euros"
    app.config["RECRUITER_TARGET"] = target or os.environ.get("RECRUITER_TARGET", "mongodb://localhost:27017/orders")
    recruiter.init_app(app)

    @app.post("/orders")
    def create_order() -> tuple[dict[str, str], int]:
        job = send_receipt.enqueue(request.args["item"], int(request.args["price"]))
        return {"receipt": str(job.id)}, 201

    @app.get("/receipts/<id>")
    def receipt(id: str) -> dict[str, Any] | tuple[dict[str, str], int]:
        try:
            job = recruiter.find(id)
        except JobNotFound as error:
            return {"error": str(error)}, 404
        return {"state": job.state, "receipt": job.result}

    return app
