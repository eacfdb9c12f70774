"""Where MongoDB is, as people write it; and never with a password where it can be read."""

from __future__ import annotations

import pytest

from recruiter.errors import InvalidTarget
from recruiter.store.connection import Target

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "uri", "database"),
    [
        ("127.0.0.1:27017", "mongodb://127.0.0.1:27017", "recruiter"),
        ("localhost", "mongodb://localhost", "recruiter"),
        ("  localhost/shop  ", "mongodb://localhost/shop", "shop"),
        ("a:1,b:2/shop", "mongodb://a:1,b:2/shop", "shop"),
        ("[::1]:27017/shop", "mongodb://[::1]:27017/shop", "shop"),
        ("mongodb://h", "mongodb://h", "recruiter"),
        ("mongodb://h/shop?replicaSet=rs0", "mongodb://h/shop?replicaSet=rs0", "shop"),
        ("mongodb://h/?replicaSet=rs0", "mongodb://h/?replicaSet=rs0", "recruiter"),
        ("mongodb://u:p@h/shop", "mongodb://u:p@h/shop", "shop"),
        ("mongodb://u:p%40%2F@h/shop", "mongodb://u:p%40%2F@h/shop", "shop"),
        ("mongodb+srv://u:p@cluster.example.net/shop", "mongodb+srv://u:p@cluster.example.net/shop", "shop"),
        ("mongodb+srv://cluster.example.net", "mongodb+srv://cluster.example.net", "recruiter"),
        ("mongodb+srv://c.example.net/?w=1", "mongodb+srv://c.example.net/?w=1", "recruiter"),
        ("mongodb+srv://c.example.net/shop?authSource=x", "mongodb+srv://c.example.net/shop?authSource=x", "shop"),
    ],
)
def test_each_form_of_an_address_is_understood(text: str, uri: str, database: str) -> None:
    target = Target.parse(text)

    assert (target.uri, target.database) == (uri, database)


@pytest.mark.parametrize(
    "uri",
    [
        f"mongodb://ada:{SECRET}@h/shop",
        f"mongodb://ada:{SECRET}@h1:1,h2:2/shop?replicaSet=rs0",
        f"mongodb+srv://ada:{SECRET}@cluster.example.net/shop",
        f"ada:{SECRET}@h/shop",
        f"mongodb://h/shop?tls=false&tlsCertificateKeyFilePassword={SECRET}",
    ],
)
def test_a_password_is_shown_nowhere(uri: str) -> None:
    target = Target.parse(uri)

    assert SECRET in target.uri, "it is still used"
    assert SECRET not in f"{target} {target!r} {[target]}"
    assert "shop" in str(target)


@pytest.mark.parametrize(
    "text",
    [
        f"mongodb://ada:{SECRET}@h:port/shop",
        f"mongodb://ada:x@{SECRET}@h/shop",
        f"mongodb://ada:x/{SECRET}@h/shop",
        f"mongodb://ada:{SECRET}@/shop",
        f"http://ada:{SECRET}@h/shop",
        f"ada:{SECRET}@h:port",
        f"ada:x/{SECRET}@h",
        f"mongodb://ada:50%{SECRET}@h/shop",
        f"mongodb://ada:{SECRET}",
        f"ada:{SECRET}",
        f"mongodb://ada:{SECRET}/shop",
        f"mongodb://ada: {SECRET}\t@h:port",
        f"mongodb://ada:x\n{SECRET}@h:port",
        f"mongodb://h:port/?proxyHost=p&proxyPassword={SECRET}",
        f"mongodb://h/?proxyPassword={SECRET}",
        f"mongodb://h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{SECRET}&x",
        f"mongodb://h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN={SECRET}",
    ],
)
def test_an_error_does_not_show_it_either(text: str) -> None:
    """People forget to escape, and the error goes to a log."""
    with pytest.raises(InvalidTarget) as refused:
        Target.parse(text)

    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", [f"mongodb+srv://ada:x@{SECRET}@h/shop", f"mongodb+srv://ada:x/{SECRET}@h/shop"])
def test_a_password_that_should_have_been_escaped_is_masked_wholly(text: str) -> None:
    """An address of this kind is not parsed before it is used; whatever is shown of it must not hold the password."""
    try:
        shown = repr(Target.parse(text))
    except InvalidTarget as refused:
        shown = str(refused)

    assert SECRET not in shown
