"""IP-FL as we recommend it: the market of Khan et al., put together of parts.

| part | here | its record in the server's state |
|---|---|---|
| importance weights and bids (Algorithm 2) | `importance` | `Preferences` |
| who trains where (SelectClients of Algorithm 1) | `seats` | `SeatRecord` |
| who pays, who gets the models, settlement | `payment` | `TokenAccounts`, `Access` |
| contributions (Algorithm 3) | `contribution` | `ContributionRecord` |
| clients that cheat | `guards` | `GuardRecord` |
| cluster models that move together | `sharing` | `SharingRecord` |
| the personalized model | `mix` | – |

`ipfl_plus` puts them together in Algorithm 1; `updates` holds the cluster models, their training and the
updates that come back, `run_facts` the facts of a run, `state` all records. Tokens themselves are moved by
`ipfl.market`, as in the paper's own method (`methods/ipfl.py`), whose formulas are taken from there.

No array that came in is changed. In every array a client is its row 0 … N−1 and a cluster its column 0 … K−1;
rows are in ascending client id, so that "ties by client id" means the same. Nothing imports this package: the
registry finds it by its name, like every method.
"""
