"""A FastAPI application whose orders are handled in the background.

pip install '../recruiter[embedded,web]'
recruiter dev examples/fastapi_orders.py          # a private MongoDB and a fleet
uvicorn --app-dir examples fastapi_orders:app     # the application, in another terminal
curl -X POST 'localhost:8000/orders?item=cat&price=7'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from recruiter import JobNotFound, Recruiter, current_job
from recruiter.contrib.fastapi import RecruiterDep, health, lifespan, transaction
from recruiter.web import BasicAuth, dashboard

recruiter = Recruiter()


@recruiter.task(group="mail", timeout="1m")
async def send_receipt(item: str, price: int) -> str:
    current_job.stage("print", progress=0.5)
    return f"Receipt for one {item}: {price} euros"


@asynccontextmanager
async def database(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """The application's own client, on the same MongoDB as the jobs."""
    async with AsyncMongoClient[dict[str, Any]](recruiter.address) as client:
        yield {"client": client, "orders": client[recruiter.target.database].orders}


def client_of(request: Request) -> AsyncMongoClient[dict[str, Any]]:
    client: AsyncMongoClient[dict[str, Any]] = request.state.client
    return client


Transaction = Annotated[AsyncClientSession, transaction(client_of)]

app = FastAPI(lifespan=lifespan(recruiter, database))
app.add_route("/health", health(recruiter))
app.mount("/jobs", dashboard(recruiter, access=BasicAuth({"ada": "change me"})))


@app.post("/orders", status_code=201)
async def create_order(item: str, price: int, request: Request, session: Transaction) -> dict[str, str]:
    """The order and its receipt, or neither: both are in the transaction of this request."""
    order = await request.state.orders.insert_one({"item": item, "price": price}, session=session)
    job = await send_receipt.job(item, price).aenqueue(session=session)
    if price < 0:
        raise HTTPException(400, "a price is not negative")
    return {"order": str(order.inserted_id), "receipt": str(job.id)}


@app.get("/receipts/{id}")
async def receipt(id: str, jobs: RecruiterDep) -> dict[str, Any]:
    try:
        job = await jobs.afind(id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
    return {"state": job.state, "stage": job.stage, "receipt": job.result}
