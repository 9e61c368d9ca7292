"""Functions of NCCL, CUDA, MPI and NVSHMEM that make GPUs communicate."""
# pure: decides on plain values

import re

from gpulaunch.scan.call import Interface

_PEER = (3,)


def _nccl_functions() -> dict[str, Interface]:
    """Return the functions of NCCL, whose names RCCL shares.

    For AllReduce NCCL uses trees for small messages, too; the ring is what large ones take.
    """
    rings = {
        "AllReduce": 2,
        "Reduce": 2,
        "Broadcast": 2,
        "Bcast": 1,
        "AllGather": 2,
        "ReduceScatter": 2,
    }
    found = {f"nccl{name}": Interface("ring", elements=count) for name, count in rings.items()}
    found |= {f"nccl{name}": Interface("", peers=_PEER, elements=1) for name in ("Send", "Recv")}
    found |= {
        f"nccl{name}": Interface("all_to_all") for name in ("AllToAll", "AlltoAll", "AllToAllv")
    }
    return found | {f"nccl{name}": Interface("star", elements=2) for name in ("Gather", "Scatter")}


def _cuda_functions() -> dict[str, Interface]:
    """Return the functions of CUDA's two interfaces that copy between GPUs."""
    copies = ("cudaMemcpyPeer", "cudaMemcpyPeerAsync", "cuMemcpyPeer", "cuMemcpyPeerAsync")
    found = {name: Interface("", peers=(1, 3), elements=4) for name in copies}
    boxes = ("cudaMemcpy3DPeer", "cudaMemcpy3DPeerAsync", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync")
    return found | {name: Interface("") for name in boxes}  # the peers are in a structure


def _mpi_functions() -> dict[str, Interface]:
    """Return the functions of MPI, with their nonblocking and persistent forms.

    MPI's trees for broadcast and reduce are binomial.
    """
    patterns = {
        "Allreduce": ("ring", 2),
        "Allgather": ("ring", 1),
        "Allgatherv": ("ring", 1),
        "Reduce_scatter": ("ring", -1),
        "Reduce_scatter_block": ("ring", 2),
        "Bcast": ("tree", 1),
        "Reduce": ("tree", 2),
        "Gather": ("star", 1),
        "Gatherv": ("star", 1),
        "Scatter": ("star", 1),
        "Scatterv": ("star", -1),
        "Scan": ("chain", 2),
        "Exscan": ("chain", 2),
        "Alltoall": ("all_to_all", -1),
        "Alltoallv": ("all_to_all", -1),
        "Alltoallw": ("all_to_all", -1),
        "Neighbor_allgather": ("", 1),
        "Neighbor_allgatherv": ("", 1),
        "Neighbor_alltoall": ("", 1),
        "Neighbor_alltoallv": ("", -1),
        "Neighbor_alltoallw": ("", -1),
    }
    found = {}
    for name, (pattern, count) in patterns.items():
        for full in (f"MPI_{name}", f"MPI_I{name[0].lower()}{name[1:]}", f"MPI_{name}_init"):
            found[full] = Interface(pattern, elements=count)
    for kind in ("", "B", "S", "R"):
        for name in (f"{kind or 'S'}send", f"I{kind.lower()}send", f"{kind}send_init"):
            found[f"MPI_{name[0].upper()}{name[1:]}"] = Interface("", peers=_PEER, elements=1)
    for name in ("Send", "Recv", "Irecv", "Recv_init", "Psend_init", "Precv_init"):
        found[f"MPI_{name}"] = Interface("", peers=_PEER, elements=1)
    both = {
        "Sendrecv": (3, 8),
        "Isendrecv": (3, 8),
        "Sendrecv_replace": (3, 5),
        "Isendrecv_replace": (3, 5),
    }
    found |= {f"MPI_{name}": Interface("", peers=peers, elements=1) for name, peers in both.items()}
    puts = ("Put", "Get", "Accumulate", "Get_accumulate", "Rput", "Rget", "Raccumulate")
    found |= {f"MPI_{name}": Interface("", peers=_PEER, elements=1) for name in puts}
    return found | {GRID: Interface("", "setup")}


GRID = "MPI_Cart_create"
"""Function that sets up a process grid; its second argument is the number of axes."""

C_INTERFACES = _nccl_functions() | _cuda_functions() | _mpi_functions()

_SHMEM = "nvshmem"
_SHMEM_PUT = re.compile(
    r"nvshmemx?_(?:\w+_)?(?:i?put|i?get|[pg])(?:mem|\d+)?(?:_(?:nbi|signal|block|warp|on_stream))*"
)
_SHMEM_ALL = re.compile(
    r"nvshmemx?_(?:\w+_)?(broadcast|f?collect|alltoalls?|reduce|reducescatter)(?:mem|\d+)?(?:_\w+)?"
)
_SHMEM_PATTERNS = {"broadcast": "tree", "alltoall": "all_to_all", "alltoalls": "all_to_all"}


def c_interface(name: str) -> Interface | None:
    """Return what is known of a function by its name; None if it moves nothing between GPUs."""
    if not name.startswith(_SHMEM):
        return C_INTERFACES.get(name)
    if _SHMEM_PUT.fullmatch(name):
        return Interface("", peers=(-2 if name.endswith("_on_stream") else -1,))
    every = _SHMEM_ALL.fullmatch(name)
    return Interface(_SHMEM_PATTERNS.get(every[1], "ring")) if every else None


SUBGROUPS = {
    "ncclCommSplit",
    "MPI_Comm_split",
    "MPI_Comm_split_type",
    "MPI_Comm_create",
    "MPI_Comm_create_group",
}
"""Functions after which a collective may join only some of the ranks."""

HINTS = {
    "cudaDeviceEnablePeerAccess": "GPUs are given access to each other's memory",
    "cuCtxEnablePeerAccess": "GPUs are given access to each other's memory",
    "cudaIpcOpenMemHandle": "memory of another process's GPU is mapped",
    "cuIpcOpenMemHandle": "memory of another process's GPU is mapped",
}
"""Functions after which kernels and copies may reach other GPUs by plain addresses, unseen."""

QUIET_HEADERS = frozenset(
    [
        "assert",
        "complex",
        "ctype",
        "errno",
        "float",
        "inttypes",
        "limits",
        "locale",
        "math",
        "setjmp",
        "signal",
        "stdalign",
        "stdarg",
        "stdatomic",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "stdnoreturn",
        "string",
        "tgmath",
        "threads",
        "time",
        "uchar",
        "wchar",
        "wctype",
        "unistd",
        "cassert",
        "cctype",
        "cerrno",
        "cfloat",
        "cinttypes",
        "climits",
        "cmath",
        "cstdarg",
        "cstddef",
        "cstdint",
        "cstdio",
        "cstdlib",
        "cstring",
        "ctime",
        "algorithm",
        "any",
        "array",
        "atomic",
        "bit",
        "bitset",
        "chrono",
        "compare",
        "complex",
        "concepts",
        "deque",
        "exception",
        "expected",
        "filesystem",
        "format",
        "fstream",
        "functional",
        "initializer_list",
        "iomanip",
        "ios",
        "iosfwd",
        "iostream",
        "istream",
        "iterator",
        "limits",
        "list",
        "map",
        "memory",
        "mutex",
        "new",
        "numbers",
        "numeric",
        "optional",
        "ostream",
        "queue",
        "random",
        "ranges",
        "ratio",
        "regex",
        "set",
        "shared_mutex",
        "span",
        "sstream",
        "stack",
        "stdexcept",
        "streambuf",
        "string",
        "string_view",
        "thread",
        "tuple",
        "type_traits",
        "typeinfo",
        "unordered_map",
        "unordered_set",
        "utility",
        "valarray",
        "variant",
        "vector",
        "version",
        "cuda",
        "cuda_runtime",
        "cuda_runtime_api",
        "cuda_fp16",
        "cuda_bf16",
        "cooperative_groups",
        "device_launch_parameters",
        "nccl",
        "mpi",
        "nvshmem",
        "nvshmemx",
        "cublas_v2",
        "cudnn",
        "curand",
        "curand_kernel",
        "cufft",
        "cusparse",
        "rccl/rccl",
        "sys/time",
        "sys/types",
        "sys/stat",
        "omp",
    ]
)
"""Headers, without their endings, without functions that communicate or only with known ones."""

CALLERS = {
    "system",
    "popen",
    "fork",
    "execv",
    "execve",
    "execvp",
    "execlp",
    "execl",
    "posix_spawn",
    "dlopen",
    "dlsym",
}
"""Functions that start programs or load libraries, which the scan does not see."""
