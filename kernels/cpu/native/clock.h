#pragma once

#include <chrono>

namespace remora {

// Adds what passes to the part that it was spent on, in seconds.
class Clock {
 public:
  explicit Clock(double* times) : times_(times), last_(now()) {}
  void lap(int part) {
    const double time = now();
    times_[part] += time - last_;
    last_ = time;
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double* times_;
  double last_;
};

}  // namespace remora
