"""A server that asks a private node for everything: the real app of a node with limits, and what it answers.

The node has data of its own and insists on noise 5 and on ε of 2 at most. The server may send any action, any
method and any models.
"""

import uuid
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from tests.engines.flower.loopback import TINY, Loopback, engine_factory, run

import ipfl
from ipfl.client.memory import ClientMemory
from ipfl.client.privacy_accountant import Releases, epsilon_of
from ipfl.client.runner import ASSESS, EVALUATE, LAST_STEP, ClientRunner, Job, actions_of
from ipfl.config.task_section import TaskConfig
from ipfl.config.train_section import AdaptConfig, PrivacyConfig, TrainConfig
from ipfl.config.whole_config import Config
from ipfl.core import Record
from ipfl.engines.flower.message_headers import HELLO, AskHeader
from ipfl.engines.flower.messages import Encoder, encode_text, message_type, pack, unpack
from ipfl.engines.flower.messages import decode as decode_record
from ipfl.engines.flower.node_app import NodeApp, NodeFolders
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.methods import METHODS
from ipfl.training.task import Task

CLASSES, FEATURES, TRAIN, TEST = 3, 4, 12, 15
SIZE = CLASSES * FEATURES + CLASSES
LIMITS = {"least_noise": 5.0, "most_epsilon": 2.0}
PRIVACY = {"noise": 5.0, "epsilon": 2.0}
TINY_NOISE = {"noise": 1e-9}
PRIVACY_FACTS = {"epsilon", "budget_spent"}


