"""Controls of a live figure: what a reader can choose, and nothing else."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import ipywidgets as widgets
from traitlets import Any as AnyTrait
from traitlets import HasTraits, Int


class _Chosen(AnyTrait):
    """A value that is never None: ipywidgets itself would let a control be set to nothing."""

    allow_none = False

    def validate(self, obj: HasTraits, value: object) -> object:
        if value is None:
            self.error(obj, value)
        return value


class _Control(HasTraits):
    """What every control has: a value that is never None, and a place that the page need not be told back.

    An echo of each move would reach the page before the picture does, for nothing: the page sent it.
    """

    value = _Chosen()
    index = Int().tag(sync=True, echo_update=False)


class _Slider(_Control, widgets.SelectionSlider):
    pass


class _Menu(_Control, widgets.Dropdown):
    pass


class _Buttons(_Control, widgets.ToggleButtons):
    pass


KINDS = {"slider": _Slider, "menu": _Menu, "buttons": _Buttons}


@dataclass
class Choice:
    """A control: what can be chosen, what is chosen at the start.

    options  values or (label, value) pairs, or a function of other controls' values that
             returns them: `lambda seq_len: range(seq_len)` follows the control seq_len
    start    the value chosen at the start; left out, the last option, also when others are offered later
    kind     the widget: "slider" (at least two options), "menu" or "buttons"

    Only listed options can be chosen, so a control never holds an invalid value.
    """

    options: Iterable | Callable[..., Iterable]
    start: Any = None
    kind: str = "slider"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a control can be of the kind {', '.join(KINDS)}, not {self.kind!r}")
        if callable(self.options):
            self.options = with_own_globals(self.options)
        else:
            self.options = tuple(self.options)

    def pairs(self, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """What can be chosen, as (label, value) pairs, given the values of the other controls."""
        options = self.options
        if callable(options):
            wanted = signature(options).parameters
            if missing := set(wanted) - set(values):
                raise ValueError(f"options depend on {sorted(missing)}, but no earlier control has that name")
            options = options(**{name: values[name] for name in wanted})
        pairs = tuple(o if isinstance(o, tuple) else (_label(o), o) for o in options)
        if len(pairs) < (2 if self.kind == "slider" else 1):
            raise ValueError(f"a {self.kind} needs more to choose from than {[label for label, _ in pairs]}")
        if any(value is None for _, value in pairs):
            raise ValueError('None cannot be an option: use a word, such as "none"')
        return pairs


def with_own_globals(function: Any) -> Any:
    """A notebook's function, bound to what its names mean now: a later cell may reuse them.

    Functions of the same notebook that it calls are bound with it.
    """
    if not isinstance(function, types.FunctionType):
        return function
    old = function.__globals__
    new: dict[str, Any] = {
        "__builtins__": old.get("__builtins__", __builtins__),
        "__name__": old.get("__name__"),
    }
    return _bound(function, old, new)


def _bound(function: types.FunctionType, old: dict[str, Any], new: dict[str, Any]) -> types.FunctionType:
    code, defaults, closure = function.__code__, function.__defaults__, function.__closure__
    copy = types.FunctionType(code, new, function.__name__, defaults, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    for name in _names_in(code) & set(old) - set(new):
        value = old[name]
        new[name] = value  # first, for a function may call itself
        if isinstance(value, types.FunctionType) and value.__globals__ is old:
            new[name] = _bound(value, old, new)
    return copy


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _label(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
