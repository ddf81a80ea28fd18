// Process groups for tensors of the simulated device: what stands for NCCL, and gloo. See ../README_ranks.md.
//
// A collective is one operation, `simulated_cuda::communicate`. On tensors of the device it comes through the fallback as
// any other operation does, which notes its reads and writes for the detection of races, and records it in a capture. Its
// kernel runs on aliases in host memory, and sends messages through a process group of gloo's.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/custom_class.h>
#include <torch/extension.h>
#include <torch/library.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <atomic>
#include <functional>
#include <mutex>

#include "capture.h"
#include "waiting.h"

namespace {
using at::Tensor;
using c10d::Backend;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;
const c10::Device DEVICE(c10::DeviceType::CUDA, 0);

// --- messages, on the host: everything is made of gloo's all-gather, all-reduce, broadcast, send and receive

Tensor as_bytes(const Tensor& tensor) {
  return tensor.contiguous().clone(at::MemoryFormat::Contiguous).reshape({-1}).view(at::kByte);
}
void write_bytes(const Tensor& target, const Tensor& bytes) {
  target.copy_(bytes.clone().view(target.scalar_type()).view(target.sizes()));
}

Tensors gather_rows(Backend& gloo, const Tensor& own) {
  std::vector<Tensors> rows(1);
  for (int rank = 0; rank < gloo.getSize(); ++rank) rows[0].push_back(at::empty_like(own));
  Tensors sent{own};
  gloo.allgather(rows, sent)->wait();
  return rows[0];
}

Tensor reduce_over_ranks(Backend& gloo, const Tensor& own, const ReduceOp& op) {
  Tensor flat = own.contiguous().clone(at::MemoryFormat::Contiguous);
  if (flat.is_complex()) flat = at::view_as_real(flat);
  flat = flat.reshape({-1});
  c10d::AllreduceOptions options;
  const auto type = op.op_;
  const bool is_bool = flat.scalar_type() == at::kBool;
  if (is_bool) flat = flat.to(at::kByte);
  if (type == ReduceOp::PREMUL_SUM) {
    auto* factor = static_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
    if (factor->tensor_factor.defined()) flat.mul_(factor->tensor_factor.to(at::kCPU));
    else flat.mul_(factor->double_factor);
  } else if (type == ReduceOp::AVG) {
    if (flat.is_floating_point()) flat.mul_(1.0 / gloo.getSize());  // NCCL multiplies before it adds up
  } else {
    options.reduceOp = is_bool ? (type == ReduceOp::SUM ? ReduceOp::MAX : type == ReduceOp::PRODUCT ? ReduceOp::MIN : type) : type;
  }
  Tensors sent{flat};
  gloo.allreduce(sent, options)->wait();
  if (type == ReduceOp::AVG && !flat.is_floating_point()) flat.floor_divide_(gloo.getSize());
  if (is_bool) flat = flat.to(at::kBool);
  if (own.is_complex()) flat = at::view_as_complex(flat.view({-1, 2}));
  return flat.view(own.sizes());
}

// --- a collective: what every rank has to agree about, and how it runs

struct Collective : torch::CustomClassHolder {
  c10::intrusive_ptr<Backend> gloo;
  std::shared_ptr<std::mutex> lock;              // two threads must not mix their messages
  std::shared_ptr<std::atomic<int64_t>> count;  // collectives of this group so far
  std::string group, description;               // the description is the same on all ranks; empty: not compared
  std::function<void(Backend&, const Tensors& inputs, const Tensors& outputs)> run;
};

void compare_descriptions(Backend& gloo, const Collective& own, int64_t number) {
  constexpr int64_t LENGTH = 240;
  auto text = own.description.substr(0, LENGTH);
  Tensor header = at::zeros({LENGTH}, at::kByte);
  std::memcpy(header.data_ptr(), text.data(), text.size());
  std::string found;
  bool differ = false;
  auto rows = gather_rows(gloo, header);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto* data = static_cast<const char*>(rows[rank].data_ptr());
    std::string other(data, strnlen(data, LENGTH));
    differ |= other != text;
    found += (rank ? ", rank " : "rank ") + std::to_string(rank) + " " + other;
  }
  TORCH_CHECK(!differ, "simulated ", own.group, ": ranks launch different collectives (number ", number,
              " of the group); NCCL would hang, or mix them up: ", found);
}

