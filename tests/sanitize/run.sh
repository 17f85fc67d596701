#!/bin/sh
# Runs tests with the core built under a sanitizer: run.sh address|thread [arguments for pytest]
#
# Only the core is instrumented; Python and torch are as installed. So that the core finds the sanitizer's runtime, it is
# loaded before everything else.
set -eu
kind=$1
shift
python=${PYTHON:-python3}
package=build/sanitize-$kind
# What works with threads and with memory of its own.
tests="tests/smoke tests/test_streams.py tests/test_memory*.py tests/test_trace.py tests/test_random.py"

NEURON_BUILD_SANITIZE=$kind "$python" build_core.py --package "$package"

library() {
  "${CXX:-g++}" -print-file-name="$1"
}

# Leaks are not looked for: Python and torch keep memory until the process ends on purpose, and the endurance tests
# measure what we keep. Errors end the process with this code, so that no test can swallow them.
code=99
case $kind in
  address)
    # libstdc++ too, or ASan does not find the function that throws exceptions, which Python itself does not link.
    export LD_PRELOAD="$(library libasan.so) $(library libstdc++.so)"
    export ASAN_OPTIONS="detect_leaks=0:exitcode=$code:detect_stack_use_after_return=1"
    export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:exitcode=$code"
    ;;
  thread)
    export LD_PRELOAD="$(library libtsan.so)"
    export TSAN_OPTIONS="halt_on_error=1:exitcode=$code:suppressions=tests/sanitize/thread.supp:ignore_noninstrumented_modules=1"
    ;;
  *)
    echo "run.sh: address or thread, not $kind" >&2
    exit 2
    ;;
esac

# TSan of GCC 12 cannot start where the kernel spreads mappings too widely.
exec setarch "$(uname -m)" --addr-no-randomize env PYTHONPATH="$package" PYTHONMALLOC=malloc NEURON_SANITIZER="$kind" \
  "$python" -m pytest -q -p no:cacheprovider $tests "$@"
