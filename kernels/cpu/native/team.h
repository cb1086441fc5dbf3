// Threads that compute a step together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace remora {

// The caller of `run` is the first member; the others sleep in the kernel between calls. Inside, who waits for the
// others spins for some tens of microseconds, then sleeps too: a core is never kept from a neighbour for long.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // `job(member)` at every member, 0 to size - 1; returns when all have.
  void run(const std::function<void(int)>& job);

  // Inside a job, by every member alike: `work(index)` for each index below `count`, shared out as members come for
  // more. Returns when all of it is done everywhere.
  template <class Work>
  void each(int count, const Work& work) {
    if (size_ == 1) {
      for (int index = 0; index < count; ++index) work(index);
      return;
    }
    for (int index; (index = next_.fetch_add(1, std::memory_order_relaxed)) < count;) work(index);
    meet();
  }

 private:
  void meet();
  void help(int member);
  void dismiss();

  const int size_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> meetings_{0};
  alignas(64) std::atomic<std::uint32_t> jobs_{0};
  const std::function<void(int)>* job_ = nullptr;
  std::vector<std::thread> helpers_;
};

}  // namespace remora
