"""Functions and classes of Python packages that make GPUs communicate."""
# pure: decides on plain values

import re
from collections.abc import Iterable

from gpulaunch.profiles.confidence import Confidence
from gpulaunch.records import Record
from gpulaunch.scan.call import Interface, Traffic


class Family(Record):
    """Functions and classes of one package.

    Attributes:
        shown: prefix under which calls are shown.
        prefixes: modules or objects in them that contain the names, at any depth.
        names: what is known of each name.
    """

    shown: str
    prefixes: tuple[str, ...]
    names: dict[str, Interface]


_PEER_KEYWORDS = ("dst", "src", "dest", "source", "perm", "peer", "group_dst", "group_src")


def _interfaces(
    names: str,
    pattern: str,
    traffic: Traffic = "data",
    sure: Confidence = "certain",
    peer: tuple[int, ...] = (),
) -> dict[str, Interface]:
    """Return one interface for each of the names."""
    keywords = () if pattern else _PEER_KEYWORDS
    return {name: Interface(pattern, traffic, sure, peer, keywords) for name in names.split()}


_TORCH_PARALLEL = Family(
    "torch.nn.parallel",
    ("torch.nn", "torch.nn.parallel", "apex.parallel"),
    _interfaces("DistributedDataParallel", "ring", "gradients")
    | _interfaces("DataParallel data_parallel", "star", "gradients")
    | _interfaces("convert_sync_batchnorm", "ring", "small"),
)
_TORCH = Family(
    "torch.distributed",
    ("torch.distributed", "fairscale"),
    _interfaces(
        "all_reduce all_reduce_multigpu all_reduce_coalesced all_gather all_gather_into_tensor "
        "all_gather_multigpu "
        "all_gather_coalesced _all_gather_base all_gather_tensor reduce_scatter "
        "reduce_scatter_tensor "
        "_reduce_scatter_base reduce_scatter_multigpu broadcast broadcast_multigpu reduce "
        "reduce_multigpu",
        "ring",
    )
    | _interfaces("all_gather_object broadcast_object_list", "ring", "small")
    | _interfaces("gather_object scatter_object_list", "star", "small")
    | _interfaces("gather scatter", "star")
    | _interfaces("all_to_all all_to_all_single all_to_all_single_autograd", "all_to_all")
    | _interfaces("send recv isend irecv send_object_list recv_object_list", "", peer=(1,))
    | _interfaces("batch_isend_irecv", "")
    | _interfaces(
        "FullyShardedDataParallel fully_shard ZeroRedundancyOptimizer", "ring", "gradients"
    )
    | _interfaces("parallelize_module", "ring", "gradients", "likely")
    | _interfaces("distribute_tensor", "ring", "setup", "likely")
    | _interfaces(
        "Pipe ScheduleGPipe Schedule1F1B ScheduleInterleaved1F1B PipelineStage pipeline",
        "chain",
        "each",
    ),
)
_TORCH_COMM = Family(
    "torch.cuda.comm",
    ("torch.cuda.comm", "torch.nn.parallel.comm"),
    _interfaces(
        "broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather", "star"
    ),
)
_TORCH_NCCL = Family(
    "torch.cuda.nccl",
    ("torch.cuda.nccl",),
    _interfaces("all_reduce reduce broadcast all_gather reduce_scatter", "ring"),
)
_HOROVOD = Family(
    "horovod",
    ("horovod", "byteps"),
    _interfaces(
        "DistributedOptimizer DistributedGradientTape DistributedTrainer "
        "DistributedAdasumOptimizer push_pull",
        "ring",
        "gradients",
    )
    | _interfaces(
        "allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce "
        "grouped_allreduce_ "
        "grouped_allreduce_async sparse_allreduce_async allgather allgather_async "
        "grouped_allgather reducescatter "
        "reducescatter_async grouped_reducescatter",
        "ring",
    )
    | _interfaces(
        "allgather_object MetricAverageCallback SyncBatchNorm SyncBatchNormalization",
        "ring",
        "small",
    )
    | _interfaces("alltoall alltoall_async", "all_to_all")
    | _interfaces("broadcast broadcast_ broadcast_async broadcast_async_", "ring")
    | _interfaces(
        "broadcast_parameters broadcast_optimizer_state broadcast_variables "
        "broadcast_global_variables "
        "broadcast_object BroadcastGlobalVariablesHook BroadcastGlobalVariablesCallback",
        "ring",
        "setup",
    ),
)
_DEEPSPEED = Family(
    "deepspeed",
    ("deepspeed",),
    _interfaces("initialize", "ring", "gradients")
    | _interfaces("PipelineModule", "chain", "each")
    | _interfaces("init_inference", "ring", "each", "likely")
    | _interfaces("MoE", "all_to_all", "each")
    | {
        name: known
        for name, known in _TORCH.names.items()
        if known.traffic == "data" and name[0].islower()
    },
)
_JAX = Family(
    "jax.lax",
    ("jax.lax",),
    _interfaces("psum pmean pmax pmin all_gather psum_scatter", "ring")
    | _interfaces("all_to_all pswapaxes", "all_to_all")
    | _interfaces("ppermute pshuffle", "", peer=(2,)),
)
_JAX_SHARDED = Family(
    "jax", ("jax",), _interfaces("pjit with_sharding_constraint", "all_to_all", "each", "guess")
)
_MPI = Family(
    "mpi4py.MPI.Comm",
    ("mpi4py.MPI",),
    _interfaces(
        "Allreduce Iallreduce Allgather Iallgather Allgatherv Iallgatherv Reduce_scatter "
        "Ireduce_scatter "
        "Reduce_scatter_block Ireduce_scatter_block allgather",
        "ring",
    )
    | _interfaces("allreduce", "ring", "small")
    | _interfaces("Bcast Ibcast Reduce Ireduce bcast", "tree")
    | _interfaces("reduce", "tree", "small")
    | _interfaces(
        "Gather Igather Gatherv Igatherv Scatter Iscatter Scatterv Iscatterv gather scatter", "star"
    )
    | _interfaces("Scan Iscan Exscan Iexscan", "chain")
    | _interfaces("scan exscan", "chain", "small")
    | _interfaces(
        "Alltoall Ialltoall Alltoallv Ialltoallv Alltoallw Ialltoallw alltoall", "all_to_all"
    )
    | _interfaces(
        "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv "
        "Neighbor_alltoallw "
        "Ineighbor_allgather Ineighbor_alltoall neighbor_allgather neighbor_alltoall",
        "",
    )
    | _interfaces(
        "Send Isend Bsend Ssend Rsend Ibsend Issend Irsend Send_init send isend ssend Recv Irecv "
        "Recv_init recv irecv "
        "Put Get Accumulate Rput Rget",
        "",
        peer=(1,),
    )
    | _interfaces("Sendrecv sendrecv", "", peer=(1, 4))
    | _interfaces("Sendrecv_replace", "", peer=(1, 3))
    | _interfaces("Create_cart", "", "setup"),
)
_TENSORFLOW = Family(
    "tf.distribute",
    ("tensorflow.distribute", "tensorflow.compat.v1.distribute", "tensorflow.compat.v2.distribute"),
    _interfaces(
        "MirroredStrategy MultiWorkerMirroredStrategy CollectiveAllReduceStrategy",
        "ring",
        "gradients",
    )
    | _interfaces("all_reduce all_gather", "ring")
    | _interfaces(
        "ParameterServerStrategy ParameterServerStrategyV2 CentralStorageStrategy",
        "star",
        "gradients",
    ),
)
_TRAINERS = Family(
    "trainer",
    ("transformers", "accelerate", "trl", "ray.train"),
    _interfaces(
        "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer Accelerator TorchTrainer TensorflowTrainer "
        "HorovodTrainer",
        "ring",
        "gradients",
        "likely",
    ),
)
_LIGHTNING = Family(
    "lightning",
    ("lightning", "pytorch_lightning", "lightning_fabric"),
    _interfaces("Trainer Fabric", "ring", "gradients", "likely"),
)
_SERVING = Family("vllm", ("vllm",), _interfaces("LLM", "ring", "each", "likely"))
_CUPY = Family(
    "cupy",
    ("cupyx.distributed", "cupy.cuda.nccl"),
    _interfaces(
        "all_reduce reduce broadcast reduce_scatter all_gather allReduce bcast reduceScatter "
        "allGather",
        "ring",
    )
    | _interfaces("send recv", "", peer=(1,))
    | _interfaces("send_recv", "", peer=(2,))
    | _interfaces("gather scatter", "star")
    | _interfaces("all_to_all", "all_to_all"),
)
_RAY = Family(
    "ray.util.collective",
    ("ray.util.collective",),
    _interfaces("allreduce allreduce_multigpu reduce broadcast allgather reducescatter", "ring")
    | _interfaces("send recv", "", peer=(1,)),
)
_OTHERS = Family(
    "",
    ("chainermn", "paddle.distributed", "paddle"),
    _interfaces("create_multi_node_optimizer DataParallel", "ring", "gradients")
    | {
        name: known
        for name, known in _TORCH.names.items()
        if known.traffic == "data" and name[0].islower()
    },
)
FAMILIES = (
    _TORCH_COMM,
    _TORCH_NCCL,
    _TORCH,
    _TORCH_PARALLEL,
    _HOROVOD,
    _DEEPSPEED,
    _JAX,
    _JAX_SHARDED,
    _MPI,
    _TENSORFLOW,
    _LIGHTNING,
    _TRAINERS,
    _SERVING,
    _CUPY,
    _RAY,
    _OTHERS,
)

