"""Trees come back as they were, to the bit and the address; files that are no trees are refused in one line."""

from __future__ import annotations

import json
import pathlib
import struct
import weakref
from collections import Counter, OrderedDict, defaultdict, namedtuple
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from reprokit import tree
from reprokit.errors import BadInput

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*FLOATS, *INTS, torch.bool, torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fnuz]

class Custom:
    pass


Clip = namedtuple("Clip", "frames label")


class Typed(NamedTuple):
    path: str
    index: int


def bits(tensor: torch.Tensor) -> bytes:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.view(-1).view(torch.uint8).numpy().tobytes()


def alike(a: Any, b: Any) -> bool:
    """Equal in type, value, order and bits; a NaN equals a NaN."""
    if isinstance(a, tuple) and hasattr(a, "_fields"):
        return type(a).__name__ == type(b).__name__ and a._fields == b._fields and alike(tuple(a), tuple(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        same = (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        return same and a.data_ptr() % 64 == b.data_ptr() % 64 and bits(a) == bits(b)
    if isinstance(a, np.ndarray):
        return (a.dtype.str, a.shape, a.strides, a.tobytes()) == (b.dtype.str, b.shape, b.strides, b.tobytes())
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return alike(list(a), list(b)) and alike(list(a.values()), list(b.values()))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(alike(x, y) for y in b) for x in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return repr(a) == repr(b)


def trip(data: Any, folder: pathlib.Path) -> Any:
    tree.save(data, folder, "data")
    return tree.load(folder, "data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("trees")


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**20),
    st.floats(),
    st.complex_numbers(allow_nan=True, allow_infinity=True),
    any_text,
    st.sampled_from(["$", "missing", "tensor", "\ud83d\ude00", "\ud800", "__metadata__"]),
    st.binary(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1), tree.MISSING]),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PureWindowsPath("c:\\x"), pathlib.PurePosixPath("/\udcff")]),
    st.lists(st.integers(0, 9)).map(torch.Size),
    hnp.scalar_dtypes().flatmap(lambda dtype: hnp.from_dtype(dtype)),
)
arrays = st.one_of(
    hnp.arrays(hnp.scalar_dtypes() | hnp.unicode_string_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)),
    hnp.arrays("<f4", hnp.array_shapes(min_dims=2)).map(lambda array: np.asfortranarray(array)[::-1]),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bytes, seen through any dtype, from any element on, in any strides that fit."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    stride = [draw(st.integers(0, 5)) for _ in shape]
    first = draw(st.integers(0, 20))
    needed = first + sum((size - 1) * step for size, step in zip(shape, stride) if size) + 1
    raw = draw(st.randoms(use_true_random=False)).randbytes(needed * 16)
    memory = torch.frombuffer(bytearray(raw), dtype=torch.uint8).bitwise_and(1 if dtype is torch.bool else 255)
    tensor = torch.as_strided(memory.view(dtype), shape, stride, first)
    return tensor.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else tensor


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(hashable, children), max_size=4)
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b.c", "$", "in", "__metadata__"]), children),
        pairs.map(dict),
        pairs.map(OrderedDict),
        pairs.map(lambda pairs: defaultdict(list, pairs)),
        st.lists(hashable, max_size=4).map(set),
        st.lists(hashable, max_size=4).map(frozenset),
        st.lists(any_text).map(Counter),
        st.tuples(children, children).map(lambda both: Clip(*both)),
    )


