// Tables are sorted by the buttons in their heads: first upwards, then downwards, then as they were. Empty cells stay last.
function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const keyOf = (row) => {
    const cell = row.cells[column];
    if (direction === "none" || column === 0) return Number(row.dataset.order);
    return cell.dataset.sort === undefined ? null : Number(cell.dataset.sort);
  };
  const sign = direction === "descending" ? -1 : 1;
  const rows = [...body.rows].map((row) => [keyOf(row), Number(row.dataset.order), row]);
  rows.sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return sign * (a - b) || i - j;
  });
  body.append(...rows.map(([, , row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = ["none", "ascending", "descending"];
      const next = order[(order.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", next);
      sortBy(table, column, next);
    });
  });
}