thread_local bool is_recorded = false;  // in a capture the fallback may run what it records: that must send nothing

void communicate(const Tensors& inputs, const Tensors& outputs, const c10::intrusive_ptr<Collective>& call) {
  if (is_recorded) return;
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check()) no_gil.emplace();
  std::lock_guard<std::mutex> guard(*call->lock);
  if (!call->description.empty()) {
    const auto number = ++*call->count;
    if (call->gloo->getSize() > 1) compare_descriptions(*call->gloo, *call, number);
  }
  call->run(*call->gloo, inputs, outputs);
}

TORCH_LIBRARY(simulated_cuda, m) {
  m.class_<Collective>("Collective");
  m.def("communicate(Tensor[] inputs, Tensor(a!)[] outputs, __torch__.torch.classes.simulated_cuda.Collective call) -> ()");
}
TORCH_LIBRARY_IMPL(simulated_cuda, CPU, m) {
  m.impl("communicate", [](std::vector<Tensor> inputs, std::vector<Tensor> outputs, const c10::intrusive_ptr<Collective>& call) {
    communicate(inputs, outputs, call);
  });
}
void call_communicate(const Tensors& inputs, const Tensors& outputs, const c10::intrusive_ptr<Collective>& call) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("simulated_cuda::communicate", "");
  at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::Stack stack{c10::List<Tensor>(inputs.empty() ? c10::List<Tensor>() : c10::List<Tensor>(at::ArrayRef<Tensor>(inputs))),
                          c10::List<Tensor>(at::ArrayRef<Tensor>(outputs)), call};
  op.callBoxed(stack);
}

// --- work: what a launch returns

struct StreamEvent {
  c10::impl::VirtualGuardImpl guard{c10::DeviceType::CUDA};
  void* event = nullptr;
  explicit StreamEvent(const c10::Stream& stream) { guard.record(&event, stream, DEVICE.index(), c10::EventFlag::PYTORCH_DEFAULT); }
  ~StreamEvent() { if (event) guard.destroyEvent(event, DEVICE.index()); }
  StreamEvent(const StreamEvent&) = delete;
  void block(const c10::Stream& stream) const { guard.block(event, stream); }
  bool query() const { return guard.queryEvent(event); }
};

class CollectiveWork : public c10d::Work {
 public:
  CollectiveWork(int rank, c10d::OpType type, const c10::Stream& stream, Tensors held, const Tensors& results, bool blocks_host)
      : Work(rank, type), done_(stream), stream_(stream), held_(std::move(held)), results_(results), blocks_host_(blocks_host),
        future_(c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{DEVICE})) {
    future_->markCompleted(at::IValue(results));  // records an event on the current stream, which is `stream`
    completed_ = true;
  }
  // A work that nobody waits for: its tensors may be freed, and NCCL keeps their memory until the collective is done.
  ~CollectiveWork() override {
    for (const auto& each : held_) done_.guard.recordDataPtrOnStream(each.storage().data_ptr(), stream_);
  }
  bool isCompleted() override { return done_.query(); }
  bool isSuccess() const override { return true; }
  Tensors result() override { return results_; }
  void synchronize() override {
    done_.block(done_.guard.getStream(DEVICE));
    held_.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (blocks_host_) simulated_cuda::synchronize("a barrier");
    return true;
  }
  c10::intrusive_ptr<at::ivalue::Future> getFuture() override { return future_; }

 private:
  StreamEvent done_;
  c10::Stream stream_;
  Tensors held_;  // until the stream of the caller has waited
  Tensors results_;
  bool blocks_host_;
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

// Gloo's receive does not block the host until somebody waits for it.
class LateWork : public c10d::Work {
 public:
  using Launch = std::function<c10::intrusive_ptr<c10d::Work>()>;
  explicit LateWork(Launch launch) : launch_(std::move(launch)) {}
  bool wait(std::chrono::milliseconds timeout) override { return launched()->wait(timeout); }
  void synchronize() override { launched()->synchronize(); }
  bool isCompleted() override { return launched()->isCompleted(); }
  std::vector<Tensor> result() override { return launched()->result(); }
  c10::intrusive_ptr<at::ivalue::Future> getFuture() override { return launched()->getFuture(); }

