"""What a plain run imports: FedAvg without a folder needs no market, no ledger, no cryptography."""

import subprocess
import sys

MODULES = 66
"""Of ours, at most; the packages themselves count."""
FORBIDDEN = (
    "ipfl.market",
    "ipfl.ledger",
    "ipfl.keep",
    "ipfl.stress",
    "ipfl.deploy",
    "ipfl.methods.ipfl",
    "ipfl.methods.ipfl_plus",
    "ipfl.client.private_client",
    "ipfl.client.last_step",
    "ipfl.engines.worker_engine",
    "ipfl.engines.flower",
    "ipfl.study",
    "ipfl.report",
    "ipfl.console",
    "cryptography",
    "opacus",
    "matplotlib",
    "pandas",
)
PLAIN_RUN = """
import sys
import ipfl

task = ipfl.Task.load(dataset="digits", clients=4, samples=20)
config = ipfl.RunConfig(rounds=1)
ipfl.run(task, ipfl.method("fedavg"), config, engine=ipfl.local_engine(workers=0), progress=False)
print(*sorted(sys.modules))
"""


def test_a_plain_run_imports_what_it_needs():
    played = subprocess.run([sys.executable, "-c", PLAIN_RUN], capture_output=True, text=True, check=True)
    modules = played.stdout.splitlines()[-1].split()
    found = [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in FORBIDDEN)]
    assert found == []
    ours = [name for name in modules if name.split(".")[0] == "ipfl"]
    assert "ipfl.play.loop" in ours
    assert len(ours) <= MODULES, ours
