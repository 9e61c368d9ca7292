"""The meanings of Xids, the numbers by which NVIDIA's driver reports faults.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), its catalogue, in our words.
"""
# pure: decides on plain values

XIDS = {
    8: "GPU stopped processing",
    13: "graphics engine exception, most often a fault of the program",
    31: "GPU memory page fault, most often a fault of the program",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing, a fault of the program",
    45: "the program was cleaned up after an earlier fault, or was ended",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping failed to be recorded",
    68: "NVDEC0 exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    140: "unrecovered ECC error",
    154: "GPU recovery action changed",
}
"""What each number means, in a few words."""


def describe_xid(number: int) -> str:
    """Return an Xid with its meaning, such as "Xid 79 (GPU has fallen off the bus)"."""
    meaning = XIDS.get(number)
    return f"Xid {number} ({meaning})" if meaning else f"Xid {number}, see NVIDIA's Xid catalogue"
