"""YAML as plain data, from whoever hands it over: the only place where it is read.

Aliases let a few lines stand for more values than any machine holds ("billion laughs": each of nine keys a list of nine
of the one before), and merged keys are copied while they are read. So nodes are composed, which costs no more than the
text is long, and counted as if every alias were written out, before anything is made of them.
"""

from __future__ import annotations

from typing import Any

import yaml

LENGTH = 4 << 20  # characters: the reader takes a minute for them, and configs have thousands
VALUES = 1_000_000  # with all aliases written out

_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)  # of what is no YAML


def read(text: str) -> Any:
    """Raises ValueError, which says in one line what is wrong."""
    if len(text) > LENGTH:
        raise ValueError(f"more than {LENGTH:,} characters")
    loader: Any = None
    try:
        loader = yaml.SafeLoader(text)  # in Python: libyaml refuses surrogates that were written
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node)
        return loader.construct_document(node)
    except _UNREADABLE as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    finally:
        if loader is not None:
            loader.dispose()


def _check(root: yaml.Node) -> None:
    """Raises ValueError for a node that holds itself, or too many others."""
    sizes: dict[int, int] = {}  # by identity; 0 while it is counted

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            inside = [one for pair in pairs for one in pair] if pairs else node.value
            sizes[id(node)] = 1 + (sum(map(size, inside)) if isinstance(node, yaml.CollectionNode) else 0)
        if not sizes[id(node)]:
            raise ValueError("an alias of what it stands in")
        if sizes[id(node)] > VALUES:
            raise ValueError(f"more than {VALUES:,} values, with its aliases written out")
        return sizes[id(node)]

    size(root)
