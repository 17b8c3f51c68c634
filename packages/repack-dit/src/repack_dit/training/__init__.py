"""Training of the three stages: one step loop, any number of processes through accelerate, exact resume."""

from repack_dit.training.autoencoder import AutoencoderSettings, AutoencoderTraining, FeaturedImages, LinearInit
from repack_dit.training.loop import DivergedError, accelerator, close, read_metrics, update_ema
from repack_dit.training.refiner import DecodedImages, RefinerSettings, RefinerTraining, TensorTriplets
from repack_dit.training.transformer import OFFICIAL, TensorLatents, TrainSettings, TransformerTraining

__all__ = [
    "OFFICIAL",
    "AutoencoderSettings",
    "AutoencoderTraining",
    "DecodedImages",
    "DivergedError",
    "FeaturedImages",
    "LinearInit",
    "RefinerSettings",
    "RefinerTraining",
    "TensorLatents",
    "TensorTriplets",
    "TrainSettings",
    "TransformerTraining",
    "accelerator",
    "close",
    "read_metrics",
    "update_ema",
]
