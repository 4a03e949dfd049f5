"""Work that is killed whenever it touches a file, until it ends. For processes that have loaded neither torch nor
threads: the tests of token files run it in processes of their own.
"""

import os
import signal
import sys


def until_it_ends(work, check, before=lambda: None):
    """Do the work in a process that dies at the first file that it touches, then at the second, and so on; returns how
    often. `before` and `check` frame each time.
    """
    step, ended = 0, False
    while not ended:
        step += 1
        before()
        child = os.fork()
        if child == 0:
            die_at(step)
            work()
            os._exit(0)
        ended = os.waitpid(child, 0)[1] == 0
        check()
    return step


def die_at(step):
    counted = 0

    def watch(event, arguments):
        nonlocal counted
        if event in ("open", "os.rename", "os.remove"):
            counted += 1
            if counted == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
