// Draws the figure's JSON and tells of clicks, selections and drags.
const page = globalThis.__mia_nb ??= {};

async function unpack(view) {
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("gzip"));
  const module = {exports: {}};
  const run = new Function("module", "exports", "define", await new Response(stream).text());
  run(module, module.exports);
  return module.exports;
}

async function plotly(model) {
  const name = model.get("library").slice("IPY_MODEL_".length);
  const library = await model.widget_manager.get_model(name);
  return (page.plotly ??= unpack(library.get("source")));
}

const ARRAYS = {
  f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array,
  i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
};

function decoded(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return typeof value[0] === "object" ? value.map(decoded) : value;
  if (typeof value.bdata === "string" && ARRAYS[value.dtype] && value.shape === undefined)
    return new ARRAYS[value.dtype](Uint8Array.from(atob(value.bdata), c => c.charCodeAt(0)).buffer);
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, decoded(part)]));
}

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function render({model, el}) {
  const place = document.createElement("div");
  place.setAttribute("role", "figure");
  el.style.width = place.style.width = "100%";
  el.append(place);
  const Plotly = await plotly(model);
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    edits: {shapePosition: model.get("figure").includes("editable")},
  };
  // Plotly computes anew what is not the same object as before; a moved mark must not cost a whole
  // curve
  let shown = [], dark = false;
  const draw = async () => {
    dark = (getComputedStyle(el).color.match(/\d+/) ?? [0])[0] > 127;
    // the grey of pictures is read on neither a white nor a black page: each gets a grey of its own
    const text = model.get("figure").replaceAll("GREY", dark ? "#B0B0B0" : "#595959");
    const {data, layout} = JSON.parse(text);
    shown = data.map((trace, i) => {
      const text = JSON.stringify(trace);
      return shown[i]?.text === text ? shown[i] : {text, trace: decoded(trace)};
    });
    place.style.height = `${layout.height ?? 400}px`;
    place.setAttribute("aria-label", layout.title?.text ?? "chart");
    await Plotly.react(place, shown.map(({trace}) => trace), Plotly.dressed(layout, place), config);
    // colours of figures are made for white: on dark paper lighter ones have their contrast
    for (const layer of place.querySelectorAll(".scatterlayer, .barlayer, .gl-container, .legend"))
      layer.style.filter = dark ? "brightness(1.4)" : "";
    requestAnimationFrame(() => setTimeout(() => { place.dataset.drawn = model.get("count"); }));
  };
  await draw();
  const tell = (kind, event) => {
    const numbers = event.points.map(p => p.customdata).filter(n => Number.isInteger(n));
    const [first] = event.points;
    const at = first ? {x: first.x ?? null, y: first.y ?? null} : {};
    model.set("event", {kind, numbers, ...at, count: (model.get("event").count ?? 0) + 1});
    model.save_changes();
  };
  place.on("plotly_click", event => tell("click", event));
  place.on("plotly_selected", event => event && tell("select", event));
  place.on("plotly_deselect", () => tell("select", {points: []}));
  place.on("plotly_relayout", event => {
    const x = event["shapes[0].x0"];
    if (x === undefined) return;
    tell("drag", {points: [{x}]});
    draw();
  });
  model.on("change:count", draw);
  model.on("msg:custom", message => {
    if (message.kind === "save")
      download(message.name, new Blob([message.text], {type: message.mime}));
    if (message.kind === "png") {
      const {data, layout, offsetWidth: width, offsetHeight: height} = place;
      const paper = dark ? "#111" : "white";
      // what a hand can do with the figure is no part of a saved picture, its pool is
      const words = (layout.title?.text ?? "").replace(`; ${layout.meta ?? ""}`, "");
      const title = {...layout.title, text: [words, message.pool].filter(Boolean).join("; ")};
      const ink = {...layout, title, paper_bgcolor: paper, plot_bgcolor: paper};
      const format = {format: "png", scale: 2, width, height, filename: message.name};
      Plotly.downloadImage({data, layout: ink}, format);
    }
  });
  let width = place.offsetWidth, waiting;
  const observer = new ResizeObserver(() => {
    if (!place.offsetWidth) return;
    Plotly.Plots.resize(place);
    clearTimeout(waiting);
    if (place.offsetWidth === width) return;
    // titles and legends are laid out for a width: once it stands, they are laid out for the new one
    waiting = setTimeout(() => { width = place.offsetWidth; draw(); }, 150);
  });
  observer.observe(el);
  return () => { clearTimeout(waiting); observer.disconnect(); Plotly.purge(place); };
}
export default {render};
