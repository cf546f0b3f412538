"""The adapter to what Flower does not publish was written for one version of flwr."""

from importlib.metadata import version
from pathlib import Path

import flwr
import pytest
from flwr.app.error import Error
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.supercore.error.base import ApiErrorCode

from ipfl.engines.flower import flwr_internals
from ipfl.engines.flower.flwr_internals import (
    EXPIRED_ERROR_CODES,
    FLWR_VERSION,
    SUPERLINK_NODE_ID,
    SuperNodeTasks,
)

PACKAGE = Path(__file__).parents[3] / "src" / "ipfl"
ADAPTER = PACKAGE / "engines" / "flower" / "flwr_internals.py"
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")


def test_the_installed_version_is_the_one_that_it_was_written_for():
    installed = version("flwr")
    assert installed == FLWR_VERSION, (
        f"flwr {installed} is installed, but flwr_internals.py was written for {FLWR_VERSION}: check each "
        "entry of its docstring, run the slow tests of tests/engines/flower and tests/deploy, "
        "then change FLWR_VERSION"
    )
    assert f"written for flwr {FLWR_VERSION}" in ADAPTER.read_text().splitlines()[0]


def test_no_other_module_uses_what_flower_does_not_publish():
    """Imports of flwr are `from PACKAGE import …`, and PACKAGE is one of the public ones."""
    found = {
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path != ADAPTER
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import flwr", "from flwr"))
        and not line.strip().startswith(tuple(f"from {name} import" for name in PUBLIC))
    }
    assert found == set()


def test_what_it_uses_is_there():
    assert EXPIRED_ERROR_CODES == (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
    assert all(Error(code, "").code == code for code in EXPIRED_ERROR_CODES)
    SuperNodeTasks("127.0.0.1:1", b"secret")  # imports all that a worker needs; connects later
    assert SUPERLINK_NODE_ID == flwr.common.constant.SUPERLINK_NODE_ID


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (flwr_internals.CONNECTED_TEXT, "supernode/start_client_internal.py"),
        (flwr_internals.NO_ANSWER_TEXT, "supercore/retry/grpc_retry.py"),
        (flwr_internals.NO_ANSWER_TEXT, "supercore/retry/http_retry.py"),
        # What the heartbeat of a node relies on:
        ("def _pull_and_store_message(", "supernode/start_client_internal.py"),
        ("                pull_object=pull_object,", "supernode/start_client_internal.py"),
        ("                push_object=push_object,", "supernode/start_client_internal.py"),
        ("                time.sleep(3)\n", "supernode/start_client_internal.py"),
        ("exc.response.status_code in (502, 503, 504)", "supernode/fleet_http_connection.py"),
        ("target=self._run", "supercore/heartbeat.py"),
        # What is replaced by functions of our own:
        ("    uvicorn.run(", "superlink/cli/flower_superlink.py"),
        ("subprocess.Popen(", "supercore/superexec/executor/subprocess_executor.py"),
        ("        install_from_fab(fab.content, skip_prompt=True)", "supernode/runtime/run_clientapp.py"),
        ("load_client_app_fn = get_load_client_app_fn(", "supernode/runtime/run_clientapp.py"),
        ("        self._client = httpx.Client(", "supercore/protobuf/client.py"),
    ],
)
def test_flower_still_prints_what_we_look_for(text, file):
    assert text in (Path(flwr.__file__).parent / file).read_text()


def test_codes_of_flower_mean_what_we_take_them_for():
    assert f"[code: {ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED}]" == flwr_internals.KEY_REFUSED_TEXT
    assert f"{Status.FINISHED}:{SubStatus.COMPLETED}" == flwr_internals.COMPLETED_STATUS
