"""register_mtp and reshard, alone and one after the other, to the byte; and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from making import EXTRA, FIRST, SECOND, Content, Silent, contents, index, model_files, safetensors, tensors
from making import write_repo as repo

from onhost.plan import JobError, Plan
from onhost.staging import outputs
from onhost.staging.chain import apply_steps, folder_view
from onhost.staging.transforms import TRANSFORMS, read_steps

REGISTER = {"name": "register_mtp"}
INDEX = "model.safetensors.index.json"


def cut(limit: int) -> dict[str, object]:
    return {"name": "reshard", "max_shard_bytes": limit}


def apply(view: dict[str, Path], target: Path, *steps: Mapping[str, object]) -> Path:
    apply_steps(view, read_steps([Plan(step) for step in steps]), target, Silent())
    return target


def indexed(folder: Path) -> Content:
    """What an engine that reads by index gets."""
    data = json.loads((folder / INDEX).read_text())
    held = {file: contents(folder / file) for file in set(data["weight_map"].values())}
    return {name: held[file][name] for name, file in data["weight_map"].items()}


def total_size(folder: Path) -> int:
    return int(json.loads((folder / INDEX).read_text())["metadata"]["total_size"])


def names(folder: Path) -> set[str]:
    return set(folder_view(folder))


ALL = {**FIRST, **SECOND, **EXTRA}
BYTES = sum(len(data) for _, _, data in ALL.values())


def test_without_transforms_all_files_are_links(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", model_files())
    out = apply(view, tmp_path / "out")
    assert {name: path.read_bytes() for name, path in folder_view(out).items()} == model_files()
    assert (out / "config.json").samefile(view["config.json"])


def test_register_adds_what_the_index_forgot(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", model_files())
    out = apply(view, tmp_path / "out", REGISTER)
    assert indexed(out) == ALL
    assert total_size(out) == BYTES
    assert json.loads((out / INDEX).read_text())["metadata"]["note"] == "kept"
    assert view[INDEX].read_bytes() == model_files()[INDEX]  # the source keeps its own
    assert all((out / name).samefile(path) for name, path in view.items() if name != INDEX)


def test_register_twice_changes_nothing(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", model_files())
    once = apply(view, tmp_path / "once", REGISTER)
    twice = apply(folder_view(once), tmp_path / "twice", REGISTER)
    assert (twice / INDEX).samefile(once / INDEX)


def test_register_leaves_a_complete_index_to_the_byte(tmp_path: Path) -> None:
    files = model_files()
    names = json.loads(files[INDEX])["weight_map"] | dict.fromkeys(EXTRA, "model_extra_tensors.safetensors")
    files[INDEX] = index(names, 7)  # even with a wrong total: not ours to mend
    out = apply(repo(tmp_path / "src", files), tmp_path / "out", REGISTER)
    assert (out / INDEX).read_bytes() == files[INDEX]


def test_register_takes_absent_names_only(tmp_path: Path) -> None:
    files = model_files()
    stale: Content = {"model.embed.weight": ("BF16", [1], b"zz"), **EXTRA}
    files["model_extra_tensors.safetensors"] = safetensors(stale)
    files["consolidated.safetensors"] = safetensors(tensors(other=3))
    files["original/model.safetensors"] = safetensors(tensors(other=3))
    out = apply(repo(tmp_path / "src", files), tmp_path / "out", REGISTER)
    assert indexed(out) == ALL


def test_register_without_an_index_does_nothing(tmp_path: Path) -> None:
    files = {"model.safetensors": safetensors(FIRST), "model_extra_tensors.safetensors": safetensors(EXTRA)}
    assert names(apply(repo(tmp_path / "src", files), tmp_path / "out", REGISTER)) == set(files)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({INDEX: index({"a": "gone.safetensors"})}, "found gone.safetensors missing though"),
        ({INDEX: index({"a": "model_extra_tensors.safetensors"})}, "found no tensor a in model_extra"),
        ({INDEX: b"{"}, f"found {INDEX} that is not JSON"),
        ({INDEX: b"[]"}, f"found list in {INDEX}"),
        ({INDEX: b'{"weight_map": {"a": 1}}'}, "a file name that is no string"),
        ({"model_extra_tensors.safetensors": b"PK"}, "only 2 bytes in model_extra_tensors.safetensors"),
    ],
)
@pytest.mark.parametrize("step", [REGISTER, cut(300)])
def test_both_refuse_files_that_contradict(
    tmp_path: Path, change: dict[str, bytes], found: str, step: Mapping[str, object]
) -> None:
    view = repo(tmp_path / "src", {**model_files(), **change})
    with pytest.raises(JobError) as error:
        apply(view, tmp_path / "out", step)
    assert found in str(error.value)


def test_register_will_not_choose_between_two_files(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", {**model_files(), "second_extra.safetensors": safetensors(EXTRA)})
    with pytest.raises(JobError, match=r"found tensor mtp\.fc\.weight in model_extra.*json names neither"):
        apply(view, tmp_path / "out", REGISTER)


def test_reshard_is_a_byte_copy_in_order(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", model_files())
    out = apply(view, tmp_path / "out", cut(1000))
    parts = sorted(name for name in names(out) if name.startswith("model-"))
    assert parts == [f"model-{n:05d}-of-{len(parts):05d}.safetensors" for n in range(1, len(parts) + 1)]
    assert len(parts) > 2
    assert indexed(out) == {**FIRST, **SECOND}
    assert total_size(out) == sum(len(data) for _, _, data in {**FIRST, **SECOND}.values())
    assert all((out / part).stat().st_size <= 1000 for part in parts)
    for name in ("model_extra_tensors.safetensors", "config.json", "assets/chat.txt"):
        assert (out / name).samefile(view[name])
    # Original order: the first file's first tensor is in the first part, whatever the sizes are.
    assert "model.embed.weight" in contents(out / parts[0])


def test_reshard_keeps_companions_together(tmp_path: Path) -> None:
    out = apply(repo(tmp_path / "src", model_files()), tmp_path / "out", cut(600))
    where = json.loads((out / INDEX).read_text())["weight_map"]
    assert where["model.layers.0.q.weight"] == where["model.layers.0.q.weight_scale_inv"]
    assert where["model.layers.1.q.qweight"] == where["model.layers.1.q.scales"]


def test_reshard_gives_a_large_tensor_its_own_file(tmp_path: Path) -> None:
    out = apply(repo(tmp_path / "src", model_files()), tmp_path / "out", cut(400))
    assert set(contents(out / "model-00001-of-00006.safetensors")) == {"model.embed.weight"}
    assert indexed(out) == {**FIRST, **SECOND}


def test_reshard_leaves_small_files_alone(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", model_files())
    out = apply(view, tmp_path / "out", cut(10**9))
    assert names(out) == set(view)
    assert all((out / name).samefile(path) for name, path in view.items())
    again = apply(folder_view(apply(view, tmp_path / "a", cut(600))), tmp_path / "b", cut(10**9))
    assert indexed(again) == {**FIRST, **SECOND}


def test_reshard_follows_the_index_where_a_name_lies_twice(tmp_path: Path) -> None:
    old: Content = {"model.embed.weight": ("BF16", [1], b"zz"), **FIRST}
    old["model.embed.weight"] = ("BF16", [2], b"zzyy")
    files = model_files()
    files["model-00001-of-00002.safetensors"] = safetensors(old)
    files["replaced.safetensors"] = safetensors({"model.embed.weight": FIRST["model.embed.weight"]})
    data = json.loads(files[INDEX])["weight_map"]
    files[INDEX] = index({**data, "model.embed.weight": "replaced.safetensors"})
    out = apply(repo(tmp_path / "src", files), tmp_path / "out", cut(600))
    assert indexed(out) == {**FIRST, **SECOND}
    parts = [name for name in names(out) if name.startswith("model-")]
    assert all("model.embed.weight" not in contents(out / part) for part in parts)


def test_reshard_of_one_file_makes_an_index_of_all(tmp_path: Path) -> None:
    files = {"model.safetensors": safetensors(FIRST), "extra.safetensors": safetensors(EXTRA)}
    out = apply(repo(tmp_path / "src", files), tmp_path / "out", cut(700))
    assert indexed(out) == {**FIRST, **EXTRA}
    assert "model.safetensors" not in names(out)
    assert "lm_head.weight" not in indexed(out)  # tied weights stay tied
    clash = {**files, "extra.safetensors": safetensors(FIRST)}
    with pytest.raises(
        JobError, match=r"found tensor model\.embed\.weight in extra.safetensors and in model"
    ):
        apply(repo(tmp_path / "src2", clash), tmp_path / "out2", cut(700))


def test_reshard_without_a_model_file(tmp_path: Path) -> None:
    view = repo(tmp_path / "src", {"weights.safetensors": safetensors(FIRST)})
    with pytest.raises(JobError, match=r"found no model file among weights\.safetensors; wanted model\.saf"):
        apply(view, tmp_path / "out", cut(700))


@pytest.mark.parametrize("limit", [300, 600, 1000, 10**9])
def test_order_does_not_matter(tmp_path: Path, limit: int) -> None:
    files = model_files()
    # Also a tensor that lies in a model file and that no index names.
    files["model-00002-of-00002.safetensors"] = safetensors(
        {**SECOND, **tensors(mtp__lost=50)}, {"format": "pt"}
    )
    view = repo(tmp_path / "src", files)
    one = apply(view, tmp_path / "one", REGISTER, cut(limit))
    two = apply(view, tmp_path / "two", cut(limit), REGISTER)
    assert indexed(one) == indexed(two) == {**ALL, **tensors(mtp__lost=50)}
    assert {n: p.read_bytes() for n, p in folder_view(one).items()} == {
        n: p.read_bytes() for n, p in folder_view(two).items()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "src", "two"]


def test_a_bad_write_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = outputs.write_all

    def spoil(handle: int, data: bytes) -> None:
        write(handle, data.replace(b"[16,16]", b"[8,32] "))

    monkeypatch.setattr(outputs, "write_all", spoil)
    with pytest.raises(JobError, match=r"found another header in .* than was written; wanted the same"):
        apply(repo(tmp_path / "src", model_files()), tmp_path / "out", cut(600))


@pytest.mark.parametrize(
    ("step", "found"),
    [
        ({"name": "hybrid"}, "found the transform 'hybrid'; wanted one of register_mtp, reshard"),
        ({"name": "reshard"}, "found nothing for the plan's key max_shard_bytes"),
        ({"name": "reshard", "max_shard_bytes": 0}, "wanted a whole number of at least 1"),
        ({"name": "register_mtp", "limit": 3}, "found register_mtp with limit; wanted known keys"),
        ({"name": "draft_vocab", "output": ["bf16"]}, "found ['bf16'] for the plan's key output"),
        (
            {"name": "register_mtp", "version": 99},
            "found version 1 of register_mtp on this host; wanted version 99",
        ),
    ],
)
def test_plans_are_checked(step: Mapping[str, object], found: str) -> None:
    with pytest.raises(JobError) as error:
        read_steps([Plan(step)])
    assert found in str(error.value)


def test_what_recipes_may_name_is_made_and_has_the_version_in_the_checkpoint_id() -> None:
    """A recipe's transforms as a job's plan has them, with every default, are read here."""
    from pydantic import TypeAdapter

    from sparkstack.release import TRANSFORM_VERSIONS
    from sparkstack.transforms import Transform

    donor = {"repo": "a/b", "revision": "0" * 40}
    arguments: dict[str, dict[str, object]] = {
        "register_mtp": {},
        "reshard": {"max_shard_bytes": "4GB"},
        "graft_fp8": {"donor": donor, "tensors": ["*.weight"], "expect_tensors": 3},
        "turboquant_metadata": {"recipe": "q8k_tq35v"},
        "fp8_dense": {"tensors": ["*.weight"], "expect_tensors": 3},
        "draft_vocab": {"output": "nvfp4", "counts": "counts.txt", "donor": donor},
        "ngram_table": {"expect_rows": 5},
    }
    assert set(arguments) == set(TRANSFORMS) == set(TRANSFORM_VERSIONS)
    for name, given in arguments.items():
        written: Any = TypeAdapter(Transform).validate_python({name: given})
        [step] = read_steps([Plan(written.model_dump(mode="json"))])
        assert (step.name, step.version) == (name, TRANSFORM_VERSIONS[name])
        assert [d.repo for d in step.donors] == (["a/b"] if "donor" in given else [])
        assert json.loads(json.dumps(step.described())) == step.described()
