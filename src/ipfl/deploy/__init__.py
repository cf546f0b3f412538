"""A server and nodes on machines of their own: credentials, accounts, processes, runs (`ipfl deploy`).

Flower runs in processes of its own. Only the two modules that are loaded inside such a process import it:
`app` (the ServerApp) and `worker` (a node's client code). The others start its commands and read what these
print.

The package may import all others but `ipfl.cli`. Only `ipfl.cli` imports it, and your own Flower app, which
takes its ServerApp from `ipfl.deploy.app`.
"""