data = st.recursive(st.one_of(hashable, arrays, tensors()), containers, max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(data)
def test_what_comes_back_from_files_equals_what_went_in(folder: pathlib.Path, value: Any) -> None:
    assert alike(trip(value, folder), value)


@settings(max_examples=100, deadline=None)
@given(data)
def test_what_comes_back_from_memory_equals_what_went_in_twice(value: Any) -> None:
    packed = tree.pack(value)
    assert alike(tree.unpack(packed), value) and alike(tree.unpack(packed), value)


@settings(max_examples=60, deadline=None)
@given(data)
def test_a_snapshot_can_be_saved_later_and_the_file_is_strict_json(folder: pathlib.Path, value: Any) -> None:
    assert alike(trip(tree.pack(value), folder), value)
    text = (folder / "data.json").read_text("ascii")
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


@given(st.recursive(st.sampled_from(["$", "tensor", "missing"]) | st.none(), lambda inner: st.dictionaries(
    st.sampled_from(["$", "items", "value", "hex", "in"]), inner), max_leaves=6))
def test_data_that_looks_like_tags_is_data(value: Any) -> None:
    assert tree.unpack(tree.pack(value)) == value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_in_its_natural_form(folder: pathlib.Path, dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (2, 3, 16), dtype=torch.uint8).view(dtype)
    assert alike(trip({"x": tensor}, folder)["x"], tensor)
    stored = load_file(folder / "data.safetensors")["x"]
    assert bits(stored) == bits(tensor)
    if not dtype.is_complex and dtype is not torch.float8_e4m3fnuz:
        assert stored.dtype == dtype and stored.shape == tensor.shape


def test_signalling_nans_keep_their_payload(folder: pathlib.Path) -> None:
    payload = torch.tensor([0x7F800001, 0x7FC12345, -1], dtype=torch.int32).view(torch.float32)
    assert bits(trip([payload], folder)[0]) == bits(payload)


def test_windows_on_one_memory_share_it_again_and_it_is_written_once(folder: pathlib.Path) -> None:
    whole = torch.arange(1000.0)
    array = whole.numpy()
    value = {"row": whole[10:20].view(2, 5), "again": whole[10:20], "int": whole[12:14].view(torch.int32)}
    back = trip(value | {"np": array[15:18]}, folder)
    assert (folder / "data.safetensors").stat().st_size < 40 + 1000
    back["again"][5] = 7
    back["int"][0] = 0
    assert back["row"][1, 0] == 7 and back["np"][0] == 7 and back["row"][0, 2] == 0
    assert whole[12] == 12
    assert len({back[key].untyped_storage().data_ptr() for key in ("row", "again", "int")}) == 1


def test_a_slice_does_not_bring_its_buffer_along(folder: pathlib.Path) -> None:
    whole = torch.zeros(1_000_000)
    back = trip([whole[5:8], whole[999_000:999_001], whole[::1000][:3]], folder)
    assert (folder / "data.safetensors").stat().st_size < 20_000
    assert back[0].data_ptr() % 64 == whole[5:].data_ptr() % 64


def test_channels_last_expanded_and_views_keep_their_strides(folder: pathlib.Path) -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    wide = torch.randn(3, 1).expand(3, 1_000_000)
    back_image, back_wide, back_t = trip([image, wide, image[0].permute(2, 1, 0)], folder)
    assert back_image.is_contiguous(memory_format=torch.channels_last) and torch.equal(back_image, image)
    assert back_wide.stride() == (1, 0) and torch.equal(back_wide, wide)
    assert (folder / "data.safetensors").stat().st_size < 2000
    back_image[0] = 5
    assert (back_t == 5).all()


def test_sums_are_equal_to_the_bit_at_any_alignment(folder: pathlib.Path) -> None:
    memory = torch.randn(5000)
    for first in range(20):
        window = memory[first : first + 4001]
        back = trip(window, folder)
        assert back.data_ptr() % 64 == window.data_ptr() % 64
        assert bits(back.sum()) == bits(window.sum())


def test_arrays_at_odd_addresses(folder: pathlib.Path) -> None:
    array = np.frombuffer(bytearray(range(41)), "<f4", 10, offset=1)
    tensor = torch.from_numpy(array)
    back, back_tensor = trip([array, tensor], folder)
    assert alike(back, array) and alike(back_tensor, tensor) and back_tensor.data_ptr() % 4


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_come_back_as_their_parts(folder: pathlib.Path) -> None:
    dense = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0]])
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1], [0, 0]]), torch.tensor([1.0, 2.0]), (2, 4))
    value = [dense.to_sparse(), twice, dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((1, 2))]
    back = trip(value, folder)
    for one, other in zip(back, value):
        assert one.layout == other.layout and torch.equal(one.to_dense(), other.to_dense())
        assert tree.digest(one) == tree.digest(other)
    assert back[0].is_coalesced() and not back[1].is_coalesced() and back[1]._nnz() == 2
    assert trip(dense.to_sparse().requires_grad_(), folder).requires_grad


def test_lazy_conjugates_stay_lazy_and_keep_sharing(folder: pathlib.Path) -> None:
    base = torch.randn(3, dtype=torch.complex64)
    back, conj, neg = trip([base, base.conj(), base.conj().imag], folder)
    assert conj.is_conj() and neg.is_neg()
    assert torch.equal(conj, base.conj()) and torch.equal(neg, base.conj().imag)
    back.zero_()
    assert not conj.abs().any() and not neg.any()


class Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.note = Custom()
        return x * 2


