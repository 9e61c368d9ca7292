"""The labels that identify gpulaunch's containers and images, in any engine."""
# pure: decides on plain values

LEASE_LABEL = "io.gpulaunch.lease"
"""Id of the lease that a container was made under."""

GPUS_LABEL = "io.gpulaunch.gpus"
"""UUIDs of the GPUs that a container was made with."""

SHARE_LABEL = "io.gpulaunch.share"
"""A container's percentage of the SMs, if it shares its GPUs."""

PROFILE_LABEL = "io.gpulaunch.profile"
"""The profile of an image's jobs: its name, or the whole of it as TOML."""
