"""What a plain run imports: FedAvg without a folder needs no market, no ledger, no cryptography."""

import ast
import io
import subprocess
import sys
import tokenize
from importlib.util import find_spec
from pathlib import Path

MODULES, CODE_LINES = 60, 6000
"""Of ours, at most; packages count as modules, docstrings and comments not as lines."""
FORBIDDEN = (
    "ipfl.market",
    "ipfl.ledger",
    "ipfl.keep",
    "ipfl.stress",
    "ipfl.deploy",
    "ipfl.play.attack_report",
    "ipfl.play.privacy_report",
    "ipfl.play.tracking",
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
    "scipy.stats",
    "sklearn",
    "flwr",
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
PLAIN_RUN = """
import sys
import ipfl

task = ipfl.Task.load(dataset="digits", clients=4, samples=20)
config = ipfl.RunConfig(rounds=1)
ipfl.run(task, ipfl.method("fedavg"), config, engine=ipfl.local_engine(workers=0), progress=False)
print(*sorted(sys.modules))
"""


def code_lines(text: str) -> int:
    """Lines that hold a token, but for docstrings of modules, classes and functions."""
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_a_plain_run_imports_what_it_needs():
    played = subprocess.run([sys.executable, "-c", PLAIN_RUN], capture_output=True, text=True, check=True)
    modules = played.stdout.splitlines()[-1].split()
    found = [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in FORBIDDEN)]
    assert found == []
    ours = [name for name in modules if name.split(".")[0] == "ipfl"]
    assert "ipfl.play.loop" in ours
    assert len(ours) <= MODULES, ours
    texts = [Path(find_spec(name).origin).read_text() for name in ours]
    assert sum(map(code_lines, texts)) <= CODE_LINES
