// Copies between host and device.
#pragma once

#include <ATen/ops/_to_copy_native.h>

#include "aliases.h"
#include "counts.h"
#include "replay.h"

namespace simulated_cuda {

// What the host reads in memory to which a copy has not arrived yet.
inline void fill_with_nan(const Tensor& host) {
  HostCall call;
  if (!host.numel() || !host.is_non_overlapping_and_dense()) return;
  if (host.is_floating_point() || host.is_complex()) {
    host.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (host.scalar_type() == at::kBool) {
    host.fill_(true);
  } else {
    host.fill_(77);
  }
}

// A copy to pinned memory is launched: it takes the values of now, and arrives when the host waits.
inline void launch_copy_to_host(const Tensor& target, const Tensor& source, int64_t number) {
  HostCall call;
  auto value = at::empty_like(target);
  value.copy_(source);
  arrivals.push_back(Arrival{current_stream, number, target.detach(), value});
}

inline Tensor& record_copy(Graph& graph, Tensor& self, const Tensor& target, Tensor source) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (target.sizes() != source.sizes()) source = source.expand(target.sizes());
  const auto kind = self.is_cuda() ? Kind::copy_to_device : Kind::copy_to_host;
  HostCall call;
  Lock lock(state_lock);
  record(graph, RecordedOperation{op, {target.detach(), source.detach(), false}, {}, false, kind});
  auto* block = block_of(self);
  if (block && block->graph == graph.id) target.copy_(source);  // so that later operations see plausible values
  return self;
}

inline Tensor& copy_dense(Tensor& self, const Tensor& given, bool non_blocking) {
  const bool is_to_host = !self.is_cuda(), is_from_host = !given.is_cuda();
  const auto graph = current_capture();
  const char* direction = is_to_host ? "copy to the host" : is_from_host ? "copy from the host" : "copy";
  count_operation(direction, graph != nullptr);
  const bool has_host = is_to_host || is_from_host;
  const bool is_late = has_host && non_blocking && is_pinned(is_to_host ? self : given);
  if (has_host && !is_late) synchronize(is_to_host ? "copy to the host" : "copy from pageable memory");
  Aliases aliases;
  Tensor target = aliases.to_host(self), source = aliases.to_host(given);
  if (graph) return record_copy(*graph, self, target, source);
  {
    HostCall call;
    Lock lock(state_lock);
    const Access access{current_stream, start_operation(current_stream), "copy_"};
    note_use(source, false, access);
    note_use(target, true, access);
    if (is_late && is_from_host) {
      uploads.push_back(Upload{current_stream, access.number, source.detach(), source.clone()});
    }
    if (is_late && is_to_host) {
      launch_copy_to_host(target, source, access.number);
      return self;
    }
  }
  if (has_host && !is_late) wait_for_stream(current_stream);
  HostCall call;
  target.copy_(source);
  return self;
}

inline Tensor& copy_sparse(Tensor& self, const Tensor& given, bool non_blocking) {
  raise_if_capturing("copy of a sparse tensor");
  TORCH_CHECK(self.is_sparse() && given.is_sparse(), "simulated_cuda: copies between sparse and dense tensors");
  HostCall call;
  auto* from = at::sparse::get_sparse_impl(given);
  auto* to = at::sparse::get_sparse_impl(self);
  const auto options = at::TensorOptions().device(self.device());
  auto indices = at::empty(from->indices().sizes(), options.dtype(at::kLong));
  auto values = at::empty(from->values().sizes(), options.dtype(self.dtype()));
  indices.copy_(from->indices(), non_blocking);
  values.copy_(from->values(), non_blocking);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
  return self;
}

inline Tensor& copy_(Tensor& self, const Tensor& given, bool non_blocking) {
  if (self.layout() == at::kSparse || given.layout() == at::kSparse) return copy_sparse(self, given, non_blocking);
  return copy_dense(self, given, non_blocking);
}

// `tensor.to("cpu", non_blocking=True)` makes pinned memory, which the copy reaches later.
inline Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                      std::optional<at::MemoryFormat> format) {
  if (!non_blocking || !device || !device->is_cpu() || self.layout() != at::kStrided) {
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
  }
  raise_if_capturing("allocation of pinned memory: torch takes it from the pool of the graph, which is not simulated");
  Aliases aliases;
  const Tensor source = aliases.to_host(self);
  HostCall call;
  const Tensor value = at::native::_to_copy(source, dtype, layout, device, false, false, format);
  const Tensor target = pinned_copy(value);
  fill_with_nan(target);
  Lock lock(state_lock);
  const Access access{current_stream, start_operation(current_stream), "copy_"};
  note_use(source, false, access);
  launch_copy_to_host(target, value, access.number);
  return target;
}

}  // namespace simulated_cuda
