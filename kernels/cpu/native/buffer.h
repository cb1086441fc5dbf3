#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace remora {

// Memory that grows and is not kept across growth. Aligned for whole registers.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }

  T* get() const { return data_; }

  T* fit(std::int64_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes <= size_) return data_;
    std::free(data_);
    size_ = 0;  // A smaller step may come after one that there is no memory for.
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = bytes;
    return data_;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace remora
