#include "sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "lanes.h"

namespace remora {

namespace {

constexpr int kBlock = 64;
constexpr float kOff = -std::numeric_limits<float>::infinity();
constexpr std::int32_t kInfinity = 0x7f800000;
constexpr double kColdest = 1e-300;  // Any difference of two floats, over less, is beyond what `weight` tells from 0.
constexpr double kNothing = -700.0;  // e^x below it counts as 0, beside a largest weight of 1.
constexpr std::ptrdiff_t kFew = 24;
constexpr int kLooks = 7;
constexpr double kSurely = 1 + 1e-9;  // Beyond what sums in another order may differ by.

using Candidate = Sampler::Candidate;

int blocks_of(int vocab) { return (vocab + kBlock - 1) / kBlock; }

// e^x for -700 <= x <= 0, to an ulp or two; 0 below. Branchless, so that compilers make lanes of it.
inline double exponential(double x) {
  const double within = x < kNothing ? kNothing : x;
  const double shifted = std::fma(within, 1.4426950408889634, 0x1.8p52);  // Its low bits: x / ln 2, rounded.
  const double whole = shifted - 0x1.8p52;
  double rest = std::fma(whole, -0x1.62e42fefa39efp-1, within);
  rest = std::fma(whole, -0x1.abc9e3b39803fp-56, rest);
  double value = 1.0 / 6227020800.0;
  value = std::fma(value, rest, 1.0 / 479001600.0);
  value = std::fma(value, rest, 1.0 / 39916800.0);
  value = std::fma(value, rest, 1.0 / 3628800.0);
  value = std::fma(value, rest, 1.0 / 362880.0);
  value = std::fma(value, rest, 1.0 / 40320.0);
  value = std::fma(value, rest, 1.0 / 5040.0);
  value = std::fma(value, rest, 1.0 / 720.0);
  value = std::fma(value, rest, 1.0 / 120.0);
  value = std::fma(value, rest, 1.0 / 24.0);
  value = std::fma(value, rest, 1.0 / 6.0);
  value = std::fma(value, rest, 0.5);
  value = std::fma(value, rest, 1.0);
  value = std::fma(value, rest, 1.0);
  const std::uint64_t power = std::bit_cast<std::uint64_t>(shifted) << 52;  // Added to the exponent.
  const double scaled = std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) + power);
  return x < kNothing ? 0.0 : scaled;
}

inline double weight(float logit, float peak, double inverse) {
  return exponential((static_cast<double>(logit) - static_cast<double>(peak)) * inverse);
}

// `weights` [kBlock], 0 beyond `count`.
void weigh(const float* logits, int count, float peak, double inverse, double* weights) {
  if (count == kBlock) {
    for (int i = 0; i < kBlock; ++i) weights[i] = weight(logits[i], peak, inverse);
    return;
  }
  for (int i = 0; i < kBlock; ++i) weights[i] = i < count ? weight(logits[i], peak, inverse) : 0.0;
}

