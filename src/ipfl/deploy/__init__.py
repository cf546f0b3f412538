"""A server and nodes on machines of their own: credentials, accounts, processes, runs (`ipfl deploy`).

Flower runs in processes of its own. Only modules that are loaded inside such a process (`worker`) import it.
The package may import all others but `ipfl.cli`; only `ipfl.cli` may import it.
"""
