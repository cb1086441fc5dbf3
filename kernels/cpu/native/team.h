// Threads that compute a step together.
#pragma once

#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace remora {

// A job is a sequence of phases, the same for all members; a phase is items, each done by who comes for it.
//
// Nobody waits for a member that was taken off its core. On a small machine that does other things too this happens
// hundreds of times a second, and what one loses by it all would lose. Who finds no item left gives the others as long
// as two of them take, then does again what was begun and is not finished. So an item may be done twice, at the same
// time or by somebody much later than all others: it writes only what is its own until the job is over or `await` says
// that nobody can be so late any more, and whoever does it writes the same. A member that was away finds its phases over
// and hurries through them.
//
// The caller of `run` is the first member; the others sleep in the kernel between jobs. Inside, who has nothing to do
// spins for some tens of microseconds, then sleeps too: a core is never kept from a neighbour for long. Where there are
// as many members as cores, each has its own, so that no two share one while another is idle.
class Team {
 public:
  class Member;

  // Throws std::exception where there are no members, or no threads for them.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // `job` at every member that comes before it is done. Returns when it is, and all have left it.
  void run(const std::function<void(Member&)>& job);

  // Items that were done again, since the beginning.
  std::int64_t repeats() const { return repeats_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kMostItems = 4096;
  static constexpr int kItemBits = 16;  // Of `ticket_`: the rest is the phase, whose numbers last for centuries.
  static constexpr int kClosed = 1 << 30;

  // What is known of an item: the last phase in which it was done, and in which it was done again.
  struct Item {
    std::atomic<std::uint64_t> done{0}, again{0};
  };

  void help(int index);
  bool enter();
  void leave(int index);
  void dismiss();

  static std::uint64_t first_ticket(std::uint64_t phase) { return phase << kItemBits; }
  std::uint64_t phase() const { return ticket_.load(std::memory_order_acquire) >> kItemBits; }

  int claim(std::uint64_t phase, int items);
  bool claim_again(std::uint64_t phase, int item);
  bool first_to_finish(std::uint64_t phase, int item);
  void count(std::uint64_t phase, int items);
  bool over_within(std::uint64_t phase, std::uint64_t cycles) const;
  void sleep_until_over(std::uint64_t phase) const;

  const int size_;
  const std::vector<int> cores_;  // The members' own; empty where they have none.
  alignas(64) std::atomic<std::uint64_t> ticket_{first_ticket(1)};  // The phase, and the first item nobody has begun.
  alignas(64) std::atomic<int> finished_{0};          // Items of the phase.
  alignas(64) std::atomic<std::uint32_t> turns_{0};   // Changes when a phase or the job ends, for those that sleep.
  alignas(64) std::atomic<int> inside_{kClosed};      // Helpers in the job; kClosed more when nobody may enter.
  alignas(64) std::atomic<std::uint32_t> jobs_{0};
  std::atomic<std::int64_t> repeats_{0};
  const std::unique_ptr<Item[]> items_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> at_;  // The phase each member is in; beyond all when outside.
  const std::function<void(Member&)>* job_ = nullptr;
  std::uint64_t begin_ = 0;  // The job's first phase.
  std::atomic<bool> dismissed_{false};  // Also read by who comes too late for the last job.
  std::vector<std::thread> helpers_;
};

// One member, within a job.
class Team::Member {
 public:
  Member(Team& team, int index, std::uint64_t phase) : team_(team), index_(index), phase_(phase) {}

  int index() const { return index_; }
  int team_size() const { return team_.size_; }

  // The next phase: `work(i)` for each i below `count`, by members as they come for more, and, exactly once and after
  // it, `settle(i)`. Returns when all of it is done. Every member calls it alike.
  template <class Work, class Settle>
  void each(int count, const Work& work, const Settle& settle);
  template <class Work>
  void each(int count, const Work& work) {
    each(count, work, [](int) {});
  }

  // Whether the next phase is over already: what prepares for it can be left out.
  bool late() const { return team_.size_ > 1 && team_.phase() > phase_; }

  // The next phase, for `await`.
  std::uint64_t mark() const { return phase_; }

  // Returns when no member is in a phase before `mark` any more. `mark`: of a phase that the caller has been in; two who
  // waited for a later one would wait for each other for ever.
  void await(std::uint64_t mark) const;

 private:
  static constexpr std::uint64_t kShort = 10'000;  // Cycles: what is shorter is not worth an attempt to help.

  Team& team_;
  const int index_;
  std::uint64_t phase_;
};

template <class Work, class Settle>
void Team::Member::each(int count, const Work& work, const Settle& settle) {
  if (count == 0) return;
  if (team_.size_ == 1) {
    for (int index = 0; index < count; ++index) work(index), settle(index);
    return;
  }
  const std::uint64_t phase = phase_++;
  team_.at_[index_].store(phase, std::memory_order_release);
  const int items = std::min(count, kMostItems);
  const auto perform = [&](int item) {
    const int begin = static_cast<int>(static_cast<std::int64_t>(item) * count / items);
    const int end = static_cast<int>((static_cast<std::int64_t>(item) + 1) * count / items);
    for (int index = begin; index < end; ++index) work(index);
    if (!team_.first_to_finish(phase, item)) return;
    for (int index = begin; index < end; ++index) settle(index);
    team_.count(phase, items);
  };
  std::uint64_t took = kShort;
  for (int item; (item = team_.claim(phase, items)) >= 0;) {
    const std::uint64_t begun = __rdtsc();
    perform(item);
    took = std::max<std::uint64_t>(kShort, __rdtsc() - begun);
  }
  if (team_.over_within(phase, 2 * took)) return;
  for (int item = 0; item < items; ++item)
    if (team_.claim_again(phase, item)) perform(item);
  team_.sleep_until_over(phase);
}

}  // namespace remora
