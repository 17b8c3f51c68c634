r"""Exact and asymptotic risks of ridge and its distilled students.

Here ``lam`` is the paper's mean penalty, :math:`\hat\beta = (X'X/n + \lambda I)^{-1} X'y/n`; scikit-learn's is n
times that. No intercept; risks include the noise of the test label. Equations of Dang, Patil, Rinaldo (ICML 2026,
arXiv 2602.17565); "ours" marks what is derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Covariance = Literal["identity", "ar25", "ar50", "spiked", "equicorrelated"]
Signal = Literal["isotropic", "top_aligned", "bottom_aligned"]


@dataclass(frozen=True)
class Risks:
    r"""Risks at one penalty.

    Attributes:
        R: teacher.
        C: cross term of teacher and pure-distilled student.
        R_pd: pure-distilled student.
        gap: R - C = -(lambda / 2) R'.
        D: R + R_pd - 2 C.
    """

    R: float
    C: float
    R_pd: float
    gap: float
    D: float

    @property
    def xi(self) -> float:
        """Best mixing weight (R - C) / D, 0 where D = 0."""
        return self.gap / self.D if self.D > 0 else 0.0

    @property
    def R_sd(self) -> float:
        """Risk of the best student, R - (R - C)^2 / D."""
        return self.R - self.xi * self.gap

    def student(self, xi: float) -> float:
        """Risk of the student with this weight."""
        return self.R - 2 * xi * self.gap + xi**2 * self.D


def _check(lam: float, s: np.ndarray, n: float, sigma2: float = 0.0) -> np.ndarray:
    s = np.asarray(s, dtype=float)
    if not lam > 0 or not math.isfinite(lam):
        raise ValueError(f"lam must be a positive number, got {lam}")
    if s.ndim != 1 or s.size == 0 or not np.isfinite(s).all() or (s < 0).any():
        raise ValueError(f"expected the eigenvalues of a covariance, (p,), >= 0, got shape {s.shape}")
    if not n > 0 or sigma2 < 0:
        raise ValueError(f"need n > 0 and sigma2 >= 0, got {n} and {sigma2}")
    return s


def solve_kappa(lam: float, s: np.ndarray, n: float) -> float:
    r"""The positive root of :math:`\kappa = \lambda + \kappa\, tr[\Sigma (\Sigma + \kappa)^{-1}] / n` (theorem 3.1).

    Args:
        lam: penalty, > 0.
        s: eigenvalues of Sigma, (p,).
        n: sample size.
    """
    from scipy.optimize import brentq

    s = _check(lam, s, n)

    def excess(kappa: float) -> float:
        return kappa * (1 - np.sum(s / (s + kappa)) / n) - lam

    high = max(lam, 1.0)
    while excess(high) < 0:
        high *= 2
    return float(brentq(excess, lam, high, xtol=1e-300, rtol=4 * np.finfo(float).eps)) if excess(lam) < 0 else lam


@dataclass(frozen=True)
class _Pieces:
    """N, t and their partial derivatives at k = l = kappa, in eigen-coordinates."""

    kappa: float
    g: np.ndarray
    b: float
    F: float
    F2: float
    F12: float


def _pieces(lam: float, s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float) -> _Pieces:
    kappa = solve_kappa(lam, s, n)
    g = 1 / (s + kappa)
    b = 1 / (1 - np.sum(np.square(s * g)) / n)
    N = np.sum(beta2 * s * np.square(kappa * g)) + sigma2
    N2 = np.sum(beta2 * s**2 * kappa * g**3)
    N12 = np.sum(beta2 * s**3 * g**4)
    t2, t12 = -np.sum(s**2 * g**3) / n, np.sum(s**2 * g**4) / n
    F = N * b
    F2 = N2 * b + N * b**2 * t2
    F12 = N12 * b + 2 * N2 * b**2 * t2 + N * (b**2 * t12 + 2 * b**3 * t2**2)
    return _Pieces(kappa, g, float(b), float(F), float(F2), float(F12))


def _from_partials(lam: float, b: float, F: float, F2: float, F12: float) -> Risks:
    step = lam * b
    return Risks(R=F, C=F + step * F2, R_pd=F + 2 * step * F2 + step**2 * F12, gap=-step * F2, D=step**2 * F12)


def sd_equivalents(lam: float, s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float) -> Risks:
    r"""Deterministic equivalents (theorem 3.1) in a compact form (ours).

    The limit of :math:`E_0[(y_0 - x_0'\hat\beta_\lambda)(y_0 - x_0'\hat\beta_\mu)]` is :math:`F(k, l) = (k l\, q(k,
    l) + \sigma^2) / (1 - t(k, l))`; R = F, and C and R_pd follow from its partial derivatives, as the student is one
    step along :math:`d/d\ln\lambda` with :math:`d\kappa/d\lambda = 1 / (1 - t)`.

    Args:
        lam: penalty, > 0.
        s: eigenvalues of Sigma, (p,).
        beta2: squared coordinates of beta in its eigenvectors, (p,).
        n: sample size.
        sigma2: noise variance.
    """
    s = _check(lam, s, n, sigma2)
    found = _pieces(lam, s, np.asarray(beta2, dtype=float), n, sigma2)
    return _from_partials(lam, found.b, found.F, found.F2, found.F12)


def sd_equivalents_paper(lam: float, s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float) -> Risks:
    """The same equivalents in the paper's own form (theorem 3.1), term by term."""
    s = _check(lam, s, n, sigma2)
    kappa = solve_kappa(lam, s, n)
    g = 1 / (s + kappa)
    t2, t3, t4 = (np.sum(s**2 * g**k) / n for k in (2, 3, 4))
    q2, q3, q4 = (np.sum(beta2 * s * g**k) for k in (2, 3, 4))
    b = 1 / (1 - t2)
    u2, u3, u4 = t2 * b, t3 * b**3, t4 * b**4 + 2 * t3**2 * b**5
    E = kappa - b * lam + b**2 * kappa * lam * t3
    a2 = b * E**2 + b**4 * kappa**2 * lam**2 * t4 + b**5 * kappa**2 * lam**2 * t3**2
    a3, a4 = 2 * b**2 * kappa * lam * E, b**3 * kappa**2 * lam**2
    Q2, Q3 = kappa**2 * b * q2, 2 * kappa * b * E * q2 + 2 * kappa**2 * b**2 * lam * q3
    Q4 = a2 * q2 + a3 * q3 + a4 * q4
    R = Q2 + sigma2 * u2 + sigma2
    C = 2 * Q2 - Q3 / 2 + sigma2 * (u2 - lam * u3) + sigma2
    R_pd = 4 * Q2 - 2 * Q3 + Q4 + sigma2 * (u2 - 2 * lam * u3 + lam**2 * u4) + sigma2
    return Risks(float(R), float(C), float(R_pd), float(R - C), float(R + R_pd - 2 * C))


