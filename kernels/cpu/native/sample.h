// From a row of logits to its token. What is drawn depends on the row, its settings and its number alone: not on the
// batch, the number of members, or the variant (all sums are made in the same order everywhere).
#pragma once

#include <cstdint>

#include "buffer.h"

extern "C" {

// How one row's token is chosen. `temperature` 0 takes the likeliest; below 0 none is chosen. `number`: in [0, 1), it
// picks the token. `top_k` 0, `top_p` 1 and `min_p` 0 leave all in. `off`: tokens that may not be chosen.
struct RemoraDraw {
  double temperature, top_p, min_p, number;
  std::int64_t top_k;
  const std::int64_t* off;
  std::int64_t num_off;
};

}  // extern "C"

namespace remora {

constexpr std::int64_t kNoToken = -1;

// A member's room for one row at a time.
class Sampler {
 public:
  struct Candidate {
    double weight;
    float logit;
    std::int32_t id;
  };

  // Room for rows of `vocab` logits. Throws std::bad_alloc.
  void fit(std::int64_t vocab);

  // kNoToken for a row that holds NaN or +inf, or nothing but -inf.
  std::int64_t choose(const float* logits, int vocab, const RemoraDraw& draw);

 private:
  const float* without(const float* logits, int vocab, const RemoraDraw& draw);
  std::int64_t draw_of_all(const float* logits, int vocab, const RemoraDraw& draw);
  std::int64_t draw_of_few(const float* logits, int vocab, const RemoraDraw& draw);
  double weigh_all(const float* logits, int vocab);
  double least_of_nucleus(double target, double rest, int vocab);
  float least_of_top(std::int64_t count, int blocks);
  Candidate* collect(const float* logits, int vocab, float least, double least_weight, bool weighed);

  float peak_ = 0;       // The largest logit.
  double inverse_ = 1;   // Of the temperature.
  Buffer<float> peaks_;  // Of each block of the row.
  Buffer<float> sorted_, copy_;
  Buffer<double> sums_;  // Of each block's weights.
  Buffer<double> weights_;
  Buffer<Candidate> candidates_;
};

}  // namespace remora
