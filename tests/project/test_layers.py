"""Imports go down only, each outside thing has one owner, and the public surface is what is written."""

import ast
import functools
import pickle
import re
from importlib import import_module
from pathlib import Path

import pytest

import edcache
from edcache import errors

PACKAGE = Path(edcache.__file__).parent
# The one list of floors is in the package's docstring.
FLOOR = {room: int(floor) for floor, room in re.findall(r"^    (\d)  (\w+) ", edcache.__doc__, re.MULTILINE)}
# What users import by these paths; nothing in the package imports them.
DOORS = {"__init__", "__main__", "compat", "errors", "numpy", "samplers"}
# The folders of this room are backends: each has a surface of its own.
BACKENDS = "backends"
OWNERS = {
    "pyarrow": {"format", "labels"},
    "mmap": {"storage"},
    "fcntl": {"storage"},
    "pickle": {"codec"},
    "redis": {"backends"},
    "zstandard": {"codec"},
    "click": {"cli"},
    "tqdm": {"base"},
    "aiohttp": {"backends"},
    "asyncio": {"backends"},
    "fsspec": {"backends"},
    "torch_xla": {"dataset"},
    "huggingface_hub": {"backends"},
    "tarfile": {"interop"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(file): file for file in FILES}


def room_of(file):
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def surface_of(module):
    """The room, or of a backend the folder, that a module stands in."""
    parts = module.split(".")
    backend = ".".join(parts[:2])
    return backend if parts[0] == BACKENDS and MODULES[backend].name == "__init__.py" else parts[0]


def imported_modules(file):
    """Every module that a file imports, in functions and for type checkers too.

    `from a import b` is a, and a.b where that is a module.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_files(file):
    """The modules of the package that a file imports: "codec", "codec.leaves"."""
    for name in imported_modules(file):
        package, _, inside = name.partition(".")
        if package == "edcache" and inside:
            room, _, last = inside.rpartition(".")
            yield inside if inside in MODULES and last not in offered(room) else room


@functools.cache
def offered(room):
    """The names that a room offers; one may be called as the file that it is from."""
    surface = (MODULES[room] if room else PACKAGE / "__init__.py").with_suffix(".pyi")
    nodes = ast.parse(surface.read_text()).body if surface.exists() else ()
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_every_room_has_a_floor():
    assert {room_of(file) for file in FILES} - DOORS == FLOOR.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_go_down_only_and_take_what_a_room_offers(file):
    room, surface = room_of(file), surface_of(module_of(file))
    if room in DOORS:
        return
    for module in set(imported_files(file)) - {""}:
        other = room_of(MODULES[module])
        assert other not in DOORS, f"imports {module}, which is for users"
        assert other == room or FLOOR[other] < FLOOR[room], f"{room} imports {other}"
        if surface_of(module) != surface:
            assert module == surface_of(module), f"takes {module} past the surface of its room"


# Base classes whose protected members the files of their room share: a public name would be one more for users.
PROTECTED = {"dataset": ("epoch.EpochSampler",)}


def private_members(node):
    """The names with an underscore that the classes in a tree define."""
    for kind in (n for n in ast.walk(node) if isinstance(n, ast.ClassDef)):
        for n in ast.walk(kind):
            name = getattr(n, "name", None)
            if (
                isinstance(n, ast.Attribute)
                and isinstance(n.ctx, ast.Store)
                and ast.unparse(n.value) == "self"
            ):
                name = n.attr
            elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                name = n.id
            if name is not None and is_private(name):
                yield name


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name != "_fields"  # of a namedtuple


def private_accesses(tree):
    """Line and name of each `x._name` but for self, cls and super(); also by getattr."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and is_private(n.attr):
            if ast.unparse(n.value) not in ("self", "cls", "super()"):
                yield n.lineno, n.attr
        elif isinstance(n, ast.Call) and ast.unparse(n.func) in ("getattr", "setattr", "hasattr"):
            name = n.args[1].value if isinstance(n.args[1], ast.Constant) else ""
            if is_private(name):
                yield n.lineno, name


def test_private_members_stay_in_their_file():
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    own = {file: {*private_members(tree)} for file, tree in trees.items()}
    everywhere = set().union(*own.values())
    shared = {}
    for room, bases in PROTECTED.items():
        files, kinds = zip(*(base.split(".") for base in bases), strict=True)
        nodes = [n for file in files for n in trees[MODULES[f"{room}.{file}"]].body]
        shared[room] = {m for n in nodes if getattr(n, "name", "") in kinds for m in private_members(n)}
    found = [
        f"{module_of(file)}:{line}: {name}"
        for file, tree in trees.items()
        for line, name in private_accesses(tree)
        if name in everywhere - own[file] - shared.get(room_of(file), set())
    ]
    assert found == [], "\n".join(found)


def test_no_file_leads_to_itself():
    """Rooms are on floors; here are the files of one, whose surfaces only gather them."""
    edges = {
        module: {m for m in imported_files(file) if m and room_of(MODULES[m]) == room_of(file)} - {module}
        for module, file in MODULES.items()
        if file.name != "__init__.py" and room_of(file) not in DOORS
    }
    reached = {module: below & edges.keys() for module, below in edges.items()}
    for middle in edges:
        for module, below in reached.items():
            if middle in below:
                reached[module] = below | reached[middle]
    circles = {frozenset(o for o in below if module in reached[o]) for module, below in reached.items()}
    assert circles == {frozenset()}


def types_of(file):
    """Yield the names of classes, and of types that are assigned, of a file."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in getattr(node, "targets", None) or [node.target]:
                # Constants are all capitals, as are P and T_co.
                if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]+[a-z]\w*", target.id):
                    yield target.id


def test_a_name_of_a_type_stands_in_one_file():
    """A search finds the thing; compat has the names of other systems, which are theirs."""
    files = {}
    for file in FILES:
        for name in types_of(file) if room_of(file) != "compat" else ():
            files.setdefault(name, set()).add(module_of(file))
    assert len(files) > 200
    found = [f"{name}: {', '.join(sorted(of))}" for name, of in sorted(files.items()) if len(of) > 1]
    assert found == [], "call one of them another name, or import it:\n" + "\n".join(found)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_outside_things_have_one_owner(file):
    for module in imported_modules(file):
        owners = OWNERS.get(module.split(".")[0])
        assert owners is None or room_of(file) in owners, f"{room_of(file)} imports {module}"


def test_what_reads_an_archive_cannot_run_code():
    """pickle is in modules that say so; nothing evaluates text or imports by a name that a file holds."""
    pickles = {"codec/pickles.py", "codec/foreign_pickles.py"}
    allowed = pickles | {"cli/build.py", "codec/packages.py", "storage/registry.py"}
    assert allowed <= {file.relative_to(PACKAGE).as_posix() for file in FILES}
    for file in FILES:
        if file.relative_to(PACKAGE).as_posix() in allowed:
            continue
        calls = {
            ast.unparse(n.func) for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)
        }
        forbidden = {"eval", "exec", "compile", "__import__", "import_module", "importlib.import_module"}
        assert not calls & forbidden, file
        assert not any(c.startswith(("pickle.", "marshal.", "np.load", "torch.load")) for c in calls), file


def test_the_public_names_are_these():
    for name in edcache.__all__:
        assert getattr(edcache, name) is not None
    with pytest.raises(AttributeError, match="No edcache attribute nonsense"):
        edcache.nonsense  # noqa: B018


def test_the_errors_that_most_programs_catch_are_names_of_the_package():
    named = {name for name in edcache.__all__ if name.endswith("Error")}
    assert named == {
        *("EdcacheError", "OptionError", "SourceError", "StaleCacheError"),
        *("CorruptArchiveError", "MissingSampleError"),
    }
    assert all(getattr(edcache, name) is getattr(errors, name) for name in named)
    assert set(edcache.__all__) <= set(dir(edcache))
    assert not {"Any", "annotations"} & {*edcache.__all__, *dir(edcache)}


def names_taken(file):
    """What a file takes from surfaces: `from edcache.codec import parse`, or `codec.parse`."""
    tree = ast.parse(file.read_text())
    spaces = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "edcache":
            room = node.module.partition(".")[2]
            yield from ((room, alias.name) for alias in node.names)
            spaces |= {alias.asname or alias.name: f"{room}.{alias.name}".strip(".") for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in spaces:
            yield spaces[node.value.id], node.attr


def test_a_surface_has_what_it_names_and_names_what_others_take():
    taken = {name for file in FILES for name in names_taken(file)}
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            taken |= {(node.module or "", alias.name) for alias in node.names}
    for surface in set(PACKAGE.rglob("__init__.pyi")) - {PACKAGE / "__init__.pyi"}:
        room = module_of(surface)
        module = import_module(f"edcache.{room}")
        files = {file.stem for file in surface.parent.glob("*.py")}
        for name in offered(room):
            value = getattr(module, name)
            assert (room, name) in taken, f"{room}: nothing takes {name}"
            # An import of the file would put it in the place of the name.
            assert name not in files or getattr(value, "__module__", name).endswith(name), (
                f"{room}: {name} is a file too"
            )


def test_an_error_of_the_system_keeps_its_errno_out_of_another_process():
    from edcache.errors import StorageError

    error = StorageError("train.zip: writing: No space left on device")
    error.errno, error.filename = 28, "train.zip"
    error.__notes__ = ["in a worker"]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (StorageError, str(error))
    assert (copy.errno, copy.filename) == (28, "train.zip")


def test_every_error_is_drawn_in_the_tree_and_survives_being_rebuilt_from_its_message():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdcacheError)]
    drawn = errors.__doc__
    for kind in classes:
        assert kind.__name__ in drawn
        assert str(kind("train.zip: what happened")) == "train.zip: what happened"
        for base in set(kind.__bases__) - {Exception}:
            assert issubclass(base, errors.EdcacheError) or f"{kind.__name__} ({base.__name__})" in drawn
