#include "team.h"

#include <immintrin.h>

namespace remora {

namespace {

constexpr int kSpins = 600;  // Some 20 to 50 microseconds.

void wait_for_change(const std::atomic<std::uint32_t>& number, std::uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (number.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  number.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int size) : size_(size) {
  try {
    for (int member = 1; member < size; ++member) helpers_.emplace_back([this, member] { help(member); });
  } catch (...) {
    dismiss();
    throw;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  job_ = nullptr;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Team::run(const std::function<void(int)>& job) {
  if (size_ == 1) return job(0);
  job_ = &job;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  // Who left here would leave the others waiting for ever, on a job that is no more.
  [&]() noexcept { job(0); }();
  meet();
}

void Team::help(int member) {
  for (std::uint32_t seen = 0;; ++seen) {
    jobs_.wait(seen, std::memory_order_acquire);
    if (job_ == nullptr) return;
    (*job_)(member);
    meet();
  }
}

void Team::meet() {
  const std::uint32_t meeting = meetings_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) return wait_for_change(meetings_, meeting);
  // The last one. Nobody touches these before the meeting is over.
  arrived_.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  meetings_.fetch_add(1, std::memory_order_release);
  meetings_.notify_all();
}

}  // namespace remora
