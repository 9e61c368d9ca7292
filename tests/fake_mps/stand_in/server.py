"""nvidia-cuda-mps-server: stays until it is killed."""

import os
import signal

if ready := os.environ.get(
    "FAKE_MPS_READY"
):  # of the stand-in daemon; a real one does not wait for it
    os.close(int(ready))
while True:
    signal.pause()
