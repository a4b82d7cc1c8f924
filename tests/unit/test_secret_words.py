"""No secret stands in the words of a recipe, in whatever of the ways in which a program is given one."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import secret_words
from sparkstack.check import check
from sparkstack.native import Recipe, secrets_in
from sparkstack.secret_words import named

VALUES = st.text("abcXYZ0189_.+/=,!@#%^*?~:-", min_size=9, max_size=40).map(lambda text: f"s{text}")
OPTIONS = st.sampled_from(
    [
        *("--api-key", "--api_key", "--admin-api-key", "--apikey", "--apiKey", "--API-KEY", "-api-key"),
        *("--hf-token", "--token", "--auth-token", "--authToken", "-hft", "--password", "--db.password"),
        *("--secret", "--client-secret", "--secret-key", "--access-key", "--ssl-keyfile-password"),
    ]
)
VARIABLES = st.sampled_from(
    [
        *("WANDB_API_KEY", "HF_TOKEN", "X_TOKEN", "TOKEN", "apikey", "OPENAI_API_KEY", "DB_PASSWORD"),
        *("AWS_SECRET_ACCESS_KEY", "CLIENT_SECRET", "HUGGING_FACE_HUB_TOKEN", "db_password"),
    ]
)
HARMLESS = st.lists(
    st.sampled_from(
        [
            *("srv", "exec", "--port", "{port}", "--max-token-len", "8", "--tokenizer", "x/y", "-e", "A=/x"),
            *("--eos-token", "</s>", "--max-batched-tokens", "4096", "--api-key-file", "{api_key_file}"),
            *("--tokenizer-mode=auto", "--token-ids", "tokenizer.ggml.add_bos_token=bool:false"),
            *("type=bind,src=/a/token,dst=/run/secret", "--env-file", "/root/key", "--max-token=4096"),
        ]
    ),
    max_size=5,
)


@st.composite
def hidden(draw: st.DrawFn) -> tuple[list[str], str, str]:
    """Words with a secret somewhere in them, its name, and its value."""
    value = draw(VALUES)
    if draw(st.booleans()):
        name = draw(OPTIONS)
        inner = draw(st.sampled_from([[name, value], [f"{name}={value}"]]))
    else:
        name = draw(VARIABLES)
        assigned = f"{name}={value}"
        ways = [["-e", assigned], ["--env", assigned], [f"--env={assigned}"], [f"-e{assigned}"], [assigned]]
        inner = draw(st.sampled_from(ways))
    words = [*draw(HARMLESS), *inner, *draw(HARMLESS)]
    for _ in range(draw(st.integers(0, 2))):
        line = draw(st.sampled_from([" ", " \\\n  ", "\n"])).join(map(shlex.quote, words))
        quoted = draw(st.sampled_from([line, line.replace(shlex.quote(value), f'"{value}"')]))
        words = ["sh", "-c", quoted, *draw(HARMLESS)]
    return words, name, value


def about(serve: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "x",
        "model": "a/b",
        "checkpoint": {"source": {"repo": "a/b", "revision": "0" * 40}},
        "image": {"base": f"x@sha256:{'0' * 64}"},
        "budget": {"memory_gib": 1, "disk_gib": 1},
        "serve": serve,
    }


@given(hidden())
def test_a_secret_is_found_wherever_it_stands(case: tuple[list[str], str, str]) -> None:
    words, name, value = case
    found = named(words)
    assert name in found
    assert value not in " ".join(found)


@given(HARMLESS, st.sampled_from(["", "sh"]))
def test_what_is_no_secret_passes(words: list[str], shell: str) -> None:
    # Beside one another two of them may become an option with a value; the last of a list is none.
    assert named(words if not shell else ["sh", "-c", shlex.join(words)]) == []


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", 'exec srv --api-key "$(cat {api_key_file})" --port {port}'],
        ["sh", "-c", "exec srv --api-key $(cat {api_key_file})"],
        ["sh", "-c", "exec srv --api-key=`cat {api_key_file}`; true"],
        ["sh", "-c", "API_KEY=$(cat {api_key_file}) exec srv; unset API_KEY"],
        ["sh", "-c", 'export HF_TOKEN="$(cat /run/token)"; exec srv --token "$HF_TOKEN" && x'],
        ["srv", "--api-key-file", "{api_key_file}", "--api-key", "{api_key_file}", "--token={api_key_file}"],
        ["-e", "HF_TOKEN", "-e", "A=b", "--env", "WANDB_API_KEY", "--env=HF_TOKEN", "-eX_TOKEN", "srv"],
        ["--api-key", "--port", "1", "--api-key", "", "--api-key=", "srv"],
        ["sh", "-c", "srv --password; echo x | srv --token | y --secret & z"],
        ["python", "-c", 'api_key=os.environ["K"]; token=os.getenv("T"); password=getpass(); secret=keys[0]'],
        ["python", "-c", "def f(token=None, secret=None, password=False): f(token=(1), api_key=None)"],
        ["python", "-c", "f(api_key=key, token=self.token); C(\n  token=tok,\n  secret=s)"],
        ["sh", "-c", "secret=1; token=0 password=no; [ $token==x ] || exec srv"],
        ["srv", "--token", "/run/secrets/t", "--api-key=./key", "--password", "../p", "--secret=~/s"],
        ["docker", "build", "--secret", "id=x,src=/y", "--secret=type=file,id=z", "--secret", "env=X"],
        ["srv", "--require-api-key", "model", "--no-token", "x", "--disable-api-key", "y"],
        ["srv", "--eot-token", "EOT", "--tool-call-token", "T", "--boi-token", "B"],
        ["srv", "--num-speculative-token", "8k", "--max-new-token", "x", "--img_token=I"],
        ["--monkey", "x", "--cacheKey", "y", "--keep-secrets-out", "z", "--no-token-check", "1"],
    ],
)
def test_where_a_secret_comes_from_is_none(words: list[str]) -> None:
    assert named(words) == []


def test_a_password_in_a_url() -> None:
    assert named(["-e", "http_proxy=http://ann:s3cr3t@proxy:3128"]) == ["a URL's password"]
    assert named(["-e", "http_proxy=http://proxy:3128", "--image", "a.b:5000/x@sha256:0"]) == []


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ({"command": ["sh", "-c", "exec srv --api-key sesame"]}, "--api-key in serve.command|api_key_file"),
        ({"command": "srv --admin-api-key sesame"}, "--admin-api-key in serve.command|--env-file"),
        ({"extra_docker_args": ["-e", "A_API_KEY=sesame"]}, "A_API_KEY in extra_docker_args|--env-file"),
        ({"extra_docker_args": ["-eHF_TOKEN=sesame"]}, "HF_TOKEN in extra_docker_args|hub_token_file"),
        ({"env": {"WANDB_API_KEY": "sesame"}}, "env.WANDB_API_KEY|--env-file"),
        ({"options": {"admin_api_key": "sesame"}}, "admin_api_key among the options|"),
        ({"options": {"x": {"admin_api_key": "sesame"}}}, "x.admin_api_key among the options|"),
    ],
)
def test_check_and_the_run_refuse_it_at_its_line(tmp_path: Path, serve: dict[str, Any], said: str) -> None:
    recipe = about({"engine": "command", "command": "srv --host {bind} --port {port}", **serve})
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(recipe))
    found, _, remedy = said.partition("|")
    [problem] = secrets_in(Recipe.model_validate(recipe))
    assert str(problem).startswith(f"recipe x: found {found}; wanted no secrets in a recipe; remove it; ")
    assert remedy in str(problem) and "sesame" not in str(problem)
    [finding] = [finding for finding in check(path).findings if finding.code == "secret"]
    assert finding.problem.found == found and finding.severity == "error"
    text = path.read_text()
    keys = ["admin_api_key", "WANDB_API_KEY", "extra_docker_args"]
    key = "x" if said.startswith("x.") else next((key for key in keys if f"{key}:" in text), "command")
    at = 1 + next(n for n, line in enumerate(text.splitlines()) if f" {key}:" in line)
    assert finding.problem.where == f"{path}:{at}"


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_is_read(first: str, second: str) -> None:
    words = [first.replace("\0", ""), second.replace("\0", "")]
    for name in secret_words.named(words):
        assert name in ("a URL's password", "Authorization") or secret_words.is_secret(name)


LONG = "aB3" * 30
TOKENS = [
    *("hf_" + LONG[:34], "ghp_" + LONG[:36], "gho_" + LONG[:36], "github_pat_" + LONG[:82]),
    *("nvapi-" + LONG[:64], "AKIA" + "ABCDEF0123456789", "sk-" + LONG[:48], "sk-" + LONG[:22]),
    *("sk-proj-" + LONG[:60] + "-x_" + LONG[:60], "sk-ant-api03-" + LONG[:80], "sk-or-v1-" + "0a" * 32),
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "srv {} x", 'K="{}"', "a={},b", "https://h/?t={}", '{{"x": "{}"}}'])
def test_a_known_token_is_found_by_its_shape(token: str, around: str) -> None:
    [found] = named(["sh", "-c", around.format(token)])
    assert found.startswith("a token (") and token.startswith(found[9:-2]) and token not in found


@pytest.mark.parametrize(
    "text",
    [
        *("hf_transfer", "HF_HUB_ENABLE_HF_TRANSFER=1", "sk-learn", "x/sk-7b-awq-int4-v2-2026-long"),
        *("ghp_x", "nvapi-client-library", "risk-" + "0a" * 20, "AKIA", "sha256:" + "0a" * 32),
        *("https://hub/org/hf_model", "task-sk-x", "disk-" + LONG[:30]),
    ],
)
def test_what_only_begins_as_a_token_is_none(text: str) -> None:
    assert named([text]) == [] and named(["sh", "-c", f'exec srv "{text}"']) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["srv", "--config", '{"aws_secret_access_key": "sesame"}'], "aws_secret_access_key"),
        (["srv", "--config", '{"api_key":"s"}'], "api_key"),
        (["srv", "--config", '{"a": {"api_keys": ["sesame"]}}'], "api_keys"),
        (["sh", "-c", 'srv --config "{\\"api_key\\": \\"sesame\\"}"'], "api_key"),
        (["sh", "-c", "cat >c <<E\na: b\n  api_key: sesame\n  - token: sesame # x\nE\nsrv"], "api_key"),
        (["sh", "-c", "cat >c <<E\npassword: 'sesame'\nE\nsrv"], "password"),
        (["python", "-c", "f({'password': 'sesame'})"], "password"),
        (["curl", "-H", "X-API-Key: sesame"], "X-API-Key"),
        (["curl", "--header=X-API-Key: sesame"], "X-API-Key"),
        (["python", "-c", "f(api_key='sesame', x=1)"], "api_key"),
        (["sh", "-c", "curl -H 'x-api-key: sesame' h"], "x-api-key"),
        (["sh", "-c", 'curl -H "Authorization: Bearer sesame" h'], "Authorization"),
        (["curl", "-H", "authorization: basic c2VzYW1l"], "Authorization"),
        (["python", "-c", 'get(headers={"Authorization": "Bearer sesame"})'], "Authorization"),
        (["python", "-c", 'h["Authorization"] = "Bearer sesame"'], "Authorization"),
        (["env", "OTEL_HEADERS=authorization=Bearer%20sesame", "srv"], "Authorization"),
        (["git", "clone", "https://ghp_sesame@github.com/x"], "a URL's password"),
        (["git", "clone", "https://hf_" + LONG[:34] + "@h/x"], "a URL's password"),
        (["srv", "--api-keys", "sesame"], "--api-keys"),
        (["srv", "--apiKeys=sesame"], "--apiKeys"),
    ],
)
def test_a_secret_behind_a_colon_and_in_a_header(words: list[str], name: str) -> None:
    found = named(words)
    assert found[:1] == [name] and "sesame" not in str(found)


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-c", "def f(token: str, api_key: Optional[str] = None):\n  password: SecretStr = g()"],
        ["python", "-c", 'f({"token": token, "api_key": os.environ["K"]}, lambda token: token.strip())'],
        ["sh", "-c", 'read -p "Password: " x; echo "token: $x"; echo "Waiting for the token: patience"'],
        ["sh", "-c", "echo 'Token: checking'; echo \"password: missing or wrong\""],
        ["sh", "-c", 'curl -H "Authorization: Bearer $K" -H "X-API-Key: ${K}" -H "X-API-Key: $(cat /k)"'],
        ["python", "-c", 'h = {"Authorization": f"Bearer {k}", "X-API-Key": key}'],
        ["python", "-c", '"Authorization: Bearer %s" % k'],
        ["python", "-c", '"Authorization: Bearer " + k'],
        ["docker", "run", "-v", "secret:/x", "x/my-token:latest", "a/my-secret:v1.2.3"],
        ["srv", "--x", '{"eos_token": "</s>", "num_speculative_tokens": 2, "api_key": null, "token": ""}'],
        ["srv", "--x", '{"api_key": "string", "bos_token": {"content": "<s>"}}'],
        ["-e", "http_proxy=http://proxy:3128", "-e", "MAIL=me@example.org"],
    ],
)
def test_what_stands_behind_a_colon_may_be_none(words: list[str]) -> None:
    assert named(words) == []


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"kv": {"aws_secret_access_key": "sesame"}}, "kv.aws_secret_access_key"),
        ({"kv_transfer_config": {"a": [{"b": {"api_key": "sesame"}}]}}, "kv_transfer_config.a.b.api_key"),
        ({"kv_transfer_config": '{"a": {"api_key": "sesame"}}'}, "api_key in kv_transfer_config"),
        ({"x": ["a", "b --token=sesame"]}, "--token in x"),
        ({"api_keys": ["sesame", "b"]}, "api_keys"),
        ({"headers": {"Authorization": "Bearer sesame"}}, "Authorization in headers.Authorization"),
        ({"x": "ghp_" + LONG[:36]}, "a token (ghp_…) in x"),
        ({"x": "https://ann:sesame@h"}, "a URL's password in x"),
        ({"a": {"api_key": None, "token": True, "eos_token": "x"}, "max_tokens": 3, "b": ["x", 1]}, None),
        ({"hf_overrides": {"token": "/run/t", "api_key": "{api_key_file}", "x": {"image_token": "I"}}}, None),
    ],
)
def test_options_are_looked_into(options: dict[str, Any], shown: str | None) -> None:
    recipe = Recipe.model_validate(about({"engine": "vllm", "options": options}))
    found = [problem.found for problem in secrets_in(recipe)]
    assert found == ([f"{shown} among the options"] if shown else [])
    assert "sesame" not in str(secrets_in(recipe))


@pytest.mark.parametrize("value", ["--api-key sesame", TOKENS[0], '{"token": "sesame"}', "http://a:sesame@h"])
def test_values_of_variables_are_looked_into(value: str) -> None:
    recipe = Recipe.model_validate(about({"engine": "vllm", "env": {"EXTRA": value}}))
    recipe.image.build_args["OTHER"] = value
    assert [problem.found for problem in secrets_in(recipe)] == [
        "env.EXTRA",
        "a secret in image.build_args.OTHER",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 60000, "token" + " " * 60000, "hf_" + "a" * 60000 + "@", "sk-" + "a1-" * 20000 + "@"),
        *("token:" * 10000, "\"'\\" * 20000, "max-" * 15000 + "token", "https://a:" * 6000),
        "authorization" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_a_long_word_is_read_in_no_time(text: str) -> None:
    begin = time.process_time()
    named([text])
    assert time.process_time() - begin < 2


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path",
    [*ROOT.glob("recipes/*.yaml"), *ROOT.glob("tests/unit/recipes/**/*.yaml")],
    ids=lambda path: path.name,
)
def test_no_recipe_of_ours_or_the_community_has_one(path: Path) -> None:
    assert [str(finding) for finding in check(path).findings if finding.code == "secret"] == []
