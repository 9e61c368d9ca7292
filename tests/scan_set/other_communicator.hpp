#pragma once
#include <nccl.h>

#include <stdexcept>

namespace ml {

template <typename T> struct NcclType;
template <> struct NcclType<float> { static constexpr ncclDataType_t value = ncclFloat; };
template <> struct NcclType<double> { static constexpr ncclDataType_t value = ncclDouble; };

class Communicator {
 public:
  Communicator(int ranks, ncclUniqueId id, int rank) { check(ncclCommInitRank(&comm_, ranks, id, rank)); }
  ~Communicator() { ncclCommDestroy(comm_); }
  Communicator(const Communicator &) = delete;

  template <typename T>
  void allGather(const T *send, T *recv, std::size_t n) {
    check(ncclAllGather(send, recv, n, NcclType<T>::value, comm_, stream_));
  }

  template <typename T>
  void broadcast(T *data, std::size_t n, int root = 0) {
    check(ncclBroadcast(data, data, n, NcclType<T>::value, root, comm_, stream_));
  }

  void sync();

 private:
  static void check(ncclResult_t r) {
    if (r != ncclSuccess) throw std::runtime_error(ncclGetErrorString(r));
  }
  ncclComm_t comm_{};
  cudaStream_t stream_{};
};

}  // namespace ml
