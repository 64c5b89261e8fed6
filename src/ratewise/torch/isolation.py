"""Row isolation: modules and losses run on each row separately, with random numbers of the row's own.

Guarantee: row ``i`` of the result of `map_rows` is a function of row ``i``, of the parameters, and of the key, the step
and the row's number. So adding or removing a row changes nothing for another row, also for somebody who knows the key.
Code that calls private functions of PyTorch to get around this is outside the guarantee.

In every step, ``torch.func.vmap`` gives the code a batch that contains one row; no operation can reach the axis of all
rows. Reading a value (``.item()``, ``if x.max() > 3``) and results whose shape depends on values raise an error
whatever the values are. Every random operation (``torch.Tag.nondeterministic_seeded``) is replaced below ``vmap``: row
``i`` of its result is made of the bytes of ``KeyedGenerator(key, step, number of the row)``. What cannot be drawn so
is refused when the module is checked on synthetic rows, before any row is read. New tensors begin with zeros, not with
what earlier computations left in memory.
"""

from __future__ import annotations

import copy
import gc
import math
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.mechanisms.randomness import KEY_BYTES, KeyedGenerator, SecureGenerator

Floats = npt.NDArray[np.float64]

_DRAW_REMEDY = (
    "use operations that draw each entry independently, such as nn.Dropout, torch.rand_like, torch.randn_like "
    "and torch.bernoulli"
)
_REMEDY = (
    "use tensor operations on the row itself: torch.where and masks in place of conditions, .item() and "
    "boolean indexing, x.new_zeros in place of torch.zeros, masks in place of packed sequences, and "
    "opacus.layers for recurrent layers"
)
_FIX = "replace it, for example with opacus.validators.ModuleValidator.fix(module)"
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_GLOBAL_GENERATORS = (random.random.__self__, np.random.rand.__self__, torch.default_generator)  # type: ignore[attr-defined]
_MOST_PARTS = 1000  # of an object that is looked into; what has more holds rows
KEEPS = (
    "keeps tensors of its rows after it has returned (such as self.last = x, or a hook that collects outputs), where "
    "the next batch would meet them; do not store them"
)
_FARTHEST = 2.0**16  # place that is sampled, in halves of a picture
_ONE_THREAD = threading.RLock()  # changes what all threads share, such as global generators
_TRIALS = 4  # synthetic forward passes with the same draws, whose results must agree
_SIGNS = ("vmap", "atching rule", "BatchedTensor", "data pointer", "functorch", "saved tensor hooks")
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_FUNCTORCH: Any = torch._C._functorch
_DISPATCH: Any = torch._C

# ----------------------------------------------------------------------------------- random numbers


class RowRandomness:
    """The random numbers of one batch in one step, from a secret key; inside ``with``, isolated code draws from it.

    `rows` are the numbers of the rows in the order of the batch; blank rows may follow them. Each `use` has draws of
    its own: 0 for modules and losses, 1 for data sets.
    """

    def __init__(self, key: bytes, step: int, rows: Sequence[int] | npt.NDArray[np.intp], use: int = 0) -> None:
        self._key, self._step, self._use = key, step, (use,) if use else ()
        self._rows = [int(row) for row in rows]
        self._generators: list[KeyedGenerator] = []

    def __enter__(self) -> RowRandomness:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_problem: Any) -> None:
        _current.reset(self._token)

    def bytes(self, rows: int, each: int) -> bytes:
        """Return `each` bytes for every row of a batch, one row after the other."""
        for place in range(len(self._generators), rows):
            number = self._rows[place] if place < len(self._rows) else -1 - place
            self._generators.append(KeyedGenerator(self._key, self._step, number, *self._use))
        return b"".join(generator.bytes(each) for generator in self._generators[:rows])


_current: ContextVar[RowRandomness | None] = ContextVar("row_randomness", default=None)
_watching: ContextVar[_Watch | None] = ContextVar("watching", default=None)


