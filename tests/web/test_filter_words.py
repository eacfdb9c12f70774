"""A link, the search box and the command line say the same."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.cli.options import FilterOptions
from recruiter.errors import InvalidFilter
from recruiter.web import filter_words


def test_what_is_typed_becomes_words() -> None:
    typed, free = filter_words.split(
        'task:resize owner:ada error:Timeout arg.order=7 tag:"two words" since:2h created-since=1d'
    )
    assert free == ""
    assert typed == {
        "task": ["resize"],
        "tag": ["two words"],
        "owner": ["ada"],
        "error": ["Timeout"],
        "arg": ["order=7"],
        "since": ["2h"],
        "created_since": ["1d"],
    }


@pytest.mark.parametrize("text", ["colour:red", ":", "task:", 'colour:a "unclosed'])
def test_what_is_no_condition_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidFilter, match="task:resize"):
        filter_words.split(text)


def test_other_words_are_a_text_to_search_for() -> None:
    assert filter_words.split('refused task:a "unclosed') == ({"task": ["a"]}, 'refused "unclosed')


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(str.strip)
WORDS = st.dictionaries(
    st.sampled_from(["state", "task", "tag", "owner", "urn"]), st.lists(TEXT, min_size=1, max_size=3, unique=True)
).map(lambda said: {name: said[name] for name in filter_words.NAMES if name in said})


@given(WORDS)
def test_a_link_says_the_same_as_the_words_it_was_made_of(said: dict[str, list[str]]) -> None:
    assert filter_words.words_in(parse_qsl(filter_words.query(said), keep_blank_values=True)) == said


@given(WORDS)
def test_the_command_line_says_the_same(said: dict[str, list[str]]) -> None:
    program, group, verb, *options = shlex.split(filter_words.command(said))
    assert (program, group, verb) == ("recruiter", "job", "list")
    assert (
        dict(filter_words.words_in(zip((o[2:].replace("-", "_") for o in options[::2]), options[1::2], strict=True)))
        == said
    )


@given(WORDS)
def test_each_chip_takes_its_own_condition_away(said: dict[str, list[str]]) -> None:
    total = sum(map(len, said.values()))
    for _, without in filter_words.chips(said):
        left = filter_words.words_in(parse_qsl(without, keep_blank_values=True))
        assert sum(map(len, left.values())) == total - 1


def test_every_word_of_the_command_line_is_known_here() -> None:
    assert set(filter_words.NAMES) == set(FilterOptions.__dataclass_fields__)
