"""The code of the bare interpreter (`python -c`): run the program, then its tests, then report the worker's number.

A program that learns the number could pass its tests by reporting it. So while the program runs, the number is in no variable,
constant or file, only on the value stack of one expression, which frames do not show. No Python function of ours is called
between the program's start and the verdict, so there is none to patch. Tracing, which could jump over tests, and looking into
frames' stacks end the process.
Removing a trace function, as doctest does, is allowed. The garbage collector may list objects of the program: older objects are
frozen, and listing them after `gc.unfreeze` ends the process, since the list of audit hooks is among them.

As in the harnesses (`exec` in an empty scope) a program is not `__main__`: code under a main guard does not run.
"""

import gc
import marshal
import posix
import sys

REQUEST, REPORT = 3, 4
# Inspecting frames' stacks, jumping and tracing: no solution needs them.
DENIED = frozenset(
    [
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback", "sys.remote_exec"),
        *("sys._current_frames", "sys._current_exceptions", "sys.addaudithook", "cpython.PyInterpreterState_New"),
        *("gc.get_referrers", "gc.get_referents"),
    ]
)
HIDDEN = frozenset(
    [
        *("ctypes", "_ctypes", "_ctypes_test", "_testcapi", "_testinternalcapi", "_testlimitedcapi", "_testbuffer"),
        *("_testmultiphase", "_testsinglephase", "_testclinic", "_xxsubinterpreters", "_interpreters"),
    ]
)


def guard(write, leave):
    """An audit hook: nobody can remove it. It ends the process rather than raise, so its frame is in no traceback."""

    def hook(event, arguments):
        is_hidden = event == "import" and arguments[0].rpartition(".")[2] in HIDDEN_HERE
        # An import by name fails by itself, for the name is None in sys.modules; only a loader names a file.
        if is_hidden and arguments[1] is None and loaded.get(arguments[0], 0) is None:
            return
        is_unfrozen = event == "gc.get_objects" and not frozen()
        if is_hidden or is_unfrozen or event in DENIED_HERE or event.startswith("ctypes."):
            write(REPORT, b"T" + event.encode())
            leave(1)

    DENIED_HERE, HIDDEN_HERE, loaded, frozen = DENIED, HIDDEN, sys.modules, gc.get_freeze_count
    return hook


def unset_only(real):
    """`sys.settrace` or `sys.setprofile` that does nothing for None; the audit event does not tell None from a function."""

    def set_function(function):
        return None if function is None else real(function)

    return set_function


def receive():
    """Return ([the number], program, tests), and empty the file that they were in."""
    data = b""
    while chunk := posix.read(REQUEST, 1 << 20):
        data += chunk
    posix.close(REQUEST)
    return [data[:16]], *marshal.loads(data[16:])


def describe(error):
    """Return type, message and line of the exception that ended the program."""
    try:
        where, trace = "", error.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            where = f" (line {trace.tb_lineno} of the {name[1:-1]})" if name in ("<program>", "<tests>") else where
            trace = trace.tb_next
        words = str(error).splitlines()[:1]
        return f"{type(error).__name__}\n{''.join(words)[:300]}{where}".encode(errors="replace")
    except BaseException:  # noqa: BLE001  (whatever the program's own __str__ does)
        return type(error).__name__.encode(errors="replace")


def main():
    import builtins
    from types import ModuleType

    box, program, tests = receive()
    run, write, leave, is_apart = exec, posix.write, posix._exit, bool(tests)
    sys.modules["__main__"] = ModuleType("__main__")
    scope = {"__builtins__": builtins}
    test_scope = {"__builtins__": dict(builtins.__dict__)}  # the tests' builtins: no patch reaches them
    sys.argv = ["program.py"]
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails as if it were not installed
    sys.settrace, sys.setprofile = unset_only(sys.settrace), unset_only(sys.setprofile)
    sys.addaudithook(guard(write, leave))
    gc.freeze()
    try:
        program = compile(program, "<program>", "exec", dont_inherit=True)
        tests = compile(tests, "<tests>", "exec", dont_inherit=True)
        # Left to right: callees and the number are on the stack before the program starts. x.__ror__(s) is s | x.
        if is_apart:
            write(REPORT, (box.pop(), run(tests, test_scope.__ror__(run(program, scope) or scope)))[0])
        else:
            write(REPORT, (box.pop(), run(program, scope))[0])
    except SystemExit:
        write(REPORT, b"F" + b"SystemExit\nleft before the tests had ended")
    except BaseException as error:  # noqa: BLE001  (whatever ends a program)
        write(REPORT, b"F" + describe(error))
    leave(0)


if __name__ == "__main__":
    main()
