"""Records what PyTorch's learning-rate schedules make of the rates and momenta of two groups. It needs no GPU.

usage: python3 schedules.py schedules.json && gzip -9n schedules.json
"""
import json, math, sys, warnings
import torch
from torch.optim import lr_scheduler as S
warnings.filterwarnings("ignore")


def optimizer(kind):
    p = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [p[0]]}, {"params": [p[1]], "lr": 0.02}]
    if kind == "SGD":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.1)


def rates(o):
    return [float(g["lr"]) for g in o.param_groups]


def momenta(o):
    return [float(g["betas"][0] if "betas" in g else g.get("momentum", 0)) for g in o.param_groups]


half = lambda t: 0.5 ** (t // 4)
ramp = lambda t: 1 / (1 + t)
near = lambda t: 1 - t / 64
falls = lambda t: 1 / t
env = {**{k: getattr(S, k) for k in S.__all__}, "half": half, "ramp": ramp, "near": near, "falls": falls}

# what is made, with how many steps, by what optimizers, and by what a rate is multiplied by hand before a step
plain = [
    ("StepLR(o, 3, 0.5)", 12),
    ("StepLR(o, 4)", 20),
    ("StepLR(o, 1, 0.97)", 200),
    ("MultiStepLR(o, [2, 5])", 12),
    ("MultiStepLR(o, [5, 2, 5, 9], 0.3)", 14),
    ("ConstantLR(o)", 12),
    ("ConstantLR(o, 0.3, 4)", 12),
    ("ConstantLR(o, 1.0, 3)", 6),
    ("LinearLR(o)", 12),
    ("LinearLR(o, 0.25, 1.0, 4)", 12),
    ("LinearLR(o, 1.0, 0.0, 10)", 14),
    ("LinearLR(o, 0.001, 1.0, 100)", 120),
    ("LinearLR(o, 0.7, 0.1, 7)", 12),
    ("ExponentialLR(o, 0.9)", 100),
    ("ExponentialLR(o, 1.01)", 100),
    ("PolynomialLR(o)", 12),
    ("PolynomialLR(o, 10, 1.0)", 14),
    ("PolynomialLR(o, 10, 2.0)", 14),
    ("PolynomialLR(o, 50, 0.9)", 60),
    ("PolynomialLR(o, 6, 0.0)", 8),
    ("PolynomialLR(o, 100, 0.5)", 110),
    ("PolynomialLR(o, 20, 3.0)", 24),
    ("PolynomialLR(o, 20, 2.5)", 24),
    ("CosineAnnealingLR(o, 5, 0.01)", 40),
    ("CosineAnnealingLR(o, 1)", 8),
    ("CosineAnnealingLR(o, 2, 0.001)", 12),
    ("CosineAnnealingLR(o, 100)", 420),
    ("CosineAnnealingLR(o, 7, 0.05)", 60),
    ("CosineAnnealingLR(o, 1000, 1e-5)", 1010),
    ("CosineAnnealingWarmRestarts(o, 3, 2)", 40),
    ("CosineAnnealingWarmRestarts(o, 1)", 5),
    ("CosineAnnealingWarmRestarts(o, 10, 1, 0.003)", 35),
    ("CosineAnnealingWarmRestarts(o, 7, 3, 1e-4)", 150),
    ("LambdaLR(o, half)", 20),
    ("LambdaLR(o, [half, ramp])", 20),
    ("MultiplicativeLR(o, near)", 20),
    ("MultiplicativeLR(o, [near, falls])", 20),
    ("SequentialLR(o, [ConstantLR(o, 0.1, 20), ExponentialLR(o, 0.9)], [20])", 40),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingLR(o, 20)], [5])", 30),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingLR(o, 20, 0.001)], [3])", 30),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingWarmRestarts(o, 4, 2)], [6])", 30),
    ("SequentialLR(o, [StepLR(o, 2, 0.5), LambdaLR(o, ramp), MultiStepLR(o, [2], 0.3)], [5, 9])", 16),
    ("SequentialLR(o, [StepLR(o, 2, 0.5), MultiplicativeLR(o, near), PolynomialLR(o, 5, 2.0)], [5, 9])", 20),
    ("SequentialLR(o, [ExponentialLR(o, 0.9), ConstantLR(o, 0.5, 3), LinearLR(o, 0.5, 1.0, 4)], [4, 8])", 20),
    ("SequentialLR(o, [ExponentialLR(o, 0.9), ConstantLR(o, 0.5, 3), StepLR(o, 2, 0.5)], [4, 4])", 12),
    ("SequentialLR(o, [ExponentialLR(o, 0.9), MultiplicativeLR(o, falls)], [3])", 8),
    ("SequentialLR(o, [ConstantLR(o, 0.1, 2), SequentialLR(o, [ExponentialLR(o, 0.9), LinearLR(o, 0.5, 1.0, 4)], [3])], [2])", 14),
    ("SequentialLR(o, [SequentialLR(o, [ExponentialLR(o, 0.9), LinearLR(o, 0.5, 1.0, 4)], [3]), ConstantLR(o, 0.1, 2)], [6])", 14),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), ChainedScheduler([ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)])], [3])", 12),
    ("ChainedScheduler([ConstantLR(o, 0.1, 20), ExponentialLR(o, 0.9)])", 40),
    ("ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), StepLR(o, 4, 0.5), MultiStepLR(o, [3, 7], 0.7)])", 16),
    ("ChainedScheduler([ConstantLR(o, 0.5, 5), CosineAnnealingLR(o, 8, 0.01)])", 20),
    ("ChainedScheduler([CosineAnnealingLR(o, 8, 0.01), ConstantLR(o, 0.5, 5)])", 20),
    ("ChainedScheduler([ConstantLR(o, 0.5, 5), LambdaLR(o, ramp)])", 12),
    ("ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), SequentialLR(o, [ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)], [3])])", 12),
]
cycled = [
    ("OneCycleLR(o, 1.0, total_steps=12)", 12),
    ("OneCycleLR(o, 1.0, total_steps=100)", 103),
    ("OneCycleLR(o, [1.0, 0.3], total_steps=40, three_phase=True)", 40),
    ("OneCycleLR(o, 0.7, total_steps=30, anneal_strategy='linear')", 30),
    ("OneCycleLR(o, 0.7, total_steps=30, anneal_strategy='linear', three_phase=True, pct_start=0.4)", 30),
    ("OneCycleLR(o, 2.0, epochs=4, steps_per_epoch=5, pct_start=0.25, div_factor=10.0, final_div_factor=100.0, base_momentum=0.7, "
     "max_momentum=0.99)", 20),
    ("OneCycleLR(o, 2.0, total_steps=20, pct_start=1.0)", 21),
    ("OneCycleLR(o, 2.0, total_steps=20, pct_start=1e-300)", 21),
    ("OneCycleLR(o, 1.0, total_steps=1)", 2),
    ("OneCycleLR(o, 1.0, total_steps=2)", 3),
    ("OneCycleLR(o, 1.0, total_steps=3)", 4),
    ("OneCycleLR(o, 1.0, total_steps=10)", 10),
    ("OneCycleLR(o, 1.0, total_steps=10, three_phase=True, pct_start=0.5)", 10),
    ("OneCycleLR(o, 1.0, total_steps=10, three_phase=True, pct_start=0.8)", 10),
    ("OneCycleLR(o, 1.0, total_steps=50, cycle_momentum=False)", 50),
    ("CyclicLR(o, 0.01, 0.1, step_size_up=5)", 40),
    ("CyclicLR(o, [0.01, 0.001], [0.1, 0.05], step_size_up=5, step_size_down=3, mode='triangular2')", 60),
    ("CyclicLR(o, 0.01, 0.1, step_size_up=10, mode='exp_range', gamma=0.99)", 400),
    ("CyclicLR(o, 0.01, 0.1, step_size_up=7, step_size_down=2, mode='exp_range', gamma=0.5, base_momentum=0.6, max_momentum=0.95)", 40),
    ("CyclicLR(o, 0.01, 0.1)", 100),
    ("CyclicLR(o, 0.01, 0.1, step_size_up=1, step_size_down=1)", 8),
    ("CyclicLR(o, 0.01, 0.1, step_size_up=5, cycle_momentum=False)", 12),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CyclicLR(o, 0.01, 0.1, step_size_up=5)], [5])", 20),
    ("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), OneCycleLR(o, 1.0, total_steps=20)], [5])", 24),
    ("SequentialLR(o, [OneCycleLR(o, 1.0, total_steps=8), ConstantLR(o, 0.5, 3)], [8])", 14),
    ("SequentialLR(o, [CyclicLR(o, 0.01, 0.1, step_size_up=3), ExponentialLR(o, 0.9)], [7])", 14),
    ("ChainedScheduler([OneCycleLR(o, 1.0, total_steps=12), StepLR(o, 4, 0.5)])", 12),
    ("ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), CyclicLR(o, 0.01, 0.1, step_size_up=3)])", 12),
]
runs = []


