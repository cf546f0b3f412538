"""Nodes on machines of their own: keys and certificates, accounts, the folder to deploy from, a trial run.

Flower runs in processes of its own; of our modules only `worker`, another such process, imports it.
"""
