#!/bin/sh
# Builds the core with a sanitizer and runs what works with threads and with memory of its own:
#   run.sh address|thread                    programs in C++, tests, a slice of the fuzzer
#   run.sh address|thread ARGUMENTS...       only the tests, with these arguments for pytest
#
# Only the core is instrumented; Python and torch are as installed. So that the core finds the sanitizer's runtime, it is
# loaded before everything else.
set -eu
kind=$1
shift
python=${PYTHON:-python3}
package=build/sanitize-$kind
tests="tests/smoke tests/test_streams.py tests/test_late_errors.py tests/test_memory*.py tests/test_trace.py
  tests/test_random.py tests/test_products.py tests/test_adaptive.py tests/test_endurance.py tests/test_endurance_processes.py"

NEURON_BUILD_SANITIZE=$kind "$python" build_core.py --package "$package"

library() {
  "${CXX:-g++}" -print-file-name="$1"
}

left_out=
# Leaks are not looked for: Python and torch keep memory until the process ends on purpose, and the endurance tests
# measure what we keep. Errors end the process with this code, so that no test can swallow them.
code=99
case $kind in
  address)
    # libstdc++ too, or ASan does not find the function that throws exceptions, which Python itself does not link.
    preload="$(library libasan.so) $(library libstdc++.so)"
    export ASAN_OPTIONS="detect_leaks=0:exitcode=$code:detect_stack_use_after_return=1"
    export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:exitcode=$code"
    ;;
  thread)
    # A loader's workers, forked from a process with threads, start threads: TSan ends such a child.
    left_out="--deselect=tests/test_memory_pinned.py::test_data_loader[2]
      --deselect=tests/test_endurance_processes.py::test_processes[0]"
    preload="$(library libtsan.so)"
    export TSAN_OPTIONS="halt_on_error=1:exitcode=$code:ignore_noninstrumented_modules=1"
    ;;
  *)
    echo "run.sh: address or thread, not $kind" >&2
    exit 2
    ;;
esac
export NEURON_SANITIZER="$kind" PYTHONPATH="$package" PYTHONMALLOC=malloc

# TSan of GCC 12 cannot start where the kernel spreads mappings too widely.
run() {
  echo "$*"
  setarch "$(uname -m)" --addr-no-randomize env "$@"
}

if [ $# -gt 0 ]; then
  run LD_PRELOAD="$preload" "$python" -m pytest -q -p no:cacheprovider $left_out $tests "$@"
  exit
fi
for program in trace_ring_stress stream_stress memory_stress; do
  run "$package/$program"
done
run LD_PRELOAD="$preload" "$python" -m pytest -q -p no:cacheprovider $left_out $tests
# One process, so that what is wrong with memory or threads is found beside what ran before it.
run LD_PRELOAD="$preload" "$python" -m tests.fuzz --programs 200 --processes 1