def run(expr, steps, kind, hand=None):
    r = {"made": expr, "optimizer": kind, "rates": [], "momenta": []}
    if hand:
        r["hand"] = hand
    runs.append(r)
    try:
        o = optimizer(kind)
        s = eval(expr, {**env, "o": o})
        for t in range(steps + 1):
            if t:
                o.step()
                if hand and t in hand["at"]:
                    o.param_groups[0]["lr"] *= hand["by"]
                s.step()
            r["rates"].append(rates(o))
            if expr in dict(cycled):
                r["momenta"].append(momenta(o))
    except Exception as e:
        r["error"] = f"{type(e).__name__}: {e}"


for e, n in plain:
    run(e, n, "SGD")
    if n <= 60:
        run(e, n, "SGD", {"at": [3, 8], "by": 3})
for e, n in cycled:
    for kind in ["SGD", "AdamW"]:
        run(e, n, kind)
    if n <= 60:
        run(e, n, "SGD", {"at": [3, 8], "by": 3})
# the plateau: a metric per step
nan, inf = math.nan, math.inf
series = {"falls and stays": [1 / (1 + t) if t < 6 else 0.15 for t in range(30)],
          "rises": [t / 10 for t in range(30)],
          "zigzag": [1 + (t * 7 % 5) / 50 - t / 200 for t in range(30)],
          "nan": [1.0, nan, nan, nan, 0.5, nan, nan, nan, nan], "first nan": [nan] * 6 + [1.0, 2.0, 2.0, 2.0, 2.0],
          "inf": [inf, inf, inf, 1.0, -inf, -inf, -inf, -inf], "tiny gains": [1 - t * 4e-5 for t in range(30)],
          "negative": [-1 - t * 3e-4 for t in range(20)] + [-1.0] * 10}
