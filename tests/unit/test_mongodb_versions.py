"""Which versions of MongoDB have which vulnerabilities."""

from __future__ import annotations

import pytest

from recruiter.doctor.findings import Level
from recruiter.doctor.server import VULNERABILITIES, judge_version, parse, vulnerabilities_in


@pytest.mark.parametrize(
    ("version", "cves"),
    [
        ("6.0.5", {"CVE-2025-14847"}),
        ("6.0.26", {"CVE-2025-14847"}),
        ("6.0.27", set()),
        ("6.0.30", set()),
        ("7.0.16", {vulnerability.cve for vulnerability in VULNERABILITIES}),
        ("7.0.17", {"CVE-2025-14847", "CVE-2026-25611", "CVE-2026-9740"}),
        ("7.0.28", {"CVE-2026-25611", "CVE-2026-9740"}),
        ("7.0.48", set()),
        ("8.0.4", {vulnerability.cve for vulnerability in VULNERABILITIES}),
        ("8.0.17", {"CVE-2026-25611", "CVE-2026-9740"}),
        ("8.0.37", set()),
        ("8.2.2", {"CVE-2025-14847", "CVE-2026-25611", "CVE-2026-9740"}),
        ("8.2.10", set()),
        ("9.0.6", set()),
        ("9.0.7", set()),
        ("10.0.0", set()),
    ],
)
def test_vulnerabilities(version: str, cves: set[str]) -> None:
    parsed = parse(version)
    assert parsed is not None
    assert {vulnerability.cve for vulnerability in vulnerabilities_in(parsed)} == cves


@pytest.mark.parametrize("text", ["", "eight", "8.0", "v8"])
def test_what_is_no_version_is_not_judged(text: str) -> None:
    assert parse(text) is None
    assert list(judge_version(text, "db:27017")) == []


def test_release_candidates_are_read_too() -> None:
    assert parse("8.0.0-rc12") == (8, 0, 0)


def test_a_vulnerability_is_a_problem_where_others_reach_it() -> None:
    (finding,) = judge_version("8.0.16", "db.example.org:27017")

    assert finding.level is Level.PROBLEM
    assert "CVE-2025-14847, fixed in 8.0.17" in finding.text
    assert finding.todo == "Upgrade to 8.0.24 or newer"


@pytest.mark.parametrize("address", ["127.0.0.1:27017", "localhost:27017", "[::1]:27017"])
def test_a_vulnerability_is_a_note_where_nobody_else_does(address: str) -> None:
    assert [finding.level for finding in judge_version("8.0.16", address)] == [Level.NOTE]


def test_nothing_is_said_of_a_version_without() -> None:
    assert list(judge_version("8.0.37", "db:27017")) == []


def test_too_old() -> None:
    (finding,) = judge_version("5.0.3", "db:27017")

    assert (finding.level, finding.todo) == (Level.PROBLEM, "Upgrade to 6.0 or newer")
