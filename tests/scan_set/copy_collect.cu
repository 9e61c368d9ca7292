int main() {
  for (int i = 1; i < gpus; ++i)
    cudaMemcpyPeer(all + i * n, 0, part[i], i, 64);
}