def some_data(seed):
    """12 points to train on and 15 to test, all different from those of another seed."""
    rng = np.random.default_rng(seed)
    x = rng.random((TRAIN + TEST, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, TRAIN + TEST)
    return {"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}


class Node:
    """A node with these points, and a server that has it to itself."""

    def __init__(self, folder, own, **node_config):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        folders = NodeFolders(folder / "memory", folder / "received")
        self.app = NodeApp(None if own is None else lambda context: own, folders=folders)
        self.context = Context(1, 7, {"client": 0, **node_config}, RecordDict(), {})
        self.run_id = uuid.uuid4().hex

    def ask(self, action, record, method="fedavg", run_id=None, privacy=PRIVACY, adapt=None, **others):
        """What comes back: a record, or the text of a refusal."""
        task = TaskConfig.of({"model": "softmax"} | others.pop("task", {}))
        settings = RunSettings(
            ipfl.method(method) if isinstance(method, str) else method,
            TrainConfig(**others),
            task,
            seed=0,
            classes=CLASSES,
            privacy=PrivacyConfig(**privacy),
            adapt=AdaptConfig(**adapt or {}),
        )
        plan, text = encode_text(settings.to_json())
        digests, arrays = Encoder().encode(record)
        run_id = self.run_id if run_id is None else run_id
        header = AskHeader(0, 0, -1, run_id, (0,), plan, SIZE, digests, record.facts)
        kind = message_type(action)
        head = {"settings": plan} if action == HELLO else header.to_header()
        message = Message(pack(head, {plan: text, **arrays}), 7, kind)
        message.metadata.__dict__["_message_id"] = "1"
        reply, vectors = unpack(self.app(message, self.context).content)
        if "error" in reply:
            return reply["error"]
        return decode_record(reply.get("params", {}), vectors, reply.get("facts", reply))


def everything(*names):
    """Models under these names, and what any action of any method reads."""
    rng = np.random.default_rng(1)
    params = {name: rng.normal(size=SIZE).astype(np.float32) for name in names}
    return Record(
        params,
        {
            "clusters": [0, 1],
            "points": 100,
            "importance": [1.0, 1.0],
            "means": [0.5, 0.5],
            "totals": [1.0, 1.0],
            "seats": [0, 0],
            "net": [0, 0],
            "gradient": True,
            "limit": 3,
            "of": [],
            "random": False,
            "strength": 0.1,
            "known": [False] * CLASSES,
        },
    )


def seeded_runner(folder, method="fedavg", **train):
    """A runner of a simulation, on the same points."""
    task = Task.from_clients([some_data(0)], classes=CLASSES, model="softmax")
    return ClientRunner(task, ipfl.method(method), TrainConfig(**train), 0, ClientMemory(folder))


def all_actions(folder=Path("unused")):
    """Every action that any part answers: methods, evaluator, and the first message."""
    own = {action for name in METHODS for action in seeded_runner(folder, name).actions}
    return sorted({*own, HELLO})


def leaves(reply):
    """Every number and every text of a reply, by where it is."""
    if isinstance(reply, str):
        return {"refusal": reply}
    found = {
        f"params/{name}/{i}": v for name, one in reply.params.items() for i, v in enumerate(one.tolist())
    }

    def walk(path, value):
        if isinstance(value, dict | list | tuple):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, one in pairs:
                walk(f"{path}/{key}", one)
        elif path.split("/")[0] not in PRIVACY_FACTS:
            found[path] = value

    for name, fact in reply.facts.items():
        walk(name, fact)
    return found


def labels_by_counts(ask):
    """The attack: models that always predict one class, on the first 1, 2, … points of the test part.

    Args:
        ask: From a class and a number of points to exact hits; None: no answer.
    """
    guessed, before = [], dict.fromkeys(range(CLASSES), 0.0)
    for limit in range(1, TEST + 1):
        hits = {c: ask(c, limit) for c in range(CLASSES)}
        if None in hits.values():
            return None
        guessed.append(max(hits, key=lambda c: hits[c] - before[c]))
        before = hits
    return guessed


def always(label):
    """A linear model that predicts one class."""
    model = np.zeros(SIZE, np.float32)
    model[CLASSES * FEATURES + label] = 1
    return model


class TestAssess:
    def test_it_tells_every_label_where_it_is_answered(self, tmp_path):
        runner = seeded_runner(tmp_path)

        def ask(label, limit):
            record = Record({"model": always(label)}, {"limit": limit})
            return runner.run(Job(ASSESS, 0, 0, record)).facts["hits"][0]

        pool = some_data(0)["test"][1]
        order = ipfl.core.stream(0, "holdout", 0).permutation(TEST)
        assert labels_by_counts(ask) == pool[order].tolist()

    @pytest.mark.parametrize("limits", [LIMITS, {}])
    def test_no_node_answers_it(self, tmp_path, limits):
        node = Node(tmp_path, some_data(0), **limits)
        refused = []

        def ask(label, limit):
            refused.append(node.ask(ASSESS, Record({"model": always(label)}, {"limit": limit})))

        assert labels_by_counts(ask) is None
        assert {*refused} == {"clients of fedavg do not answer 'assess'"}

    def test_not_even_with_noise_that_everybody_knows(self, tmp_path):
        """For tests of its operator: the node itself has no pool that a server could name."""
        node = Node(tmp_path, some_data(0), **{"seeded-noise": 1})
        reply = node.ask(ASSESS, Record({"model": always(0)}, {"limit": 3}))
        assert reply.facts == {"n": 0, "hits": [0.0]}


ASKED = (
    everything("global", "model", "cloud", "cluster_0", "cluster_1"),
    everything("cluster_0", "cluster_1"),
)
"""What is sent with each action; the second to methods that take every model for one of a cluster."""
ANSWERED = {
    "fedavg": {HELLO, EVALUATE, "train"},
    "fedem": {HELLO},
    "finetune": {HELLO, EVALUATE, "train"},
    "ifca": {HELLO},
    "ipfl": {HELLO, EVALUATE, "train", "preference", "appraise"},
    "ipfl-plus": {HELLO, "train", "preference", "appraise"},
}
"""Of some methods, what is not refused: that no test passes because nothing is ever answered."""


@pytest.fixture
def counted_noise(monkeypatch):
    """Noise of the operating system that is the same in every run of the tests."""
    seeds = count()
    monkeypatch.setattr("secrets.randbits", lambda bits: next(seeds))


class TestEveryAction:
    """Each number that a private node answers is the same for quite other data, or another one each time.

    A number that follows from the data, and is there again, would tell what it was made of.
    """

    DRAWS = 6
    """A count of at most 2 is often cut off at 0 or 2 by noise of 5: (1/2)⁵ of the time at the same end."""

    def exact(self, folder, method, action, asked):
        """Where the node's replies follow from its data; and its refusal, if that is what it replies."""
        first, *again, other = (
            leaves(
                Node(folder / str(draw), some_data(draw == self.DRAWS), **LIMITS).ask(action, asked, method)
            )
            for draw in range(self.DRAWS + 1)
        )
        steady = {where for where in first if all(one.get(where) == first[where] for one in again)}
        return {where for where in steady if first[where] != other.get(where)}, first.get("refusal")

    @pytest.mark.parametrize("method", METHODS)
    def test_nothing_exact_comes_back(self, tmp_path, counted_noise, method):
        answered = set()
        for action in sorted(actions_of(ipfl.method(method)) | {EVALUATE, HELLO}):
            for number, asked in enumerate(ASKED):
                folder = tmp_path / f"{action}-{number}"
                exact, refusal = self.exact(folder, method, action, asked)
                assert exact == set(), (action, number)
                answered |= {action} if refusal is None else set()
        if method in ANSWERED:
            assert answered == ANSWERED[method]

    @pytest.mark.parametrize("method", METHODS)
    def test_all_others_are_refused(self, tmp_path, method):
        """The settings' names too, for which a method has attributes, and not only other methods' actions."""
        node = Node(tmp_path, some_data(0), **LIMITS)
        others = {*all_actions(tmp_path), "run", "personalize", "__init__", "on_train", "_assess"}
        for action in others - actions_of(ipfl.method(method)) - {EVALUATE, HELLO}:
            refusal = node.ask(action, ASKED[0], method)
            assert refusal == f"clients of {method} do not answer {action!r}"


class TestBudget:
    def test_counts_of_labels_end_with_it(self, tmp_path, counted_noise):
        """How often a class occurs in the test part, asked again and again, even in run after run."""
        node = Node(tmp_path, some_data(0), **LIMITS)
        replies = []
        for _ in range(40):
            record = Record({"global": always(0)})
            replies.append(node.ask(EVALUATE, record, run_id=uuid.uuid4().hex))
        answered = [reply for reply in replies if "hits" in reply.facts]
        # Three counts in each: hits, those on goal, and those of the global model. As many as ε ≤ 2 allows.
        most = max(k for k in range(40) if epsilon_of([Releases({(5.0, 1.0): 3 * k})], 1e-5) <= 2)
        assert len(answered) == most == 1
        assert all(reply.facts == {**replies[-1].facts, "budget_spent": True} for reply in replies[most:])

    def test_a_message_that_names_no_run(self, tmp_path):
        """Its book of what was revealed would be an empty one, beside that of all other runs."""
        node = Node(tmp_path, some_data(0), **LIMITS)
        refusal = node.ask(EVALUATE, Record({"global": always(0)}), run_id="")
        assert refusal == "the message names no run, by which this node keeps what it has revealed"


class TestSensitivity:
    """By how much blanking one point changes the counts of an evaluation; noise is too small to matter."""

    TRAINED, TESTED = 10, 100

    def data(self, blank=None):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(self.TRAINED + self.TESTED, FEATURES)).astype(np.float32)
        y = rng.integers(0, CLASSES, self.TRAINED + self.TESTED)
        if blank is not None:
            x[blank] = 0
        return {
            "train": (x[: self.TRAINED], y[: self.TRAINED]),
            "test": (x[self.TRAINED :], y[self.TRAINED :]),
        }

    def changes(self, folder, method, privacy):
        """The largest change of a count, over all training points and 20 of those to test; or the refusal."""
        asked, largest, first = everything("global"), 0.0, None
        for blank in [None, *range(self.TRAINED + 20)]:
            node = Node(folder / str(blank), self.data(blank))
            reply = node.ask(EVALUATE, asked, method, privacy=privacy, lr=50.0)
            if isinstance(reply, str):
                return reply
            counts = np.array([reply.facts[name] for name in ("hits", "goal_hits", "global_hits")])
            first = counts if first is None else first
            largest = max(largest, float(np.abs(counts - first).max()))
        return largest

    def test_training_before_predicting_moves_many(self, tmp_path):
        """What this protects from: without noise, at a learning rate of the server's choice."""
        assert self.changes(tmp_path, "finetune", {}) >= 5

    @pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedala"])
    def test_of_models_of_the_server_one_counts_once(self, tmp_path, method):
        assert self.changes(tmp_path, method, TINY_NOISE) == pytest.approx(1, abs=1e-6)

    def test_ipfl(self, tmp_path):
        """Importance is made of noisy hits; the default mix looks at the points: refused."""
        asked = {"privacy": {"noise": 5.0}}
        node, offer = Node(tmp_path, self.data()), everything("cluster_0", "cluster_1")
        assert node.ask(EVALUATE, offer, "ipfl-plus", **asked).startswith(
            "[privacy] keeps evaluations of ipfl-plus"
        )
        method = ipfl.method("ipfl-plus", mix={"rule": "paper"})
        assert node.ask(EVALUATE, offer, method, **asked).facts["n"] == self.TESTED

    @pytest.mark.parametrize("adapt", [{"epochs": "auto"}, {"label_prior": True}, {"epochs": 3}])
    def test_the_last_step(self, tmp_path, adapt):
        """Labels say how far it goes and what is likely; training alone has noise in it, and is booked."""
        privacy, node = {"noise": 5.0}, Node(tmp_path, self.data())
        offer = Record(everything("global").params, {LAST_STEP: True})
        reply = node.ask(EVALUATE, offer, adapt=adapt, privacy=privacy, batch_size=4)
        if adapt != {"epochs": 3}:
            assert reply.startswith("[privacy] keeps evaluations of fedavg on the node")
            return
        # 8 points in batches of 4 are two steps per epoch, at a chance of 1/2.
        assert reply.facts["epsilon"] == pytest.approx(
            epsilon_of([Releases({(5.0, 1.0): 3, (5.0, 0.5): 6})], 1e-5)
        )
        assert reply.facts["last_step"] == [None, None]

    def test_noise_in_a_training_before_it_is_booked(self, tmp_path):
        """8 points in batches of 4 are two steps per epoch, at a chance of 1/2; finetune takes 5 epochs."""
        privacy = {"noise": 5.0}
        node = Node(tmp_path, self.data())
        reply = node.ask(EVALUATE, everything("global"), "finetune", privacy=privacy, batch_size=4)
        # A fifth of the 10 points is held back.
        expected = epsilon_of([Releases({(5.0, 1.0): 3, (5.0, 0.5): 10})], 1e-5)
        assert reply.facts["epsilon"] == pytest.approx(expected)


class TestNumbersThatAreNone:
    """A model that overflows only where one feature is above 0 would show through all noise on a sum."""

    def asked(self):
        model = np.zeros(SIZE, np.float32)
        model[[0, FEATURES]] = np.float32(3e38)  # the logits of classes 0 and 1: ∞ − ∞ where 3e38·x overflows
        one = {"clusters": [0], "importance": [1.0], "means": [0.5], "seats": [0], "net": [0]}
        return Record({"cluster_0": model}, {**everything().facts, **one})

    @pytest.mark.parametrize("action", ["preference", "appraise", "train"])
    def test_replies_are_numbers(self, tmp_path, action):
        data = some_data(0)
        data["train"][0][:, 0] *= 10
        node = Node(tmp_path, data)
        privacy = {"noise": 5.0}
        found = leaves(node.ask(action, self.asked(), "ipfl-plus", privacy=privacy))
        assert all(np.isfinite(one) for one in found.values()), found


class TestErrors:
    def test_their_text_stays_on_the_node(self, tmp_path):
        """Columns of the server's choice as labels: the ordinary error would quote one of them."""
        (tmp_path / "rows.csv").write_text("age,ill\n" + "".join(f"{n}.5,{n % 2}\n" for n in range(30, 50)))
        asked = {"task": {"target": "age", "standardize": "none"}}
        plain = Node(tmp_path / "plain", None, data=str(tmp_path / "rows.csv"))
        assert "such as 30.5" in plain.ask("train", ASKED[0], privacy={}, **asked)
        private = Node(tmp_path / "private", None, data=str(tmp_path / "rows.csv"), **LIMITS)
        assert private.ask("train", ASKED[0], **asked) == "InputError; the log of this node has more"

    def test_a_method_that_fails(self, tmp_path):
        node = Node(tmp_path, some_data(0), **LIMITS)
        assert node.ask("preference", Record(), "ipfl-plus") == "KeyError; the log of this node has more"

    def test_columns_that_are_standardised_by_all_rows(self, tmp_path):
        (tmp_path / "rows.csv").write_text("age,ill\n" + "".join(f"{n}.5,{n % 2}\n" for n in range(30, 50)))
        node = Node(tmp_path, None, data=str(tmp_path / "rows.csv"), **LIMITS)
        refusal = node.ask("train", ASKED[0], task={"target": "ill"})
        assert refusal == '[privacy] needs task.standardize = "none": one row would change all others'


def test_a_run_goes_on_without_evaluations(tmp_path):
    """Real nodes with data of their own, which refuse: an event about each, and no accuracy."""
    config = Config(
        rounds=2, task=TINY, method={"name": "ipfl-plus"}, evaluate={"every": 1}, privacy={"noise": 1.0}
    )
    data, grid = Task.build(TINY, 0).data, Loopback()
    for client in data.clients:
        parts = data.parts(client)
        own = {"train": (parts.train.x, parts.train.y), "test": (parts.test.x, parts.test.y)}
        own["test"][1][0] = data.classes - 1  # so that every node can count the classes
        folders = NodeFolders(tmp_path / f"{client}/memory", tmp_path / f"{client}/received")
        grid.join(100 + client, NodeApp(lambda context, own=own: own, folders=folders), client=client)
    result = run(config, engine_factory(grid, config))
    events = [event for event in result.history[-1]["events"] if event.kind == "client_failed"]
    assert [event.client for event in events] == [*data.clients]
    assert all("keeps evaluations of ipfl-plus on the node" in event.text for event in events)
    assert [evaluation.personalized for evaluation in result.evaluations.values()] == [{}, {}]
