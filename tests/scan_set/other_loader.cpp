#include <dlfcn.h>
#include <nccl.h>

#include <string>

namespace dynload {

typedef ncclResult_t (*ncclAllReduce_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                        cudaStream_t);
typedef ncclResult_t (*ncclBroadcast_t)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);

struct Library {
  void *handle = nullptr;
  ncclAllReduce_t ncclAllReduce = nullptr;
  ncclBroadcast_t ncclBroadcast = nullptr;
  decltype(&::ncclReduceScatter) reduceScatter = nullptr;
};

#define LOAD_SYMBOL(lib, name)                                      \
  do {                                                              \
    (lib).name = (name##_t)dlsym((lib).handle, #name);              \
    if (!(lib).name) return std::string("no ") + #name;             \
  } while (0)

std::string load(Library &lib) {
  lib.handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!lib.handle) return dlerror();
  LOAD_SYMBOL(lib, ncclAllReduce);
  LOAD_SYMBOL(lib, ncclBroadcast);
  lib.reduceScatter = (decltype(&::ncclReduceScatter))dlsym(lib.handle, "ncclReduceScatter");
  return {};
}

}  // namespace dynload
