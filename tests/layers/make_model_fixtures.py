# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/models.json for models_golden_test.

The file has options, weights, inputs, outputs and the gradients of
sum(output * slopes), in float64. DeepCTR-Torch computes the pairs of FM and
DeepFM, Dice, MMoE, and DIN with sigmoid or relu. The rest are the formulas of
the papers, written out for one example at a time.

  pip install torch deepctr-torch
  python tests/layers/make_model_fixtures.py
"""

import json
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import deepctr_torch
import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat
from deepctr_torch.layers import DNN, FM
from deepctr_torch.layers.activation import Dice
from deepctr_torch.layers.sequence import AttentionSequencePoolingLayer
from deepctr_torch.models.multitask import MMOE

SEED = 12
OUTPUT = pathlib.Path(__file__).parent.parent / "golden" / "models.json"

random = np.random.default_rng(SEED)
torch.set_default_dtype(torch.float64)


def floats(*shape):
    return torch.tensor(np.round(random.normal(size=shape), 3), requires_grad=True)


def to_json(tensor):
    values = tensor.detach().flatten().tolist()
    return {
        "shape": list(tensor.shape),
        "values": [float(f"{value:.12g}") for value in values],
    }


def all_to_json(tensors):
    return {name: to_json(value) for name, value in tensors.items()}


def case(layer, options, inputs, weights, output, **more):
    """Adds random slopes, and the gradients of sum(output * slopes)."""
    slopes = floats(*output.shape).detach()
    sources = {**inputs, **weights}
    gradients = torch.autograd.grad(
        (output * slopes).sum(), list(sources.values()), materialize_grads=True
    )
    return {
        "layer": layer,
        "options": options,
        "inputs": all_to_json(inputs),
        "weights": all_to_json(weights),
        "output": to_json(output),
        "slopes": to_json(slopes),
        "gradients": all_to_json(dict(zip(sources, gradients))),
        **more,
    }


def randomize(module):
    """Gives every parameter values that float32 and JSON hold in few digits."""
    for parameter in module.parameters():
        parameter.data = floats(*parameter.shape).detach() / 2


# Koren, Bell, Volinsky 2009: r = mu + b_u + b_i + q_i' p_u.
def matrix_factorization_cases():
    for use_biases in [True, False]:
        for batch, dim in [(5, 4), (1, 1), (3, 8)]:
            begin = int(use_biases)
            inputs = {
                "user": floats(batch, begin + dim),
                "item": floats(batch, begin + dim),
            }
            user, item = inputs.values()
            mean = floats(1)
            ratings = []
            for u, i in zip(user, item):
                biases = u[0] + i[0] if use_biases else 0
                ratings.append(mean + biases + torch.dot(u[begin:], i[begin:]))
            yield case(
                "MatrixFactorization",
                {"use_biases": use_biases},
                inputs,
                {"global_mean": mean},
                torch.stack(ratings),
            )


def split(features, use_first_order):
    """Returns the sum of the weights, and the vectors."""
    if not use_first_order:
        return 0, features
    return features[:, :, 0].sum(1, keepdim=True), features[:, :, 1:]


# Rendle 2010.
def factorization_machine_cases():
    for use_first_order in [True, False]:
        for use_bias in [True, False]:
            for shape in [(4, 3, 5), (1, 1, 2), (2, 7, 4)]:
                features = floats(*shape)
                bias = {"bias": floats(1)} if use_bias else {}
                linear, vectors = split(features, use_first_order)
                yield case(
                    "FactorizationMachine",
                    {"use_first_order": use_first_order, "use_bias": use_bias},
                    {"features": features},
                    bias,
                    FM()(vectors) + linear + sum(bias.values()),
                )


# Guo et al. 2017.
def deep_fm_cases():
    for use_first_order in [True, False]:
        for hidden_units, activation in [([6, 3], "relu"), ([4], "sigmoid")]:
            features = floats(5, 3, 4)
            linear, vectors = split(features, use_first_order)
            deep = DNN(vectors[0].numel(), hidden_units, activation, device="cpu")
            last = torch.nn.Linear(hidden_units[-1], 1)
            randomize(deep)
            randomize(last)
            weights = {}
            for i, layer in enumerate([*deep.linears, last]):
                weights[f"mlp.linear_{i}.weight"] = layer.weight
                weights[f"mlp.linear_{i}.bias"] = layer.bias
            yield case(
                "DeepFM",
                {
                    "hidden_units": hidden_units,
                    "activation": activation,
                    "use_first_order": use_first_order,
                },
                {"features": features},
                weights,
                FM()(vectors) + linear + last(deep(vectors.flatten(1))),
            )


def make_dice(dim):
    """Returns DeepCTR's Dice without its scale and offset, as in the paper."""
    dice = Dice(dim)
    dice.alpha.data = floats(dim).detach()
    dice.bn.running_mean.copy_(floats(dim).detach())
    dice.bn.running_var.copy_(floats(dim).detach().square() + 0.5)
    return dice


