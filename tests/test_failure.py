import importlib.util
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom, exception_signature, first, normalise, same

ANY = st.text(st.characters(exclude_categories=()))
"""Any Unicode, lone surrogates included."""

NASTY = st.text(st.sampled_from("0 1a.,-+:/\\~#'\"[](){}<>=xXeEnaif_B\n\t\x1b\x07m;\u00b2\u0663\ud800"))
WORDS = ["nan", "-inf", "20.00 MiB", "0x7f3a", "[1, 2]", "(3,)", "/a/b.py", "./c", "C:\\x", "s3://b", "'/a b'", "1e-5"]
MARKS = ["#", " ", ", ", "[", "]", "(", ")", "/", "...", "x", "\x1b[31m", ":", "-", ".", "deadbeef01", "\n", "e-", "1."]
WORDY = st.lists(st.sampled_from(WORDS + MARKS)).map("".join)


@given(ANY | NASTY | WORDY)
def test_normalising_is_idempotent_and_leaves_neither_digits_nor_control_characters(message):
    once = normalise(message)
    assert normalise(once) == once
    assert not any(character.isdigit() for character in once)
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in once if character not in "\n\t")
    once.encode()


NUMBER = st.integers() | st.floats()
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
PATH = st.lists(NAME, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
TEMPLATES = {
    "index {} is out of bounds for dimension {} with size {}": NUMBER,
    "shape mismatch: got {}, expected {} and {}": st.lists(st.integers(0), min_size=1).map(str),
    "sizes {} {} {}": st.lists(st.integers(0), min_size=1).map(lambda sizes: f"torch.Size({sizes})"),
    "<object at {}> is not {} but {}": st.integers(0, 2**64 - 1).map(hex),
    "worker (pid {}) died, see {}: {}": st.integers(1, 2**22),
    "cannot open {}: {} (from {})": PATH,
    "no such file: '{}' or '{}' or '{}'": st.tuples(PATH, st.sampled_from(["", " copy"])).map("".join),
    "Tried to allocate {}, {} free of {}.": st.tuples(
        st.floats(0, 2000).map("{:.2f}".format), st.sampled_from([" MiB", " GiB", " KiB", "GB", " bytes"])
    ).map("".join),
}


@pytest.mark.parametrize("template", TEMPLATES)
@given(st.data())
def test_messages_that_differ_in_numbers_sizes_shapes_addresses_pids_or_paths_are_one(template, data):
    one, other = (template.format(*data.draw(st.tuples(*[TEMPLATES[template]] * 3))) for _ in range(2))
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("mat1 and mat2 cannot be multiplied (2x3 and 4x5)", "mat# and mat# cannot be multiplied (#x# and #x#)"),
        ("got input size torch.Size([1, 192])", "got input size torch.Size([#])"),
        ("loss is nan", "loss is #"),
        ("loss is -inf", "loss is #"),
        ("nan_to_num and info stay", "nan_to_num and info stay"),
        ("and/or, N/A, a / b stay", "and/or, N/A, a / b stay"),
        ("in src/model.py:3", "in <path>:#"),
        (r"C:\Users\me\x.py failed", "<path> failed"),
        ("from https://host:8000/a?b=1, or s3://bucket/key", "from <path>, or <path>"),
        ("\x1b[1;31mred\x1b[0m\r\n\x07tab\t.", "red\ntab\t."),
        ("run 550e8400-e29b-41d4-a716-446655440000 at commit 0dcd556e", "run # at commit #"),
        ("outer (inner (4, 5))", "outer (inner (#))"),
        (f"bad: {torch.tensor([[1.0, 2.5], [float('nan'), -3.0]])}", "bad: tensor([#])"),
        (
            "CUDA error\nException raised from f at /x.cpp:43 (most recent call first):\nframe #0: g + 0x57 (in l.so)",
            "CUDA error",
        ),
    ],
)
def test_what_is_left_of_a_message_reads(message, says):
    assert normalise(message) == says


