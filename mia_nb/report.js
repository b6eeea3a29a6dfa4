const packed = document.querySelector('#plotly').textContent;
const bytes = Uint8Array.from(atob(packed), character => character.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
const ink = () => getComputedStyle(document.body).color, drawn = [];
function draw(block) {
  const place = block.previousElementSibling;
  // what is folded is drawn when it opens
  if (!window.Plotly || place.dataset.drawn || place.closest('details:not([open])')) return;
  const figure = JSON.parse(block.textContent), layout = figure.layout || {};
  const own = layout.font && layout.font.color;
  place.dataset.drawn = 1;
  layout.paper_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true; delete layout.width;
  layout.height = place.clientHeight;
  layout.font = {...layout.font, color: own || ink()};
  const quiet = {displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
  const config = {...figure.config, ...quiet, responsive: true};
  Plotly.newPlot(place, figure.data, layout, config);
  drawn.push([place, own]);
}
const all = () => document.querySelectorAll('script.figure').forEach(draw);
new Response(stream).text().then(code => { (0, eval)(code); all(); });
document.querySelectorAll('details').forEach(fold => fold.addEventListener('toggle', all));
const ofAll = change => drawn.forEach(([place, own]) => Plotly.relayout(place, change(own)));
const inked = () => ofAll(own => ({'font.color': own || ink()}));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', inked);
addEventListener('beforeprint', () => ofAll(() => ({width: 680})));
addEventListener('afterprint', () => ofAll(() => ({width: null, autosize: true})));
