"""The three phases of a mapping: ranks to nodes, then to cores, and to GPUs (magc-2016 V-A)."""
# pure: decides on plain values
