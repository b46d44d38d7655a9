"""Two ranks load the real NCCL: every function is found, it says its version, names a group without a
GPU, and refuses simulated devices with a clear error that both ranks tell.

Runs under `ds4 fake-cuda`, whose own program is the ds4 that is tested."""

import glob
import os
import subprocess
import sys

library = glob.glob(os.path.join(sys.prefix, "lib*/python3*/site-packages/nvidia/nccl/lib"))[0]
ds4 = os.readlink(f"/proc/{os.getppid()}/exe")
environment = dict(os.environ)
environment["LD_LIBRARY_PATH"] = library + ":" + environment["LD_LIBRARY_PATH"]
common = "--tensor-parallel --backend cuda --transport nccl --n-layer 2 --n-embd 64".split()
roles = [
    "--role leader --listen 127.0.0.1 29411".split(),
    "--role worker --coordinator 127.0.0.1 29411".split(),
]
ranks = [
    subprocess.Popen([ds4, *common, *role], env=environment, stderr=subprocess.PIPE, text=True)
    for role in roles
]
for number, rank in enumerate(ranks):
    said = rank.communicate(timeout=60)[1]
    why = [line for line in said.splitlines() if "no NCCL: " in line][-1]
    print(f"rank {number}: {why}")
    assert rank.returncode == 1, (rank.returncode, said)
    assert "ncclCommInitRankConfig: unhandled cuda error" in why, why
    assert f"NCCL 2.21.5 from {library}/libnccl.so.2)" in why, why
