# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
import runpy
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack.errors import SparkstackError
from sparkstack.topology import DEFAULT_BASE, FabricPlan, collisions, plan

NAMES = [f"spark-{number}" for number in range(1, 13)]


@st.composite
def plans(draw: st.DrawFn) -> FabricPlan:
    kind = draw(st.sampled_from(["single", "pair", "two cables", "ring", "any ring", "switch", "any switch"]))
    low, high = (
        (1, 1) if kind == "single" else (2, 2) if kind in ("pair", "two cables")
        else (3, 12) if "ring" in kind else (2, 12)
    )  # fmt: skip
    nodes = NAMES[: draw(st.integers(low, high))]
    base = draw(st.sampled_from([None, "10.40.0.0/16", "172.20.32.0/19"]))
    if kind == "two cables":
        return plan("pair", nodes, base, cables=2)
    if kind == "any ring":
        return plan("ring", nodes, base, cables=draw(circles(nodes)))
    if kind == "any switch":
        return plan("switch", nodes, base, {name: draw(st.sampled_from([0, 1])) for name in nodes})
    return plan(kind, nodes, base, 0 if kind == "ring" else draw(st.sampled_from([0, 1])))


@st.composite
def circles(draw: st.DrawFn, nodes: list[str]) -> list[str]:
    """The cables of a ring in any order of the nodes, each by whichever of its ports, listed in any order."""
    order = draw(st.permutations(nodes))
    out = [draw(st.sampled_from([0, 1])) for _ in order]
    turned = [*zip(order[1:], out[1:], strict=True), (order[0], out[0])]
    cables = [
        f"{here}:{leaves} {there}:{1 - arrives}"
        for here, leaves, (there, arrives) in zip(order, out, turned, strict=True)
    ]
    return draw(st.permutations(cables))


@given(plans())
def test_no_two_interfaces_of_a_host_share_a_subnet_or_a_name(fabric: FabricPlan) -> None:
    for node in fabric.nodes:
        interfaces = fabric.of(node.name)
        assert len({i.subnet for i in interfaces}) == len({i.name for i in interfaces}) == len(interfaces)


@given(plans())
def test_neighbours_share_exactly_the_subnets_of_their_cable(fabric: FabricPlan) -> None:
    for node in fabric.nodes:
        for interface in fabric.of(node.name):
            sharing = {
                other.name
                for other in fabric.nodes
                if other != node and any(i.subnet == interface.subnet for i in fabric.of(other.name))
            }
            assert sharing == set(interface.peers)


@given(plans())
def test_no_address_is_given_twice_and_each_is_in_its_subnet(fabric: FabricPlan) -> None:
    interfaces = [i for node in fabric.nodes for i in fabric.of(node.name)]
    assert len({i.address for i in interfaces}) == len(interfaces)
    for interface in interfaces:
        network = IPv4Network(interface.subnet)
        assert network.prefixlen == 24
        assert interface.address in map(str, network.hosts())


@given(plans())
def test_a_fabric_does_not_collide_with_itself(fabric: FabricPlan) -> None:
    routes = {
        node.name: [
            f"{i.subnet} dev {i.name} proto kernel scope link src {i.address}" for i in fabric.of(node.name)
        ]
        for node in fabric.nodes
    }
    assert collisions(fabric, routes) == []


@given(plans())
def test_every_neighbour_is_reached_and_asked_by_somebody(fabric: FabricPlan) -> None:
    owner = {i.address: node.name for node in fabric.nodes for i in fabric.of(node.name)}
    for link in fabric.cabling.links:
        joined = {end.node for end in link}
        for node in joined:
            reached = {peer for i in fabric.of(node) for peer in i.peers}
            assert joined - {node} <= reached
            assert all(fabric.link(node, peer) for peer in joined - {node})
    for node in fabric.nodes:
        for i in fabric.of(node.name):
            assert owner[i.next_peer] in i.peers
            assert IPv4Network(f"{i.next_peer}/24", strict=False) == IPv4Network(i.subnet)
    # Each address is the next one of some other: asked by all, nobody is left out.
    assert {i.next_peer for node in fabric.nodes for i in fabric.of(node.name)} == set(owner)


@given(plans())
def test_both_twins_of_a_cabled_port_are_addressed_and_no_others(fabric: FabricPlan) -> None:
    for node in fabric.nodes:
        cabled = {end.port for link in fabric.cabling.links for end in link if end.node == node.name}
        assert {i.name for i in fabric.of(node.name)} == {
            name for port in cabled for name, _ in fabric.names[node.name][port]
        }


@given(plans())
def test_what_is_planned_can_be_declared_by_its_cables(fabric: FabricPlan) -> None:
    if fabric.kind == "single":
        return
    said = fabric.cabling.declaration()
    again = plan(str(said["kind"]), [node.name for node in fabric.nodes], cables=said["cables"])  # type: ignore[arg-type]
    assert again.cabling == fabric.cabling


