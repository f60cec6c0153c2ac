"""Tokens of signed links: a signed link can be read from its token, and no other text is accepted."""

import pytest

from dagmaster.access.links import MAX_TOKEN_LENGTH, VersionLink, key_id_of, sign, verified

pytestmark = pytest.mark.requirement("C3", "X1")

ASSET_ID = "461328a8a54dee1e9a75fcbfc496f249"
LINKS = [
    VersionLink(ASSET_ID, 0, 1_800_000_000),
    VersionLink(ASSET_ID, 999_999_999, 1_800_000_000, revision=999_999_999),
    VersionLink(ASSET_ID, 3, 1_800_000_000, revision=2, is_preview=True),
]


@pytest.mark.parametrize("link", LINKS)
def test_a_token_contains_the_signed_link(link):
    token = sign(link, "k1", "secret")

    assert verified(token, "secret") == link
    assert key_id_of(token) == "k1"
    assert len(token) <= MAX_TOKEN_LENGTH


def test_the_format_of_tokens_does_not_change():
    token = sign(LINKS[0], "k1", "secret")

    assert token == f"dgl1.k1.{ASSET_ID}.0.0.d.1800000000.pSHnQn2_iMhAbvg_j4UI3QMBUUn6KhTLE4_k97Jl3xU"


@pytest.mark.parametrize("link", LINKS)
def test_a_token_with_any_other_character_is_not_accepted(link):
    token = sign(link, "k1", "secret")

    for place, letter in enumerate(token):
        # The last letter of the signature has two bits that base64 ignores: the texts are compared, not the bytes.
        for other in "0a_.B" if letter != "0" else "1a_.B":
            if other != letter:
                assert verified(token[:place] + other + token[place + 1 :], "secret") is None
    assert verified(f"{token}=", "secret") is None
    assert verified(token[:-1], "secret") is None
    assert verified(f"{token}\n", "secret") is None


def test_a_token_that_is_signed_with_another_secret_is_not_accepted():
    assert verified(sign(LINKS[0], "k1", "secret"), "other") is None


@pytest.mark.parametrize("text", ["", "dgl1", "next:abc:def", "x" * 5000, "dgl1." * 100])
def test_texts_in_another_form_are_not_tokens(text):
    assert key_id_of(text) is None
    assert verified(text, "secret") is None


def test_a_link_expires():
    link = VersionLink(ASSET_ID, 0, 100)

    assert not link.is_expired(99.9)
    assert link.is_expired(100)


def test_a_link_to_a_preview_must_name_the_revision():
    with pytest.raises(ValueError, match="must name the revision"):
        VersionLink(ASSET_ID, 0, 100, is_preview=True)
    forged = sign(VersionLink(ASSET_ID, 0, 100), "k1", "secret").replace(".d.", ".p.")
    assert verified(forged, "secret") is None
