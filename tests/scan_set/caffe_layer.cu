// training of one layer, as Caffe does it
void run(int layer) {
  cudaMemcpy(Y, X, sizeof(Dtype) * N, cudaMemcpyDefault);
  ncclAllReduce(blobs[0]->mutable_gpu_diff(),
                blobs[0]->mutable_gpu_diff(), size,
                nccl::dataType<Dtype>::type, ncclSum, comm_, stream_);
  caffe_gpu_scal(size, (Dtype)1.0 / Caffe::solver_count(), blobs[0]->mutable_gpu_diff(), stream_);
}
