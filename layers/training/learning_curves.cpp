// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/learning_curves.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera::training {

namespace {

constexpr const char* kTrainingColor = "#2563eb";
constexpr const char* kValidationColor = "#ea580c";
constexpr const char* kTextColor = "#1f2937";
constexpr const char* kGridColor = "#e5e7eb";
constexpr const char* kAxisColor = "#9ca3af";

// The margins of a panel, in pixels.
constexpr double kLeftMargin = 64.0;
constexpr double kRightMargin = 18.0;
constexpr double kTopMargin = 40.0;
constexpr double kBottomMargin = 44.0;
constexpr double kTitleHeight =
    40.0;  // the height of the title above all panels

struct Point {
  double x;
  double y;
};

struct Curve {
  std::string name;
  const char* color;
  std::vector<Point> points;
};

struct Axis {
  double low = 0.0;
  double high = 1.0;
  double step = 1.0;
};

// Returns 1, 2 or 5 times a power of ten, so that `span` has about `count` steps.
double tick_step(double span, double count) {
  const double exact_step = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(exact_step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (exact_step <= factor * power * (1.0 + 1e-9)) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

// An axis that begins and ends at a tick and contains all values.
Axis value_axis(const std::vector<Curve>& curves) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      if (std::isfinite(point.y)) {
        low = std::min(low, point.y);
        high = std::max(high, point.y);
      }
    }
  }
  if (low > high) {
    return {};
  }
  // Widens the range if the values are nearly equal.
  const double min_span = std::max(1e-9 * std::max(-low, high), 1e-300);
  if (!(high - low > min_span)) {
    const double margin = std::max(std::abs(low) * 0.1, 1e-3);
    low -= margin;
    high += margin;
  }
  if (!std::isfinite(high - low)) {
    return {low, high, high / 4.0 - low / 4.0};
  }
  const double step = tick_step(high - low, 5.0);
  const Axis axis{
      std::floor(low / step) * step, std::ceil(high / step) * step, step};
  // Rounding up to the next tick may overflow.
  return std::isfinite(axis.high - axis.low) ? axis : Axis{low, high, step};
}

// The number of an epoch, counted from 1.
double shown_epoch(const EpochRecord& record) {
  return static_cast<double>(record.epoch) + 1.0;
}

Axis epoch_axis(const History& history) {
  if (history.epochs.empty()) {
    return {};
  }
  const double low = shown_epoch(history.epochs.front());
  const double high = shown_epoch(history.epochs.back());
  // Beyond 2^53, neighbouring doubles are further apart than 1.
  const double min_span = std::max(1.0, 1e-15 * std::max(-low, high));
  if (!(low < high)) {
    return {low - min_span, low + min_span, min_span};
  }
  return {low, high, std::max(min_span, tick_step(high - low, 7.0))};
}

// Escapes text for XML.
std::string escaped(const std::string& text) {
  std::string xml;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    switch (character) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      default:
        // XML does not allow control characters, and bytes beyond ASCII may be invalid
        // UTF-8.
        if (byte >= 0x20 && byte < 0x7F) {
          xml += character;
        } else {
          xml += '?';
        }
    }
  }
  return xml;
}

struct Label {
  double x;
  double y;
  const char* anchor;
  int size;
  const char* extra = "";
};

std::string text_at(const Label& label, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" "
      "fill=\"{}\"{}>{}</text>\n",
      label.x,
      label.y,
      label.anchor,
      label.size,
      kTextColor,
      label.extra,
      escaped(text));
}

std::string line(Point from, Point to, const char* color) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "stroke=\"{}\"/>\n",
      from.x,
      from.y,
      to.x,
      to.y,
      color);
}

// The position of a panel, and its mapping from values to pixels.
struct Frame {
  double left;
  double top;
  double width;
  double height;
  Axis x;
  Axis y;

  double right() const {
    return left + width;
  }
  double bottom() const {
    return top + height;
  }
  Point to_pixels(const Point& point) const {
    return {
        left + width * fraction(x, point.x),
        bottom() - height * fraction(y, point.y)};
  }

