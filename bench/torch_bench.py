#!/usr/bin/env python3
"""Measures PyTorch's figures for the work that Tenon's page of measurements compares.

    python3 bench/torch_bench.py bench/runs/<date>-<device>.torch.json

Run it on the same machine and occasion as the benchmarks, when nothing else uses the GPU. It takes about three minutes on an H200 with
PyTorch 2.11; the group resnet_compiled takes minutes alone and runs where --group names it. Names and units are those of the catalogue in
internal/benchrun. What fails or finds no time left is listed under "failed" with the reason; the file is written after every figure, so
that a run that is cut short keeps what it has.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time
import timeit

import torch
import torch.nn.functional as F

STARTED = time.monotonic()


class Results:
    """The figures measured so far, and the file that they go to."""

    def __init__(self, path, deadline, earlier=False):
        self.path, self.deadline = path, deadline
        self.content = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name(0),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "figures": [],
            "failed": {},
        }
        if earlier and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                content = json.load(f)
            if content["device"] != self.content["device"] or content["torch"] != self.content["torch"]:
                sys.exit(f"torch_bench: {path} is of another device or version")
            self.content = content

    def add(self, name, unit, samples, note=""):
        figure = {
            "name": name,
            "unit": unit,
            "median": statistics.median(samples),
            "min": min(samples),
            "max": max(samples),
            "n": len(samples),
        }
        if note:
            figure["note"] = note
        self.content["figures"] = [f for f in self.content["figures"] if f["name"] != name] + [figure]
        print(f"{time.monotonic() - STARTED:6.1f} s  {name:20} {figure['median']:10.4g} {unit}", flush=True)
        self.write()

    def write(self):
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(self.content, f, indent="\t", ensure_ascii=False)
            f.write("\n")

    def run(self, measure):
        """Runs one group of measurements; a failure is listed and the next group runs."""
        name = measure.__name__
        self.content["failed"].pop(name, None)
        if time.monotonic() - STARTED > self.deadline:
            self.content["failed"][name] = f"no time left after {self.deadline:g} s"
        else:
            try:
                measure(self)
            except Exception as e:  # a figure that one version cannot give must not cost the others
                self.content["failed"][name] = f"{type(e).__name__}: {e}"[:500]
        if name in self.content["failed"]:
            print(f"{time.monotonic() - STARTED:6.1f} s  {name}: {self.content['failed'][name]}", flush=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.write()

    def apart(self, measure, seconds):
        """Runs a group in a process of its own, which may take so long whatever the time that is left, and takes over its figures."""
        name = measure.__name__
        path = f"{self.path}.{name}"
        try:
            subprocess.run([sys.executable, __file__, path, "--group", name], check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            self.content["failed"][name] = f"not done after {seconds:g} s"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                part = json.load(f)
            os.remove(path)
            self.content["figures"] += part["figures"]
            self.content["failed"] |= part["failed"]
        elif name not in self.content["failed"]:
            self.content["failed"][name] = "its process left no figures"
        self.write()


def issue(statement, names, inner=1000, repeats=30):
    """Host microseconds per execution of a statement, the device idle at the start of each repetition and not waited for."""
    timer = timeit.Timer(statement, globals=names)
    timer.timeit(inner)
    torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        samples.append(timer.timeit(inner) / inner * 1e6)
        torch.cuda.synchronize()
    return samples


def completion(step, inner=50, repeats=10, warm=10):
    """Microseconds per step, from the first issue to the end of the last one's work."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inner):
            step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - began) / inner * 1e6)
    return samples


def device_seconds(work, repeats=12, warm=3):
    """Device seconds of single executions, by events."""
    for _ in range(warm):
        work()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize()
    for begin, end in pairs:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


def overhead(r):
    device = torch.device("cuda", 0)
    x, y = torch.randn(1024, device=device), torch.randn(1024, device=device)
    r.add("add", "µs", issue("x + y", {"x": x, "y": y}), "1024 elements f32")
    r.add("empty", "µs", issue("empty(1024, device=device)", {"empty": torch.empty, "device": device}), "1024 elements f32")
    event = torch.cuda.Event()
    event.record()
    r.add("event.record", "µs", issue("event.record()", {"event": event}), "without timing")
    names = {"stream": torch.cuda.stream, "other": torch.cuda.Stream()}
    r.add("stream.switch", "µs", issue("with stream(other): pass", names), "there and back")


def graphs(r):
    x = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(100):
            x.add_(1)
    # Few replays a repetition, so that the launch queue does not fill and the issue does not wait.
    r.add("graph.issue", "µs", issue("replay()", {"replay": graph.replay}, inner=5, repeats=100), "100 adds of 1024 elements")

    def replay_and_wait():
        graph.replay()
        torch.cuda.synchronize()

    r.add("graph.replay", "µs", completion(replay_and_wait, inner=20, repeats=30), "100 adds of 1024 elements, each replay waited for")


