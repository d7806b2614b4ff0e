"""No secret is written down, nothing else is changed, and lines stay where they are."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.capture import redact
from reprokit.capture.redact import archives, marker

# Put together here, so that no scanner takes this file for a leak. Fixed letters: a failure must be the same tomorrow.
_random = random.Random(0)
LETTERS = lambda n, alphabet=string.ascii_letters + string.digits: "".join(_random.choice(alphabet) for _ in range(n))
SHAPES = {
    "github": "ghp" + "_" + LETTERS(36),
    "github fine-grained": "github" + "_pat_" + LETTERS(22) + "_" + LETTERS(59),
    "gitlab": "glpat" + "-" + LETTERS(20),
    "hugging face": "hf" + "_" + LETTERS(34),
    "model provider": "sk" + "-" + LETTERS(48),
    "model provider, project": "sk" + "-proj-" + LETTERS(40),
    "aws": "AK" + "IA" + LETTERS(16, string.ascii_uppercase + string.digits),
    "google": "AI" + "za" + LETTERS(35),
    "slack": "xo" + "xb-1234567890-" + LETTERS(24),
    "package index": "py" + "pi-AgE" + LETTERS(60),
    "jwt": "ey" + "J" + LETTERS(20) + ".ey" + "J" + LETTERS(40) + "." + LETTERS(43),
}
NAMED = {  # text around the secret, which stays
    "shell": "export WANDB_API_KEY={}",
    "python": 'password = "{}"',
    "python, annotated": "password: str = '{}'",
    "python, item": 'os.environ["AWS_SECRET_ACCESS_KEY"] = "{}"',
    "python, keyword": 'login(api_key="{}", retry=3)',
    "yaml": "  db_password: {}",
    "json": '"client_secret": "{}",',
    "json in json": '\\"access_token\\": \\"{}\\"',
    "option": "train.py --hub-token={} --lr 1",
    "url": "https://:{}@host.example/x.git",
    "url, alone": "https://{}@host.example/x.git",
    "query": "https://host.example/x?part=1&access_token={}&other=2",
    "header": "Authorization: Bearer {}",
}
INNOCENT = """
    eos_token = "<|endoftext|>"; pad_token="[PAD]", mask_token_id=103
    model(num_tokens=3136, token_drop_rate=0.95, max_tokens: 4096, cls_token: Tensor = self.cls_token)
    tokenizer = AutoTokenizer.from_pretrained("hf_internal_testing/tiny_random_model_with_a_long_name")
    secret = load_secret_from_vault_2(name); api_key = os.environ["API_KEY"]; api_key=config.api_key2
    password = getpass("password: "); url = f"postgres://{user}:{password}@{host}/x"; "https://${USER}:${TOKEN}@host"
    pip install sk-video sk-learn-contrib-imbalanced https://host.example/a?page=2&key=loss  user@host.example  a:b@c
    BEGIN = "-----BEGIN PRIVATE KEY-----"
    assert BEGIN not in text
    END = "-----END PRIVATE KEY-----"
    key_padding_mask = attention(key=k, access=True)  # see https://example.com/@someone/private
