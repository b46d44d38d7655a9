"""PyTorch's own allocator, its expandable segments and ds4 on the same work.

Each workload runs under each allocator in a process of its own, with the same seeds and
deterministic algorithms, so that the results must agree in every bit. One JSON object is printed;
the exit code is 1 if bits differ or a process failed.

    python engine/capi/torch/bench.py --library target/release/libds4.so
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(HERE, "..", "..", "..", "target", "release", "libds4.so")
ALLOCATORS = ("native", "expandable", "ds4")
SEED = 20260
# All runs together stay below three minutes; one that hangs is ended and reported.
WORKER_SECONDS = 60


class Record:
    """Step times and a hash of every result."""

    def __init__(self):
        self.times = []
        self.hash = hashlib.sha256()
        self.last = None

    def step(self, torch, work):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        self.times.append(time.perf_counter() - start)
        self.last = result.detach().float().cpu().contiguous()
        self.hash.update(self.last.numpy().tobytes())


def gpt2_training(torch, record, quick):
    """Training with sequences of changing length."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=512, attn_implementation="eager", use_cache=False)
    model = GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = random.Random(SEED)
    tokens = torch.Generator().manual_seed(SEED)
    for _ in range(8 if quick else 30):
        shape = (8, lengths.randrange(128, 513, 8))
        ids = torch.randint(0, config.vocab_size, shape, generator=tokens).cuda()

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            return loss

        record.step(torch, step)


def llama_decode(torch, record, quick):
    """Token by token with a cache that grows by concatenation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        attn_implementation="eager",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    tokens = torch.Generator().manual_seed(SEED)
    ids = torch.randint(0, config.vocab_size, (16, 512), generator=tokens).cuda()
    state = {"ids": ids, "cache": None}

    def step():
        out = model(input_ids=state["ids"], past_key_values=state["cache"], use_cache=True)
        state["cache"] = out.past_key_values
        logits = out.logits[:, -1, :]
        state["ids"] = logits.argmax(dim=-1, keepdim=True)
        return logits

    with torch.inference_mode():
        for _ in range(16 if quick else 192):
            record.step(torch, step)


def resnet_varying(torch, record, quick):
    """Training with batches of changing size."""
    from torchvision.models import resnet50

    model = resnet50(weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = random.Random(SEED)
    images = torch.Generator().manual_seed(SEED)
    for _ in range(6 if quick else 24):
        batch = sizes.randrange(8, 97)
        pictures = torch.randn((batch, 3, 224, 224), generator=images).cuda()
        labels = torch.randint(0, 1000, (batch,), generator=images).cuda()

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            return loss

        record.step(torch, step)


WORKLOADS = {
    "gpt2-training": gpt2_training,
    "llama-decode": llama_decode,
    "resnet-varying": resnet_varying,
}


def refusal(torch):
    """What Python sees of a request that no GPU can hold; memory goes on to work."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        torch.ones(1 << 20, device="cuda").sum().item()
        return str(error).splitlines()[0]
    return None


def worker(arguments):
    import torch

    if arguments.allocator == "ds4":
        sys.path.insert(0, HERE)
        import ds4_torch

        ds4_torch.install(arguments.plug_in)
    torch.manual_seed(SEED)
    # Memory that nobody wrote stays as it is: filling it would be most of the work.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    record = Record()
    WORKLOADS[arguments.workload](torch, record, arguments.quick)
    row = {
        "workload": arguments.workload,
        "allocator": arguments.allocator,
        "steps": len(record.times),
        "step_seconds": record.times,
        "bits": record.hash.hexdigest(),
        "last": float(record.last.flatten()[0]),
    }
    if arguments.allocator == "ds4":
        figures = ds4_torch.stats(0)
        row["peak_reserved_bytes"] = figures["peak_reserved_bytes"]
        row["peak_allocated_bytes"] = figures["peak_used_bytes"]
        row["allocs"] = figures["allocs"]
        row["refusals"] = figures["refusals"]
        row["refusal_raised"] = refusal(torch)
    else:
        figures = torch.cuda.memory_stats()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        row["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
        row["allocs"] = figures.get("allocation.all.allocated", 0)
        row["refusals"] = figures.get("num_ooms", 0)
    row["machine"] = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    print(json.dumps(row))


def run(workload, allocator, arguments):
    environment = dict(os.environ)
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["HF_HUB_OFFLINE"] = "1"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        environment.pop(name, None)
    if allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if allocator == "ds4":
        environment.setdefault("DS4_BACKEND", "cuda")
        # One device is used: others are not opened.
        environment.setdefault("DS4_GPU_DEVICES", "0")
    words = [sys.executable, os.path.abspath(__file__), "--worker", "--workload", workload]
    words += ["--allocator", allocator, "--library", arguments.plug_in]
    words += ["--quick"] if arguments.quick else []
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WORKER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"workload": workload, "allocator": allocator, "error": "ran out of time"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()[-12:]
        error = {"code": done.returncode, "said": said}
        return {"workload": workload, "allocator": allocator, "error": error}
    return json.loads(lines[-1])


def merge(runs):
    """One row of the runs of an allocator: each step's least time, which a neighbour of the machine
    disturbed least, as every run does the same steps; of the rest the first run's."""
    for row in runs:
        if "error" in row:
            return row
    steps = [min(times) for times in zip(*(row.pop("step_seconds") for row in runs))]
    warm = steps[len(steps) // 5 :]
    return {
        **runs[0],
        "runs": len(runs),
        "first_step_ms": round(steps[0] * 1e3, 3),
        "warm_ms_median": round(statistics.median(warm) * 1e3, 3),
        "warm_ms_total": round(sum(warm) * 1e3, 3),
        "all_ms_total": round(sum(steps) * 1e3, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", dest="plug_in", default=LIBRARY, help="path of libds4.so")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="only this one")
    parser.add_argument("--allocator", choices=ALLOCATORS, help="only this one")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, in turns")
    parser.add_argument("--quick", action="store_true", help="few steps: does it run at all?")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.plug_in = os.path.abspath(arguments.plug_in)
    if arguments.worker:
        worker(arguments)
        return 0
    start = time.perf_counter()
    rows, verdicts, machine = [], {}, None
    for workload in [arguments.workload] if arguments.workload else WORKLOADS:
        runs = {}
        # In turns, so that all meet the same machine.
        for _ in range(arguments.rounds):
            for allocator in [arguments.allocator] if arguments.allocator else ALLOCATORS:
                row = run(workload, allocator, arguments)
                machine = row.pop("machine", None) or machine
                runs.setdefault(allocator, []).append(row)
                seconds = sum(row.get("step_seconds", []))
                sys.stderr.write(f"{workload} {allocator}: {row.get('error', round(seconds, 3))}\n")
        merged = {allocator: merge(of_one) for allocator, of_one in runs.items()}
        native = merged.get("native", {}).get("warm_ms_total")
        for row in merged.values():
            if native and "warm_ms_total" in row:
                row["time_to_native"] = round(row["warm_ms_total"] / native, 4)
        rows += merged.values()
        bits = {row.get("bits") for of_one in runs.values() for row in of_one}
        failed = any("error" in row for row in merged.values())
        verdicts[workload] = "error" if failed else "equal" if len(bits) == 1 else "differ"
    report = {
        "schema": 1,
        "command": "torch-bench",
        "machine": machine,
        "rows": rows,
        "bits": verdicts,
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(json.dumps(report, indent=1))
    return 0 if all(verdict == "equal" for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
