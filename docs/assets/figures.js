/* Plotly figures of executed notebooks, in the colours of the page. */
const ink = () => getComputedStyle(document.body).getPropertyValue("--md-default-fg-color").trim() || "#222";

addEventListener("DOMContentLoaded", () => {
  const places = [...document.querySelectorAll("div.figure")];
  for (const place of places) {
    const { data, layout } = JSON.parse(place.nextElementSibling.textContent);
    delete layout.width;
    Plotly.newPlot(place, data, {
      ...layout, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", font: { ...layout.font, color: ink() },
    }, { responsive: true, displaylogo: false, plotlyServerURL: "" });
  }
  const recolour = () => places.forEach((place) => Plotly.relayout(place, { "font.color": ink() }));
  if (places.length)
    new MutationObserver(recolour).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
});

/* what scrolls sideways can be reached by keyboard */
addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".output, .md-typeset__scrollwrap"))
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
});

/* the theme's search is a dialog without a name */
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
});
