void exchange() {
  for (int i = 0; i < gpus; ++i)
    for (int j = 0; j < gpus; ++j)
      if (i != j) cuMemcpyPeer(to[j], context[j], from[i], context[i], bytes);
}
