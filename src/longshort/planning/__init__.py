"""What a run would take on machines that one does not have: memory, bytes sent, time, and the settings that fit.

Pure arithmetic over a configuration: nothing is built, no GPU is asked. `longshort plan` prints it.
"""

from longshort.planning.job import Job, Settings
from longshort.planning.machines import GPUS, Machines
from longshort.planning.plan import job_of, planned
from longshort.planning.search import Estimate, estimate, fastest, sweep

__all__ = ["GPUS", "Estimate", "Job", "Machines", "Settings", "estimate", "fastest", "job_of", "planned", "sweep"]
