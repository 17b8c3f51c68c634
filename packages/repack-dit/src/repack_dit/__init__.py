"""RePack then Refine: diffusion transformers on packed vision features, and a latent-guided refiner."""

from importlib.metadata import version

from repack_dit.latents import CacheMismatchError, CorruptShardError, LatentCache
from repack_dit.losses import flow_matching_loss
from repack_dit.packing import RePackAutoencoder, RePackEncoderOutput
from repack_dit.pipeline import RePackDiTPipeline
from repack_dit.redundancy import LinearPack, SpectrumReport, analyze_features, best_linear_pack
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.transformer import RePackDiTTransformer2DModel, euler_sample, guided_velocity, heun_sample, sde_sample

__version__ = version("papershelf-repack-dit")

__all__ = [
    "CacheMismatchError",
    "CorruptShardError",
    "LatentCache",
    "LatentGuidedRefiner",
    "LinearPack",
    "RePackAutoencoder",
    "RePackDiTPipeline",
    "RePackDiTTransformer2DModel",
    "RePackEncoderOutput",
    "SpectrumReport",
    "__version__",
    "analyze_features",
    "best_linear_pack",
    "euler_sample",
    "flow_matching_loss",
    "guided_velocity",
    "heun_sample",
    "sde_sample",
]
