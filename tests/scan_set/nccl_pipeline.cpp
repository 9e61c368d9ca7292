#include <nccl.h>
void stage(int rank, int stages) {
  if (rank > 0) ncclRecv(in, n, ncclFloat, rank - 1, comm, s);
  compute(in, out);
  if (rank < stages - 1) ncclSend(out, n, ncclFloat, rank + 1, comm, s);
}
