// Every operation on tensors of the device comes here: it runs with torch's CPU kernel on the same memory.
#pragma once

#include "copies.h"
#include "counts.h"
#include "replay.h"

namespace simulated_cuda {

// Operations that have no kernel for CUDA in torch either.
inline const std::set<std::string> NOT_ON_CUDA = {"aten::_fused_adagrad_"};

// Operations that read results on the host, beside those that torch's tags name.
inline const std::set<std::string> SYNCHRONIZING = {
    "aten::_coalesce",
    "aten::_local_scalar_dense",
    "aten::_to_sparse",
    "aten::_to_sparse.sparse_dim",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::unique_dim",
};

// Operations that take indices of the host too, and copy them.
inline const std::set<std::string> INDEXING = {
    "aten::_index_put_impl_", "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put", "aten::index_put_",
};

inline bool has_mask(const IValue& indices) {
  bool found = false;
  for_each_tensor(indices, [&](const Tensor& each) {
    found |= each.scalar_type() == at::kBool || each.scalar_type() == at::kByte;
  });
  return found;
}

inline bool is_synchronizing(const c10::OperatorHandle& op, const std::string& name, const Stack& stack) {
  if (name == "aten::index.Tensor") return has_mask(stack.back());  // with indices the shape is known
  return SYNCHRONIZING.count(name) || op.hasTag(at::Tag::dynamic_output_shape) ||
         op.hasTag(at::Tag::data_dependent_output);
}

// One call of an operation.
class Operation {
 public:
  Operation(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        stack_(*stack),
        name_(toString(op.schema().operator_name())),
        graph_(current_capture()),
        is_random_(op.hasTag(at::Tag::nondeterministic_seeded)) {}

  void call() {
    count_operation(name_, graph_ != nullptr);
    TORCH_CHECK(!NOT_ON_CUDA.count(name_), "Could not run '", name_, "' with arguments from the 'CUDA' backend");
    const bool synchronizes = is_synchronizing(op_, name_, stack_);
    if (synchronizes) synchronize(name_);
    take_arguments();
    if (graph_ && writes_ && !writes_only_memory_of_the_capture()) return record_write();

    Stack work = inputs_;
    keep_running_statistics(work);
    run_on_host(op_, work, is_random_);
    if (writes_) aliases_.update_resized();
    const auto results = push_results(work);
    const auto is_defined = [](const Tensor& result) { return result.defined(); };
    const bool allocates = std::any_of(results.begin(), results.end(), is_defined);
    if (!allocates && !writes_ && !synchronizes) return;  // a view
    if (graph_) return record(*graph_, RecordedOperation{op_, inputs_, results, is_random_});
    note_operation(op_, inputs_, results);
    if (synchronizes) wait_for_stream(current_stream);
  }

 private:
  const c10::OperatorHandle& op_;
  Stack& stack_;
  const std::string name_;
  const std::shared_ptr<Graph> graph_;
  const bool is_random_;
  Stack given_;   // arguments, on the device
  Stack inputs_;  // and their aliases on the host
  Aliases aliases_;
  bool writes_ = false;

  void take_arguments() {
    const auto count = op_.schema().arguments().size();
    given_.assign(stack_.end() - count, stack_.end());
    torch::jit::drop(stack_, count);
    for (size_t i = 0; i < count; ++i) {
      writes_ |= is_written(op_, i);
      for_each_tensor(given_[i], [&](const Tensor& tensor) {
        if (!tensor.is_cuda()) check_tensor_of_host(tensor, given_[i].isTensorList());
      });
      inputs_.push_back(map_tensors(given_[i], [&](const Tensor& tensor) { return aliases_.to_host(tensor); }));
    }
  }

  // Numbers may be on the host, but not in a list of tensors of a fused operation.
  void check_tensor_of_host(const Tensor& tensor, bool is_in_list) {
    if (INDEXING.count(name_)) {
      if (tensor.dim() > 0) synchronize(name_ + " with indices on the host");
      return;
    }
    const bool is_foreach = name_.find("foreach") != std::string::npos;
    const bool is_stack = name_.find("stack") != std::string::npos;
    const bool is_refused = is_in_list && (is_foreach || !is_stack);
    TORCH_CHECK(tensor.dim() == 0 && !is_refused, "Expected all tensors to be on the same device, but found at least ",
                "two devices, cuda:0 and cpu! (", name_, ")");
  }

  // Then the operation runs in the capture too, and later ones see plausible values.
  bool writes_only_memory_of_the_capture() {
    bool is_own = true;
    Lock lock(state_lock);
    for (size_t i = 0; i < given_.size(); ++i) {
      if (!is_written(op_, i)) continue;
      for_each_tensor(inputs_[i], [&](const Tensor& tensor) {
        for_each_dense(tensor, [&](const Tensor& dense) {
          if (!dense.numel()) return;
          const auto* block = block_of(dense);
          is_own &= block && block->graph == graph_->id;
        });
      });
    }
    return is_own;
  }

  // Records an operation that writes to memory of before the capture, and does not run it. Its results are arguments,
  // or new tensors beside them (of batch norm, for example).
  void record_write() {
    if (name_.find("resize") != std::string::npos) raise_in_capture("simulated_cuda: " + name_);
    const auto& returns = op_.schema().returns();
    std::vector<Tensor> results;
    Stack outputs;
    for (const auto& each : returns) {
      const auto argument = argument_that_is(each);
      if (argument) outputs.push_back(given_[*argument]);
    }
    if (outputs.size() == returns.size()) {
      stack_.insert(stack_.end(), outputs.begin(), outputs.end());
    } else {
      TORCH_CHECK(outputs.empty(), "simulated_cuda: ", name_, " returns both arguments and new tensors");
      Stack trial = inputs_;
      for (size_t i = 0; i < trial.size(); ++i) {
        if (is_written(op_, i)) trial[i] = copy_of(trial[i]);
      }
      run_on_host(op_, trial, is_random_);
      results = push_results(trial);
    }
    record(*graph_, RecordedOperation{op_, inputs_, results, is_random_});
  }

  // The argument that a result is an alias of.
  std::optional<size_t> argument_that_is(const c10::Argument& result) const {
    if (!result.alias_info()) return std::nullopt;
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_written(op_, i) && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) return i;
    }
    return std::nullopt;
  }

