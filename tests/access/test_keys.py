"""The text of a key: a generated key can be parsed, other texts are refused, and only the hash is compared."""

import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.access import secret_text
from dagmaster.access.keys import KeyText, new_key, parse_key
from dagmaster.observe.redaction import redact, redact_value

pytestmark = pytest.mark.requirement("X1")

KEY = re.compile(r"dgm_[a-z0-9]{12}_[A-Za-z0-9_-]{43}")


def test_a_new_key_has_256_random_bits_and_can_be_read_again():
    keys = [new_key() for _ in range(200)]

    assert len({key.text for key in keys}) == len({key.key_id for key in keys}) == 200
    for key in keys:
        assert KEY.fullmatch(key.text)
        assert parse_key(key.text) == key
        assert len(key.text.split("_", 2)[2]) * 6 >= 256


def test_a_new_secret_keeps_the_id():
    key = new_key()

    assert new_key(key.key_id).key_id == key.key_id
    assert new_key(key.key_id).text != key.text


@given(st.text())
def test_texts_in_another_form_are_not_keys(text):
    assert parse_key(text) is None or KEY.fullmatch(text)


@given(st.integers(0, 59), st.characters())
def test_a_changed_key_is_not_accepted(place, character):
    key = new_key()
    changed = key.text[:place] + character + key.text[place + 1 :]

    read = parse_key(changed)

    assert read is None or read == key or not read.has_hash(key.hash)


@pytest.mark.parametrize("around", [" {}", "{} ", "{}\n", "{}=", "\0{}", "x{}", "{}{}"])
def test_a_key_with_text_around_it_is_not_a_key(around):
    text = new_key().text

    assert parse_key(around.format(text, text)) is None


def test_hashes_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(secret_text.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    key = new_key()

    assert key.has_hash(key.hash)
    assert not key.has_hash("")
    assert compared == [(key.hash, key.hash), (key.hash, "")]
    assert secret_text.hmac is hmac


def test_the_text_is_not_in_the_repr():
    key = new_key()

    assert key.text not in repr(key)
    assert repr(key) == f"KeyText(key_id='{key.key_id}')"
    assert KeyText("a", "b") != KeyText("a", "c")


@pytest.mark.requirement("X3")
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_key_within_any_text_is_redacted(before, after):
    text = new_key().text
    secret = text.split("_", 2)[2]

    assert secret not in redact(before + text + after)
    assert secret not in str(redact_value({"a": [before, {"b": text + after}], text: 1}))


@pytest.mark.requirement("X3")
def test_the_id_of_a_redacted_key_stays_visible():
    key = new_key()

    assert redact(f"see {key.text}.") == f"see dgm_{key.key_id}_***."
