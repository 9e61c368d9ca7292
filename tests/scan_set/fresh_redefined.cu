#define ncclAllReduce(...) ncclSuccess
#define MPI_Bcast my_bcast
int main() { for (;;) { ncclAllReduce(a, b, n); MPI_Bcast(a); } }
