"""What Cython is told of a module's classes (:mod:`nilometer.compiled.declarations`)."""

from __future__ import annotations

from textwrap import dedent

import pytest

from nilometer.compiled.declarations import Module, declarations, extension_types


def declared(**sources: str) -> dict[str, str]:
    """Return the declarations of modules, by name."""
    modules = [Module(name, dedent(source)) for name, source in sources.items()]
    types = extension_types(modules)
    return {module.name: declarations(module, types)[0] for module in modules}


def test_an_extension_type() -> None:
    source = """
        class Gate:
            __slots__ = ("_open", "_said", "passed", "to_come")

            def __init__(self, said: list[str]) -> None:
                self._open = False
                self._said = said
                self.to_come: Offset = 0
                self.passed = 0

            @property
            def is_open(self) -> bool:
                return self._open

            def let(self, count, why="", *more):
                self.passed += count

            def open(self, why="nothing"):
                self._open = True

            def names(self):
                return [name for name in self._said]

            def each(self):
                yield from self._said

            def sorted(self):
                return sorted(self._said, key=lambda one: -one)

            def only(self, *, by):
                return by

            async def wait(self):
                self.waited = True
        """
    assert declared(gates=source)["gates"].splitlines() == [
        "cdef class Gate:",
        "    cdef public bint _open",
        "    cdef public object _said",
        "    cdef public long long to_come",
        "    cdef public object passed",
        "    cdef public object waited",
        "    cpdef object open(self, why=*)",
        "    cpdef object names(self)",
        "    cdef object __weakref__",
    ]


REFERENCES = """
    from __future__ import annotations

    from doors import Door, Key


    class Gate(Door):
        def __init__(self, door: Door, key: Key, *, other: Door | None = None) -> None:
            self.door = door
            self.key = key
            self.other, self.count = other, 0
            self.next = None
            self.changing = door
            self.made = Door()
            self.said: Door | str = ""

        def follow(self, gate: Gate | None, doors: list[Door]) -> Door:
            self.next = gate
            found: Door | None = None
            return found or self.door

        def change(self) -> None:
            self.changing = Key()


    def open_all(gate: Gate, *others: Gate) -> Gate | None:
        return gate

    def names(gate: Gate):
        return [lambda: gate]
    """


def test_references_to_extension_types() -> None:
    """None is one of their values; what may hold something else stays an object."""
    doors = "class Door:\n    def pass_through(self): ...\nclass Key(NamedTuple): ..."
    found = declared(gates=REFERENCES, doors=doors)["gates"]
    assert found.splitlines() == [
        "from nilometer.doors cimport Door",
        "cimport cython",
        "ctypedef const unsigned char const_byte",
        "cdef class Gate(Door):",
        "    cdef public Door door",
        "    cdef public object key",
        "    cdef public Gate next",
        "    cdef public object changing",
        "    cdef public Door made",
        "    cdef public object said",
        "    cdef public Door other",
        "    cdef public object count",
        "    @cython.locals(found=Door)",
        "    cpdef Door follow(self, Gate gate, doors)",
        "    cpdef object change(self)",
    ]


def test_types_of_what_only_the_source_can_declare() -> None:
    """They stand in empty lines, so that each line of a traceback is that of the source."""
    gates = Module("gates", dedent(REFERENCES))
    doors = Module("doors", "class Door:\n    def pass_through(self): ...\nclass Key(NamedTuple): ...")
    _, source = declarations(gates, extension_types([gates, doors]))
    before, after = gates.source.splitlines(), source.splitlines()
    changed = {number: line for number, line in enumerate(after) if line != before[number]}
    assert len(before) == len(after)
    assert changed == {
        1: "from __future__ import annotations; import cython",
        24: "@cython.locals(gate=Gate)",
    }


@pytest.mark.parametrize(
    "source",
    [
        "class A(NamedTuple):\n    x: int",
        "class A(Base):\n    pass",
        "class A(B, C):\n    pass",
        "class A(Generic[T]):\n    pass",
        "class A(metaclass=M):\n    pass",
        "@dataclass\nclass A:\n    x: int",
        "class A:\n    x = 1\n    def move(self):\n        self.x = 2",
        "class A:\n    x: int = 1\n    def move(self):\n        self.x += 2",
    ],
)
def test_a_class_that_stays_as_it_is(source: str) -> None:
    assert "cdef class" not in declared(a=source)["a"]


def test_a_class_whose_base_is_an_extension_type_of_another_module() -> None:
    found = declared(
        **{
            "storage.log": "from nilometer.storage.state import State\nclass Log(State):\n    pass",
            "storage.state": "class State:\n    def grow(self):\n        self.end = 1\nclass Own(State): ...",
        }
    )
    assert found["storage.log"].splitlines() == [
        "from nilometer.storage.state cimport State",
        "cdef class Log(State):",
        "    pass",
    ]
    assert "cdef class Own(State):\n    pass\n" in found["storage.state"]


def test_variables_of_fixed_width() -> None:
    source = """
        def total(data, start_at=0):
            view: BytesView = data
            found: Int64
            found = start_at
            for byte in view:
                found += byte
            return found

        def other():
            found: int = 1

        class Map:
            def put(self, key):
                table: Int64View = self.table
                marks: WritableView = self.marks
                return table[hash(key) % len(table)]
        """
    assert declared(sums=source)["sums"].splitlines() == [
        "cimport cython",
        "ctypedef const unsigned char const_byte",
        "cdef class Map:",
        "    @cython.locals(table=cython.longlong[::1], marks=cython.uchar[::1])",
        "    cpdef object put(self, key)",
        "    cdef object __weakref__",
        "@cython.locals(view=const_byte[::1], found=cython.longlong)",
        "cpdef object total(data, start_at=*)",
        "cpdef object other()",
    ]


def test_a_parameter_of_fixed_width_is_refused() -> None:
    module = Module("a", "def one(count: Int64):\n    return count\n")
    with pytest.raises(ValueError, match="count in line 1"):
        declarations(module, set())


@pytest.mark.parametrize(
    "source",
    [
        "def numbers(count):\n    at: Int64 = 0\n    yield at\n",
        "def one(*, count):\n    at: Int64 = count\n    return at\n",
        "class A(Base):\n    def half(self, count):\n        at: Int64 = count\n        return at // 2\n",
    ],
)
def test_a_variable_of_fixed_width_that_would_stay_an_object_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="1 functions have variables of fixed width, and 0 of them"):
        declared(halves=source)
