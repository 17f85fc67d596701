from __future__ import annotations

import sys

from torch_neuronx.parity.command import main

sys.exit(main())
