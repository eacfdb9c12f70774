"""What a job asks for: one way to write it, exact sums, clear refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.planning.needs import MAX_AMOUNT, Needs, said
from recruiter.errors import InvalidJob

GIB = 2**30


class TestAmounts:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("4", 4 * GIB),
            ("0.5", GIB // 2),
            ("1048575", 1_048_575 * GIB),
            ("1048576", 2**20),
            ("4294967296b", 4 * GIB),
            ("2000kB", 2_000_000),
            ("2048KiB", 2 * 2**20),
            ("2MB", 2_000_000),
            ("2MiB", 2 * 2**20),
            ("2GB", 2_000_000_000),
            ("2GiB", 2 * GIB),
            ("2 gib", 2 * GIB),
            ("2G", 2_000_000_000),
            ("2Gi", 2 * GIB),
            (" 1.5 TB ", 1_500_000_000_000),
            ("1.1GB", 1_100_000_000),
            ("2000000.5b", 2_000_001),
            ("1EiB", MAX_AMOUNT),
        ],
    )
    def test_memory_is_read_in_every_unit(self, text: str, size: int) -> None:
        """A plain number below 1,048,576 is in GiB, a larger one in bytes."""
        assert Needs.of(mem=text) == Needs.of(mem=size)
        assert Needs.of(mem=text).amounts() == {"mem": size}

    @pytest.mark.parametrize("amount", ["1b", "512KB", "1MB"])
    def test_less_than_1_mib_of_memory_counts_as_1_mib(self, amount: str) -> None:
        needs = Needs.of(mem=amount)
        assert needs.amounts() == {"mem": 2**20}
        assert Needs.parse(str(needs)) == needs

    @pytest.mark.parametrize("number", [4, 4.0, 0.25, 1_048_575])
    def test_a_small_plain_number_of_memory_is_in_gib(self, number: float) -> None:
        assert Needs.of(mem=number) == Needs.of(mem=f"{number}GiB")

    @pytest.mark.parametrize(
        ("resource", "amount", "text"),
        [
            ("proc", 1500, "1.5"),
            ("proc", 2000, "2"),
            ("mem", 4 * GIB * 1000, "4 GiB"),
            ("mem", 2 * 10**12, "2 GB"),
            ("mem", 1_500_000_000, "1.5 MB"),
            ("mem", 999_000, "999 bytes"),
            ("mem", 0, "0 bytes"),
        ],
    )
    def test_an_amount_is_told_in_its_unit(self, resource: str, amount: int, text: str) -> None:
        assert said(resource, amount) == [text]


amounts = st.dictionaries(
    st.sampled_from(["proc", "mem", "gpu", "licence:matlab", "größe"]),
    st.integers(0, 2**50) | st.floats(0, 1000).filter(lambda number: round(number, 3) == number),
)


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    return Needs.of(draw(amounts))


@given(needs())
def test_the_text_is_read_back(some: Needs) -> None:
    text = str(some)

    assert Needs.parse(text) == some
    assert str(Needs.parse(text)) == text
    assert "/" not in text
    assert Needs.of(some.amounts()) == some


def test_ten_times_a_tenth_is_exactly_one() -> None:
    """0.1 ten times is one, not 0.9999999999999999."""
    total = Needs()
    for _ in range(10):
        total = total + Needs.of(proc=0.1)

    assert total == Needs.of(proc=1)
    assert total.fits(Needs.of(proc=1))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = Needs.parse(text)
    except InvalidJob:
        return
    assert Needs.parse(str(found)) == found


@given(needs(), needs())
def test_arithmetic(one: Needs, two: Needs) -> None:
    assert one + two == two + one
    assert one + two - two == one
    assert one.fits(one + two)
    assert one.fits(two) == (not one - two)
    assert not (one + Needs.of(proc=0.001)).fits(one)
    assert one + Needs() == one == one - Needs()
