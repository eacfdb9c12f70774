"""Text on its way out of the program: it commands no terminal, forges no line and carries no password."""

from __future__ import annotations

import json
import string
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recruiter.domain.text import json_safe, mask, one_line, printable

TEXT = st.text(st.characters(exclude_categories=()))

OBEYED = (
    "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x80\x85\x9b\x9d\u061c\u200b\u200e\u202e\u2066\u2028\u2029\ufeff\ud800\U000e0041"
)


class TestPrintable:
    @pytest.mark.parametrize("character", OBEYED)
    def test_what_a_terminal_obeys_or_hides_is_written_out(self, character: str) -> None:
        assert printable(f"a{character}b") == f"a{ascii(character)[1:-1]}b"

    @given(TEXT)
    def test_all_of_it_can_be_written_and_is_one_line(self, text: str) -> None:
        line = one_line(text)

        assert line.encode().decode() == line
        assert len(line.splitlines()) <= 1
        assert not set(line) & set(OBEYED)

    @given(TEXT)
    def test_json_means_the_same_as_before(self, text: str) -> None:
        written = json_safe(json.dumps({"text": text}, ensure_ascii=False))

        assert json.loads(written) == {"text": text}
        assert not set(written) & set(OBEYED)


SECRET = "S3CR\u00c9T"
"""Stands inside every password here: wherever it is found, a part of the password is found."""

AROUND = st.text(string.ascii_letters + string.digits + " \t\n:/?#[]@!$'\"()*+,;=%.-_~{}|", max_size=12)


class TestSecrets:
    @given(before=AROUND, after=AROUND, user=st.text(string.ascii_letters, min_size=1, max_size=8))
    @example(" ", "", "u")
    @example("", " \t\n", "u")
    @example("27017 ", "", "u")
    @example("p@x ", "", "u")
    def test_passwords_of_an_address_escaped_or_not(self, before: str, after: str, user: str) -> None:
        text = mask(f"cannot use mongodb://{user}:{before}{SECRET}{after}@db.example.org/shop: no answer")

        assert SECRET not in text
        assert text.endswith("@db.example.org/shop: no answer")

    @pytest.mark.parametrize(
        "named",
        [
            "mongodb://h/?tls=true&tlsCertificateKeyFilePassword={}&w=1",
            "mongodb://h/?tlsCertificateKeyFilePassword=a {}",
            "mongodb://h/?proxyHost=p&proxyUsername=u&proxyPassword={}",
            "mongodb://h/?proxyPassword=a@{}",
            "mongodb://h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{}",
            "mongodb://h/?authMechanismProperties=X:1,AWS_SESSION_TOKEN:a/b=={}&w=1",
            "MongoClient(host='h', password='a \\' {}')",
            '{{"password": "two words and a {}"}}',
            "AWS_SESSION_TOKEN={}",
            "tlsCertificateKeyFilePassword: {}",
            "mongodb+srv://u:{}",
            "'mongodb://u:a b\tc{}' has no host",
            "mongodb://u:{}/db",
        ],
    )
    def test_whatever_is_named_as_a_secret(self, named: str) -> None:
        text = mask(named.format(SECRET))

        assert SECRET not in text
        assert "***" in text

    @pytest.mark.parametrize(
        "text",
        [
            "mongodb://127.0.0.1:27017",
            "mongodb://127.0.0.1:27017: connection refused",
            "mongodb://127.0.0.1:27017 does not answer, mongodb://[::1]:27017/shop neither",
            "'mongodb://a:1,b:2,c/shop?replicaSet=rs0', and more",
            "write 127.0.0.1:27017, host/database, mongodb://… or mongodb+srv://…",
            "put them into the address: mongodb://USER:PASSWORD@HOST/DATABASE",
            "https://docs.example.org/page?x=1",
            "the password is wrong",
        ],
    )
    def test_text_without_a_secret_stays_as_it_is(self, text: str) -> None:
        assert mask(text) == text

    @given(AROUND)
    def test_masking_twice_is_masking_once(self, password: str) -> None:
        text = mask(f"mongodb://u:{password}{SECRET}@host/?proxyPassword={SECRET}")

        assert mask(text) == text

    @pytest.mark.parametrize("piece", ["x", "passwd", "?", "&a", "://", "mongodb://", "token:", "'", "key"])
    def test_it_takes_no_longer_for_long_texts_than_it_must(self, piece: str) -> None:
        began = time.process_time()
        mask(piece * (20_000 // len(piece)))

        assert time.process_time() - began < 1.0
