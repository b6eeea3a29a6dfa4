"""A plotly figure that a kernel can redraw: one text of JSON goes to the browser, clicks and
selections come back.

Plotly's own FigureWidget stores all of plotly.js in the notebook once per figure. Here one
`Library` per kernel carries it, compressed, and every `Figure` refers to it, so that a saved
notebook of many figures stays below 3 MB.
"""

import gzip
import json
from functools import cache

import anywidget
import traitlets
from ipywidgets import widget_serialization

LIBRARY = "export default {render() {}};"
# `shown`: Plotly computes anew what is not the same object as before; a moved mark must not cost a
# whole curve
DRAW = """
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
  place.style.width = "100%";
  el.style.width = "100%";
  el.append(place);
  const Plotly = await plotly(model);
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  };
  let shown = [];
  const draw = async () => {
    const {data, layout} = JSON.parse(model.get("figure"));
    shown = data.map((trace, i) => {
      const text = JSON.stringify(trace);
      return shown[i]?.text === text ? shown[i] : {text, trace: decoded(trace)};
    });
    place.style.height = `${layout.height ?? 400}px`;
    place.setAttribute("aria-label", layout.title?.text ?? "chart");
    const traces = shown.map(one => one.trace);
    await Plotly.react(place, traces, {...layout, autosize: true}, config);
    requestAnimationFrame(() => setTimeout(() => { place.dataset.drawn = model.get("count"); }));
  };
  await draw();
  const tell = (kind, event) => {
    const numbers = event.points.map(p => p.customdata).filter(n => Number.isInteger(n));
    const at = event.points[0] ? {x: event.points[0].x ?? null, y: event.points[0].y ?? null} : {};
    model.set("event", {kind, numbers, ...at, count: (model.get("event").count ?? 0) + 1});
    model.save_changes();
  };
  place.on("plotly_click", event => tell("click", event));
  place.on("plotly_selected", event => event && tell("select", event));
  place.on("plotly_deselect", () => tell("select", {points: []}));
  model.on("change:count", draw);
  model.on("msg:custom", message => {
    if (message.kind === "save")
      download(message.name, new Blob([message.text], {type: message.mime}));
    if (message.kind === "png") {
      const {data, layout, offsetWidth: width, offsetHeight: height} = place;
      const ink = {...layout, paper_bgcolor: "white", plot_bgcolor: "white"};
      const format = {format: "png", scale: 2, width, height, filename: message.name};
      Plotly.downloadImage({data, layout: ink}, format);
    }
  });
  const observer = new ResizeObserver(() => place.offsetWidth && Plotly.Plots.resize(place));
  observer.observe(el);
  return () => { observer.disconnect(); Plotly.purge(place); };
}
export default {render};
"""


class Library(anywidget.AnyWidget):
    """plotly.js, compressed."""

    _esm = LIBRARY
    source = traitlets.Bytes().tag(sync=True)


class Figure(anywidget.AnyWidget):
    """`figure` as JSON, redrawn when `count` changes; `event`: {"kind": "click" | "select",
    "numbers": customdata, ...}.
    """

    _esm = DRAW
    library = traitlets.Instance(Library).tag(sync=True, **widget_serialization)
    figure = traitlets.Unicode().tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    event = traitlets.Dict().tag(sync=True)

    def __init__(self, figure: dict):
        super().__init__(library=library(), figure=json.dumps(figure, separators=(",", ":")))

    def show(self, figure: dict) -> None:
        """Draw this instead; the zoom stays where layout.uirevision did."""
        text = json.dumps(figure, separators=(",", ":"))
        if text != self.figure:
            with self.hold_sync():  # one message: the picture first, then the count that redraws it
                self.figure, self.count = text, self.count + 1


@cache
def library() -> Library:
    from plotly.offline import get_plotlyjs

    return Library(source=gzip.compress(get_plotlyjs().encode(), mtime=0))