class MLP:
    """One training step of the network 784-512-256-10 with ReLU, cross-entropy and fused Adam, batch 256, float32 without TF32."""

    def __init__(self, capturable=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        ).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True, capturable=capturable)
        self.x = torch.randn(256, 784, device="cuda")
        self.y = torch.randint(0, 10, (256,), device="cuda")
        self.loss = self.forward

    def forward(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.x, self.y).backward()
        self.optimizer.step()


def mlp_eager(r):
    r.add("mlp.eager", "µs", completion(MLP().step))


def mlp_graph(r):
    m = MLP(capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            m.step()
    torch.cuda.current_stream().wait_stream(side)
    m.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        m.loss(m.x, m.y).backward()
        m.optimizer.step()
    r.add("mlp.graph", "µs", completion(graph.replay, inner=200))


def mlp_compiled(r):
    m = MLP()
    model = m.model

    def forward(x, y):
        return F.cross_entropy(model(x), y)

    m.loss = torch.compile(forward)
    r.add("mlp.compiled", "µs", completion(m.step), "torch.compile of forward and loss, fused Adam outside")


class GPT2Block(torch.nn.Module):
    """Attention and a perceptron, each after a layer norm and added to what came in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x, attend):
        batch, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).split(width, dim=2)
        heads = [p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts]
        x = x + self.out(attend(*heads).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))


class GPT2(torch.nn.Module):
    """The model of 124 million parameters with random weights; the last layer's weight is the table of tokens, padded to 50,304."""

    LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 12, 768, 50304, 1024

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.positions = torch.nn.Embedding(self.CONTEXT, self.WIDTH)
        self.blocks = torch.nn.ModuleList(GPT2Block(self.WIDTH, self.HEADS) for _ in range(self.LAYERS))
        self.norm = torch.nn.LayerNorm(self.WIDTH)
        for module in self.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                torch.nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.zeros_(module.bias)

    def logits(self, tokens, positions, attend):
        x = self.tokens(tokens) + self.positions(positions)
        for number, block in enumerate(self.blocks):
            x = block(x, lambda q, k, v: attend(number, q, k, v))
        return F.linear(self.norm(x), self.tokens.weight)

    def forward(self, tokens, want):
        def attend(_, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        logits = self.logits(tokens, torch.arange(tokens.shape[1], device=tokens.device), attend)
        return F.cross_entropy(logits.flatten(0, 1), want.flatten())


class Training:
    """A language model's training step: bf16 autocast, clipped gradients, fused AdamW whose rate is a tensor that a schedule fills."""

    def __init__(self, model):
        torch.manual_seed(0)
        self.model = model().cuda()
        self.loss = self.model
        self.rate = torch.tensor(6e-4, device="cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        shape = (8, model.CONTEXT)
        self.tokens, self.want = (torch.randint(0, model.VOCABULARY, shape, device="cuda") for _ in range(2))
        self.steps = 0

    def step(self):
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss(self.tokens, self.want)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        self.rate.fill_(6e-5 + (6e-4 - 6e-5) * (1 + math.cos(math.pi * self.steps / 1000)) / 2)
        self.optimizer.zero_grad(set_to_none=True)


def training_figures(r, name, training, note):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(3):
        training.step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    samples = completion(training.step, inner=5, repeats=6, warm=2)
    r.add(name, "ms", [s / 1e3 for s in samples], note)
    r.add(f"{name}.peak", "GiB", [torch.cuda.max_memory_allocated() / 2**30], note)
    r.add(f"{name}.reserved", "GiB", [torch.cuda.max_memory_reserved() / 2**30], note)
    return first


def gpt2_eager(r):
    training_figures(r, "gpt2.eager", Training(GPT2), "scaled_dot_product_attention, fused AdamW")


def gpt2_compiled(r):
    training = Training(GPT2)
    training.loss = torch.compile(training.model)
    seconds = training_figures(r, "gpt2.compiled", training, "torch.compile of forward and loss, clipping and fused AdamW outside")
    r.add("gpt2.compile", "s", [seconds], "the first three steps")


class LlamaBlock(torch.nn.Module):
    """Attention of grouped heads with rotated positions, and a gated perceptron, each after an RMS norm and added to what came in."""

    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, self.head = heads, key_heads, width // heads
        linear = lambda ins, outs: torch.nn.Linear(ins, outs, bias=False)  # noqa: E731
        self.attention_norm, self.mlp_norm = torch.nn.RMSNorm(width, eps=1e-5), torch.nn.RMSNorm(width, eps=1e-5)
        self.q, self.out = linear(width, width), linear(width, width)
        self.k, self.v = linear(width, key_heads * self.head), linear(width, key_heads * self.head)
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    @staticmethod
    def rotate(t, cos, sin):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(t.dtype)

    def forward(self, x, cos, sin):
        h = self.attention_norm(x)
        batch, length, width = h.shape
        q, k, v = (m(h).view(batch, length, -1, self.head).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(torch.nn.Module):
    """A model with Llama's parts, 201 million parameters and random weights."""

    LAYERS, HEADS, KEY_HEADS, WIDTH, HIDDEN, VOCABULARY, CONTEXT = 12, 16, 4, 1024, 2816, 32000, 1024

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(self.VOCABULARY, self.WIDTH)
        sizes = (self.WIDTH, self.HEADS, self.KEY_HEADS, self.HIDDEN)
        self.blocks = torch.nn.ModuleList(LlamaBlock(*sizes) for _ in range(self.LAYERS))
        self.norm = torch.nn.RMSNorm(self.WIDTH, eps=1e-5)
        self.head = torch.nn.Linear(self.WIDTH, self.VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                torch.nn.init.normal_(module.weight, std=0.02)
        head = self.WIDTH // self.HEADS
        speeds = torch.exp(torch.arange(head // 2) * (-2 * math.log(10000) / head))
        angles = torch.outer(torch.arange(self.CONTEXT).float(), speeds)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, want):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), want.flatten())


def llama_eager(r):
    training_figures(r, "llama.eager", Training(Llama), "scaled_dot_product_attention, fused AdamW")


def llama_compiled(r):
    training = Training(Llama)
    training.loss = torch.compile(training.model)
    training_figures(r, "llama.compiled", training, "torch.compile of forward and loss, clipping and fused AdamW outside")


class ResNetWork:
    """ResNet-50's training step and inference: 64 images of 224 by 224, bf16 autocast, channels last, SGD with momentum."""

    def __init__(self):
        import torchvision

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        self.model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        self.forward = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, fused=True)
        self.images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (64,), device="cuda")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()

    def infer(self, count):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            return self.forward(self.images[:count])

    def train(self, r, name, step, note):
        torch.cuda.reset_peak_memory_stats()
        r.add(f"resnet.train.{name}", "ms", [s / 1e3 for s in completion(step, inner=10, repeats=6)], note)
        r.add(f"resnet.train.{name}.peak", "GiB", [torch.cuda.max_memory_allocated() / 2**30], note)


def resnet_eager(r):
    work = ResNetWork()
    try:
        work.train(r, "eager", work.step, "cuDNN's benchmark, fused SGD")
        work.train(r, "graph", in_graph(work.step), "cuDNN's benchmark, fused SGD")
        work.model.eval()
        for count in (1, 64):
            for name, infer in (("eager", lambda: work.infer(count)), ("graph", in_graph(lambda: work.infer(count)))):
                r.add(f"resnet.infer.{count}.{name}", "ms", [s / 1e3 for s in completion(infer, inner=20)], "cuDNN's benchmark")
    finally:
        torch.backends.cudnn.benchmark = False


def resnet_compiled(r):
    note = "torch.compile with max-autotune"
    work = ResNetWork()
    work.forward = torch.compile(work.model, mode="max-autotune")
    work.model.eval()
    for count in (1, 64):
        r.add(f"resnet.infer.{count}.compiled", "ms", [s / 1e3 for s in completion(lambda: work.infer(count), inner=20)], note)
    work.model.train()
    work.train(r, "compiled", work.step, note + ", fused SGD outside")


class UNet(torch.nn.Module):
    """The U-Net of Tenon's zoo: two steps down, two up, with a transposed convolution and a bilinear interpolation."""

    def __init__(self):
        super().__init__()

        def block(ins, outs):
            layers = []
            for i in (ins, outs):
                layers += [torch.nn.Conv2d(i, outs, 3, padding=1), torch.nn.GroupNorm(8, outs), torch.nn.SiLU()]
            return torch.nn.Sequential(*layers)

        self.down1, self.down2, self.middle = block(3, 32), block(32, 64), block(64, 128)
        self.up2, self.up2_block = torch.nn.ConvTranspose2d(128, 64, 2, stride=2), block(128, 64)
        self.up1_block, self.out = block(96, 32), torch.nn.Conv2d(32, 3, 1)

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        y = self.up2(self.middle(F.avg_pool2d(second, 2)))
        y = F.interpolate(self.up2_block(torch.cat([y, second], 1)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.up1_block(torch.cat([y, first], 1)))


class Bert(torch.nn.Module):
    """transformers' BERT that tells three classes apart, with the usual dropout of a tenth."""

    def __init__(self):
        super().__init__()
        import transformers

        config = transformers.BertConfig(num_labels=3)
        config._attn_implementation = "sdpa"
        self.model = transformers.BertForSequenceClassification(config)

    def forward(self, ids, there):
        return self.model(input_ids=ids, attention_mask=there).logits


def zoo(r, way, wrap):
    import torchvision

    images = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (64,), device="cuda")
    small = torch.randn(64, 3, 128, 128, device="cuda")
    there = (torch.arange(512)[None] < torch.tensor([512, 320, 136]).repeat(11)[:32, None]).long().cuda()
    words = (torch.randint(0, 30522, (32, 512), device="cuda"), there)
    classes = torch.randint(0, 3, (32,), device="cuda")
    last = torch.channels_last
    for name, model, inputs, loss, layout in (
        ("bert", Bert, words, lambda out: F.cross_entropy(out, classes), None),
        ("convnext_tiny", lambda: torchvision.models.convnext_tiny(stochastic_depth_prob=0.0), (images,),
         lambda out: F.cross_entropy(out, labels), last),
        ("mobilenet_v2", lambda: torchvision.models.mobilenet_v2(dropout=0.0), (images,), lambda out: F.cross_entropy(out, labels), last),
        ("unet", UNet, (small,), lambda out: F.mse_loss(out, small), last),
        ("vit_b_16", torchvision.models.vit_b_16, (images,), lambda out: F.cross_entropy(out, labels), None),
    ):
        torch.cuda.empty_cache()
        net = model().cuda().train()
        if layout is not None:
            net, inputs = net.to(memory_format=layout), tuple(i.contiguous(memory_format=layout) for i in inputs)
        forward = wrap(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                value = loss(forward(*inputs))
            value.backward()
            optimizer.step()

        for _ in range(3):
            step()
        torch.cuda.reset_peak_memory_stats()
        r.add(f"zoo.{name}.{way}", "ms", [s / 1e3 for s in completion(step, inner=5, repeats=6, warm=2)], "fused AdamW")
        if way == "eager":  # the allocator does not count what graphs use
            r.add(f"zoo.{name}.{way}.peak", "GiB", [torch.cuda.max_memory_allocated() / 2**30], "fused AdamW")
        del net, forward, optimizer


def zoo_eager(r):
    torch.backends.cudnn.benchmark = True
    try:
        zoo(r, "eager", lambda net: net)
    finally:
        torch.backends.cudnn.benchmark = False


def zoo_compiled(r):
    zoo(r, "compiled", lambda net: torch.compile(net, mode="reduce-overhead"))


def few_queries(r):
    """Attention of one query to caches, under a mask that hides the last keys."""
    calls = 20
    for b, h, kv, s, d in ((1, 12, 12, 1024, 64), (1, 32, 8, 8192, 128), (32, 32, 8, 2048, 128)):
        q = torch.randn(b, h, 1, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(b, kv, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        visible = (torch.arange(s, device="cuda") < s - 5).view(1, 1, 1, -1)

        def all_calls():
            for _ in range(calls):
                F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=h != kv)

        name = f"attention.few.{b}x{h}x{kv}x{s}x{d}"
        r.add(name, "µs", [seconds * 1e6 / calls for seconds in device_seconds(in_graph(all_calls))], "in a graph")


def decoder():
    """A step that writes a token: caches of fixed length are changed in place, and nothing is read."""
    torch.manual_seed(0)
    with torch.no_grad():
        model = GPT2().cuda().bfloat16()
        shape = (1, GPT2.HEADS, GPT2.CONTEXT, GPT2.WIDTH // GPT2.HEADS)
        caches = [[torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for _ in range(GPT2.LAYERS)]
        everywhere = torch.arange(GPT2.CONTEXT, device="cuda")
        token = torch.full((1, 1), 11, device="cuda")
        position = torch.zeros(1, dtype=torch.long, device="cuda")

        def step():
            seen = (everywhere <= position).view(1, 1, 1, -1)

            def attend(number, q, k, v):
                keys, values = caches[number]
                keys.index_copy_(2, position, k)
                values.index_copy_(2, position, v)
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)

            token.copy_(model.logits(token, position, attend).argmax(-1))
            position.add_(1)

        return step, position, [token, position, everywhere, *sum(caches, []), *model.parameters()]


def decode(r):
    step, _, _ = decoder()
    with torch.no_grad():
        r.add("decode.eager", "µs", completion(step, inner=50, repeats=10), "scaled_dot_product_attention with a mask, index_copy_")


def decode_compiled(r):
    """The better of a compiled step that is captured by hand and one that the compiler puts into CUDA graphs."""
    step, position, static = decoder()
    for tensor in static:
        torch._dynamo.mark_static_address(tensor)
    ways = []
    with torch.no_grad():
        for mode in (None, "reduce-overhead"):
            torch._dynamo.reset()
            position.zero_()
            work = torch.compile(step, mode=mode)
            for _ in range(4):
                work()
            run = work if mode else in_graph(work)
            ways.append((completion(run, inner=50, repeats=10), mode or "compiled, captured as a CUDA graph"))
    r.add("decode.compiled", "µs", *min(ways))


def pools(r):
    calls, aten = 12, torch.ops.aten
    for name, channels, side, dtype, last in (
        ("max", 32, 128, torch.float32, True),
        ("max.first", 32, 128, torch.float32, False),
        ("avg", 64, 64, torch.float32, True),
        ("avg.first", 64, 64, torch.float32, False),
        ("stem", 64, 112, torch.bfloat16, True),
    ):
        layout = torch.channels_last if last else torch.contiguous_format
        x, *grads = (
            torch.randn(64, channels, n, n, device="cuda").to(dtype).contiguous(memory_format=layout) for n in (side, side // 2, side // 2)
        )
        size, pad = ([3, 3], [1, 1]) if name == "stem" else ([2, 2], [0, 0])
        forward = lambda i: aten.max_pool2d_with_indices(x, size, [2, 2], pad)
        if name.startswith("avg"):
            backward = lambda i: aten.avg_pool2d_backward(grads[i % 2], x, size, [2, 2], pad, False, True, None)
        else:
            places = forward(0)[1]
            backward = lambda i: aten.max_pool2d_with_indices_backward(grads[i % 2], x, size, [2, 2], pad, [1, 1], False, places)
        for figure, work in ((name, forward), (name + ".backward", backward)):
            if figure != "stem" and work is forward:
                continue

            def all_calls():
                for i in range(calls):
                    work(i)

            r.add("pool." + figure, "µs", [s * 1e6 / calls for s in device_seconds(in_graph(all_calls))], "in a graph")


def bandwidth(r):
    n = r.gib << 28
    moved = 4 * n / 1e12  # one pass over a tensor, in TB
    a, b, c = (torch.empty(n, device="cuda") for _ in range(3))
    a.normal_()
    b.normal_()
    seconds = device_seconds(lambda: c.copy_(a))
    r.add("copy", "TB/s", [2 * moved / s for s in seconds])
    r.add("copy.time", "ms", [s * 1e3 for s in seconds])
    r.add("add.large", "TB/s", [3 * moved / s for s in device_seconds(lambda: torch.add(a, b, out=c))])
    r.add("sum", "TB/s", [moved / s for s in device_seconds(lambda: torch.sum(a))])
    square, turned = a.view(-1, 1 << 15).t(), c.view(1 << 15, -1)
    r.add("turn", "TB/s", [2 * moved / s for s in device_seconds(lambda: turned.copy_(square))])
    images = torch.ones(64, 256, 56 * 56, device="cuda", dtype=torch.bfloat16)
    r.add("turn.half", "TB/s", [4 * images.numel() / 1e12 / s for s in device_seconds(lambda: images.permute(0, 2, 1).contiguous())])
    for columns in (768, 2304, 3072):
        calls, matrices = 24, torch.randn(4, 8192, columns, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        matrices[0].sum(0)
        with torch.cuda.graph(graph):
            sums = [matrices[i % 4].sum(0) for i in range(calls)]
        r.add(f"columns.{columns}", "µs", [s * 1e6 / calls for s in device_seconds(graph.replay)], "in a graph")
    pools(r)
    rows = a.view(-1, 1024)
    r.add("softmax", "TB/s", [2 * moved / s for s in device_seconds(lambda: torch.softmax(rows, -1))])
    weight, bias = torch.randn(1024, device="cuda"), torch.randn(1024, device="cuda")
    r.add("layernorm", "TB/s", [2 * moved / s for s in device_seconds(lambda: F.layer_norm(rows, (1024,), weight, bias))])
    r.add("uniform", "TB/s", [moved / s for s in device_seconds(c.uniform_)])
    r.add("normal", "TB/s", [moved / s for s in device_seconds(c.normal_)])
    short = a[: 1 << 28]
    r.add("cumsum", "TB/s", [8 * short.numel() / 1e12 / s for s in device_seconds(lambda: torch.cumsum(short, 0))])
    keys = a[: 1 << 26]
    r.add("sort", "TB/s", [8 * keys.numel() / 1e12 / s for s in device_seconds(lambda: torch.sort(keys), repeats=8)])


def indexed(r):
    words, width, tokens = 50257, 768, 1 << 15
    index = torch.randint(0, words, (tokens,), device="cuda")
    part = torch.ones(tokens, width, device="cuda")
    backward = torch.ops.aten.embedding_dense_backward
    r.add("embedding.backward", "ms", [s * 1e3 for s in device_seconds(lambda: backward(part, index, words, -1, False))])
    places, count = 1 << 20, 1 << 24
    index, part = torch.randint(0, places, (count,), device="cuda"), torch.ones(count, device="cuda")
    sums = torch.zeros(places, device="cuda")
    r.add("scatter.add", "ms", [s * 1e3 for s in device_seconds(lambda: sums.scatter_add_(0, index, part))], "in no fixed order")
    torch.use_deterministic_algorithms(True)
    try:
        seconds = device_seconds(lambda: sums.scatter_add_(0, index, part))
    finally:
        torch.use_deterministic_algorithms(False)
    r.add("scatter.add.fixed", "ms", [s * 1e3 for s in seconds], "with deterministic algorithms")


def optimizers(r):
    def parameters(n, elements):
        ps = [torch.ones(elements, device="cuda", requires_grad=True) for _ in range(n)]
        for p in ps:
            p.grad = torch.full_like(p, 1e-3)
        return ps

    large = parameters(64, 1 << 22)
    elements = 64 * (1 << 22)
    adam = torch.optim.AdamW(large, fused=True)
    r.add("adamw.large", "TB/s", [28 * elements / 1e12 / s for s in device_seconds(adam.step)], "fused")
    del adam
    sgd = torch.optim.SGD(large, momentum=0.9, fused=True)
    r.add("sgd.large", "TB/s", [20 * elements / 1e12 / s for s in device_seconds(sgd.step)], "fused")
    del sgd, large
    small = torch.optim.AdamW(parameters(200, 1000), fused=True)
    scaler = torch.amp.GradScaler(growth_interval=1 << 30)
    scaler.scale(torch.ones((), device="cuda"))

    def scaled():
        scaler.step(small)
        scaler.update()

    for name, step in (("adamw.small", small.step), ("adamw.scaled", scaled)):
        samples = []
        for _ in range(10):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(50):
                step()
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - began) * 1e6 / 50)
        r.add(name, "µs", samples[2:], "fused")


def six_ops(x):
    """The six-op pointwise chain: two scalar ops, a maximum, a scalar op, a transcendental, a scalar op."""
    return ((x * 1.5 + 0.25).relu() * -0.5).exp() - 1.0


def chain_eager(r):
    x = torch.randn(r.gib << 28, device="cuda")
    with torch.no_grad():
        r.add("chain", "ms", [s * 1e3 for s in device_seconds(lambda: six_ops(x))])


def chain_compiled(r):
    x = torch.randn(r.gib << 28, device="cuda")
    fused = torch.compile(six_ops)
    with torch.no_grad():
        r.add("chain.compiled", "ms", [s * 1e3 for s in device_seconds(lambda: fused(x))])


def in_graph(work):
    """A function that replays work as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def fusions(r):
    rows, width, classes = 8192, 4096, 50304
    h, residual = (torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w, bias = (torch.randn(width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tall, other = (torch.randn(1 << 20, 1024, device="cuda") for _ in range(2))
    row, factor = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((1, 8192), (28672, 1)))
    weight = torch.randint(127, (28672, 8192), device="cuda", dtype=torch.int8)

    def written_out():  # an RMS norm
        f = h.float()
        return (f * torch.rsqrt((f * f).mean(1, keepdim=True) + 1e-6)).to(torch.bfloat16) * w

    def written_layer_norm():
        f = h.float()
        d = f - f.mean(1, keepdim=True)
        d = d * torch.rsqrt((d * d).mean(1, keepdim=True) + 1e-5)
        return d.to(torch.bfloat16) * w + bias

    def written_softmax():
        e = torch.exp((tall - tall.amax(1, keepdim=True)) * 0.125)
        return e / e.sum(1, keepdim=True)

    cases = (
        ("rmsnorm", 100, lambda: F.rms_norm(h + residual, (width,), w)),
        ("gelu", 100, lambda: F.gelu(h + bias, approximate="tanh")),
        ("softmax", 100, lambda: torch.softmax(torch.where(h > 0, h * 0.125, -1e4), 1)),
        ("layernorm", 5, lambda: F.silu(F.layer_norm(tall, (1024,)))),
        ("sine", 5, lambda: torch.sigmoid(torch.relu(torch.sin(tall * 2 + 1)).exp())),
        ("exp", 5, lambda: torch.relu((torch.exp(tall) * 2 + 1) * tall - 0.5) * 0.25),
        ("distance", 5, lambda: torch.square(tall - other).mean()),
        ("columns", 100, lambda: (h * residual).sum(0)),
        ("dots", 100, lambda: (h * residual).sum(1)),
        ("moments", 100, lambda: (h * h).mean(1) - h.mean(1) ** 2),
        ("norm", 100, written_out),
        ("normalize", 10, lambda: tall / (tall * tall).sum(1, keepdim=True).sqrt()),
        ("written.layernorm", 100, written_layer_norm),
        ("written.softmax", 10, written_softmax),
        ("quantized", 50, lambda: F.linear(row, weight.to(torch.bfloat16) * factor)),
    )
    # With this option a product of one row is a sum, which can be fused.
    options = {"quantized": {"coordinate_descent_tuning": True}}

    def per_run(work, inner):
        def several():
            for _ in range(inner):
                work()

        return [s * 1e3 / inner for s in device_seconds(several)]

    with torch.no_grad():
        for name, inner, work in cases:
            replay = in_graph(torch.compile(work, options=options.get(name)))
            r.add("fusion." + name, "ms", per_run(replay, inner), "torch.compile in a graph")
    logits = torch.randn(rows, classes, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    want = torch.randint(0, classes, (rows,), device="cuda")

    def entropy(a, t):
        return F.cross_entropy(a.float(), t)

    for name, f in (("fusion.entropy.eager", entropy), ("fusion.entropy", torch.compile(entropy))):

        def step():
            f(logits, want).backward()
            logits.grad = None

        r.add(name, "ms", per_run(step, 5))


def attention(r):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for b, h, t, d, causal in ((8, 12, 1024, 64, True), (4, 16, 2048, 64, False), (8, 16, 1024, 80, False), (2, 8, 1024, 160, False),
                               (2, 8, 2048, 256, True), (4, 32, 4096, 128, True)):
        q, k, v, g = (torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(4))
        name = f"{b}x{h}x{t}x{d}" + (".causal" if causal else "")
        work = 4 * b * h * t * t * d / (2 if causal else 1) / 1e12
        inner = 10
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if d <= 128 else contextlib.nullcontext():

            def forward():
                with torch.no_grad():
                    for _ in range(inner):
                        F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            kernel = "cuDNN" if d <= 128 else "the kernel that PyTorch chooses"
            r.add("attention." + name, "TFLOP/s", [work * inner / s for s in device_seconds(forward)], kernel)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def backward():
                for _ in range(inner):
                    torch.autograd.grad(out, (q, k, v), g, retain_graph=True)

            r.add("attention.backward." + name, "TFLOP/s", [2.5 * work * inner / s for s in device_seconds(backward)],
                  kernel + ", not deterministic")


def masked_attention(r):
    """Attention as BERT trains it: with a mask of padding, dropout or both; and with a bias that is learned, as in T5."""
    b, h, n, d, inner = 32, 12, 512, 64, 10
    q, k, v, g = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(4))
    lengths = torch.tensor([512, 320, 136], device="cuda").repeat(11)[:b]
    padding = torch.arange(n, device="cuda") < lengths.view(b, 1, 1, 1)
    bias = torch.randn(1, h, n, n, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for name, mask, p in (("none", None, 0.0), ("bias", bias, 0.0), ("padding", padding, 0.0), ("dropout", None, 0.1),
                          ("both", padding, 0.1)):
        leaves = (q, k, v, bias) if name == "bias" else (q, k, v)

        def attend():
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)

        def forward():
            with torch.no_grad():
                for _ in range(inner):
                    attend()

        r.add("attention.bert." + name, "ms", [s * 1e3 / inner for s in device_seconds(forward)], "the kernel that PyTorch chooses")
        out = attend()

        def backward():
            for _ in range(inner):
                torch.autograd.grad(out, leaves, g, retain_graph=True)

        r.add("attention.bert.backward." + name, "ms", [s * 1e3 / inner for s in device_seconds(backward)],
              "the kernel that PyTorch chooses, not deterministic")


def matmul(r):
    n = 8192
    work = 2 * n**3 / 1e12
    for name, dtype, tf32 in (
        ("matmul.bf16", torch.bfloat16, False),
        ("matmul.f16", torch.float16, False),
        ("matmul.f32", torch.float32, False),
        ("matmul.tf32", torch.float32, True),
    ):
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            a, b = torch.randn(n, n, device="cuda").to(dtype), torch.randn(n, n, device="cuda").to(dtype)
            out = torch.empty(n, n, device="cuda", dtype=dtype)
            r.add(name, "TFLOP/s", [work / s for s in device_seconds(lambda: torch.mm(a, b, out=out))], "normal random data")
        finally:
            torch.set_float32_matmul_precision("highest")


def matmul_sizes(r):
    sizes = [(n, n, n) for n in (256, 512, 768, 1024, 1536, 2048, 3072, 4096)]
    sizes += [(4096, 1024, 4096), (128, 4096, 4096), (4096, 4096, 128), (8192, 64, 8192), (2048, 8192, 2048)]
    for kind, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("tf32", torch.float32), ("f32", torch.float32)):
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        try:
            for m, k, n in sizes:
                a, b = torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype)
                out = torch.empty(m, n, device="cuda", dtype=dtype)
                work = 2 * m * k * n
                calls = max(1, min(20, int(4e11 / work)))
                torch.mm(a, b, out=out)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(calls):
                        torch.mm(a, b, out=out)
                name = f"matmul.{kind}.{m}" if m == k == n else f"matmul.{kind}.{m}x{k}x{n}"
                r.add(name, "TFLOP/s", [work * calls / 1e12 / s for s in device_seconds(graph.replay)], "normal random data, from a graph")
        finally:
            torch.set_float32_matmul_precision("highest")


def model_products(r):
    rows = 8 * 1024
    layers = {
        "gpt2": (("qkv", 768, 2304), ("out", 768, 768), ("up", 768, 3072), ("down", 3072, 768), ("head", 768, 50304)),
        "llama": (("query", 1024, 1024), ("key", 1024, 256), ("up", 1024, 2816), ("down", 2816, 1024), ("head", 1024, 32000)),
    }
    for model, layer, k, n in ((model, *layer) for model in layers for layer in layers[model]):
        x, w, grad = (torch.randn(*s, device="cuda").to(torch.bfloat16) for s in ((rows, k), (n, k), (rows, n)))
        work = 2 * rows * k * n
        calls = max(1, min(20, int(4e11 / work)))
        for name, a, b in (("forward", x, w.t()), ("input", grad, w), ("weight", grad.t(), x)):
            out = torch.mm(a, b)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    torch.mm(a, b, out=out)
            figures = [work * calls / 1e12 / s for s in device_seconds(graph.replay)]
            r.add(f"{model}.product.{layer}.{name}", "TFLOP/s", figures, "normal random data, from a graph")


def row_products(r):
    for k, n in ((2048, 8192), (8192, 2048), (2048, 2048), (4096, 14336), (2048, 128256)):
        x = torch.randn(1, k, device="cuda").to(torch.bfloat16)
        count = max(2, (256 << 20) // (2 * k * n))
        matrices = [torch.randn(n, k, device="cuda").to(torch.bfloat16) for _ in range(count)]
        out = torch.mm(x, matrices[0].t())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for matrix in (1 + 64 // count) * matrices:  # enough for the start of a graph not to count
                torch.mm(x, matrix.t(), out=out)
        figures = [s * 1e6 / (count * (1 + 64 // count)) for s in device_seconds(graph.replay)]
        r.add(f"row.{k}x{n}", "µs", figures, "from a graph, over 256 MiB of matrices")


def convolution(r):
    batch, channels, side = 64, 256, 56
    x, grad = (torch.randn(batch, channels, side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(channels, channels, 3, 3, device="cuda", dtype=torch.bfloat16)
    work = 2 * batch * side * side * channels * channels * 9 / 1e12
    rest = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    backward = torch.ops.aten.convolution_backward
    for name, f in (
        ("conv.forward", lambda: F.conv2d(x, w, padding=1)),
        ("conv.input", lambda: backward(grad, x, w, *rest, [True, False, False])),
        ("conv.weight", lambda: backward(grad, x, w, *rest, [False, True, False])),
    ):
        r.add(name, "TFLOP/s", [work / s for s in device_seconds(f)], "cuDNN, channels first")


def snapshot(r):
    torch.cuda.memory._record_memory_history(max_entries=40000, stacks="python")
    try:
        for _ in range(20000):
            torch.empty(1024, device="cuda")
        samples = []
        for _ in range(3):
            began = time.perf_counter()
            torch.cuda.memory._snapshot()
            samples.append((time.perf_counter() - began) * 1e3)
        r.add("snapshot", "ms", samples, "40,000 events with Python stacks")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def start(r):
    program = "import torch; x = torch.ones(1, device='cuda'); x = x + x; torch.cuda.synchronize()"
    samples = []
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
        samples.append(time.perf_counter() - began)
    r.add("start.warm", "s", samples)


def main():
    parser = argparse.ArgumentParser(description="Measure PyTorch's figures for Tenon's page of measurements.")
    parser.add_argument("file", help="where the figures go, as JSON")
    parser.add_argument("--gib", type=int, default=4, help="size of the large tensors (default 4)")
    parser.add_argument("--group", action="append", help="measure this group alone, such as gpt2_eager; may be repeated")
    parser.add_argument("--add", action="store_true", help="keep what the file has of other groups")
    parser.add_argument("--seconds", type=float, default=150, help="begin nothing new after this time (default 150)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_bench: PyTorch sees no GPU here")
    results = Results(arguments.file, arguments.seconds, arguments.add)
    results.gib = arguments.gib
    groups = (overhead, mlp_eager, mlp_graph, graphs, gpt2_eager, llama_eager, resnet_eager, zoo_eager, decode, few_queries, bandwidth,
              optimizers, indexed, chain_eager, fusions, attention, masked_attention, matmul, matmul_sizes, model_products,
              row_products, convolution, snapshot, chain_compiled, mlp_compiled, start)
    if arguments.group:
        apart = (gpt2_compiled, llama_compiled, resnet_compiled, zoo_compiled, decode_compiled)
        groups = [group for group in groups + apart if group.__name__ in arguments.group]
    for group in groups:
        results.run(group)
    if not arguments.group:
        results.apart(gpt2_compiled, 200)
        results.apart(llama_compiled, 200)
        results.apart(decode_compiled, 100)
    failed = results.content["failed"]
    print(f"{time.monotonic() - STARTED:6.1f} s  {len(results.content['figures'])} figures, {len(failed)} groups failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
