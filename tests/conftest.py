"""Before torch is loaded: threads that wait sleep, so that tests are quick on a busy machine too."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