def test_tensors_of_any_size_read_the_same():
    assert len({normalise(f"bad {torch.rand(shape)}") for shape in [(2,), (3, 4), (2, 3, 4), (5000,), (1100, 3)]}) == 1


def test_a_message_of_megabytes_is_cut_and_long_runs_take_no_time_worth_a_word():
    for run in ["[", "+", "a.", "/a", "[ ", "'/", "a/", "(1,", "nan,", "x"]:
        assert len(normalise(run * 1_000_000)) <= 2_048


SYMPTOMS = st.builds(Symptom, kind=st.sampled_from(Kind), where=st.sampled_from(["loss", "backward"]))


@given(st.lists(SYMPTOMS))
def test_the_first_kind_in_causal_order_names_the_failure(symptoms):
    causal = list(Kind)
    found = first(symptoms)
    assert (found is None) == (not symptoms)
    if found:
        earliest = min(causal.index(symptom.kind) for symptom in symptoms)
        firsts = [symptom.where for symptom in symptoms if symptom.kind is causal[earliest]]
        assert found == Signature(kind=causal[earliest], where=firsts[0])


def test_an_exception_keeps_its_own_signature_when_it_comes_first():
    raised = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", function="train.py:step")
    assert first([Symptom(kind=Kind.NONFINITE_LOSS, where="loss")], raised) is raised


SIGNATURES = st.builds(
    Signature, kind=st.sampled_from(Kind), where=ANY, exception=ANY, function=ANY, message=ANY | st.just("size # of #")
)


@given(SIGNATURES, SIGNATURES)
def test_same_is_an_equivalence_that_evidence_and_json_do_not_disturb(a, b):
    assert same(a, a) and same(a, b) == same(b, a)
    assert Signature.from_json(json.loads(json.dumps(a.to_json(), allow_nan=False))) == a


def test_exceptions_are_compared_by_type_function_and_message_and_other_kinds_by_place():
    base = {"kind": Kind.EXCEPTION, "where": "forward", "exception": "ValueError", "function": "f", "message": "m"}
    for change in [{"where": "backward"}, {"exception": "TypeError"}, {"function": "g"}, {"message": "n"}]:
        assert not same(Signature(**base), Signature(**(base | change)))
        oom = base | {"kind": Kind.OOM}
        assert same(Signature(**oom), Signature(**(oom | change))) == ("where" not in change)
    assert not same(Signature(**base), Signature(**(base | {"kind": Kind.OOM})))


def test_match_stands_in_for_the_message_alone():
    a, b, other = (
        Signature(kind=Kind.EXCEPTION, where="forward", exception=name, message=text)
        for name, text in [("E", "size #"), ("E", "size x"), ("F", "size #")]
    )
    assert not same(a, b) and same(a, b, match="^size") and not same(a, b, match="#")
    assert not same(a, other, match="size")
    with pytest.raises(BadInput, match="no regular expression"):
        same(a, b, match="(")


def test_evidence_is_strict_json():
    nan, inf = float("nan"), float("inf")
    evidence = {"value": nan, "norms": (1.5, -inf), "n": 3, "ok": True, "at": None, "path": Path("x"), 1: {}}
    plain = Symptom(kind=Kind.LOSS_SPIKE, where="loss", evidence=evidence).to_json()
    assert plain["evidence"] == {
        "value": "nan", "norms": [1.5, "-inf"], "n": 3, "ok": True, "at": None, "path": "x", "1": {},
    }  # fmt: skip
    again = Symptom.from_json(json.loads(json.dumps(plain, allow_nan=False)))
    assert again.to_json() == plain and again.kind is Kind.LOSS_SPIKE


SCRIPT = """
import torch

class Refused(ValueError):
    pass

def check(x):
    raise Refused(f"bad value {x}")

def step(x):
    check(x)

def deep(x):
    return torch.nn.functional.layer_norm(x, [7])
"""


