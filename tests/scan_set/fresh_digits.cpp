#include <mpi.h>
constexpr int million = 1'000'000; char c = 'x'; auto s = u8"MPI_Bcast(";
wchar_t w = L'\''; /* ' */ // "
void send(int rank) { MPI_Ssend(b, million, MPI_CHAR, 1 + rank, 0, MPI_COMM_WORLD); }
