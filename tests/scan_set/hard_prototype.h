#ifdef __cplusplus
extern "C" {
#endif
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
extern int MPI_Send(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm);
typedef cudaError_t (*cudaMemcpyPeer_t)(void *, int, const void *, int, size_t);
#ifdef __cplusplus
}
#endif