@pytest.fixture
def script(tmp_path):
    """A user's script, loaded by a name of its own: as `__main__` while training, as something else in a replay."""

    def load(name):
        file = tmp_path / "src" / "train.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(SCRIPT)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        loaded.append(name)
        return module

    loaded = []
    yield load
    for name in loaded:
        del sys.modules[name]


def caught(call, *args):
    """The exception as the caller of a step catches it: without the frames of the test."""
    try:
        call(*args)
    except BaseException as error:
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


def test_an_exception_is_named_by_type_innermost_function_of_the_user_and_message(script, tmp_path):
    found = exception_signature(caught(script("train_a").step, 3), phase="forward", roots=[tmp_path])
    assert found == Signature(
        kind=Kind.EXCEPTION,
        where="forward",
        exception="src.train.Refused",
        function="src/train.py:check",
        message="bad value #",
    )


def test_the_name_under_which_a_script_was_loaded_changes_nothing(script, tmp_path):
    trained, replayed = (
        exception_signature(caught(script(name).step, 1), phase="forward", roots=[tmp_path / "src"])
        for name in ("train_b", "train_c")
    )
    assert trained == replayed and trained.function == "train.py:check"


def test_an_exception_inside_torch_belongs_to_the_users_function_that_called_it(script, tmp_path):
    found = exception_signature(caught(script("train_d").deep, torch.zeros(2)), phase="forward", roots=[tmp_path])
    assert (found.exception, found.function) == ("RuntimeError", "src/train.py:deep")


def test_without_a_frame_of_the_users_the_library_names_the_place():
    error = caught(torch.nn.functional.layer_norm, torch.zeros(2), [7])
    assert exception_signature(error, phase="forward", roots=[]).function == "torch/nn/functional.py:layer_norm"
    outside = caught(json.loads, "{")
    assert exception_signature(outside, phase="forward", roots=[]).function == "json/decoder.py:raw_decode"
    loss = torch.zeros(1, requires_grad=True).exp()
    loss.backward()
    assert exception_signature(caught(loss.backward), phase="backward", roots=[]).function.startswith("torch/")


def test_what_is_installed_below_a_root_is_not_the_users(tmp_path):
    root = Path(torch.__file__).parents[1].parent
    error = caught(torch.nn.functional.layer_norm, torch.zeros(2), [7])
    assert exception_signature(error, phase="forward", roots=[root]).function == "torch/nn/functional.py:layer_norm"


def test_reprokits_own_frames_never_name_the_place():
    error = caught(normalise, None)
    assert exception_signature(error, phase="forward", roots=[Path(__file__).parents[1]]).function == ""


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
)
def test_memory_that_ran_out_is_a_kind_of_its_own(error):
    assert exception_signature(error, phase="forward", roots=[]).kind is Kind.OOM


def test_of_groups_and_chains_the_outermost_is_named():
    def chain():
        try:
            raise torch.OutOfMemoryError("out of memory")
        except RuntimeError as inner:
            raise ValueError("while encoding clip 3") from inner

    found = exception_signature(caught(chain), phase="forward", roots=[])
    assert (found.kind, found.exception, found.message) == (Kind.EXCEPTION, "ValueError", "while encoding clip #")
    group = exception_signature(ExceptionGroup("several", [KeyError("a")]), phase="forward", roots=[])
    assert (group.exception, group.message) == ("ExceptionGroup", "several (# sub-exception)")


def test_an_exception_that_cannot_describe_itself_still_has_a_signature():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    found = exception_signature(Mute(), phase="forward", roots=[])
    assert found.message == "" and re.search("Mute$", found.exception)


def test_in_a_backward_pass_the_loop_that_called_it_does_not_name_the_place():
    def my_loop():
        torch.ones(2, requires_grad=True).backward()  # not a scalar

    def custom():
        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sum()

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("mine")

        Breaks.apply(torch.ones(2, requires_grad=True)).backward()

    roots = [Path(__file__).parent]
    place = lambda run: exception_signature(caught(run), phase="backward", roots=roots).function
    assert place(my_loop).startswith("torch/")
    assert place(custom) == "test_failure.py:backward"
