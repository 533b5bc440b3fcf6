"""Writes a result of the model check as text: each step, and the log of each replica after it."""

from __future__ import annotations

from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.tables import View
from nilometer.simulation.model_check.world import Step, World

_STEP_TEXTS = {
    "produce": "broker {0} appends value {1}",
    "serve": "the fetch of broker {0} arrives at its leader",
    "take": "the fetch response arrives at broker {0}",
    "alter": "the ISR change that broker {0} requests arrives at the controller",
    "take-alter": "the controller's response arrives at broker {0}",
    "learn": "broker {0} reads the next metadata entry",
    "ask-again": "the fetch of broker {0} times out, and it fetches again",
    "lag": "broker {0} finds that {1} has lagged for too long",
    "crash": "broker {0} crashes",
    "expire": "the session of broker {0} expires while it runs",
    "notice": "the session of broker {0} expires",
    "restart": "broker {0} is back with {1} records",
    "restart-forgetful": "broker {0} is back with {1} records and no high watermark",
    "restart-unproven": "broker {0} is back with {1} records and cannot prove that these are all",
    "rejoin": "broker {0} finds itself fenced and registers again",
    "elect": "broker {0} is elected",
    "depose": "the controller is deposed and does not know it",
    "stale-append": "the deposed controller writes what it decided on its old image",
}


def report(world: World, seen: Exploration) -> list[str]:
    """Return the lines of the report: the size of the search, and the steps to the violation, if any."""
    how_far = "every reachable state" if seen.is_complete else f"as far as {seen.depth} steps"
    lines = [f"{world.bounds}", f"{seen.states:,} states, {seen.transitions:,} steps: {how_far}"]
    if seen.violation is None:
        return [*lines, "no violation"]
    lines += [f"VIOLATION after {len(seen.counterexample)} steps: {seen.violation}", ""]
    for number, (step, state) in enumerate(seen.counterexample, 1):
        lines.append(f"{number:3}. {describe_step(step)}")
        lines += [f"       {_drawn(view)}" for view in world.views_of(state)]
    return lines


def describe_step(step: Step) -> str:
    """Return the sentence that describes ``step``."""
    name, broker, detail = step
    plain, kept, old = name.partition("-and-keep")
    text = _STEP_TEXTS[plain].format(broker, detail)
    if not kept:
        return text
    return (
        f"{text}; its previous request is still in flight" if old else f"{text}, and will be delivered again"
    )


def _drawn(view: View) -> str:
    part = "no role" if view.is_up else "down"
    if view.serves:
        part = f"{'leader' if view.is_leader else 'follower'} e{view.leader_epoch}"
    cells = (
        f"[{value}·e{epoch}]" if offset < view.high_watermark else f" {value}·e{epoch} "
        for offset, (value, epoch) in enumerate(zip(view.values, view.epochs, strict=True))
    )
    return f"{view.broker}  {part:12} HW {view.high_watermark}  {''.join(cells)}".rstrip()
