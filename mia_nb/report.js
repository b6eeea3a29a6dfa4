const packed = document.querySelector('#plotly').textContent;
const bytes = Uint8Array.from(atob(packed), character => character.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
const ink = () => getComputedStyle(document.body).color, drawn = [];
function draw(block) {
  const place = block.previousElementSibling;
  if (!window.Plotly || place.dataset.drawn || place.closest('details:not([open])')) return;  // what is folded is drawn when it opens
  const figure = JSON.parse(block.textContent), layout = figure.layout || {}, own = layout.font && layout.font.color;
  place.dataset.drawn = 1;
  layout.paper_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true; delete layout.width;
  const asked = layout.height || 450;
  layout.height = place.clientHeight;
  if (layout.legend && layout.legend.y < 0) layout.legend.y *= (asked - 150) / (layout.height - 150);  // stays below the axis title
  layout.font = {...layout.font, color: own || ink()};
  const config = {...figure.config, responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
  Plotly.newPlot(place, figure.data, layout, config);
  drawn.push([place, own]);
}
const all = () => document.querySelectorAll('script.figure').forEach(draw);
new Response(stream).text().then(code => { (0, eval)(code); all(); });
document.querySelectorAll('details').forEach(fold => fold.addEventListener('toggle', all));
const ofAll = change => drawn.forEach(([place, own]) => Plotly.relayout(place, change(own)));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => ofAll(own => ({'font.color': own || ink()})));
addEventListener('beforeprint', () => ofAll(() => ({width: 680})));
addEventListener('afterprint', () => ofAll(() => ({width: null, autosize: true})));
