"""The JSON document of a collocation plan; all predictions are under "predicted"."""

from gpulaunch.errors import printable
from gpulaunch.sharing.plan import Configuration, Configurations, Group, GroupMember, Plan
from gpulaunch.sharing.prediction import Gain
from gpulaunch.sharing.workload import Cost, PlanSite
from gpulaunch.show import Document


def plan_document(plan: Plan, site: PlanSite, gpu_model: str, *, idle_estimated: bool) -> Document:
    """Return the document that `gpulaunch plan --json` prints.

    Args:
        plan: the plan from make_plan.
        site: the site that it was made for.
        gpu_model: name of the GPU model.
        idle_estimated: whether the idle power is an estimate, since none was given.
    """
    objective = site.objective
    return {
        "gpu_model": gpu_model,
        "gpus": site.gpus,
        "objective": objective.name,
        "throughput_weight": objective.throughput_weight,
        "energy_weight": objective.energy_weight,
        "throughput_tolerance_percentage": objective.throughput_tolerance_percentage,
        "idle_power_w": site.idle_w,
        "idle_power_estimated": idle_estimated,
        "sequential": _cost(plan.sequential),
        "predicted": _predicted(plan.cost, plan.gain, site),
        "groups": [_group(number, group, site) for number, group in enumerate(plan.groups, 1)],
        "configurations": [_configurations(entry, site) for entry in plan.configurations],
    }


def _cost(cost: Cost) -> Document:
    return {"time_s": _rounded(cost.time_s), "energy_j": _rounded(cost.energy_j)}


def _predicted(cost: Cost, gain: Gain, site: PlanSite) -> Document:
    product = gain.product(site.objective.throughput_weight, site.objective.energy_weight)
    return {
        **_cost(cost),
        "throughput": _rounded(gain.throughput),
        "energy_efficiency": _rounded(gain.energy_efficiency),
        "product": _rounded(product),
    }


def _group(number: int, group: Group, site: PlanSite) -> Document:
    return {
        "group": number,
        "gpu": group.gpu,
        "predicted": {
            "start_s": _rounded(group.start_s),
            **_predicted(group.cost, group.gain, site),
            "stp": _rounded(group.stp),
            "antt": _rounded(group.antt),
        },
        "jobs": [_member(member) for member in group.members],
        "notes": list(group.notes),
        "why_alone": group.why_alone,
    }


def _member(member: GroupMember) -> Document:
    flow = member.workflow
    return {
        "name": printable(flow.job.name),
        "workflow": flow.number,
        "workflows": flow.job.parallel,
        "tasks": flow.tasks,
        "sm_percentage": member.sm_percentage,
        "alone_s": _rounded(flow.alone_s),
        "predicted_end_s": _rounded(member.end_s),
    }


def _configurations(entry: Configurations, site: PlanSite) -> Document:
    return {
        "job": printable(entry.job.name),
        "repetitions": entry.job.repetitions,
        "choices": [_configuration(choice, site) for choice in entry.choices],
        "best": {"tasks": entry.best.tasks, "workflows": entry.best.workflows},
        "limits": list(entry.limits),
    }


def _configuration(choice: Configuration, site: PlanSite) -> Document:
    predicted = _predicted(choice.cost, choice.gain, site)
    return {"tasks": choice.tasks, "workflows": choice.workflows, "predicted": predicted}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