@given(
    st.sampled_from(["pair", "ring", "switch"]),
    st.lists(st.lists(st.sampled_from(["a:0", "a:1", "b:0", "b:1", "c:0", "c:1"]), min_size=2, max_size=4), max_size=3),
)
def test_cables_in_any_list_are_refused_or_make_a_sound_fabric(kind: str, cables: list[list[str]]) -> None:
    nodes = ["a", "b"] if kind == "pair" else ["a", "b", "c"]
    try:
        fabric = plan(kind, nodes, cables=[" ".join(ends) for ends in cables])
    except SparkstackError:
        return
    interfaces = [i for node in fabric.nodes for i in fabric.of(node.name)]
    assert len({i.address for i in interfaces}) == len(interfaces)
    for node in fabric.nodes:
        assert len({i.subnet for i in fabric.of(node.name)}) == len(fabric.of(node.name)) > 0


def settings(fabric: FabricPlan) -> dict[tuple[str, str], str]:
    return {(node.name, i.name): i.cidr for node in fabric.nodes for i in fabric.of(node.name)}


@given(st.integers(2, 11), st.sampled_from([0, 1]))
def test_a_node_appended_to_a_switch_changes_nothing_for_the_others(count: int, port: int) -> None:
    before = settings(plan("switch", NAMES[:count], "10.40.0.0/16", port))
    after = settings(plan("switch", NAMES[: count + 1], "10.40.0.0/16", port))
    assert before.items() <= after.items()


def test_the_default_base_is_the_one_of_group_data() -> None:
    data = runpy.run_path(str(Path(__file__).resolve().parents[2] / "group_data" / "all.py"))
    assert data["fabric"]["base"] == DEFAULT_BASE  # a site that declares `fabric` without a base moves no address


def test_a_pair_that_gets_a_switch_keeps_its_addresses() -> None:
    pair, switch = plan("pair", NAMES[:2]), plan("switch", NAMES[:3])
    assert settings(pair).items() <= settings(switch).items()


@given(st.integers(3, 11))
def test_a_node_appended_to_a_ring_changes_port_1_of_the_first_one_only(count: int) -> None:
    before, after = settings(plan("ring", NAMES[:count])), settings(plan("ring", NAMES[: count + 1]))
    changed = {key for key, cidr in before.items() if after[key] != cidr}
    assert changed == {(NAMES[0], "enp1s0f1np1"), (NAMES[0], "enP2p1s0f1np1")}


def test_a_host_with_other_names_for_its_ports() -> None:
    names = {"b": {0: (("cx0", "mlx5_0"), ("cx1", "mlx5_1"))}}
    fabric = plan("pair", ["a", "b"], names=names)  # type: ignore[arg-type]
    assert [(i.name, i.hca) for i in fabric.of("b")] == [("cx0", "mlx5_0"), ("cx1", "mlx5_1")]
    assert fabric.of("a")[0].name == "enp1s0f0np0"
    assert fabric.routes("b") == [("192.168.96.0/24", "cx0"), ("192.168.97.0/24", "cx1")]
    twice = {"b": {1: (("enp1s0f0np0", "x"), ("y", "z"))}}
    with pytest.raises(SparkstackError) as caught:
        plan("pair", ["a", "b"], names=twice)  # type: ignore[arg-type]
    assert caught.value.lines == [
        "b: found interface 'enp1s0f0np0' twice in its ports; wanted each once; correct `fabric_ports`"
    ]


def test_a_single_spark_has_no_fabric() -> None:
    fabric = plan("single", ["a"])
    assert fabric.of("a") == ()
    assert fabric.nodes[0].ports == ()


@pytest.mark.parametrize("port", [0, 1])
def test_a_pair(port: int) -> None:
    fabric = plan("pair", ["a", "b"], port=port)
    assert [(i.name, i.hca, i.cidr, i.mtu, i.peers) for i in fabric.of("b")] == [
        (f"enp1s0f{port}np{port}", f"rocep1s0f{port}", "192.168.96.11/24", 9000, ("a",)),
        (f"enP2p1s0f{port}np{port}", f"roceP2p1s0f{port}", "192.168.97.11/24", 9000, ("a",)),
    ]
    assert [i.address for i in fabric.of("a")] == ["192.168.96.10", "192.168.97.10"]
    assert fabric.nodes[0].ports == (port,)


