int main() {
  while (true)
    ncclAllReduce /* (not here) */ ( // nor here: ncclSend(
        a, b, n, ncclFloat, ncclSum, c, s);   /* ncclRecv(x) */
}