plateau = []
for e in ["ReduceLROnPlateau(o)", "ReduceLROnPlateau(o, patience=2)", "ReduceLROnPlateau(o, patience=0, factor=0.5)",
          "ReduceLROnPlateau(o, mode='max', patience=1)",
          "ReduceLROnPlateau(o, patience=1, threshold_mode='abs', threshold=0.01, cooldown=2)",
          "ReduceLROnPlateau(o, mode='max', threshold_mode='abs', patience=2, cooldown=1, factor=0.3)",
          "ReduceLROnPlateau(o, patience=1, min_lr=0.005)", "ReduceLROnPlateau(o, patience=1, min_lr=[0.01, 0.0001])",
          "ReduceLROnPlateau(o, patience=0, eps=0.01)"]:
    for name, m in series.items():
        o = optimizer("SGD")
        s = eval(e, {**env, "o": o})
        r = {"made": e, "metrics": [repr(float(v)) for v in m], "rates": [rates(o)], "bad": [], "best": []}
        for v in m:
            o.step()
            s.step(v)
            r["rates"].append(rates(o))
            r["bad"].append(s.num_bad_epochs)
            r["best"].append(repr(float(s.best)))
        plateau.append(r)


def clean(v):
    if isinstance(v, list):
        return [clean(x) for x in v]
    return v if not isinstance(v, float) or math.isfinite(v) else repr(v)


for r in runs:
    r["rates"], r["momenta"] = clean(r["rates"]), clean(r["momenta"])
    if not r["momenta"]:
        del r["momenta"]
json.dump({"torch": torch.__version__, "runs": runs, "plateau": plateau}, open(sys.argv[1], "w"), separators=(",", ":"))
