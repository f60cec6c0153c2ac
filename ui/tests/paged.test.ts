import { expect, test } from "vitest";
import { type LoadedPage, type Page, reloadPages } from "../src/paged";

/** A list of numbers in pages of three; the cursor is the last item of a page. */
function listOf(items: number[]) {
  const requested: (string | undefined)[] = [];
  const load = async (after: string | undefined): Promise<Page<number>> => {
    requested.push(after);
    const start = after === undefined ? 0 : items.indexOf(Number(after)) + 1;
    const page = items.slice(start, start + 3);
    return { items: page, next: start + 3 < items.length ? String(page.at(-1)) : null };
  };
  return { load, requested };
}

const numbers = (from: number, to: number) => Array.from({ length: to - from }, (_, place) => from + place);

async function read(items: number[], pages: number): Promise<LoadedPage<number>[]> {
  const { load } = listOf(items);
  const shown: LoadedPage<number>[] = [];
  while (shown.length < pages) {
    const after = shown.at(-1)?.next ?? undefined;
    const page = await load(after);
    shown.push({ after, items: page.items, next: page.next ?? null });
  }
  return shown;
}

const flat = (pages: LoadedPage<number>[]) => pages.flatMap((page) => page.items);

test("if no page is shown yet, the first page is loaded", async () => {
  expect(flat(await reloadPages([], listOf(numbers(0, 10)).load))).toEqual([0, 1, 2]);
});

test("a list of which three pages are shown has three pages after a change, without gaps or repetitions", async () => {
  const shown = await read(numbers(0, 20), 3);

  const pages = await reloadPages(shown, listOf([100, 101, ...numbers(0, 20)]).load);

  expect(flat(pages)).toEqual([100, 101, ...numbers(0, 7)]);
  expect(pages.at(-1)?.next).toBe("6");
});

test("a list that became shorter is shown with its remaining items", async () => {
  const shown = await read(numbers(0, 20), 4);

  const pages = await reloadPages(shown, listOf(numbers(0, 4)).load);

  expect(flat(pages)).toEqual([0, 1, 2, 3]);
  expect(pages.at(-1)?.next).toBeNull();
});

test("of a very long list only the last page is loaded again, so that lines added at the end appear", async () => {
  const shown = await read(numbers(0, 34), 12);
  const { load, requested } = listOf(numbers(0, 40));

  const pages = await reloadPages(shown, load);

  expect(requested).toEqual(["32"]);
  expect(flat(pages)).toEqual(numbers(0, 36));
  expect(pages.at(-1)?.next).toBe("35");
});
