"""What turns observations into the conditioning of a head: states, images (ACT), or a vision-language model with
queries.

torchvision and transformers are imported by the classes that need them (extras ``act`` and ``vlm``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from papershelf import InputError, require

EXTRA_ACT, EXTRA_VLM = "papershelf-niaf[act]", "papershelf-niaf[vlm]"


def _batch_state(batch: Mapping[str, Any]) -> Tensor:
    if "observation.state" not in batch:
        raise ValueError(f"the batch has no 'observation.state'; it has {', '.join(map(str, batch))}")
    state = batch["observation.state"].float()
    return state[:, None] if state.ndim == 2 else state


class StateEncoder(nn.Module):
    """States (and hashed words of the task) -> one vector.

    Args:
        state_dim: length of a state.
        d_model: length of the vector.
        vocabulary: buckets of words; 0 leaves the task out.
        width: of the hidden layers.
    """

    def __init__(self, state_dim: int, d_model: int = 128, vocabulary: int = 256, width: int = 256) -> None:
        super().__init__()
        self.out_dim, self.vocabulary = d_model, vocabulary
        self.words = nn.EmbeddingBag(vocabulary, 32, mode="mean") if vocabulary else None
        self.network = nn.Sequential(
            nn.Linear(state_dim + (32 if vocabulary else 0), width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, d_model),
        )

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """[B, (n,) state_dim] -> [B, d_model]; several states in a row are flattened."""
        state = _batch_state(batch).flatten(1)
        if self.words is not None:
            bags = [word_buckets(text, self.vocabulary) for text in batch.get("task", [""] * len(state))]
            flat = torch.tensor([i for bag in bags for i in bag], device=state.device)
            offsets = torch.tensor([0, *[len(bag) for bag in bags[:-1]]], device=state.device).cumsum(0)
            state = torch.cat([state, self.words(flat, offsets)], 1)
        return self.network(state)


def word_buckets(text: str, vocabulary: int) -> list[int]:
    """A stable bucket for each word of an instruction; the empty text has bucket 0."""
    import zlib

    return [zlib.crc32(word.encode()) % vocabulary for word in text.lower().split()] or [0]


class ACTEncoder(nn.Module):
    """ResNet-18 on each camera and a transformer over image patches and state (Zhao et al. 2023) -> tokens.

    Args:
        state_dim: length of a state.
        image_keys: cameras, keys of the batch with [B, 3, H, W] in [0, 1].
        d_model: size of the tokens.
        layers: of the transformer.
        heads: of the transformer.
        weights: torchvision's name of pretrained weights, or None.
    """

    def __init__(
        self,
        state_dim: int,
        image_keys: Sequence[str],
        d_model: int = 256,
        layers: int = 4,
        heads: int = 8,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        models = require("torchvision.models", EXTRA_ACT)
        resnet = models.resnet18(weights=weights)
        self.image_keys, self.out_dim = tuple(image_keys), d_model
        self.vision = nn.Sequential(*list(resnet.children())[:-2])
        self.to_tokens = nn.Conv2d(512, d_model, 1)
        self.state = nn.Linear(state_dim, d_model)
        block = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, 0.0, "gelu", batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """-> [B, N, d_model]."""
        tokens = [self.state(_batch_state(batch))]
        for key in self.image_keys:
            if key not in batch:
                raise ValueError(f"the batch has no {key!r}")
            grid = self.to_tokens(self.vision(batch[key].float()))
            flat = grid.flatten(2).transpose(1, 2)
            tokens.append(flat + sinusoidal_2d(grid.shape[2], grid.shape[3], grid.shape[1]).to(flat))
        return self.transformer(torch.cat(tokens, 1))


def sinusoidal_2d(height: int, width: int, dim: int) -> Tensor:
    """Position encodings of a grid, [height width, dim]; dim is a multiple of 4."""
    rates = torch.exp(-math.log(10_000.0) * torch.arange(dim // 4) / (dim // 4))
    y, x = (torch.arange(n)[:, None] * rates for n in (height, width))
    y = torch.cat([y.sin(), y.cos()], 1)[:, None].expand(-1, width, -1)
    x = torch.cat([x.sin(), x.cos()], 1)[None].expand(height, -1, -1)
    return torch.cat([y, x], 2).flatten(0, 1)


def query_mask(attention_mask: Tensor, num_queries: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, N + Q, N + Q]: the prompt is causal, queries see the prompt and each other.

    Args:
        attention_mask: [B, N], 1 where the prompt is real.
        num_queries: Q, appended after the prompt.
        dtype: of the mask.
    """
    b, n = attention_mask.shape
    total = n + num_queries
    allowed = torch.ones(total, total, dtype=torch.bool, device=attention_mask.device).tril()
    allowed[n:, n:] = True
    real = torch.cat([attention_mask.bool(), attention_mask.new_ones(b, num_queries).bool()], 1)
    allowed = allowed[None] & real[:, None, :]
    allowed = allowed | torch.eye(total, dtype=torch.bool, device=allowed.device)  # a padded row attends to itself
    return torch.zeros(b, 1, total, total, dtype=dtype, device=allowed.device).masked_fill(
        ~allowed[:, None], torch.finfo(dtype).min
    )


def with_lora(model: nn.Module, rank: int = 16, targets: Sequence[str] = ("q_proj", "v_proj")) -> nn.Module:
    """The model frozen, with trainable low-rank updates (peft) of the projections whose names end so.

    Raises:
        InputError: for a rank below 1, or a model without such projections.
    """
    if rank < 1:
        raise InputError(f"the rank of LoRA must be at least 1, got {rank}")
    peft = require("peft", "papershelf-niaf[lora]")
    try:
        return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=list(targets)))
    except ValueError as error:
        raise InputError(f"no LoRA for {type(model).__name__}: {error}") from None


