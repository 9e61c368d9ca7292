void planes(cudaMemcpy3DPeerParms *p) {
  cudaMemcpy3DPeerAsync(p, stream);
}
