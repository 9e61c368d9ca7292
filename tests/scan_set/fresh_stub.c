#include <stdio.h>
/* a build without MPI */
int MPI_Allreduce(const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c)
{
    memcpy(r, s, n * 8);
    return 0;
}
int main(void) {
    for (int i = 0; i < 3; i++) MPI_Allreduce(a, b, n, t, o, c);
}