def isotropic_kappa(lam: float, gamma: float) -> float:
    """kappa for Sigma = I, p / n = gamma, in closed form."""
    shift = 1 - gamma - lam
    return (-shift + math.sqrt(shift**2 + 4 * lam)) / 2


def ood_equivalents(
    lam: float,
    Sigma: np.ndarray,
    beta: np.ndarray,
    n: float,
    sigma2: float,
    B: np.ndarray | None = None,
    beta0: np.ndarray | None = None,
    sigma0_2: float | None = None,
) -> Risks:
    """Equivalents under another test law (ours): test covariance B, test signal beta0, test noise sigma0_2.

    Args:
        lam: penalty, > 0.
        Sigma: training covariance, (p, p).
        beta: training signal, (p,).
        n: sample size.
        sigma2: training noise variance.
        B: test covariance, default Sigma.
        beta0: test signal, default beta.
        sigma0_2: test noise variance, default sigma2.
    """
    s, vectors = np.linalg.eigh(Sigma)
    s = np.maximum(s, 0.0)
    rotated = vectors.T @ beta
    found = _pieces(lam, _check(lam, s, n, sigma2), np.square(rotated), n, sigma2)
    test = vectors.T @ (Sigma if B is None else B) @ vectors
    delta = rotated - (rotated if beta0 is None else vectors.T @ beta0)
    kappa, g = found.kappa, found.g
    u, du = kappa * g * rotated, s * g**2 * rotated
    spread = s * np.diagonal(test) / n
    P, P2, P12 = np.sum(spread * g**2), -np.sum(spread * g**3), np.sum(spread * g**4)
    bias = test @ delta
    noise = sigma2 if sigma0_2 is None else sigma0_2
    F = u @ test @ u + found.F * P - 2 * bias @ u + bias @ delta + noise
    F2 = u @ test @ du + found.F2 * P + found.F * P2 - bias @ du
    F12 = du @ test @ du + found.F12 * P + 2 * found.F2 * P2 + found.F * P12
    return _from_partials(lam, found.b, float(F), float(F2), float(F12))


