// Aliases: tensors of the host that have the memory of tensors of the device, for CPU kernels.
#pragma once

#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>

#include "memory.h"

namespace simulated_cuda {

inline Tensor make_tensor(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

inline Tensor make_sparse(c10::DispatchKey key, const Tensor& like, const Tensor& indices, const Tensor& values) {
  auto made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  auto* from = at::sparse::get_sparse_impl(like);  // the methods of tensors would be operations
  auto* impl = at::sparse::get_sparse_impl(made);
  impl->resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(from->coalesced());
  return made;
}

inline c10::Storage host_storage_of(const c10::Storage& storage) {
  const auto& data = storage.data_ptr();
  if (data.get_deleter() == &free_device_memory) return static_cast<DeviceMemory*>(data.get_context())->host;
  // Memory that the device has not allocated, from DLPack for example.
  auto* keep = new c10::Storage(storage);
  auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
  c10::DataPtr same(storage.mutable_data(), keep, release, HOST);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(same), c10::GetCPUAllocator(), true);
}

// The aliases of one operation.
class Aliases {
 public:
  Tensor to_host(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    for (const auto& [device, host] : pairs_) {
      if (device.is_same(tensor)) return host;
    }
    Tensor host;
    if (tensor.layout() == at::kSparse) {
      auto* impl = at::sparse::get_sparse_impl(tensor);
      host = make_sparse(c10::DispatchKey::SparseCPU, tensor, to_host(impl->indices()), to_host(impl->values()));
    } else {
      TORCH_CHECK(tensor.layout() == at::kStrided, "simulated_cuda: tensors with layout ", tensor.layout());
      auto storage = host_storage_of(tensor.storage());
      device_storages_.emplace(storage.unsafeGetStorageImpl(), tensor.storage());
      host = make_tensor(std::move(storage), c10::DispatchKey::CPU, tensor);
    }
    pairs_.emplace_back(tensor, host);
    return host;
  }

  // A result as a tensor of the device. Appends to `allocated` the aliases of the dense tensors that it consists of; an
  // undefined one for what is an argument, or shares the memory of another tensor.
  Tensor to_device(const Tensor& host, std::vector<Tensor>& allocated) {
    if (!host.defined()) return host;
    for (const auto& [device, alias] : pairs_) {
      if (!alias.is_same(host)) continue;
      allocated.resize(allocated.size() + (host.layout() == at::kSparse ? 2 : 1));
      return device;
    }
    if (host.layout() == at::kSparse) {
      auto* impl = at::sparse::get_sparse_impl(host);
      const auto indices = to_device(impl->indices(), allocated);
      const auto values = to_device(impl->values(), allocated);
      return make_sparse(c10::DispatchKey::SparseCUDA, host, indices, values);
    }
    TORCH_CHECK(host.layout() == at::kStrided, "simulated_cuda: tensors with layout ", host.layout());
    auto storage = host.storage();
    auto found = device_storages_.find(storage.unsafeGetStorageImpl());
    const bool is_new = found == device_storages_.end();
    allocated.push_back(is_new ? host : Tensor());
    if (is_new) {
      c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(), adopt(storage), &device_allocator, true);
      found = device_storages_.emplace(storage.unsafeGetStorageImpl(), made).first;
    }
    return make_tensor(found->second, c10::DispatchKey::CUDA, host);
  }

  // Gives tensors of the device the shape and memory that an operation gave to their aliases.
  void update_resized() {
    std::vector<Tensor> allocated;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const auto [device, host] = pairs_[i];
      if (device.layout() == at::kSparse) {
        update_sparse(device, host, allocated);
      } else {
        update_dense(device, host);
      }
    }
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> pairs_;               // of the device, and its alias
  std::map<c10::StorageImpl*, c10::Storage> device_storages_;  // by the host's

  void update_dense(const Tensor& device, const Tensor& host) {
    auto storage = device.storage();
    if (storage.data() != host.storage().data()) {
      const auto memory = host.storage();
      storage.set_data_ptr_noswap(adopt(memory));
      storage.set_nbytes(memory.nbytes());
    }
    if (device.sizes() == host.sizes() && device.strides() == host.strides()) return;
    device.unsafeGetTensorImpl()->set_storage_offset(host.storage_offset());
    device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
  }

  void update_sparse(const Tensor& device, const Tensor& host, std::vector<Tensor>& allocated) {
    auto* from = at::sparse::get_sparse_impl(host);
    auto* to = at::sparse::get_sparse_impl(device);
    const auto indices = to_device(from->indices(), allocated);
    const auto values = to_device(from->values(), allocated);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(indices, values);
    to->set_coalesced(from->coalesced());
  }
};

// Applies a function to the tensors in a value. The device becomes the host.
template <class Function>
IValue map_tensors(const IValue& value, Function function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& each : value.toTensorList()) mapped.push_back(function(each));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> mapped;
    for (const auto& each : value.toOptionalTensorList()) {
      const std::optional<Tensor> tensor = each;
      mapped.push_back(tensor ? std::optional<Tensor>(function(*tensor)) : std::nullopt);
    }
    return mapped;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return HOST;
  return value;
}

template <class Function>
void for_each_tensor(const IValue& value, Function function) {
  map_tensors(value, [&](const Tensor& tensor) {
    if (tensor.defined()) function(tensor);
    return tensor;
  });
}

// The dense tensors that a tensor consists of.
template <class Function>
void for_each_dense(const Tensor& tensor, Function function) {
  if (tensor.layout() != at::kSparse) return function(tensor);
  function(at::sparse::get_sparse_impl(tensor)->indices());
  function(at::sparse::get_sparse_impl(tensor)->values());
}

inline void note_use(const Tensor& tensor, bool writes, const Access& access) {
  for_each_dense(tensor, [&](const Tensor& dense) {
    auto* block = block_of(dense);
    if (!block) return;
    if (writes) {
      note_write(block->uses, access);
    } else {
      note_read(block->uses, access);
    }
  });
}

}  // namespace simulated_cuda
