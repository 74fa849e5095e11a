"""Before anything else: progress bars change from run to run, and the notebooks' outputs are compared."""

import os

os.environ["TQDM_DISABLE"] = "1"
