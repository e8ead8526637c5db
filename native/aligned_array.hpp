// Memory for vectors: whole cache lines, not initialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace treadle {

template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(int64_t count)
      : data_(new (std::align_val_t{64}) T[static_cast<size_t>(count)]) {}
  T* get() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Delete> data_;
};

}  // namespace treadle
