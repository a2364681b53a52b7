"""The file of tokens: what it may say, what is refused without being quoted, and the command that writes entries."""

import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.__main__ import main
from service.api.token import Token, digest_of, new_secret, read_tokens, token_entry
from service.domain.errors import ArtefactError

SHA = "a" * 64


def written(folder: Path, text: str) -> Path:
    """The text as a file."""
    path = folder / "tokens.toml"
    path.write_text(text)
    return path


def test_a_token_is_found_by_its_secret_alone(tmp_path: Path) -> None:
    metis, ops = new_secret(), new_secret()
    entries = token_entry("metis", metis, ["recommend"]) + token_entry("ops/1", ops, ["outcomes", "admin"])
    tokens = read_tokens(written(tmp_path, f"schema_version = 1\n{entries}"))
    assert tokens.find(metis.encode()) == ("metis", tokens.tokens["metis"])
    found = tokens.find(ops.encode())
    assert found is not None
    assert found[0] == "ops/1"
    assert tokens.find(metis.encode()[:-1]) is None
    assert tokens.find(digest_of(metis.encode()).encode()) is None
    assert metis not in entries


def test_while_one_secret_replaces_another_both_open(tmp_path: Path) -> None:
    digests = [digest_of(b"old"), digest_of(b"new")]
    text = f"schema_version = 1\n[tokens.a]\nsha256 = {json.dumps(digests)}\nscopes = ['recommend']\n"
    tokens = read_tokens(written(tmp_path, text))
    assert {tokens.find(secret) is not None for secret in (b"old", b"new")} == {True}


def test_admin_opens_everything_and_nothing_else_opens_more_than_itself() -> None:
    def may(*scopes: str) -> list[str]:
        token = Token.model_validate({"sha256": SHA, "scopes": scopes})
        return [scope for scope in ("recommend", "outcomes", "admin") if token.may(scope)]

    assert may("recommend") == ["recommend"]
    assert may("outcomes", "recommend") == ["recommend", "outcomes"]
    assert may("admin") == ["recommend", "outcomes", "admin"]


def test_a_token_ends_at_its_time() -> None:
    token = Token.model_validate(
        {"sha256": SHA, "scopes": ["admin"], "expires": tomllib.loads("x = 2027-01-31T00:00:00Z")["x"]}
    )
    assert not token.expired(datetime(2027, 1, 30, 23, 59, 59, tzinfo=UTC))
    assert token.expired(datetime(2027, 1, 31, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "schema_version: Field required"),
        ("schema_version = 2", "schema_version: Input should be less than or equal to 1"),
        ("schema_version = 1\ntoken = 3", "token: Extra inputs are not permitted"),
        ("schema_version = 1\n[tokens.a]\nscopes = ['admin']", "tokens.a.sha256: Field required"),
        (f"schema_version = 1\n[tokens.a]\nsha256 = '{SHA}'", "tokens.a.scopes: Field required"),
        (f"schema_version = 1\n[tokens.a]\nsha256 = '{SHA}'\nscopes = []", "tokens.a.scopes: "),
        (f"schema_version = 1\n[tokens.a]\nsha256 = '{SHA}'\nscopes = ['all']", "'recommend', 'outcomes' or 'admin'"),
        (f"schema_version = 1\n[tokens.'a b']\nsha256 = '{SHA}'\nscopes = ['admin']", "String should match pattern"),
        (f"schema_version = 1\n[tokens.a]\nsha256 = '{SHA}'\nscopes = ['admin']\nexpires = 2027-01-31T00:00:00",
         "tokens.a.expires: Input should have timezone info"),
        (f"schema_version = 1\n[tokens.a]\nsha256 = '{SHA}'\nscopes = ['admin']\n"
         f"[tokens.b]\nsha256 = '{SHA}'\nscopes = ['admin']", "a sha256 stands twice"),
        ("schema_version = 1\n[tokens.a]\nsha256 = 'planted-secret'\nscopes = ['admin']", "tokens.a.sha256.0: "),
        ("schema_version = 1\n[tokens.a]\nsha256 = planted-secret", "not TOML in UTF-8"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_say_is_one_line_without_what_stands_there(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        read_tokens(written(tmp_path, text))
    message = str(caught.value)
    assert says in message
    assert "tokens.toml" in message
    assert "planted" not in message
    assert SHA not in message


def test_a_file_that_is_not_there_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"No such file or directory; check MEMORYPOLICY_TOKENS_FILE"):
        read_tokens(tmp_path / "none.toml")


def test_the_command_makes_an_entry_that_the_file_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "metis", "--scope", "recommend", "--scope", "outcomes", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    path = written(tmp_path, f"schema_version = 1\n{made['entry']}")
    assert read_tokens(path).find(made["token"].encode()) is not None
    assert main(["token", "check", str(path)]) == 0
    assert capsys.readouterr().out == "metis: outcomes, recommend\n1 tokens\n"
    assert main(["token", "new", "metis", "--scope", "admin"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mpt_")
    assert '[tokens."metis"]' in shown


def test_the_command_refuses_a_name_that_a_record_could_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "me tis", "--scope", "admin"]) == 1
    assert "NAME: 'me tis' cannot be used" in capsys.readouterr().err
