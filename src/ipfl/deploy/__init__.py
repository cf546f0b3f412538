"""A server and nodes on machines of their own: credentials, accounts, processes, runs (`ipfl deploy`).

Flower runs in processes of its own: `superlink_process` and `superexec_process` on the server, `app` (the
ServerApp), and `worker` with `installed_app` on a node. `front` reads one of its messages. The other modules
start its commands and read what these print.

Who may do what is decided in `front` (what passes from other machines and from operators), `operator_access`
(the operator's token), `installed_app` (which app a node runs) and `sandbox` (what that app may touch).

The package may import all others but `ipfl.cli`. Only `ipfl.cli` imports it, and your own Flower app, which
takes its ServerApp from `ipfl.deploy.server_app`.
"""