def test_parameters_and_leaves_come_back_without_their_graph() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    activation = Noted.apply(weight)
    graph = weakref.ref(activation.grad_fn.note)
    packed = tree.pack({"weight": weight, "activation": activation})
    del activation
    assert graph() is None
    back = tree.unpack(packed)
    assert type(back["weight"]) is torch.nn.Parameter and back["weight"].requires_grad
    assert back["activation"].is_leaf and back["activation"].requires_grad


def test_packing_is_a_snapshot() -> None:
    tensor, items = torch.zeros(3), [1, 2]
    packed = tree.pack([tensor, items])
    tensor.fill_(1), items.append(3)
    first = tree.unpack(packed)
    first[0].fill_(2), first[1].append(4)
    assert tree.unpack(packed)[0].tolist() == [0, 0, 0] and tree.unpack(packed)[1] == [1, 2]


def test_named_tuples_are_rebuilt_from_name_and_fields(folder: pathlib.Path) -> None:
    odd = namedtuple("odd", ["class", "x"], rename=True)
    back = trip([Typed("a", 1), Clip(torch.ones(2), None), odd(1, 2)], folder)
    assert [type(each).__name__ for each in back] == ["Typed", "Clip", "odd"]
    assert back[0] == ("a", 1) and back[0].path == "a" and back[1].frames.tolist() == [1, 1] and back[2]._0 == 1


def test_default_factories_survive_if_builtin() -> None:
    back = tree.unpack(tree.pack([defaultdict(list, a=[1]), defaultdict(None), defaultdict(lambda: 3, a=1)]))
    assert back[0]["new"] == [] and type(back[1]) is defaultdict and type(back[2]) is dict and back[2] == {"a": 1}


def test_large_flat_lists_and_random_states(folder: pathlib.Path) -> None:
    import random

    value = [list(range(100_000)), [0.5] * 1000, ["label"] * 1000, random.getstate(), np.random.get_state()]
    value.append(np.random.default_rng(3).bit_generator.state)
    assert alike(trip(value, folder), value)


class Str(str):
    pass


@pytest.mark.parametrize("value", [Custom(), Custom, Str("x"), torch.Generator(), np.array([object()]), len, slice(1),
    torch.ones(2, device="meta"), np.zeros(1, "V3"), torch.ones(2).max(0), np.zeros(1, [("a", "f4")])], ids=type)
def test_what_has_no_form_is_named_by_its_entry(value: object, folder: pathlib.Path) -> None:
    nested = {"meta": [Clip(1, value)], 3: {"ok": torch.ones(1)}}
    with pytest.raises(tree.Unstorable) as raised:
        tree.pack(nested, name="batch")
    assert raised.value.entry == "batch['meta'][0].label" and raised.value.type_name in str(raised.value)
    assert "\n" not in str(raised.value)
    told: list[tuple[str, object]] = []
    tree.save(nested, folder, "batch", on_unstorable=lambda *what: told.append(what))
    assert told == [("batch['meta'][0].label", value)]
    assert tree.load(folder, "batch")["meta"][0].label is tree.MISSING


def test_a_key_that_has_no_form_takes_its_pair_along() -> None:
    told: list[str] = []
    packed = tree.pack({Custom(): 1, "a": {Custom()}}, on_unstorable=lambda entry, _: told.append(entry))
    assert tree.unpack(packed) == {"a": {tree.MISSING}} and told == ["data.keys()[0]", "data['a'][0]"]


def test_cycles_and_bottomless_data_are_refused_in_one_line() -> None:
    loop: dict[str, Any] = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(BadInput, match=r"^data\['a'\]\[0\]: contains itself"):
        tree.pack(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadInput, match="nested over 100 deep"):
        tree.pack(deep)
    shared = [1]
    assert tree.unpack(tree.pack([shared, shared])) == [[1], [1]]


def test_the_deepest_data_that_is_written_can_be_read(folder: pathlib.Path) -> None:
    value: Any = {1: 2}
    for _ in range(tree.MAX_DEPTH - 1):
        value = {1: value}
    assert trip(value, folder) == value
    for _ in range(tree.MAX_DEPTH):
        value = Clip(0, value) if not isinstance(value, dict) else Clip(0, 0)
    assert trip(value, folder) == value


# Files that nobody wrote.


def tamper(folder: pathlib.Path, name: str, change: Any) -> None:
    document = json.loads((folder / f"{name}.json").read_text())
    change(document)
    (folder / f"{name}.json").write_text(json.dumps(document))


