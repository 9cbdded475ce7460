"""Wraps a method in a class and in all of its subclasses, those defined later included."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

MARK = "_launch_wrapped"

Around = Callable[..., Any]
"""Called as `around(original, instance, *args, **kwargs)`; `original` is bound already."""


def wrap_method(
    base: type, name: str, around: Around, *, autograph: bool = False, subclasses: bool = True
) -> None:
    """Replaces method `name` throughout the class tree of `base`.

    An override that calls `super()` runs `around` once for each class that it passes, the
    outermost first; `around` itself knows when it is nested.

    Args:
        base: root of the class tree.
        name: of the method.
        around: what is called instead.
        autograph: whether TensorFlow may convert the original, as it would without us.
        subclasses: whether overrides are wrapped, too.
    """
    if not subclasses:
        setattr(base, name, _wrapped(base.__dict__[name], None, around, autograph))
        return

    def wrap(cls: type) -> None:
        original = inspect.getattr_static(cls, name, None)
        if original is not None and name not in getattr(original, MARK, ()):
            setattr(cls, name, _wrapped(original, name, around, autograph))

    def wrap_tree(cls: type) -> None:
        wrap(cls)
        children: list[type] = type.__subclasses__(cls)
        for child in children:
            wrap_tree(child)

    wrap_tree(base)
    _hook_subclasses(base, wrap)


def _wrapped(original: Any, name: str | None, around: Around, autograph: bool) -> Any:
    if autograph:
        import tensorflow as tf

        guarded = tf.autograph.experimental.do_not_convert(around)
        internal = tf.__internal__.autograph

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(self, type(self))
            call = internal.tf_convert(bound, internal.control_status_ctx())
            return guarded(call, self, *args, **kwargs)

    else:

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original.__get__(self, type(self)), self, *args, **kwargs)

    functools.update_wrapper(method, original)
    setattr(method, MARK, {*getattr(original, MARK, ()), name} - {None})
    return method


def _hook_subclasses(base: type, wrap: Callable[[type], None]) -> None:
    previous = base.__dict__.get("__init_subclass__")

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        if previous is not None:
            previous.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        wrap(cls)

    setattr(base, "__init_subclass__", classmethod(init_subclass))  # type: ignore[arg-type] # noqa: B010
