#include "eager/policy.h"

#include "eager/tile_form.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string>
#include <unordered_set>

namespace neuron::eager {

namespace {

using Names = std::unordered_set<std::string_view>;

// The names in a text, which are separated by spaces. The text must live on.
Names words(std::string_view text) {
  Names names;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    names.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

// The shape of a result depends on the values in a tensor (or on state outside of the arguments).
const Names& data_dependent() {
  static const Names names = words(
      "nonzero nonzero_numpy argwhere masked_select unique_dim unique_consecutive unique_dim_consecutive "
      "_unique _unique2 bincount repeat_interleave segment_reduce _segment_reduce_backward "
      "_pack_padded_sequence _embedding_bag _embedding_bag_forward_only _embedding_bag_backward _ctc_loss "
      "ctc_loss tensor_split linalg_lstsq _histogramdd_bin_edges _histogramdd_from_bin_cts "
      "_histogramdd_from_bin_tensors histogram allclose equal is_set_to _local_scalar_dense item is_nonzero "
      "multinomial _assert_async _functional_assert_async resize_ resize resize_as_ set_ _resize_output_ "
      "_resize_output _linalg_check_errors nested_to_padded_tensor _convert_indices_from_csr_to_coo "
      "_convert_indices_from_coo_to_csr nonzero_static _nested_tensor_from_mask mkldnn_reorder_conv2d_weight "
      "mkldnn_reorder_conv3d_weight _amp_foreach_non_finite_check_and_unscale_");
  return names;
}

// A float or Scalar argument of these is only ever multiplied, added or compared: any value gives the same metadata and
// no value is refused. Learning rates, momenta and the like must not make new signatures.
const Names& free_scalars() {
  static const Names names = words(
      "add add_ sub sub_ subtract subtract_ rsub mul mul_ multiply multiply_ div div_ divide divide_ "
      "true_divide true_divide_ addcmul addcmul_ addcdiv addcdiv_ addmm addmm_ addmv addmv_ addbmm addbmm_ "
      "baddbmm baddbmm_ addr addr_ lerp lerp_ fill_ fill masked_fill masked_fill_ eq eq_ ne ne_ lt lt_ le le_ "
      "gt gt_ ge ge_ maximum minimum clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ leaky_relu "
      "leaky_relu_ elu elu_ softplus softplus_backward threshold threshold_ "
      "threshold_backward hardtanh hardtanh_ hardtanh_backward native_layer_norm native_group_norm "
      "native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
      "_native_batch_norm_legit_no_training batch_norm_update_stats copysign copysign_ atan2 atan2_ hypot "
      "hypot_ where _fused_rms_norm _addmm_activation constant_pad_nd logit logit_");
  return names;
}

bool all_scalars_free(std::string_view base) {
  return (base.starts_with("_foreach_") && !base.starts_with("_foreach_pow")) || base.starts_with("_fused_adam") ||
         base.starts_with("_fused_sgd") || base.starts_with("_fused_adagrad") || base.starts_with("_fused_muon") ||
         free_scalars().contains(base);
}

// Values in a tensor can make the kernel raise (an index out of range, a matrix that is not positive definite).
bool may_fail_late(std::string_view base) {
  static const Names names = words(
      "gather take take_along_dim put_ put embedding_renorm_ bincount ctc_loss _ctc_loss nll_loss "
      "nll_loss_forward nll_loss2d nll_loss2d_forward nll_loss_backward nll_loss2d_backward multi_margin_loss "
      "multilabel_margin_loss_forward multinomial masked_scatter masked_scatter_ max_unpool2d max_unpool3d "
      "searchsorted bucketize bernoulli bernoulli_ binary_cross_entropy binary_cross_entropy_backward "
      "segment_reduce cholesky cholesky_inverse cholesky_solve geqrf ormqr orgqr lu_unpack triangular_solve "
      "histc histogram floor_divide floor_divide_ remainder remainder_ fmod fmod_ div div_ poisson binomial pow "
      "pow_ _assert_async _functional_assert_async normal normal_ logspace repeat_interleave channel_shuffle "
      "_pdist_forward dequantize renorm renorm_ lshift rshift _nested_from_padded");
  return names.contains(base) || base.starts_with("index") || base.starts_with("_index") ||
         base.starts_with("_unsafe_index") || base.starts_with("scatter") || base.starts_with("_scatter") ||
         base.starts_with("embedding") || base.starts_with("_embedding") || base.starts_with("linalg_") ||
         base.starts_with("_linalg_") || base.starts_with("_grouped_mm") || base.starts_with("_scaled");
}

// Operators that take CPU tensors of any size next to neuron tensors, as they do next to cuda tensors, and the
// arguments that may be such.
const Names& with_host_operands() {
  static const Names names = words(
      "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put _unsafe_masked_index "
      "_pack_padded_sequence _padded_tensor _ctc_loss _ctc_loss_backward _fused_adam_ _fused_adamw_ _fused_sgd_ "
      "_fused_adagrad_");
  return names;
}

const Names& host_operands() {
  static const Names names =
      words("indices lengths batch_sizes targets input_lengths target_lengths state_steps lr grad_scale found_inf");
  return names;
}

// Draw numbers without a generator argument.
const Names& random_without_generator() {
  static const Names names = words("native_dropout _sample_dirichlet rrelu");
  return names;
}

// Operators besides the element-wise ones whose kernels share out even little work among all threads, and whose control
// flow does not depend on floating-point values.
const Names& split_when_small() {
  static const Names names = words(
      "mm addmm bmm baddbmm addmv addbmm _addmm_activation dot mv linear native_layer_norm native_layer_norm_backward "
      "native_group_norm _fused_rms_norm _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data "
      "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward embedding "
      "embedding_dense_backward convolution convolution_backward sum mean cat gelu_backward silu_backward copy_ "
      "_to_copy clone");
  return names;
}

bool has_number_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return !type.containedTypes().empty() && has_number_type(*type.containedType(0));
    default:
      return false;
  }
}

bool holds_tensor(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return !type.containedTypes().empty() && holds_tensor(*type.containedType(0));
    default:
      return false;
  }
}

} // namespace

