// Appended to plotly.js: a layout for a column of a page. The sentence stands above already, so the
// title is smaller, as wide as the column, and without the line below it; a legend is never over an
// axis title.
module.exports.dressed = (layout, place) => {
  const usual = layout.template?.layout ?? {}, title = layout.title ?? {};
  const words = (title.text ?? "").split("<br>"), lines = [""];
  const letterWidth = 6.9;
  const room = Math.max(place.clientWidth, 280) / letterWidth;
  for (const word of words.join(" ").split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length > room && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  const more = 15 * (lines.length - words.length) - 24;
  const pad = {b: (title.pad?.b ?? usual.title?.pad?.b ?? 24) + more, l: 8};
  const margin = {...usual.margin, ...layout.margin};
  // the sliders beside it have names for the eye alone
  for (const handle of document.querySelectorAll(".noUi-handle:not([aria-label])")) {
    const words = handle.closest(".widget-slider")?.querySelector(".widget-label")?.textContent;
    handle.setAttribute("aria-label", words || "value");
  }
  // an upright title has no room for all its words beside a low picture
  const low = (layout.height ?? 400) < 220;
  const named = title => typeof title === "string" ? {text: title} : {...title};
  const axes = Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(
    ([name, axis]) => {
      const title = named(axis.title);
      if (low && name[0] === "y") title.text = title.text?.split(" of ")[0];
      return [name, {...axis, title: {...title, font: {size: 11}}}];
    });
  return {
    ...layout, ...Object.fromEntries(axes), autosize: true,
    legend: {...layout.legend, font: {size: 12}},
    title: {text: lines.join("<br>"), font: {size: 12}, xref: "container", pad},
    margin: {...margin, t: (margin.t ?? 76) + more - 20},
  };
};
