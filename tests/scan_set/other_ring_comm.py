from .comm import RingComm


def forward(group, k, v):
    comm = RingComm(group)
    return comm.send_recv_kv(k, v)
