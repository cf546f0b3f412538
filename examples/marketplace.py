"""A year on a marketplace for models, week by week: clients come, change, leave, and earn.

    python examples/marketplace.py --out .

In spring a fifth of the clients joins; in autumn the data of some changes. Every four weeks, from week 8 on,
a client looks whether its model is better on its own points than one model for all, and leaves if it is not.
Clients pay tokens for models, and earn tokens by training them.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import ipfl
from ipfl.report.market_figures import balances_over_time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=52, help="weeks")
parser.add_argument("--out", type=Path, default=Path())
given = parser.parse_args()

joining, change = max(1, given.rounds // 4), max(2, 2 * given.rounds // 3)
task = ipfl.Task.load(clients=20, drift_round=change, drift_share=0.2)
config = ipfl.RunConfig(
    rounds=given.rounds,
    clients=ipfl.ClientsConfig(join_round=joining, leave=True, grace=7),
    evaluate=ipfl.EvaluateConfig(every=4),
)
compared = ipfl.compare(task, ["ipfl-plus", "fedavg"], config=config)
market, plain = (compared.entries[label].results[0] for label in ("ipfl-plus", "fedavg"))
print(f"{market.summary['left']} of 20 clients left; accuracy {market.personalized_accuracy:.1%}")

figure = Figure(figsize=(8, 7), layout="constrained")
there, accuracy, tokens = figure.subplots(3, sharex=True)
weeks = [line["round"] + 1 for line in market.history]
there.step(weeks, [line["clients"] for line in market.history], where="mid", color="#0072B2")
there.set(ylabel="clients there", ylim=(0, 21.5), title="A year on the marketplace")
for week, text in ((joining + 1, "some join"), (change + 1, "the data of some changes")):
    there.text(week + 0.4, 1, text, fontsize=9)
for run, name, colour in ((market, "IP-FL", "#0072B2"), (plain, "one model for all", "#D55E00")):
    means = [100 * np.mean(list(one.personalized.values())) for one in run.evaluations.values()]
    accuracy.plot([round + 1 for round in run.evaluations], means, color=colour, label=name)
accuracy.set(ylabel="accuracy, mean of all, %", ylim=(0, 100))
accuracy.legend(loc="lower right")
rounds, balances = balances_over_time(market)
tokens.plot(rounds, balances, color="#0072B2", alpha=0.45, lw=1)
tokens.set(ylabel="tokens of each client", xlabel="week")
for axes in (there, accuracy, tokens):
    axes.grid(color="#dddddd")
    for week in (joining + 1, change + 1):
        axes.axvline(week, color="#555555", ls=":")
figure.savefig(given.out / "marketplace.png", dpi=150)
