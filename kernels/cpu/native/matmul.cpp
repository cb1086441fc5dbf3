#include "matmul.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "finish.h"
#include "tiles_int8.h"

namespace remora {

namespace {

constexpr int kRowsOfItem = 192;
constexpr std::int64_t kBytesOfItem = 128 * 1024;

template <class Tiles, class Finish, int... kCounts>
inline void few_rows(int count, const Rows& x, int row, const Packed& weights, int index, const Finish& finish,
                     std::integer_sequence<int, kCounts...>) {
  using Tile = void (*)(const Rows&, int, const Packed&, int, const Finish&);
  static constexpr Tile tiles[] = {Tiles::template tile<kCounts + 1, Finish>...};
  tiles[count - 1](x, row, weights, index, finish);
}

template <class Tiles, class Finish>
void share_out(Team::Member& member, const Rows& x, int rows, const Packed& weights, const Finish& finish) {
  const int panels = weights.num_panels();
  const std::int64_t panel_bytes = static_cast<std::int64_t>(Tiles::kBytes) * kPanel * weights.inputs;
  const int fair = std::max(1, panels / (3 * member.team_size()));
  const int together = std::clamp(static_cast<int>(kBytesOfItem / panel_bytes), 1, fair);
  const int groups = (panels + together - 1) / together;
  const int blocks = (rows + kRowsOfItem - 1) / kRowsOfItem;
  member.each(groups * blocks, [&](int item) {
    const int begin = item / groups * kRowsOfItem, end = std::min(rows, begin + kRowsOfItem);
    const int group = item % groups;
    for (int index = group * together; index < std::min(panels, (group + 1) * together); ++index)
      for (int row = begin; row < end; row += Tiles::kRows)
        few_rows<Tiles>(std::min(Tiles::kRows, end - row), x, row, weights, index, finish,
                        std::make_integer_sequence<int, Tiles::kRows>());
  });
}

template <class Finish>
void product(Team::Member& member, const Rows& x, int rows, const Packed& weights, const Finish& finish) {
  if (weights.matrix.scales != nullptr) return share_out<Int8Tiles>(member, x, rows, weights, finish);
  share_out<NumberTiles>(member, x, rows, weights, finish);
}

}  // namespace

void multiply(Team::Member& member, const Rows& x, int rows, const Packed& weights, float* to, std::int64_t stride) {
  product(member, x, rows, weights, Store{to, stride, weights.outputs});
}

void multiply_add(Team::Member& member, const Rows& x, int rows, const Packed& weights, const float* from, float* to,
                  std::int64_t stride) {
  product(member, x, rows, weights, Add{from, to, stride});
}

void multiply_gated(Team::Member& member, const Rows& x, int rows, const Packed& weights, Number* to) {
  product(member, x, rows, weights, Gate{to, weights.outputs / 2});
}

}  // namespace remora
