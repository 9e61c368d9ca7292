int main(void) {
  int ncclAllReduce = 3;
  int MPI_Send[2] = {1, 2};
  return ncclAllReduce + MPI_Send[0] + sizeof(ncclAllReduce);
}
