"""A server of a job: holds the parameters that its scheduler gives it, until the job is over.

python examples/parameter_server/server.py 127.0.0.1:6390
"""

from __future__ import annotations

import sys

from autopar import parameter_server as ps

ps.run_server(sys.argv[1])
