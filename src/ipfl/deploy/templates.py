"""Text of the files that `ipfl deploy init` writes: settings, systemd units, a README."""

from __future__ import annotations

from ipfl import methods

RUN_TOML = f"""\
# Config of a run. `ipfl run --show-config` lists every setting. Those of [task] that describe data have no
# effect here: every node has its own data.
seed = 0
rounds = 10

[method]
name = "{methods.DEFAULT}"
clusters = 2

[task]
model = "softmax"       # cnn | mlp | softmax | module:callable (a module that every node allows)

[train]
lr = 0.1
epochs = 2
"""

APP = """\
# The Flower app. Its code is in the package ipfl, which is installed on every machine.
[project]
name = "ipfl-app"
version = "1.0.0"
description = "Methods of ipfl on Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ipfl"

[tool.flwr.app.components]
serverapp = "ipfl.deploy.server_app:app"
clientapp = "ipfl.engines.flower.node_app:app"

[tool.flwr.app.config]
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
# The server refuses a node whose connection was lost for up to a minute.
RestartSec=20
KillMode=mixed
SuccessExitStatus=143
TimeoutStopSec=30
UMask=0077
# Of the machine: what takes more is stopped and started again, and the machine goes on.
MemoryMax=75%
NoNewPrivileges=yes
CapabilityBoundingSet=
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectProc=invisible
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictSUIDSGID=yes
LockPersonality=yes
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""

SERVER_SERVICE = _UNIT.format(
    description="IP-FL server", folder="{root}", command="{bin}/ipfl deploy server {root}"
)
NODE_SERVICE = "# Adapt the two paths: this folder, and the virtual environment with ipfl.\n" + (
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

Nodes reach the server at `{server}`. Install ipfl with Flower on the server and on each node: `pip install
"ipfl[flower]"`. `docs/deploy.md` of ipfl has more on each step.

1. Server: `ipfl deploy server {root}` (or the unit `ipfl-server.service`).
2. Copy `nodes/0` … `nodes/{last}` each to its machine (`scp -rp nodes/0 node-0:/opt/ipfl/node`), then delete
   them here: `key` is a private key, which only its node may have.
3. On each node: put its data where `node.toml` says, then `ipfl deploy node .` (or the unit
   `ipfl-node.service`). A node runs the app in its `app/` and no other.
4. Server: `ipfl deploy run {root}`. The config of the run is `run.toml`; results are written to `runs/`.
5. After a stop or a crash: `ipfl deploy run {root} --resume runs/NAME`.
6. Audit: `ipfl ledger verify runs/NAME`.

The units run as user `ipfl`, who must own the folder: `useradd --system ipfl; chown -R ipfl .`

To add a node: `ssh-keygen -t ecdsa -b 384 -N "" -f key` there, `ipfl deploy register {root} key.pub` here.
To give client 2 another key: `ipfl deploy register {root} new.pub --client 2 --replace`.

Secret are `server.key` (of the server) and `nodes/<i>/key` (of that node). Only the operator may write
`accounts.json`, which says whose key belongs to which client.
"""
