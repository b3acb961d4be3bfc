// Where each worker stands on the map. Pure: columns in, rectangles out.
export type Group = { name: string; top: number; height: number; first: number; count: number };
export type Layout = {
  side: number;
  width: number;
  height: number;
  across: number;
  groups: Group[];
  // Places in the columns, in the order in which they are drawn.
  order: number[];
};

export const LABEL_H = 20;
const GAP = 2;

export function sideFor(count: number): number {
  return count <= 60 ? 40 : count <= 240 ? 26 : count <= 1500 ? 16 : count <= 5000 ? 11 : 8;
}

export function lay(group: number[], names: string[], width: number): Layout {
  const side = sideFor(group.length);
  const across = Math.max(1, Math.floor((width + GAP) / (side + GAP)));
  const members = new Map<number, number[]>();
  group.forEach((of, place) => {
    const listed = members.get(of);
    if (listed) listed.push(place);
    else members.set(of, [place]);
  });
  const order: number[] = [];
  const groups: Group[] = [];
  let top = 0;
  for (const of of [...members.keys()].sort((a, b) => (names[a] ?? "").localeCompare(names[b] ?? ""))) {
    const listed = members.get(of) ?? [];
    const lines = Math.ceil(listed.length / across);
    groups.push({
      name: names[of] || "none",
      top,
      height: LABEL_H + lines * (side + GAP),
      first: order.length,
      count: listed.length,
    });
    order.push(...listed);
    top += LABEL_H + lines * (side + GAP) + 10;
  }
  return { side, width, height: Math.max(top, 1), across, groups, order };
}

export function spot(layout: Layout, at: number): { x: number; y: number } {
  const group = groupOf(layout, at);
  const inside = at - group.first;
  return {
    x: (inside % layout.across) * (layout.side + GAP),
    y: group.top + LABEL_H + Math.floor(inside / layout.across) * (layout.side + GAP),
  };
}

// Which worker is under a point; -1 where there is none.
export function under(layout: Layout, x: number, y: number): number {
  for (const group of layout.groups) {
    if (y < group.top + LABEL_H || y >= group.top + group.height) continue;
    const column = Math.floor(x / (layout.side + GAP));
    const line = Math.floor((y - group.top - LABEL_H) / (layout.side + GAP));
    const inside = line * layout.across + column;
    return column >= 0 && column < layout.across && inside < group.count ? group.first + inside : -1;
  }
  return -1;
}

export function groupOf(layout: Layout, at: number): Group {
  let low = 0;
  let high = layout.groups.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((layout.groups[middle]?.first ?? 0) <= at) low = middle;
    else high = middle - 1;
  }
  return layout.groups[low] as Group;
}