def draws_by_row(rows: int, what: str) -> _Draws:
    """Replace random operations on so many rows by draws from `RowRandomness`, or else from the secure source."""
    return _Draws(_current.get() or RowRandomness(SecureGenerator().bytes(KEY_BYTES), 0, ()), rows, what)


@contextmanager
def draws_of_items(rows: Sequence[int]) -> Iterator[Iterator[int]]:
    """Yield the rows one by one, with the global generators of Python, NumPy and PyTorch set for each row separately.

    What the items of a data set draw is a function of `RowRandomness`, or else of the secure source, and of the row.
    Afterwards the generators are as they were.
    """
    randomness = _current.get() or RowRandomness(SecureGenerator().bytes(KEY_BYTES), 0, rows, use=1)
    seeds = np.frombuffer(randomness.bytes(len(rows), KEY_BYTES), dtype=np.uint32).reshape(len(rows), KEY_BYTES // 4)
    _ONE_THREAD.acquire()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - data sets use it

    def each() -> Iterator[int]:
        for row, seed in zip(rows, seeds, strict=True):
            random.seed(seed.tobytes())
            np.random.seed(seed)  # noqa: NPY002
            torch.default_generator.manual_seed(int.from_bytes(seed[:2].tobytes(), "little"))
            yield row

    try:
        yield each()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        _ONE_THREAD.release()


def generator_in(owner: Any) -> str:
    """Return the kind of a random generator that the code of an object can reach, or nothing.

    It may be in attributes, containers and closures, or in globals that functions and methods of their file name. The
    global generators of Python, NumPy and PyTorch do not count.
    """
    parts, seen = [owner], {id(one) for one in _GLOBAL_GENERATORS}
    for part in parts:
        if isinstance(part, GENERATORS) and id(part) not in seen:
            return type(part).__name__
        if id(part) not in seen:
            seen.add(id(part))
            parts += _parts(part)
    return ""


def _parts(value: Any) -> list[Any]:
    """Return what an object is made of, and what its methods or, if it is a function, its code refer to."""
    if isinstance(value, type | ModuleType):
        return []
    if not isinstance(value, FunctionType):
        found = gc.get_referents(value)
        methods = [one for kind in type(value).__mro__ for one in vars(kind).values() if isinstance(one, FunctionType)]
        return [*(found if len(found) <= _MOST_PARTS else ()), *methods]
    named = [value.__globals__.get(name) for name in value.__code__.co_names]
    homes = [one.__module__ if isinstance(one, FunctionType) else type(one).__module__ for one in named]
    near = [
        one for one, home in zip(named, homes, strict=True) if home == value.__module__ or isinstance(one, GENERATORS)
    ]
    return [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, *near]


@contextmanager
def quietly() -> Iterator[None]:
    """Hide what code that reads rows would warn of, because a single row may be the reason."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), torch.autograd.set_detect_anomaly(False):
        warnings.simplefilter("ignore")
        yield


def refuse_uncontrolled(module: nn.Module, run: Callable[[], Tensor]) -> None:
    """Refuse a module whose random numbers do not all come from `draws_by_row`; `run` runs synthetic rows."""
    for name, layer in module.named_modules():
        for attribute, value in vars(layer).items():
            if isinstance(value, GENERATORS):
                raise UnsupportedCombination(
                    f"module has a random generator of its own ({name + '.' if name else ''}{attribute}), whose "
                    f"draws would not belong to rows; {_DRAW_REMEDY}, which then draw from the secure source"
                )
    before = _global_states()
    key, found = SecureGenerator().bytes(KEY_BYTES), []
    for _ in range(_TRIALS):
        with RowRandomness(key, 0, ()):
            found.append(torch.nan_to_num(run().detach()))
    if _global_states() != before:
        raise UnsupportedCombination(
            "module draws from a global generator of Python, NumPy or PyTorch outside of isolated rows; " + _DRAW_REMEDY
        )
    if not all(torch.equal(found[0], other) for other in found[1:]):
        raise UnsupportedCombination(
            "module gives other results for the same rows and the same random numbers: it has a source of "
            f"randomness that cannot be drawn separately for each row, or it changes from call to call; {_DRAW_REMEDY}"
        )


def _global_states() -> tuple[Any, ...]:
    words: Any = np.random.get_state()[1:3]  # type: ignore[index]  # noqa: NPY002 - is watched, not used
    return random.getstate(), words[0].tobytes(), words[1], torch.get_rng_state().numpy().tobytes()


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces the operations of PyTorch that draw, and those that would show what freed memory holds of rows."""

    def __init__(self, randomness: RowRandomness, rows: int, what: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._randomness, self._rows, self._what = randomness, rows, what

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        own = [kind.__name__ for kind in types if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__]
        if own:  # called below vmap
            raise UnsupportedCombination(
                f"{self._what} uses {own[0]}, whose own __torch_dispatch__ sees whole batches; use plain tensors"
            )
        name = func._schema.name.removeprefix("aten::")
        if name in _REACHING:
            raise UnsupportedCombination(
                f"{self._what} calls torch.{name}, which can reach what belongs to other rows; use x.new_zeros, "
                "torch.where and torch.nn.functional.embedding"
            )
        if kwargs.get("rounding_mode") == "trunc" and not args[0].is_floating_point():
            raise UnsupportedCombination(
                f"{self._what} divides whole numbers towards zero, which ends the process for the smallest number "
                "divided by -1; use rounding_mode='floor'"
            )
        if torch.Tag.nondeterministic_seeded not in func.tags:
            found = func(*args, **kwargs)
            return found.zero_() if name in _UNWRITTEN else found
        names = func._schema.arguments
        given = {one.name: one.default_value for one in names if one.has_default_value()}
        given.update({one.name: value for one, value in zip(names, args, strict=False)}, **kwargs)
        if given.get("dropout_p") == 0.0:  # attention without dropout draws nothing
            return func(*args, **kwargs)
        like = next((value for value in given.values() if isinstance(value, Tensor)), None)
        shape = tuple(given.get("size", () if like is None else like.shape))
        if name not in _LAWS or not shape or shape[0] != self._rows:
            raise UnsupportedCombination(
                f"{self._what} draws with torch.{name}, which cannot be drawn separately for each row; {_DRAW_REMEDY}"
            )
        dtype = given.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
        drawn = torch.from_numpy(np.ascontiguousarray(_LAWS[name](self._uniform(shape, dtype), dtype, given)))
        if name == "native_dropout":
            kept = drawn.to(given["input"].device)
            return given["input"] * kept * (1.0 / (1.0 - given["p"]) if given["p"] < 1 else 0.0), kept
        if name.endswith("_"):
            return given["self"].copy_(drawn)
        return drawn.to(given.get("device") or ("cpu" if like is None else like.device), dtype)

    def _uniform(self, shape: tuple[int, ...], dtype: torch.dtype) -> Floats:
        """Return numbers in (0, 1) of 52 binary digits for float64, of 32 otherwise, and half of the last place."""
        size, digits = (8, 52) if dtype == torch.float64 else (4, 32)
        raw = self._randomness.bytes(shape[0], math.prod(shape[1:]) * size)
        words = np.frombuffer(raw, dtype=f"<u{size}").reshape(shape) >> (8 * size - digits)
        return np.asarray((words.astype(np.float64) + 0.5) * 2.0**-digits)


def _rand(draws: Floats, dtype: torch.dtype, given: dict[str, Any]) -> Any:
    digits = {torch.float64: 52, torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)  # 1 does not occur
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return low + (high - low) * np.floor(draws * 2.0**digits) * 2.0**-digits


def _normal(draws: Floats, _dtype: torch.dtype, given: dict[str, Any]) -> Any:
    return _number(given.get("mean", 0.0)) + _number(given.get("std", 1.0)) * ndtri(draws)


def _bernoulli(draws: Floats, _dtype: torch.dtype, given: dict[str, Any]) -> Any:
    chance = given.get("p")  # else the tensor itself holds the probabilities
    return draws < _number(given["self"] if chance is None else chance)


def _number(value: Any) -> Any:
    return value.cpu().double().numpy() if isinstance(value, Tensor) else value


_REACHING = {  # freed memory, or other rows by numbers that batching rules do not check
    "resize_", "resize_as_", "set_", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "embedding",
    "embedding_dense_backward", "index_fill", "index_fill_",
}  # fmt: skip
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_LAWS: dict[str, Callable[[Floats, torch.dtype, dict[str, Any]], Any]] = {
    **dict.fromkeys(("bernoulli", "bernoulli_"), _bernoulli),
    **dict.fromkeys(("rand", "rand_like", "uniform_"), _rand),
    **dict.fromkeys(("randn", "randn_like", "normal", "normal_"), _normal),
    "exponential_": lambda draws, _, given: np.log(draws) / -given["lambd"],
    "native_dropout": lambda draws, _, given: (draws >= given["p"]) | (not given["train"]),
}

# ------------------------------------------------------------------------------------ rows by themselves


def map_rows(function: Callable[..., Any], *values: Tensor, what: str) -> Any:
    """Apply a function of batches to each row separately, as a batch of one row, and stack the results.

    `UnsupportedCombination` is raised if it cannot be run so, whatever the content of `values`.
    """
    return run_by_row(lambda *parts: function(*(part.unsqueeze(0) for part in parts)), values, what)


def run_by_row(function: Callable[..., Any], values: tuple[Any, ...], what: str) -> Any:
    """Apply a function of rows (without an axis for them) that returns batches of one row."""
    axes = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, values)
    rows = next(leaf.shape[0] for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    watch = _Watch(what, rows)

    def one_row(*parts: Any) -> Any:
        watch.note(parts)
        with watch:
            return tree_map(lambda leaf: _only_row(leaf, what), function(*parts))

    try:
        with (
            watch.isolated(),
            sdpa_kernel(SDPBackend.MATH),
            disable_saved_tensors_hooks("saved tensor hooks see whole batches"),
        ):
            found = torch.func.vmap(one_row, in_dims=axes, randomness="different")(*values)
    except (RuntimeError, NotImplementedError) as problem:
        if isinstance(problem, UnsupportedCombination) or not any(sign in str(problem) for sign in _SIGNS):
            raise
        reason = str(problem).partition("\n")[0].partition(". ")[0][:160]
        raise UnsupportedCombination(
            f"{what} mixes rows, or cannot be run on each row separately ({reason}); {_REMEDY}"
        ) from problem
    watch.refuse_traces()
    return found


@contextmanager
def isolated_backward(rows: int) -> Iterator[None]:
    """Isolate the backward of functions that a module brings along, in a backward through so many rows."""
    watch = _Watch("module", rows)
    token = _watching.set(watch)
    try:
        yield
    finally:
        _watching.reset(token)
    watch.refuse_traces()


def _only_row(leaf: Any, what: str) -> Tensor:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != 1:
        got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        raise UnsupportedCombination(
            f"{what} must answer a batch of one row with one row, got {got}; return tensors whose first axis "
            "is the rows (batch_first=True for sequences), and take no mean over it"
        )
    return leaf[0]


class Batched(torch.autograd.Function):
    """Calls a function of whole batches from inside `torch.func.vmap`; the function must keep rows apart."""

    @staticmethod
    def forward(_token: Tensor, *_arguments: Any) -> Tensor:
        """Never run: the token has one entry per row, so PyTorch calls `vmap`."""
        raise AssertionError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: the function takes care of its own gradients."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, _token: Tensor, *arguments: Any) -> tuple[Tensor, int]:
        """Bring the rows to the first axis of every tensor and call the function."""
        *values, function = arguments
        axes = zip(values, in_dims[1:-1], strict=True)
        rows = info.batch_size
        return function(*(v.expand(rows, *v.shape) if axis is None else v.movedim(axis, 0) for v, axis in axes)), 0


class _Watch(TorchFunctionMode):
    """Refuses calls that would leave the isolation, and remembers tensors of rows, which must not be kept."""

    def __init__(self, what: str, rows: int) -> None:
        super().__init__()
        self._what, self._rows, self._failed = what, rows, ""
        self._made: list[weakref.ref[Tensor]] = []

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Let draws belong to rows, and forbid PyTorch's loop over rows: shapes and errors could depend on them."""
        _close(1)
        try:
            with draws_by_row(self._rows, self._what):
                yield
        finally:
            _close(-1)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        problem = _why_unobserved(func, types, args, kwargs)
        if problem:
            raise UnsupportedCombination(f"{self._what} {problem}")
        if func is _CUSTOM and args[0] is not Batched:
            args = (self._observed(args[0]), *args[1:])
        try:
            found = _SUBSTITUTES.get(func, func)(*args, **(kwargs or {}))
        except (TypeError, AttributeError, NotImplementedError):  # whatever the values are
            raise
        except Exception as failure:
            self._failed = f"{getattr(func, '__name__', func)} ({type(failure).__name__})"
            raise
        self.note(found)
        return found

    def _observed(self, rule: Any) -> Any:
        """Return a function of the module's own whose forward and backward are watched like the module itself."""

        def observed(method: Callable[..., Any]) -> Any:
            def run(*args: Any) -> Any:
                self.note(args)
                with self:
                    return method(*args)

            return staticmethod(run)

        def backward(ctx: Any, *gradients: Any) -> Any:
            watch = _watching.get() or _Watch(self._what, self._rows)
            watch.note((gradients, getattr(ctx, "saved_tensors", ())))
            with watch.isolated(), watch:
                return rule.backward(ctx, *gradients)

        own = {name: observed(getattr(rule, name)) for name in ("forward", "setup_context", "jvp")}
        return type(rule.__name__, (rule,), {**own, "backward": staticmethod(backward)})

    def note(self, found: Any) -> None:
        """Remember tensors that belong to rows."""
        leaves = (found,) if isinstance(found, Tensor) else tree_leaves(found)
        self._made += [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, Tensor) and of_rows(leaf)]

    def refuse_traces(self) -> None:
        """Refuse code that went on after an error, or that keeps a tensor of its rows."""
        if self._failed:
            raise UnsupportedCombination(
                f"{self._what} goes on after an error of {self._failed}, which one row may bring about for all rows; "
                "do not catch errors of operations, and use torch.where and functions such as torch.linalg.inv_ex"
            )

        def kept() -> bool:
            return any(made() is not None for made in self._made)

        if kept() and gc.collect() is not None and kept():
            raise UnsupportedCombination(f"{self._what} {KEEPS}")


def _why_unobserved(func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> str:
    """Return why a call would leave the isolation, or nothing."""
    if _DISPATCH._len_torch_dispatch_stack() > 1:  # one is `_Draws`
        return "runs under a TorchDispatchMode, which would see whole batches; leave it out"
    own = [kind.__name__ for kind in types if not _ordinary(kind.__torch_function__)]
    if own:
        return f"uses {own[0]}, whose own __torch_function__ is not watched; use plain tensors"
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        home, name = str(func).split(".")[:2]
        if home not in ("aten", "prims"):
            return (
                f"calls the operator {func}, of which it is not known whether it keeps rows apart; write it "
                "with operations of PyTorch"
            )
        # the same operators below vmap have plain tensors
        if name in _SUBSTITUTED and any(of_rows(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)):
            return f"calls the operator {func}, which does not check numbers of rows; call the function of PyTorch"
    elif func is _CUSTOM:
        if args[0] is not Batched and args[0].vmap is not torch.autograd.Function.vmap:
            return (
                f"uses {args[0].__name__}, whose own vmap() sees whole batches; set generate_vmap_rule = True "
                "in its place"
            )
    elif isinstance(func, torch._ops.HigherOrderOperator):
        return f"calls {func}, whose functions are not watched; call them directly"
    return ""


def _ordinary(function: Any) -> bool:
    """Return whether a class leaves calls as they are, as tensors and parameters do."""
    return function is torch._C._disabled_torch_function_impl or getattr(function, "__func__", None) is _ORDINARY


_CUSTOM = torch._functorch.autograd_function.custom_function_call
_ORDINARY = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def _refuse(reason: str, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise UnsupportedCombination(f"module or loss {reason}")


_PRINTS = "prints, formats or unwraps tensors of rows; remove that"
_SCRIPT = "calls a function of torch.jit, whose operations are not watched; call the function that it was made from"
_EAGER: Any = torch._functorch.eager_transforms
_CLOSED = (  # functions that are refused in every thread while rows run in one
    (_FUNCTORCH, "get_unwrapped", _PRINTS),
    (_EAGER, "get_unwrapped", _PRINTS),
    (torch._C.ScriptFunction, "__call__", _SCRIPT),
    (torch._C.ScriptMethod, "__call__", _SCRIPT),
)
_OPEN = [getattr(owner, name) for owner, name, _ in _CLOSED]
_running = [0]  # calls that run rows, in all threads


def _close(more: int) -> None:
    """Count who runs rows; the first closes what all threads share, and the last opens it."""
    with _ONE_THREAD:
        _running[0] += more
        _FUNCTORCH._set_vmap_fallback_enabled(not _running[0])
        for (owner, name, reason), own in zip(_CLOSED, _OPEN, strict=True):
            setattr(owner, name, partial(_refuse, reason) if _running[0] else own)


def of_rows(value: Tensor) -> bool:
    """Return whether a tensor belongs to rows that are run separately, within `torch.func.grad` too."""
    return bool(_FUNCTORCH.is_functorch_wrapped_tensor(value))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Compute attention of all rows with the fast kernels, which have no batching rule."""
    parts, plain = (query, key, value), cast(Any, functional.scaled_dot_product_attention)
    batched = all(part.dim() == 4 and _FUNCTORCH.is_batchedtensor(part) for part in parts)
    if not batched or attn_mask is not None or dropout_p or options.get("enable_gqa"):
        found: Tensor = plain(*parts, attn_mask, dropout_p, is_causal, **options)
        return found

    def whole(*parts: Tensor) -> Tensor:
        with sdpa_kernel(_KERNELS):
            out = plain(*(part.flatten(0, 1) for part in parts), is_causal=is_causal, **options)
        shaped: Tensor = out.reshape(*parts[0].shape[:2], *out.shape[1:])
        return shaped

    return Batched.apply(query, *parts, whole)  # type: ignore[no-untyped-call, no-any-return]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Compute a normalised weight by operations that have batching rules."""
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim() or dim == -1]
    norms: Tensor = torch.linalg.vector_norm(v, dim=axes, keepdim=dim != -1)
    return v * (g / norms)


def _rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Compute `torch.nn.functional.rrelu` by operations that can be drawn for each row."""
    slope = lower + (upper - lower) * torch.rand_like(input) if training else (lower + upper) / 2
    found = torch.where(input >= 0, input, input * slope)
    return input.copy_(found) if inplace else found


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - of max_norm
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001 - gradients are dense
) -> Tensor:
    """Look up ids by indexing, which fails for one that is not in the table.

    The batching rule of PyTorch looks them up in the tables of all rows, one after the other, without a check.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise UnsupportedCombination("module calls embedding with max_norm or scale_grad_by_freq; leave them out")
    found = weight[input.long()]
    if padding_idx is None:
        return found
    return torch.where((input == padding_idx % len(weight)).unsqueeze(-1), found.detach(), found)


def _roll(input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Leave a single number as it is: the batching rule of PyTorch would pass it on to the next row."""
    return input.clone() if input.dim() == 0 else torch.roll(input, shifts, dims)


def _grid_sample(plain: Callable[..., Tensor], input: Tensor, grid: Tensor, *args: Any, **options: Any) -> Tensor:
    """Sample within reach; from NaN and from very large places the kernels of PyTorch read and write any memory."""
    return plain(input, grid.nan_to_num(-1.0).clamp(-_FARTHEST, _FARTHEST), *args, **options)


_SAMPLERS = (torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d, torch._grid_sampler_2d_cpu_fallback)
_SUBSTITUTED = {"roll", *(one.__name__ for one in _SAMPLERS)}
_SUBSTITUTES: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.roll, Tensor.roll), _roll),
    **{one: partial(_grid_sample, one) for one in (functional.grid_sample, *_SAMPLERS)},
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    torch._weight_norm: _weight_norm,
    **dict.fromkeys((torch.rrelu, functional.rrelu), _rrelu),
}

# ----------------------------------------------------------------- checks of modules, before rows are read


def check_module(module: nn.Module) -> None:
    """Refuse a module in which one row can reach another row's gradient, or whose precision is too low."""
    if not isinstance(module, nn.Module):
        raise InvalidType(f"module must be a torch.nn.Module, got {type(module).__name__}")
    for name, layer in module.named_modules():
        reason = _why_not(layer)
        if reason:
            raise UnsupportedCombination(f"layer {name or 'module'!r} ({type(layer).__name__}) {reason}")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InvalidInput(f"parameter {name!r} has no shape yet; run the module once on made-up rows")
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidInput(
                f"parameter {name!r} has type {parameter.dtype}; keep parameters in float32 or float64, "
                "where clipping holds its promise, and use torch.autocast for speed"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("module has no trainable parameter; set requires_grad on what is to be learned")


def _why_not(layer: nn.Module) -> str:
    """Return why a layer has no per-row gradient, or nothing."""
    trains = any(parameter.requires_grad for parameter in layer.parameters())
    if isinstance(layer, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return (
            "spreads batches over processes or devices by itself; pass the module inside (.module), and "
            "processes=ratewise.torch.join() to Trainer or TorchRateConstrainedClassifier under torchrun"
        )
    if isinstance(layer, torch.jit.ScriptModule):
        return "is compiled by torch.jit, which hides what it keeps of rows; pass the module it was made from"
    if isinstance(layer, _BatchNorm):
        return f"mixes the rows of a batch, so no row has a gradient of its own; {_FIX}"
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        return "keeps running statistics of private rows; build it with track_running_stats=False"
    if isinstance(layer, nn.RNNBase) and trains:
        return f"cannot be run on each row separately; {_FIX}"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.max_norm or layer.scale_grad_by_freq):
        return "lets rows change each other's gradient; build it without max_norm and scale_grad_by_freq"
    if isinstance(layer, nn.EmbeddingBag) and trains:
        return "has no rows of its own; use nn.Embedding and add up over the bag"
    return ""


@torch.no_grad()
def refuse_mixing(module: nn.Module, x: Tensor) -> None:
    """Refuse a module in which synthetic rows change each other's logits, or leave a trace in a buffer.

    Training runs each row separately; such a module would predict with another function than was trained.
    """
    kept: list[dict[str, Tensor]] = []

    def run(x: Tensor) -> Tensor:
        with untouched_state(module):
            found: Tensor = module(x)
            kept.append({name: buffer.clone() for name, buffer in module.named_buffers()})
        return found

    mixes = rows_mix(run, x)
    for name, buffer in kept[0].items():
        if name not in kept[1] or not torch.equal(buffer, kept[1][name]):
            raise UnsupportedCombination(
                f"module keeps something of its rows in the buffer {name!r}, which would be released without "
                "noise; normalise each row by itself, or set the buffer from public numbers beforehand"
            )
    if mixes:
        raise UnsupportedCombination(
            "module mixes rows: the logits of a row change when another row of the batch changes, but training "
            "runs each row separately; keep rows apart (no statistics over the first axis), and replace "
            "batch norm, for example with opacus.validators.ModuleValidator.fix(module)"
        )


def rows_mix(function: Callable[..., Tensor], *values: Tensor) -> bool:
    """Return whether other rows change what a function of batches returns for the first row, with the same draws."""
    found = []
    for others in (False, True):
        torch.manual_seed(0)
        given = [value.clone() for value in values]
        for value in given if others else ():
            value[1:] = ~value[1:] if value.dtype == torch.bool else 1 - (1 + value.is_floating_point()) * value[1:]
        found.append(function(*given)[0])
    return not torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


_STRUCTURE = {name for name in vars(nn.Module()) if name != "training"}  # parameters, parts, hooks


_UNCHANGING = (bool, int, float, str, bytes, NoneType, type, FunctionType, torch.dtype, torch.device)


class State:
    """Buffers and attributes (counters, objects) of modules and other objects, as they are now."""

    def __init__(self, *parts: Any) -> None:
        owners = [owner for part in parts for owner in _owners(part)]
        modules = [part for part in parts if isinstance(part, nn.Module)]
        memo = {id(own): own for module in modules for own in (*module.parameters(), *module.buffers())}
        memo.update({id(own): own for own in owners})  # none of these is copied

        def copied(value: Any) -> Any:
            try:
                return value if isinstance(value, _UNCHANGING) else copy.deepcopy(value, memo)
            except Exception:  # such as a lock: it cannot be put back
                return value

        self._kept = [
            (
                owner,
                {name: copied(value) for name, value in vars(owner).items() if name not in _STRUCTURE},
                {name: (one, one.clone()) for name, one in _buffers(owner).items() if one is not None},
            )
            for owner in owners
        ]

    def changed(self) -> bool:
        """Return whether something changed since; if that cannot be told, it did."""
        return not all(
            set(vars(owner)) - _STRUCTURE == set(attributes)
            and all(_same(vars(owner)[name], value) for name, value in attributes.items())
            and all(_buffers(owner).get(name) is one and one.equal(was) for name, (one, was) in buffers.items())
            for owner, attributes, buffers in self._kept
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, once."""
        for owner, attributes, buffers in self._kept:
            for name in set(vars(owner)) - set(attributes) - _STRUCTURE:
                del owner.__dict__[name]
            owner.__dict__.update(attributes)
            for name, (buffer, content) in buffers.items():
                owner._buffers[name] = buffer.copy_(content)


def _owners(part: Any) -> list[Any]:
    """Return the objects whose attributes are the state of a part; a method's are those of its object."""
    if isinstance(part, nn.Module):
        return list(part.modules())
    owner = part.__self__ if isinstance(part, MethodType) else part
    if isinstance(owner, nn.Module):
        return list(owner.modules())
    return [owner] if isinstance(getattr(owner, "__dict__", None), dict) else []


def _buffers(owner: Any) -> dict[str, Tensor | None]:
    return owner._buffers if isinstance(owner, nn.Module) else {}


def _same(value: Any, other: Any) -> bool:
    try:
        return value is other or bool(value == other)
    except Exception:  # such as arrays, which have no truth value
        return False


@contextmanager
def untouched_state(*parts: Any) -> Iterator[None]:
    """Put buffers and plain attributes of modules and other objects back as they were."""
    state = State(*parts)
    try:
        yield
    finally:
        state.restore()
