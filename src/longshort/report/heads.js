"use strict";
(() => {
  const { specs, data, themes } = JSON.parse(document.getElementById("payload").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = {}, turns = new Map();

  // A second request during a drawing replaces it. `data-drawn` says that the chart is ready, and in which scheme.
  const draw = async (element) => {
    const turn = (turns.get(element) ?? 0) + 1;
    turns.set(element, turn);
    element.dataset.drawn = "";
    const spec = structuredClone(specs[element.dataset.chart.replace(/\{(\w+)\}/g, (_, name) => state[name])]);
    if (spec.data?.name in data) spec.datasets = { [spec.data.name]: data[spec.data.name] };
    spec.width = "container";
    const config = themes[dark.matches ? "dark" : "light"];
    const made = await vegaEmbed(element, spec, { actions: false, renderer: "svg", config, tooltip: { theme: "custom" } });
    if (turns.get(element) !== turn) return made.finalize();
    element.dataset.drawn = dark.matches ? "dark" : "light";
  };
  const redraw = (part) => {
    const wanted = part ? `.chart[data-chart*="${part}"]` : ".chart";
    document.querySelectorAll(wanted).forEach((chart) => draw(chart));
  };

  for (const group of document.querySelectorAll(".switch")) {
    const name = group.dataset.state;
    const choose = (button) => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      for (const text of document.querySelectorAll(`[data-for="${name}"]`)) text.hidden = text.dataset.value !== button.dataset.value;
      state[name] = button.dataset.value;
    };
    choose(group.querySelector('[aria-pressed="true"]'));
    group.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      choose(button);
      redraw(`{${name}}`);
    });
  }
  dark.addEventListener("change", () => redraw());
  redraw();
})();