 private:
  // Halves the numbers first, because their difference may overflow.
  static double fraction(const Axis& axis, double value) {
    return (value / 2.0 - axis.low / 2.0) / (axis.high / 2.0 - axis.low / 2.0);
  }
};

template <class Visit>
void for_each_tick(const Axis& axis, Visit visit) {
  const double first = std::ceil(axis.low / axis.step - 1e-6);
  const double last = std::floor(axis.high / axis.step + 1e-6);
  // An integer counts the ticks, since adding 1 does not change a large double.
  const auto ticks = static_cast<int>(last - first) + 1;
  for (int i = 0; i < ticks; ++i) {
    const double value = (first + i) * axis.step;
    // Rounding errors would print 0 as 1e-17.
    visit(std::abs(value) < axis.step * 1e-6 ? 0.0 : value);
  }
}

std::string draw_axes(const Frame& frame) {
  std::string svg;
  for_each_tick(frame.y, [&](double value) {
    const Point at = frame.to_pixels({frame.x.low, value});
    svg += line(at, {frame.right(), at.y}, kGridColor);
    svg += text_at(
        {at.x - 8.0, at.y + 4.0, "end", 11}, fmt::format("{:.5g}", value));
  });
  for_each_tick(frame.x, [&](double value) {
    const Point at = frame.to_pixels({value, frame.y.low});
    svg += line(at, {at.x, at.y + 4.0}, kAxisColor);
    svg += text_at(
        {at.x, at.y + 17.0, "middle", 11}, fmt::format("{:.0f}", value));
  });
  svg +=
      line({frame.left, frame.top}, {frame.left, frame.bottom()}, kAxisColor);
  svg += line(
      {frame.left, frame.bottom()},
      {frame.right(), frame.bottom()},
      kAxisColor);
  svg += text_at(
      {frame.left + frame.width / 2.0, frame.bottom() + 34.0, "middle", 11},
      "epoch");
  return svg;
}

// Draws lines between neighbouring finite values, and a dot for a value without such a
// neighbour. Short curves have dots at all values.
std::string draw_curve(const Frame& frame, const Curve& curve) {
  std::string svg;
  std::vector<Point> run;
  const auto end_run = [&] {
    if (run.size() > 1) {
      std::string points;
      for (const Point& point : run) {
        points += fmt::format(
            "{}{:.2f},{:.2f}", points.empty() ? "" : " ", point.x, point.y);
      }
      svg += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" "
          "stroke-width=\"2\" stroke-linejoin=\"round\"/>\n",
          points,
          curve.color);
    }
    constexpr size_t kMaxDots = 30;
    if (run.size() == 1 || curve.points.size() <= kMaxDots) {
      for (const Point& point : run) {
        svg += fmt::format(
            "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"2.5\" fill=\"{}\"/>\n",
            point.x,
            point.y,
            curve.color);
      }
    }
    run.clear();
  };
  for (const Point& point : curve.points) {
    if (std::isfinite(point.y)) {
      run.push_back(frame.to_pixels(point));
    } else {
      end_run();
    }
  }
  end_run();
  return svg;
}

// Draws the legend above the panel, aligned to the right.
std::string draw_legend(const Frame& frame, const std::vector<Curve>& curves) {
  std::string svg;
  double right = frame.right();
  for (auto curve = curves.rbegin(); curve != curves.rend(); ++curve) {
    const double y = frame.top - 12.0;
    svg += text_at({right, y + 4.0, "end", 11}, curve->name);
    const double end = right - 6.5 * static_cast<double>(curve->name.size());
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
        "stroke=\"{}\" stroke-width=\"2.5\"/>\n",
        end - 24.0,
        y,
        end - 6.0,
        y,
        curve->color);
    right = end - 38.0;
  }
  return svg;
}

std::vector<Point> points_of(const History& history, const std::string& name) {
  std::vector<Point> points;
  for (const EpochRecord& record : history.epochs) {
    const double* value = record.logs.find(name);
    points.push_back(
        {shown_epoch(record),
         value == nullptr ? std::numeric_limits<double>::quiet_NaN() : *value});
  }
  return points;
}

