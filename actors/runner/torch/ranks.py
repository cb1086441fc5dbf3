"""A model whose parts are in several processes: the first leads, the others do as it says."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from actors.runner.torch.commands import Command, pages_command, step_command, step_inputs, stop_command
from actors.runner.torch.group import Meeting, RankGroup, RanksLost
from actors.runner.torch.inputs import StepInputs
from actors.runner.torch.local_model import LocalModel, attention_for
from actors.runner.torch.pages import check_pages
from actors.runner.torch.setup import ModelSetup
from actors.runner.torch.shards import shard_of

logger = logging.getLogger("remora.runner")


class LedModel:
    """Implements `StepModel` at the first rank. Everything that can fail for what was asked fails before the others
    are told: what fails after that is the end of them all (RanksLost)."""

    def __init__(self, setup: ModelSetup, own: LocalModel, group: RankGroup) -> None:
        self._setup = setup
        self._own = own
        self._group = group
        self._kv_heads = [shard_of(setup.card, rank, group.size).kv_heads for rank in range(group.size)]

    @property
    def kv(self) -> Tensor:
        """Of this rank."""
        return self._own.kv

    def step(self, inputs: StepInputs) -> Tensor:
        prepared = self._own.prepare(inputs)
        command = step_command(inputs)
        with self._group.together():
            self._group.tell(command)
            return self._own.forward(prepared)

    def read(self, pages: Sequence[int]) -> Tensor:
        check_pages(self.kv, pages)
        whole = torch.empty((len(pages), *self._setup.page_shape), dtype=self._setup.dtype)
        if pages:
            with self._group.together():
                self._group.tell(pages_command(Command.READ, pages))
                parts = self._group.gather(self._own.read(pages))
            for part, heads in zip(
                parts, self._kv_heads, strict=True
            ):  # Who holds the same heads has the same in them.
                whole[..., heads, :] = part.view(whole[..., heads, :].shape)
        return whole.flatten()

    def write(self, pages: Sequence[int], values: Tensor) -> None:
        check_pages(self.kv, pages)
        if not pages:
            return
        whole = values.view(len(pages), *self._setup.page_shape)
        parts = [whole[..., heads, :].flatten().contiguous() for heads in self._kv_heads]
        with self._group.together():
            self._group.tell(pages_command(Command.WRITE, pages))
            self._group.scatter(parts)
            self._own.write(pages, parts[0])

    def close(self) -> None:
        """Let the others end, if they are there."""
        if not self._group.connected:
            return
        try:
            with self._group.together():
                self._group.tell(stop_command())
        except RanksLost as error:
            logger.warning("the other ranks were not told to stop: %s", error)
        self._group.close()


class Rank:
    """Any rank but the first: loads its part, then obeys."""

    def __init__(self, setup: ModelSetup, rank: int, size: int) -> None:
        """Raises ModelUnusable, NoBackend."""
        self._setup = setup
        self._group = RankGroup(rank, size)
        attention, _ = attention_for(setup, self._group)
        self._model = LocalModel(setup, attention, self._group)

    def obey(self, meeting: Meeting, timeout_s: float) -> None:
        """Meet the others, and do as the first rank says until it says stop.

        Raises RuntimeError when it is gone, and whatever keeps this rank from doing what the others do: its process
        has to end then.
        """
        setup = self._setup
        self._group.connect(meeting, setup.device, timeout_s, setup.identity())
        while self._do_next():
            pass
        self._group.close()

    @torch.inference_mode()
    def _do_next(self) -> bool:
        numbers = self._group.hear()
        command, pages = numbers[0], numbers[1:].tolist()
        if command == Command.STEP:
            self._model.step(step_inputs(numbers, self._setup.page_size))
        elif command == Command.READ:
            self._group.gather(self._model.read(pages))
        elif command == Command.WRITE:
            size = len(pages) * math.prod(self._model.kv.shape) // self._setup.num_pages
            self._model.write(pages, self._group.receive(size, self._setup.dtype))
        return bool(command != Command.STOP)
