#include "team.h"

#include <sched.h>

#include <limits>
#include <stdexcept>

namespace remora {

namespace {

constexpr std::uint64_t kSpinCycles = 100'000;  // Some 30 microseconds.
constexpr std::uint64_t kOutside = std::numeric_limits<std::uint64_t>::max();

// The cores that the caller may run on if there are `size` of them, else none.
std::vector<int> cores_for(int size) {
  cpu_set_t allowed;
  if (size < 2 || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) != size) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  return cores;
}

void keep_to(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  sched_setaffinity(0, sizeof only, &only);  // Where it is not allowed, nothing is lost but time.
}

// The caller on one core for as long as this lives.
class OnCore {
 public:
  explicit OnCore(const std::vector<int>& cores)
      : moved_(!cores.empty() && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (moved_) keep_to(cores.front());
  }
  ~OnCore() {
    if (moved_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_;
  const bool moved_;
};

template <class Done>
bool spin(std::uint64_t cycles, const Done& done) {
  const std::uint64_t begun = __rdtsc();
  do {
    if (done()) return true;
    _mm_pause();
  } while (__rdtsc() - begun < cycles);
  return false;
}

// Until it is done, which `number` changes after.
template <class Done>
void sleep_until(const std::atomic<std::uint32_t>& number, const Done& done) {
  while (!spin(kSpinCycles, done)) {
    const std::uint32_t old = number.load(std::memory_order_acquire);
    if (done()) return;
    number.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

Team::Team(int size)
    : size_(size), cores_(cores_for(size)), items_(new Item[kMostItems]),
      at_(new std::atomic<std::uint64_t>[size]) {
  if (size < 1) throw std::invalid_argument("a team without members");
  for (int member = 0; member < size; ++member) at_[member] = kOutside;
  try {
    for (int member = 1; member < size; ++member) helpers_.emplace_back([this, member] { help(member); });
  } catch (...) {
    dismiss();
    throw;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  dismissed_ = true;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Team::run(const std::function<void(Member&)>& job) {
  Member first(*this, 0, phase());
  if (size_ == 1) return job(first);
  const OnCore here(cores_);
  job_ = &job;
  begin_ = phase();
  inside_.fetch_sub(kClosed, std::memory_order_release);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  // Who left here would leave the others with a job that is no more.
  [&]() noexcept { job(first); }();
  at_[0].store(kOutside, std::memory_order_release);
  inside_.fetch_add(kClosed, std::memory_order_acq_rel);
  sleep_until(turns_, [this] { return inside_.load(std::memory_order_acquire) == kClosed; });
}

void Team::help(int index) {
  if (!cores_.empty()) keep_to(cores_[index]);
  for (std::uint32_t seen = 0;;) {
    jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (dismissed_) return;
    if (!enter()) continue;
    Member member(*this, index, begin_);
    (*job_)(member);
    leave(index);
  }
}

bool Team::enter() {
  int inside = inside_.load(std::memory_order_acquire);
  while (inside < kClosed)
    if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
  return false;
}

void Team::leave(int index) {
  at_[index].store(kOutside, std::memory_order_release);
  if (inside_.fetch_sub(1, std::memory_order_acq_rel) != kClosed + 1) return;
  turns_.fetch_add(1, std::memory_order_release);
  turns_.notify_all();
}

// The next item that nobody has begun, or -1.
int Team::claim(std::uint64_t phase, int items) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const int item = static_cast<int>(ticket & ((1u << kItemBits) - 1));
    if (ticket >> kItemBits != phase || item == items) return -1;
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) return item;
  }
}

// Whether to do an item again: once is enough.
bool Team::claim_again(std::uint64_t phase, int item) {
  if (this->phase() != phase || items_[item].done.load(std::memory_order_acquire) >= phase) return false;
  std::uint64_t again = items_[item].again.load(std::memory_order_relaxed);
  if (again >= phase || !items_[item].again.compare_exchange_strong(again, phase, std::memory_order_relaxed))
    return false;
  repeats_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Whether the caller is. Who is phases late finds a later one's mark there, or its own phase's.
bool Team::first_to_finish(std::uint64_t phase, int item) {
  std::uint64_t done = items_[item].done.load(std::memory_order_acquire);
  while (done < phase)
    if (items_[item].done.compare_exchange_weak(done, phase, std::memory_order_acq_rel)) return true;
  return false;
}

// One more item is finished. The phase cannot end before this is called for each, so that no call is ever late.
void Team::count(std::uint64_t phase, int items) {
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < items) return;
  finished_.store(0, std::memory_order_relaxed);
  ticket_.store(first_ticket(phase + 1), std::memory_order_release);
  turns_.fetch_add(1, std::memory_order_release);
  turns_.notify_all();
}

bool Team::over_within(std::uint64_t phase, std::uint64_t cycles) const {
  return spin(cycles, [&] { return this->phase() > phase; });
}

void Team::sleep_until_over(std::uint64_t phase) const {
  sleep_until(turns_, [&] { return this->phase() > phase; });
}

void Team::Member::await(std::uint64_t mark) const {
  for (int member = 0; member < team_.size_; ++member) {
    if (member == index_) continue;
    const auto there = [&] { return team_.at_[member].load(std::memory_order_acquire) >= mark; };
    while (!spin(kSpinCycles, there)) std::this_thread::yield();
  }
}

}  // namespace remora