 private:
  const c10::intrusive_ptr<c10d::Work>& launched() {
    if (!work_) work_ = launch_();
    return work_;
  }
  Launch launch_;
  c10::intrusive_ptr<c10d::Work> work_;
};

// --- the process group

std::string describe(const std::string& name, const Tensors& tensors, const std::string& detail = "") {
  std::string text = name + "(";
  for (const auto& each : tensors) text += std::string(c10::toString(each.scalar_type())) + " " + c10::str(each.sizes()) + ", ";
  text += detail;
  return text + ")";
}
std::string name_of(const ReduceOp& op) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};
  return names[op.op_];
}
std::string from_rank(int64_t rank) { return "from rank " + std::to_string(rank); }

class DeviceGroup : public Backend {
 public:
  using Run = decltype(Collective::run);

  DeviceGroup(c10::intrusive_ptr<Backend> gloo, std::string name, bool is_nccl)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), name_(std::move(name)), is_nccl_(is_nccl),
        stream_(c10::Stream::UNSAFE, DEVICE, next_stream_++) {}

  const std::string getBackendName() const override { return name_; }
  bool supportsCoalescing() const override { return is_nccl_; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void abort() override { gloo_->abort(); }
  void shutdown() override { gloo_->shutdown(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return *count_; }

  void startCoalescing() override { is_coalescing_ = true; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    is_coalescing_ = false;
    auto sends = std::move(sends_), receives = std::move(receives_);
    sends_.clear(), receives_.clear();
    for (auto& launch : sends) launch();  // before the receives: in a group of NCCL their order does not matter
    for (auto& launch : receives) launch();
    auto results = std::move(coalesced_);
    coalesced_.clear();
    const auto on = coalesced_are_async_ ? stream_ : guard_.getStream(DEVICE);
    OnStream here(guard_, on);
    return c10::make_intrusive<CollectiveWork>(rank_, c10d::OpType::COALESCED, on, coalesced_are_async_ ? results : Tensors(), results, false);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    check(tensors);
    return launch(c10d::OpType::ALLREDUCE, describe("all_reduce", tensors, name_of(options.reduceOp)), {}, tensors, options.asyncOp,
                  [op = options.reduceOp](Backend& gloo, const Tensors&, const Tensors& outputs) {
                    for (const auto& each : outputs) each.copy_(reduce_over_ranks(gloo, each, op));
                  });
  }
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check(tensors);
    return launch(c10d::OpType::BROADCAST, describe("broadcast", tensors, from_rank(options.rootRank)), {}, tensors, options.asyncOp,
                  [root = options.rootRank](Backend& gloo, const Tensors&, const Tensors& outputs) {
                    for (const auto& each : outputs) {
                      Tensors sent{as_bytes(each)};
                      c10d::BroadcastOptions from;
                      from.rootRank = root;
                      gloo.broadcast(sent, from)->wait();
                      if (gloo.getRank() != root) write_bytes(each, sent[0]);
                    }
                  });
  }
  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    check(tensors);
    auto detail = name_of(options.reduceOp) + " to rank " + std::to_string(options.rootRank);
    return launch(c10d::OpType::REDUCE, describe("reduce", tensors, detail), {}, tensors, options.asyncOp,
                  [op = options.reduceOp, root = options.rootRank](Backend& gloo, const Tensors&, const Tensors& outputs) {
                    for (const auto& each : outputs) {
                      auto sum = reduce_over_ranks(gloo, each, op);
                      if (gloo.getRank() == root) each.copy_(sum);
                    }
                  });
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    check(inputs);
    TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && outputs[0].size() == size_t(size_), "all_gather: a tensor for each rank is needed");
    check_types(inputs, outputs[0]);
    return launch(c10d::OpType::ALLGATHER, describe("all_gather", inputs), inputs, outputs[0], options.asyncOp,
                  [](Backend& gloo, const Tensors& in, const Tensors& out) {
                    auto rows = gather_rows(gloo, as_bytes(in[0]));
                    for (size_t rank = 0; rank < rows.size(); ++rank) write_bytes(out[rank], rows[rank]);
                  });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    check(inputs), check(outputs), check_types(inputs, outputs);
    for (size_t i = 0; i < inputs.size(); ++i)
      TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size_, "all_gather_into_tensor: output tensor size must be equal to world_size times input tensor size");
    return launch(c10d::OpType::_ALLGATHER_BASE, describe("all_gather_into_tensor", inputs), inputs, outputs, options.asyncOp,
                  [](Backend& gloo, const Tensors& in, const Tensors& out) {
                    for (size_t i = 0; i < in.size(); ++i) write_bytes(out[i], at::cat(gather_rows(gloo, as_bytes(in[i]))));
                  });
  }
  c10::intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    check(inputs);
    Tensors to = outputs.empty() ? Tensors() : outputs[0];
    return launch(c10d::OpType::GATHER, describe("gather", inputs, from_rank(options.rootRank)), inputs, to, options.asyncOp,
                  [](Backend& gloo, const Tensors& in, const Tensors& out) {
                    auto rows = gather_rows(gloo, as_bytes(in[0]));
                    for (size_t rank = 0; rank < out.size(); ++rank) write_bytes(out[rank], rows[rank]);
                  });
  }
  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    check(outputs);
    Tensors from = inputs.empty() ? Tensors() : inputs[0];
    return launch(c10d::OpType::SCATTER, describe("scatter", outputs, from_rank(options.rootRank)), from, outputs, options.asyncOp,
                  [root = options.rootRank](Backend& gloo, const Tensors& in, const Tensors& out) {
                    Tensors rows;
                    for (const auto& each : in) rows.push_back(as_bytes(each));
                    Tensors sent{rows.empty() ? as_bytes(out[0]).repeat({gloo.getSize()}) : at::cat(rows)};
                    c10d::BroadcastOptions of_root;
                    of_root.rootRank = root;
                    gloo.broadcast(sent, of_root)->wait();
                    write_bytes(out[0], sent[0].chunk(gloo.getSize())[gloo.getRank()]);
                  });
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && inputs[0].size() == size_t(size_), "reduce_scatter: a tensor for each rank is needed");
    check(outputs), check_types(outputs, inputs[0]);
    return launch(c10d::OpType::REDUCE_SCATTER, describe("reduce_scatter", inputs[0], name_of(options.reduceOp)), inputs[0], outputs, options.asyncOp,
                  [op = options.reduceOp](Backend& gloo, const Tensors& in, const Tensors& out) {
                    for (int rank = 0; rank < gloo.getSize(); ++rank) {
                      auto sum = reduce_over_ranks(gloo, in[rank], op);
                      if (rank == gloo.getRank()) out[0].copy_(sum);
                    }
                  });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    check(inputs), check(outputs), check_types(inputs, outputs);
    for (size_t i = 0; i < inputs.size(); ++i)
      TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_, "reduce_scatter_tensor: input tensor must be the same size as output size times world size");
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE, describe("reduce_scatter_tensor", inputs, name_of(options.reduceOp)), inputs, outputs, options.asyncOp,
                  [op = options.reduceOp](Backend& gloo, const Tensors& in, const Tensors& out) {
                    for (size_t i = 0; i < in.size(); ++i) {
                      auto sum = reduce_over_ranks(gloo, in[i].reshape({-1}), op);
                      out[i].copy_(sum.chunk(gloo.getSize())[gloo.getRank()].view(out[i].sizes()));
                    }
                  });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) override {
    Tensors outputs, inputs;  // along the first dimension
    auto split = [&](const Tensor& tensor, const std::vector<int64_t>& sizes) {
      return sizes.empty() ? tensor.chunk(size_) : tensor.split_with_sizes(sizes);
    };
    return launch_alltoall(split(output, output_splits), split(input, input_splits), options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return launch_alltoall(outputs, inputs, options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    Tensors token{at::zeros({1}, at::TensorOptions().device(DEVICE).dtype(at::kFloat))};
    return launch(c10d::OpType::BARRIER, "barrier", {}, token, options.asyncOp, [](Backend& gloo, const Tensors&, const Tensors&) { gloo.barrier()->wait(); });
  }
  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int tag) override {
    check(tensors);
    auto call = [this, tensors, to, tag] {
      return launch(c10d::OpType::SEND, "", tensors, {}, true, [this, to, tag](Backend& gloo, const Tensors& in, const Tensors&) {
        Tensors sent{as_bytes(in[0])};
        sent_.emplace_back(gloo.send(sent, to, tag), sent[0]);  // does not wait: the receiver may be sending too
        if (sent_.size() > 64) { sent_.front().first->wait(); sent_.erase(sent_.begin()); }
      });
    };
    if (!is_coalescing_) return call();
    sends_.push_back(call);
    return nullptr;
  }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int tag) override {
    check(tensors);
    auto call = [this, tensors, from, tag] {
      return launch(c10d::OpType::RECV, "", {}, tensors, true, [from, tag](Backend& gloo, const Tensors&, const Tensors& out) {
        Tensors got{as_bytes(out[0])};
        gloo.recv(got, from, tag)->wait();
        write_bytes(out[0], got[0]);
      });
    };
    if (!is_nccl_) return c10::make_intrusive<LateWork>(call);
    if (!is_coalescing_) return call();
    receives_.push_back(call);
    return nullptr;
  }

 private:
  struct OnStream {  // runs a scope on a stream
    const c10::impl::VirtualGuardImpl& guard;
    c10::Stream before;
    OnStream(const c10::impl::VirtualGuardImpl& guard, const c10::Stream& stream) : guard(guard), before(guard.exchangeStream(stream)) {}
    ~OnStream() { guard.exchangeStream(before); }
  };

  void check(const Tensors& tensors) const {
    for (const auto& each : tensors) {
      TORCH_CHECK(each.is_cuda(), name_, ": tensors must be CUDA and dense, got one on ", each.device());
      TORCH_CHECK(each.layout() == at::kStrided, name_, ": tensors must be CUDA and dense, got a sparse one");
      TORCH_CHECK(each.is_non_overlapping_and_dense(), name_, ": tensors must be contiguous");
    }
  }
  void check_types(const Tensors& inputs, const Tensors& outputs) const {
    for (const auto& each : outputs)
      TORCH_CHECK(each.scalar_type() == inputs[0].scalar_type() || inputs.size() > 1, name_, ": tensors must have the same type");
  }

  c10::intrusive_ptr<c10d::Work> launch_alltoall(Tensors outputs, Tensors inputs, bool is_async) {
    check(inputs), check(outputs);
    TORCH_CHECK(inputs.size() == size_t(size_) && outputs.size() == size_t(size_), "all_to_all: a tensor for each rank is needed");
    auto type = std::string("all_to_all(") + c10::toString(inputs[0].scalar_type()) + ")";  // the sizes of ranks differ
    return launch(c10d::OpType::ALLTOALL, type, inputs, outputs, is_async, [](Backend& gloo, const Tensors& in, const Tensors& out) {
      Tensor lengths = at::empty({gloo.getSize()}, at::kLong);
      Tensors rows;
      for (int rank = 0; rank < gloo.getSize(); ++rank) { rows.push_back(as_bytes(in[rank])); lengths[rank].fill_(rows.back().numel()); }
      auto all = gather_rows(gloo, lengths);
      int64_t longest = 1;
      for (int rank = 0; rank < gloo.getSize(); ++rank) {
        longest = std::max(longest, all[rank].sum().item<int64_t>());
        TORCH_CHECK(all[rank][gloo.getRank()].item<int64_t>() == int64_t(out[rank].nbytes()), "all_to_all: rank ", rank, " sends ",
                    all[rank][gloo.getRank()].item<int64_t>(), " bytes to rank ", gloo.getRank(), ", which expects ", out[rank].nbytes());
      }
      Tensor sent = at::zeros({longest}, at::kByte), own = at::cat(rows);
      sent.slice(0, 0, own.numel()).copy_(own);
      auto arrived = gather_rows(gloo, sent);
      for (int rank = 0; rank < gloo.getSize(); ++rank) {
        auto start = all[rank].slice(0, 0, gloo.getRank()).sum().item<int64_t>();
        write_bytes(out[rank], arrived[rank].slice(0, start, start + out[rank].nbytes()));
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> launch(c10d::OpType type, std::string description, Tensors inputs, Tensors outputs, bool is_async, Run run) {
    auto call = c10::make_intrusive<Collective>();
    call->gloo = gloo_, call->lock = lock_, call->count = count_;
    call->group = name_, call->description = std::move(description), call->run = std::move(run);
    const bool is_capturing = simulated_cuda::is_capturing();
    if (!is_nccl_) simulated_cuda::synchronize(name_ + " with tensors of the device");  // it waits for them, to send them
    // As in torch: a collective that nobody asked to be asynchronous runs on the stream of the caller.
    const auto current = guard_.getStream(DEVICE);
    const bool is_own = (is_async || !is_nccl_) && !is_capturing;  // a capture has one stream here
    const auto on = is_own ? stream_ : current;
    if (is_own) StreamEvent(current).block(on);
    OnStream here(guard_, on);
    is_recorded = is_capturing;
    struct Reset { ~Reset() { is_recorded = false; } } reset;
    // What a rank does not receive itself (gather, scatter) has no output: the operation needs a tensor of the device.
    if (inputs.empty() && outputs.empty()) outputs.push_back(at::empty({1}, at::TensorOptions().device(DEVICE)));
    call_communicate(inputs, outputs, call);
    Tensors held;
    if (is_own) { held = inputs; held.insert(held.end(), outputs.begin(), outputs.end()); }
    if (is_coalescing_) {
      coalesced_are_async_ = is_own;
      coalesced_.insert(coalesced_.end(), held.begin(), held.end());
    }
    return c10::make_intrusive<CollectiveWork>(rank_, type, on, std::move(held), outputs, type == c10d::OpType::BARRIER && !is_capturing);
  }

  static inline std::atomic<int64_t> next_stream_{5000};
  c10::impl::VirtualGuardImpl guard_{c10::DeviceType::CUDA};
  c10::intrusive_ptr<Backend> gloo_;
  std::string name_;
  bool is_nccl_, is_coalescing_ = false, coalesced_are_async_ = true;
  c10::Stream stream_;  // of the communicator
  Tensors coalesced_;
  std::vector<std::function<c10::intrusive_ptr<c10d::Work>()>> sends_, receives_;
  std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, Tensor>> sent_;
  std::shared_ptr<std::mutex> lock_ = std::make_shared<std::mutex>();
  std::shared_ptr<std::atomic<int64_t>> count_ = std::make_shared<std::atomic<int64_t>>(0);
};

// DDP insists on a timer of the device. Times mean nothing here.
struct NoTimer : c10d::Timer {
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

struct SimulatedNCCL : DeviceGroup { explicit SimulatedNCCL(c10::intrusive_ptr<Backend> gloo) : DeviceGroup(std::move(gloo), "nccl", true) {} };
struct DeviceGloo : DeviceGroup { explicit DeviceGloo(c10::intrusive_ptr<Backend> gloo) : DeviceGroup(std::move(gloo), "gloo", false) {} };
}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::CUDA, NoTimer)
}

namespace simulated_cuda {
void define_process_groups(py::module& m) {
  py::module::import("torch._C._distributed_c10d");  // registers `Backend`
  py::class_<SimulatedNCCL, c10::intrusive_ptr<SimulatedNCCL>, Backend>(m, "ProcessGroupNCCL", py::dynamic_attr())
      .def(py::init([](const py::object& store, int rank, int size, const py::object& options) {
             auto made = py::module::import("simulated_cuda._process_group").attr("make_gloo")(store, rank, size, options);
             return c10::make_intrusive<SimulatedNCCL>(made.cast<c10::intrusive_ptr<Backend>>());
           }), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"));
  py::class_<DeviceGloo, c10::intrusive_ptr<DeviceGloo>, Backend>(m, "DeviceGloo")
      .def(py::init([](const c10::intrusive_ptr<Backend>& gloo) { return c10::make_intrusive<DeviceGloo>(gloo); }));
}
}  // namespace simulated_cuda
