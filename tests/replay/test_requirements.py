import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.replay.requirements import parse


def test_a_list_is_pins_and_where_to_look():
    wanted = parse(
        textwrap.dedent("""
            # torch from its own index
            --extra-index-url https://example.org/whl/cpu
            torch==2.13.0+odd  # a build of our own
            numpy==2.4.6 \\
                --hash=sha256:0123
            -e git+https://example.org/me/mine.git#egg=mine
            Reprokit==0.1.0
            tool @ https://example.org/tool-1.0-py3-none-any.whl#sha256=00
            apple==1.0 ; python_version < "4"
        """)
    )
    assert wanted.pins == (
        'apple==1.0 ; python_version < "4"',
        "numpy==2.4.6",
        "tool @ https://example.org/tool-1.0-py3-none-any.whl#sha256=00",
        "torch==2.13.0+odd",
    )
    assert wanted.indexes == ("--extra-index-url https://example.org/whl/cpu",)


@pytest.mark.parametrize("line", ["what is this", "-r other.txt", "../some/folder", "== 1.0"])
def test_a_line_that_is_no_pin_is_named(line: str):
    with pytest.raises(BadInput, match="not a requirement that can be pinned") as refusal:
        parse(line)
    assert line in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "line",
    [
        "evil @ http://127.0.0.1:9/evil-1.0.tar.gz",
        "evil @ file:///tmp/evil",
        "evil @ git+https://example.org/evil",
        "evil>=1",
        "evil",
        "evil==1.*",
        "evil===http://x",
    ],
)
def test_a_list_from_a_stranger_holds_exact_pins_alone(line):
    with pytest.raises(BadInput, match=r"stranger chose.*--trust"):
        parse(f"torch==2.0\n{line}\n", trust=False)


def test_a_strangers_indexes_are_not_asked_and_nothing_is_built():
    wanted = parse("--extra-index-url https://evil.example/simple\ntorch==2.13.0\n", trust=False)
    assert (wanted.pins, wanted.indexes, wanted.built) == (("torch==2.13.0",), (), False)


@pytest.mark.parametrize("line", ["--pre -r /etc/passwd", "--pre -e /tmp/evil", "--find-links a b", "-r x.txt", "-c x"])
@pytest.mark.parametrize("trust", [True, False])
def test_options_that_are_no_index_are_refused_whoever_wrote_them(line, trust):
    with pytest.raises(BadInput, match="requirements: "):
        parse(f"torch==2.0\n{line}\n", trust=trust)


@pytest.mark.parametrize("line", ["evil @ http://x/${SECRET}/y", "--index-url https://x/${SECRET}", "a==${SECRET}"])
def test_variables_of_this_machine_are_not_put_into_a_list(line):
    with pytest.raises(BadInput, match="names a variable of this machine"):
        parse(line)


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("build", ["cpu", "cu118", "cu130", "rocm6.4", "xpu"])
def test_a_build_of_torch_names_its_own_index(build, trust, monkeypatch):
    listed = f"numpy==2.4.6\ntorch==2.13.0+{build}\ntorchvision==0.28.0+{build} ; python_version < '4'\n"
    assert parse(listed, trust=trust).indexes == (f"--extra-index-url https://download.pytorch.org/whl/{build}",)
    monkeypatch.setenv("REPROKIT_TORCH_INDEX", "https://mirror.example/torch/")
    assert parse(listed, trust=trust).indexes == (f"--extra-index-url https://mirror.example/torch/{build}",)


@given(st.text("abcu0123456789.+/:@#%? -", min_size=1, max_size=12))
def test_nothing_of_a_strangers_version_gets_into_an_address_but_a_known_build(build):
    try:
        found = parse(f"torch==2.0+{build}", trust=False).indexes
    except BadInput:
        return
    assert not found or (len(found) == 1 and found[0].rpartition("/")[2] in build)
    assert all(one.startswith("--extra-index-url https://download.pytorch.org/whl/") for one in found)
    assert all(one.count(" ") == 1 and one.rpartition("/")[2].replace(".", "").isalnum() for one in found)


def test_what_came_from_a_folder_or_a_file_is_known():
    wanted = parse(
        "# mine==0.1: from a folder (editable), so no index has it\n"
        "# theirs==2.0: in the incident, below source/packages\n"
        "# My.Wheel: installed from a file, my_wheel-1.0+ours-py3-none-any.whl\nMy.Wheel==1.0+ours\n"
    )
    assert wanted.pins == ("My.Wheel==1.0+ours",) and wanted.folders == ("mine==0.1",)
    assert wanted.files == {"my-wheel": "my_wheel-1.0+ours-py3-none-any.whl"}


@pytest.mark.parametrize("trust", [True, False])
def test_a_wheelhouse_stands_in_for_a_commit_and_for_an_address(trust):
    listed = (
        "mine @ git+https://me:s3cret@host.example/mine.git@abc#subdirectory=py\n"
        "other @ https://host.example/x-1.whl ; python_version < '4'\n"
    )
    wanted = parse(listed, trust=trust, house={"mine", "other"})
    assert wanted.pins == ("mine", 'other ; python_version < "4"')
    with pytest.raises(BadInput, match=r"^mine: comes from git\+https://host\.example.*--wheelhouse$") as refusal:
        parse(listed, trust=trust, house={"other"})
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("line", ["-r https://me:s3cret@h.example/x", "x @ git+https://me:s3cret@h.example/${A}"])
def test_a_refusal_does_not_repeat_a_password(line):
    with pytest.raises(BadInput, match=r"h\.example") as refusal:
        parse(line)
    assert "s3cret" not in str(refusal.value)
