"""Nodes on machines of their own: keys and certificates, accounts, the folder to deploy from, a trial run.

Nothing here imports Flower; its commands run as processes of their own.
"""