class VLMBackbone(nn.Module):
    """Any image-text model of transformers, with learnable queries after the prompt: one forward pass (paper).

    The queries take the place of placeholder tokens at the end of the prompt; their last hidden states are the
    tokens Z.

    Args:
        model: a model with ``get_input_embeddings`` whose ``forward`` takes ``input_ids``, ``attention_mask`` and
            images.
        num_queries: Q.
    """

    def __init__(self, model: nn.Module, num_queries: int) -> None:
        super().__init__()
        self.model: Any = model
        config: Any = model.config
        text = getattr(config, "text_config", None) or config
        self.out_dim = int(text.hidden_size)
        self.num_queries = num_queries
        self.queries = nn.Parameter(torch.randn(num_queries, self.out_dim) * 0.02)
        self.placeholder = int(getattr(text, "pad_token_id", None) or 0)
        self._appended = False

    @classmethod
    def from_config(cls, config: Any, num_queries: int) -> VLMBackbone:
        """With random weights, from a transformers configuration; nothing is downloaded."""
        transformers = require("transformers", EXTRA_VLM)
        return cls(transformers.AutoModelForImageTextToText.from_config(config), num_queries)

    @classmethod
    def from_pretrained(cls, name: str, num_queries: int, **keywords: Any) -> VLMBackbone:
        """A folder or hub id."""
        transformers = require("transformers", EXTRA_VLM)
        return cls(transformers.AutoModelForImageTextToText.from_pretrained(name, **keywords), num_queries)

    def _with_queries(self, _: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        if embedded.shape[1] <= self.num_queries:
            return embedded
        queries = self.queries.to(embedded.dtype).expand(embedded.shape[0], -1, -1)
        return torch.cat([embedded[:, : -self.num_queries], queries], 1)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """A processor's batch (``input_ids``, ``attention_mask``, ``pixel_values`` ...) -> [B, Q, hidden size]."""
        ids = batch["input_ids"]
        mask = batch.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        extended = torch.cat([ids, ids.new_full((len(ids), self.num_queries), self.placeholder)], 1)
        # images may be checked against the ids, so the placeholder must be no image token
        rest = {k: v for k, v in batch.items() if k in ("pixel_values", "pixel_attention_mask", "image_grid_thw")}
        if "mm_token_type_ids" in batch:
            kinds = batch["mm_token_type_ids"]
            rest["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(len(kinds), self.num_queries)], 1)
        dtype = next(self.model.parameters()).dtype
        hook = self.model.get_input_embeddings().register_forward_hook(self._with_queries)
        try:
            found = self.model(
                input_ids=extended,
                attention_mask=query_mask(mask, self.num_queries, dtype),
                position_ids=None if "image_grid_thw" in batch else _positions(mask, self.num_queries),
                output_hidden_states=True,
                use_cache=False,
                **rest,
            )
        finally:
            hook.remove()
        return found.hidden_states[-1][:, -self.num_queries :].float()


def _positions(mask: Tensor, num_queries: int) -> Tensor:
    full = torch.cat([mask, mask.new_ones(len(mask), num_queries)], 1)
    return (full.cumsum(1) - 1).clamp_min(0)


class Florence2Backbone(nn.Module):
    """An encoder-decoder image-text model (Florence-2): the queries are the decoder's input embeddings.

    Args:
        model: transformers' ``Florence2ForConditionalGeneration``.
        num_queries: Q.
    """

    def __init__(self, model: nn.Module, num_queries: int) -> None:
        super().__init__()
        self.model: Any = model
        self.out_dim = int(self.model.config.text_config.d_model)
        self.num_queries = num_queries
        self.queries = nn.Parameter(torch.randn(num_queries, self.out_dim) * 0.02)

    @classmethod
    def from_config(cls, config: Any, num_queries: int) -> Florence2Backbone:
        """With random weights."""
        transformers = require("transformers", EXTRA_VLM)
        return cls(transformers.Florence2ForConditionalGeneration(config), num_queries)

    @classmethod
    def from_pretrained(cls, name: str, num_queries: int, **keywords: Any) -> Florence2Backbone:
        """A folder or hub id."""
        transformers = require("transformers", EXTRA_VLM)
        return cls(transformers.Florence2ForConditionalGeneration.from_pretrained(name, **keywords), num_queries)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """A processor's batch -> [B, Q, d_model]. The decoder's attention among queries is not causal."""
        ids = batch["input_ids"]
        q = self.num_queries
        dtype = next(self.model.parameters()).dtype
        everything = torch.zeros(len(ids), 1, q, q, dtype=dtype, device=ids.device)
        placeholders = ids.new_full((len(ids), q), int(self.model.config.text_config.pad_token_id or 0))

        # transformers gives Florence's decoder ids beside any embeddings and then refuses both: replace their embedding
        def queries(_: nn.Module, given: tuple[Any, ...], embedded: Tensor) -> Tensor:
            mine = bool(given) and given[0].data_ptr() == placeholders.data_ptr()
            return self.queries.to(embedded.dtype).expand(len(ids), -1, -1) if mine else embedded

        language = self.model.get_decoder()
        hook = getattr(language, "decoder", language).embed_tokens.register_forward_hook(queries)
        try:
            found = self.model(
                input_ids=ids,
                attention_mask=batch.get("attention_mask"),
                pixel_values=batch.get("pixel_values"),
                decoder_input_ids=placeholders,
                decoder_attention_mask=everything,
                output_hidden_states=True,
                use_cache=False,
            )
        finally:
            hook.remove()
        return found.decoder_hidden_states[-1].float()