# --- K rounds ----------------------------------------------------------------------------------------------------


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Truncated power series quotient along the first axis, (K + 1, p)."""
    out = np.zeros_like(numerator)
    for j in range(len(numerator)):
        total = numerator[j] - sum(denominator[i] * out[j - i] for i in range(1, j + 1))
        out[j] = total / denominator[0]
    return out


def _kappa_series(lam: float, s: np.ndarray, n: float, K: int) -> np.ndarray:
    """Taylor coefficients of kappa(lam + eps), (K + 1,), by K Newton passes with the constant Jacobian."""
    kappa = solve_kappa(lam, s, n)
    b = 1 / (1 - np.sum(np.square(s / (s + kappa))) / n)
    series = np.zeros(K + 1)
    series[0] = kappa
    for _ in range(K):
        denominator = np.tile(series[:, None], (1, s.size))
        denominator[0] += s
        numerator = np.zeros_like(denominator)
        numerator[0] = s
        trace = _quotient(numerator, denominator).sum(1) / n
        image = series - np.array([sum(series[i] * trace[j - i] for i in range(j + 1)) for j in range(K + 1)])
        image[0] -= lam
        image[1] -= 1.0
        series = series - b * image
    return series


def multi_round_gram(lam: float, s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float, K: int) -> np.ndarray:
    r"""Limits of the products of the residual of beta and of -x'v_j, j = 1..K, (K + 1, K + 1) (ours).

    :math:`v_j = (I - M)^j \hat\beta = (-\lambda)^j \hat\beta^{(j)} / j!`, so entry (a, b) is :math:`(-\lambda)^{a+b}
    [\epsilon^a \eta^b] F(\kappa(\lambda + \epsilon), \kappa(\lambda + \eta))`. The student with coefficients c has the
    risk :math:`(1, c)' G (1, c)`.
    """
    s, beta2 = _check(lam, s, n, sigma2), np.asarray(beta2, dtype=float)
    if not 1 <= K <= 12:
        raise ValueError(f"K must lie between 1 and 12, got {K}")
    kappa = _kappa_series(lam, s, n, K)
    denominator = np.tile(kappa[:, None], (1, s.size))
    numerator = denominator.copy()
    denominator[0] += s
    shrink = _quotient(numerator, denominator)
    one = np.zeros_like(denominator)
    one[0] = 1.0
    g = _quotient(one, denominator)
    N = (beta2 * s * shrink) @ shrink.T
    N[0, 0] += sigma2
    T = -(s**2 * g) @ g.T / n
    T[0, 0] += 1.0  # now 1 - t
    F = np.zeros((K + 1, K + 1))
    for a in range(K + 1):
        for c in range(K + 1):
            known = sum(T[i, j] * F[a - i, c - j] for i in range(a + 1) for j in range(c + 1) if i or j)
            F[a, c] = (N[a, c] - known) / T[0, 0]
    power = (-lam) ** np.arange(K + 1)
    return F * np.outer(power, power)


def best_rounds(gram: np.ndarray) -> tuple[np.ndarray, float]:
    """Coefficients c minimising (1, c)' G (1, c), (K,), and the risk."""
    c = -np.linalg.lstsq(gram[1:, 1:], gram[1:, 0], rcond=1e-13)[0]
    full = np.append(1.0, c)
    return c, float(full @ gram @ full)


# --- populations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """Exact risks of the fit to one sample, and the derivatives of the teacher's in lambda."""

    risks: Risks
    slope: float
    second: float

    @property
    def gains(self) -> bool:
        """Sufficient condition of proposition 2.3 where the slope is 0: D < lambda^2 R'' / 2 (in ``half``)."""
        return self.half > self.risks.D

    half: float = math.nan


