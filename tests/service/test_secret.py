"""What counts as a secret, and what merely sounds like one."""

import shlex

import pytest

from service.api.secret import arguments_hold_secret, holds_secret, names_secret, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "--api-key x",
        "--api_key=x",
        "--api-k x",
        "--hf-token x",
        "--hf-t=x",
        "--served-model-name a --api-key x y",
        "--hf-overrides.auth_token x",
        '--hf-overrides \'{"password": "x"}\'',
        "--unheard-of-secret x",
        "--chat-template hf_abcdefghijklmnopqrst",
        "--download-dir https://user:pass@host/x",
    ],
)
def test_a_secret_on_a_command_line_is_found(text: str) -> None:
    assert arguments_hold_secret(shlex.split(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--max-num-batched-tokens 2048",
        "--max-num-batched-token 2048",
        "--tokenizer a/b --tokenizer-mode auto",
        "--hf_overrides '{\"a\": 1}' --hf_config_path x",
        "--hf-overrides.token_limit 3",
        "--spec-tokens 3 --enable-prompt-tokens-details",
        "--hf-token",
        "--api-key $(API_KEY)",
        "--api-key=${API_KEY} --hf-token $HF_TOKEN",
        "--served-model-name token secret password",
    ],
)
def test_what_only_sounds_like_one_is_none(text: str) -> None:
    assert not arguments_hold_secret(shlex.split(text))


def test_names_and_values() -> None:
    assert all(map(names_secret, ("hf_token", "HF_TOKEN", "apiKey", "db-password", "x.client_secret", "private_key")))
    assert not any(map(names_secret, ("tokens", "tokenizer", "key", "cache_key", "max_num_batched_tokens", "")))
    assert all(map(holds_secret, ("sk-abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst", "Bearer abcdefghijklmnop")))
    assert not any(
        map(holds_secret, ("Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B", "hf_overrides", "sk-1", "a bearer of news"))
    )


def test_a_body_without_its_secrets_keeps_everything_else() -> None:
    body = {"a": 1, "hf_token": "x", "env": [{"name": "HF_TOKEN", "value": "x"}, {"name": "A", "value": "b"}]}
    assert without_secrets(body) == {
        "a": 1,
        "hf_token": "[removed]",
        "env": [{"name": "HF_TOKEN", "value": "[removed]"}, {"name": "A", "value": "b"}],
    }
