int main() {
  for (int t = 0; t < steps; ++t) {
    for (int i = 0; i < gpus; ++i) {
      int right = (i + 1) % gpus;
      cudaMemcpyPeer(buffer[right], right, buffer[i], i, bytes);
    }
  }
}
