"""IP-FL: the method, and the market that it runs (Khan et al., IP-FL).

Where each part of the paper lives:

| paper | here |
|---|---|
| Algorithm 1, the server's round | `method`; its steps: `preference_steps`, `server_steps` |
| Algorithm 2, ClientPreferences, and all else that a client does | `client_side` |
| hyper-parameters | `settings` |
| what the server remembers between rounds | `state` |
| Eq. importance_weights | `preferences` |
| Eq. personalized_model, and what a client makes of it on evidence | `mixing`, `personalization` |
| Scheduler, SelectClients of Algorithm 1 | `scheduler` |
| Algorithm 1, lines 4, 7, 8: training and aggregation | `updates` |
| Profiler, appendix "Shapley value approximation" | `profiler`; what the server asks for it: `appraisal` |
| beyond the paper: contributions by agreement with the others | `agreement` |
| beyond the paper: cluster models that share steps, by the theory's condition (remark R1) | `sharing` |
| Token manager: Eqs. consumer_cost, update_available_tokens, reimbursement and its utility, | `tokens` |
| reward_distribution; the accounts on their way through one round | `token_manager` |
| who is reimbursed and who earns, in a round and in its replay | `settlement` |
| what a ledger needs of the market; the market once more from its record | `audit`, `replay` |
| appendix "Initial Clustering", Eq. imprtant_features | `methods.shared.initial_clustering` |
| Fairness: wealth, collapse, clusters that do the same work | `market_stats` |
| beyond the paper: clients that cheat | `robust` |

All but `method`, `client_side`, `appraisal` and `updates` is pure NumPy: no models, no I/O, no clock. State
goes in and comes out; no array that came in is changed. In every array a client is its row 0 … N−1 and a
cluster its column 0 … K−1; rows are in ascending client id, so that "ties by client id" means the same.

Of the methods, only this one imports the ledger: no other has tokens. Nothing imports this package: the
registry finds it by its name, like every method.
"""
