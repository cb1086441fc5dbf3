#include "chunk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace remora {

namespace {

#if defined(__AVX512F__)
constexpr int kScoreRows = 8, kValueRows = 6, kWidth = 4;
#else
constexpr int kScoreRows = 3, kValueRows = 3, kWidth = 2;
#endif

// Scores and weights of a member's tile, kept from call to call.
struct Scratch {
  std::vector<float> scores;
  std::vector<Number> weights;

  void fit(int rows) {
    const std::size_t size = static_cast<std::size_t>(rows) * kChunk;
    if (scores.size() >= size) return;
    scores.resize(size);
    weights.resize(size);
  }
};

thread_local Scratch scratch;

// A register's worth of what is needed later, into the second cache: the first can wait for too few lines at a time to
// keep memory busy.
inline void fetch(const Number* operand) {
  for (int line = 0; line < kLanes * kPair * static_cast<int>(sizeof(Number)); line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(operand) + line, _MM_HINT_T1);
}

// Scores of kRows rows and kCount blocks of keys.
template <int kRows, int kCount>
inline void score(const Number* const* queries, const Number* const* keys, const Number* const* ahead, int head_dim,
                  float* scores) {
  Lanes sums[kRows][kCount];
  for (int r = 0; r < kRows; ++r)
    for (int b = 0; b < kCount; ++b) sums[r][b] = splat(0.0f);
  for (int k = 0; k < head_dim; k += kPair) {
    Operand key[kCount];
#pragma GCC unroll 4
    for (int b = 0; b < kCount; ++b) {
      key[b] = load_operand(keys[b] + k * kLanes);
      fetch(ahead[b] + k * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Operand query = splat_operand(queries[r] + k);
#pragma GCC unroll 4
      for (int b = 0; b < kCount; ++b) sums[r][b] = dot(sums[r][b], key[b], query);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int b = 0; b < kCount; ++b) store(scores + r * kChunk + b * kLanes, sums[r][b]);
}

template <int kCount>
void score_rows(int rows, const Number* const* queries, const Number* const* keys, const Number* const* ahead,
                int head_dim, float* scores) {
  constexpr int kMost = 2 * kScoreRows / kCount;
  for (int row = 0; row < rows;) {
    const Number* const* query = queries + row;
    float* to = scores + row * kChunk;
    const int count = std::min(std::min(kMost, kScoreRows), rows - row);
    switch (count) {
      case 1: score<1, kCount>(query, keys, ahead, head_dim, to); break;
      case 2: score<2, kCount>(query, keys, ahead, head_dim, to); break;
      case 3: score<3, kCount>(query, keys, ahead, head_dim, to); break;
#if defined(__AVX512F__)
      case 4: score<4, kCount>(query, keys, ahead, head_dim, to); break;
      default:
        if constexpr (kMost > 4) {
          switch (count) {
            case 5: score<5, kCount>(query, keys, ahead, head_dim, to); break;
            case 6: score<6, kCount>(query, keys, ahead, head_dim, to); break;
            case 7: score<7, kCount>(query, keys, ahead, head_dim, to); break;
            default: score<8, kCount>(query, keys, ahead, head_dim, to); break;
          }
        }
#endif
    }
    row += count;
  }
}

void score_chunk(int rows, const Number* const* queries, const Chunk& chunk, int head_dim, float* scores) {
  const int blocks = (chunk.width + kLanes - 1) / kLanes;
  const auto pass = [&](auto count, int block) {
    const Number* ahead[count];
    for (int b = 0; b < count; ++b) {
      const int later = block + b + kAhead;
      ahead[b] = later < blocks ? chunk.keys[later] : chunk.values[std::min(later - blocks, blocks - 1)];
    }
    score_rows<count>(rows, queries, chunk.keys + block, ahead, head_dim, scores + block * kLanes);
    return block + count;
  };
  int block = 0;
#if defined(__AVX512F__)
  // Few rows: more blocks at once, so that enough sums are on their way to hide how long each takes.
  if (rows <= kScoreRows / 2)
    while (block + 4 <= blocks) block = pass(std::integral_constant<int, 4>(), block);
#endif
  while (block + 2 <= blocks) block = pass(std::integral_constant<int, 2>(), block);
  if (block < blocks) pass(std::integral_constant<int, 1>(), block);
}

// One row's weights of `width` keys, 0 where it does not see them; the last pair is filled up with 0.
void weigh(const float* scores, int valid, int width, float scale, Number* weights, Seen seen) {
  Lanes most = splat(-std::numeric_limits<float>::infinity());
  for (int key = 0; key < valid; key += kLanes)
    most = max(most, first(std::min(kLanes, valid - key), load(scores + key), most));
  const float peak = largest(most) * scale;
  Lanes total = splat(0.0f);
  for (int key = 0; key < width; key += kLanes) {
    Lanes weight = splat(0.0f);
    if (key < valid) {
      weight = exponential(sub(mul(load(scores + key), splat(scale)), splat(peak)));
      weight = first(std::min(kLanes, valid - key), weight, splat(0.0f));
      total = add(total, weight);
    }
    narrow(weights + key, weight);
  }
  seen.peak() = peak;
  seen.total() = sum(total);
}

// Weighted sums of kRows rows and 16 * kCount components, from `begin` on.
template <int kRows, int kCount>
inline void collect(const Number* weights, const Chunk& chunk, int head_dim, int begin, float* seen) {
  Lanes sums[kRows][kCount];
  for (int r = 0; r < kRows; ++r)
    for (int d = 0; d < kCount; ++d) sums[r][d] = splat(0.0f);
  const int pairs = chunk.width / kPair, in_block = kLanes / kPair, last = (chunk.width - 1) / kLanes;
  const auto add_pair = [&](int pair, const Operand(&values)[kCount]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Operand weight = splat_operand(weights + r * kChunk + pair * kPair);
#pragma GCC unroll 4
      for (int d = 0; d < kCount; ++d) sums[r][d] = dot(sums[r][d], values[d], weight);
    }
  };
  Operand values[kCount];
  for (int block = 0; block * in_block < pairs; ++block) {
    const Number* value = chunk.values[block] + begin * kPair;
    const int end = std::min(pairs, (block + 1) * in_block);
    const int later = block + kAhead;
    const Number* ahead = (later <= last ? chunk.values[later] : chunk.next[later - last - 1]) + begin * kPair;
    for (int pair = block * in_block; pair < end; ++pair, value += head_dim * kPair, ahead += head_dim * kPair) {
#pragma GCC unroll 4
      for (int d = 0; d < kCount; ++d) {
        values[d] = load_operand(value + d * kLanes * kPair);
        fetch(ahead + d * kLanes * kPair);
      }
      add_pair(pair, values);
    }
  }
  if (chunk.width % kPair != 0) {
    const Number* value = chunk.values[pairs / in_block] + pairs % in_block * head_dim * kPair + begin * kPair;
    for (int d = 0; d < kCount; ++d) values[d] = load_first_of_pairs(value + d * kLanes * kPair);
    add_pair(pairs, values);
  }
  for (int r = 0; r < kRows; ++r)
    for (int d = 0; d < kCount; ++d)
      store(Seen{seen + r * Seen::size(head_dim)}.sums() + begin + d * kLanes, sums[r][d]);
}

template <int kCount>
void collect_rows(int rows, const Number* weights, const Chunk& chunk, int head_dim, int begin, float* seen) {
  for (int row = 0; row < rows;) {
    const Number* from = weights + row * kChunk;
    float* to = seen + row * Seen::size(head_dim);
    const int count = std::min(kValueRows, rows - row);
    switch (count) {
      case 1: collect<1, kCount>(from, chunk, head_dim, begin, to); break;
      case 2: collect<2, kCount>(from, chunk, head_dim, begin, to); break;
      case 3: collect<3, kCount>(from, chunk, head_dim, begin, to); break;
#if defined(__AVX512F__)
      case 4: collect<4, kCount>(from, chunk, head_dim, begin, to); break;
      case 5: collect<5, kCount>(from, chunk, head_dim, begin, to); break;
      default: collect<6, kCount>(from, chunk, head_dim, begin, to); break;
#endif
    }
    row += count;
  }
}

}  // namespace

void attend(int rows, const Number* const* queries, const int* valid, const Chunk& chunk, int head_dim, float scale,
            float* seen) {
  scratch.fit(rows);
  float* scores = scratch.scores.data();
  Number* weights = scratch.weights.data();
  score_chunk(rows, queries, chunk, head_dim, scores);
  for (int r = 0; r < rows; ++r)
    weigh(scores + r * kChunk, valid[r], chunk.width, scale, weights + r * kChunk,
          Seen{seen + r * Seen::size(head_dim)});
  int begin = 0;
  for (; begin + kWidth * kLanes <= head_dim; begin += kWidth * kLanes)
    collect_rows<kWidth>(rows, weights, chunk, head_dim, begin, seen);
  for (; begin < head_dim; begin += 2 * kLanes) collect_rows<2>(rows, weights, chunk, head_dim, begin, seen);
}

void join(Seen seen, Seen later, int head_dim) {
  if (later.total() == 0.0f) return;
  const float peak = std::max(seen.peak(), later.peak());
  const float ours = std::exp(seen.peak() - peak), theirs = std::exp(later.peak() - peak);
  for (int d = 0; d < head_dim; d += kLanes) {
    const Lanes mine = mul(load(seen.sums() + d), splat(ours));
    store(seen.sums() + d, fma(load(later.sums() + d), splat(theirs), mine));
  }
  seen.total() = seen.total() * ours + later.total() * theirs;
  seen.peak() = peak;
}

void finish(Seen seen, int head_dim, Number* to) {
  const Lanes share = splat(1.0f / seen.total());
  for (int d = 0; d < head_dim; d += kLanes) narrow(to + d, mul(load(seen.sums() + d), share));
}

}  // namespace remora
