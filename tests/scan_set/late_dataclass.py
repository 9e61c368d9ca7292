from dataclasses import dataclass

from mpi4py import MPI


@dataclass
class Job:
    comm: MPI.Comm
    size: int = 0

    def share(self, data):
        self.comm.Bcast(data)
