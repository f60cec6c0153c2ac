/** A table from columns: on narrow screens each row becomes a card with the names of its columns. */
import type { ComponentChildren } from "preact";

export interface Column<T> {
  name: string;
  numeric?: boolean;
  wide?: boolean;
  cell: (item: T) => ComponentChildren;
}

export function Table<T>({ columns, items, keyOf }: { columns: Column<T>[]; items: T[]; keyOf: (item: T) => string }) {
  return (
    <div class="table-scroll">
      <table class="table cards-when-narrow">
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} class={column.numeric ? "numeric" : undefined}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr key={keyOf(item)}>
              {columns.map((column) => (
                <td
                  key={column.name}
                  data-label={column.name || undefined}
                  class={column.numeric ? "numeric" : column.wide ? "anywhere" : undefined}
                >
                  {column.cell(item)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
