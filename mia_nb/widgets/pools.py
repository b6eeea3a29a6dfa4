"""The choice of a pool: a list under headings, and words that shorten it."""

from collections.abc import Iterable, Sequence

import anywidget
import traitlets

LIST = """
const SEARCHED = 5;

function render({model, el}) {
  el.classList.add("jupyter-widgets", "widget-inline-hbox", "widget-dropdown", "widget-text");
  el.innerHTML = `<span class="widget-label"></span><select style="flex: 1"></select>
    <input type="text" placeholder="find, e.g. digits hybrid" aria-label="find"
      style="flex: 0 1 200px">`;
  const [label, list, find] = el.children;
  const option = name => new Option(name, name, false, name === model.get("value"));
  const draw = () => {
    const names = model.get("options"), words = find.value.toLowerCase().split(" ");
    const shown = names.filter(name => name === model.get("value") ||
      words.every(word => name.toLowerCase().includes(word)));
    const groups = new Map();
    for (const name of shown) {
      const heading = model.get("headings")[names.indexOf(name)];
      groups.set(heading, [...groups.get(heading) ?? [], name]);
    }
    list.replaceChildren(...[1, shown.length].includes(groups.size) ? shown.map(option) :
      [...groups].map(([heading, names]) => {
        const group = document.createElement("optgroup");
        group.label = heading;
        group.append(...names.map(option));
        return group;
      }));
    label.textContent = model.get("description");
    list.setAttribute("aria-label", label.textContent);
    find.style.display = names.length > SEARCHED ? "" : "none";
  };
  find.addEventListener("input", draw);
  list.addEventListener("change", () => {
    model.set("value", list.value);
    model.save_changes();
  });
  model.on("change", draw);
  draw();
}
export default {render};
"""


class Pools(anywidget.AnyWidget):
    """A list of names under headings, their data set and network; `value` is the one chosen.

    Above five names a field beside it shortens the list to those in which all its words stand.
    """

    _esm = LIST
    description = traitlets.Unicode().tag(sync=True)
    options = traitlets.Tuple().tag(sync=True)
    headings = traitlets.Tuple().tag(sync=True)
    value = traitlets.Unicode().tag(sync=True)

    def __init__(self, description: str, options: Iterable[str], value: str):
        names = tuple(options)
        super().__init__(
            description=description,
            options=names,
            headings=headings(names),
            value=value,
            layout={"width": "98%"},
        )

    @traitlets.validate("value")
    def _known(self, proposal):
        if proposal["value"] not in self.options:
            raise traitlets.TraitError(f"wanted one of {', '.join(self.options)}")
        return proposal["value"]


def headings(names: Sequence[str]) -> tuple[str, ...]:
    """Data set and network of each: "digits, ResNet14" of "digits, ResNet14 (d5ec), 3 queries"."""
    return tuple(", ".join(name.split(", ")[:2]).split(" (")[0] for name in names)
