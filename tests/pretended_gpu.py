"""A pretended GPU: torch computes on the CPU, but a tensor that was made for "cuda" says so, and may not meet one of the CPU.

Two modes of torch share a table of the storages that lie on the pretended GPU. Below autograd every operation is seen, its inputs are compared as
a GPU would compare them, and its results lie where its inputs do. Above, ``device=`` is read, and what a GPU refuses raises: numpy's arrays, and
random numbers of another device's generator. Kernels, their types and their speed are the CPU's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ATEN = torch.ops.aten
COPIES = (ATEN.copy_.default, ATEN._to_copy.default)
"""Operations between devices."""
TO_NUMPY = (Tensor.numpy, Tensor.__array__)
IS_CUDA, IS_CPU = Tensor.is_cuda.__get__, Tensor.is_cpu.__get__


class Places:
    """The storages on the pretended GPU. A weak reference keeps the address of a storage from being used again."""

    def __init__(self) -> None:
        self.on_gpu: dict[int, StorageWeakRef] = {}
        self.limit = 1000

    @staticmethod
    def key(tensor: Tensor) -> int:
        """The address of a tensor's storage; 0 for one without, as oneDNN's layout and the device meta have."""
        has_storage = tensor.layout is torch.strided and not tensor.is_meta
        return tensor.untyped_storage()._cdata if has_storage else 0

    def of(self, tensor: Tensor) -> torch.device:
        return GPU if self.key(tensor) in self.on_gpu else CPU

    def put(self, tensor: Tensor, device: torch.device) -> None:
        if device.type == "cpu":
            self.on_gpu.pop(self.key(tensor), None)
        elif key := self.key(tensor):
            self.on_gpu[key] = StorageWeakRef(tensor.untyped_storage())
        if len(self.on_gpu) > self.limit:
            self.on_gpu = {key: ref for key, ref in self.on_gpu.items() if not ref.expired()}
            self.limit = 2 * len(self.on_gpu) + 1000


PLACES = Places()
"""One table for all tests: the package caches tensors by device."""


class Below(TorchDispatchMode):
    """Compares the devices of each operation's inputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and not leaf.is_meta]
        known = {PLACES.key(tensor) for tensor in inputs}
        device = CPU
        if inputs:
            device = PLACES.of(inputs[0])
            rest = inputs[1:]
            if func in (
                ATEN.index.Tensor,
                ATEN.index_put.default,
                ATEN.index_put_.default,
                ATEN._index_put_impl_.default,
            ):
                # Indices may lie on the CPU; of the values, only single numbers.
                rest = [value for value in args[2:3] if isinstance(value, Tensor)]
                rest += [index for index in args[1] if index is not None and device == CPU]
            if func not in COPIES:
                wide = [tensor for tensor in inputs[:1] + rest if tensor.dim()]
                device = GPU if any(PLACES.of(tensor) == GPU for tensor in inputs[:1] + rest) else CPU
                if any(PLACES.of(tensor) != device for tensor in wide):
                    found = [f"{PLACES.of(tensor).type} {tuple(tensor.shape)}" for tensor in inputs]
                    raise RuntimeError(f"{func}: tensors on two devices: {', '.join(found)}")
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            # ``set_`` gives a tensor another one's storage.
            if isinstance(result, Tensor) and func.overloadpacket is not ATEN.set_ and PLACES.key(result) not in known:
                PLACES.put(result, device)
        return results


class Above(TorchFunctionMode):
    """Reads ``device=`` and says where a tensor lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        here = PLACES.of(args[0]) if args and isinstance(args[0], Tensor) and not args[0].is_meta else None
        if func == Tensor.device.__get__:
            return GPU if here == GPU else func(*args)
        if func in (IS_CUDA, IS_CPU):
            return func(*args) if here is None else (here == GPU) == (func == IS_CUDA)
        if func in TO_NUMPY and here == GPU and not kwargs.get("force"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func in (Tensor.cpu, Tensor.cuda):
            return self._move(args[0], CPU if func is Tensor.cpu else GPU)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        generator = kwargs.get("generator")
        if generator is not None and (wanted or here or CPU).type != generator.device.type:
            raise RuntimeError(
                f"Expected a '{(wanted or here or CPU).type}' device type for generator but found '{generator.device.type}'"
            )
        if wanted is not None and wanted.type != "meta":
            kwargs["device"] = CPU
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            if wanted is not None:
                if func is torch.as_tensor and isinstance(args[0], Tensor):
                    return self._move(args[0], wanted)
                PLACES.put(result, wanted)
            elif func in (Tensor.__deepcopy__, Tensor.new_tensor) and here is not None:
                PLACES.put(result, here)
        return result

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to``: a device moves, a dtype is torch's."""
        words = [*args, *kwargs.values()]
        like = next((word for word in words if isinstance(word, Tensor)), None)
        dtype = next(
            (word for word in words if isinstance(word, torch.dtype)), like.dtype if like is not None else None
        )
        device = next((torch.device(word) for word in words if isinstance(word, (str, torch.device))), None)
        device = device if like is None else PLACES.of(like)
        moved = tensor.to(dtype or tensor.dtype, copy=bool(kwargs.get("copy")))
        return moved if device is None else self._move(moved, device)

    def _move(self, tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.is_meta or device.type == "meta":
            return tensor.to(CPU if device.type == "cuda" else device)
        if PLACES.of(tensor).type == device.type:
            return tensor
        moved = tensor.clone()
        PLACES.put(moved, device)
        return moved


class Generator(torch.Generator):
    """A generator that says it is the GPU's."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        self.place = torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


@contextlib.contextmanager
def pretended_gpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ``cuda`` be a device inside the block."""
    import draftlab.models.weights

    autocast, load = torch.autocast, draftlab.models.weights.load_file
    patch.setattr(torch, "Generator", Generator)
    patch.setattr(torch, "autocast", lambda device, *args, **kwargs: autocast("cpu", *args, **kwargs))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    patch.setattr(torch.cuda, "get_device_name", lambda device=None: "pretended")

    def load_file(file: Any, device: str = "cpu") -> dict[str, Tensor]:
        return {name: tensor.to(device) for name, tensor in load(file).items()}

    patch.setattr(draftlab.models.weights, "load_file", load_file)
    with Below(), Above():
        yield
