"""Random streams, statistics, benchmarks, plots, models and the papershelf command."""

import itertools
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papershelf import InputError, MissingExtra, Streams, bench, plot, require, stats
from papershelf.cli import main


def test_streams_are_reproducible_independent_and_touch_no_global_state():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b = (Streams(7).numpy(name).normal(size=20_000) for name in ("a", "b"))
    assert (Streams(7).numpy("a").normal(size=20_000) == a).all()
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert Streams(8).integer("a") != Streams(7).integer("a") == Streams(7).integer("a")
    assert Streams(7).child("x").integer("a") != Streams(7).integer("a")
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        Streams(-1)


def test_torch_streams():
    torch = pytest.importorskip("torch")
    one, two = (torch.rand(3, generator=Streams(1).torch("w")) for _ in range(2))
    assert torch.equal(one, two)


def test_wilson_interval_solves_the_score_equation_and_covers():
    found = stats.wilson_interval(81, 263)
    for p in (found.low, found.high):
        assert abs(81 / 263 - p) / (p * (1 - p) / 263) ** 0.5 == pytest.approx(1.959964, abs=1e-6)
    intervals = [stats.wilson_interval(x, 60) for x in range(61)]

    def coverage(p):
        return sum(
            math.comb(60, x) * p**x * (1 - p) ** (60 - x) for x, i in enumerate(intervals) if i.low <= p <= i.high
        )

    assert np.mean([coverage(p) for p in np.linspace(0.05, 0.95, 181)]) == pytest.approx(0.95, abs=0.01)


@given(st.integers(0, 50), st.integers(1, 50))
def test_wilson_intervals_hold_their_estimate(successes, more):
    found = stats.wilson_interval(successes, successes + more)
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_bootstrap_interval_agrees_with_the_normal_one():
    values = np.random.default_rng(0).normal(3, 2, 400)
    found = stats.bootstrap_interval(values, np.random.default_rng(1))
    half = 1.96 * values.std(ddof=1) / 20
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    median = stats.bootstrap_interval(values, np.random.default_rng(1), statistic=np.median)
    assert median.estimate == np.median(values)
    with pytest.raises(ValueError, match="finite numbers, got shape"):
        stats.bootstrap_interval(np.array([1.0, np.nan]), np.random.default_rng(0))


def test_sign_flip_p_value_is_the_enumeration():
    difference = np.array([0.4, 1.2, -0.3, 0.9, 0.6])
    means = [abs(np.mean(np.array(s) * difference)) for s in itertools.product([1, -1], repeat=5)]
    expected = np.mean(np.array(means) >= abs(difference.mean()) - 1e-12)
    found = stats.paired_comparison(difference, np.zeros(5), np.random.default_rng(0))
    assert found.p_value == pytest.approx(expected)
    assert found.difference.estimate == pytest.approx(difference.mean())


def test_paired_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(0)
    values = [stats.paired_comparison(*rng.normal(size=(2, 30)), rng, resamples=300).p_value for _ in range(300)]
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.09


def test_compare_measures_ratios_and_memory():
    def slow():
        time.sleep(0.02)

    def fast():
        time.sleep(0.005)

    timings = bench.compare({"slow": slow, "fast": fast, "fat": lambda: np.ones(20_000_000).sum()}, repeat=3)
    assert 2 < timings[1].ratio < 5
    assert timings[0].ratio == 1
    assert timings[2].peak_mb > 100
    table = bench.markdown_table(timings)
    assert table.splitlines()[2].startswith("| slow | 2")
    with pytest.raises(ValueError, match="at least one function"):
        bench.compare({})


def test_figures_are_saved_as_png_and_svg_without_a_display(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    with plot.figure() as (drawing, axes):
        axes.plot([1, 2])
        png, svg = plot.save(drawing, tmp_path / "new/a")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in svg.read_text()


def test_a_missing_extra_names_what_to_install():
    with pytest.raises(MissingExtra, match=r"pip install 'papershelf\[x\]'"):
        require("no_such_module_anywhere", "papershelf[x]")
    assert require("json", "papershelf[x]").dumps([]) == "[]"


@pytest.mark.network
@pytest.mark.filterwarnings("ignore")
def test_the_language_model_generates_and_the_encoder_embeds(tmp_path):
    torch = pytest.importorskip("torch")
    from papershelf import models

    model, tokenizer = models.language_model()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? Answer with one word."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        tokens = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0])
    encoder = models.sentence_encoder()
    vectors = encoder.encode(["A man eats food.", "Someone is having a meal.", "The stock market fell."], batch_size=2)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
    assert encoder.encode([]).shape == (0, 384)
    with pytest.raises(InputError, match="no model folder at"):
        models.language_model(str(tmp_path / "none"))


def papershelf(*words, cwd):
    return subprocess.run([sys.executable, "-m", "papershelf", *words], cwd=cwd, capture_output=True, text=True)


def test_the_command_lists_and_explains(tmp_path):
    for words in (["list"], ["models"], ["--version"], ["--help"], ["vendor", "--help"]):
        done = papershelf(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["info", "nothing"], "no paper 'nothing' is installed"),
        (["report", "nowhere"], "no claims.json in nowhere"),
        (["vendor", "nothing:x", "d"], "no paper 'nothing'"),
        (["vendor", "--check", "."], "holds no files vendored"),
        (["reproduce", "--seed", "x"], "got 'x'"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_2(words, told, tmp_path):
    done = papershelf(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_completion_is_offered():
    assert main.registered_commands
    assert main._add_completion
