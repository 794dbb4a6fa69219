"""Settings: defaults, environment, flags, and every way to get them wrong."""

from pathlib import Path

import pytest

from wire.environment import as_text, load, without_password
from wire.settings import Settings, SettingsError


class DeskSettings(Settings, frozen=True, kw_only=True):
    """A desk with fields of its own."""

    max_items: int = 5
    ratio: float = 0.5
    loud: bool = False
    room_bytes: int | None = None


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"HEADRACE_MAX_ITEMS": "7", "HEADRACE_RATIO": "0.25", "HEADRACE_LOUD": "true"}
    settings = load(DeskSettings, environ, {"max_items": "9"})
    assert (settings.max_items, settings.ratio, settings.loud) == (9, 0.25, True)


def test_a_misspelt_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingsError, match="HEADRACE_MAX_ITMES"):
        load(DeskSettings, {"HEADRACE_MAX_ITMES": "7"})


def test_a_variable_of_another_service_is_no_error() -> None:
    assert load(Settings, {"HEADRACE_MAX_ITEMS": "7"}).partitions == 1


def test_a_misspelt_variable_brings_the_name_that_was_meant() -> None:
    with pytest.raises(SettingsError, match=r"did you mean HEADRACE_MAX_ITEMS\?"):
        load(DeskSettings, {"HEADRACE_MAX_ITMES": "7"})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("MAX_ITEMS", "many", "a whole number"),
        ("MAX_ITEMS", "", "a whole number"),
        ("MAX_ITEMS", "1.5", "a whole number"),
        ("ROOM_BYTES", "10GB", "a whole number of bytes"),
        ("RATIO", "1e400", "a number"),
        ("LOUD", "maybe", "true or false"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_variable_and_what_would_be_right(
    name: str, value: str, wanted: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(DeskSettings, {f"HEADRACE_{name}": value})
    assert str(refused.value) == f"HEADRACE_{name} must be {wanted}, not {value!r}"


def test_a_flag_s_fault_is_not_put_on_the_variable() -> None:
    with pytest.raises(SettingsError, match=r"^partitions must be at least 1"):
        load(Settings, {"HEADRACE_PARTITIONS": "4"}, {"partitions": "0"})
    with pytest.raises(SettingsError, match=r"^HEADRACE_PARTITIONS must be at least 1"):
        load(Settings, {"HEADRACE_PARTITIONS": "0"})


def test_a_home_directory_is_named_by_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = load(Settings, {"HEADRACE_STATE_DIR": "~/state"}, {"model_dir": "~/models"})
    assert (settings.state_dir, settings.model_dir) == ("/home/me/state", "/home/me/models")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partitions", "0"),
        ("partitions", "99999999999999999999"),
        ("state_dir", ""),
        ("model_dir", ""),
        ("metrics_host", ""),
        ("block_size", "12"),
        ("models", ""),
        ("models", "a,b/c"),
        ("models", "a,b,a"),
        ("drain_s", "-1"),
        ("drain_s", "nan"),
        ("drain_s", "inf"),
        ("log_level", "loud"),
        ("metrics_port", "65536"),
        ("awake_ms", "-1"),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: str) -> None:
    with pytest.raises(SettingsError, match=field):
        load(Settings, {}, {field: value})


def test_lists_are_split_at_commas() -> None:
    assert load(Settings, {"HEADRACE_MODELS": "one, two"}).models == ("one", "two")


def test_settings_as_text_hold_one_line_a_field() -> None:
    assert len(as_text(DeskSettings()).splitlines()) == len(DeskSettings.__struct_fields__)


def test_a_password_in_the_bus_url_is_not_shown() -> None:
    assert "secret" not in as_text(Settings(redis_url="redis://:secret@bus:6379/0"))
    assert without_password("rediss://me:se:cr@t@bus:1/0") == "rediss://me:***@bus:1/0"
    assert without_password("unix:///run/bus.sock") == "unix:///run/bus.sock"
    hidden = without_password("rediss://bus?db=1&password=se:c@ret&ssl_password=pass&ssl_ca_certs=ca.pem")
    assert hidden == "rediss://bus?db=1&password=***&ssl_password=***&ssl_ca_certs=ca.pem"


def test_a_user_without_a_home_directory_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError(path)

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(SettingsError, match="state_dir must be set to a folder"):
        load(Settings, {})


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ("one", "adapters: must read NAME=DIR or NAME@MODEL=DIR, not 'one'"),
        ("=/x", "adapters: must read"),
        ("one=", "adapters: must read"),
        ("one@=/x", "adapters: must read"),
        ("one=/x,one=/y", "adapters: 'one' is the name of another adapter"),
        ("b=/x", "adapters: 'b' is the name of another model"),
        ("one@c=/x", "adapters: 'one@c=/x' is of 'c', which is none of models"),
    ],
)
def test_an_adapter_that_is_not_said_well_is_refused(adapters: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(Settings, {}, {"models": "a,b", "adapters": adapters})


def test_adapters_belong_to_the_first_model_unless_they_name_another() -> None:
    settings = load(Settings, {"HEADRACE_ADAPTERS": "one=/x, two@b=~/y"}, {"models": "a,b"})
    assert [(place.name, str(place.path)) for place in settings.adapters_of("a")] == [("one", "/x")]
    assert [(place.name, place.path) for place in settings.adapters_of("b")] == [("two", Path("~/y").expanduser())]
