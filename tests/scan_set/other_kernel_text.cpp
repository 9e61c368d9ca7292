#include <nvrtc.h>

#include <sstream>
#include <string>

static const char *kHarness = R"CUDA(
#include <nccl.h>
extern "C" int main() {
  for (int i = 0; i < ITERATIONS; ++i) {
    ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream);
    cudaMemcpyPeerAsync(dst, 1, src, 0, BYTES, stream);
  }
  return "done"[0];
}
)CUDA";

std::string generate(int iterations, size_t count) {
  std::ostringstream os;
  os << "#define ITERATIONS " << iterations << "\n#define COUNT " << count << "\n" << kHarness;
  os << "// tail: MPI_Allreduce(a, b, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);\n";
  os << u8R"(ncclSend(a, n, ncclFloat, 1, comm, s);)" << '"' << "ncclRecv(" << '"' << "\n";
  return os.str();
}

int main() {
  nvrtcProgram program;
  std::string text = generate(10, 1 << 20);
  nvrtcCreateProgram(&program, text.c_str(), "harness.cu", 0, nullptr, nullptr);
  nvrtcCompileProgram(program, 0, nullptr);
}