ROOTS = frozenset(prefix.partition(".")[0] for family in FAMILIES for prefix in family.prefixes) | {
    "functools",
    "importlib",
    "sys",
    "os",
    "subprocess",
    "typing",
    "runpy",
}
"""Packages whose names are followed; names of all others are ignored."""

QUIET = frozenset(
    [
        "__future__",
        "abc",
        "argparse",
        "array",
        "ast",
        "asyncio",
        "atexit",
        "base64",
        "bisect",
        "builtins",
        "calendar",
        "cmath",
        "collections",
        "concurrent",
        "contextlib",
        "copy",
        "csv",
        "ctypes",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "gc",
        "getopt",
        "getpass",
        "glob",
        "gzip",
        "hashlib",
        "heapq",
        "html",
        "importlib",
        "inspect",
        "io",
        "itertools",
        "json",
        "keyword",
        "linecache",
        "locale",
        "logging",
        "math",
        "mmap",
        "multiprocessing",
        "numbers",
        "operator",
        "os",
        "pathlib",
        "pickle",
        "platform",
        "pprint",
        "queue",
        "random",
        "re",
        "resource",
        "sched",
        "secrets",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "statistics",
        "string",
        "struct",
        "subprocess",
        "sys",
        "tempfile",
        "textwrap",
        "threading",
        "time",
        "timeit",
        "token",
        "tomllib",
        "traceback",
        "types",
        "typing",
        "unittest",
        "urllib",
        "uuid",
        "warnings",
        "weakref",
        "xml",
        "zipfile",
        "zlib",
        "numpy",
        "scipy",
        "pandas",
        "matplotlib",
        "PIL",
        "cv2",
        "sklearn",
        "tqdm",
        "yaml",
        "h5py",
        "einops",
        "numba",
        "tensorboard",
        "torchvision",
        "torchaudio",
        "typing_extensions",
        "optax",
        "flax",
    ]
) | (
    ROOTS
    - {
        "accelerate",
        "transformers",
        "trl",
        "ray",
        "vllm",
        "lightning",
        "pytorch_lightning",
        "paddle",
    }
)
"""Packages that make no GPUs communicate, or only through names known here."""

