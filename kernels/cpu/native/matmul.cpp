#include "matmul.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace remora {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 12;  // 24 sums, 2 weights and an input in 32 registers.
#else
constexpr int kRows = 3;  // 12 sums, a weight and 3 inputs in 16 registers.
#endif
constexpr int kRowsOfItem = 192;
constexpr std::int64_t kBytesOfItem = 128 * 1024;
constexpr int kAhead = 4096;  // Bytes: memory answers late, and the hardware does not look beyond a page of its own.

struct Store {
  float* to;
  std::int64_t stride;
  int outputs;

  void operator()(int row, int column, Lanes a, Lanes b) const {
    put(row, column, a);
    put(row, column + kLanes, b);
  }

  void put(int row, int column, Lanes a) const {
    float* at = to + row * stride + column;
    if (column + kLanes <= outputs) return store(at, a);
    float part[kLanes];
    store(part, a);
    for (int lane = 0; column + lane < outputs; ++lane) at[lane] = part[lane];
  }
};

struct Add {
  float* to;
  std::int64_t stride;

  void operator()(int row, int column, Lanes a, Lanes b) const {
    float* at = to + row * stride + column;
    store(at, add(load(at), a));
    store(at + kLanes, add(load(at + kLanes), b));
  }
};

struct Gate {
  Number* to;
  std::int64_t stride;

  void operator()(int row, int column, Lanes gate, Lanes up) const {
    const Lanes sigmoid = div(gate, add(splat(1.0f), exponential(sub(splat(0.0f), gate))));
    narrow(to + row * stride + column / 2, mul(sigmoid, up));
  }
};

// kCount rows of x by one panel.
template <int kCount, class Finish>
inline void tile(const Number* x, int row, const Packed& weights, int index, const Finish& finish) {
  Lanes sums[kCount][2];
  for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = splat(0.0f);
  const Number* weight = weights.panel(index);
  const Number* inputs[kCount];
  for (int r = 0; r < kCount; ++r) inputs[r] = x + static_cast<std::int64_t>(row + r) * weights.inputs;
  for (int k = 0; k < weights.inputs; k += kPair, weight += kPanel * kPair) {
    const Operand a = load_operand(weight), b = load_operand(weight + kLanes * kPair);
    for (int line = 0; line < static_cast<int>(sizeof(Number)) * kPanel * kPair; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(weight) + kAhead + line, _MM_HINT_T1);
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      const Operand input = splat_operand(inputs[r] + k);
      sums[r][0] = dot(sums[r][0], a, input);
      sums[r][1] = dot(sums[r][1], b, input);
    }
  }
  const int column = index * kPanel;
  for (int r = 0; r < kCount; ++r) {
    if (weights.bias != nullptr) {
      sums[r][0] = add(sums[r][0], load(weights.bias + column));
      sums[r][1] = add(sums[r][1], load(weights.bias + column + kLanes));
    }
    finish(row + r, column, sums[r][0], sums[r][1]);
  }
}

template <class Finish, int... kCounts>
inline void few_rows(int count, const Number* x, int row, const Packed& weights, int index, const Finish& finish,
                     std::integer_sequence<int, kCounts...>) {
  using Tile = void (*)(const Number*, int, const Packed&, int, const Finish&);
  static constexpr Tile tiles[] = {tile<kCounts + 1, Finish>...};
  tiles[count - 1](x, row, weights, index, finish);
}

template <class Finish>
void product(Team& team, const Number* x, int rows, const Packed& weights, const Finish& finish) {
  const int panels = weights.num_panels();
  const std::int64_t panel_bytes = static_cast<std::int64_t>(sizeof(Number)) * kPanel * weights.inputs;
  const int fair = std::max(1, panels / (3 * team.size()));
  const int together = std::clamp(static_cast<int>(kBytesOfItem / panel_bytes), 1, fair);
  const int groups = (panels + together - 1) / together;
  const int blocks = (rows + kRowsOfItem - 1) / kRowsOfItem;
  team.each(groups * blocks, [&](int item) {
    const int begin = item / groups * kRowsOfItem, end = std::min(rows, begin + kRowsOfItem);
    const int group = item % groups;
    for (int index = group * together; index < std::min(panels, (group + 1) * together); ++index)
      for (int row = begin; row < end; row += kRows)
        few_rows(std::min(kRows, end - row), x, row, weights, index, finish,
                 std::make_integer_sequence<int, kRows>());
  });
}

}  // namespace

void multiply(Team& team, const Number* x, int rows, const Packed& weights, float* to, std::int64_t stride) {
  product(team, x, rows, weights, Store{to, stride, weights.outputs});
}

void multiply_add(Team& team, const Number* x, int rows, const Packed& weights, float* to, std::int64_t stride) {
  product(team, x, rows, weights, Add{to, stride});
}

void multiply_gated(Team& team, const Number* x, int rows, const Packed& weights, Number* to) {
  product(team, x, rows, weights, Gate{to, weights.outputs / 2});
}

}  // namespace remora