def buffers_of(dice):
    return {
        "running_mean": to_json(dice.bn.running_mean),
        "running_var": to_json(dice.bn.running_var),
    }


# Zhou et al. 2018, equation 3.
def dice_cases():
    for is_training in [True, False]:
        for batch, dim in [(6, 3), (2, 1)]:
            dice = make_dice(dim).train(is_training)
            before = buffers_of(dice)
            x = floats(batch, dim)
            output = dice(x)
            yield case(
                "Dice",
                {},
                {"x": x},
                {"alpha": dice.alpha},
                output,
                is_training=is_training,
                buffers=before,
                buffers_after=buffers_of(dice),
            )


def linear_weights(linears):
    weights = {}
    for i, linear in enumerate(linears):
        weights[f"linear_{i}.weight"] = linear.weight
        weights[f"linear_{i}.bias"] = linear.bias
    return weights


def din_options(hidden_units, activation, use_softmax):
    return {
        "hidden_units": hidden_units,
        "activation": activation,
        "use_softmax": use_softmax,
    }


# Zhou et al. 2018, equation 5.
def din_cases_of_deepctr():
    for activation in ["sigmoid", "relu"]:
        for use_softmax in [False, True]:
            hidden_units = [5, 3]
            batch, seq, dim = 4, 3, 2
            layer = AttentionSequencePoolingLayer(
                hidden_units,
                activation,
                weight_normalization=use_softmax,
                embedding_dim=dim,
            )
            randomize(layer)
            unit = layer.local_att
            lengths = [3, 1, 2, 3] if use_softmax else [3, 0, 2, 1]
            inputs = {"query": floats(batch, dim), "keys": floats(batch, seq, dim)}
            output = layer(
                inputs["query"].unsqueeze(1),
                inputs["keys"],
                torch.tensor(lengths).unsqueeze(1),
            )
            yield case(
                "DINAttention",
                din_options(hidden_units, activation, use_softmax),
                inputs,
                linear_weights([*unit.dnn.linears, unit.dense]),
                output.squeeze(1),
                lengths=lengths,
            )


