"""Losses of the three stages: frequency terms, adaptive adversarial weight, hinge losses, flow matching.

Two reductions: ``"mean"`` makes every term a mean per element; ``"official"`` sums the pixel term over an image and
averages the frequency terms, as the paper's code does, where the latter then have no effect (claim R6).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-10


def _check_pair(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape or prediction.ndim != 4:
        raise ValueError(
            f"expected two (B, C, H, W) of one shape, got {tuple(prediction.shape)}, {tuple(target.shape)}"
        )


def focal_frequency_loss(prediction: Tensor, target: Tensor, alpha: float = 1.0) -> Tensor:
    """Mean of ``w |F1 - F2|^2`` over the orthonormal 2-D spectrum (Jiang et al. 2021).

    ``w = |F1 - F2|^alpha`` over its maximum in each (image, channel) plane, detached. At alpha = 0 it is the mean
    squared error (Parseval).

    Args:
        prediction: (B, C, H, W).
        target: (B, C, H, W).
        alpha: >= 0.
    """
    _check_pair(prediction, target)
    difference = torch.fft.fft2(prediction, norm="ortho") - torch.fft.fft2(target, norm="ortho")
    square = difference.real.square() + difference.imag.square()
    weight = square.detach().sqrt() ** alpha
    weight = weight / weight.amax((-2, -1), keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    return (weight.clamp(0, 1) * square).mean()


def _taken(values: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    found = values.get(name)
    if found is None or found.shape != like.shape:
        raise ValueError(
            f"expected {name} of shape {tuple(like.shape)}, got {'nothing' if found is None else tuple(found.shape)}"
        )
    return found


class WatsonDFT(nn.Module):
    """Watson's perceptual distance on block Fourier spectra (Czolbe et al. 2020), masks from the target.

    Images in [-1, 1] are taken to YCbCr and cut into 8 x 8 blocks with spectrum ``rfft2 / 64``. Luminance masking
    ``t' = exp(t) (|DC| / mean |DC|)^alpha``, contrast masking by a softmax-weighted maximum of ``t'`` and
    ``|c0|^w t'^(1-w)``; pooled ``sum |(|c0| - |c1|) / s|^beta``, root 1/beta, plus the weighted angle between the
    phases; channels are mixed by softmax weights.

    The parameters are untrained unless :meth:`load_parameters` or :meth:`load_official` is called.
    """

    def __init__(self, block: int = 8) -> None:
        super().__init__()
        self.block = block
        shape = (block, block // 2 + 1)
        self.t_tilde = nn.Parameter(torch.zeros(3, *shape), requires_grad=False)
        self.phase_tilde = nn.Parameter(torch.full((3, *shape), -2.0), requires_grad=False)
        self.alpha = nn.Parameter(torch.full((3,), 0.1), requires_grad=False)
        self.w = nn.Parameter(torch.full((3,), 0.2), requires_grad=False)
        self.beta = nn.Parameter(torch.ones(3), requires_grad=False)
        self.channel_tilde = nn.Parameter(torch.zeros(3), requires_grad=False)

    def load_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Trained parameters by this module's names; shapes must agree."""
        self.load_state_dict(dict(values), strict=True)

    @torch.no_grad()
    def load_official(self, values: Mapping[str, Tensor]) -> None:
        """Trained parameters under the names of Czolbe et al.'s colour checkpoint (``rgb_watson_dft_trial0.pth``).

        ``ly``, ``lcb`` and ``lcr`` hold ``t_tild, alpha, w_tild, beta, w_phase_tild``; ``w_tild`` mixes the channels.
        Their ``w`` is a sigmoid, and their trained distance ignores the phases of the four real coefficients.

        Raises:
            ValueError: if a parameter is missing or of another shape.
        """
        last = self.block // 2
        for i, channel in enumerate(("ly", "lcb", "lcr")):
            self.t_tilde[i] = _taken(values, f"{channel}.t_tild", self.t_tilde[i])
            phase = _taken(values, f"{channel}.w_phase_tild", self.phase_tilde[i]).clone()
            phase[[0, 0, last, last], [0, last, 0, last]] = -torch.inf
            self.phase_tilde[i] = phase
            self.alpha[i] = _taken(values, f"{channel}.alpha", self.alpha[i])
            self.beta[i] = _taken(values, f"{channel}.beta", self.beta[i])
            self.w[i] = _taken(values, f"{channel}.w_tild", self.w[i]).sigmoid()
        self.channel_tilde.copy_(_taken(values, "w_tild", self.channel_tilde))

    def _spectrum(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Complex blocks, (B, 3, N, block, block // 2 + 1), as real and imaginary part."""
        n = self.block
        if images.shape[1] != 3 or images.shape[2] % n or images.shape[3] % n:
            raise ValueError(f"expected (B, 3, H, W) with sides divisible by {n}, got {tuple(images.shape)}")
        r, g, b = ((images + 1) / 2).unbind(1)
        y = 0.299 * r + 0.587 * g + 0.114 * b
        ycc = torch.stack([y, 0.5 + 0.564 * (b - y), 0.5 + 0.713 * (r - y)], 1)
        blocks = ycc.unfold(2, n, n).unfold(3, n, n).flatten(2, 3)
        found = torch.fft.rfft2(blocks) / n**2
        return found.real, found.imag

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Distance per image, (B,): a sum over blocks and frequencies."""
        _check_pair(prediction, target)
        a0, b0 = self._spectrum(target)
        a1, b1 = self._spectrum(prediction)
        size0, size1 = (a0.square() + b0.square() + EPS).sqrt(), (a1.square() + b1.square() + EPS).sqrt()
        alpha, w, beta = (p.view(1, 3, 1, 1, 1) for p in (self.alpha, self.w, self.beta))
        light = size0[..., :1, :1]
        masked = self.t_tilde.exp()[None, :, None] * (light / light.mean((0, 2), keepdim=True)) ** alpha
        contrast = size0**w * masked ** (1 - w)
        share = torch.softmax(torch.stack([masked, contrast]), 0)
        slack = share[0] * masked + share[1] * contrast
        pooled = (((size0 - size1).abs() / slack + EPS) ** beta - EPS**beta).sum((2, 3, 4)) ** (1 / beta.flatten())
        # angle between the phases; flat at equality, so that its gradient stays finite
        cosine = (a0 * a1 + b0 * b1 + EPS) / (size0 * size1)
        angle = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)) - math.acos(1 - 1e-6)
        phase = (angle * self.phase_tilde.exp()[None, :, None]).sum((2, 3, 4))
        return ((pooled + phase) * torch.softmax(self.channel_tilde, 0)).sum(1)


def watson_loss(watson: WatsonDFT, prediction: Tensor, target: Tensor) -> Tensor:
    """Watson-DFT distance per element of the image."""
    return watson(prediction, target).mean() / prediction[0].numel()


# --- perceptual distances ------------------------------------------------------------------------------------------


class PerceptualDistance(nn.Module):
    """Distance of two sets of images in a frozen network's features, one number.

    With a vision transformer: squared distance of the unit-length patch tokens after some of its layers, ``2 (1 -
    cos)``, averaged over layers, positions and images. With a trunk: LPIPS (Zhang et al. 2018) with the calibrated
    heads of the package ``lpips``, averaged over images.

    Only the prediction takes a gradient. :attr:`kind` says in words which of the two it is.

    Args:
        vision: has ``layers`` and ``hidden_maps(images, layers)`` giving maps (B, C, h, w) of images in [-1, 1].
        lpips_trunk: weights of torchvision's VGG-16, AlexNet or SqueezeNet 1.1 (which one is told by its keys); takes
            the vision model's place.
        layers: after which tokens are compared; by default a quarter, half and three quarters of the depth, which is 3,
            6 and 9 of 12.

    Raises:
        ValueError: if neither is given, the layers do not exist or the trunk is of another network.
        ImportError: if there is a trunk and ``lpips`` is not installed.
    """

    def __init__(
        self,
        vision: Any = None,
        *,
        lpips_trunk: Mapping[str, Tensor] | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.layers: tuple[int, ...] = ()
        self.__dict__["vision"] = None  # kept out of the parameters
        if lpips_trunk is not None:
            network, self.lpips = _lpips(lpips_trunk)
            self.kind = f"LPIPS ({network})"
            return
        if vision is None:
            raise ValueError("a perceptual distance needs a vision model or the trunk of LPIPS, got neither")
        self.lpips = None
        self.__dict__["vision"] = vision
        depth = int(vision.layers)
        self.layers = tuple(layers or sorted({max(1, round(depth * share)) for share in (0.25, 0.5, 0.75)}))
        if not all(1 <= layer <= depth for layer in self.layers):
            raise ValueError(f"layers must lie between 1 and {depth}, got {self.layers}")
        self.kind = f"vision model's tokens after layers {', '.join(map(str, self.layers))} (in place of LPIPS)"

    def _maps(self, images: Tensor) -> list[Tensor]:
        vision: Any = self.vision
        found = vision.to(images.device).hidden_maps(images, self.layers)
        return [F.normalize(tokens, dim=1) for tokens in found]

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean distance of images (B, 3, H, W) in [-1, 1]: a scalar."""
        _check_pair(prediction, target)
        if self.lpips is not None:
            return self.lpips(prediction, target.detach()).mean()
        with torch.no_grad():
            expected = self._maps(target)
        distances = [(a - b).square().sum(1).mean() for a, b in zip(self._maps(prediction), expected, strict=True)]
        return torch.stack(distances).mean()


def _lpips(trunk: Mapping[str, Tensor]) -> tuple[str, nn.Module]:
    """Name of the network and LPIPS on it, frozen; the heads come with the package."""
    try:
        import lpips
    except ModuleNotFoundError as error:
        raise ImportError(
            f"LPIPS needs {error.name}, which is not installed: pip install 'papershelf-repack-dit[lpips]'"
        ) from error
    first = trunk.get("features.0.weight")
    shape = None if first is None else tuple(first.shape)
    fire = "features.3.squeeze.weight" in trunk
    network = {(64, 3, 11, 11): "alex", (64, 3, 3, 3): "squeeze" if fire else "vgg"}.get(shape or ())
    if network is None:
        raise ValueError(f"expected torchvision's weights of VGG-16, AlexNet or SqueezeNet 1.1, got {[*trunk][:3]} ...")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lpips.LPIPS(net=network, pnet_rand=True, verbose=False)
    own = model.net.state_dict()
    taken = {name: trunk.get(re.sub(r"^slice\d+\.", "features.", name)) for name in own}
    wrong = [name for name, value in taken.items() if value is None or value.shape != own[name].shape]
    if wrong:
        raise ValueError(f"the trunk lacks or has other shapes for {', '.join(wrong[:4])} of {network}")
    model.net.load_state_dict(taken)
    return network, model.eval().requires_grad_(False)


def vision_alignment_loss(
    z: Tensor, features: Tensor, cosine_margin: float = 0.5, distance_margin: float = 0.25
) -> Tensor:
    """VA-VAE's alignment of a latent with vision features (Yao et al. 2025): both marginal terms, added.

    ``mean relu(1 - m1 - cos(z, f))`` over positions, and ``mean relu(|cos(z_i, z_j) - cos(f_i, f_j)| - m2)`` over pairs
    of positions in an image.

    Args:
        z: latent projected to the features' channels, (B, C, h, w).
        features: (B, C, h, w).
        cosine_margin: m1.
        distance_margin: m2.
    """
    _check_pair(z, features)
    a, b = (F.normalize(x.flatten(2), dim=1) for x in (z, features))
    point = F.relu(1 - cosine_margin - (a * b).sum(1)).mean()
    pairs = (a.transpose(1, 2) @ a - b.transpose(1, 2) @ b).abs()
    return point + F.relu(pairs - distance_margin).mean()


# --- adversarial terms ---------------------------------------------------------------------------------------------


def adaptive_weight(reference: Tensor, adversarial: Tensor, last_layer: Tensor, maximum: float = 1e4) -> Tensor:
    """``||grad reference|| / (||grad adversarial|| + 1e-4)`` at the decoder's last layer, clamped (VQGAN)."""
    (first,) = torch.autograd.grad(reference, last_layer, retain_graph=True)
    (second,) = torch.autograd.grad(adversarial, last_layer, retain_graph=True)
    return (first.norm() / (second.norm() + 1e-4)).clamp(0, maximum).detach()


def hinge_discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """``(mean relu(1 - D(x)) + mean relu(1 + D(x_hat))) / 2``."""
    return (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2


def hinge_generator_loss(fake: Tensor) -> Tensor:
    """``-mean D(x_hat)``."""
    return -fake.mean()


def patch_discriminator(base: int = 128, layers: int = 3) -> nn.Sequential:
    """PatchGAN with BatchNorm and biases: 4 x 4 convolutions, channels doubling up to 8 ``base``."""
    parts: list[nn.Module] = [nn.Conv2d(3, base, 4, 2, 1), nn.LeakyReLU(0.2)]
    width = base
    for i in range(1, layers + 1):
        out = base * min(2**i, 8)
        parts += [nn.Conv2d(width, out, 4, 2 if i < layers else 1, 1), nn.BatchNorm2d(out), nn.LeakyReLU(0.2)]
        width = out
    return nn.Sequential(*parts, nn.Conv2d(width, 1, 4, 1, 1))


def reconstruction_terms(
    prediction: Tensor,
    target: Tensor,
    watson: WatsonDFT,
    *,
    reduction: str = "mean",
    official_order: bool | None = None,
) -> dict[str, Tensor]:
    """Pixel, focal and Watson term with the paper's weights 1, 0.05 and 0.005.

    Args:
        prediction: (B, 3, H, W).
        target: (B, 3, H, W).
        watson: the distance.
        reduction: ``"mean"`` or ``"official"`` (pixel term summed over each image).
        official_order: masks of the Watson term from the reconstruction, as the release calls it; by default only
            with ``"official"``.
    """
    if reduction not in ("mean", "official"):
        raise ValueError(f"reduction must be mean or official, got {reduction!r}")
    pixel = (prediction - target).abs()
    swap = reduction == "official" if official_order is None else official_order
    pair = (target, prediction) if swap else (prediction, target)
    return {
        "pixel": pixel.mean() if reduction == "mean" else pixel.sum() / len(pixel),
        "focal": 0.05 * focal_frequency_loss(prediction, target),
        "watson": 0.005 * watson_loss(watson, *pair),
    }


# --- flow matching -------------------------------------------------------------------------------------------------


def drop_labels(labels: Tensor, null: int, rate: float, generator: torch.Generator) -> Tensor:
    """Each label replaced by the null label with this probability."""
    dropped = torch.rand(labels.shape, generator=generator, device=generator.device) < rate
    return torch.where(dropped.to(labels.device), torch.full_like(labels, null), labels)


def velocity_loss(velocity: Tensor, target: Tensor, cosine_weight: float = 1.0) -> Tensor:
    """``mean (v - u)^2 + weight * mean over positions of (1 - cos(v, u))`` over channels (B, d, h, w)."""
    squared = (velocity - target).square().mean()
    if cosine_weight == 0:
        return squared
    return squared + cosine_weight * (1 - F.cosine_similarity(velocity, target, dim=1)).mean()


class RepresentationAlignment(nn.Module):
    """REPA (Yu et al. 2025): a block's tokens, projected by an MLP, should point where the vision features point.

    Args:
        model: transformer with ``blocks`` and ``config.hidden_size``; its parameters are not part of this module.
        channels: of the vision features.
        layer: block whose output is aligned, 1 being the first.
        hidden: width of the projector.

    Raises:
        ValueError: if there is no such block.
    """

    def __init__(self, model: Any, channels: int, layer: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        if not 1 <= layer <= len(model.blocks):
            raise ValueError(f"layer must lie between 1 and {len(model.blocks)}, got {layer}")
        self.layer, width = layer, model.config.hidden_size
        self.projector = nn.Sequential(
            nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, channels)
        )

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """``mean (1 - cos)`` of tokens (B, N, width) and features (B, C, h, w) with h w = N, row by row."""
        expected = features.flatten(2).transpose(1, 2)
        if expected.shape[:2] != tokens.shape[:2]:
            raise ValueError(f"expected features of {tokens.shape[1]} positions, got {tuple(features.shape)}")
        return (1 - F.cosine_similarity(self.projector(tokens), expected, dim=-1)).mean()


def flow_matching_loss(
    model: Any,
    z: Tensor,
    labels: Tensor | None,
    *,
    generator: torch.Generator,
    cosine_weight: float = 1.0,
    logit_mean: float = 0.0,
    logit_std: float = 1.0,
    label_dropout: float = 0.1,
    shift: float = 1.0,
    alignment: RepresentationAlignment | None = None,
    features: Tensor | None = None,
    alignment_weight: float = 0.5,
) -> Tensor:
    """Loss of the velocity at ``z_t = t z + (1 - t) e``, ``t = sigmoid(N(mean, std))``.

    Args:
        model: takes (z_t, t, labels, return_dict=False).
        z: normalised latents, (B, d, h, w).
        labels: (B,), or None.
        generator: source of noise, times and dropped labels; on the CPU or on z's device.
        cosine_weight: weight of the direction term; 0 is plain flow matching.
        logit_mean: of the times' logits.
        logit_std: of the times' logits.
        label_dropout: rate at which labels become null.
        shift: ``t' = s t / (1 + (s - 1) t)``, below 1 for more noise: 1 / ``dimension_shift(d, h, w)`` in RAE.
        alignment: adds REPA's term; takes ``features``.
        features: of the images, from the vision model, (B, C, h', w').
        alignment_weight: of that term.
    """
    if (alignment is None) != (features is None):
        raise ValueError("REPA's alignment takes the module and the features, got one of them")
    device = generator.device
    logits = logit_mean + math.log(shift) + logit_std * torch.randn(len(z), generator=generator, device=device)
    t = torch.sigmoid(logits).to(z.device)
    noise = torch.randn(z.shape, generator=generator, device=device).to(z)
    if labels is not None and label_dropout:
        labels = drop_labels(labels, model.config.num_classes, label_dropout, generator)
    at = t.view(-1, 1, 1, 1).to(z.dtype)
    noisy = at * z + (1 - at) * noise
    if alignment is None or features is None:
        return velocity_loss(model(noisy, t, labels, return_dict=False)[0], z - noise, cosine_weight)
    tokens: list[Tensor] = []
    handle = model.blocks[alignment.layer - 1].register_forward_hook(lambda _module, _inputs, out: tokens.append(out))
    try:
        velocity = model(noisy, t, labels, return_dict=False)[0]
    finally:
        handle.remove()
    return velocity_loss(velocity, z - noise, cosine_weight) + alignment_weight * alignment(tokens[0], features)
