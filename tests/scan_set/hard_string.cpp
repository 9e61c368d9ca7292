#include <cstdio>
int main() {
  puts("ncclAllReduce(a, b, n)");
  char quote = '"'; puts("cudaMemcpyPeer(\"");
  const char *code = R"cuda(
    ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s); ")"
  )cuda";
  return code[0] == '\'';
}
