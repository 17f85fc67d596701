"""Copies of sample inputs on another device, alike in everything that a kernel can see: storages that are shared stay
shared, and strides, offsets, conjugate and negative bits and requires_grad are kept."""

from __future__ import annotations

from typing import Any

import torch

DEVICE_ARGUMENTS = ("cpu", torch.device("cpu"))


class Placer:
    """Copies the tensors of one call to `device`. Make a new one for each call, so that calls share nothing."""

    def __init__(self, device: str, *, requires_grad: bool = True) -> None:
        self.device = device
        self.requires_grad = requires_grad
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []  # ids of tensors stay theirs while they live

    def place(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._keep.append(value)
                self._tensors[id(value)] = self._tensor(value)
            return self._tensors[id(value)]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.place(item) for item in value))
        if isinstance(value, list | tuple):
            return type(value)(self.place(item) for item in value)
        if isinstance(value, dict):
            return {key: self.place(item) for key, item in value.items()}
        if isinstance(value, torch.device | str):
            return self._device_argument(value)
        return value

    def tensors(self) -> list[torch.Tensor]:
        """The copies made so far, in the order in which they were met."""
        return list(self._tensors.values())

    def _device_argument(self, value: Any) -> Any:
        return self.device if value in DEVICE_ARGUMENTS else value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            copy = self._values(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, tensor.requires_grad and self.requires_grad)
        return copy.requires_grad_() if tensor.requires_grad and self.requires_grad else copy

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor.clone() if self.device == "cpu" else tensor.to(self.device)
        if tensor.is_conj():
            return self._values(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._values(torch._neg_view(tensor)))
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return empty.set_(self._storage(tensor), tensor.storage_offset(), tensor.size(), tensor.stride())

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            values = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._keep.append(values)
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self.device).copy_(values)
            self._storages[storage._cdata] = copy.untyped_storage()
        return self._storages[storage._cdata]