def test_a_ring_goes_from_port_0_to_port_1_of_the_next() -> None:
    fabric = plan("ring", ["a", "b", "c", "d"])
    subnet = {(node, i.name): i.subnet for node in "abcd" for i in fabric.of(node)}
    for node, following in zip("abcd", "bcda", strict=True):
        assert subnet[node, "enp1s0f0np0"] == subnet[following, "enp1s0f1np1"]
        assert subnet[node, "enP2p1s0f0np0"] == subnet[following, "enP2p1s0f1np1"]
    assert all(node.ports == (0, 1) for node in fabric.nodes)
    link = fabric.link("a", "b")
    assert link is not None and link.name == "enp1s0f0np0"
    assert fabric.link("a", "c") is None


def test_a_switch_has_two_networks_for_all() -> None:
    fabric = plan("switch", ["a", "b", "c"], port=1)
    assert [i.cidr for i in fabric.of("c")] == ["192.168.96.12/24", "192.168.97.12/24"]
    assert fabric.of("a")[0].peers == ("b", "c")


@pytest.mark.parametrize(
    ("kind", "nodes", "more", "line"),
    [
        ("pear", ["a"], {}, "topology: found 'pear'; wanted one of: single, pair, ring, switch, auto; did you mean 'pair'?"),
        ("single", ["a", "b"], {}, "topology 'single': found 2 nodes (a, b); wanted exactly 1 node; name the cabling: pair, ring or switch"),
        ("pair", ["a"], {}, "topology 'pair': found 1 node (a); wanted exactly 2 nodes; use single for one, ring or switch for more"),
        ("pair", [], {}, "topology 'pair': found no nodes; wanted exactly 2 nodes; use single for one, ring or switch for more"),
        ("ring", ["a", "b"], {}, "topology 'ring': found 2 nodes (a, b); wanted 3 to 245 nodes; two Sparks with a cable are a pair"),
        ("pair", ["a", "a"], {}, "topology 'pair': found node 'a' twice; wanted each node once; correct the inventory"),
        ("pair", ["a", "b"], {"port": 2}, "topology 'pair': found port 2; wanted port 0 or 1; port 0 is the cage beside the RJ45"),
        ("ring", ["a", "b", "c"], {"port": 1}, "topology 'ring': found port 1; wanted no port; a ring uses both ports; remove it"),
        ("pair", ["a", "b"], {"base": "10.0.0.0/24"}, "topology 'pair': found base 10.0.0.0/24 with room for 1 network of /24; wanted room for 2; declare a wider base"),
        ("pair", ["a", "b"], {"port": 0, "cables": 3}, "topology 'pair': found cables 3; wanted 1, 2 or a list of them; remove `cables` from `fabric`"),
        ("single", ["a"], {"cables": 1}, "topology 'single': found cables 1; wanted none; remove `cables` from `fabric`"),
        ("ring", list("abc"), {"cables": 2}, "topology 'ring': found cables 2; wanted a list of them, or nothing; remove `cables` from `fabric`"),
        ("pair", ["a", "b"], {"port": 1, "cables": 2}, "topology 'pair': found port 1; wanted no port; two cables use both ports; remove it"),
        ("pair", ["a", "b"], {"cables": ["a:0 b:0", "a:0 b:1"]}, "topology 'pair': found port 0 of 'a' in 2 places of `cables`; wanted each port once; a cage holds one cable"),
        ("pair", ["a", "b"], {"cables": ["a:0 b:2"]}, "topology 'pair': found end 'b:2' of cable 'a:0 b:2'; wanted ends such as \"spark-1:0 spark-2:1\"; write NODE:PORT"),
        ("pair", ["a", "b"], {"cables": ["a:0"]}, "topology 'pair': found cable 'a:0'; wanted ends such as \"spark-1:0 spark-2:1\"; a cable has two ends"),
        ("pair", ["a", "b"], {"cables": ["a:0 a:1"]}, "topology 'pair': found cable 'a:0 a:1'; wanted ends on different nodes; correct one end"),
        ("pair", ["a", "b"], {"cables": "a:0 b:0"}, "topology 'pair': found cables 'a:0 b:0'; wanted a list of cables; put it into brackets"),
        ("pair", ["spark-1", "spark-2"], {"cables": ["spark-1:0 spark-3:0"]}, "topology 'pair': found node 'spark-3' in cable 'spark-1:0 spark-3:0'; wanted one of: spark-1, spark-2; did you mean 'spark-2'?"),
        ("pair", ["a", "b"], {"cables": []}, "topology 'pair': found no cable at a, b; wanted each node on a cable; add it to `cables`"),
        ("ring", list("abc"), {"cables": ["a:0 b:1", "b:0 c:1"]}, "topology 'ring': found 2 cables that make no circle of all 3 nodes; wanted each node joined to two others, in one circle; correct `cables`"),
        ("ring", list("abcd"), {"cables": ["a:0 b:0", "a:1 b:1", "c:0 d:0", "c:1 d:1"]}, "topology 'ring': found 4 cables that make no circle of all 4 nodes; wanted each node joined to two others, in one circle; correct `cables`"),
        ("switch", list("abc"), {"cables": ["a:0 b:0", "b:1 c:0"]}, "topology 'switch': found 2 entries of `cables`; wanted one with an end of each node"),
        ("switch", ["a", "b"], {"cables": ["a:0 a:1 b:0"]}, "topology 'switch': found both ports of 'a' on one switch; wanted one port of each node; take a cable of 'a' out: a Spark is no faster with two"),
        ("switch", list("abc"), {"port": {"a": 0, "b": 1}}, "topology 'switch': found no port of 'c'; wanted 0 or 1; add it to `port`; port 0 is the cage beside the RJ45"),
        ("switch", ["a", "b"], {"port": {"a": 0, "b": 1, "d": 0}}, "topology 'switch': found a port of 'd'; wanted nodes of the inventory: a, b; take it out of `port`"),
        ("switch", ["a", "b"], {"port": {"a": 0, "b": 7}}, "topology 'switch': found port 7; wanted port 0 or 1; port 0 is the cage beside the RJ45"),
        ("pair", ["a", "b"], {"base": "127.0.0.0/8"}, "topology 'pair': found base 127.0.0.0/8, which hosts cannot have addresses of; wanted a network such as 10.20.0.0/16"),
        ("pair", ["a", "b"], {"base": "10.0.0.0/28"}, "topology 'pair': found base 10.0.0.0/28 with room for 0 networks of /24; wanted room for 2; declare a wider base"),
    ],
)  # fmt: skip
def test_what_cannot_be_built(kind: str, nodes: list[str], more: dict[str, object], line: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        plan(kind, nodes, **more)  # type: ignore[arg-type]
    assert caught.value.lines == [line]


@pytest.mark.parametrize("base", ["10.0.0.1/16", "nonsense", "fd00::/48", "10.0.0.0/40"])
def test_a_base_that_is_no_network(base: str) -> None:
    with pytest.raises(SparkstackError, match="wanted an IPv4 network such as"):
        plan("pair", ["a", "b"], base)


def test_245_nodes_are_the_most() -> None:
    assert plan("switch", [str(n) for n in range(245)]).of("244")[0].address == "192.168.96.254"
    with pytest.raises(SparkstackError):
        plan("switch", [str(n) for n in range(246)])


@pytest.mark.parametrize(
    ("route", "found"),
    [
        ("192.168.96.0/24 dev wlP9s9 proto kernel", "found route 192.168.96.0/24 on wlP9s9; wanted 192.168.96.0/24 free"),
        ("192.168.0.0/16 via 10.0.0.1 dev tun0", "found route 192.168.0.0/16 on tun0; wanted 192.168.96.0/24 free"),
        ("192.168.0.0/16 dev tailscale0 table 52", "found route 192.168.0.0/16 on tailscale0; wanted 192.168.96.0/24 free"),
        ("192.168.97.7", "found route 192.168.97.7/32; wanted 192.168.97.0/24 free"),
        ("unreachable 192.168.96.128/25", "found route 192.168.96.128/25; wanted 192.168.96.0/24 free"),
        # Both twins in one network, as some set-up scripts leave them.
        ("192.168.96.0/24 dev enP2p1s0f0np0", "found route 192.168.96.0/24 on enP2p1s0f0np0; wanted 192.168.96.0/24 free"),
        ("what is this", "found route 'what is this'; wanted lines of `ip -4 route`"),
    ],
)  # fmt: skip
def test_routes_that_collide_on_any_host(route: str, found: str) -> None:
    fabric = plan("pair", ["a", "b"])
    for host in ("a", "elsewhere"):
        first = str(collisions(fabric, {host: [route]})[0])
        assert first.startswith(f"{host}: {found}")


def test_a_route_over_both_networks_is_two_problems() -> None:
    assert len(collisions(plan("pair", ["a", "b"]), {"b": ["192.168.0.0/16 dev tun0"]})) == 2


def test_a_wide_route_on_our_own_interface_is_not_ours() -> None:
    route = "192.168.96.0/23 dev enp1s0f0np0"
    assert len(collisions(plan("pair", ["a", "b"]), {"a": [route]})) == 2


@pytest.mark.parametrize(
    "route",
    [
        "default via 192.168.1.1 dev enP7s7",
        "0.0.0.0/0",
        "throw 192.168.0.0/16 table 52",
        "128.0.0.0/1 dev tun0",
        "172.17.0.0/16 dev docker0",
        "192.168.98.0/24",
        "192.168.96.0/24 dev enp1s0f0np0",
        "fd00::/64 dev enP7s7",
        "nexthop via 10.0.0.1 dev x",
        "",
    ],
)
def test_routes_that_do_not_collide(route: str) -> None:
    assert collisions(plan("pair", ["a", "b"]), {"a": [route]}) == []
