// ATen's DispatchStub, declared as PyTorch's own builds declare it: which CPU variants exist is part of its interface,
// and the installed headers leave it to the compiler's command line. Include before anything that includes it.
#pragma once

#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#elif defined(__aarch64__) && defined(__linux__)
#define HAVE_SVE_CPU_DEFINITION
#endif

#include <ATen/native/DispatchStub.h>
