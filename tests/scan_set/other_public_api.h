#ifndef DIST_PUBLIC_API_H
#define DIST_PUBLIC_API_H
#include <mpi.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* To be called after ncclCommInitRank(); wraps ncclAllReduce(). */
int dist_all_reduce(void *data, size_t n);

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);
extern int MPI_Send(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
typedef int (*send_hook)(int (*MPI_Isend)(const void *, int), void *user);

#define DIST_SUM(data, n) ncclAllReduce((data), (data), (n), ncclFloat, ncclSum, dist_comm(), dist_stream())
#define DIST_EXCHANGE(to, from)                             \
  do {                                                      \
    ncclSend(send, n, ncclFloat, (to), dist_comm(), 0);     \
    ncclRecv(recv, n, ncclFloat, (from), dist_comm(), 0);   \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif
