#include <nccl.h>
static inline ncclResult_t
ncclAllGather(const void *a, void *b, size_t n);
std::string describe() { return "ncclAllGather(" + std::to_string(1) + ")"; }
using Fn = decltype(&ncclAllReduce);
Fn table[] = {nullptr};
