#define LONG_LINE 1 + \
   2 + \
   3
int main() {
  int a = 1; \
  int b = 2;
  while (a) {
    ::ncclAllReduce(x, y, n, ncclFloat, ncclSum, comm, s);
  }
}
