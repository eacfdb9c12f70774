"""Bytes on the wire: compressed streams, patches instead of pages, and large values cut."""

from __future__ import annotations

import re
import zlib
from typing import Any

import httpx

from recruiter import Recruiter
from tests.web.conftest import Consoles

HUGE = "x" * (2 * 2**20)
PAGE_BYTES = 120 * 1024


class Wire:
    """The packed bytes of an open page."""

    def __init__(self, answer: httpx.Response) -> None:
        self._packed = answer.iter_raw()
        self._unpacker = zlib.decompressobj(wbits=31)

    def event(self) -> tuple[str, int]:
        """The name of the next event that changes the page, and its bytes on the wire."""
        text, size = "", 0
        for packed in self._packed:
            size += len(packed)
            text += self._unpacker.decompress(packed).decode()
            found = re.search(r"^event: (content|patch)\n(?s:.*)\n\n\Z", text, re.MULTILINE)
            if found is not None:
                return found[1], size
        raise AssertionError(f"the stream has ended: {text[-500:]}")


def test_a_live_page_is_compressed_and_its_changes_are_patches(console: Consoles, recruiter: Recruiter) -> None:
    for number in range(50):
        recruiter.job("hello", {"number": number}).enqueue()
    client = console()
    page_bytes = len(client.get("jobs").content)
    with client.stream("GET", "live/jobs") as answer:
        assert answer.headers["content-encoding"] == "gzip"
        wire = Wire(answer)
        name, size = wire.event()
        assert (name, size < page_bytes / 5) == ("content", True), size
        recruiter.job("hello", {"number": -1}).with_priority(9).enqueue()
        name, size = wire.event()
        assert (name, size < 1_000) == ("patch", True), size


def test_a_client_that_takes_no_gzip_gets_plain_events(console: Consoles) -> None:
    with console().stream("GET", "live/groups", headers={"accept-encoding": ""}) as answer:
        assert "content-encoding" not in answer.headers
        assert any(line == "event: content" for line in answer.iter_lines())


def test_a_job_with_large_values_has_small_pages_with_a_link_to_all_of_it(
    console: Consoles, recruiter: Recruiter
) -> None:
    @recruiter.task
    def echo(text: str) -> str:
        return text

    echo.job(HUGE).here().execute()
    client = console()
    (id,) = [row["id"] for row in client.get("api/jobs").json()["jobs"]]

    for tab in ("arguments", "result", "attempts", "history", "log", "stages", "document"):
        page = client.get("job", params={"id": id, "tab": tab}).text
        assert len(page) < PAGE_BYTES
        if tab in ("arguments", "result", "document"):
            assert "2 MiB" in page or "4 MiB" in page
            (link,) = re.findall(r'href="(api/job\?id=\w+)"', page)
    whole: dict[str, Any] = client.get(link).json()
    assert whole["args"] == {"text": HUGE}
    assert whole["result"] == HUGE


def test_a_list_with_an_open_job_stays_small(console: Consoles, recruiter: Recruiter) -> None:
    id = recruiter.job("echo", {"text": HUGE}).enqueue().id

    page = console().get("jobs", params={"open": str(id)}).text

    assert "Only the start is shown" in page
    assert len(page) < PAGE_BYTES