  static IValue copy_of(const IValue& value) {
    HostCall call;
    return map_tensors(value, [](const Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; });
  }

  // Batch norm writes its running statistics, though its schema does not say so: a capture must not.
  void keep_running_statistics(Stack& work) {
    if (!graph_ || name_ != "aten::native_batch_norm") return;
    for (size_t argument : {3, 4}) work[argument] = copy_of(work[argument]);
  }

  // Pushes results as tensors of the device. Returns what the operation has allocated, as `Aliases::to_device` does.
  std::vector<Tensor> push_results(const Stack& found) {
    std::vector<Tensor> allocated;
    for (const auto& each : found) {
      stack_.push_back(map_tensors(each, [&](const Tensor& tensor) { return aliases_.to_device(tensor, allocated); }));
    }
    return allocated;
  }
};

inline void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { Operation(op, stack).call(); }

// --- kernels that are not the CPU's

inline at::ScalarType or_default(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
}

inline Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<c10::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator, keys, or_default(dtype), format);
}

inline Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator, keys, or_default(dtype));
}

// Attention takes its mathematical form: the fused kernels are those of GPUs.
inline int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                                std::optional<double>, bool) {
  return 0;
}

// `set_` gives a tensor other memory: nothing runs on the device, and nothing is recorded.
inline Tensor& set_storage(Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                           c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  c10::DimVector strides(C10_AS_INTARRAYREF_SLOW(stride));
  if (stride.empty()) strides = c10::contiguous_strides(sizes);
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(sizes, strides);
  return self;
}

inline Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const c10::SymInt size(static_cast<int64_t>(source.nbytes() / self.itemsize()));
  return set_storage(self, std::move(source), 0, {size}, {});
}

inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

inline void record_stream_operation(Tensor& tensor, c10::Stream stream) { record_stream(tensor, stream.id()); }

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, SparseCUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_to_copy", &to_copy);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("record_stream", &record_stream_operation);
  library.impl("_fused_sdp_choice", &choose_attention);
}

TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) { library.impl("copy_", &copy_); }

// Gives operations that have a CPU kernel the fallback: otherwise torch would take their composite form, which launches
// other operations than a GPU's kernel does.
inline void register_operations_of(c10::DispatchKey host, c10::DispatchKey device) {
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", device, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(host) || op->hasKernelForDispatchKey(device)) continue;
    library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  if (host != c10::DispatchKey::CPU) return;
  // Composite on the host too, and one kernel on a GPU.
  for (const char* name : {"aten::convolution", "aten::convolution_backward", "aten::_convolution"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace simulated_cuda