class ColumnPReLU(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(floats(dim).detach())

    def forward(self, x):
        return torch.where(x > 0, x, self.weight * x)


def attention(query, keys, lengths, layers, use_softmax):
    """The attention for one example after the other.

    All positions enter the layers together, because Dice needs their statistics.
    """
    rows = torch.stack(
        [
            torch.cat([q, k, q - k, q * k])
            for q, history, length in zip(query, keys, lengths)
            for k in history[:length]
        ]
    )
    scores = list(layers(rows))
    results = []
    for history, length in zip(keys, lengths):
        own = [scores.pop(0) for _ in range(length)]
        if length == 0:
            results.append(torch.zeros_like(history[0]))
            continue
        weights = torch.cat(own)
        if use_softmax:
            weights = weights.softmax(0)
        results.append(sum(w * k for w, k in zip(weights, history)))
    return torch.stack(results)


def din_cases():
    kinds = [("dice", True), ("dice", False), ("prelu", True), ("sigmoid", True)]
    for activation, is_training in kinds:
        for use_softmax in [False, True]:
            hidden_units = [4, 3]
            batch, seq, dim = 4, 5, 3
            lengths = [5, 0, 2, 1]
            linears = [
                torch.nn.Linear(inputs, outputs)
                for inputs, outputs in zip([4 * dim, *hidden_units], [*hidden_units, 1])
            ]
            for linear in linears:
                randomize(linear)
            weights = linear_weights(linears)
            make = {
                "dice": make_dice,
                "prelu": ColumnPReLU,
                "sigmoid": lambda dim: torch.nn.Sigmoid(),
            }
            activations = [make[activation](units) for units in hidden_units]
            buffers = {}
            for i, layer in enumerate(activations):
                layer.train(is_training)
                if activation == "dice":
                    weights[f"activation_{i}.alpha"] = layer.alpha
                    for name, value in buffers_of(layer).items():
                        buffers[f"activation_{i}.{name}"] = value
                elif activation == "prelu":
                    weights[f"activation_{i}.weight"] = layer.weight
            layers = torch.nn.Sequential(
                linears[0], activations[0], linears[1], activations[1], linears[2]
            )
            inputs = {"query": floats(batch, dim), "keys": floats(batch, seq, dim)}
            output = attention(*inputs.values(), lengths, layers, use_softmax)
            yield case(
                "DINAttention",
                din_options(hidden_units, activation, use_softmax),
                inputs,
                weights,
                output,
                lengths=lengths,
                is_training=is_training,
                buffers=buffers,
            )


# Ma et al. 2018, equations 6 and 7.
def mmoe_cases():
    for tasks, experts, hidden in [(["click", "buy"], 3, [4]), (["a", "b", "c"], 2, [])]:
        width, expert_units = 5, [6, 3]
        model = MMOE(
            [DenseFeat("x", width)],
            num_experts=experts,
            expert_dnn_hidden_units=expert_units,
            gate_dnn_hidden_units=[],
            tower_dnn_hidden_units=hidden,
            task_types=["regression"] * len(tasks),
            task_names=tasks,
        )
        model.double()
        randomize(model)
        gates = torch.cat([gate.weight for gate in model.gate_dnn_final_layer])
        gates = gates.detach().requires_grad_()
        for gate, weight in zip(model.gate_dnn_final_layer, gates.split(experts)):
            del gate.weight
            gate.weight = weight
        weights = {"gates.weight": gates}
        for i, expert in enumerate(model.expert_dnn):
            for name, value in linear_weights(expert.linears).items():
                weights[f"expert_{i}.{name}"] = value
        for i in range(len(tasks)):
            tower = linear_weights(model.tower_dnn[i].linears) if hidden else {}
            for name, value in tower.items():
                weights[f"tower_{i}.{name}"] = value
            last = f"tower_{i}.linear_{len(hidden)}"
            weights[f"{last}.weight"] = model.tower_dnn_final_layer[i].weight
            weights[f"{last}.bias"] = model.out[i].bias
        x = floats(4, width)
        yield case(
            "MMoE",
            {
                "tasks": tasks,
                "num_experts": experts,
                "expert_units": expert_units,
                "tower_units": [*hidden, 1],
            },
            {"x": x},
            weights,
            model(x),
        )


def main():
    cases = [
        *matrix_factorization_cases(),
        *factorization_machine_cases(),
        *deep_fm_cases(),
        *dice_cases(),
        *din_cases_of_deepctr(),
        *din_cases(),
        *mmoe_cases(),
    ]
    versions = {"torch": torch.__version__, "deepctr-torch": deepctr_torch.__version__}
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUTPUT.write_text(
        f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n'
    )
    print(f"{OUTPUT.name}: {len(cases)} cases, {versions}")


if __name__ == "__main__":
    main()
