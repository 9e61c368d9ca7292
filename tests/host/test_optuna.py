"""Leases of GPUs for the trials of a study, by the real optuna."""

import os
import subprocess
import sys
import threading

import pytest
from conftest import Launcher

import gpulaunch

optuna = pytest.importorskip("optuna", reason="optuna is not installed")

TRIALS, AT_ONCE = 8, 4
SHOW = [sys.executable, "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"]


def test_no_two_trials_have_one_gpu(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a study with n_jobs=4 each trial has a GPU of its own, as has the program of the study."""
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    monkeypatch.setenv("GPULAUNCH_TOPOLOGY", "dgx1-v100")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    before = dict(os.environ)
    at_work: dict[int, int] = {}
    twice: list[int] = []
    all_began = threading.Barrier(AT_ONCE)

    def objective(trial: optuna.Trial) -> float:
        with gpulaunch.allocate(1, wait=True) as lease:
            (gpu,) = lease.gpus
            if at_work.setdefault(gpu, trial.number) != trial.number:
                twice.append(gpu)
            all_began.wait()  # all of a round have their GPUs
            told = subprocess.check_output(SHOW, env=lease.environment(), text=True)
            all_began.wait()
            at_work.pop(gpu, None)
        assert told == f"{lease.uuids[0]}\n"
        return trial.suggest_float("x", 0, 1)

    with gpulaunch.allocate(1) as own:
        at_work[own.gpus[0]] = -1
        own.apply()
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
        study.optimize(objective, TRIALS, n_jobs=AT_ONCE)
    states = [trial.state for trial in study.trials]
    assert (twice, states) == ([], [optuna.trial.TrialState.COMPLETE] * TRIALS)
    assert (launcher.records(), dict(os.environ)) == ([], before)
