// Draws the figures of the report: plotly.js stands packed in the page, figures as JSON behind their places.
const drawn = [];

function ink() {
  return getComputedStyle(document.body).color;
}

function draw(block) {
  const place = block.previousElementSibling;
  const folded = place.closest('details:not([open])');
  if (!window.Plotly || place.dataset.drawn || folded) {
    return;  // what is folded is drawn when it opens
  }
  place.dataset.drawn = 1;
  const figure = JSON.parse(block.textContent);
  const layout = figure.layout || {};
  const color = layout.font && layout.font.color;
  layout.paper_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true;
  delete layout.width;
  layout.height = place.clientHeight;
  layout.font = {...layout.font, color: color || ink()};
  const quiet = {displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
  Plotly.newPlot(place, figure.data, layout, {...figure.config, ...quiet, responsive: true});
  drawn.push({place, color});
}

function drawAll() {
  document.querySelectorAll('script.figure').forEach(draw);
}

function recolorAll() {
  for (const {place, color} of drawn) {
    Plotly.relayout(place, {'font.color': color || ink()});
  }
}

function resizeAll(size) {
  for (const {place} of drawn) {
    Plotly.relayout(place, size);
  }
}

async function unpackPlotly() {
  const packed = document.querySelector('#plotly').textContent;
  const bytes = Uint8Array.from(atob(packed), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const code = await new Response(stream).text();
  (0, eval)(code);  // in the page's scope, not in this function's
}

unpackPlotly().then(drawAll);
document.querySelectorAll('details').forEach(fold => fold.addEventListener('toggle', drawAll));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolorAll);
addEventListener('beforeprint', () => resizeAll({width: 680}));
addEventListener('afterprint', () => resizeAll({width: null, autosize: true}));