// Of those that are not below `least`.
double sum_block(const double* weights, double least = 0) {
  double sums[8] = {};
  for (int i = 0; i < kBlock; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += weights[i + lane] >= least ? weights[i + lane] : 0.0;
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Each block's largest; false where the row holds NaN.
bool find_peaks(const float* logits, int vocab, float* peaks) {
  std::int32_t worst = 0;  // Without its sign, a NaN's bits are the only ones above infinity's.
  for (int begin = 0; begin < vocab; begin += kBlock) {
    const float* block = logits + begin;
    const int count = std::min(kBlock, vocab - begin);
    for (int i = 0; i < count; ++i) worst = std::max(worst, std::bit_cast<std::int32_t>(block[i]) & 0x7fffffff);
    float peak = kOff;
    if (count == kBlock)
      peak = largest(max(max(load(block), load(block + 16)), max(load(block + 32), load(block + 48))));
    else
      for (int i = 0; i < count; ++i) peak = std::max(peak, block[i]);
    peaks[begin / kBlock] = peak;
  }
  return worst <= kInfinity;
}

std::int64_t first_of(const float* logits, const float* peaks, int blocks, float peak) {
  const float* at = logits + (std::find(peaks, peaks + blocks, peak) - peaks) * static_cast<std::ptrdiff_t>(kBlock);
  while (*at != peak) ++at;
  return at - logits;
}

bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

double sum_of(const Candidate* begin, const Candidate* end) {
  double sum = 0;
  for (; begin < end; ++begin) sum += begin->weight;
  return sum;
}

// Likeliest first, the item with which the sum of weights comes to `target` (`beyond`: goes beyond it), or the last
// one; what is likelier comes to lie before it. `before`: their sum. As long as a few passes, where a sort is many.
Candidate* reach(Candidate* begin, Candidate* end, double target, bool beyond, double& before) {
  const auto there = [&](double sum) { return beyond ? sum > target : sum >= target; };
  before = 0;
  while (end - begin > kFew) {
    Candidate* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, likelier);
    const double sum = before + sum_of(begin, middle);
    if (there(sum)) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(begin, end, likelier);
  for (; begin + 1 < end && !there(before + begin->weight); ++begin) before += begin->weight;
  return begin;
}

}  // namespace

void Sampler::fit(std::int64_t vocab) {
  const std::int64_t blocks = blocks_of(static_cast<int>(vocab));
  peaks_.fit(blocks);
  sorted_.fit(blocks);
  sums_.fit(blocks);
  copy_.fit(vocab);
  weights_.fit(blocks * kBlock);
  candidates_.fit(vocab);
}

std::int64_t Sampler::choose(const float* logits, int vocab, const RemoraDraw& draw) {
  if (draw.num_off > 0) logits = without(logits, vocab, draw);
  const int blocks = blocks_of(vocab);
  float* peaks = peaks_.get();
  if (!find_peaks(logits, vocab, peaks)) return kNoToken;
  peak_ = *std::max_element(peaks, peaks + blocks);
  if (!std::isfinite(peak_)) return kNoToken;
  if (draw.temperature == 0) return first_of(logits, peaks, blocks, peak_);
  inverse_ = 1.0 / std::max(draw.temperature, kColdest);
  const bool narrows = draw.top_k > 0 || draw.top_p < 1 || draw.min_p > 0;
  return narrows ? draw_of_few(logits, vocab, draw) : draw_of_all(logits, vocab, draw);
}

// In a copy: a member that comes late may still write the row itself.
const float* Sampler::without(const float* logits, int vocab, const RemoraDraw& draw) {
  float* copy = copy_.get();
  std::copy_n(logits, vocab, copy);
  for (std::int64_t i = 0; i < draw.num_off; ++i)
    if (draw.off[i] >= 0 && draw.off[i] < vocab) copy[draw.off[i]] = kOff;
  return copy;
}

// The total; each block's in `sums_`, each token's in `weights_`.
double Sampler::weigh_all(const float* logits, int vocab) {
  double total = 0;
  for (int begin = 0; begin < vocab; begin += kBlock) {
    double* weights = weights_.get() + begin;
    weigh(logits + begin, std::min(kBlock, vocab - begin), peak_, inverse_, weights);
    total += sums_.get()[begin / kBlock] = sum_block(weights);
  }
  return total;
}

// A weight that all tokens of the nucleus have, which weighs `target`; without the others, that weigh `rest`, as far as
// a few looks at them all can tell.
double Sampler::least_of_nucleus(double target, double rest, int vocab) {
  // Below rest / V they weigh less than `rest` all together, so the nucleus is above; half of it, for rounding's sake.
  double least = rest / (2.0 * vocab), most = 1;
  for (int look = 0; look < kLooks; ++look) {
    const double middle = std::sqrt(least * most);
    double sum = 0;
    for (int begin = 0; begin < vocab; begin += kBlock) sum += sum_block(weights_.get() + begin, middle);
    (sum > target * kSurely ? least : most) = middle;
  }
  return least;
}

// The cumulative distribution, in the order of ids, inverted: the block first, then the token. Rounding may leave the
// target beyond all sums; it is the last one then that has any weight.
std::int64_t Sampler::draw_of_all(const float* logits, int vocab, const RemoraDraw& draw) {
  const double target = weigh_all(logits, vocab) * draw.number, *sums = sums_.get();
  double before = 0, so_far = 0;
  int chosen = 0;
  for (int block = 0; block < blocks_of(vocab) && so_far <= target; so_far += sums[block++]) {
    if (sums[block] == 0) continue;
    chosen = block;
    before = so_far;
  }
  const int begin = chosen * kBlock;
  const double* weights = weights_.get() + begin;
  int token = 0;
  for (int i = 0; i < kBlock && before <= target; before += weights[i++])
    if (weights[i] > 0) token = i;
  return begin + token;
}

std::int64_t Sampler::draw_of_few(const float* logits, int vocab, const RemoraDraw& draw) {
  const bool top_k = draw.top_k > 0;
  double total = 0, least_weight = draw.min_p;
  float least = kOff;
  if (top_k) {
    least = least_of_top(draw.top_k, blocks_of(vocab));
    least_weight = 0;  // top-p comes before min-p.
  } else {
    if (draw.top_p < 1) {
      total = weigh_all(logits, vocab);
      least_weight = std::max(least_weight, least_of_nucleus(draw.top_p * total, (1 - draw.top_p) * total, vocab));
    }
    // A little below what it stands for: it saves looking at weights, and decides nothing.
    const double below = std::log(least_weight) / inverse_ * 1.001;
    least = std::nextafter(static_cast<float>(peak_ + below), kOff);
  }
  Candidate *begin = candidates_.get(), *end = collect(logits, vocab, least, least_weight, total > 0);
  if (top_k && end - begin > draw.top_k) {
    std::nth_element(begin, begin + draw.top_k, end, likelier);
    end = begin + draw.top_k;
  }
  double before;
  if (draw.top_p < 1) end = reach(begin, end, draw.top_p * (top_k ? sum_of(begin, end) : total), false, before) + 1;
  if (draw.min_p > 0) end = std::partition(begin, end, [&](const Candidate& one) { return one.weight >= draw.min_p; });
  return reach(begin, end, sum_of(begin, end) * draw.number, true, before)->id;
}

// A logit that at least `count` are not below: so many blocks have one.
float Sampler::least_of_top(std::int64_t count, int blocks) {
  if (count > blocks) return kOff;
  float* sorted = std::copy_n(peaks_.get(), blocks, sorted_.get()) - blocks;
  std::nth_element(sorted, sorted + count - 1, sorted + blocks, std::greater<>());
  return sorted[count - 1];
}

// What is not below either, and weighs anything, into `candidates_`; returns their end. `weighed`: all are.
Sampler::Candidate* Sampler::collect(const float* logits, int vocab, float least, double least_weight, bool weighed) {
  Candidate* to = candidates_.get();
  for (int begin = 0; begin < vocab; begin += kBlock) {
    if (peaks_.get()[begin / kBlock] < least) continue;
    const int count = std::min(kBlock, vocab - begin);
    double* weights = weights_.get() + begin;
    if (!weighed) weigh(logits + begin, count, peak_, inverse_, weights);
    for (int i = 0; i < count; ++i) {
      const float logit = logits[begin + i];
      if (logit >= least && weights[i] >= least_weight && weights[i] > 0) *to++ = {weights[i], logit, begin + i};
    }
  }
  return to;
}

}  // namespace remora

extern "C" {

// One token for each row of logits [rows, vocab], all of them wanted; null, or why there are none.
__attribute__((visibility("default"))) const char* remora_choose(const float* logits, std::int32_t vocab,
                                                                 std::int32_t rows, const RemoraDraw* draws,
                                                                 std::int64_t* chosen) {
  try {
    remora::Sampler sampler;
    sampler.fit(vocab);
    for (std::int64_t row = 0; row < rows; ++row)
      chosen[row] = sampler.choose(logits + row * vocab, vocab, draws[row]);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return "no memory to draw tokens in";
  }
}

}  // extern "C"
