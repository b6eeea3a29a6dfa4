"""One thread a test process: pytest runs several side by side, and threads that wait for each other spin."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["LOKY_MAX_CPU_COUNT"] = "1"
