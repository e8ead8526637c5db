#include "variants.hpp"

#include <stdexcept>

namespace treadle {

namespace portable {
extern const Kernels kernels;
}
#if defined(TREADLE_X86_VARIANTS)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512bf16 {
extern const Kernels kernels;
}
#endif

namespace {

std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> found;
#if defined(TREADLE_X86_VARIANTS)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (has_avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&avx512bf16::kernels);
  if (has_avx512) found.push_back(&avx512::kernels);
  if (has_avx2) found.push_back(&avx2::kernels);
#endif
  found.push_back(&portable::kernels);
  return found;
}

}  // namespace

std::vector<std::string> runnable_variants() {
  std::vector<std::string> names;
  for (const Kernels* kernels : runnable()) names.emplace_back(kernels->name);
  return names;
}

const Kernels& find_variant(const std::string& name) {
  for (const Kernels* kernels : runnable()) {
    if (kernels->name == name) return *kernels;
  }
  throw std::invalid_argument("no variant " + name + " runs on this processor");
}

}  // namespace treadle