def refused(folder: pathlib.Path, name: str) -> str:
    with pytest.raises(BadInput) as raised:
        tree.load(folder, name)
    message = str(raised.value)
    assert "\n" not in message and name in message and "; " in message
    return message


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    value = {"x": torch.arange(6.0).view(2, 3), "n": np.array(["ab"]), "s": torch.eye(2).to_sparse(), "t": (1, 2)}
    tree.save(value, tmp_path, "batch")
    return tmp_path


def set_in(*path: Any, to: Any) -> Any:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return change


LIES = {
    "offset below": set_in("data", "x", "offset", to=-4),
    "offset beyond": set_in("data", "x", "offset", to=4),
    "shape beyond": set_in("data", "x", "shape", to=[2, 4]),
    "stride beyond": set_in("data", "x", "stride", to=[3, 2]),
    "stride below": set_in("data", "x", "stride", to=[-3, 1]),
    "stride count": set_in("data", "x", "stride", to=[1]),
    "endless": set_in("data", "x", "shape", to=[2**62, 2**62]),
    "endless, stride 0": lambda d: d["data"]["x"].update(shape=[2**40, 2**40], stride=[0, 0]),
    "many dimensions": lambda d: d["data"]["x"].update(shape=[1] * 100_000),
    "shape of floats": set_in("data", "x", "shape", to=[2.0, 3.0]),
    "shape of bools": set_in("data", "x", "shape", to=[True, True]),
    "shape a string": set_in("data", "x", "shape", to="23"),
    "no dtype": set_in("data", "x", "dtype", to="Tensor"),
    "quantized": set_in("data", "x", "dtype", to="qint8"),
    "wider dtype": set_in("data", "x", "dtype", to="float64"),
    "no block": set_in("data", "x", "in", to="y"),
    "grad of int": lambda d: d["data"]["x"].update(dtype="int32", requires_grad=True),
    "pointers": set_in("data", "n", "dtype", to="O"),
    "structure": set_in("data", "n", "dtype", to="f4,f4"),
    "array beyond": lambda d: d["data"]["n"].update(shape=[2], stride=[1 << 40]),
    "array longer": set_in("data", "n", "shape", to=[2]),
    "sparse index beyond": set_in("data", "s", "shape", to=[1, 1]),
    "sparse layout": set_in("data", "s", "layout", to="torch.sparse_csr"),
    "unknown tag": set_in("data", "t", "$", to="object"),
    "tag no string": set_in("data", "t", "$", to=[1]),
    "no items": set_in("data", "t", to={"$": "tuple"}),
    "unhashable": set_in("data", "t", to={"$": "set", "items": [[]]}),
    "fields that are code": set_in("data", "t", to={"$": "namedtuple", "name": "a", "fields": ["x=f"], "items": [1]}),
    "fields too few": set_in("data", "t", to={"$": "namedtuple", "name": "a", "fields": [], "items": [1]}),
    "factory": set_in("data", "t", to={"$": "defaultdict", "factory": "eval", "items": []}),
    "no number": set_in("data", "t", to={"$": "float", "value": "one"}),
    "no scalar": set_in("data", "t", to={"$": "scalar", "dtype": "O", "hex": "00" * 8}),
    "no base64": set_in("data", "t", to={"$": "bytes", "base64": "?"}),
    "no device": set_in("data", "t", to={"$": "device", "value": "moon"}),
    "no dtype at all": set_in("data", "t", to={"$": "dtype", "value": "save"}),
    "no path": set_in("data", "t", to={"$": "path", "kind": "Popen", "value": "ls"}),
    "block elsewhere": set_in("blocks", "x", "shape", to=[7]),
    "block dtype": set_in("blocks", "x", "dtype", to="I32"),
    "block address": set_in("blocks", "x", "address", to=64),
    "block device": set_in("blocks", "x", "device", to="moon"),
    "block too many": set_in("blocks", "y", to={"dtype": "F32", "shape": [], "address": 0, "device": "cpu"}),
    "blocks a list": set_in("blocks", to=[1]),
    "another format": set_in("reprokit_tree", to="1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_tree_that_lies_is_refused(saved: pathlib.Path, lie: str) -> None:
    tamper(saved, "batch", LIES[lie])
    refused(saved, "batch")


def test_a_newer_format_says_to_upgrade(saved: pathlib.Path) -> None:
    tamper(saved, "batch", set_in("reprokit_tree", to=2))
    assert "upgrade reprokit" in refused(saved, "batch")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"NaN", b"[" * 10**5, b'{"a":' * 10**5,
    b'{"reprokit_tree": 1}', b'{"reprokit_tree": 1, "blocks": {}, "data": NaN}', b"1" * 10_000,
    b'{"reprokit_tree": 1, "blocks": {}, "data": ' + b"[" * 900 + b"]" * 900 + b"}"])
