"""Images of others: which is asked for, what is said of one that will not do."""

import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO

import pytest
from docker.errors import APIError, ImageNotFound

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay import bases, daemon

DIGEST = "sha256:" + "0" * 64


class Registry:
    """A client of an engine that has some images and gets others."""

    def __init__(self, here: set[str], there: set[str] = frozenset()) -> None:
        self.here, self.there, self.asked = here, there, []
        self.images = self

    def get(self, name: str):
        if name not in self.here:
            raise ImageNotFound("no such image")
        return type("Image", (), {"id": f"id of {name}"})

    def pull(self, repository: str, tag: str) -> None:
        self.asked.append((repository, tag))
        name = f"{repository}@{tag}" if tag.startswith("sha256:") else f"{repository}:{tag}"
        if name not in self.there:
            raise APIError("404: not\nfound")
        self.here.add(name)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("host.example:5000/a/b:1.0", ("host.example:5000/a/b", "1.0")),
        (f"host.example/a/b@{DIGEST}", ("host.example/a/b", DIGEST)),
        ("python:3.11-slim", ("python", "3.11-slim")),
    ],
)
def test_an_image_is_pulled_where_it_is_missing_and_only_there(name, asked):
    client, news = Registry(set(), {name}), []
    assert bases.fetched(client, name, news.append) == f"id of {name}"
    assert client.asked == [asked] and news == [f"pulling {name}"]
    bases.fetched(client, name, news.append)
    assert len(client.asked) == 1 and len(news) == 1


def test_without_a_tag_the_latest_is_meant():
    client = Registry(set())
    with pytest.raises(Infrastructure, match=r"^a/b: not on this machine and not to be pulled \(404: not found\); "):
        bases.fetched(client, "a/b", lambda line: None)
    assert client.asked == [("a/b", "latest")]


def test_a_digest_alone_is_asked_of_nobody_but_this_machine():
    client = Registry(set())
    with pytest.raises(BadInput, match=rf"^{DIGEST}: no image of this machine, .*give NAME@{DIGEST}$"):
        bases.fetched(client, DIGEST, lambda line: None)
    assert not client.asked and bases.fetched(Registry({DIGEST}), DIGEST, lambda line: None)


def test_a_compiler_is_in_another_base():
    assert bases.default(Registry(set()), compiler=False) == f"python:{bases.MINOR}-slim"
    assert bases.default(Registry(set()), compiler=True) == f"python:{bases.MINOR}"
    both = Registry({bases.OWN, bases.OWN_COMPILER})
    assert bases.default(both, compiler=False) == bases.OWN
    assert bases.default(both, compiler=True) == bases.OWN_COMPILER


def captured(image):
    return {"container": {"kind": "kubernetes", "image": image}}


def test_the_captured_image_is_the_one_that_the_job_named():
    assert bases.captured(captured(f"host.example/train@{DIGEST}"), trust=True) == f"host.example/train@{DIGEST}"
    assert not bases.moves(f"host.example/train@{DIGEST}") and not bases.moves(DIGEST)
    assert bases.moves("host.example/train:1.0") and bases.moves("train")


@pytest.mark.parametrize("environment", [{}, {"container": None}, {"container": "x"}, captured(None), captured(" ")])
def test_where_the_job_named_none_that_is_said(environment):
    with pytest.raises(BadInput, match=r"did not say which image .*REPROKIT_IMAGE"):
        bases.captured(environment, trust=True)


def test_an_image_that_a_stranger_named_is_not_fetched():
    with pytest.raises(BadInput, match=r"^--image captured: evil\.example/x would be fetched because a stranger") as no:
        bases.captured(captured("evil.example/x\n"), trust=False)
    assert "\n" not in str(no.value)


@pytest.fixture
def image_with(base_image: str) -> Iterator[Callable[[str], str]]:
    """image_with(shell) -> the name of a base whose python3 is a few lines of shell, and whose compiler is broken."""
    client, made = daemon.connect(), []

    def build(python: str) -> str:
        dockerfile = f"FROM {base_image}\nCOPY python3 g++ /usr/local/bin/\n"
        files = {"Dockerfile": dockerfile, "python3": f"#!/bin/sh\n{python}\n", "g++": "#!/bin/sh\nexit 1\n"}
        context = BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            for path, text in files.items():
                about = tarfile.TarInfo(path)
                about.size, about.mode = len(text.encode()), 0o755
                tar.addfile(about, BytesIO(text.encode()))
        context.seek(0)
        made.append(f"reprokit-test-odd:{len(made)}")
        client.images.build(fileobj=context, custom_context=True, tag=made[-1], rm=True)
        return made[-1]

    yield build
    for name in made:
        assert not client.containers.list(all=True, filters={"ancestor": name})
        client.images.remove(name, force=True)


@pytest.mark.slow
@pytest.mark.docker
def test_a_base_is_asked_for_what_a_build_and_torch_compile_need(base_image, image_with):
    client = daemon.connect()
    assert bases.check_base(client, base_image, compiler=False).python == bases.MINOR
    name = image_with('exec /usr/bin/python3 "$@"')
    with pytest.raises(BadInput, match=r"no compiler for torch\.compile \(.*`\.ci/base-image --compiler` makes") as no:
        bases.check_base(client, name, compiler=True)
    assert "\n" not in str(no.value)
    with pytest.raises(BadInput, match=rf"^{name}: attempts cannot run in it: its python3 lacks torch, numpy, "):
        bases.given(name)
    with pytest.raises(BadInput, match=r"does not run \(answers nonsense\)"):
        bases.check_base(client, image_with("echo '{\"python\": 3}'"), compiler=False)
    with pytest.raises(BadInput, match=r"does not run \(\[2Jno module named venv\)"):
        bases.check_base(client, image_with("echo '\x1b[2Jno module named venv'; exit 1"), compiler=False)


@pytest.mark.slow
@pytest.mark.docker
def test_what_is_no_name_is_the_users_to_mend(base_image):
    with pytest.raises(BadInput, match="Capitals: no name of an image"):
        bases.given("Capitals")


@pytest.mark.slow
@pytest.mark.docker
def test_an_image_of_ours_is_taken_as_it_is(replay_image):
    assert bases.given(replay_image) == replay_image


@pytest.mark.slow
@pytest.mark.docker
def test_a_base_with_a_compiler_has_all_that_it_needs():
    client = daemon.connect()
    if not bases.exists(client, bases.OWN_COMPILER):
        pytest.skip("`.ci/base-image --compiler` makes the base that this asks")
    assert bases.check_base(client, bases.OWN_COMPILER, compiler=True).python == bases.MINOR
