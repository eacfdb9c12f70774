"""The pages of flows: a list, and each flow drawn as a graph with states and times."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from bson import ObjectId

from recruiter import FlowHandle, Recruiter
from recruiter.domain.state import Why
from recruiter.web.drawings import FOLDED, MOST, graph_of
from recruiter.web.schemas import FlowStepRow
from tests.flows import Stage
from tests.web.conftest import Consoles


def row(step: str, *after: str, task: str = "resize", state: str = "waiting", any: tuple[str, ...] = ()) -> FlowStepRow:
    return FlowStepRow(step, step, task, state, list(after), list(any), None, None, None, None)


class TestGraph:
    def test_a_column_for_each_depth_and_a_line_for_each_wait(self) -> None:
        graph = graph_of([row("a"), row("b", "a"), row("c", "a", "b", any=("b",))])

        assert graph is not None
        assert [node.x for node in graph.nodes] == sorted({node.x for node in graph.nodes})
        assert len(graph.edges) == 3
        assert [edge.any for edge in graph.edges].count(True) == 1

    def test_many_that_look_alike_are_one_box(self) -> None:
        parts = [row(f"p{n}", "a", state="succeeded") for n in range(1000)]
        graph = graph_of([row("a"), *parts, row("last", *(part.step for part in parts))])

        assert graph is not None
        assert [node.count for node in graph.nodes] == [1, 1000, 1]
        assert len(graph.edges) == 2

    def test_few_are_boxes_of_their_own(self) -> None:
        graph = graph_of([row(f"p{n}") for n in range(FOLDED - 1)])

        assert graph is not None
        assert len({node.y for node in graph.nodes}) == FOLDED - 1

    def test_parallel_chains_are_one_stack_for_each_link_and_a_chain_that_fails_stands_alone(self) -> None:
        loads = [row(f"load{n}", "a", task="load", state="succeeded") for n in range(180)]
        sums = [row(f"sum{n}", f"load{n}", task="sum", state="failed" if n == 7 else "succeeded") for n in range(180)]
        graph = graph_of([row("a"), *loads, *sums, row("last", *(step.step for step in sums), task="last")])

        assert graph is not None
        assert sorted(node.count for node in graph.nodes) == [1, 1, 1, 1, 179, 179]
        assert len(graph.edges) == 6

    def test_steps_of_very_many_kinds_are_one_box_for_each_task_and_state(self) -> None:
        loads = [row(f"load{n}", *(f"first{m}" for m in range(9) if n >> m & 1)) for n in range(1, 500)]
        graph = graph_of([*(row(f"first{m}", task=f"first{m}") for m in range(9)), *loads])

        assert graph is not None
        assert sorted(node.count for node in graph.nodes) == [*[1] * 9, 499]

    def test_what_nobody_could_read_is_not_drawn(self) -> None:
        assert graph_of([row(f"p{n}", task=f"task{n}") for n in range(MOST + 1)]) is None


@pytest.fixture
def handle(recruiter: Recruiter) -> FlowHandle:
    @recruiter.task
    def resize(width: int) -> None: ...

    stage = Stage(recruiter)
    flow = recruiter.flow("<thumbnails>", owner="ada")
    first = flow.add(resize, 1)
    flow.add(resize, 2, after=first)
    handle = flow.start()
    stage.run(first.id, fails=[first.id])
    stage.settle_down()
    return handle


def test_the_list_and_the_page(console: Consoles, handle: FlowHandle) -> None:
    client = console()

    listed, page = client.get("/flows").text, client.get("/flow", params={"id": str(handle.id)}).text

    assert "&lt;thumbnails&gt;" in listed
    assert f"flow?id={handle.id}" in listed
    assert "<thumbnails>" not in listed + page
    assert page.count('<g class="box') == 2
    assert page.count('<path class="edge') == 1
    assert "ValueError: no good" in page
    assert "2 steps: 1 failed, 1 skipped" in page
    assert "<script>" not in page
    assert client.get("/flow", params={"id": "6afbf38fd1b5b741bf1a5de1"}).status_code == 404
    assert client.get("/flow", params={"id": "nonsense"}).status_code == 404
    for start in ("x", "²", "9" * 5000):
        assert client.get("/flow", params={"id": str(handle.id), "start": start}).status_code == 200, start[:9]


def test_the_api(console: Consoles, handle: FlowHandle) -> None:
    client = console()

    (flow,) = client.get("/api/flows").json()["flows"]
    shown = client.get("/api/flow", params={"id": str(handle.id)}).json()

    assert (flow["name"], flow["state"], flow["counts"]) == ("<thumbnails>", "failed", {"failed": 1, "skipped": 1})
    assert [step["state"] for step in shown["steps"]] == ["failed", "skipped"]
    first, second = (client.get("/api/job", params={"id": step["job"]}).json() for step in shown["steps"])
    assert (first["flow"], second["flow_step"]["after"]) == (flow["id"], [first["id"]])


def test_actions(console: Consoles, handle: FlowHandle) -> None:
    client = console(actions=True)

    def does(verb: str) -> str:
        answer = client.post("/api/actions", json={"verb": verb, "name": str(handle.id), "reason": "lunch"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["text"])

    assert does("retry-flow") == "1 step recovered; the flow continues."
    assert "paused" in does("pause-flow")
    assert does("resume-flow") == "The flow continues."
    assert does("cancel-flow") == "1 step being cancelled."
    refused = client.post("/api/actions", json={"verb": "retry-flow", "name": str(handle.id)})
    assert (refused.status_code, "is being cancelled" in refused.text) == (400, True), refused.text


def test_lost_steps_are_not_retried(console: Consoles, recruiter: Recruiter) -> None:
    stage = Stage(recruiter)
    recruiter.task(name="pay")(lambda: None)
    flow = recruiter.flow("f")
    lost = flow.add("pay")
    handle = flow.start()
    stage.run(lost.id, fails=[lost.id], why=Why.LOST)
    stage.settle_down()

    answer = console(actions=True).post("/api/actions", json={"verb": "retry-flow", "name": str(handle.id)}).json()

    assert answer["text"].startswith("0 steps recovered. Lost steps may have done their work and stay unchanged: 1.")
    assert handle.report().counts == {"lost": 1}


def test_every_step_of_a_large_flow_is_on_a_page(console: Consoles, recruiter: Recruiter) -> None:
    recruiter.task(name="resize")(lambda _: None)
    flow = recruiter.flow("many")
    first = flow.add("resize", 0, name="first")
    for width in range(1, 1100):
        flow.add("resize", width, after=first)
    client, found, place = console(), set[str](), f"flow?id={flow.start().id}"

    while place:
        page = client.get(place).text
        found |= set(re.findall(r'<tr id="p-\w+"><td>(\w+)</td>', page))
        following = re.search(r'<a class="button" href="(flow[^"#]*)#steps">Next page', page)
        place = html.unescape(following[1]) if following else ""

    assert found == {"first", *map(str, range(1, 1100))}


def test_pages_of_flows_that_were_made_at_the_same_time_have_each_flow_once(
    console: Consoles, recruiter: Recruiter
) -> None:
    now = datetime.now(UTC)
    flows = [{"_id": ObjectId(), "name": f"f{number:03}", "created_at": now} for number in range(120)]
    recruiter.store.flows.collection.insert_many(flows)
    client, found, after = console(), list[str](), ""

    while True:
        page = client.get("flows", params={"q": "F", "after": after}).text
        found += re.findall(r'<a href="flow\?id=\w+">(f\d+)</a>', page)
        following = re.search(r'href="(flows\?[^"]*after=[^"]*)">Next page', page)
        if following is None:
            break
        after = parse_qs(html.unescape(following[1]).partition("?")[2])["after"][0]

    assert sorted(found) == [flow["name"] for flow in flows]
    assert client.get("flows", params={"after": "nonsense"}).status_code == 400
    assert client.get("flows", params={"state": "queued"}).status_code == 400