SUBGROUPS = re.compile(
    r"torch\.distributed\..*(new_group|new_subgroups|init_device_mesh|DeviceMesh)"
    r"|mpi4py\.MPI\..*\.(Split|Create_group)|horovod\..*(ProcessSet|add_process_set)"
)
"""Functions after which a collective may join only some of the ranks."""

STARTERS = re.compile(
    r"subprocess\.(run|Popen|call|check_call|check_output)"
    r"|os\.(system|popen|exec\w+|spawn\w+|fork)|runpy\.\w+|importlib\.import_module"
)
"""Functions that run code which the scan does not see."""


def find_interface(path: str) -> tuple[str, Interface] | None:
    """Return the name under which a function or class is shown, and what is known of it.

    Args:
        path: full name; "()" in it means the result of a call.

    Example:
        >>> find_interface("torch.distributed.distributed_c10d.all_reduce")[0]
        'torch.distributed.all_reduce'
    """
    if path.endswith(("()", "[]")):
        return None
    plain = path.replace("()", "").replace("[]", "")
    module, _, name = plain.rpartition(".")
    for family in FAMILIES:
        interface = family.names.get(name)
        if interface is not None and _is_within(module, family.prefixes):
            return _shown_name(family, plain, name), interface
    return None


def _is_within(module: str, prefixes: Iterable[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _shown_name(family: Family, path: str, name: str) -> str:
    """Return the name under which a call is shown."""
    if family.shown == "horovod":
        return ".".join((*path.split(".")[:2], name))
    if family.shown in ("trainer", "lightning", ""):
        return f"{path.partition('.')[0]}.{name}"
    return f"{family.shown}.{name}"
