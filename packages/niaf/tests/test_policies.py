"""Heads, backbones, policies and training."""

import json

import numpy as np
import pytest
import torch
from scipy.fft import dct

from niaf import HEADS, make_head
from niaf.backbones import ACTEncoder, Florence2Backbone, StateEncoder, VLMBackbone, query_mask
from niaf.data import LeRobotReader, lasa_task, write_lerobot
from niaf.heads import FieldOptions, ProDMPHead
from niaf.losses import FieldLoss
from niaf.policy import NIAFConfig, NIAFPolicy
from niaf.recipes import commands, write_recipe
from niaf.study import head_errors, train_head
from niaf.training import TrainOptions, config_for, evaluate, main, split_rows, train
from papershelf import InputError

SMALL = {"field": {"width": 16, "groups": 4}}
SMALL["field-gelu"] = SMALL["field-relu"] = SMALL["field"]


def head_of(name, kind="absolute", gripper=(), **options):
    torch.manual_seed(0)
    return make_head(name, 6, 3, 10, 20.0, kind, gripper, **{**SMALL.get(name, {}), **options})


def chunks(n=4, k=10, d=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(n, 1, d, generator=g) * 3
    return torch.sin(torch.linspace(0, 2, k)[None, :, None] + phase)


def test_scales_by_quantiles_map_them_to_the_unit_interval_and_resist_outliers():
    x = chunks(40)
    x[0, 0, 0] = 1e4
    x[..., 1] = 7.0
    head = head_of("waypoint")
    head.set_statistics(x, "quantiles")
    low, high = np.quantile(x.reshape(-1, 3).numpy(), [0.01, 0.99], axis=0)
    for value, unit in ((low, -1.0), (high, 1.0)):
        np.testing.assert_allclose(((torch.from_numpy(value) - head.mean) / head.std)[[0, 2]], unit, atol=1e-5)
    assert head.std[1] == 1  # a constant channel
    deviation = head_of("waypoint")
    deviation.set_statistics(x)
    assert deviation.std[0] > 100 * head.std[0]
    delta = head_of("waypoint", "delta")
    delta.set_statistics(x, "quantiles")
    assert not delta.mean.any()  # no increment stays no increment
    with pytest.raises(ValueError, match="deviation, quantiles, got 'range'"):
        head.set_statistics(x, "range")


@pytest.mark.parametrize("kind", ["absolute", "delta"])
@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns_and_answers_with_its_gripper(name, kind):
    head = head_of(name, kind, gripper=(2,))
    x = chunks() * (0.1 if kind == "delta" else 1)
    x[..., 2] = torch.sign(torch.linspace(-1, 1, 10))
    head.set_statistics(x)
    cond = torch.eye(6)[:4]
    optimiser = torch.optim.Adam(head.parameter_groups(5e-3))
    g = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(40):
        terms = head.loss(cond, x, generator=g)
        optimiser.zero_grad()
        terms["loss"].backward()
        optimiser.step()
        losses.append(float(terms["loss"].detach()))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    found = head(cond)
    actions = found.actions()
    assert actions.shape == (4, 10, 3)
    assert set(actions[..., 2].unique().tolist()) <= {-1.0, 1.0}
    twice = found.actions(40.0)
    if kind == "absolute":
        assert twice.shape[1] == 19
        if name not in ("diffusion", "flow"):
            torch.testing.assert_close(twice[:, ::2, :2], actions[..., :2], rtol=1e-3, atol=1e-3)
    else:
        assert twice.shape[1] == 20
        torch.testing.assert_close(twice[..., :2].sum(1), actions[..., :2].sum(1), rtol=1e-3, atol=1e-3)
    motion = found.trajectory(1)
    t = motion.times(20.0)
    values = found.at(torch.as_tensor(2 * t / motion.duration - 1).clamp(-1, 1).float(), 1)
    np.testing.assert_allclose(motion.at(t), values[0][1].detach(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(motion.at(t, 1), values[1][1].detach(), rtol=1e-2, atol=2e-2)
    if kind == "delta":
        np.testing.assert_allclose(motion.at(0.0), 0, atol=1e-12)


def test_closed_form_encoders_recover_chunks():
    x = chunks()
    for name, options, error in (
        ("bspline", {"n_control": 10}, 1e-4),
        ("dct", {"n_coefficients": 10}, 1e-5),
        ("cubic", {}, 1e-5),
    ):
        head = head_of(name, **options)
        code = head.encode(x)
        torch.testing.assert_close(head.evaluate(code, head.grid, 0)[0], x, rtol=error, atol=error)
    head = head_of("dct", n_coefficients=10)
    expected = dct(x.numpy(), axis=1, norm="ortho")
    np.testing.assert_allclose(head.encode(x), expected, atol=1e-4)
    back = head.detokenise(head.tokenise(head.encode(x)))
    assert float((back - head.encode(x)).abs().max()) <= 0.5 / head.scale + 1e-6


def test_a_field_encodes_by_optimising_a_code():
    head = head_of("field", width=32)
    x = chunks()
    code = head.encode(x, steps=300)
    error = head.evaluate(code, head.grid, 0)[0] - x
    assert float(error.detach().square().mean().sqrt()) < 0.1


def test_prodmp_starts_at_the_measured_state():
    head = head_of("prodmp")
    assert isinstance(head, ProDMPHead)
    head.set_statistics(chunks() * 3 + 1)
    position, velocity = torch.tensor([[0.3, -1, 2]]), torch.tensor([[1.0, 0, -2]])
    from niaf.heads import Prediction

    params = head.from_state(head.predict(torch.randn(1, 6)), position, velocity)
    found = Prediction(head, params, None).at(torch.tensor([-1.0]), 1)
    torch.testing.assert_close(found[0][:, 0], position, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1][:, 0], velocity, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("conditioner", ["film", "hyper", "resampler", "grouped", "code"])
def test_a_field_takes_every_conditioner(conditioner):
    head = head_of("field", conditioner=conditioner, n_codes=4)
    cond = {
        "grouped": lambda: torch.randn(4, head.num_queries, 6),
        "resampler": lambda: torch.randn(4, 9, 6),
        "code": lambda: torch.arange(4),
    }.get(conditioner, lambda: torch.randn(4, 6))()
    optimiser = torch.optim.Adam(head.parameters(), 1e-2)
    first = last = None
    for _ in range(30):
        loss = head.loss(cond, chunks())["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        first, last = first or float(loss.detach()), float(loss.detach())
    assert last < first


def test_padding_and_nan_never_reach_a_loss():
    for name in ("field", "bspline", "waypoint", "diffusion", "beast-f"):
        head = head_of(name, gripper=(2,))
        x, mask = chunks(), torch.zeros(4, 10, dtype=torch.bool)
        x[0, 3] = torch.nan
        mask[1] = True
        mask[2, 5:] = True
        terms = head.loss(torch.randn(4, 6), x, mask=mask)
        terms["loss"].backward()
        assert torch.isfinite(terms["loss"])
        assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)
        everything = head.loss(torch.randn(4, 6), x, mask=torch.ones(4, 10, dtype=torch.bool))
        assert float(everything["loss"].detach()) == 0.0, name


def test_a_padded_tail_does_not_change_the_field_loss():
    head = head_of("field", jitter=False)
    cond, x, mask = torch.randn(2, 6), chunks(2), torch.zeros(2, 10, dtype=torch.bool)
    mask[:, 6:] = True
    other = x.clone()
    other[:, 6:] = 99.0
    assert float(head.loss(cond, x, mask=mask)["loss"].detach()) == float(
        head.loss(cond, other, mask=mask)["loss"].detach()
    )


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: make_head("field", 6, 3, 1, 20.0), "at least 2 samples, got 1"),
        (lambda: make_head("field", 6, 3, 10, 0.0), "fps must be positive, got 0"),
        (lambda: make_head("spline", 6, 3, 10, 20.0), "no head 'spline'"),
        (lambda: make_head("field", 6, 3, 10, 20.0, "x"), 'must be "absolute" or "delta"'),
        (lambda: make_head("field", 6, 3, 10, 20.0, gripper=(3,)), r"gripper channels \(3,\) do not fit 3"),
        (lambda: head_of("field", conditioner="x"), "conditioner must be one of"),
        (
            lambda: head_of("field", "delta").loss(torch.zeros(4, 6), chunks(), velocity=chunks()),
            "increments are velocities",
        ),
        (lambda: head_of("field").loss(torch.zeros(4, 6), chunks(k=9)), r"expected chunks \[B, 10, 3\]"),
        (lambda: NIAFPolicy(NIAFConfig(3, 2, backbone="x")), "backbone must be"),
        (lambda: NIAFPolicy(NIAFConfig(3, 2, backbone="vlm")), "needs vlm"),
        (lambda: NIAFConfig.from_json({"actions": 3}), "not a policy's configuration"),
        (lambda: commands("robocasa"), "calvin or libero, got 'robocasa'"),
    ],
)
def test_bad_values_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action()


