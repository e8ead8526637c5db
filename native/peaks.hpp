// How fast this machine computes when nothing has to be fetched: what operations are held against.
#pragma once

#include "backend.hpp"
#include "cost.hpp"

namespace treadle {

// Operations per second of all threads together, with the backend's instructions; takes some
// hundredths of a second.
double measure_peak(Backend& backend, Unit unit);

}  // namespace treadle
