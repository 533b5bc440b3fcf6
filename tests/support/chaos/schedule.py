"""A random schedule of faults from one seed: kind, place, duration, and whether to heal before the next.

The faults stay within the guarantee for acks=all, three replicas and min.insync.replicas 2: any processes may
be killed, paused and cut off; but only one *machine* at a time loses its unsynced data or its whole disk, and
the next one only after every replica is in sync again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..brokers.quorum_brokers import QuorumBrokers
from ..coordination.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from .disks import SharedFolder, SmallDisk, lose_everything, lose_unsynced_tail
from .network import ChaosNetwork
from .run import TOPIC, ChaosRun

BROKERS = (1, 2, 3)
STORES = ("store1", "store2", "store3")
CLIENTS = "clients"
DISK_LEFT_BYTES = 200_000
SMALL_DISK_OF, SECOND_DISK_OF = 2, 3


def node(broker_id: int) -> str:
    return f"broker{broker_id}"


@dataclass(slots=True)
class Schedule:
    run: ChaosRun
    network: ChaosNetwork | None = None
    ensemble: ZooKeeperEnsemble | None = None
    small_disk: SmallDisk | None = None
    """The disk of the first log directory of broker 2."""
    second_disk: SmallDisk | None = None
    """The disk of the second log directory of broker 3."""
    tier: SharedFolder | None = None
    """Where the brokers' remote storage is; None also for one that stays away for longer than a round."""
    loses_disks: bool = True
    """False: no replica may have to begin again, since remote storage is away."""
    outages_seen: int = 0
    """How often other brokers became leaders for a failed log directory, before its broker was restarted."""

    def play(self, minutes: float) -> None:
        """Inject rounds of faults for ``minutes``."""
        ends = time.monotonic() + minutes * 60
        while time.monotonic() < ends:
            self.round()

    def round(self) -> None:
        run, chance = self.run, self.run.chance
        fault = chance.choice(self._faults())
        name = fault.__name__.strip("_")
        run.faults[name.replace("_", " ")] += 1
        run.record(f"round: {name}")
        fault()
        if chance.random() < 0.7:
            run.heal()
        else:
            self._mend()
            run.start_down()
            run.pass_time(chance.uniform(0.0, 2.0))

    def _mend(self) -> None:
        """End all faults like `heal`, without waiting for anything."""
        if self.network is not None:
            self.network.heal()
        if self.ensemble is not None:
            self.ensemble.heal()
        for disk in (self.small_disk, self.second_disk, self.tier):
            if disk is not None:
                disk.heal()
        for broker_id in BROKERS:
            self.run.cluster.resume(broker_id)

    def _faults(self) -> Sequence[Callable[[], None]]:
        faults = [
            self._kill_some,
            self._kill_leaders,
            self._kill_controller,
            self._pause_some,
            self._restart_in_order,
        ]
        if self.loses_disks:
            faults += [self._lose_tail, self._lose_disk]
        if self.network is not None:
            faults += [self._cut_links, self._cut_one_way, self._isolate, self._cut_and_kill]
            if self.ensemble is not None:
                faults += [self._cut_from_store, self._cut_store_servers]
        if self.ensemble is not None:
            faults += [self._kill_store_leader, self._kill_store_servers, self._stop_store_servers]
        if self.small_disk is not None:
            faults += [self._fill_disk]
        if self.second_disk is not None:
            faults += [self._fill_second_folder]
        if self.tier is not None:
            faults += [self._take_tier_away]
        return faults

    # --- remote storage

    def _take_tier_away(self) -> None:
        """Without it, brokers go on; some are killed, or others become leaders, who have to read it first."""
        assert self.tier is not None
        self.tier.hide()
        self.run.pass_time(self.run.chance.uniform(0.0, 3.0))
        if self.run.chance.random() < 0.7:
            self._kill_some()
        self.run.pass_time(self.run.chance.uniform(0.0, 5.0))
        self.tier.heal()

    # --- processes

    def _some(self, at_most: int = 3) -> list[int]:
        running = self.run.cluster.running
        return self.run.chance.sample(running, self.run.chance.randint(1, min(at_most, len(running))))

    def _kill_some(self) -> None:
        run = self.run
        for broker_id in self._some():
            run.kill(broker_id)
            run.pass_time(run.chance.choice((0.0, 0.0, run.chance.uniform(0.0, 1.0))))
        run.pass_time(run.chance.uniform(0.0, 2.5))
        self._start_in_any_order()

    def _start_in_any_order(self) -> None:
        run = self.run
        down = [one for one in BROKERS if not run.cluster.brokers[one].alive()]
        run.chance.shuffle(down)
        if run.chance.random() < 0.5:
            for broker_id in down:
                run.launch(broker_id)
                run.pass_time(run.chance.uniform(0.0, 1.0))

    def _kill_leaders(self) -> None:
        run = self.run
        for _ in range(run.chance.randint(2, 4)):
            leader = run.leader(run.chance.randrange(run.partitions))
            run.kill(leader)
            run.pass_time(run.chance.uniform(0.0, 0.6))
            run.start(leader)

    def _kill_controller(self) -> None:
        self.run.kill(self.run.controller())
        self.run.pass_time(self.run.chance.uniform(0.0, 1.5))

    def _pause_some(self) -> None:
        run = self.run
        for broker_id in self._some(2):
            run.pause(broker_id)
            run.pass_time(run.chance.uniform(0.0, 0.5))
        run.pass_time(run.chance.uniform(0.2, 4.0))

    def _restart_in_order(self) -> None:
        run = self.run
        for broker_id in self._some():
            run.stop(broker_id)
            run.pass_time(run.chance.uniform(0.0, 1.0))
            run.start(broker_id)
            if run.chance.random() < 0.7:
                run.wait_in_sync()

    # --- machines

    def _crash(self, lose: Callable[[int], None], victims: Sequence[int] = BROKERS) -> None:
        """Crash one machine, which loses data by ``lose``; other brokers may be killed at the same time."""
        run = self.run
        run.heal()
        victim = run.chance.choice(victims)
        others = [one for one in BROKERS if one != victim]
        run.kill(victim, *run.chance.sample(others, run.chance.randint(0, 2)))
        lose(victim)
        run.pass_time(run.chance.uniform(0.0, 1.0))
        self._start_in_any_order()
        run.start_down()
        run.wait_in_sync()

    def _lose_tail(self) -> None:
        run = self.run

        def lose(victim: int) -> None:
            for folder in run.cluster.brokers[victim].log_dirs:
                lost = lose_unsynced_tail(folder, TOPIC, run.partitions, run.chance)
                run.record(f"broker {victim} lost its tail in {folder.name}: {lost}")

        self._crash(lose)

    def _lose_disk(self) -> None:
        def lose(victim: int) -> None:
            for folder in self.run.cluster.brokers[victim].log_dirs:
                lose_everything(folder)
            self.run.record(f"broker {victim} lost its disks")

        # A voter with an empty metadata log observes from then on: a second one would end the majority.
        is_quorum = isinstance(self.run.cluster, QuorumBrokers)
        self._crash(lose, BROKERS[:1] if is_quorum else BROKERS)

    def _fill_disk(self) -> None:
        assert self.small_disk is not None
        self._fill(self.small_disk, SMALL_DISK_OF)

    def _fill_second_folder(self) -> None:
        assert self.second_disk is not None
        self._fill(self.second_disk, SECOND_DISK_OF)

    def _fill(self, disk: SmallDisk, broker_id: int) -> None:
        """Fill the disk of a broker's log directory; if the directory fails, wait for other leaders.

        Then free the space and restart the broker, which uses the directory again.
        """
        run = self.run
        broker = run.cluster.brokers[broker_id]
        if not broker.alive():
            run.start(broker_id)
        outages = broker.outages(disk.folder)
        disk.fill(DISK_LEFT_BYTES)
        run.record(f"fills {disk.folder.name}")
        run.pass_time(run.chance.uniform(1.0, 6.0))
        if broker.alive() and broker.outages(disk.folder) > outages:
            lost = [one for one in range(run.partitions) if (disk.folder / f"{TOPIC}-{one}").is_dir()]
            run.wait_not_led_by(broker_id, lost)
            self.outages_seen += bool(lost)
        disk.heal()
        if run.cluster.brokers[broker_id].alive():
            run.kill(broker_id)
        run.start(broker_id)

    # --- network and store

    def _pair(self) -> tuple[int, int]:
        one, other = self.run.chance.sample(BROKERS, 2)
        return one, other

    def _cut_links(self) -> None:
        assert self.network is not None
        one, other = self._pair()
        self.run.record(f"cuts {one} and {other} apart")
        self.network.cut_both(node(one), node(other))
        self.run.pass_time(self.run.chance.uniform(0.5, 6.0))

    def _cut_one_way(self) -> None:
        assert self.network is not None
        for _ in range(self.run.chance.randint(1, 3)):
            one, other = self._pair()
            self.run.record(f"what {one} sends to {other} is lost")
            self.network.cut(node(one), node(other))
            self.run.pass_time(self.run.chance.uniform(0.3, 3.0))

    def _isolate(self) -> None:
        """Cut a broker off from the other brokers, or also from clients, or also from the store."""
        assert self.network is not None
        victim = self.run.chance.choice(BROKERS)
        others = [node(one) for one in BROKERS if one != victim]
        cut_off = self.run.chance.choice((others, [*others, CLIENTS], [*others, CLIENTS, *STORES]))
        self.run.record(f"cuts {victim} off from {cut_off}")
        self.network.isolate(node(victim), *cut_off)
        self.run.pass_time(self.run.chance.uniform(0.5, 5.0))

    def _cut_and_kill(self) -> None:
        assert self.network is not None
        one, other = self._pair()
        self.run.record(f"cuts {one} and {other} apart")
        self.network.cut_both(node(one), node(other))
        self.run.pass_time(self.run.chance.uniform(0.0, 3.0))
        self._kill_some()

    def _cut_from_store(self) -> None:
        """Cut some brokers off from one, two or all of the store's servers."""
        assert self.network is not None
        victims = self._some(2)
        servers = self.run.chance.sample(STORES, self.run.chance.randint(1, len(STORES)))
        self.run.record(f"cuts {victims} off from {servers}")
        for victim in victims:
            self.network.isolate(node(victim), *servers)
        self.run.pass_time(self.run.chance.uniform(0.5, 5.0))

    def _kill_store_leader(self) -> None:
        assert self.ensemble is not None
        server = self.ensemble.leader()
        self.run.record("kills ZooKeeper's leader")
        server.kill()
        self.run.pass_time(self.run.chance.uniform(0.0, 3.0))
        server.start()
        server.wait_ready()

    def _kill_store_servers(self) -> None:
        """Kill one or two of the store's servers (two: no quorum), and start them again after a while."""
        assert self.ensemble is not None
        for server in self._some_servers():
            server.kill()
        self.run.pass_time(self.run.chance.uniform(0.0, 4.0))
        self.ensemble.heal()

    def _stop_store_servers(self) -> None:
        """Pause some of the store's servers with SIGSTOP for a while."""
        assert self.ensemble is not None
        for server in self._some_servers():
            server.signal(signal.SIGSTOP)
        self.run.pass_time(self.run.chance.uniform(0.5, 6.0))
        self.ensemble.heal()

    def _some_servers(self) -> list[ZooKeeperServer]:
        assert self.ensemble is not None
        servers = self.run.chance.sample(self.ensemble.servers, self.run.chance.randint(1, 2))
        self.run.record(f"of ZooKeeper's servers: {[server.host + ' ' + server.mode for server in servers]}")
        return servers

    def _cut_store_servers(self) -> None:
        """Cut one server off from the other two, in both directions or one; brokers reach all three."""
        assert self.network is not None and self.ensemble is not None
        victim = self.run.chance.choice(STORES)
        others = [one for one in STORES if one != victim]
        both = self.run.chance.random() < 0.7
        self.run.record(f"cuts {victim} off from {others}, both ways: {both}")
        for other in others:
            self.network.cut(victim, other)
            if both:
                self.network.cut(other, victim)
        self.run.pass_time(self.run.chance.uniform(0.5, 8.0))
        if self.run.chance.random() < 0.5:
            self._kill_some()
