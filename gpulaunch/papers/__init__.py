"""Results of the papers that gpulaunch builds on, beside what its own simulator makes of the same."""
