#include <cstddef>
#include <queue>

namespace sim {
struct Packet { int from, to; std::size_t bytes; };

// The simulated machine has the same names as the real one.
class Fabric {
 public:
  int MPI_Send(const void *, int count, int dest) { queue_.push({rank, dest, std::size_t(count)}); return 0; }
  int MPI_Recv(void *, int count, int source);
  int rank = 0;
 private:
  std::queue<Packet> queue_;
};

int Fabric::MPI_Recv(void *, int count, int source) { queue_.pop(); return count + source; }

int ncclSend(const void *data, std::size_t n, int peer) { return data ? int(n) + peer : 0; }
}  // namespace sim

struct Table { int (*MPI_Isend)(const void *, int, int); };

int main() {
  sim::Fabric fabric, *remote = &fabric;
  Table table{};
  float x[16];
  for (int i = 0; i < 8; ++i) {
    fabric.MPI_Send(x, 16, (fabric.rank + 1) % 8);
    remote->MPI_Recv(x, 16, i);
    sim::ncclSend(x, sizeof x, i);
    if (table.MPI_Isend) table.MPI_Isend(x, 16, i);
  }
}
