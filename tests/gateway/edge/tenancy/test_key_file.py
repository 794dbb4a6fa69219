"""The file of keys: what stands in it, what is wrong with it, and how a change of it is followed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.edge.tenancy.key_file import ApiKey, KeyFileError, as_toml, hash_of, new_key, parse
from gateway.edge.tenancy.keyring import Keyring

KEY = new_key()
ROW = f'[[key]]\nid = "a"\ntenant = "t"\nhash = "{hash_of(KEY)}"\n'


def test_keys_are_long_never_equal_and_stand_in_the_file_as_digests_only() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100 and all(key.startswith("hr-") and len(key) > 40 for key in keys)
    assert KEY not in ROW and parse(ROW)[hash_of(KEY)].tenant == "t"


def test_what_is_written_is_what_is_read() -> None:
    full = ApiKey(
        id="b", tenant='t"2', hash=hash_of("x"), requests_per_minute=1, max_concurrent=2, priority=-1, models=("m", "n")
    )
    least = ApiKey(id="a", tenant="t", hash=hash_of(KEY))
    assert list(parse(as_toml(full) + "\n" + as_toml(least)).values()) == [full, least]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("[[key]", "not TOML"),
        pytest.param(f"a = {'[' * 3000}{']' * 3000}", "not TOML", id="nested too deep"),
        ("[key]\na = 1", "unknown entry 'key'"),
        ("other = 1", "unknown entry 'other'"),
        ('[[key]]\nid = "a"\ntenant = "t"\n', "key 'a'"),
        ('[[key]]\ntenant = "t"\n', "key number 1"),
        (ROW + "limit = 3\n", "limit"),
        (ROW + "max_concurrent = -1\n", "negative"),
        (ROW.replace("sha256:", "md5:"), "hash"),
        (ROW.replace('"t"', '""'), "tenant"),
        (ROW.replace('"a"', '"a b"'), "`id`"),
        (ROW + ROW, "twice"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_the_name_of_the_key(source: str, named: str) -> None:
    with pytest.raises(KeyFileError, match=named):
        parse(source)


def test_a_changed_file_counts_once_it_rests_and_a_bad_one_leaves_the_keys_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(ROW)
    keyring = Keyring(path)
    assert keyring.find(KEY) is not None and keyring.find("other") is None
    path.write_text(ROW + "disabled = tru")
    with caplog.at_level(logging.ERROR):
        keyring.refresh()
        keyring.refresh()
        keyring.refresh()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    found = keyring.find(KEY)
    assert found is not None and not found.disabled
    path.write_text(ROW.replace(hash_of(KEY), hash_of("other")) + "priority = 5\n")
    keyring.refresh()
    assert keyring.find(KEY) is not None
    keyring.refresh()
    found = keyring.find("other")
    assert keyring.find(KEY) is None and found is not None and found.priority == 5
    path.unlink()
    keyring.refresh()
    keyring.refresh()
    assert keyring.find("other") is not None
    with pytest.raises(KeyFileError, match=r"keys\.toml"):
        Keyring(path)
