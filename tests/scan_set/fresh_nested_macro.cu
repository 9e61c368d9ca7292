#include <nccl.h>
#define TYPED(name, type) name(a, b, n, type, ncclSum, comm, s)
#define SUM_FLOAT TYPED(ncclAllReduce, ncclFloat)
#define CHECK(call) check((call), #call, __FILE__, __LINE__)
#define JOIN(prefix, op) prefix##op
void train() {
  for (auto &batch : batches) {
    SUM_FLOAT;
    CHECK(CHECK(JOIN(nccl, ReduceScatter)(a, b, n, ncclFloat, ncclSum, comm, s)));
  }
}
