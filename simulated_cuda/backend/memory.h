// Memory of the device: host memory that is called CUDA's, with what uses it.
//
// The storage of a tensor on the device holds a storage on the host, which has the memory. What a graph has recorded
// refers to the latter only. So a tensor that the program has dropped counts as freed although a graph uses its memory.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include "capture.h"
#include "order.h"
#include "segments.h"
#include "waiting.h"

namespace simulated_cuda {

struct Block {
  int64_t id;
  size_t bytes;
  int64_t pool;
  int64_t graph;             // whose capture has allocated it; 0 for none
  bool is_live = true;       // whether a tensor of the program has it
  bool is_recorded = false;  // whether a graph uses it
  Place place;
  Uses uses;
};

// A piece that is freed when streams, which another stream's program has named, are done with it.
struct DeferredRelease {
  Place place;
  Clock clock;
};

inline auto& blocks = forever<std::unordered_map<void*, Block>>();  // by address
inline auto& pinned_addresses = forever<std::set<const void*>>();
inline auto& segments = forever<Segments>();
inline auto& deferred_releases = forever<std::vector<DeferredRelease>>();
inline int64_t next_block = 1;

inline void release_deferred() {
  std::vector<DeferredRelease> rest;
  for (auto& each : deferred_releases) {
    if (is_busy(each.clock)) {
      rest.push_back(each);
    } else {
      segments.release(each.place);
    }
  }
  deferred_releases.swap(rest);
}

// The last tensor of a block is gone.
inline void release(Block& block) {
  block.is_live = false;
  if (!block.graph) note_free(block.bytes, block.pool, block.uses);
  segments.note_free(block.place);
  Clock users;
  for (auto stream : block.uses.recorded_streams) users.join(stream_clocks[stream]);
  if (is_busy(users)) {
    deferred_releases.push_back(DeferredRelease{block.place, users});
  } else {
    segments.release(block.place);
  }
}

// --- memory on the host

struct HostMemory {
  c10::DataPtr data;
};

inline void free_host_memory(void* context) {
  auto* memory = static_cast<HostMemory*>(context);
  {
    Lock lock(state_lock);
    auto found = blocks.find(memory->data.get());
    if (found != blocks.end()) {
      if (found->second.is_live) release(found->second);  // the tensor was resized
      blocks.erase(found);
    }
  }
  delete memory;
}

// --- memory on the device

struct DeviceMemory {
  c10::Storage host;
  void* address;
  int64_t block;
};

inline void free_device_memory(void* context) {
  auto* memory = static_cast<DeviceMemory*>(context);
  {
    Lock lock(state_lock);
    auto found = blocks.find(memory->address);
    if (found != blocks.end() && found->second.id == memory->block && found->second.is_live) {
      auto& block = found->second;
      release(block);
      // A GPU would give the memory to somebody else, and a replay would read what that has written.
      if (block.is_recorded && !block.graph && memory->host.use_count() > 1) {
        fill_with_garbage(memory->address, block.bytes);
      }
    }
  }
  delete memory;
}

// Memory for `DataPtr`s of the device, which the host's storage has. Raises if there is not enough.
inline c10::DataPtr adopt(c10::Storage host) {
  void* address = host.mutable_data();
  const size_t bytes = host.nbytes();
  int64_t id = 0;
  if (address) {
    Lock lock(state_lock);
    auto graph = current_capture();
    release_deferred();
    const auto pool = graph ? graph->pool : current_pool;
    const auto place = segments.allocate(bytes, pool, current_stream);
    segments.set_address(place, address);
    if (!graph) check_allocation(bytes, pool, current_stream);
    id = next_block++;
    Block block{id, bytes, pool, graph ? graph->id : 0};
    block.place = place;
    block.uses.home = current_stream;
    blocks[address] = std::move(block);
    auto data = host.set_data_ptr(c10::DataPtr());
    host.set_data_ptr_noswap(c10::DataPtr(address, new HostMemory{std::move(data)}, &free_host_memory, HOST));
  }
  return c10::DataPtr(address, new DeviceMemory{host, address, id}, &free_device_memory, DEVICE);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* host = c10::GetCPUAllocator();
    return adopt(c10::Storage(c10::Storage::use_byte_size_t(), bytes, host->allocate(bytes), host, true));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};
inline DeviceAllocator device_allocator;

inline Block* block_of(const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return nullptr;
  if (!tensor.storage().nbytes()) return nullptr;
  auto found = blocks.find(tensor.storage().mutable_data());
  return found == blocks.end() ? nullptr : &found->second;
}

inline void record_stream(const Tensor& tensor, int64_t stream) {
  Lock lock(state_lock);
  if (auto* block = block_of(tensor)) block->uses.recorded_streams.insert(stream);
}

// --- pinned memory

inline void free_pinned_memory(void* context) {
  auto* memory = static_cast<HostMemory*>(context);
  {
    Lock lock(state_lock);
    pinned_addresses.erase(memory->data.get());
  }
  delete memory;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* memory = new HostMemory{c10::GetCPUAllocator()->allocate(bytes)};
    void* address = memory->data.get();
    Lock lock(state_lock);
    if (address) pinned_addresses.insert(address);
    return c10::DataPtr(address, memory, &free_pinned_memory, HOST);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};
inline PinnedAllocator pinned_allocator;

inline bool is_pinned(const Tensor& tensor) {
  if (tensor.is_cuda() || tensor.layout() != at::kStrided) return false;
  Lock lock(state_lock);
  return pinned_addresses.count(tensor.storage().data());
}

inline Tensor pinned_copy(const Tensor& tensor) {
  HostCall call;
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  Tensor made = at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), &pinned_allocator, keys,
                                                  tensor.scalar_type());
  made.copy_(tensor);
  return made;
}

}  // namespace simulated_cuda