def test_json_that_is_no_tree_is_refused(tmp_path: pathlib.Path, text: bytes) -> None:
    (tmp_path / "batch.json").write_bytes(text)
    refused(tmp_path, "batch")


def test_missing_files_are_named(saved: pathlib.Path) -> None:
    assert "state.json: missing" in refused(saved, "state")
    (saved / "batch.safetensors").unlink()
    assert "batch.safetensors: missing" in refused(saved, "batch")
    (saved / "batch.json").unlink()
    (saved / "batch.json").mkdir()
    assert "cannot be read" in refused(saved, "batch")


def test_a_folder_that_the_library_cannot_open_is_refused(saved: pathlib.Path) -> None:
    odd = saved.rename(saved.parent / "caf\udce9")
    assert "not UTF-8; move" in refused(odd, "batch")
    (saved / "batch.safetensors").mkdir(parents=True)
    (saved / "batch.json").write_text((odd / "batch.json").read_text())
    assert "batch.safetensors: cannot be read" in refused(saved, "batch")


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_truncated_tensors_are_refused(saved: pathlib.Path, keep: int) -> None:
    path = saved / "batch.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "truncated" in refused(saved, "batch")


def test_trailing_bytes_are_refused(saved: pathlib.Path) -> None:
    with (saved / "batch.safetensors").open("ab") as file:
        file.write(b"more")
    refused(saved, "batch")


def rewrite_header(path: pathlib.Path, change: Any) -> None:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    instead = change(header)
    header = instead if isinstance(instead, (list, int)) else header
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize("change", [
    lambda h: h["x"].update(dtype="I32"),
    lambda h: h["x"].update(shape=[3, 2]),
    lambda h: h["x"].update(data_offsets=[0, 10**18]),
    lambda h: h["x"].update(data_offsets=[-24, 0]),
    lambda h: h["x"].update(data_offsets="ab"),
    lambda h: h["x"].update(data_offsets=h["n"]["data_offsets"]),
    lambda h: h["x"].update(data_offsets=None),
    lambda h: h.pop("x"),
    lambda h: h.update(y=h["x"]),
    lambda h: h.update(x=3),
    lambda h: [h],
    lambda h: 3,
])
def test_a_header_that_lies_is_refused(saved: pathlib.Path, change: Any) -> None:
    rewrite_header(saved / "batch.safetensors", change)
    refused(saved, "batch")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9])
def test_a_header_longer_than_its_file_is_refused(saved: pathlib.Path, length: int) -> None:
    path = saved / "batch.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert "truncated" in refused(saved, "batch")


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["batch.json", "batch.safetensors"]))
def test_random_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, random: Any, name: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "damage"
    folder.mkdir(exist_ok=True)
    tree.save({"x": torch.arange(6.0), "n": np.array(["ab", "c"]), "t": (1, 2.5, "a")}, folder, "batch")
    raw = bytearray((folder / name).read_bytes())
    for _ in range(random.randint(1, 3)):
        raw[random.randrange(len(raw))] = random.randrange(256)
    (folder / name).write_bytes(raw)
    with suppress(BadInput):
        tree.load(folder, "batch")


# Digests.


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_equal_bits_have_equal_digests_however_they_lie(tensor: torch.Tensor) -> None:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    assert tree.digest(tensor) == tree.digest(copy) and len(tree.digest(tensor)) == 64
    other = copy.reshape(1, *copy.shape)
    assert tree.digest(other) != tree.digest(copy)
    if copy.numel():
        copy.view(-1)[-1:].view(torch.uint8)[-1:].bitwise_xor_(1)
        assert tree.digest(copy) != tree.digest(tensor)


def test_digests_tell_dtypes_nan_payloads_and_signs_apart() -> None:
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    distinct = [nans, nans.view(torch.float32), nans.view(torch.float32).flip(0), torch.zeros(2), -torch.zeros(2),
                torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1, 2), torch.zeros(2).to_sparse()]
    assert len({tree.digest(tensor) for tensor in distinct}) == len(distinct)
    base = torch.randn(3, dtype=torch.complex64)
    assert tree.digest(base.conj()) == tree.digest(base.conj().resolve_conj()) != tree.digest(base)
    odd = torch.ones(1, 3).as_strided((1, 1), (7, 5))
    assert tree.digest(odd) == tree.digest(torch.ones(1, 1))
