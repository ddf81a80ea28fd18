"""A shadow: a second object with the very same instance dict as a module, of a subclass that is always in eval mode.

What lies in the dict (parameters, buffers, hooks, submodules, plain attributes) is therefore one thing, seen from two
sides. Data descriptors of a class win over the instance dict, and that is all it takes for the shadow to see
`training` as False and its submodules as shadows, while nothing of the module is touched.
"""

import copy
import weakref
from abc import ABCMeta
from collections.abc import Callable, MutableMapping
from functools import lru_cache, partial, wraps
from types import FunctionType, MethodType
from typing import Any, NoReturn, cast

from torch import jit, nn

from stoker.errors import InvalidArgument
from stoker.steps._children import Children
from stoker.steps._graphless import graphless, inside_of, is_inside, run
from stoker.steps._members import members
from stoker.steps._replaced import holds_modules, replaced


class View:
    """What the shadows of one view share; a module that stands in two places has one shadow.

    Nothing here keeps a shadow alive: parents hold their children's, so a view that is dropped is gone at once.
    """

    __slots__ = ("root", "shadows", "sharded")

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        self.shadows: weakref.WeakValueDictionary[int, Shadow] = weakref.WeakValueDictionary()
        self.sharded: dict[int, Any] = {}  # the modules under `fully_shard`, by id

    def settle(self) -> None:
        """Gives FSDP2's modules their shards back.

        After a forward without a backward the outermost one would show its whole weights instead: parameters that the
        optimizer doesn't know, or, if it is made then, the only ones that it knows.
        """
        for module in self.sharded.values():
            module.reshard()

    def of(self, module: nn.Module) -> "Shadow":
        """The module's shadow, made where there is none."""
        if isinstance(module, Shadow):
            return module
        origin, worn = unwrapped(module)
        shadow = self.shadows.get(id(origin))  # a shadow holds its origin, so the id is still that module's
        if shadow is None:
            shadow = self.shadows.setdefault(id(origin), _cast(self, origin, worn))
        return shadow