def test_a_conditioned_field_beats_constant_velocity_on_held_out_demonstrations():
    data = lasa_task(range(5), 11, stride=0.3, dense=2)
    head = train_head("field", data, 250, seed=0, width=32, batch=64)
    test = lasa_task((5, 6), 11, stride=1.0, dense=21)
    errors = head_errors(head, test)
    assert errors["position"].mean() < errors["constant"].mean()


# --- backbones -------------------------------------------------------------------------------------------------------


def tiny_smolvlm():
    from transformers import AutoConfig

    text = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
            "intermediate_size": 128, "vocab_size": 100, "pad_token_id": 0}  # fmt: skip
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
    }
    return AutoConfig.for_model(
        "smolvlm", text_config=text, vision_config=vision, image_token_id=99, scale_factor=2, pad_token_id=0
    )


def smolvlm_batch():
    torch.manual_seed(0)
    images = torch.full((2, 4), 99)  # 16 patches, shuffled by 2 x 2
    words = torch.randint(1, 90, (2, 5))
    return {
        "input_ids": torch.cat([images, words], 1),
        "attention_mask": torch.ones(2, 9, dtype=torch.long),
        "pixel_values": torch.rand(2, 1, 3, 32, 32),
    }


def test_a_tiny_vlm_sends_gradients_to_queries_and_vision_tower():
    backbone = VLMBackbone.from_config(tiny_smolvlm(), 15)
    assert backbone.out_dim == 64
    head = make_head("field", 64, 3, 10, 20.0, conditioner="grouped", width=16, groups=4)
    z = backbone(smolvlm_batch())
    assert z.shape == (2, 15, 64)
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.01 * torch.randn(p.shape))
    head.loss(z, chunks(2))["loss"].backward()
    assert float(backbone.queries.grad.abs().sum()) > 0
    vision = [p.grad for n, p in backbone.model.named_parameters() if "vision" in n and p.grad is not None]
    assert sum(float(g.abs().sum()) for g in vision) > 0


