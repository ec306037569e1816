// Shows the values under the pointer in all charts at once; a click on a name hides its curve. Written without the
// less-than sign and the ampersand, so that the page is also XML.
(function () {
  "use strict";
  var root = document.documentElement;
  var data = JSON.parse(document.getElementById("data").textContent);
  var charts = data.map(function (figure, number) { return chart(figure, number); });

  function nearest(values, x) {
    var low = 0, high = values.length - 1, middle;
    while (high > low + 1) {
      middle = (low + high) >> 1;
      if (values[middle] > x) { high = middle; } else { low = middle; }
    }
    return Math.abs(values[high] - x) > Math.abs(values[low] - x) ? low : high;
  }

  function text(value) {
    var size = Math.abs(value);
    if (value === 0) { return "0"; }
    return size >= 1e4 ? value.toExponential(3) : size >= 0.01 ? value.toFixed(3) : value.toExponential(3);
  }

  function chart(figure, number) {
    var box = document.getElementById("chart-" + number);
    var svg = box.querySelector("svg"), cross = box.querySelector(".cross"), at = box.querySelector(".at");
    var groups = Array.from(svg.querySelectorAll("g[data-curve]"));
    var keys = Array.from(box.querySelectorAll(".legend button"));
    var last = keys.map(function (key) { return key.querySelector("b").textContent; });
    var left = figure.frame[0], right = figure.frame[1], top = figure.frame[2], bottom = figure.frame[3];
    var steps = figure.curves.reduce(function (most, curve) {
      return curve.x.length > most.length ? curve.x : most;
    }, []);

    function across(x) { return left + (x - figure.x[0]) / (figure.x[1] - figure.x[0]) * (right - left); }
    function up(y) { return bottom - (y - figure.y[0]) / (figure.y[1] - figure.y[0]) * (bottom - top); }

    function show(step) {
      cross.setAttribute("transform", "translate(" + across(step) + " 0)");
      cross.classList.add("shown");
      at.textContent = "step " + step;
      figure.curves.forEach(function (curve, n) {
        var point = groups[n].querySelector(".point"), i = nearest(curve.x, step);
        if (curve.x.length === 0) { return; }
        point.setAttribute("cx", across(curve.x[i]));
        point.setAttribute("cy", up(curve.y[i]));
        groups[n].classList.add("shown");
        keys[n].querySelector("b").textContent = text(curve.y[i]);
      });
    }

    function hide() {
      cross.classList.remove("shown");
      at.textContent = "";
      groups.forEach(function (group) { group.classList.remove("shown"); });
      keys.forEach(function (key, n) { key.querySelector("b").textContent = last[n]; });
    }

    function stepAt(event) {
      var area = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
      var x = (event.clientX - area.left) / area.width * width;
      return figure.x[0] + (x - left) / (right - left) * (figure.x[1] - figure.x[0]);
    }

    function move(step) {
      if (steps.length === 0) { return; }
      box.setAttribute("data-step", steps[nearest(steps, step)]);
      charts.forEach(function (chart) { chart.show(steps[nearest(steps, step)]); });
    }

    svg.addEventListener("pointermove", function (event) { move(stepAt(event)); });
    svg.addEventListener("pointerleave", function () { charts.forEach(function (chart) { chart.hide(); }); });
    box.addEventListener("keydown", function (event) {
      var by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], now = box.getAttribute("data-step");
      if (by === undefined || steps.length === 0) { return; }
      event.preventDefault();
      var next = (now === null ? steps.length - 1 : nearest(steps, Number(now))) + by;
      move(steps[Math.max(0, Math.min(steps.length - 1, next))]);
    });
    box.addEventListener("blur", function () { charts.forEach(function (chart) { chart.hide(); }); });
    keys.forEach(function (key, n) {
      key.addEventListener("click", function () {
        key.classList.toggle("off");
        groups[n].classList.toggle("off");
      });
    });
    return { show: show, hide: hide, svg: svg };
  }

  // What a test reads: the number of curves with a length, and the legend of each chart with the pointer in its middle.
  var drawn = Array.from(document.querySelectorAll("svg .line")).filter(function (line) {
    return line.getTotalLength() > 0;
  });
  root.setAttribute("data-drawn", drawn.length);
  if (location.hash === "#selftest") {
    charts.forEach(function (chart) {
      var area = chart.svg.getBoundingClientRect();
      var x = area.left + area.width / 2, y = area.top + area.height / 2;
      chart.svg.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    });
    root.setAttribute("data-hover", Array.from(document.querySelectorAll(".at")).map(function (at) {
      return at.textContent;
    }).join(";"));
  }
})();
