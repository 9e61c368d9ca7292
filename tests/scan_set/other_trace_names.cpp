// Names of traced calls: ncclAllReduce(...), cudaMemcpyPeer(...), MPI_Send(...).
#include <cupti.h>

#include <map>
#include <string>

#define STR(x) #x
#define NAME_OF(f) {k_##f, STR(f)}

enum Kind { k_ncclAllReduce, k_ncclSend, k_cudaMemcpyPeerAsync, k_MPI_Allreduce };

static const std::map<int, std::string> kNames = {
    NAME_OF(ncclAllReduce),
    NAME_OF(ncclSend),
    NAME_OF(cudaMemcpyPeerAsync),
    {k_MPI_Allreduce, "MPI_Allreduce"},
};

/* An all-reduce of n bytes over k ranks moves 2 n (k - 1) / k bytes:
   ncclAllReduce(send, recv, n, ncclFloat, ncclSum, comm, stream); */
void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const CUpti_CallbackData *info) {
  switch (id) {
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeer_v4000:
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000:
      count(k_cudaMemcpyPeerAsync);
      break;
    default:
      break;
  }
}