def test_queries_see_each_other_and_the_prompt_and_the_prompt_does_not_see_them():
    mask = query_mask(torch.tensor([[0, 1, 1]]), 2, torch.float32)[0, 0] == 0
    assert mask.tolist() == [
        [True, False, False, False, False],
        [False, True, False, False, False],
        [False, True, True, False, False],
        [False, True, True, True, True],
        [False, True, True, True, True],
    ]
    backbone = VLMBackbone.from_config(tiny_smolvlm(), 4).eval()
    batch = smolvlm_batch()
    z = backbone(batch)
    (g,) = torch.autograd.grad(z[0, 0].sum(), backbone.queries, retain_graph=True)
    assert float(g[-1].abs().sum()) > 0  # the first query hears the last
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, -1] = 1 + batch["input_ids"][0, -1] % 88
    changed = backbone(other)
    assert not torch.allclose(changed[0], z[0])
    torch.testing.assert_close(changed[1], z[1])


def test_florence2_takes_queries_as_decoder_inputs():
    from transformers import AutoConfig

    text = {"model_type": "bart", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
            "decoder_start_token_id": 2, "forced_eos_token_id": None}  # fmt: skip
    vision = {"embed_dim": (8, 16), "depths": (1, 1), "num_heads": (2, 2), "num_groups": (2, 2), "patch_size": (7, 3), "patch_stride": (4, 2),
              "patch_padding": (3, 1), "patch_prenorm": (False, True), "window_size": 4, "projection_dim": 32}  # fmt: skip
    config = AutoConfig.for_model("florence2", text_config=text, vision_config=vision, image_token_id=99)
    backbone = Florence2Backbone.from_config(config, 6)
    z = backbone({"input_ids": torch.randint(3, 90, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)})
    assert z.shape == (2, 6, 32)
    (g,) = torch.autograd.grad(z[0, 0, 0], backbone.queries)  # not the sum: a layer norm keeps it constant
    assert float(g[-1].abs().sum()) > 0


def test_act_encoder_and_words():
    encoder = ACTEncoder(4, ["observation.images.top"], 32, 1, 4)
    tokens = encoder({"observation.state": torch.randn(2, 4), "observation.images.top": torch.rand(2, 3, 64, 64)})
    assert tokens.shape == (2, 1 + 4, 32)
    states = StateEncoder(4, 16)
    a, b = states({"observation.state": torch.zeros(2, 4), "task": ["open the drawer", "close the drawer"]})
    assert not torch.allclose(a, b)
    with pytest.raises(ValueError, match=r"no 'observation.state'"):
        states({"task": ["x"]})


# --- policies --------------------------------------------------------------------------------------------------------


def dataset(folder, episodes=6, n=40, delta=False):
    rng, made = np.random.default_rng(0), []
    for _ in range(episodes):
        t = np.arange(n + 1) / 20
        phase = rng.uniform(0, 3, 2)
        x = np.sin(2 * t[:, None] + phase)
        action = np.diff(x, axis=0) if delta else x[1:]
        gripper = np.sign(np.sin(5 * t[:-1]) + 1e-9)[:, None]
        made.append({"action": np.concatenate([action, gripper], 1).astype(np.float32), "task": "wave",
                     "observation.state": np.concatenate([x[:-1], 2 * np.cos(2 * t[:-1, None] + phase)], 1).astype(np.float32)})  # fmt: skip
    return write_lerobot(folder, made, 20)


def test_a_policy_trains_resumes_saves_and_plays(tmp_path):
    reader = LeRobotReader(dataset(tmp_path / "data"))
    config = config_for(
        reader,
        horizon=8,
        gripper=[2],
        head_options={"width": 16, "groups": 4},
        d_model=32,
        n_action_steps=3,
        learning_rate=3e-3,
    )
    options = TrainOptions(steps=120, batch_size=32, save_every=60)
    whole = NIAFPolicy(config)
    torch.manual_seed(1)
    start = {k: v.clone() for k, v in whole.state_dict().items()}
    train(whole, reader, options, tmp_path / "whole")
    stopped = NIAFPolicy(config)
    stopped.load_state_dict(start)

    def killed(items):
        for i in items:
            if i == 80:
                raise KeyboardInterrupt
            yield i

    with pytest.raises(KeyboardInterrupt):
        train(stopped, reader, options, tmp_path / "part", killed)
    again = NIAFPolicy(config)
    history = train(again, reader, options, tmp_path / "part")
    for k, v in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[k], v, msg=k)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    errors = evaluate(whole, reader, split_rows(reader, 0.2)[1])
    assert errors["rmse"] < errors["hold_rmse"]
    loaded = NIAFPolicy.load(tmp_path / "whole")
    batch = {"observation.state": torch.randn(2, 4), "task": ["wave", "wave"]}
    torch.testing.assert_close(loaded.predict_action_chunk(batch), whole.predict_action_chunk(batch))
    assert whole.predict_action_chunk(batch, 40.0).shape == (2, 15, 3)
    chunk = whole.predict_action_chunk(batch)
    whole.reset()
    for i in range(3):
        torch.testing.assert_close(whole.select_action(batch), chunk[:, i])
    assert len(whole._queue) == 0
    groups = whole.get_optim_params()
    assert sum(len(g["params"]) for g in groups) == len(list(whole.parameters()))
    (tmp_path / "whole/model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="does not fit"):
        NIAFPolicy.load(tmp_path / "whole")
    with pytest.raises(InputError, match="holds no policy"):
        NIAFPolicy.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="seed 0"):
        train(NIAFPolicy(config), reader, TrainOptions(steps=1, seed=3), tmp_path / "part")


def test_recipes_run_their_first_steps_on_a_tiny_model(tmp_path, capsys):
    """The recipe's own configuration with Florence-2 replaced by a tiny VLM of random weights."""
    data = dataset(tmp_path / "data", 2, 20, delta=True)
    for name in ("calvin", "libero"):
        written = write_recipe(name, tmp_path / name)
        assert [p.name for p in written] == ["config.json", "training.json", "run.sh"]
        config = json.loads(written[0].read_text())
        assert config["head_options"] == {"conditioner": "grouped", "layers": 3, "width": 256, "groups": 64}
        assert config["horizon"] == 10
        assert "niaf.training" in written[2].read_text()
    tiny = tiny_smolvlm().to_dict()
    config |= {"backbone": "vlm", "vlm": tiny, "gripper": [2], "head_options": {"width": 16, "groups": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    main(
        [
            "--data",
            str(data),
            "--config",
            str(tmp_path / "config.json"),
            "--out",
            str(tmp_path / "policy"),
            "--steps",
            "2",
            "--batch-size",
            "2",
        ]
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == 1.0
    assert NIAFPolicy.load(tmp_path / "policy").config.backbone == "vlm"


def test_shared_prior_does_not_decay():
    head = head_of("field")
    groups = head.parameter_groups(1e-3, 0.1)
    prior = {id(p) for p in head.field.parameters()}
    assert {id(p) for p in groups[1]["params"]} == prior
    assert groups[1]["weight_decay"] == 0.0


def test_options_are_what_a_head_is_made_of():
    head = head_of("field", loss=FieldLoss(lambda_jerk=1e-3), omega_first=3.0, omega_hidden=30.0)
    assert head.options == FieldOptions(width=16, groups=4, omega_first=3.0, omega_hidden=30.0)
    assert head.field.omegas == (3.0, 30.0, 30.0)
    assert "jerk" in head.loss(torch.zeros(4, 6), chunks())
