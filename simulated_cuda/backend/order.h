// Which work on the device is known to be done before other work, by vector clocks.
//
// Each stream counts its operations. The clock of a stream is what has to be done before its next operation starts, and
// the clock of the host is what a thread has waited for. An operation that reads memory needs the last write to it in
// its clock; one that writes needs all reads too. Whatever is missing may run at the same time on a GPU: a race.
#pragma once

#include "common.h"

namespace simulated_cuda {

struct Clock {
  std::map<int64_t, int64_t> counts;  // by stream

  void join(const Clock& other) {
    for (const auto& [stream, count] : other.counts) {
      auto& own = counts[stream];
      own = std::max(own, count);
    }
  }

  bool includes(int64_t stream, int64_t number) const {
    auto found = counts.find(stream);
    return found != counts.end() && found->second >= number;
  }
};

// An operation that reads or writes.
struct Access {
  int64_t stream;
  int64_t number;    // of the operation, on its stream
  std::string name;  // of the operation

  std::string text() const { return name + " on stream " + std::to_string(stream); }
};

// What uses a block of memory.
struct Uses {
  int64_t home = 0;  // the stream that it was allocated on
  std::optional<Access> last_write;
  std::map<int64_t, Access> reads;     // by stream; those since the last write
  std::set<int64_t> recorded_streams;  // by Tensor.record_stream

  template <class Function>
  void for_each_access(Function function) const {
    if (last_write) function(*last_write);
    for (const auto& [_, read] : reads) function(read);
  }
};

// Memory that was freed while another stream may still use it.
struct FreedBlock {
  size_t bytes;
  int64_t pool;
  Uses uses;
};

inline auto& stream_clocks = forever<std::map<int64_t, Clock>>();
inline auto& host_clock = forever<Clock>();
inline auto& races = forever<std::vector<std::string>>();                           // since they were last taken
inline auto& reported_races = forever<std::set<std::string>>();                     // each is reported once
inline auto& freed_blocks = forever<std::map<int64_t, std::vector<FreedBlock>>>();  // by the stream they belong to
constexpr size_t MOST_RACES = 50;                                                   // to report

inline void report_race(const std::string& text) {
  if (races.size() < MOST_RACES && reported_races.insert(text).second) races.push_back(text);
}

inline std::vector<std::string> take_races() {
  Lock lock(state_lock);
  reported_races.clear();
  return std::exchange(races, {});
}

// Starts the next operation of a stream. Returns its number.
inline int64_t start_operation(int64_t stream) {
  auto& clock = stream_clocks[stream];
  clock.join(host_clock);
  return ++clock.counts[stream];
}

// Whether `earlier` is done when the current operation of `stream` starts.
inline bool is_done_before(const Access& earlier, int64_t stream) {
  return earlier.stream == stream || stream_clocks[stream].includes(earlier.stream, earlier.number);
}

inline void note_read(Uses& uses, const Access& access) {
  const auto& write = uses.last_write;
  if (write && !is_done_before(*write, access.stream)) {
    report_race(access.text() + " reads what " + write->text() + " may not have written yet");
  }
  uses.reads[access.stream] = access;
}

inline void note_write(Uses& uses, const Access& access) {
  const auto& write = uses.last_write;
  if (write && !is_done_before(*write, access.stream)) {
    report_race(access.text() + " writes where " + write->text() + " may still write");
  }
  for (const auto& [_, read] : uses.reads) {
    if (!is_done_before(read, access.stream)) {
      report_race(access.text() + " overwrites what " + read.text() + " may still read");
    }
  }
  uses.reads.clear();
  uses.last_write = access;
}

// Whether freed memory can be used again as far as this access goes: torch gives it to the stream it was allocated on.
inline bool allows_reuse(const Uses& uses, const Access& access) {
  return uses.recorded_streams.count(access.stream) || is_done_before(access, uses.home) ||
         host_clock.includes(access.stream, access.number);
}

inline void note_free(size_t bytes, int64_t pool, const Uses& uses) {
  bool is_unused = true;
  uses.for_each_access([&](const Access& access) { is_unused &= allows_reuse(uses, access); });
  if (!is_unused) freed_blocks[uses.home].push_back(FreedBlock{bytes, pool, uses});
}

// An allocation may get any freed block that is large enough, with whoever still uses it.
inline void check_allocation(size_t bytes, int64_t pool, int64_t stream) {
  auto found = freed_blocks.find(stream);
  if (found == freed_blocks.end()) return;
  std::vector<FreedBlock> rest;
  for (auto& freed : found->second) {
    std::optional<Access> user;
    freed.uses.for_each_access([&](const Access& access) {
      if (!allows_reuse(freed.uses, access)) user = access;
    });
    if (!user) continue;
    if (freed.bytes < bytes || freed.pool != pool) {
      rest.push_back(freed);
      continue;
    }
    report_race("memory of stream " + std::to_string(stream) + " is used again while " + user->text() +
                " may use it; record_stream is missing");
  }
  found->second.swap(rest);
}

}  // namespace simulated_cuda
