"""What `ipfl deploy init` writes for people and for other programs: settings, scripts, units, a guide."""

from __future__ import annotations

from ipfl import methods

SERVER_TOML = """\
bind = "{bind}"     # 0.0.0.0: reached from everywhere; 127.0.0.1: from this machine only
port = {port}          # nodes and operators connect to it
"""

NODE_TOML = """\
server = "{server}"     # a name or address that server.crt covers
client = {client}                  # the account that this node's key is registered for
data = "data.npz"           # x and y, and x_test and y_test if there are test points; stays on the node
memory = "memory"           # what the client remembers between rounds, and survives a restart
"""


EXAMPLE = ("rounds=2", f"method.name={methods.DEFAULT}", "method.clusters=2", "task.model=softmax")
"""What is run where nobody says anything else, as `--set` has it."""

RUN_TOML = f"""\
# What is run. `ipfl run --show-config` lists every setting; those of [task] that describe data do not matter
# here: every node brings its own.
seed = 0
rounds = 10

[method]
name = "{methods.DEFAULT}"
clusters = 2

[task]
model = "softmax"       # cnn | mlp | softmax | module:callable (a module that every node has)

[train]
lr = 0.1
epochs = 2
"""

PROFILE = """\
# Connection profile for Flower's own commands: FLWR_HOME=<this folder> flwr supernode list {profile}
[superlink]
default = "{profile}"

[superlink.{profile}]
address = "127.0.0.1:{port}"
root-certificates = "{authority}"
"""

APP = """\
# The Flower app: server and client side are in the package ipfl, which is installed on every machine.
[project]
name = "ipfl-app"
version = "1.0.0"
description = "Methods of ipfl on Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ipfl"

[tool.flwr.app.components]
serverapp = "ipfl.deploy.app:app"
clientapp = "ipfl.engines.flower.client:app"

[tool.flwr.app.config]
config = ""         # the run's TOML file, on the server
out = ""            # folder for the results, on the server
registry = ""       # the book of accounts, on the server
resume = false      # go on with the run in `out`
rounds = 0          # 0: as the TOML file says
nodes = 2           # wait for so many nodes
wait = 60.0         # seconds to wait for them
deadline = 300.0    # seconds that a client has for an answer
fp16 = false        # send models in half precision
classes = 0         # number of classes; 0: as the nodes' labels say
"""

START_SERVER = """\
#!/bin/sh
# Starts the server, and ends it and all that belongs to it at Ctrl-C or SIGTERM.
cd "$(dirname "$0")" && exec ipfl deploy server .
"""

START_NODE = """\
#!/bin/sh
# Starts this node, and ends it and all that belongs to it at Ctrl-C or SIGTERM.
cd "$(dirname "$0")" && exec ipfl deploy node .
"""

_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
User=ipfl
WorkingDirectory={folder}
ExecStart={command}
Restart=always
# A node that was cut off counts as present for up to a minute and is refused that long.
RestartSec=20
KillMode=mixed
SuccessExitStatus=143
TimeoutStopSec=30
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""

SERVER_SERVICE = _UNIT.format(
    description="IP-FL server", folder="{root}", command="{bin}/ipfl deploy server {root}"
)
NODE_SERVICE = "# Adapt the two paths: where this folder lies, and the virtual environment with ipfl.\n" + (
    _UNIT.format(
        description="IP-FL node",
        folder="/opt/ipfl/node",
        command="/opt/ipfl/venv/bin/ipfl deploy node /opt/ipfl/node",
    )
)

GITIGNORE = """\
# Keys, data and results do not belong in a repository.
*
"""

README = """\
# A federation of {nodes} nodes

The server is reached as `{server}`. Every command below is run with `ipfl[flower]` installed
(`pip install "ipfl[flower]"`), on the server and on each node.

1. Server: `./start-server` (or the unit `ipfl-server.service`). It registers the accounts in `accounts.json`.
2. Copy `nodes/0` … `nodes/{last}` each to its machine, then remove them here: `key` is a private key, and
   belongs to its node alone. `scp -rp nodes/0 node-0:/opt/ipfl/node`
3. On each node: put its data where `node.toml` says (`data.npz` with arrays `x`, `y`; `x_test`, `y_test` if
   there are test points), then `./start-node` (or the unit `ipfl-node.service`).
4. Server: `ipfl deploy run {root}`. What is run is in `run.toml`; results go to `runs/`.
   The units run as user `ipfl`, who must own the folder: `useradd --system ipfl; chown -R ipfl .`
5. After a stop or a crash: `ipfl deploy run {root} --resume runs/NAME`.
6. Audit: `ipfl ledger verify runs/NAME`.

A node more: `ssh-keygen -t ecdsa -b 384 -N "" -f key` there, `ipfl deploy register {root} key.pub` here.
Another key for client 2: `ipfl deploy register {root} new.pub --client 2 --replace`.

| file | what | who may see it |
|---|---|---|
| `ca.crt` | what nodes check the server against | all |
| `server.crt`, `server.key` | the server's certificate and private key | the server alone (`server.key`) |
| `accounts.json` | which key is which client | the operator writes it |
| `server.toml`, `run.toml` | where the server listens, what is run | the operator |
| `flwr/config.toml` | connection profile for Flower's own commands | the operator |
| `app/` | the Flower app | all |
| `nodes/<i>/key`, `key.pub` | a node's keys | the node alone (`key`) |
| `superlink.db`, `logs/`, `runs/` | Flower's database, logs, results | the operator |
"""
