#if 0
int a = ncclGroupStart();
#elif defined(USE_NCCL)
void one() { ncclBcast(x, n, ncclFloat, 0, c, s); }
#else
void one() { }
#endif
# if 0
   #if 1
   void no() { MPI_Alltoall(x); }
   #else
   #endif
# endif
