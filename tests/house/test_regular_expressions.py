"""Code is built from values: no regular expression looks into it, ours or Inductor's."""

import ast

from tests.house.source import modules

#: The files that use regular expressions, and on what.
USES = {
    "api/configure.py": "sizes such as 1GiB",
    "cache/format/header.py": "names, digests and algorithms in the header of a file",
    "cache/format/strict_json.py": "the bytes of JSON, before it is parsed",
    "cache/key/data.py": "patterns of the user's, as values",
    "cache/key/fingerprints.py": "patterns of the user's, as values",
    "cache/serialize/allow_list.py": "names in a file",
    "cache/serialize/checked_code.py": "names in code that was parsed",
    "cache/serialize/data_only.py": "names in a file",
    "cache/serialize/keyring.py": "labels of keys",
    "cache/store/cache.py": "URLs, without passwords",
    "cache/store/layer.py": "keys, and reasons for a miss",
    "core/signature.py": "names of values",
    "graph/holders.py": "ways to a tensor, in the words of a report",
    "graph/nodes.py": "patterns of the user's, for names of nodes",
    "process/eviction.py": "names of folders",
    "program/effect_chains.py": "names of values",
    "program/parse.py": "lines of a listing, whose expressions are parsed by `ast`",
    "runtime/guards/python_objects.py": "patterns of the user's, as values",
    "torch_private/cpp_builds.py": "what a C++ compiler has said",
    "torch_private/serialization.py": "types in the schema of an op",
}


def test_files_that_use_regular_expressions_say_on_what():
    found = {module.file for module in modules().values() if _imports(module.tree, "re")}
    assert found == USES.keys(), "code is parsed by `ast`; on anything else say here what it is"


def _imports(tree: ast.Module, name: str) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(one.name == name for one in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == name)
        for node in ast.walk(tree)
    )
