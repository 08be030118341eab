// SPDX-License-Identifier: Apache-2.0
// Compiles fmt once, from LibTorch's copy of its sources. All other files include only
// declarations. Debian's library has another version, so it can't be used.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template FMT_API auto locale_ref::get() const -> std::locale;
namespace detail {

template FMT_API auto dragonbox::to_decimal(float) noexcept
    -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept
    -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref)
    -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;

}  // namespace detail
FMT_END_NAMESPACE