constexpr const char* kPrefix = "val_";

std::vector<Curve> curves_of(const History& history, const std::string& name) {
  const std::vector<std::string> logged = history.names();
  const auto has = [&](const std::string& expected) {
    return std::find(logged.begin(), logged.end(), expected) != logged.end();
  };
  std::vector<Curve> curves;
  if (has(name)) {
    curves.push_back({"training", kTrainingColor, points_of(history, name)});
  }
  if (const std::string validation = kPrefix + name; has(validation)) {
    curves.push_back(
        {"validation", kValidationColor, points_of(history, validation)});
  }
  return curves;
}

// The names of the panels: each logged name once, without the prefix "val_".
std::vector<std::string> panels_of(
    const History& history,
    const LearningCurvesOptions& options) {
  std::vector<std::string> panels;
  const auto& names = options.names.empty() ? history.names() : options.names;
  for (std::string name : names) {
    if (name.rfind(kPrefix, 0) == 0) {
      name.erase(0, std::string(kPrefix).size());
    }
    if (std::find(panels.begin(), panels.end(), name) == panels.end()) {
      panels.push_back(name);
    }
  }
  return panels;
}

void check(const LearningCurvesOptions& options) {
  constexpr int64_t kMaxSize = 10'000;
  TESSERA_CHECK_VALUE(
      options.width >= 200 && options.height >= 150 &&
          options.width <= kMaxSize && options.height <= kMaxSize,
      "[LearningCurves] width must be in [200, 10000] and height in [150, 10000], but got {} and {}.",
      options.width,
      options.height);
}

}  // namespace

std::string learning_curves_svg(
    const History& history,
    const LearningCurvesOptions& options) {
  check(options);
  const std::vector<std::string> panels = panels_of(history, options);
  const size_t columns = std::clamp<size_t>(panels.size(), 1, 2);
  const size_t rows = std::max<size_t>(1, (panels.size() + 1) / 2);
  const auto width = static_cast<double>(options.width);
  const auto height = static_cast<double>(options.height);
  const double title_height = options.title.empty() ? 0.0 : kTitleHeight;
  const double full_width = width * static_cast<double>(columns);
  const double full_height = title_height + height * static_cast<double>(rows);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      full_width,
      full_height);
  if (!options.title.empty()) {
    svg += text_at(
        {full_width / 2.0, 27.0, "middle", 17, " font-weight=\"bold\""},
        options.title);
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    const std::vector<Curve> curves = curves_of(history, panels[i]);
    const Frame frame{
        .left = width * static_cast<double>(i % columns) + kLeftMargin,
        .top = title_height + height * static_cast<double>(i / columns) +
            kTopMargin,
        .width = width - kLeftMargin - kRightMargin,
        .height = height - kTopMargin - kBottomMargin,
        .x = epoch_axis(history),
        .y = value_axis(curves)};
    svg += text_at(
        {frame.left, frame.top - 8.0, "start", 13, " font-weight=\"bold\""},
        panels[i]);
    svg += draw_axes(frame);
    for (const Curve& curve : curves) {
      svg += draw_curve(frame, curve);
    }
    svg += draw_legend(frame, curves);
  }
  return svg + "</svg>\n";
}

LearningCurves::LearningCurves(std::string path, LearningCurvesOptions options)
    : HistoryFile("[LearningCurves]", std::move(path)),
      options_(std::move(options)) {
  check(options_);
}

void LearningCurves::on_train_begin(Training& training) {
  const std::vector<std::string> names = training.log_names();
  for (const std::string& name : options_.names) {
    TESSERA_CHECK_VALUE(
        std::find(names.begin(), names.end(), name) != names.end(),
        "[LearningCurves] '{}' is not logged. Set LearningCurvesOptions::names to some of {}.",
        name,
        join_names(names));
  }
  HistoryFile::on_train_begin(training);
}

std::string LearningCurves::text_of(const History& history) const {
  return learning_curves_svg(history, options_);
}

}  // namespace tessera::training
