"""Fit a cubic to a sine, and say on which GPUs: a training as small as can be.

PyTorch does it, on the job's first GPU or else on the CPU; without PyTorch, plain Python.
"""

import argparse
import math
import os
import random

try:
    import torch
except ImportError:
    torch = None

XS = [index / 15 - 1 for index in range(31)]
POWERS = [[x**power for power in range(4)] for x in XS]
SINES = [math.sin(3 * x) for x in XS]


def gradient(weights: list[float]) -> tuple[float, list[float]]:
    """Return the mean square error of a cubic, and its derivatives by the weights."""
    errors = [sum(w * x for w, x in zip(weights, p)) - y for p, y in zip(POWERS, SINES)]
    slopes = [2 * sum(e * p[k] for e, p in zip(errors, POWERS)) / len(XS) for k in range(4)]
    return sum(e * e for e in errors) / len(XS), slopes


def gradient_by_torch(weights: list[float]) -> tuple[float, list[float]]:
    """Return the same, computed by PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cubic = torch.tensor(weights, device=device, requires_grad=True)
    values = torch.tensor(POWERS, device=device) @ cubic
    loss = torch.nn.functional.mse_loss(values, torch.tensor(SINES, device=device))
    loss.backward()
    return loss.item(), cubic.grad.tolist()


parser = argparse.ArgumentParser(description="Fit a cubic to a sine by gradient descent.")
parser.add_argument("--lr", type=float, default=0.5, help="learning rate")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
print("training on GPUs", os.environ.get("CUDA_VISIBLE_DEVICES", "(all there are)"), flush=True)
random.seed(options.seed)
weights = [random.uniform(-1, 1) for _ in range(4)]
for _ in range(options.steps):
    loss, slopes = (gradient_by_torch if torch else gradient)(weights)
    weights = [w - options.lr * slope for w, slope in zip(weights, slopes)]
print(f"loss {loss:.4g} at learning rate {options.lr:g} after {options.steps} steps")
