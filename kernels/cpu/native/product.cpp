// One product by itself, for tests and measurements.

#include <exception>

#include "buffer.h"
#include "matmul.h"
#include "quantise.h"

extern "C" {

// to [rows, outputs] = x [rows, inputs] times the matrix, by `threads` threads, `repeats` times over. False without
// memory or threads.
__attribute__((visibility("default"))) bool remora_product(const remora::Number* x, std::int32_t rows,
                                                           const RemoraMatrix* matrix, std::int32_t outputs,
                                                           std::int32_t inputs, float* to, std::int32_t threads,
                                                           std::int32_t repeats) {
  try {
    remora::Team team(threads);
    remora::Buffer<std::int8_t> bytes;
    remora::Buffer<remora::RowScale> scales;
    remora::Rows taken{x};
    if (matrix->scales != nullptr) {
      taken = {nullptr, bytes.fit(static_cast<std::int64_t>(rows) * inputs), scales.fit(rows)};
      for (std::int64_t row = 0; row < rows; ++row)
        remora::quantise(x + row * inputs, inputs, bytes.get() + row * inputs, scales.get() + row);
    }
    team.run([&](remora::Team::Member& member) {
      for (int repeat = 0; repeat < repeats; ++repeat)
        remora::multiply(member, taken, rows, {*matrix, outputs, inputs}, to, outputs);
    });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // extern "C"