"""


def key(lines: int = 5) -> str:
    body = "\n".join(LETTERS(64) for _ in range(lines)) + "\n" + LETTERS(10) + "=="
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"


def secrets_of(block: str) -> list[str]:
    return [line for line in block.split("\n") if line and "-----" not in line]


named_values = [text.format(LETTERS(40) + "7") for text in NAMED.values()]
fragments = st.sampled_from([*SHAPES.values(), *named_values, "\n", "+", '"', key(2), INNOCENT])
some_text = st.lists(st.one_of(st.text(), fragments)).map("".join)


@pytest.mark.parametrize("sort", SHAPES)
@pytest.mark.parametrize("around", ["{}", 'x = "{}"', "log: {} (end)", "+    call('{}')\n"])
def test_a_shape_is_found_anywhere(sort, around):
    clean, found = redact.text(around.format(SHAPES[sort]), "file.py")
    assert clean == around.format(marker(SHAPES[sort]))
    assert len(found) == 1 and found[0].startswith("file.py:1: ")
    assert SHAPES[sort] not in found[0]


@pytest.mark.parametrize("around", NAMED)
def test_a_name_gives_a_value_away(around):
    secret = LETTERS(40) + "7"
    clean, found = redact.text(NAMED[around].format(secret))
    hidden = NAMED[around].format(marker(secret))
    assert clean == hidden.replace("//:REDACTED", "//REDACTEDx")  # a user may be the token, and goes as well
    assert len(found) == 1 and secret not in found[0]


def test_what_only_looks_like_a_secret_stays():
    assert redact.text(INNOCENT) == (INNOCENT, [])


@pytest.mark.parametrize("sign", ["", "+", "-", " "])
@pytest.mark.parametrize("form", ["{}", "    {}", '"{}\\n"', "# {}"])
def test_a_private_key_goes_line_by_line(sign, form):
    block = key()
    written = "\n".join(sign + form.format(line) for line in ["before", *block.split("\n"), "after"])
    clean, found = redact.text(written, "x")
    assert not any(line in clean for line in secrets_of(block)) and "PRIVATE KEY" not in clean
    lines = clean.split("\n")
    assert len(lines) == len(written.split("\n")) and all(line.startswith(sign) for line in lines)
    assert lines[0] == sign + form.format("before") and lines[-1] == sign + form.format("after")
    assert found == ["x:2: private key"]


@pytest.mark.parametrize("cut", ["below", "above", "one line"])
def test_a_private_key_that_a_hunk_shows_in_part(cut):
    block = key()
    lines = block.split("\n")
    below, above = ("\n".join(part) + "\n" for part in (lines[:3], lines[-4:]))
    written = {"below": below, "above": above, "one line": repr(block)}[cut]
    clean, found = redact.text(written)
    assert found and not any(line in clean for line in secrets_of(block))
    assert clean.count("\n") == written.count("\n")


def test_a_long_file_after_an_open_key_does_not_take_for_ever():
    text = "-----BEGIN PRIVATE KEY-----\n" + " abc \n" * 50_000
    assert redact.text(text) == (text, [])


@given(some_text)
def test_cleaning_keeps_lines_and_is_done_once(text):
    clean, found = redact.text(text)
    assert clean.count("\n") == text.count("\n")
    assert redact.text(clean) == (clean, [])
    assert (clean == text) == (not found)


@given(st.text(alphabet=st.characters(exclude_characters="-=:_@/?&")))
def test_text_without_secrets_is_not_changed(text):
    assert redact.text(text) == (text, [])


@given(st.binary(), st.sampled_from(sorted(SHAPES.values())))
def test_bytes_around_a_secret_are_kept(around, secret):
    data = around + b"\n" + secret.encode() + b"\n" + around
    if archives.kind_of(data):
        with pytest.raises(redact.Unscanned, match="archive"):
            redact.content(data, "x")
        return
    clean, found = redact.content(data, "x")
    assert clean == data.replace(secret.encode(), marker(secret).encode()) and found


@pytest.mark.parametrize(
    ("address", "clean"),
    [
        ("https://person:secret@host.example:8443/x.git", "https://host.example:8443/x.git"),
        ("https://secret@host.example/x.git", "https://host.example/x.git"),
        ("git+https://secret@host.example/x@1.0", "git+https://host.example/x@1.0"),
        ("ssh://git:secret@host.example/x", "ssh://git@host.example/x"),
        ("ssh://git@host.example/x", "ssh://git@host.example/x"),
        ("git@host.example:group/x.git", "git@host.example:group/x.git"),
        ("https://${USER}:${TOKEN}@host.example/x", "https://${USER}:${TOKEN}@host.example/x"),
        ("https://host.example/x?access_token=secretsecret", "https://host.example/x?access_token=REDACTEDxxxx"),
        ("https://person:secret@[half", "https://REDACTEDxxxxx@[half"),
        ("/srv/git/x.git", "/srv/git/x.git"),
    ],
)
def test_an_address_loses_its_credentials(address, clean):
    assert redact.url(address)[0] == clean
    assert redact.url(clean) == (clean, [])


def test_a_command_line_keeps_all_but_its_secrets():
    given = ["train.py", "--token", "abcdef123", "--api-key=x", "hub.token=abcdef1", "+db.password=1", "-v", "--token"]
    clean, found = redact.argv(given)
    hidden = ["REDACTEDx", "--api-key=R", "hub.token=REDACTE", "+db.password=0"]
    assert clean == ["train.py", "--token", *hidden, "-v", "--token"]
    names = ["--token", "--api-key", "hub.token", "+db.password"]
    assert found == [f"argv[{index}]: value of {name}" for index, name in enumerate(names, 2)]
    innocent = ["-m", "x", "--pad-token", "<padding>", "--max-token=77777777", "--password", "--lr=1e-3", "--secret"]
    assert redact.argv(innocent) == (innocent, [])


@given(st.lists(st.one_of(st.text(), st.sampled_from(["--token", "--password=x", "PASSWORD=1", *SHAPES.values()]))))
def test_a_clean_command_line_stays(arguments):
    clean, _ = redact.argv(arguments)
    assert len(clean) == len(arguments) and redact.argv(clean) == (clean, [])


def test_a_config_keeps_its_form():
    given = {
        "model": {"token_drop_rate": 0.95, "token": "cls", "cls_token": "learned", "a": {"token": {"kind": "learned"}}},
        "hub": {"token": "abcdefg", "url": "https://a:b@c", "use_token": True, "max_token": 4096},
        "credentials": {"user": "x", "parts": ("a", None, False)},
        "password": 1234,
        "empty": {"password": "", "api_key": None, "secret": "${SECRET}"},
        3: ["plain", 1.5],
    }
    clean, found = redact.config(given, "config.yaml")
    assert clean["model"] == given["model"] and clean["empty"] == given["empty"] and clean[3] == given[3]
    assert clean["hub"] == {"token": "REDACTE", "url": "https://RED@c", "use_token": True, "max_token": 4096}
    assert clean["credentials"] == {"user": "R", "parts": ("R", None, False)} and clean["password"] == 0
    assert found[0] == "config.yaml.hub.token: value of token" and len(found) == 5
    assert redact.config(clean) == (clean, [])
    assert given["password"] == 1234


def test_variables_by_name_and_by_shape():
    given = {"OMP_NUM_THREADS": "2", "TORCH_TOKEN": "abcdefgh", "NCCL_X": SHAPES["github"], "CUDA_VISIBLE_DEVICES": "0"}
    clean, found = redact.environment(given)
    assert clean == given | {"TORCH_TOKEN": "REDACTED", "NCCL_X": marker(SHAPES["github"])}
    assert found == ["environment.TORCH_TOKEN: value of TORCH_TOKEN", "environment.NCCL_X: github token"]


def test_names_of_secrets():
    names = "password DB_PASSWORD pgpassword apiKey --api-key hub.accessToken HF_TOKEN private-key client_secret"
    assert all(map(redact.is_secret_name, [*names.split(), "aws_secret_access_key", "AWS_ACCESS_KEY_ID"]))


def test_other_names():
    names = "token_drop_rate num_tokens tokenizer pad_token max_token cls_token key key_dim PWD secretary monkey access"
    assert not any(map(redact.is_secret_name, [*names.split(), "password_file", "author"]))


def test_files_of_credentials():
    assert all(map(redact.is_secret_file, [".env", ".env.local", "id_rsa", "server.pem", ".netrc", "X.KEY"]))
    assert not any(map(redact.is_secret_file, [".env.example", "environment.py", "id_rsa.pub", "key.py", "train.py"]))
