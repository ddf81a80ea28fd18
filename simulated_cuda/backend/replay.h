// Records operations in graphs, and replays them.
#pragma once

#include "aliases.h"

namespace simulated_cuda {

inline void launch_copy_to_host(const Tensor& target, const Tensor& source, int64_t number);  // copies.h

// Matrix products of the host round differently if their memory is not aligned: they get aligned copies, so that a
// replay and an eager step give the same bits.
inline void align_products(const c10::OperatorHandle& op, Stack& inputs) {
  static const std::set<std::string> PRODUCTS = {
      "aten::addmm", "aten::addmv", "aten::baddbmm", "aten::bmm", "aten::dot", "aten::mm", "aten::mv",
  };
  constexpr uintptr_t ALIGNMENT = 64;  // bytes
  if (!op.schema().overload_name().empty() || !PRODUCTS.count(op.schema().name())) return;
  for (auto& each : inputs) {
    if (!each.isTensor() || !each.toTensor().defined() || each.toTensor().layout() != at::kStrided) continue;
    const Tensor tensor = each.toTensor();
    if (!tensor.numel() || reinterpret_cast<uintptr_t>(tensor.data_ptr()) % ALIGNMENT == 0) continue;
    each = tensor.clone(at::MemoryFormat::Preserve);
  }
}

// Runs an operation on aliases.
inline void run_on_host(const c10::OperatorHandle& op, Stack& stack, bool is_random) {
  HostCall call;
  align_products(op, stack);
  if (is_random) {
    call_random(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

inline bool is_written(const c10::OperatorHandle& op, size_t argument) {
  const auto* info = op.schema().arguments()[argument].alias_info();
  return info && info->isWrite();
}

// Starts an operation on the current stream, and notes what it reads and writes. Returns its number.
inline int64_t note_operation(const c10::OperatorHandle& op, const Stack& inputs, const std::vector<Tensor>& results) {
  Lock lock(state_lock);
  const Access access{current_stream, start_operation(current_stream), op.schema().name()};
  for (bool writes : {false, true}) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (is_written(op, i) != writes) continue;
      for_each_tensor(inputs[i], [&](const Tensor& tensor) { note_use(tensor, writes, access); });
    }
  }
  for (const auto& result : results) note_use(result, true, access);
  return access.number;
}

inline void record(Graph& graph, RecordedOperation operation) {
  Lock lock(state_lock);
  for (const auto& input : operation.inputs) {
    for_each_tensor(input, [](const Tensor& tensor) {
      for_each_dense(tensor, [](const Tensor& dense) {
        if (auto* block = block_of(dense)) block->is_recorded = true;
      });
    });
  }
  graph.operations.push_back(std::move(operation));
}

inline void begin_capture(int64_t pool) {
  static int64_t next_id = 1;
  Lock lock(state_lock);
  if (capture) throw std::runtime_error("CUDA error: a capture is under way already");
  if (current_stream == 0) throw std::runtime_error("CUDA graphs must be captured on a non-default stream.");
  capture = std::make_shared<Graph>(Graph{next_id++, pool, current_stream, generator_state()});
  segments.add_pool_user(pool);
}

// Ends the capture. Returns the number of the graph.
inline int64_t end_capture() {
  Lock lock(state_lock);
  if (!capture) throw std::runtime_error("CUDA error: no capture is under way");
  const auto graph = std::exchange(capture, nullptr);
  set_generator_state(graph->generator_state);
  for (auto& [address, block] : blocks) {
    if (block.graph == graph->id) fill_with_garbage(address, block.bytes);  // nothing has run
  }
  if (graph->is_invalid) {
    segments.remove_pool_user(graph->pool);
    throw std::runtime_error("CUDA error: operation failed due to a previous error during capture");
  }
  graphs[graph->id] = graph;
  return graph->id;
}

inline void delete_graph(int64_t id) {
  std::shared_ptr<Graph> graph;  // destroyed after the lock is released
  Lock lock(state_lock);
  auto found = graphs.find(id);
  if (found == graphs.end()) return;
  graph = found->second;
  graphs.erase(found);
  segments.remove_pool_user(graph->pool);
}

inline std::shared_ptr<Graph> find_graph(int64_t id) {
  Lock lock(state_lock);
  auto found = graphs.find(id);
  if (found == graphs.end()) {
    throw std::runtime_error("CUDA error: there is no graph; its capture failed or it was reset");
  }
  return found->second;
}

inline void replay_operation(const RecordedOperation& operation) {
  const auto number = note_operation(operation.op, operation.inputs, operation.results);
  if (operation.kind == Kind::copy_to_host) {
    return launch_copy_to_host(operation.inputs[0].toTensor(), operation.inputs[1].toTensor(), number);
  }
  Stack stack = operation.inputs;
  run_on_host(operation.op, stack, operation.is_random);
  if (operation.results.empty()) return;
  // What the operation has allocated now goes to where the next operations expect it.
  HostCall call;
  std::vector<Tensor> found;
  for (const auto& value : stack) {
    for_each_tensor(value, [&](const Tensor& tensor) {
      for_each_dense(tensor, [&](const Tensor& dense) { found.push_back(dense); });
    });
  }
  size_t place = 0;
  for (const auto& result : found) {
    if (place < operation.results.size() && operation.results[place].defined()) operation.results[place].copy_(result);
    ++place;
  }
}

inline void replay(int64_t id) {
  const auto graph = find_graph(id);
  raise_if_capturing("a replay");
  Lock lock(state_lock);
  // On a GPU the graph uses all of its pool: what somebody else has allocated there is overwritten.
  for (auto& [address, block] : blocks) {
    if (block.pool && block.pool == graph->pool && !block.graph) fill_with_garbage(address, block.bytes);
  }
  for (const auto& operation : graph->operations) replay_operation(operation);
}

}  // namespace simulated_cuda
