"""Config: defaults, TOML, --set, hyper-parameters, and one line for whatever is wrong."""

import re
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ipfl import methods
from ipfl.config.sections import Section
from ipfl.config.whole_config import Config
from ipfl.errors import InputError
from ipfl.methods import method, method_fields
from ipfl.report.config_text import commented_toml, hyperparameters, toml_value


def written(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


def complaint(sets, path=None):
    with pytest.raises(InputError) as error:
        Config.load(path, sets).build_method()
    message = str(error.value)
    assert "\n" not in message
    return message


class TestLoading:
    def test_empty_file_is_the_default_run(self, tmp_path):
        config = Config.load(written(tmp_path, ""))
        assert config == Config() == Config.load()
        assert (config.seed, config.rounds, config.method.clusters) == (0, 30, 2)
        assert config.method.name == methods.DEFAULT
        task = config.task
        assert (task.dataset, task.clients, task.partition, task.samples) == ("digits", 20, "10:90", 60)

    def test_file_then_sets_then_overrides(self, tmp_path):
        path = written(tmp_path, "seed = 1\nrounds = 5\n[train]\nlr = 0.5\nepochs = 7\n")
        config = Config.load(path, ["seed=2", "train.lr=0.25"], {"seed": 3})
        assert (config.seed, config.rounds, config.train.lr, config.train.epochs) == (3, 5, 0.25, 7)

    @pytest.mark.parametrize(
        "text, expected",
        [
            ("[task]\nclients = 30", 60),  # still the default data set
            ('[task]\ndataset = "digits"', 60),
            ('[task]\ndataset = "cifar10"', None),  # 60 belongs to digits: all there are
            ('[task]\ndataset = "cifar10"\nsamples = 9', 9),
        ],
    )
    def test_samples_follow_the_data_set(self, tmp_path, text, expected):
        assert Config.load(written(tmp_path, text)).task.samples == expected

    @pytest.mark.parametrize(
        "text, section, field, value",
        [
            ("task.partition=30:70", "task", "partition", "30:70"),
            ("task.partition=10:30:00", "task", "partition", "10:30:00"),  # not TOML's time of day
            ("task.clients=40", "task", "clients", 40),
            ("task.swap_test_mix=true", "task", "swap_test_mix", True),
            ('task.model="mlp"', "task", "model", "mlp"),
            ("task.model = my.nets:Net", "task", "model", "my.nets:Net"),
        ],
    )
    def test_set(self, text, section, field, value):
        assert getattr(getattr(Config.load(None, [text]), section), field) == value

    def test_config_is_frozen(self):
        with pytest.raises(ValidationError):
            Config().seed = 3


class TestComplaints:
    @pytest.mark.parametrize(
        "sets, parts",
        [
            (["task.clents=3"], ["unknown key 'task.clents'", "did you mean 'task.clients'?"]),
            (["sed=3"], ["unknown key 'sed'", "'seed'"]),
            (["tusk.clients=3"], ["unknown key 'tusk'", "'task'"]),
            (["task.clients=0"], ["task.clients should be greater than or equal to 1, not 0"]),
            (["task.clients=many"], ["task.clients should be a valid integer", "not 'many'"]),
            (["train.lr=nan"], ["train.lr should be a finite number"]),
            (["train.lr=-1"], ["train.lr should be greater than 0, not -1"]),
            (["task.sizes=big"], ["task.sizes should be 'equal' or 'unequal', not 'big'"]),
            (["task=3"], ["task should be a section, such as [task], not 3"]),
            (["task.clients.x=3"], ["task.clients should be a valid integer, not a section"]),
            (["seed=1", "seed.x=3"], ["cannot set seed.x: seed is not a section"]),
            (["rounds=0", "seed=-1"], ["rounds should be", "; ", "seed should be"]),
            (["method.name=nope"], ["unknown method 'nope'", methods.REFERENCE]),
            (["method.nope=1"], ["unknown key 'method.nope'"]),
            (
                ["train.optimizer=adm"],
                ["train.optimizer should be sgd, adam, adamw or module:callable, not 'adm'"],
            ),
            (["train.device=gpu"], ["train.device should be auto, cpu, mps or cuda, not 'gpu'"]),
            (["evaluate.metrics=auroc"], ['evaluate.metrics should be a list, such as ["a", "b"], not']),
        ],
    )
    def test_names_the_key(self, sets, parts):
        message = complaint(sets)
        for part in parts:
            assert part in message

    def test_keys_that_do_not_go_together(self):
        message = complaint(["train.optimizer=adam", "train.momentum=0.9"])
        assert message == "train.momentum belongs to sgd, not to 'adam'; leave it out"

    @pytest.mark.parametrize("text", ["task.clients", "=3", "task..clients=3", ".x=1", "task.clients=", ""])
    def test_bad_set(self, text):
        assert complaint([text]).startswith(f"setting {text!r}: expected section.field=value")

    @pytest.mark.parametrize(
        "content, part",
        [
            (b"[task\nclients = 3", "is not valid TOML"),
            (b"seed = ", "is not valid TOML"),
            (b"seed = 1\nseed = 2", "is not valid TOML"),
            (b"\xff\xfe", "not a text file in UTF-8"),
            (b"task = 3", "task should be a section"),
        ],
    )
    def test_bad_file(self, tmp_path, content, part):
        path = tmp_path / "bad.toml"
        path.write_bytes(content)
        assert part in complaint([], path)


class TestMethods:
    """FedProx has the hyper-parameter mu, Ditto and FedProto have lam, IFCA has clusters."""

    def test_clusters_go_to_those_who_have_them(self):
        config = Config.load(None, ["method.clusters=7"])
        assert config.build_method("ifca") == method("ifca", clusters=7)
        assert config.build_method("fedprox") == method("fedprox")

    def test_run_refuses_keys_of_other_methods(self):
        config = Config.load(None, ["method.mu=3"])
        assert config.build_method("fedprox").mu == 3
        with pytest.raises(InputError, match=re.escape("unknown key 'method.mu'")):
            config.build_method("ifca")

    def test_compare_hands_a_key_to_each_that_has_it(self):
        built = Config.load(None, ["method.mu=3", "method.lam=0.5"]).build_methods(
            ["fedprox", "ditto", "fedproto"]
        )
        assert built == {
            "fedprox": method("fedprox", mu=3),
            "ditto": method("ditto", lam=0.5),
            "fedproto": method("fedproto", lam=0.5),
        }

    def test_compare_refuses_a_key_of_none(self):
        with pytest.raises(InputError, match=re.escape("unknown key 'method.nu'; did you mean 'method.mu'?")):
            Config.load(None, ["method.nu=3"]).build_methods(["fedprox", "ifca"])

    def test_bad_value_names_the_key(self):
        with pytest.raises(InputError, match=r"method\.mu should be greater than .*0, not -1"):
            Config.load(None, ["method.mu=-1"]).build_method("fedprox")
        with pytest.raises(InputError, match=re.escape("method.clusters should be a valid integer")):
            Config.load(None, ["method.clusters=many"]).build_method("ifca")

    def test_method_by_keywords(self):
        assert method("ditto", lam=2).lam == 2
        with pytest.raises(
            InputError, match=re.escape("unknown hyper-parameter of ditto 'lan'; did you mean 'lam'?")
        ):
            method("ditto", lan=2)

    def test_record_has_the_hyper_parameters(self):
        config = Config()
        told = {"name": "fedproto", "lam": 0.5}
        assert config.record([method("fedproto", lam=0.5)])["method"] == told
        both = config.record([method("local"), method("fedproto", lam=0.5)])["method"]
        assert both == [{"name": "local"}, told]


class TestShownConfig:
    def test_reads_back_as_the_same_config(self, tmp_path):
        config = Config.load(
            None,
            ["seed=4", "task.partition=30:70", "task.drift_round=3", "train.lr=1e-5", 'task.model="a:\\"b"'],
        )
        again = Config.load(written(tmp_path, commented_toml(config)))
        assert again.build_method() == config.build_method()
        assert again.model_copy(update={"method": config.method}) == config

    def test_every_field_is_there_with_its_description(self):
        text = commented_toml(Config())
        joined = " ".join(line.removeprefix("# ") for line in text.splitlines())
        for section in (Config(), *(part for _, part in Config() if isinstance(part, Section))):
            for field, info in type(section).model_fields.items():
                if not isinstance(getattr(section, field), Section):
                    assert f"\n{field} = " in text or f"\n# {field} =" in text
                    assert info.description
                    assert info.description in joined
        for field in method_fields(methods.DEFAULT):
            assert f"\n{field} = " in text or f"\n# {field} =" in text

    def test_all_fields_of_all_methods_are_described(self):
        for name in methods.METHODS:
            described = {field.name: field.description for field in hyperparameters(name)}
            assert tuple(described) == method_fields(name)
            assert all(described.values())

    @given(
        st.recursive(
            st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        )
    )
    @example('\x7f \x00 " \\ \n')
    def test_values_are_toml(self, value):
        assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value
