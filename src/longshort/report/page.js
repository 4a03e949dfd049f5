"use strict";
(() => {
  let { specs, variants, tables, heat, themes } = JSON.parse(document.getElementById("payload").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const state = { x: "step", quantity: "loss", measure: "reward" };
  const chips = document.getElementById("legend");
  const shown = (variant) => chips.querySelector(`[data-variant="${CSS.escape(variant)}"]`).getAttribute("aria-pressed");
  const drawings = new Map();

  const behind = ({ constants }) => Number(shown(constants.variant) !== "mixed");
  const unpack = (list) => [...list].sort((a, b) => behind(a) - behind(b)).flatMap(({ constants, columns }) => {
    if (shown(constants.variant) === "false") return [];
    const names = Object.keys(columns);
    return columns.step.map((_, i) => ({ ...constants, ...Object.fromEntries(names.map((n) => [n, columns[n][i]])) }));
  });

  const specOf = (element) => {
    const key = element.dataset.chart.replace(/\{(\w+)\}/g, (_, name) => state[name]);
    const spec = structuredClone(specs[key]);
    const names = new Set(JSON.stringify(spec).match(/"data":\{"name":"[^"]+"\}/g).map((m) => JSON.parse(`{${m}}`).data.name));
    spec.datasets ??= {};
    for (const name of names) spec.datasets[name] ??= name in tables ? unpack(tables[name]) : heat[name.slice(5)];
    spec.width = "container";
    if (narrow.matches && !/^(heat|plan)/.test(key)) spec.height = 270;
    return spec;
  };

  // A half-pressed chip: its variant is drawn in grey, since a reader cannot tell more than six colours apart.
  const configuration = () => {
    const { config, aside } = themes[dark.matches ? "dark" : "light"];
    const category = variants.map((variant, i) => (shown(variant) === "mixed" ? aside : config.range.category[i]));
    return { ...config, range: { ...config.range, category } };
  };

  // A second request during a drawing replaces it. `data-drawn` says that the chart is ready, and in which scheme.
  const draw = async (element) => {
    const turn = (drawings.get(element)?.turn ?? 0) + 1;
    const previous = drawings.get(element)?.view;
    drawings.set(element, { turn, view: previous });
    element.dataset.drawn = "";
    const options = { actions: false, renderer: "svg", config: configuration(), tooltip: { theme: "custom" } };
    element.style.minHeight = `${element.offsetHeight}px`;
    const made = await vegaEmbed(element, specOf(element), options);
    if (drawings.get(element).turn !== turn) return made.finalize();
    previous?.finalize();
    drawings.set(element, { turn, view: made });
    element.style.minHeight = "";
    element.dataset.drawn = dark.matches ? "dark" : "light";
  };
  const redraw = (part) => {
    const wanted = part ? `.chart[data-chart*="${part}"]` : ".chart";
    document.querySelectorAll(wanted).forEach((chart) => draw(chart));
  };

  for (const group of document.querySelectorAll(".switch")) {
    group.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      state[group.dataset.state] = button.dataset.value;
      redraw(`{${group.dataset.state}}`);
    });
  }
  chips.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    redraw("{x}");
  });

  const panels = [...document.querySelectorAll("select[data-panel]")];
  panels.forEach((select, i) => {
    const options = [...select.options];
    const first = options[0].dataset.variant;
    const other = options.find((option) => option.dataset.variant !== first) ?? options[1];
    select.value = (i === 0 ? options[0] : other).value;
    state[`panel${i}`] = select.value;
    select.addEventListener("change", () => {
      state[`panel${i}`] = select.value;
      redraw(`{panel${i}}`);
    });
  });

  // Served by `longshort report --watch`: new numbers are drawn in place, so that the page stays where it was scrolled to.
  const live = document.body.dataset.live;
  const outline = (page) => [...page.querySelectorAll("section, [data-chart], option, #legend button")]
    .map((e) => e.id + (e.dataset.chart ?? "") + (e.dataset.variant ?? "")).join("|");
  let version = null;
  const update = async () => {
    const answer = await fetch(live).catch(() => null);
    if (!answer?.ok) return;
    const found = await answer.json();
    document.getElementById("live").textContent = `Live. ${found.state}.`;
    if (version !== null && version !== found.version) {
      const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
      if (outline(page) !== outline(document)) {
        sessionStorage.setItem("scroll", String(scrollY));
        return location.reload();
      }
      ({ specs, variants, tables, heat, themes } = JSON.parse(page.getElementById("payload").textContent));
      for (const part of document.querySelectorAll("[data-part]")) {
        const next = page.querySelector(`[data-part="${part.dataset.part}"]`);
        if (next && next.innerHTML !== part.innerHTML) part.innerHTML = next.innerHTML;
      }
      redraw();
    }
    version = found.version;
  };
  if (live) {
    const scroll = sessionStorage.getItem("scroll");
    sessionStorage.removeItem("scroll");
    if (scroll !== null) setTimeout(() => window.scrollTo(0, Number(scroll)), 500);
    update();
    setInterval(update, 1000);
  }

  dark.addEventListener("change", () => redraw());
  narrow.addEventListener("change", () => redraw());
  redraw();
})();
