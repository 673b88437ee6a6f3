// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/collectives.h"

#include <torch/torch.h>

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using GroupPointer = std::shared_ptr<const Group>;

/// What a backward pass needs of its forward pass, apart from tensors.
struct Exchange {
  GroupPointer group;
  Traffic traffic = Traffic::other;
  std::vector<int64_t> send = {}, receive = {};
};

struct HeldExchange : torch::CustomClassHolder {
  explicit HeldExchange(Exchange held) : exchange(std::move(held)) {}
  Exchange exchange;
};

void keep(AutogradContext* context, Exchange exchange) {
  context->saved_data["exchange"] =
      c10::IValue::make_capsule(c10::make_intrusive<HeldExchange>(std::move(exchange)));
}

const Exchange& kept(AutogradContext* context) {
  const auto holder = context->saved_data.at("exchange").toCapsule();
  return static_cast<const HeldExchange*>(holder.get())->exchange;
}

at::Tensor summed(const at::Tensor& x, const Group& group, Traffic traffic) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum, traffic);
  return sum;
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupPointer& group) {
    keep(context, {.group = group});
    return group->all_gather(x, Traffic::logits);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Group& group = *kept(context).group;
    const at::Tensor sum = summed(grads[0], group, Traffic::logits_gradient);
    const int64_t rows = sum.size(0) / group.size();
    return {sum.narrow(0, group.rank() * rows, rows), {}};
  }
};

struct SumOver : torch::autograd::Function<SumOver> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const GroupPointer& group, Traffic traffic) {
    keep(context, {.group = group, .traffic = traffic});
    return summed(x, *group, traffic);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Exchange& exchange = kept(context);
    return {summed(grads[0], *exchange.group, exchange.traffic), {}, {}};
  }
};

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::vector<int64_t>& send, const std::vector<int64_t>& receive,
                            const GroupPointer& group) {
    keep(context, {.group = group, .send = send, .receive = receive});
    context->saved_data["rows"] = x.size(0);
    return group->all_to_all(x, send, receive, Traffic::rows);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Exchange& exchange = kept(context);
    at::Tensor back =
        exchange.group->all_to_all(grads[0], exchange.receive, exchange.send, Traffic::rows);
    const int64_t unsent = context->saved_data.at("rows").toInt() - back.size(0);
    if (unsent > 0) {  // Unused rows of a routing's buffer.
      std::vector<int64_t> shape = back.sizes().vec();
      shape[0] = unsent;
      back = at::cat({back, at::zeros(shape, back.options())});
    }
    return {back, {}, {}, {}};
  }
};

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const GroupPointer& group) {
  return group->size() == 1 ? x : GatherRows::apply(x, group);
}

at::Tensor sum_over(const at::Tensor& x, const GroupPointer& group, Traffic traffic) {
  return group->size() == 1 ? x : SumOver::apply(x, group, traffic);
}

at::Tensor exchange_rows(const at::Tensor& x, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive, const GroupPointer& group) {
  return ExchangeRows::apply(x, send, receive, group);
}

}  // namespace moesaic