def unwrapped(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The user's module inside `torch.compile` and DDP, and the names under which they hold it."""
    worn: list[str] = []
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            worn.append("module")
        elif type(module).__name__ == "OptimizedModule":  # by name: torch._dynamo is slow to import
            worn.append("_orig_mod")
        else:
            return module, tuple(worn)
        module = getattr(module, worn[-1])


def origin_of(module: nn.Module) -> nn.Module:
    """The module that a shadow is of; any other module is its own."""
    return module._stoker_origin if isinstance(module, Shadow) else module


class Shadow(nn.Module):
    """The part of a shadow's class that is the same for all modules; it stands before the user's class."""

    __slots__ = ("_stoker_kept", "_stoker_origin", "_stoker_size", "_stoker_view", "_stoker_worn")
    _stoker_view: View
    _stoker_origin: nn.Module
    _stoker_kept: dict[int, tuple[nn.Module, "Shadow"]]  # its children's shadows, by the child's id
    _stoker_size: int  # of the instance dict when it was last searched for attributes that hold modules
    _stoker_worn: tuple[str, ...]  # `module` for DDP: code that was written for the wrapper still finds its way

    def __init_subclass__(cls) -> None:
        """Ends here: what a user's class does when it is inherited from is not meant for shadows."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Shadow":
        """`self.__class__(...)` in the user's code (a slice of a `Sequential`): a shadow of a new module."""
        made = cls.__mro__[2](*replaced(args, origin_of), **replaced(kwargs, origin_of))
        return cast(View, inside_of() or View(made)).of(made)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do: the module was made, and the dict is its."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        view = self._stoker_view
        if is_inside(view):
            return super().__call__(*args, **kwargs)
        return run(view, _called_afresh, (self, *args), kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self._stoker_worn:
            return self
        value = super().__getattr__(name)
        return _child(self, value) if isinstance(value, nn.Module) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":  # a lazy module that becomes an ordinary one
            self._stoker_origin.__class__ = value
            _fit(self)
        else:
            super().__setattr__(name, replaced(value, origin_of))

    @property
    def training(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    @training.setter
    def training(self, mode: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if mode:
            raise InvalidArgument(
                f"a view is always in eval mode, so this {type(self).__name__} can't be switched to training; "
                "call the model itself, not what valid() gave for it"
            )

    @property
    def _modules(self) -> Children:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Children(self.__dict__["_modules"], lambda child: _child(self, child), origin_of)

    @_modules.setter
    def _modules(self, children: MutableMapping[str, nn.Module | None]) -> None:  # pyright: ignore
        own = {name: None if child is None else origin_of(child) for name, child in children.items()}
        self.__dict__["_modules"] = own

    @property
    def _compiled_call_impl(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`module.compile()` keeps its compiled call here, and it is the training one."""

    @_compiled_call_impl.setter
    def _compiled_call_impl(self, compiled: object) -> NoReturn:  # pyright: ignore
        raise InvalidArgument("a view runs eagerly and can't be compiled; compile the model itself")

    def __eq__(self, other: object) -> bool:  # so that what a user keeps by module is found with its shadow as well
        return self._stoker_origin == (origin_of(other) if isinstance(other, nn.Module) else other)

    def __hash__(self) -> int:
        return hash(self._stoker_origin)

    def __repr__(self) -> str:
        return f"valid({self._stoker_origin!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shadow":
        origin = copy.deepcopy(self._stoker_origin, memo)
        return View(origin).of(origin)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidArgument(
            f"a view (of {type(self).__name__}) can't be pickled or shallow-copied: it has no weights of its own; "
            "use the model itself, and call valid() on it where it is needed"
        )


def _registration(name: str) -> Callable[..., Any]:
    """Registers on the module itself, whose own hook dicts the handles must point to."""
    own = getattr(nn.Module, name)

    @wraps(own)
    def register(self: Shadow, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._stoker_origin, name)(*replaced(args, origin_of), **replaced(kwargs, origin_of))

    return register


for _name in [name for name in vars(nn.Module) if name.startswith(("register_", "_register_", "add_module"))]:
    setattr(Shadow, _name, _registration(_name))


def _cast(view: View, origin: nn.Module, worn: tuple[str, ...]) -> Shadow:
    """A new shadow of the module."""
    if isinstance(origin, jit.ScriptModule):
        raise InvalidArgument(
            f"valid() can't make a view of a TorchScript module ({origin.original_name}): its code reads a training "
            "flag of its own; make the view of the module that it was scripted or traced from"
        )
    shadow = object.__new__(_class_for(type(origin), False))
    write = object.__setattr__
    write(shadow, "_stoker_view", view)
    write(shadow, "_stoker_origin", origin)
    write(shadow, "_stoker_kept", {})
    write(shadow, "_stoker_worn", worn)
    write(shadow, "__dict__", origin.__dict__)
    _fit(shadow)
    return shadow


def _child(shadow: Shadow, module: nn.Module) -> Shadow:
    """The shadow of a module that this one's module holds."""
    pair = shadow._stoker_kept.get(id(module))
    if pair is None:
        pair = shadow._stoker_kept[id(module)] = (module, shadow._stoker_view.of(module))
    child = pair[1]
    _refresh(child)
    return child


def _refresh(shadow: Shadow) -> None:
    """Follows a module that has changed its class (`parametrize`, `fully_shard`) or got attributes."""
    origin = shadow._stoker_origin
    if len(origin.__dict__) != shadow._stoker_size or type(shadow).__mro__[2] is not type(origin):
        _fit(shadow)


def _called_afresh(shadow: Shadow, /, *args: Any, **kwargs: Any) -> Any:
    _refresh(shadow)
    return super(Shadow, shadow).__call__(*args, **kwargs)


_SHARED = frozenset({"_parameters", "_buffers", "_modules", "__dict__", *Shadow.__slots__})


def _fit(shadow: Shadow) -> None:
    """The class that fits the module as it is now."""
    origin = shadow._stoker_origin
    held = origin is shadow._stoker_view.root() or holds_modules(
        value for name, value in origin.__dict__.items() if name not in _SHARED
    )
    object.__setattr__(shadow, "__class__", _class_for(type(origin), held))
    object.__setattr__(shadow, "_stoker_size", len(origin.__dict__))
    if any(base.__name__ == "FSDPModule" for base in type(origin).__mro__):  # by name: a slow import as well
        shadow._stoker_view.sharded[id(origin)] = origin


def _through(self: Shadow, name: str) -> Any:
    """`__getattribute__`, for the root and for modules with plain attributes that hold modules.

    Few modules do, and each read costs time; the root has it always, as nobody looks at it afresh before a read.
    A list of modules is a list of their shadows, and a method that was put on the instance is one of the shadow's.
    """
    value = super(Shadow, self).__getattribute__(name)
    if name in _SHARED:
        return value
    seen = replaced(value, lambda module: module if isinstance(module, Shadow) else _child(self, module))
    is_function = seen is not value and isinstance(seen, FunctionType | MethodType | partial)
    return graphless(self._stoker_view, seen) if is_function else seen


@lru_cache(maxsize=1024)  # not weak by class: a shadow's class holds the user's, which would keep its own key alive
def _class_for(cls: type, held: bool) -> type[Shadow]:
    """The class of the shadows of a class; neither `__init_subclass__` nor a metaclass of the user hears of it."""
    namespace = members(cls, Shadow) | {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if held:
        namespace["__getattribute__"] = _through
    make = ABCMeta.__new__ if issubclass(type(cls), ABCMeta) else type.__new__
    return make(type(cls), cls.__name__, (Shadow, cls), namespace)  # pyright: ignore