void apply_policy(OpEntry& entry) {
  const auto& schema = entry.op.schema();
  const std::string& full = schema.name();
  const size_t colons = full.find("::");
  const std::string_view space = std::string_view(full).substr(0, colons);
  const std::string_view base = std::string_view(full).substr(colons + 2);

  entry.foreign = space != "aten" && space != "prims" && space != "prim";
  entry.always_inline = entry.foreign || data_dependent().contains(base);
  for (const auto& result : schema.returns()) {
    if (!holds_tensor(*result.type())) {
      entry.always_inline = true; // a host value: the caller needs it now
    }
  }
  entry.masks_select = base == "index" || base == "_unsafe_index";
  entry.random = entry.generator_arg >= 0 || random_without_generator().contains(base);
  entry.fails_late = may_fail_late(base);
  if (with_host_operands().contains(base)) {
    for (uint32_t i = 0; i < entry.num_args && i < 64; ++i) {
      if (host_operands().contains(schema.arguments()[i].name())) {
        entry.host_args |= uint64_t{1} << i;
      }
    }
  }
  entry.tries_one_thread = space == "aten" && !entry.always_inline && !entry.random &&
                           (entry.op.hasTag(at::Tag::pointwise) || base.starts_with("_foreach_") ||
                            base.starts_with("_fused_adam") || split_when_small().contains(base));
  if (entry.op.operator_name().overload_name.empty()) {
    entry.product = product_kind(full);
  }
  entry.tile_form = tile_form(entry.name);
  entry.bumps_versions = base.starts_with("_foreach_") && base.ends_with('_');
  if (base == "_pack_padded_sequence") {
    entry.host_result = 1; // batch_sizes is read by the host, on every device
  }
  if (all_scalars_free(base)) {
    for (uint32_t i = 0; i < entry.num_args && i < 64; ++i) {
      if (has_number_type(*schema.arguments()[i].type())) {
        entry.free_scalars |= uint64_t{1} << i;
      }
    }
  }
}

bool launch_whole(std::string_view base, std::string_view overload) {
  static const Names scalar_forms = words(
      "add add_ sub sub_ rsub mul mul_ div div_ eq ne lt le gt ge pow pow_ remainder remainder_ fmod fmod_ "
      "bitwise_and bitwise_or bitwise_xor addcmul addcdiv lerp masked_fill");
  static const Names whole = words(
      "_convolution convolution convolution_backward native_layer_norm_backward silu_backward zero_ embedding "
      "embedding_dense_backward celu celu_ selu relu6 logsumexp var_mean std_mean trace count_nonzero "
      "masked_fill native_group_norm repeat mode conj_physical_ slice_backward select_backward diagonal_backward "
      "unfold_backward _softmax_backward_data constant_pad_nd roll rot90 flip binary_cross_entropy_with_logits");
  if (base.starts_with("_foreach_")) {
    return true;
  }
  if (overload.starts_with("Scalar")) {
    return scalar_forms.contains(base);
  }
  return whole.contains(base);
}

} // namespace neuron::eager
