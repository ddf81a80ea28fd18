// The bookkeeping of torch's caching allocator: tensors are pieces of segments, and a freed piece stays reserved.
//
// The rules are those of c10/cuda/CUDACachingAllocator.cpp. Nothing is allocated here: the memory of tensors is the
// host's, and this says how much a GPU would have reserved for them.
#pragma once

#include "common.h"

namespace simulated_cuda {

constexpr size_t KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
constexpr size_t SMALLEST = 512;           // sizes are multiples of it
constexpr size_t LARGEST_SMALL = MIB;      // small pieces share small segments
constexpr size_t SMALL_SEGMENT = 2 * MIB;
constexpr size_t LARGE_SEGMENT = 20 * MIB;
constexpr size_t OWN_SEGMENT = 10 * MIB;   // a piece from this size on gets a segment of its own …
constexpr size_t SEGMENT_UNIT = 2 * MIB;   // … of a multiple of this
constexpr size_t TOTAL_MEMORY = 8 * GIB;   // of the device

inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Where pieces of the same kind are: torch never gives a piece to another stream or pool.
struct Shelf {
  int64_t pool;
  int64_t stream;
  bool is_small;

  bool operator<(const Shelf& other) const {
    return std::tie(pool, stream, is_small) < std::tie(other.pool, other.stream, other.is_small);
  }
};

struct Piece {
  size_t offset;
  size_t size;
  bool is_used;
  void* address;  // of the tensor
};

struct Segment {
  int64_t number;
  Shelf shelf;
  size_t size;
  std::map<size_t, Piece> pieces;  // by offset

  bool is_unused() const { return pieces.size() == 1 && !pieces.begin()->second.is_used; }
};

// A piece in use.
struct Place {
  int64_t segment = 0;
  size_t offset = 0;
};

struct Level {
  size_t now = 0, peak = 0;

  void add(size_t size) {
    now += size;
    peak = std::max(peak, now);
  }
};

class Segments {
 public:
  Level allocated, reserved;
  int64_t out_of_memory_errors = 0, retries = 0;
  size_t allocated_limit = std::numeric_limits<size_t>::max();  // set by tests
  size_t reserved_limit = TOTAL_MEMORY;

  Place allocate(size_t bytes, int64_t pool, int64_t stream) {
    const size_t size = std::max(round_up(bytes, SMALLEST), SMALLEST);
    if (allocated.now + size > allocated_limit) raise_out_of_memory(bytes);
    const Shelf shelf{pool, stream, size <= LARGEST_SMALL};
    Segment& segment = find_or_reserve(shelf, size, bytes);
    Piece& piece = smallest_that_fits(segment, size);
    const size_t rest = piece.size - size;
    if (shelf.is_small ? rest >= SMALLEST : rest > LARGEST_SMALL) {
      segment.pieces[piece.offset + size] = Piece{piece.offset + size, rest, false, nullptr};
      piece.size = size;
    }
    piece.is_used = true;
    allocated.add(piece.size);
    return Place{segment.number, piece.offset};
  }

  void set_address(const Place& place, void* address) { piece_at(place).address = address; }

  // The tensor is gone. Its piece stays used until `release`, since another stream may use it.
  void note_free(const Place& place) {
    auto& piece = piece_at(place);
    allocated.now -= piece.size;
    piece.address = nullptr;
  }

  void release(const Place& place) {
    auto& pieces = segments_.at(place.segment).pieces;
    auto piece = pieces.find(place.offset);
    piece->second.is_used = false;
    auto next = std::next(piece);
    if (next != pieces.end() && !next->second.is_used) merge(pieces, piece, next);
    if (piece == pieces.begin()) return;
    auto previous = std::prev(piece);
    if (!previous->second.is_used) merge(pieces, previous, piece);
  }

  // Gives segments without tensors back. Those of a pool stay while a graph uses it.
  void empty_cache() {
    for (auto each = segments_.begin(); each != segments_.end();) {
      const auto& segment = each->second;
      const bool is_kept = !segment.is_unused() || pool_users_.count(segment.shelf.pool);
      if (!is_kept) reserved.now -= segment.size;
      each = is_kept ? std::next(each) : segments_.erase(each);
    }
  }

  void add_pool_user(int64_t pool) { ++pool_users_[pool]; }

  void remove_pool_user(int64_t pool) {
    auto found = pool_users_.find(pool);
    if (found != pool_users_.end() && --found->second <= 0) pool_users_.erase(found);
  }

  const std::map<int64_t, Segment>& all() const { return segments_; }

 private:
  std::map<int64_t, Segment> segments_;
  std::map<int64_t, int64_t> pool_users_;
  int64_t next_number_ = 1;

  Piece& piece_at(const Place& place) { return segments_.at(place.segment).pieces.at(place.offset); }

  static Piece& smallest_that_fits(Segment& segment, size_t size) {
    Piece* best = nullptr;
    for (auto& [_, piece] : segment.pieces) {
      if (!piece.is_used && piece.size >= size && (!best || piece.size < best->size)) best = &piece;
    }
    TORCH_INTERNAL_ASSERT(best);
    return *best;
  }

  Segment& find_or_reserve(const Shelf& shelf, size_t size, size_t bytes) {
    Segment* best = nullptr;
    size_t best_size = 0;
    for (auto& [_, segment] : segments_) {
      if (segment.shelf < shelf || shelf < segment.shelf) continue;
      for (const auto& [_, piece] : segment.pieces) {
        if (piece.is_used || piece.size < size || (best && piece.size >= best_size)) continue;
        best = &segment;
        best_size = piece.size;
      }
    }
    return best ? *best : reserve(shelf, size, bytes);
  }

  Segment& reserve(const Shelf& shelf, size_t size, size_t bytes) {
    const size_t large = size < OWN_SEGMENT ? LARGE_SEGMENT : round_up(size, SEGMENT_UNIT);
    const size_t wanted = shelf.is_small ? SMALL_SEGMENT : large;
    if (reserved.now + wanted > reserved_limit) {
      ++retries;
      empty_cache();
    }
    if (reserved.now + wanted > reserved_limit) raise_out_of_memory(bytes);
    reserved.add(wanted);
    const int64_t number = next_number_++;
    return segments_[number] = Segment{number, shelf, wanted, {{0, Piece{0, wanted, false, nullptr}}}};
  }

  [[noreturn]] void raise_out_of_memory(size_t bytes) {
    ++out_of_memory_errors;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                     " bytes; ", allocated.now, " bytes are allocated, and ", reserved.now, " reserved (simulated).");
  }

  using Pieces = std::map<size_t, Piece>;
  static void merge(Pieces& pieces, Pieces::iterator first, Pieces::iterator second) {
    first->second.size += second->second.size;
    pieces.erase(second);
  }
};

}  // namespace simulated_cuda
