// Which kernel variants this build has and this processor can run.
#pragma once

#include <string>
#include <vector>

#include "types.hpp"

namespace treadle {

// Best first; "portable" is always among them.
std::vector<std::string> runnable_variants();

// The named variant; throws std::invalid_argument where it cannot run.
const Kernels& find_variant(const std::string& name);

}  // namespace treadle
