"""Secrets of many kinds, planted wherever an incident could show them, are found nowhere in its bytes."""

import base64
import json
import sys

import pytest

from reprokit.capture import redact
from reprokit.capture.redact import archives

FORMS = {
    "train.py": '{name} = "{value}"',
    "keyword.py": "login(retry=3, {name}='{value}')",
    "item.py": 'os.environ["{name}"] = "{value}"  # why not',
    "conf.yaml": "  {name}: {value}",
    "list.yaml": "- {name}: '{value}'",
    "conf.toml": '{name} = "{value}"',
    "conf.json": '  "{name}": "{value}",',
    "conf.ini": "{name} = {value}",
    "run.sh": "export {name}='{value}'",
    "log": "2026-01-01 00:00:00 INFO start {name}={value} epoch=3",
    "repr": "Namespace(lr=0.1, {name}='{value}')",
    "error": 'RuntimeError: cannot connect with {{"{name}": "{value}"}} (code 3)',
}


@pytest.mark.parametrize("place", FORMS)
def test_each_kind_in_each_form(place, planting):
    planter = planting.Planter(place)
    lines = [FORMS[place].format(name=name, value=value) for name, value in planter.all().values()]
    text = "\n".join(["first", *lines, "last"])
    clean, found = redact.text(text, place)
    assert planting.leaks(clean.encode(), planter.planted) == set()
    assert [len(line) for line in clean.split("\n")] == [len(line) for line in text.split("\n")]
    assert len({line.split(":")[1] for line in found}) == len(lines) if "." in place else found
    assert redact.text(clean, place) == (clean, [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_each_kind_in_each_encoding(encoding, planting):
    planter = planting.Planter(encoding)
    text = "\r\n".join(f'{name} = "{value}"' for name, value in planter.all().values()) + "\r\nça va ✓\r\n"
    data = text.encode(encoding)
    clean, _ = redact.content(data, "conf.toml")
    assert planting.leaks(clean, planter.planted) == set() and len(clean) == len(data)
    assert clean.decode(encoding).splitlines()[-1] == "ça va ✓"


def test_each_kind_in_a_notebook(planting):
    planter = planting.Planter("notebook")
    source = [f'{name} = "{value}"\n' for name, value in planter.all().values()]
    outputs = [f"{name}: '{value}'\n" for name, value in planter.all().values()]
    book = json.dumps({"cells": [{"source": source, "outputs": [{"text": outputs}], "key": planter.key()}]}, indent=1)
    clean, _ = redact.content(book.encode(), "note.ipynb")
    assert planting.leaks(clean, planter.planted) == set()
    assert json.loads(clean).keys() == {"cells"} and clean.count(b"\n") == book.count("\n")


def test_each_kind_in_a_config_and_on_a_command_line(planting):
    planter = planting.Planter("config")
    run = {kind: {name: value} for kind, (name, value) in planter.all().items()}
    config = {"run": run, "lr": 0.1, "key": planter.key()}
    clean, found = redact.config(config)
    assert planting.leaks(json.dumps(clean).encode(), planter.planted) == set() and len(found) == len(run) + 1
    same = lambda a, b: type(a) is type(b) and (not isinstance(a, dict) or all(same(a[k], b[k]) for k in a | b))
    assert same(config, clean) and clean["lr"] == 0.1
    words = [word for name, value in planter.all().values() for word in (f"--{name.replace('_', '-')}", value)]
    words += [f"conf.{name}={value}" for name, value in planter.all().values()] + ["--password", "x7Kq", "--lr", "0.1"]
    planter.planted["x7Kq"] = "password"
    clean, _ = redact.argv(words)
    assert planting.leaks("\0".join(clean).encode(), planter.planted) == set() and len(clean) == len(words)
    assert clean[-2:] == ["--lr", "0.1"]


def test_encoded_once(planting):
    planter = planting.Planter("encoded")
    values = [value for _, (name, value) in planter.all().items() if name == "thing" and len(value) < 100]
    packed = "\n".join(f"blob: {base64.b64encode(value.encode()).decode()}" for value in values if "://" not in value)
    clean, _ = redact.text(packed)
    gone = {secret: kind for secret, kind in planter.planted.items() if kind not in ("random", "basic auth")}
    assert planting.leaks(clean.encode(), gone) == set()
    address = "https://other.example/login?next=https%3A%2F%2Fme%3Ahunter2hunter%40host.example%2Fx&a=1"
    assert "hunter2" not in redact.text(address)[0]


def test_a_binary_file_loses_what_has_a_shape(planting):
    planter = planting.Planter("binary")
    made = planter.all()
    unlike = ("random", "basic auth", "aws secret", "wandb", "password")  # what has no shape of its own
    shaped = {kind: value for kind, (_, value) in made.items() if kind not in unlike}
    data = b"\x89PNG\r\n\x1a\n\0\0" + b"\0\xff".join(value.encode() for value in shaped.values())
    data += b"\0\1" + "\0\0".join(shaped.values()).encode("utf-16-le") + bytes(range(256))
    clean, found = redact.content(data, "picture.png")
    gone = {secret: kind for secret, kind in planter.planted.items() if kind in shaped}
    assert planting.leaks(clean, gone) == set() and len(clean) == len(data) and found
    assert clean.endswith(bytes(range(256))) and clean.startswith(b"\x89PNG")


def test_an_archive_is_looked_into(planting):
    secret = "gh" + "p_" + planting.Planter("zip").some(36)
    good = planting.zipped(**{"a.py": "x = 1", "weights.bin": bytes(range(256))})
    assert redact.content(good, "a.zip") == (good, [])
    holding = [{"a.py": f"x = '{secret}'"}, {"x/.env": "A=1"}, {"inner": good}]
    for bad in (*(planting.zipped(**files) for files in holding), good[:-30], b"Rar!\x1a\x07"):
        with pytest.raises(redact.Unscanned, match="archive"):
            redact.content(bad, "a.zip")


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma"])
def test_a_compressed_stream_is_looked_into(name, monkeypatch, planting):
    monkeypatch.setattr(archives, "MOST", 1 << 20)
    compress = __import__(name).compress
    secret = "gh" + "p_" + planting.Planter("gz").some(36)
    assert redact.content(compress(b"epoch 1\n"), "a.log.gz")[1] == []
    with pytest.raises(redact.Unscanned):
        redact.content(compress(secret.encode()), "a.log.gz")
    with pytest.raises(redact.Unscanned, match="unpacks to over"):
        redact.content(compress(bytes(2 << 20)), "zeros.gz")


def test_what_is_known_to_be_secret_is_one_everywhere(planting):
    secret = "plainwords77"
    config = {"hub": {"password": secret}}
    with redact.knowing(redact.secrets([config, {"API_KEY": "fromtheenv123"}], ["x", "--token", "fromargv4567"])):
        text = f"login {secret} {base64.b64encode(secret.encode()).decode()} fromtheenv123 fromargv4567 end"
        clean, found = redact.text(text)
        gone = dict.fromkeys((secret, "fromtheenv123", "fromargv4567"), "known")
        assert planting.leaks(clean.encode(), gone) == set()
        assert clean.startswith("login R") and clean.endswith(" end") and found
    assert redact.text(text) == (text, [])


@pytest.mark.parametrize("secret", ["hunt3r2x", "onlylettersandnodigit", "plainwords77"])
def test_what_is_known_is_one_too_where_it_is_all_of_a_value(secret):
    with redact.knowing([secret]):
        kept, found = redact.config({"login": [secret]})
        assert kept == {"login": [redact.marker(secret)]} and found == ["config.login[0]: known secret"]
        clean, found = redact.argv(["train.py", f"+db.login={secret}", secret])
    assert clean[1:] == [f"+db.login={redact.marker(secret)}", redact.marker(secret)] and len(found) == 2
    assert redact.config({"login": [secret]}) == ({"login": [secret]}, [])


@pytest.mark.parametrize("word", ["postgres", "adamw", "vit16", "7", ""])
def test_a_word_of_a_config_stays_though_somebodys_password_is_the_same(word):
    with redact.knowing([word]):
        assert redact.config({"driver": word}) == ({"driver": word}, [])
        assert redact.argv([f"driver={word}"]) == ([f"driver={word}"], [])


# Code that only looks like it: what a year of training code has in it.
INNOCENT = {
    "train.py": '''
        COMMIT = "3f786850e387550fdab836ed7e6dc881de23001b"
        URLS = {"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
        assert md5(data) == "d41d8cd98f00b204e9800998ecf8427e", revision
        checkpoint = "facebook/dinov2-with-registers-large-imagenet1k-1-layer"
        name = "vit_small_patch16_224.augreg_in21k_ft_in1k"; kernel = "triton_BLOCK-M=128_BLOCK-K=128_BLOCK-N=16_w=4"
        mean = [0.48145466, 0.4578275, 0.40821073]; seed = 0xDEADBEEFDEADBEEF; big = 123456789012345678901234567890
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        password = getpass.getpass("Password: ")
        token = tokenizer.convert_tokens_to_ids("<|endoftext|>"); secret_key = key2value
        parser.add_argument("--password", help="the password to use, or $PASSWORD"); api_key = None
        self.register_buffer("positional_embedding_interpolated_from_checkpoint2", tensor)
        AutoModelForVideoClassification2WithTemporalPositionEmbeddings = "x"
        TABLE = {"a.dat": "03ce124c1afc880f87b55f6b061110e2e1e939679184f5614e38dacc6c1957e2"}
        assert config.api_key2 == os.environ.get("API_KEY", "")
        ''',
    "requirements.txt": "torch==2.4.0 --hash=sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n",
    "conf.yaml": "hub:\n  password: ${DB_PASSWORD}\n  api_key: null\n  token: cls\n  secret: <fill in>\n"
    "run_id: 3f786850e387550fdab836ed7e6dc881\nrevision: 3f786850e387550fdab836ed7e6dc881de23001b\n"
    "path: /data/Kinetics400/videos_train/abseiling/0347ZoDXyP0_000095_000105.mp4\n",
    "poetry.lock": 'x = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"\n'
    '"integrity": "sha512-Z3JlYXQgd29yayBmaW5kaW5nIHRoaXMgc3RyaW5nLCBoYXZlIGEgY29va2ll=="\n',
    "log": "epoch 3 loss 0.6931471805599453 grad 1.2e-05 saved outputs/2026-01-01/12-00-00/checkpoint_000123.pt\n"
    "git 3f786850e387550fdab836ed7e6dc881de23001b\nwandb: Syncing run dazzling-sunset-42 at https://wandb.ai/a/b/runs/1x2y",
}


@pytest.mark.parametrize("place", INNOCENT)
def test_ordinary_code_is_left_alone(place):
    assert redact.text(INNOCENT[place], place) == (INNOCENT[place], [])


def test_a_name_in_python_is_no_secret():
    code = 'api_key = key2value4\nlogin(password=hunter2hunter)  # password=hunter2hunter\nx = "password=hunter2hunter"'
    clean, found = redact.text(code, "a.py")
    assert clean.startswith("api_key = key2value4\nlogin(password=hunter2hunter)")
    assert clean.count("hunter2hunter") == 1 and found == ["a.py:2: named secret", "a.py:3: named secret"]


@pytest.mark.parametrize("how", ["missing", "broken"])
def test_without_the_library_nothing_is_written(how, monkeypatch):
    from reprokit.capture.redact import library

    def broken(*_):
        raise OSError("detectors are ill")

    if how == "missing":
        monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)
        library._library.cache_clear()
    else:
        monkeypatch.setattr(library, "find", broken)
    try:
        for ask in (
            lambda: redact.text("x"), lambda: redact.content(b"unlike any other", "x"),
            lambda: redact.argv(["x"]), lambda: redact.config({"a": "x"}),
        ):  # fmt: skip
            with pytest.raises(redact.Unscanned, match="secrets"):
                ask()
        assert redact.url("https://a:b@host/x")[0] == "https://host/x"  # needs no search: it is taken apart
    finally:
        library._library.cache_clear()


SECRET_FILES = """
credentials.json .aws/credentials home/.kube/config .docker/config.json my-service-account-key.json x/.npmrc
secrets.yaml client_secret_77.json prod.env .pypirc kubeconfig a.tfstate id_ed25519 .streamlit/secrets.toml
"""
OTHER_FILES = "secrets.py credentials.py kube/config service.json docs/secrets.md train.py config.json .env.example"


def test_files_that_are_secrets():
    assert all(map(redact.is_secret_file, SECRET_FILES.split()))
    assert not any(map(redact.is_secret_file, OTHER_FILES.split()))
