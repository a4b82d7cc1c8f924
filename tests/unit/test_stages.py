import pytest

from sparkstack.errors import SparkstackError
from sparkstack.stages import STAGES, select


def test_none_means_all_in_order() -> None:
    expected = "preflight host docker conda fabric link image nccl checkpoint serve benchmark"
    assert select(None) == list(STAGES) == expected.split()


def test_named_stages_keep_the_order_of_a_run() -> None:
    assert select("serve, docker,serve") == ["docker", "serve"]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SparkstackError) as caught:
        select("fabrik,serve,nonsense")
    first, second = caught.value.lines
    assert first.startswith("stage: found 'fabrik'; wanted one of: preflight, host,")
    assert first.endswith("did you mean 'fabric'?")
    assert "'nonsense'" in second


def test_an_empty_name_is_an_unknown_name() -> None:
    with pytest.raises(SparkstackError):
        select("")
