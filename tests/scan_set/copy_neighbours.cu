int main() {
  for (int i = 0; i + 1 < gpus; ++i)
    cudaMemcpyPeerAsync(halo[i + 1], i + 1, edge[i], i, bytes, stream[i]);
}