@dataclass(frozen=True)
class Population:
    """A linear model x ~ N(0, Sigma), y = x'beta + noise, and the law that it is tested on.

    Attributes:
        Sigma: covariance, (p, p).
        beta: signal, (p,).
        sigma2: noise variance.
        B: test covariance, default Sigma.
        beta0: test signal, default beta.
        sigma0_2: test noise variance, default sigma2.
    """

    Sigma: np.ndarray
    beta: np.ndarray
    sigma2: float
    B: np.ndarray | None = None
    beta0: np.ndarray | None = None
    sigma0_2: float | None = None

    def __post_init__(self) -> None:
        p = np.size(self.beta)
        if np.shape(self.Sigma) != (p, p) or self.sigma2 < 0:
            raise ValueError(f"expected Sigma ({p}, {p}) and sigma2 >= 0, got {np.shape(self.Sigma)}, {self.sigma2}")

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """n rows and labels."""
        values, vectors = np.linalg.eigh(self.Sigma)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        X = rng.standard_normal((n, self.beta.size)) @ root.T
        return X, X @ self.beta + math.sqrt(self.sigma2) * rng.standard_normal(n)

    def oracle(self, X: np.ndarray, y: np.ndarray, lam: float) -> Oracle:
        r"""Risks conditional on the data: :math:`R' = 2 (\hat\beta - \beta_0)' B \hat\beta'` with
        :math:`\hat\beta' = -\Omega^{-1} \hat\beta`, and :math:`R'' = 2 |\hat\beta'|_B^2 + 2 (\hat\beta - \beta_0)' B
        \hat\beta''`."""
        n, p = X.shape
        omega = X.T @ X / n + lam * np.eye(p)
        coef = np.linalg.solve(omega, X.T @ y / n)
        first = -np.linalg.solve(omega, coef)
        second = -2 * np.linalg.solve(omega, first)
        B = self.Sigma if self.B is None else self.B
        target = self.beta if self.beta0 is None else self.beta0
        noise = self.sigma2 if self.sigma0_2 is None else self.sigma0_2
        error = coef - target
        R = float(error @ B @ error) + noise
        slope = 2 * float(error @ B @ first)
        curvature = 2 * float(first @ B @ first) + 2 * float(error @ B @ second)
        D, gap = lam**2 * float(first @ B @ first), -0.5 * lam * slope
        risks = Risks(R=R, C=R - gap, R_pd=R - 2 * gap + D, gap=gap, D=D)
        return Oracle(risks, slope, curvature, half=0.5 * lam**2 * curvature)

    def asymptotics(self, n: float, lam: float) -> Risks:
        """Deterministic equivalents at sample size n."""
        return ood_equivalents(lam, self.Sigma, self.beta, n, self.sigma2, self.B, self.beta0, self.sigma0_2)

    def fixed_design(self, X: np.ndarray, lam: float) -> Risks:
        """Expected risks at the rows X themselves with fresh noise, over the training noise: exact for finite n."""
        n = len(X)
        U, sv, _ = np.linalg.svd(X, full_matrices=False)
        h = sv**2 / (sv**2 + n * lam)
        signal = np.square(U.T @ (X @ self.beta))

        def cross(a: int, b: int) -> float:
            return float(np.sum((1 - h**a) * (1 - h**b) * signal + self.sigma2 * h ** (a + b)) / n + self.sigma2)

        R, C, R_pd = cross(1, 1), cross(1, 2), cross(2, 2)
        gap = float(np.sum((1 - h) * -(h * (1 - h)) * signal + self.sigma2 * h**2 * (1 - h)) / n)
        D = float(np.sum(np.square(h * (1 - h)) * (signal + self.sigma2)) / n)
        return Risks(R, C, R_pd, gap, D)


def covariance(name: Covariance, p: int) -> np.ndarray:
    """Covariances of the paper's experiments: identity, AR(1) with .25 or .5, I + 5 vv', equicorrelated .5; (p, p)."""
    lags = np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    match name:
        case "identity":
            return np.eye(p)
        case "ar25":
            return 0.25**lags
        case "ar50":
            return 0.5**lags
        case "spiked":
            v = np.ones(p) / math.sqrt(p)
            return np.eye(p) + 5 * np.outer(v, v)
        case "equicorrelated":
            return 0.5 * np.eye(p) + 0.5
    raise ValueError(f"covariance must be identity, ar25, ar50, spiked or equicorrelated, got {name!r}")


def signal(name: Signal, Sigma: np.ndarray, norm2: float = 1.0) -> np.ndarray:
    """Signals of squared norm ``norm2``, (p,): even in all eigenvectors, or 90 % of it in the top or bottom tenth."""
    p = len(Sigma)
    _, vectors = np.linalg.eigh(Sigma)
    tenth = max(1, p // 10)
    weight = np.full(p, 1 / p)
    if name != "isotropic":
        if name not in ("top_aligned", "bottom_aligned"):
            raise ValueError(f"signal must be isotropic, top_aligned or bottom_aligned, got {name!r}")
        chosen = np.arange(p) >= p - tenth if name == "top_aligned" else np.arange(p) < tenth
        weight = np.where(chosen, 0.9 / tenth, 0.1 / max(p - tenth, 1))
    return vectors @ np.sqrt(norm2 * weight)


def optimal_ridge(s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float, lams: np.ndarray) -> tuple[float, float]:
    """Penalty of the grid with the least asymptotic teacher risk, and that risk."""
    risks = [sd_equivalents(lam, s, beta2, n, sigma2).R for lam in lams]
    i = int(np.argmin(risks))
    return float(lams[i]), risks[i]


def generalised_ridge_risk(s: np.ndarray, beta2: np.ndarray, n: float, sigma2: float) -> float:
    r"""Asymptotic risk of the best generalised ridge, penalty :math:`\sigma^2/n \cdot \Sigma_\beta^{-1}` with prior
    variances
    beta2: ridge in the coordinates :math:`\Sigma_\beta^{1/2} x`, whose signal is isotropic."""
    transformed = s * beta2
    lam = sigma2 / n
    return sd_equivalents(lam, transformed, np.ones_like(s), n, sigma2).R
